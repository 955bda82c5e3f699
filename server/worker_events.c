#include "server/worker_events.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

struct known {
    char job[TABLE_SPEC_NAME_MAX];
    uint32_t rank;
    enum worker_state state;
    uint64_t incarnation;
    bool is_suspected, is_given_up;
    uint32_t n_reporters;
};

struct worker_events {
    worker_events_on_line on_line;
    void *arg;
    struct known *known; /* owned, n of cap: of the last report */
    size_t n, cap;
};

static void write_line(void *arg, enum log_line_level level, const char *line)
{
    (void)arg;
    log_line_write(level, "%s", line);
}

struct worker_events *worker_events_new(worker_events_on_line on_line, void *arg)
{
    struct worker_events *e = memory_alloc(sizeof *e);

    e->on_line = on_line ? on_line : write_line;
    e->arg = arg;
    return e;
}

void worker_events_free(struct worker_events *e)
{
    if (!e)
        return;
    free(e->known);
    free(e);
}

static bool is_of(const struct known *s, const struct stats_worker *w)
{
    return s->rank == w->rank && strcmp(s->job, w->job) == 0;
}

/* Most stand where they stood. */
static const struct known *find(const struct worker_events *e, const struct stats_worker *w,
                                size_t place)
{
    if (place < e->n && is_of(&e->known[place], w))
        return &e->known[place];
    for (size_t i = 0; i < e->n; i++)
        if (is_of(&e->known[i], w))
            return &e->known[i];
    return NULL;
}

/* "worker 2", "worker 2 and worker 0"; with `before` if there is any, else "". */
static void name_witnesses(const struct witnesses *all, const char *before, char *dst,
                           size_t n_bytes)
{
    dst[0] = '\0';
    if (all->n == 1)
        snprintf(dst, n_bytes, "%sworker %" PRIu32, before, all->ranks[0]);
    if (all->n == 2)
        snprintf(dst, n_bytes, "%sworker %" PRIu32 " and worker %" PRIu32, before,
                 all->ranks[0], all->ranks[1]);
}

/* Who said it stands in the log: a worker may say of another one what is not so. */
static void describe_death(const struct stats_worker *w, char *dst, size_t n_bytes)
{
    char said[100], agreed[100];

    if (w->is_given_up) {
        snprintf(dst, n_bytes,
                 "(%s) is declared dead, at clock %" PRIu64
                 ": this node has heard no worker of the job for a lease; nothing is combined "
                 "without it, and it counts again if one comes back",
                 w->name, w->clock);
        return;
    }
    name_witnesses(&w->reporters, "; suspected elsewhere, by the word of ", said, sizeof said);
    name_witnesses(&w->agreed, "; refused by all shards, by the word of ", agreed,
                   sizeof agreed);
    snprintf(dst, n_bytes,
             "(%s) is declared dead, at clock %" PRIu64
             ": not heard of for a lease; the others go on without it%s%s",
             w->name, w->clock, said, agreed);
}

static void log_worker(const struct worker_events *e, const struct stats_worker *w)
{
    enum log_line_level level = w->state == WORKER_DEAD || w->state == WORKER_LOST
                                    ? LOG_LINE_LEVEL_WARN
                                    : LOG_LINE_LEVEL_INFO;
    char line[560], what[400];

    switch (w->state) {
    case WORKER_LIVE:
        snprintf(what, sizeof what, "has joined (%s), now at clock %" PRIu64, w->name,
                 w->clock);
        break;
    case WORKER_LEFT:
        snprintf(what, sizeof what, "has left, at clock %" PRIu64, w->clock);
        break;
    case WORKER_DEAD:
        describe_death(w, what, sizeof what);
        break;
    case WORKER_LOST:
        snprintf(what, sizeof what,
                 "has not come within the join timeout; the others go on without it, and its "
                 "share of the data is not trained on");
        break;
    case WORKER_EXPECTED:
        return;
    }
    snprintf(line, sizeof line, "job %.100s: worker %" PRIu32 " %s", w->job, w->rank, what);
    e->on_line(e->arg, level, line);
}

/* Its silence tells the reader of the log whether it is this node or another that does not hear it. */
static void log_suspected(const struct worker_events *e, const struct stats_worker *w)
{
    char line[560], said[100];

    name_witnesses(&w->reporters, ", by the word of ", said, sizeof said);
    snprintf(line, sizeof line,
             "job %.100s: worker %" PRIu32 " (%s) is suspected, at clock %" PRIu64
             ": a shard has not heard of it for a lease (this node for %" PRIu64
             " ms)%s%s; the others wait until all shards of the job refuse it",
             w->job, w->rank, w->name, w->clock, w->silent_ms, said,
             w->reporters.n && w->doubts_itself ? " and its own" : "");
    e->on_line(e->arg, LOG_LINE_LEVEL_WARN, line);
}

/* A second worker will say the same, if it is so. */
static void log_doubted(const struct worker_events *e, const struct stats_worker *w)
{
    char line[400], said[60];

    name_witnesses(&w->reporters, "", said, sizeof said);
    snprintf(line, sizeof line,
             "job %.100s: %s says that a shard suspects worker %" PRIu32
             " (%s), which this node hears; it is refused once another worker says so, too",
             w->job, said, w->rank, w->name);
    e->on_line(e->arg, LOG_LINE_LEVEL_WARN, line);
}

static void log_return(const struct worker_events *e, const struct stats_worker *w)
{
    char line[400];

    snprintf(line, sizeof line,
             "job %.100s: worker %" PRIu32 " (%s) counts again, at clock %" PRIu64
             ": this node hears workers of the job again, and it has a lease to be heard, too",
             w->job, w->rank, w->name, w->clock);
    e->on_line(e->arg, LOG_LINE_LEVEL_INFO, line);
}

static void compare(const struct worker_events *e, const struct stats_worker *w, size_t place)
{
    const struct known *before = find(e, w, place);

    if (w->is_suspected && !(before && before->is_suspected))
        log_suspected(e, w);
    else if (w->state == WORKER_LIVE && !w->is_suspected && w->reporters.n &&
             !(before && before->n_reporters && before->incarnation == w->incarnation))
        log_doubted(e, w);
    /* Those that ended before this start are known: worker_events_restore(). */
    if (before && before->is_given_up && w->state == WORKER_LIVE &&
        before->incarnation == w->incarnation)
        log_return(e, w);
    else if (!before || before->state != w->state || before->incarnation != w->incarnation)
        log_worker(e, w);
}

static void save_known(struct worker_events *e, const struct shard_report *report)
{
    if (report->n_workers > e->cap) {
        free(e->known);
        e->known = memory_alloc(report->n_workers * sizeof *e->known);
        e->cap = report->n_workers;
    }
    e->n = report->n_workers;
    for (size_t i = 0; i < e->n; i++) {
        const struct stats_worker *w = &report->workers[i];
        struct known *s = &e->known[i];

        *s = (struct known){ .rank = w->rank,
                             .state = w->state,
                             .incarnation = w->incarnation,
                             .is_suspected = w->is_suspected,
                             .is_given_up = w->is_given_up,
                             .n_reporters = w->reporters.n };
        memcpy(s->job, w->job, sizeof s->job);
    }
}

/* Of jobs whose workers may come back. */
static void log_restored(const struct worker_events *e, const struct shard_report *report,
                         const struct stats_job *job)
{
    uint32_t n_live = 0;
    char line[320];

    for (uint32_t i = 0; i < report->n_workers; i++)
        n_live += report->workers[i].state == WORKER_LIVE &&
                  strcmp(report->workers[i].job, job->name) == 0;
    if (!n_live)
        return;
    snprintf(line, sizeof line,
             "job %.100s: restored at min clock %" PRIu64 "; %" PRIu32 " of its %" PRIu32
             " workers were live, and have a lease to come back",
             job->name, job->min_clock, n_live, job->n_workers);
    e->on_line(e->arg, LOG_LINE_LEVEL_INFO, line);
}

void worker_events_restore(struct worker_events *e, const struct shard_report *report)
{
    for (uint32_t i = 0; i < report->n_jobs; i++)
        log_restored(e, report, &report->jobs[i]);
    save_known(e, report);
}

void worker_events_update(struct worker_events *e, const struct shard_report *report)
{
    for (uint32_t i = 0; i < report->n_workers; i++)
        compare(e, &report->workers[i], i);
    save_known(e, report);
}
