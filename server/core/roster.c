#include "server/core/roster.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

/* Each array is at least twice the one before, so 1024 workers need no more. */
#define N_RETIRED_MAX 12u

struct entry {
    struct job job;
    uint32_t workers_cap;
    struct worker *retired[N_RETIRED_MAX]; /* owned: became too small; pointers stay good */
    uint32_t n_retired;
};

struct roster {
    uint32_t lease_ms, join_ms;
    struct entry *entries[ROSTER_N_JOBS_MAX]; /* owned */
    uint32_t n_jobs;
    uint64_t n_runs, n_gone;
};

struct roster *roster_new(uint32_t lease_ms, uint32_t join_ms)
{
    struct roster *r = mem_alloc(sizeof *r);

    r->lease_ms = lease_ms;
    r->join_ms = join_ms;
    return r;
}

static void free_entry(struct entry *entry)
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

static bool is_counted(const struct worker *w)
{
    return w->state == WORKER_EXPECTED || w->state == WORKER_LIVE;
}

bool job_is_alive(const struct job *job)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (is_counted(&job->workers[i]))
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
        if (!is_counted(w))
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
        if (is_counted(&job->workers[i]) && job->workers[i].clock <= clock)
            return false;
    return true;
}

static struct entry *find_entry(const struct roster *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_jobs; i++)
        if (strcmp(r->entries[i]->job.name, name) == 0)
            return r->entries[i];
    return NULL;
}

static int reserve_workers(struct entry *entry, uint32_t n_workers)
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
        assert(entry->n_retired < N_RETIRED_MAX);
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
static struct entry *gone_entry(const struct roster *r)
{
    struct entry *oldest = NULL;

    for (uint32_t i = 0; i < r->n_jobs; i++)
        if (!job_is_alive(&r->entries[i]->job) &&
            (!oldest || r->entries[i]->job.run < oldest->job.run))
            oldest = r->entries[i];
    return oldest;
}

/* A place with room for n_workers, for a job that has none. */
static int new_entry(struct roster *r, uint32_t n_workers, struct entry **ret_entry)
{
    struct entry *entry;

    if (r->n_jobs == ROSTER_N_JOBS_MAX) {
        *ret_entry = gone_entry(r);
        return *ret_entry ? reserve_workers(*ret_entry, n_workers) : -ENOSPC;
    }
    entry = mem_try_alloc(sizeof *entry);
    if (!entry || reserve_workers(entry, n_workers) != 0) {
        free(entry);
        return -ENOMEM;
    }
    r->entries[r->n_jobs++] = entry;
    *ret_entry = entry;
    return 0;
}

/* Everybody expected, clocks at 0, settings as this join says. Fences stay. */
static void start_job(struct roster *r, struct entry *entry, const struct roster_join *join,
                      uint64_t now_ms)
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
    job->n_fenced = job->n_deaths = job->staleness_violations = 0;
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

/* May nothing more come from this incarnation of a worker that had joined? */
static bool is_fenced(const struct worker *w, uint64_t incarnation)
{
    bool gone = w->state == WORKER_LEFT || w->state == WORKER_DEAD;

    return incarnation < w->fenced_below || (gone && incarnation == w->incarnation);
}

/* Who left may come back with the same number when the whole job starts afresh. */
static bool join_is_fenced(const struct entry *entry, const struct roster_join *join,
                           bool job_alive)
{
    const struct worker *w;

    if (join->rank >= entry->workers_cap)
        return false;
    w = &entry->job.workers[join->rank];
    if (!is_fenced(w, join->incarnation))
        return false;
    return job_alive || w->state != WORKER_LEFT || join->incarnation < w->fenced_below;
}

static void set_name(struct worker *w, const char *name)
{
    size_t n_chars = name ? strnlen(name, sizeof w->name - 1) : 0;

    memset(w->name, 0, sizeof w->name);
    if (n_chars)
        memcpy(w->name, name, n_chars);
}

static void enter(struct worker *w, const struct roster_join *join, uint64_t now_ms)
{
    bool reconnect = w->state == WORKER_LIVE && w->incarnation == join->incarnation;
    uint64_t min_clock = job_min_clock(w->job);

    w->last_seen_ms = now_ms;
    w->resumed = reconnect;
    set_name(w, join->name);
    if (reconnect) {
        if (join->last_acked > w->last_seq)
            w->last_seq = join->last_acked;
        return;
    }
    w->state = WORKER_LIVE;
    w->incarnation = w->fenced_below = join->incarnation;
    w->clock = join->clock > min_clock ? join->clock : min_clock;
    w->last_seq = join->last_acked;
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
static int check_live(const struct roster *r, const struct entry *entry,
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

int roster_join(struct roster *r, const struct roster_join *join, uint64_t now_ms,
                struct worker **ret_worker, struct err *err)
{
    int status = check_join(join, err);
    struct entry *entry;
    bool alive, goes_on;

    if (status)
        return status;
    entry = find_entry(r, join->job);
    alive = entry && job_is_alive(&entry->job);
    /* Who has finished steps comes back to a run, also when all others have ended it. */
    goes_on = alive || (entry && join->clock > 0 && !check_settings(&entry->job, join, NULL));
    if (alive && (status = check_settings(&entry->job, join, err)) != 0)
        return status;
    if (alive && (status = check_live(r, entry, join, now_ms, err)) != 0)
        return status;
    if (entry && join_is_fenced(entry, join, alive))
        return fenced(&entry->job, join, err);
    if (!goes_on) {
        status = entry ? reserve_workers(entry, join->n_workers)
                       : new_entry(r, join->n_workers, &entry);
        if (status)
            return err_set(err, status, "job %s: %s for %u workers", join->job,
                           status == -ENOSPC ? "too many jobs run: no place" : "no memory",
                           join->n_workers);
        start_job(r, entry, join, now_ms);
    }
    *ret_worker = &entry->job.workers[join->rank];
    enter(*ret_worker, join, now_ms);
    return 0;
}

int roster_find(struct roster *r, const char *job, uint32_t rank, uint64_t incarnation,
                uint64_t now_ms, struct worker **ret_worker)
{
    struct entry *entry = find_entry(r, job);
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
    if (!is_fenced(w, incarnation))
        return PS_ENOJOIN;
    entry->job.n_fenced++;
    return PS_EFENCED;
}

uint64_t roster_fence(const struct roster *r, const char *job, uint32_t rank)
{
    const struct entry *entry = find_entry(r, job);
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
    if (clock <= worker->clock || clock > ROSTER_CLOCK_END)
        return false;
    worker->clock = clock;
    return true;
}

void roster_leave(struct roster *r, struct worker *worker)
{
    if (worker->state != WORKER_LIVE)
        return;
    worker->state = WORKER_LEFT;
    r->n_gone++;
}

static bool advance_worker(struct roster *r, struct worker *w, uint64_t now_ms)
{
    if (w->state == WORKER_EXPECTED && now_ms >= w->job->join_deadline_ms) {
        w->state = WORKER_LOST;
        r->n_gone++;
        return true;
    }
    if (w->state == WORKER_LIVE && now_ms > w->last_seen_ms &&
        now_ms - w->last_seen_ms > r->lease_ms) {
        w->state = WORKER_DEAD;
        w->fenced_below = w->incarnation == UINT64_MAX ? UINT64_MAX : w->incarnation + 1;
        w->job->n_deaths++;
        r->n_gone++;
        return true;
    }
    return false;
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
