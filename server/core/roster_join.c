/* Who may take part, and as whom (roster.h). */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/core/roster_state.h"

static int reserve_workers(struct roster_entry *entry, uint32_t n_workers)
{
    uint32_t cap = entry->workers_cap ? entry->workers_cap : 1;
    struct worker *workers;

    if (n_workers <= entry->workers_cap)
        return 0;
    while (cap < n_workers)
        cap *= 2;
    workers = mem_try_alloc(cap * sizeof *workers);
    if (!workers)
        return -ENOMEM;
    if (entry->job.workers) {
        assert(entry->n_retired < ROSTER_N_RETIRED_MAX);
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
static struct roster_entry *gone_entry(const struct roster *r)
{
    struct roster_entry *oldest = NULL;

    for (uint32_t i = 0; i < r->n_jobs; i++)
        if (!job_is_alive(&r->entries[i]->job) &&
            (!oldest || r->entries[i]->job.run < oldest->job.run))
            oldest = r->entries[i];
    return oldest;
}

/* A place with room for n_workers, for a job that has none. */
static int new_entry(struct roster *r, uint32_t n_workers, struct roster_entry **ret_entry)
{
    struct roster_entry *entry;

    if (r->n_jobs == ROSTER_N_JOBS_MAX) {
        *ret_entry = gone_entry(r);
        return *ret_entry ? reserve_workers(*ret_entry, n_workers) : -ENOSPC;
    }
    entry = mem_try_alloc(sizeof *entry);
    if (!entry || reserve_workers(entry, n_workers) != 0) {
        free(entry);
        return -ENOMEM;
    }
    entry->roster = r;
    r->entries[r->n_jobs++] = entry;
    *ret_entry = entry;
    return 0;
}

/* Everybody expected, clocks at 0, settings as this join says. Fences stay. */
static void start_job(struct roster *r, struct roster_entry *entry,
                      const struct roster_join *join, uint64_t now_ms)
{
    struct job *job = &entry->job;

    if (strcmp(job->name, join->job) != 0) {
        memset(job->workers, 0, entry->workers_cap * sizeof *job->workers);
        memset(job->name, 0, sizeof job->name);
        memcpy(job->name, join->job, strlen(join->job));
    }
    job->run = ++r->n_runs;
    job->mode = join->mode;
    job->bound = join->mode == SPEC_MODE_SSP ? join->bound : 0;
    job->n_workers = join->n_workers;
    job->started_ms = now_ms;
    job->join_deadline_ms = now_ms + r->join_ms;
    job->reached = 0;
    job->n_fenced = job->n_deaths = job->staleness_violations = job->n_lost = 0;
    memset(&job->staleness, 0, sizeof job->staleness);
    for (uint32_t i = 0; i < entry->workers_cap; i++)
        job->workers[i] = (struct worker){ .job = job,
                                           .rank = i,
                                           .state = WORKER_EXPECTED,
                                           .fenced_below = job->workers[i].fenced_below };
}

static int check_join(const struct roster_join *join, struct err *err)
{
    size_t n_chars = strnlen(join->job, SPEC_NAME_MAX);

    if (n_chars == 0 || n_chars == SPEC_NAME_MAX)
        return err_set(err, -EINVAL, "a job's name has 1 to %u characters, not %s",
                       SPEC_NAME_MAX - 1, n_chars ? "more" : "0");
    if (join->n_workers == 0 || join->n_workers > ROSTER_N_WORKERS_MAX)
        return err_set(err, -EINVAL, "job %s: %u workers; expected 1 to %u", join->job,
                       join->n_workers, ROSTER_N_WORKERS_MAX);
    if (join->rank >= join->n_workers)
        return err_set(err, -EINVAL, "job %s: rank %u of %u workers; ranks count from 0",
                       join->job, join->rank, join->n_workers);
    if (join->mode != SPEC_MODE_ASYNC && join->mode != SPEC_MODE_SSP &&
        join->mode != SPEC_MODE_BSP)
        return err_set(err, -EINVAL, "job %s: mode number %d; expected async, ssp or bsp",
                       join->job, (int)join->mode);
    if (join->clock > ROSTER_CLOCK_END)
        return err_set(err, -EINVAL,
                       "job %s: rank %u says that it has finished %" PRIu64
                       " steps, which is out of range",
                       join->job, join->rank, join->clock);
    return 0;
}

static int check_settings(const struct job *job, const struct roster_join *join,
                          struct err *err)
{
    if (job->n_workers != join->n_workers)
        return err_set(err, PS_EJOB, "job %s runs with %u workers, rank %u asked for %u",
                       job->name, job->n_workers, join->rank, join->n_workers);
    if (job->mode != join->mode)
        return err_set(err, PS_EJOB, "job %s runs in mode %s, rank %u asked for %s", job->name,
                       spec_mode_name(job->mode), join->rank, spec_mode_name(join->mode));
    if (job->mode == SPEC_MODE_SSP && job->bound != join->bound)
        return err_set(err, PS_EJOB, "job %s runs with staleness %u, rank %u asked for %u",
                       job->name, job->bound, join->rank, join->bound);
    return 0;
}

/* The process before this one had left, with pushes judged that this one has found and takes for open: it ended
 * before it could put them away. They stay judged, and it has nothing left to do. */
static bool comes_back(const struct roster_entry *entry, const struct roster_join *join)
{
    const struct worker *w;

    if (join->rank >= entry->job.n_workers)
        return false;
    w = &entry->job.workers[join->rank];
    return w->state == WORKER_LEFT && w->incarnation == join->incarnation &&
           w->last_seq > join->last_acked;
}

/* Who left may come back with the same number when the whole job starts afresh. */
static bool join_is_fenced(const struct roster_entry *entry, const struct roster_join *join,
                           bool job_alive)
{
    const struct worker *w;

    if (join->rank >= entry->workers_cap)
        return false;
    w = &entry->job.workers[join->rank];
    if (!roster_state_is_fenced(w, join->incarnation))
        return false;
    if (comes_back(entry, join))
        return check_settings(&entry->job, join, NULL) != 0;
    return job_alive || w->state != WORKER_LEFT || join->incarnation < w->fenced_below;
}

static void set_name(struct worker *w, const char *name)
{
    size_t n_chars = name ? strnlen(name, sizeof w->name - 1) : 0;

    memset(w->name, 0, sizeof w->name);
    if (n_chars)
        memcpy(w->name, name, n_chars);
}

/* A shard that ended, and has less than it had said. */
static void note_lost(struct worker *w, uint64_t n)
{
    w->n_lost = n;
    w->job->n_lost += n;
}

static void enter(struct worker *w, const struct roster_join *join, bool comes_back,
                  uint64_t now_ms)
{
    bool reconnect = w->state == WORKER_LIVE && w->incarnation == join->incarnation;
    uint64_t min_clock = job_min_clock(w->job);

    w->last_seen_ms = now_ms;
    w->resumed = reconnect || comes_back;
    w->n_lost = 0;
    set_name(w, join->name);
    if (comes_back) {
        w->state = WORKER_LIVE;
        if (w->clock < min_clock)
            w->clock = min_clock;
        return;
    }
    if (reconnect) {
        if (join->last_acked <= w->last_seq)
            return;
        note_lost(w, join->last_acked - w->last_seq);
        w->last_seq = join->last_acked;
        if (join->clock > w->clock)
            w->clock = join->clock; /* its tick was in what is lost */
        return;
    }
    w->state = WORKER_LIVE;
    w->incarnation = w->fenced_below = join->incarnation;
    w->clock = join->clock > min_clock ? join->clock : min_clock;
    note_lost(w, join->last_acked);
    w->last_seq = join->last_acked;
    w->is_behind = false;
    w->refused_seq = 0;
    w->refused_status = 0;
}

static int fenced(struct job *job, const struct roster_join *join, struct err *err)
{
    job->n_fenced++;
    return err_set(err, PS_EFENCED,
                   "job %s: rank %u has left, was declared dead, or has been replaced since",
                   job->name, join->rank);
}

/* Another process that is heard of takes part under this rank: whoever comes now, by a mistyped command or too soon after
 * a crash, is told to wait. Half a lease is more than the third at which a live worker beats. */
static int check_live(const struct roster *r, const struct roster_entry *entry,
                      const struct roster_join *join, uint64_t now_ms, struct err *err)
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

static struct shard_event join_event(const struct roster *r, const struct roster_join *join,
                                     uint64_t now_ms)
{
    return (struct shard_event){ .type = SHARD_EVENT_JOIN,
                                 .version = r->version ? *r->version : 0,
                                 .join = { join, now_ms } };
}

/* Nothing of the other workers stands against it. */
static int admit(struct roster *r, struct roster_entry *entry, const struct roster_join *join,
                 uint64_t now_ms, struct worker **ret_worker, struct err *err)
{
    const struct shard_event event = join_event(r, join, now_ms);
    bool alive = entry && job_is_alive(&entry->job);
    bool again = entry && comes_back(entry, join);
    /* Who has finished steps comes back to a run, also when all others have ended it. */
    bool goes_on = alive || again ||
                   (entry && join->clock > 0 && !check_settings(&entry->job, join, NULL));
    int status;

    if (entry && join_is_fenced(entry, join, alive))
        return fenced(&entry->job, join, err);
    status = shard_journal_room(r->journal, &event);
    if (status == -EAGAIN)
        return err_set(err, status,
                       "job %s: the push log is full, as the disk is slower than the pushes: "
                       "rank %u has to wait",
                       join->job, join->rank);
    if (!status && !goes_on)
        status = entry ? reserve_workers(entry, join->n_workers)
                       : new_entry(r, join->n_workers, &entry);
    if (status)
        return err_set(err, status, "job %s: %s for %u workers", join->job,
                       status == -ENOSPC ? "too many jobs run: no place" : "no memory",
                       join->n_workers);
    if (!goes_on)
        start_job(r, entry, join, now_ms);
    *ret_worker = &entry->job.workers[join->rank];
    (*ret_worker)->join_number = ++r->n_joins;
    enter(*ret_worker, join, again, now_ms);
    shard_journal_record(r->journal, &event);
    return 0;
}

int roster_join(struct roster *r, const struct roster_join *join, uint64_t now_ms,
                struct worker **ret_worker, struct err *err)
{
    int status = check_join(join, err);
    struct roster_entry *entry;

    if (status)
        return status;
    entry = roster_state_find(r, join->job);
    if (entry && job_is_alive(&entry->job)) {
        status = check_settings(&entry->job, join, err);
        if (!status)
            status = check_live(r, entry, join, now_ms, err);
    }
    return status ? status : admit(r, entry, join, now_ms, ret_worker, err);
}

int roster_join_again(struct roster *r, const struct roster_join *join, uint64_t now_ms,
                      struct err *err)
{
    struct worker *worker;
    int status = check_join(join, err);
    struct roster_entry *entry;

    if (status)
        return status;
    entry = roster_state_find(r, join->job);
    if (entry && job_is_alive(&entry->job))
        status = check_settings(&entry->job, join, err);
    return status ? status : admit(r, entry, join, now_ms, &worker, err);
}
