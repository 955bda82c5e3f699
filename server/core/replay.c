#include "server/core/replay.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "server/core/bsp.h"
#include "server/core/learning.h"
#include "server/core/push.h"
#include "server/core/replay_decisions.h"
#include "server/core/shard_log_events.h"
#include "server/core/snapshot_meta.h"
#include "server/core/table_admin.h"

void replay_begin(struct shard *s)
{
    assert(!s->replay && !s->events && s->large.phase == PUSH_IDLE);
    replay_decisions_start(s);
    s->budget.max = 0;
    for (uint32_t i = 0; i < s->n_tables; i++)
        if (s->tables[i])
            s->tables[i]->budget.max = 0;
}

void replay_end(struct shard *s, uint64_t now_ms)
{
    replay_decisions_stop(s);
    s->budget.max = s->config.memory_max_bytes;
    for (uint32_t i = 0; i < s->n_tables; i++) {
        struct shard_table *t = shard_table(s, i);

        if (!t)
            continue;
        s->tables[i]->budget.max = t->bytes_max;
        t->rows_pushed = 0;
    }
    s->counters = (struct shard_counters){ 0 };
    s->refusal = (struct shard_refusal){ 0 };
    membership_renew(s->membership, now_ms);
}

/* --- the scan --- */

int replay_state(struct shard *s, const uint8_t *bytes, size_t n_bytes, uint64_t now_ms)
{
    int status = snapshot_meta_decode(s, bytes, n_bytes, now_ms);

    if (status)
        return status;
    shard_log_events_reset(s);
    s->base.is_there = true;
    s->base.version = s->version;
    return 0;
}

/* --- events --- */

static int wrong(struct err *err, const char *what)
{
    return err_set(err, PS_ECORRUPT, "an event of the log cannot have happened here: %s", what);
}

/* Whoever this was must be that now. */
static struct worker *find_worker(struct shard *s, const struct shard_event_worker *worker)
{
    struct worker *w =
        worker->job ? membership_worker(s->membership, worker->job, worker->rank) : NULL;

    return w && w->incarnation == worker->incarnation ? w : NULL;
}

static int replay_push(struct shard *s, const struct shard_event *event, struct err *err)
{
    const struct push *push = event->push.push;
    struct worker *worker = find_worker(s, &event->push.worker);

    if (!worker || worker->state != WORKER_LIVE)
        return wrong(err, "a push of a worker that is not live");
    if (push->seq == 0 || push->seq - 1 != worker->last_seq)
        return wrong(err, "a push whose number is not next");
    if (push->n_sections > SECTIONS_MAX)
        return wrong(err, "a push with too many sections");
    for (uint32_t i = 0; i < push->n_sections; i++)
        if (push->sections[i].state)
            return wrong(err, "a push that asks for state");
    if (!event->push.status)
        return push_replay_applied(s, worker, push, err);
    if (push_replay_refused(s, worker, push, event->push.status) != 0)
        return wrong(err, "a refused push with the status of no refusal");
    return 0;
}

static int replay_table(struct shard *s, const struct shard_event *event, struct err *err)
    ON_SHARD
{
    uint32_t id = event->table.id;
    int status;

    if (id != s->n_tables)
        return wrong(err, "a table whose number is not next");
    if (strnlen(event->table.spec->name, TABLE_SPEC_NAME_MAX) == TABLE_SPEC_NAME_MAX)
        return wrong(err, "a table whose name has no end");
    status = shard_table_restore(s, event->table.spec, &id, err);
    if (status)
        return status == -ENOMEM ? status
                                 : err_set(err, PS_ECORRUPT, "%s", status_text(status));
    if (id + 1 != s->n_tables)
        return wrong(err, "a table that is there");
    return 0;
}

/* What it needs of the shard, table_admin.c has checked then. */
static int replay_drop(struct shard *s, const struct shard_event *event, struct err *err)
    ON_SHARD
{
    if (!shard_entry_at(s, event->drop.id))
        return wrong(err, "the end of a table that is not there");
    if (replay_waits(s))
        return wrong(err, "the end of a table between a push and its rows");
    if (shard_entry_at(s, event->drop.id)->n_held)
        return wrong(err, "the end of a table for which pushes are held");
    shard_remove_table(s, event->drop.id);
    return 0;
}

static int replay_spec(struct shard *s, const struct shard_event *event, struct err *err)
    ON_SHARD
{
    struct err why = { 0 };

    if (!shard_entry_at(s, event->table.id))
        return wrong(err, "other settings of a table that is not there");
    if (replay_waits(s))
        return wrong(err, "other settings of a table between a push and its rows");
    if (table_admin_set_spec(s, event->table.id, event->table.spec, &why))
        return err_set(err, PS_ECORRUPT, "%s", why.text);
    return 0;
}

static int replay_join(struct shard *s, const struct shard_event *event, uint64_t now_ms,
                       struct err *err)
{
    const struct membership_join *join = event->join.join;
    int status = membership_replay_join(s->membership, join, now_ms, err);

    if (status && status != -ENOMEM)
        err->status = PS_ECORRUPT; /* it was admitted then */
    return status ? err->status : 0;
}

static int replay_gone(struct shard *s, const struct shard_event *event, struct err *err)
{
    struct worker *worker = find_worker(s, &event->gone.worker);

    if (!worker ||
        membership_replay_end(s->membership, worker, (enum worker_state)event->gone.state) != 0)
        return wrong(err, "the end of a worker that is not there");
    return 0;
}

static int replay_advance(struct shard *s, const struct shard_event *event, struct err *err)
{
    struct worker *worker = find_worker(s, &event->advance.worker);

    if (!worker || !membership_advance_clock(worker, event->advance.clock))
        return wrong(err, "an advance to a clock that its worker cannot be at");
    return 0;
}

static int replay_combine(struct shard *s, const struct shard_event *event, struct err *err)
{
    int status = bsp_replay_combine(s, event->combine.run, event->combine.clock);

    if (status == -ENOMEM)
        return err_set(err, status, "no memory to combine clock %" PRIu64,
                       event->combine.clock);
    return status ? wrong(err, "a clock of lock step that is not complete, or not there") : 0;
}

static int replay_rows(struct shard *s, const struct shard_event *event, struct err *err)
{
    int status = replay_decisions_receive(s, event);

    if (status == -ENOMEM)
        return err_set(err, status, "no memory for rows of the log");
    return status ? wrong(err, "rows of no table, or of a push that is still far") : 0;
}

static int replay_learned(struct shard *s, const struct shard_event *event, struct err *err)
{
    struct worker *worker = find_worker(s, &event->learned.worker);
    const char *why = learning_report_wrong(event->learned.report);

    if (!worker)
        return wrong(err, "a report of a worker that is not there");
    if (why)
        return wrong(err, why);
    if (event->learned.unix_ms > LEARNING_UNIX_MS_MAX)
        return wrong(err, "a report of a time that cannot be");
    if (learning_open(worker->job))
        return err_set(err, -ENOMEM, "no memory for the curve of a job");
    learning_add(worker, event->learned.report, job_min_clock(worker->job),
                 event->learned.unix_ms);
    return 0;
}

static int apply(struct shard *s, const struct shard_event *event, uint64_t now_ms,
                 struct err *err) ON_SHARD
{
    switch (event->type) {
    case SHARD_EVENT_PUSH:
        return replay_push(s, event, err);
    case SHARD_EVENT_TABLE:
        return replay_table(s, event, err);
    case SHARD_EVENT_DROP:
        return replay_drop(s, event, err);
    case SHARD_EVENT_SPEC:
        return replay_spec(s, event, err);
    case SHARD_EVENT_JOIN:
        return replay_join(s, event, now_ms, err);
    case SHARD_EVENT_GONE:
        return replay_gone(s, event, err);
    case SHARD_EVENT_ADVANCE:
        return replay_advance(s, event, err);
    case SHARD_EVENT_COMBINE:
        return replay_combine(s, event, err);
    case SHARD_EVENT_ROWS:
        return replay_rows(s, event, err);
    case SHARD_EVENT_LEARNED:
        return replay_learned(s, event, err);
    case SHARD_EVENT_TYPE_END:
        break;
    }
    return wrong(err, "its type is unknown");
}

bool replay_waits(const struct shard *s)
{
    return s->replay && bytes_len(&s->replay->waiting) > 0;
}

void replay_drop_rows(struct shard *s)
{
    if (s->replay)
        replay_decisions_end(s);
}

int shard_replay(struct shard *s, const struct shard_event *event, uint64_t now_ms,
                 struct err *err)
{
    uint64_t version = s->version;
    int status;

    assert(s->replay);
    *err = (struct err){ 0 };
    status = apply(s, event, now_ms, err);
    if (!status && s->replay->status)
        status = err_set(err, s->replay->status, "no memory for a row of the log");
    if (!status && event->type != SHARD_EVENT_ROWS && event->version != s->version)
        status =
            err_set(err, PS_ECORRUPT,
                    "an event of the log ends in version %" PRIu64 " here, in %" PRIu64 " then",
                    s->version, event->version);
    if (s->version != version)
        replay_decisions_end(s);
    return status;
}
