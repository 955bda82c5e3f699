/* A roster's life, and what it knows of its workers (roster.h): who counts, how far they are, when
 * they end. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/core/roster_state.h"

struct roster *roster_new(uint32_t lease_ms, uint32_t join_ms)
{
    struct roster *r = mem_alloc(sizeof *r);

    r->lease_ms = lease_ms;
    r->join_ms = join_ms;
    return r;
}

static void free_entry(struct roster_entry *entry)
{
    for (uint32_t i = 0; i < entry->n_retired; i++)
        free(entry->retired[i]);
    free(entry->job.workers);
    free(entry);
}

void roster_free(struct roster *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n_jobs; i++)
        free_entry(r->entries[i]);
    free(r);
}

/* --- what is told --- */

void roster_tell(struct roster *r, const struct shard_journal *journal, const uint64_t *version)
{
    r->journal = journal;
    r->version = version;
}

static struct roster *roster_of(const struct worker *w)
{
    return CONTAINER_OF(w->job, struct roster_entry, job)->roster;
}

static struct shard_event_worker who(const struct worker *w)
{
    return (struct shard_event_worker){ w->job->name, w->rank, w->incarnation };
}

static void tell_gone(const struct roster *r, const struct worker *w)
{
    if (r->journal)
        shard_journal_record(r->journal,
                             &(struct shard_event){ .type = SHARD_EVENT_GONE,
                                                    .version = *r->version,
                                                    .gone = { who(w), (int)w->state } });
}

static void tell_reach(const struct roster *r, const struct worker *w)
{
    if (r->journal)
        shard_journal_record(r->journal,
                             &(struct shard_event){ .type = SHARD_EVENT_REACH,
                                                    .version = *r->version,
                                                    .reach = { who(w), w->clock } });
}

/* --- who counts --- */

bool job_counts(const struct worker *w)
{
    return w->state == WORKER_EXPECTED || w->state == WORKER_LIVE;
}

bool job_is_alive(const struct job *job)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job_counts(&job->workers[i]))
            return true;
    return false;
}

uint64_t job_min_clock(const struct job *job)
{
    uint64_t least = UINT64_MAX, most = 0;
    bool any = false;

    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct worker *w = &job->workers[i];

        if (w->clock > most)
            most = w->clock;
        if (!job_counts(w))
            continue;
        any = true;
        if (w->clock < least)
            least = w->clock;
    }
    return any ? least : most;
}

bool job_all_ticked(const struct job *job, uint64_t clock)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job_counts(&job->workers[i]) && job->workers[i].clock <= clock)
            return false;
    return true;
}

int roster_find(struct roster *r, const char *job, uint32_t rank, uint64_t incarnation,
                uint64_t now_ms, struct worker **ret_worker)
{
    struct roster_entry *entry = roster_state_find(r, job);
    struct worker *w;

    if (!entry || rank >= entry->job.n_workers)
        return PS_ENOJOIN;
    w = &entry->job.workers[rank];
    if (w->state == WORKER_LIVE && w->incarnation == incarnation) {
        if (now_ms > w->last_seen_ms)
            w->last_seen_ms = now_ms;
        *ret_worker = w;
        return 0;
    }
    if (!roster_state_is_fenced(w, incarnation))
        return PS_ENOJOIN;
    entry->job.n_fenced++;
    return PS_EFENCED;
}

uint64_t roster_fence(const struct roster *r, const char *job, uint32_t rank)
{
    const struct roster_entry *entry = roster_state_find(r, job);
    const struct worker *w;
    uint64_t above;

    if (!entry || rank >= entry->workers_cap)
        return 0;
    w = &entry->job.workers[rank];
    above = w->incarnation == UINT64_MAX ? UINT64_MAX : w->incarnation + 1;
    return above > w->fenced_below ? above : w->fenced_below;
}

bool roster_reach(struct worker *worker, uint64_t clock)
{
    if (worker->is_behind || clock <= worker->clock || clock > ROSTER_CLOCK_END)
        return false;
    worker->clock = clock;
    tell_reach(roster_of(worker), worker);
    return true;
}

/* LEFT, DEAD or LOST. */
static void end(struct roster *r, struct worker *w, enum worker_state state)
{
    w->state = state;
    if (state == WORKER_DEAD) {
        w->fenced_below = w->incarnation == UINT64_MAX ? UINT64_MAX : w->incarnation + 1;
        w->job->n_deaths++;
    }
    r->n_gone++;
    tell_gone(r, w);
}

void roster_leave(struct roster *r, struct worker *worker)
{
    if (worker->state == WORKER_LIVE)
        end(r, worker, WORKER_LEFT);
}

int roster_end_again(struct roster *r, struct worker *worker, enum worker_state state)
{
    enum worker_state before = state == WORKER_LOST ? WORKER_EXPECTED : WORKER_LIVE;

    if ((state != WORKER_LEFT && state != WORKER_DEAD && state != WORKER_LOST) ||
        worker->state != before)
        return PS_ECORRUPT;
    end(r, worker, state);
    return 0;
}

static bool advance_worker(struct roster *r, struct worker *w, uint64_t now_ms)
{
    if (w->state == WORKER_EXPECTED && now_ms >= w->job->join_deadline_ms)
        end(r, w, WORKER_LOST);
    else if (w->state == WORKER_LIVE && now_ms > w->last_seen_ms &&
             now_ms - w->last_seen_ms > r->lease_ms)
        end(r, w, WORKER_DEAD);
    else
        return false;
    return true;
}

bool roster_advance(struct roster *r, uint64_t now_ms)
{
    bool any = false;

    for (uint32_t i = 0; i < r->n_jobs; i++) {
        struct job *job = &r->entries[i]->job;

        for (uint32_t k = 0; k < job->n_workers; k++)
            any = advance_worker(r, &job->workers[k], now_ms) || any;
    }
    return any;
}

struct worker *roster_worker(struct roster *r, const char *job, uint32_t rank)
{
    struct roster_entry *entry = roster_state_find(r, job);

    return entry && rank < entry->job.n_workers ? &entry->job.workers[rank] : NULL;
}

void roster_renew(struct roster *r, uint64_t now_ms)
{
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        struct job *job = &r->entries[i]->job;

        job->join_deadline_ms = now_ms + r->join_ms;
        for (uint32_t k = 0; k < job->n_workers; k++)
            job->workers[k].last_seen_ms = now_ms;
    }
}

uint64_t roster_n_gone(const struct roster *r)
{
    return r->n_gone;
}

uint32_t roster_n_jobs(const struct roster *r)
{
    return r->n_jobs;
}

struct job *roster_job(struct roster *r, uint32_t i)
{
    assert(i < r->n_jobs);
    return &r->entries[i]->job;
}

const char *worker_state_name(enum worker_state state)
{
    static const char *const names[] = { [WORKER_EXPECTED] = "expected",
                                         [WORKER_LIVE] = "live",
                                         [WORKER_LEFT] = "left",
                                         [WORKER_DEAD] = "dead",
                                         [WORKER_LOST] = "lost" };

    return (size_t)state < COUNT_OF(names) ? names[state] : "unknown";
}
