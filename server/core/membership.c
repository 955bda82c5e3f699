/* Jobs and workers (membership.h): joins, clocks, leases, fencing. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/number.h"
#include "server/core/join_check.h"
#include "server/core/learning.h"
#include "server/core/membership.h"
#include "server/core/membership_internal.h"
#include "server/core/shard_events.h"
#include "server/core/suspicion.h"

/* NULL: there is no such job. */
static struct membership_entry *find_job(const struct membership *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_jobs; i++)
        if (strcmp(r->entries[i]->job.name, name) == 0)
            return r->entries[i];
    return NULL;
}

/* May nothing more come from this incarnation of a worker that had joined? */
static bool is_fenced(const struct worker *w, uint64_t incarnation)
{
    bool gone = w->state == WORKER_LEFT || w->state == WORKER_DEAD;

    return (w->is_barred && incarnation == w->barred) ||
           (incarnation < w->fenced_below && w->fenced_below <= MEMBERSHIP_FENCE_MAX) ||
           ((gone || w->is_suspected) && incarnation == w->incarnation);
}

struct membership *membership_new(uint32_t lease_ms, uint32_t join_ms)
{
    struct membership *r = memory_alloc(sizeof *r);

    r->lease_ms = lease_ms;
    r->join_ms = join_ms;
    return r;
}

void membership_set_alone(struct membership *r)
{
    r->is_alone = true;
}

static void free_entry(struct membership_entry *entry)
{
    for (uint32_t i = 0; i < entry->n_retired; i++)
        free(entry->retired[i]);
    free(entry->job.workers);
    learning_reset(&entry->job);
    free(entry);
}

void membership_free(struct membership *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n_jobs; i++)
        free_entry(r->entries[i]);
    free(r);
}

/* --- events --- */

void membership_set_events(struct membership *r, const struct shard_events *events,
                           const uint64_t *version)
{
    r->events = events;
    r->version = version;
}

static struct membership *membership_of(const struct worker *w)
{
    return CONTAINER_OF(w->job, struct membership_entry, job)->membership;
}

static struct shard_event_worker identity(const struct worker *w)
{
    return (struct shard_event_worker){ w->job->name, w->rank, w->incarnation };
}

static void report_gone(const struct membership *r, const struct worker *w)
{
    if (r->events)
        shard_events_record(r->events,
                            &(struct shard_event){ .type = SHARD_EVENT_GONE,
                                                   .version = *r->version,
                                                   .gone = { identity(w), (int)w->state } });
}

static void report_clock(const struct membership *r, const struct worker *w)
{
    if (r->events)
        shard_events_record(r->events,
                            &(struct shard_event){ .type = SHARD_EVENT_ADVANCE,
                                                   .version = *r->version,
                                                   .advance = { identity(w), w->clock } });
}

/* --- learning --- */

int membership_learn(struct membership *r, struct worker *worker,
                     const struct learning_report *report, uint64_t now_ms, uint64_t unix_ms)
{
    struct shard_event event = { .type = SHARD_EVENT_LEARNED,
                                 .version = r->version ? *r->version : 0,
                                 .learned = { identity(worker), report, unix_ms } };
    int status;

    if (learning_report_wrong(report) || unix_ms > LEARNING_UNIX_MS_MAX)
        return -EINVAL;
    if (r->drops_learning)
        return 0;
    if (!learning_may_report(worker, now_ms))
        return 0;
    status = learning_open(worker->job);
    if (!status)
        status = shard_events_reserve(r->events, &event);
    if (status)
        return status;
    learning_add(worker, report, job_min_clock(worker->job), unix_ms);
    shard_events_record(r->events, &event);
    return 0;
}

void membership_drop_learning(struct membership *r)
{
    r->drops_learning = true;
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        struct job *job = &r->entries[i]->job;

        learning_reset(job);
        for (uint32_t k = 0; k < job->n_workers; k++)
            job->workers[k].learning = (struct learning_worker){ 0 };
    }
}

/* --- workers that count --- */

bool job_counts(const struct worker *w)
{
    return w->state == WORKER_EXPECTED || w->state == WORKER_LIVE;
}

bool job_is_alive(const struct job *job)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job_counts(&job->workers[i]) && !job->workers[i].is_given_up)
            return true;
    return false;
}

bool job_is_deserted(const struct job *job)
{
    bool any = false;

    for (uint32_t i = 0; i < job->n_workers; i++)
        any = any || job->workers[i].is_given_up;
    return any && !job_is_alive(job);
}

/* Ascending; n of them, less than cap. */
struct least_clocks {
    uint32_t n, cap;
    uint64_t clocks[MEMBERSHIP_N_BACKUPS_MAX + 1];
};

static void add_clock(struct least_clocks *l, uint64_t clock)
{
    uint32_t at = l->n;

    if (at == l->cap && l->clocks[at - 1] <= clock)
        return;
    if (at == l->cap)
        at--;
    else
        l->n++;
    for (; at && l->clocks[at - 1] > clock; at--)
        l->clocks[at] = l->clocks[at - 1];
    l->clocks[at] = clock;
}

uint64_t job_min_clock(const struct job *job)
{
    struct least_clocks least = { .cap = job->n_backups + 1 };
    uint64_t most = 0;

    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct worker *w = &job->workers[i];

        if (w->clock > most)
            most = w->clock;
        if (job_counts(w))
            add_clock(&least, w->clock);
    }
    return least.n == least.cap ? least.clocks[least.n - 1] : most;
}

bool job_all_ticked(const struct job *job, uint64_t clock)
{
    uint32_t n = 0, n_behind = 0;
    uint64_t most = 0;

    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct worker *w = &job->workers[i];

        most = w->clock > most ? w->clock : most;
        n += job_counts(w);
        n_behind += job_counts(w) && w->clock <= clock;
    }
    /* As many as may be missing, or fewer: who is first is enough. */
    return n && n <= job->n_backups ? most > clock : n_behind <= job->n_backups;
}

bool job_is_over(const struct job *job, uint64_t clock)
{
    return job->n_backups && job_all_ticked(job, clock);
}

/* A worker of the job is heard again. The others have a lease to be heard, too, as after a restart; a suspect, of which
 * others may know, stays one. */
static void end_silence(struct worker *w, uint64_t now_ms)
{
    if (w->is_given_up && !w->is_suspected && now_ms > w->last_seen_ms)
        w->last_seen_ms = now_ms;
    w->is_given_up = false;
}

void membership_hear(struct worker *worker, uint64_t now_ms)
{
    const struct job *job = worker->job;

    if (now_ms > worker->last_seen_ms)
        worker->last_seen_ms = now_ms;
    if (!worker->is_given_up)
        return;
    for (uint32_t i = 0; i < job->n_workers; i++)
        end_silence(&job->workers[i], now_ms);
}

int membership_find(struct membership *r, const char *job, uint32_t rank, uint64_t incarnation,
                    uint64_t now_ms, struct worker **ret_worker)
{
    struct membership_entry *entry = find_job(r, job);
    struct worker *w;

    if (!entry || rank >= entry->job.n_workers)
        return PS_ENOJOIN;
    w = &entry->job.workers[rank];
    if (w->state == WORKER_LIVE && w->incarnation == incarnation && !w->is_suspected) {
        membership_hear(w, now_ms);
        *ret_worker = w;
        return 0;
    }
    if (!is_fenced(w, incarnation))
        return PS_ENOJOIN;
    entry->job.n_fenced++;
    return PS_EFENCED;
}

uint64_t membership_fence(const struct membership *r, const char *job, uint32_t rank)
{
    const struct membership_entry *entry = find_job(r, job);
    const struct worker *w;
    uint64_t above;

    if (!entry || rank >= entry->workers_cap)
        return 0;
    w = &entry->job.workers[rank];
    above = w->incarnation == UINT64_MAX ? UINT64_MAX : w->incarnation + 1;
    return above > w->fenced_below ? above : w->fenced_below;
}

/* clock is at most `from` and a step, or in the range that clocks are free in. */
static bool is_near(uint64_t clock, uint64_t from)
{
    return clock <= MEMBERSHIP_CLOCK_FAR ||
           (clock < MEMBERSHIP_CLOCK_END &&
            (clock <= from || clock - from <= MEMBERSHIP_CLOCK_STEP));
}

bool membership_clock_is_near(const struct worker *worker, uint64_t clock)
{
    return is_near(clock, worker->clock);
}

bool membership_advance_clock(struct worker *worker, uint64_t clock)
{
    if (worker->is_behind || clock <= worker->clock || clock > MEMBERSHIP_CLOCK_END)
        return false;
    worker->clock = clock;
    report_clock(membership_of(worker), worker);
    return true;
}

/* LEFT, DEAD or LOST. */
static void end_worker(struct membership *r, struct worker *w, enum worker_state state)
{
    w->state = state;
    if (state == WORKER_DEAD) {
        w->fenced_below = w->incarnation == UINT64_MAX ? UINT64_MAX : w->incarnation + 1;
        w->job->n_deaths += !w->is_given_up;
    }
    w->is_suspected = w->is_given_up = false;
    r->n_gone++;
    report_gone(r, w);
}

void membership_leave(struct membership *r, struct worker *worker)
{
    if (worker->state == WORKER_LIVE)
        end_worker(r, worker, WORKER_LEFT);
}

void membership_give_up(struct membership *r, struct worker *worker)
{
    if (worker->state == WORKER_EXPECTED)
        end_worker(r, worker, WORKER_LOST);
}

void membership_end_deserted(struct membership *r, const struct job *job)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i].is_given_up)
            end_worker(r, &job->workers[i], WORKER_DEAD);
}

int membership_replay_end(struct membership *r, struct worker *worker, enum worker_state state)
{
    enum worker_state before = state == WORKER_LOST ? WORKER_EXPECTED : WORKER_LIVE;

    if ((state != WORKER_LEFT && state != WORKER_DEAD && state != WORKER_LOST) ||
        worker->state != before)
        return PS_ECORRUPT;
    end_worker(r, worker, state);
    return 0;
}

/* --- leases --- */

static void begin_suspicion(struct worker *w, uint64_t now_ms)
{
    w->is_suspected = true;
    w->suspected_ms = now_ms;
    w->is_reported = false;
    w->agreed.n = 0;
}

/* Leases do not end in one moment: a worker that was suspected while others were heard is as silent as they are, if
 * nobody knows of it. True once nobody can come back any more. */
static bool give_up(struct worker *w, uint64_t now_ms)
{
    if (!w->is_given_up) {
        w->is_given_up = true;
        w->given_up_ms = now_ms;
        w->is_suspected = w->is_suspected && !suspicion_is_private(w);
        w->job->n_deaths++;
    }
    return now_ms > w->given_up_ms && now_ms - w->given_up_ms > MEMBERSHIP_GIVEN_UP_MS;
}

/* Its lease is over, or other shards suspect it. Is it dead? */
static bool decide(const struct membership *r, struct worker *w, uint64_t now_ms)
{
    if (w->is_suspected && suspicion_is_agreed(w, r->lease_ms, now_ms))
        return true;
    if (suspicion_has_relay(w->job, r->lease_ms, now_ms)) {
        if (!w->is_suspected)
            begin_suspicion(w, now_ms);
        return false;
    }
    if (!r->is_alone && suspicion_is_deserted(w->job, r->lease_ms, now_ms))
        return give_up(w, now_ms);
    return true;
}

static bool advance_worker(struct membership *r, struct worker *w, uint64_t now_ms)
{
    if (w->state == WORKER_EXPECTED && now_ms >= w->job->join_deadline_ms) {
        end_worker(r, w, WORKER_LOST);
        return true;
    }
    if (!w->is_suspected && !suspicion_lease_is_over(w, r->lease_ms, now_ms))
        return false;
    if (!decide(r, w, now_ms))
        return false;
    end_worker(r, w, WORKER_DEAD);
    return true;
}

bool membership_suspect(struct membership *r, const struct job *job,
                        const struct membership_report *report, uint64_t now_ms)
{
    struct worker *w = report->rank < job->n_workers ? &job->workers[report->rank] : NULL;
    uint64_t incarnation = report->incarnation;

    if (!w || !job->workers[report->from].relays)
        return false;
    if (report->rank != report->from &&
        (incarnation > w->incarnation || w->state == WORKER_EXPECTED) &&
        (!w->is_barred || incarnation > w->barred)) {
        w->is_barred = true; /* its join is on its way; a smaller one has been replaced by it */
        w->barred = incarnation;
    }
    if (w->state != WORKER_LIVE || w->incarnation != incarnation)
        return false; /* it has ended here, or has a successor: it is refused already */
    if (report->rank == report->from)
        w->doubts_itself = true;
    else if (!w->is_suspected || !report->is_agreed)
        (void)suspicion_add(&w->reporters, report->from);
    else
        (void)suspicion_add(&w->agreed, report->from);
    if (!w->is_suspected && suspicion_is_believed(w, r->lease_ms, now_ms))
        begin_suspicion(w, now_ms);
    if (!w->is_suspected || !suspicion_is_agreed(w, r->lease_ms, now_ms))
        return false;
    end_worker(r, w, WORKER_DEAD);
    return true;
}

bool membership_doubts(const struct worker *worker, uint32_t from)
{
    return worker->state == WORKER_LIVE && !worker->is_suspected &&
           suspicion_has(&worker->reporters, from);
}

bool membership_has_suspects(const struct membership *r)
{
    return r->has_suspects;
}

bool membership_advance(struct membership *r, uint64_t now_ms)
{
    bool any = false;

    r->has_suspects = false;
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        struct job *job = &r->entries[i]->job;

        for (uint32_t k = 0; k < job->n_workers; k++) {
            any = advance_worker(r, &job->workers[k], now_ms) || any;
            r->has_suspects = r->has_suspects || job->workers[k].is_suspected;
        }
    }
    return any;
}

/* --- joins --- */

static int reserve_workers(struct membership_entry *entry, uint32_t n_workers)
{
    uint32_t cap = entry->workers_cap ? entry->workers_cap : 1;
    struct worker *workers;

    if (n_workers <= entry->workers_cap)
        return 0;
    while (cap < n_workers)
        cap *= 2;
    workers = memory_try_alloc(cap * sizeof *workers);
    if (!workers)
        return -ENOMEM;
    if (entry->job.workers) {
        assert(entry->n_retired < RETIRED_MAX);
        memcpy(workers, entry->job.workers, entry->workers_cap * sizeof *workers);
        entry->retired[entry->n_retired++] = entry->job.workers;
        for (uint32_t i = 0; i < entry->workers_cap; i++)
            entry->job.workers[i].state =
                WORKER_LEFT; /* whoever still points here finds nobody */
    }
    entry->job.workers = workers;
    entry->workers_cap = cap;
    return 0;
}

/* The place of the job which was gone first, if any is. */
static struct membership_entry *gone_entry(const struct membership *r)
{
    struct membership_entry *oldest = NULL;

    for (uint32_t i = 0; i < r->n_jobs; i++)
        if (!job_is_alive(&r->entries[i]->job) &&
            (!oldest || r->entries[i]->job.run < oldest->job.run))
            oldest = r->entries[i];
    return oldest;
}

/* A place with space for n_workers, for a job that has none. */
static int new_entry(struct membership *r, uint32_t n_workers,
                     struct membership_entry **ret_entry)
{
    struct membership_entry *entry;

    if (r->n_jobs == MEMBERSHIP_N_JOBS_MAX) {
        *ret_entry = gone_entry(r);
        return *ret_entry ? reserve_workers(*ret_entry, n_workers) : -ENOSPC;
    }
    entry = memory_try_alloc(sizeof *entry);
    if (!entry || reserve_workers(entry, n_workers) != 0) {
        free(entry);
        return -ENOMEM;
    }
    entry->membership = r;
    r->entries[r->n_jobs++] = entry;
    *ret_entry = entry;
    return 0;
}

/* Everybody expected, clocks at 0, settings as this join says. Fences stay. */
static void start_job(struct membership *r, struct membership_entry *entry,
                      const struct membership_join *join, uint64_t now_ms)
{
    struct job *job = &entry->job;

    if (strcmp(job->name, join->job) != 0) {
        memset(job->workers, 0, entry->workers_cap * sizeof *job->workers);
        memset(job->name, 0, sizeof job->name);
        job->parked_ms = 0;
        memcpy(job->name, join->job, strlen(join->job));
    }
    job->run = ++r->n_runs;
    job->opener = job->host = 0;
    job->mode = join->mode;
    job->bound = join->mode == TABLE_SPEC_MODE_SSP ? join->bound : 0;
    job->n_backups = join->n_backups;
    job->n_workers = join->n_workers;
    job->started_ms = now_ms;
    job->join_deadline_ms = now_ms + r->join_ms;
    job->applied_end = 0;
    job->n_fenced = job->n_deaths = job->staleness_violations = job->n_lost = 0;
    memset(&job->staleness, 0, sizeof job->staleness);
    learning_reset(job);
    for (uint32_t i = 0; i < entry->workers_cap; i++)
        job->workers[i] = (struct worker){ .job = job,
                                           .rank = i,
                                           .state = WORKER_EXPECTED,
                                           .fenced_below = job->workers[i].fenced_below };
}

/* The greatest clock that any worker of the job had; 0: there is no such job. */
static uint64_t most_clock(const struct membership_entry *entry)
{
    uint64_t most = 0;

    for (uint32_t i = 0; entry && i < entry->job.n_workers; i++)
        if (entry->job.workers[i].clock > most)
            most = entry->job.workers[i].clock;
    return most;
}

/* The top of the ranges, which a peer may not use: beyond it its rank, or its job, could not go on. */
static int check_range(const struct membership_entry *entry, const struct membership_join *join,
                       struct err *err)
{
    const struct worker *w =
        entry && join->rank < entry->job.n_workers ? &entry->job.workers[join->rank] : NULL;

    if (join->incarnation >= MEMBERSHIP_INCARNATION_END)
        return err_set(err, -EINVAL,
                       "job %s: rank %u has incarnation %" PRIu64
                       ", expected one below 2^63, such as milliseconds since 1970",
                       join->job, join->rank, join->incarnation);
    if (!is_near(join->clock, most_clock(entry)))
        return err_set(err, -EINVAL,
                       "job %s: rank %u says that it has finished %" PRIu64
                       " steps, which is out of range",
                       join->job, join->rank, join->clock);
    if (join->last_acked > MEMBERSHIP_ACKED_MAX)
        return err_set(err, -EINVAL,
                       "job %s: rank %u says that push %" PRIu64
                       " was acknowledged, which is out of range",
                       join->job, join->rank, join->last_acked);
    if (w && w->is_known && w->state == WORKER_LIVE && w->incarnation == join->incarnation &&
        join->last_acked > w->last_seq)
        return err_set(err, -EINVAL,
                       "job %s: rank %u says that push %" PRIu64
                       " was acknowledged, but this shard has had %" PRIu64
                       " pushes of it and has lost none",
                       join->job, join->rank, join->last_acked, w->last_seq);
    return 0;
}

/* The previous process had left; this one has found pushes that are acknowledged and takes them for open, as the
 * other one ended before it could remove them. They stay acknowledged, and nothing is left to do. */
static bool returns(const struct membership_entry *entry, const struct membership_join *join)
{
    const struct worker *w;

    if (join->rank >= entry->job.n_workers)
        return false;
    w = &entry->job.workers[join->rank];
    return w->state == WORKER_LEFT && w->incarnation == join->incarnation &&
           w->last_seq > join->last_acked;
}

/* Who left may come back with the same number when the whole job starts afresh. */
static bool join_is_fenced(const struct membership_entry *entry,
                           const struct membership_join *join, bool job_alive)
{
    const struct worker *w;

    if (join->rank >= entry->workers_cap)
        return false;
    w = &entry->job.workers[join->rank];
    if (!is_fenced(w, join->incarnation))
        return false;
    if (returns(entry, join))
        return join_check_settings(&entry->job, join, NULL) != 0;
    /* Another incarnation than the one that left is barred. */
    return job_alive || w->state != WORKER_LEFT || join->incarnation < w->fenced_below ||
           join->incarnation != w->incarnation;
}

/* Nobody takes part who has done anything: of a start that failed, perhaps with settings that were wrong, is left that
 * its other workers are expected. A join with other settings starts the job afresh. */
static bool is_abandoned(const struct job *job)
{
    for (uint32_t i = 0; i < job->n_workers; i++) {
        const struct worker *w = &job->workers[i];

        if ((w->state == WORKER_LIVE && !w->is_given_up) || w->clock || w->last_seq)
            return false;
    }
    return true;
}

/* Is this join one to the job's run, as long as that lasts? */
static bool joins_run(const struct membership_entry *entry, const struct membership_join *join)
{
    return entry && job_is_alive(&entry->job) &&
           !(is_abandoned(&entry->job) && join_check_settings(&entry->job, join, NULL));
}

/* Is it one of a worker that is live here, or given up? */
static bool reconnects(const struct membership_entry *entry, const struct membership_join *join)
{
    const struct worker *w =
        entry && join->rank < entry->job.n_workers ? &entry->job.workers[join->rank] : NULL;

    return w && w->state == WORKER_LIVE && w->incarnation == join->incarnation;
}

static void set_name(struct worker *w, const char *name)
{
    size_t n_chars = name ? strnlen(name, sizeof w->name - 1) : 0;

    memset(w->name, 0, sizeof w->name);
    if (n_chars)
        memcpy(w->name, name, n_chars);
}

/* A shard that ended, and has less than it had said. */
static void note_lost(struct worker *w, uint64_t last_acked, uint64_t last_seq)
{
    w->n_lost = last_acked - last_seq;
    w->job->n_lost += w->n_lost;
    if (w->n_lost) {
        w->lost_first = last_seq + 1;
        w->lost_last = last_acked;
    }
}

static void enter(struct worker *w, const struct membership_join *join, bool returns,
                  uint64_t now_ms)
{
    bool reconnect = w->state == WORKER_LIVE && w->incarnation == join->incarnation;
    uint64_t min_clock = job_min_clock(w->job), had_finished;

    for (uint32_t i = 0; i < w->job->n_workers; i++)
        end_silence(&w->job->workers[i], now_ms);
    w->last_seen_ms = now_ms;
    w->relays = join->relays;
    if (!reconnect)
        suspicion_clear(w);
    w->resumed = reconnect || returns;
    w->n_lost = 0;
    set_name(w, join->name);
    if (returns) {
        w->state = WORKER_LIVE;
        w->n_skipped += min_clock > w->clock ? min_clock - w->clock : 0;
        if (w->clock < min_clock)
            w->clock = min_clock;
        return;
    }
    if (reconnect) {
        if (join->last_acked <= w->last_seq)
            return;
        note_lost(w, join->last_acked, w->last_seq);
        w->last_seq = join->last_acked;
        if (join->clock > w->clock)
            w->clock = join->clock; /* its tick was in what is lost */
        return;
    }
    w->state = WORKER_LIVE;
    w->incarnation = w->fenced_below = join->incarnation;
    had_finished = join->clock > w->clock ? join->clock : w->clock;
    w->clock = join->clock > min_clock ? join->clock : min_clock;
    w->n_skipped += w->clock > had_finished ? w->clock - had_finished : 0;
    w->lost_first = w->lost_last = 0;
    note_lost(w, join->last_acked, 0);
    w->last_seq = join->last_acked;
    w->is_behind = false;
    w->refused_seq = 0;
    w->refused_status = 0;
}

static int fenced(struct job *job, const struct membership_join *join, struct err *err)
{
    job->n_fenced++;
    return err_set(err, PS_EFENCED,
                   "job %s: rank %u has left, is suspected or dead, or has been replaced since",
                   job->name, join->rank);
}

/* While another process of this rank sends messages, a join is refused with -EBUSY: it may be a mistyped command, or
 * too soon after a crash. Half a lease is more than the third of a lease between a live worker's heartbeats. */
static int check_live(const struct membership *r, const struct membership_entry *entry,
                      const struct membership_join *join, uint64_t now_ms, struct err *err)
{
    const struct worker *w = &entry->job.workers[join->rank];
    const char *name = join->name ? join->name : "";
    uint64_t silent_ms = now_ms > w->last_seen_ms ? now_ms - w->last_seen_ms : 0;

    if (w->state != WORKER_LIVE || w->incarnation == join->incarnation ||
        silent_ms >= r->lease_ms / 2 || strncmp(w->name, name, sizeof w->name - 1) == 0)
        return 0;
    return err_set(err, -EBUSY, "job %s: rank %u is %s, heard of %llu ms ago", join->job,
                   join->rank, w->name, (unsigned long long)silent_ms);
}

static struct shard_event join_event(const struct membership *r,
                                     const struct membership_join *join, uint64_t now_ms)
{
    return (struct shard_event){ .type = SHARD_EVENT_JOIN,
                                 .version = r->version ? *r->version : 0,
                                 .join = { join, now_ms } };
}

/* Clocks after which no step is possible. Only data from before MEMBERSHIP_CLOCK_FAR has such clocks. */
static bool is_stuck(const struct membership_entry *entry)
{
    return most_clock(entry) > MEMBERSHIP_CLOCK_END - MEMBERSHIP_CLOCK_FAR;
}

/* Nothing of the other workers stands against it. */
static int admit(struct membership *r, struct membership_entry *entry,
                 const struct membership_join *join, uint64_t now_ms,
                 struct worker **ret_worker, struct err *err)
{
    const struct shard_event event = join_event(r, join, now_ms);
    bool alive = joins_run(entry, join);
    bool resumes = entry && returns(entry, join);
    /* Who has finished steps comes back to a run, also when all others have ended it. */
    bool goes_on = alive || resumes || reconnects(entry, join) ||
                   (entry && join->clock > 0 && !is_stuck(entry) &&
                    !join_check_settings(&entry->job, join, NULL));
    int status;

    if (entry && join_is_fenced(entry, join, alive))
        return fenced(&entry->job, join, err);
    status = shard_events_reserve(r->events, &event);
    if (status == -EAGAIN)
        return err_set(err, status,
                       "job %s: the write-ahead log takes no more now, because of its disk, "
                       "the standby or a switch (psctl why): rank %u has to wait",
                       join->job, join->rank);
    if (!status && !goes_on)
        status = entry ? reserve_workers(entry, join->n_workers)
                       : new_entry(r, join->n_workers, &entry);
    if (status)
        return err_set(err, status, "job %s: %s for %u worker%s", join->job,
                       status == -ENOSPC ? "too many jobs have workers: no place" : "no memory",
                       join->n_workers, NUMBER_PLURAL(join->n_workers));
    if (!goes_on) {
        membership_end_deserted(r, &entry->job);
        start_job(r, entry, join, now_ms);
    }
    *ret_worker = &entry->job.workers[join->rank];
    (*ret_worker)->join_number = ++r->n_joins;
    enter(*ret_worker, join, resumes, now_ms);
    shard_events_record(r->events, &event);
    return 0;
}

int membership_join(struct membership *r, const struct membership_join *join, uint64_t now_ms,
                    struct worker **ret_worker, struct err *err)
{
    int status = join_check_fields(join, err);
    struct membership_entry *entry;

    if (status)
        return status;
    entry = find_job(r, join->job);
    status = check_range(entry, join, err);
    if (!status && (joins_run(entry, join) || reconnects(entry, join))) {
        status = join_check_settings(&entry->job, join, err);
        if (!status)
            status = check_live(r, entry, join, now_ms, err);
    }
    if (!status)
        status = admit(r, entry, join, now_ms, ret_worker, err);
    if (!status)
        (*ret_worker)->is_known = true;
    return status;
}

int membership_replay_join(struct membership *r, const struct membership_join *join,
                           uint64_t now_ms, struct err *err)
{
    struct worker *worker;
    int status = join_check_fields(join, err);
    struct membership_entry *entry;

    if (status)
        return status;
    entry = find_job(r, join->job);
    if (joins_run(entry, join))
        status = join_check_settings(&entry->job, join, err);
    return status ? status : admit(r, entry, join, now_ms, &worker, err);
}

/* --- queries --- */

struct worker *membership_worker(struct membership *r, const char *job, uint32_t rank)
{
    struct membership_entry *entry = find_job(r, job);

    return entry && rank < entry->job.n_workers ? &entry->job.workers[rank] : NULL;
}

void membership_renew(struct membership *r, uint64_t now_ms)
{
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        struct job *job = &r->entries[i]->job;

        job->join_deadline_ms = now_ms + r->join_ms;
        for (uint32_t k = 0; k < job->n_workers; k++) {
            job->workers[k].last_seen_ms = now_ms;
            job->workers[k].is_known = job->workers[k].is_barred = false;
            suspicion_clear(&job->workers[k]);
        }
    }
}

uint64_t membership_n_gone(const struct membership *r)
{
    return r->n_gone;
}

uint32_t membership_n_jobs(const struct membership *r)
{
    return r->n_jobs;
}

struct job *membership_job(struct membership *r, uint32_t i)
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
