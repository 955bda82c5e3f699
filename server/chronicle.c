#include "server/chronicle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

struct seen {
    char job[SPEC_NAME_MAX];
    uint32_t rank;
    enum worker_state state;
    uint64_t incarnation;
};

struct chronicle {
    chronicle_tell tell;
    void *arg;
    struct seen *seen; /* owned, n of cap: of the last report */
    size_t n, cap;
};

static void write_line(void *arg, enum log_level level, const char *line)
{
    (void)arg;
    log_write(level, "%s", line);
}

struct chronicle *chronicle_new(chronicle_tell tell, void *arg)
{
    struct chronicle *c = mem_alloc(sizeof *c);

    c->tell = tell ? tell : write_line;
    c->arg = arg;
    return c;
}

void chronicle_free(struct chronicle *c)
{
    if (!c)
        return;
    free(c->seen);
    free(c);
}

static bool is_of(const struct seen *s, const struct report_worker *w)
{
    return s->rank == w->rank && strcmp(s->job, w->job) == 0;
}

/* Most stand where they stood. */
static const struct seen *find(const struct chronicle *c, const struct report_worker *w,
                               size_t place)
{
    if (place < c->n && is_of(&c->seen[place], w))
        return &c->seen[place];
    for (size_t i = 0; i < c->n; i++)
        if (is_of(&c->seen[i], w))
            return &c->seen[i];
    return NULL;
}

static void tell_worker(const struct chronicle *c, const struct report_worker *w)
{
    enum log_level level =
        w->state == WORKER_DEAD || w->state == WORKER_LOST ? LOG_LEVEL_WARN : LOG_LEVEL_INFO;
    char line[320], what[160];

    switch (w->state) {
    case WORKER_LIVE:
        snprintf(what, sizeof what, "has joined (%s), now at clock %" PRIu64, w->name,
                 w->clock);
        break;
    case WORKER_LEFT:
        snprintf(what, sizeof what, "has left, at clock %" PRIu64, w->clock);
        break;
    case WORKER_DEAD:
        snprintf(what, sizeof what,
                 "(%s) is declared dead, at clock %" PRIu64
                 ": not heard of for a lease; the others go on without it",
                 w->name, w->clock);
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
    c->tell(c->arg, level, line);
}

static void look_at(const struct chronicle *c, const struct report_worker *w, size_t place)
{
    const struct seen *before = find(c, w, place);

    if (before && before->state == w->state && before->incarnation == w->incarnation)
        return;
    /* Who ends is seen alive, or expected, before: this one ended before this start, which was told then. */
    if (!before && (w->state == WORKER_DEAD || w->state == WORKER_LOST))
        return;
    tell_worker(c, w);
}

static void remember(struct chronicle *c, const struct shard_report *report)
{
    if (report->n_workers > c->cap) {
        free(c->seen);
        c->seen = mem_alloc(report->n_workers * sizeof *c->seen);
        c->cap = report->n_workers;
    }
    c->n = report->n_workers;
    for (size_t i = 0; i < c->n; i++) {
        const struct report_worker *w = &report->workers[i];
        struct seen *s = &c->seen[i];

        *s = (struct seen){ .rank = w->rank, .state = w->state, .incarnation = w->incarnation };
        memcpy(s->job, w->job, sizeof s->job);
    }
}

void chronicle_look(struct chronicle *c, const struct shard_report *report)
{
    for (uint32_t i = 0; i < report->n_workers; i++)
        look_at(c, &report->workers[i], i);
    remember(c, report);
}
