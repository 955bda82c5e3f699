#include "server/recovery/wal_replay.h"

#include <inttypes.h>

#include "server/core/sync_point.h"

struct wal_replay {
    const struct wal_replay_config *config; /* borrowed, as all here */
    struct shard *shard;
    struct wal_reader *reader;
    struct wal_replay_facts *facts;
    uint64_t number; /* of the last record that was replayed, or of one before the first */
    uint64_t now_ms;
    uint64_t reported_bytes; /* facts->n_bytes at the last report */
    struct err *err;
};

/* The event cannot have happened: which one, and where it stands. */
static int refuse(const struct wal_replay *r, const struct wal_record *record, int status)
{
    const struct err why = *r->err;
    char where[WAL_PATH_MAX + 32];

    wal_reader_where(r->reader, where, sizeof where);
    return err_set(r->err, status, "record %" PRIu64 " (%s) cannot be replayed: %s: %s",
                   record->number, wal_record_name(record->event.type), why.text, where);
}

static int apply(struct wal_replay *r, const struct wal_record *record) ON_SHARD
{
    int status = shard_replay(r->shard, &record->event, r->now_ms, r->err);

    if (status)
        return refuse(r, record, status);
    r->number = record->number;
    if (!replay_waits(r->shard))
        r->facts->last = record->number;
    r->facts->unix_ms = record->unix_ms;
    r->facts->n_records++;
    r->facts->n_bytes += wal_record_bytes(record);
    r->facts->n_pushes += record->event.type == SHARD_EVENT_PUSH;
    return 0;
}

/* Has the shard all that is wanted? */
static bool is_enough(struct wal_replay *r) ON_SHARD
{
    const struct wal_replay_config *c = r->config;

    if (c->sync_job)
        r->facts->covers_sync_point =
            sync_point_of(r->shard, c->sync_job, c->sync_clock) != SYNC_POINT_EARLY;
    return r->facts->covers_sync_point || (c->through && r->number >= c->through);
}

static int report(struct wal_replay *r)
{
    const struct wal_replay_config *c = r->config;
    int status = 0;

    if (!c->on_progress || (r->facts->n_records % WAL_REPLAY_STEP &&
                            r->facts->n_bytes - r->reported_bytes < WAL_REPLAY_STEP_BYTES))
        return 0;
    r->reported_bytes = r->facts->n_bytes;
    r->facts->n_file_bytes = wal_reader_n_file_bytes(r->reader);
    status = c->on_progress(c->owner, r->facts);
    return status ? err_set(r->err, status,
                            "the log was replayed up to record %" PRIu64
                            " when this was to end: %s",
                            r->facts->last, status_text(status))
                  : 0;
}

/* One record is always asked for: it says that the log reaches up to where it is to go on. */
static int read_all(struct wal_replay *r) ON_SHARD
{
    const struct wal_record *record;
    bool enough = is_enough(r);
    int status = wal_reader_next(r->reader, &record, r->err);

    while (!status && record && !enough) {
        status = apply(r, record);
        if (!status)
            status = report(r);
        enough = !status && is_enough(r);
        if (!status && !enough)
            status = wal_reader_next(r->reader, &record, r->err);
    }
    /* Also at the log's end: rows whose push is not there are no part of it, or whoever goes on behind them
     * would have them done to the next push. */
    if (!status && (record || r->number > r->facts->last))
        wal_reader_stop(r->reader, r->facts->last);
    return status;
}

static bool is_late(const struct shard *s, const struct shard_event *event) ON_SHARD
{
    return event->type == SHARD_EVENT_ROWS && event->rows.op == SHARD_ROWS_LEFT &&
           event->version <= shard_version(s);
}

/* A push or clock in slices is in the log before its last row was decided: keys that got no row follow it. Whoever
 * stops behind it has to know of these. What cannot be read there is none of the records up to here. */
static void replay_late_rows(struct wal_replay *r) ON_SHARD
{
    const struct wal_replay_config *c = r->config;
    const struct wal_record *record = NULL;
    struct wal_reader *reader;
    struct err err = { 0 };
    int status =
        wal_reader_open(c->files, c->dir, c->identity, r->facts->last + 1, &reader, &err);

    if (status)
        return;
    do {
        status = wal_reader_next(reader, &record, &err);
        if (!status && record && is_late(r->shard, &record->event))
            status = shard_replay(r->shard, &record->event, r->now_ms, &err);
    } while (!status && record);
    wal_reader_free(reader);
}

/* A fuzzy scan without its log is none. */
static int check_needs(const struct wal_replay *r, const struct wal_end *end)
{
    if (end->last >= r->config->needs)
        return 0;
    if (end->text[0])
        return err_set(r->err, PS_ECORRUPT,
                       "the checkpoint needs the log up to record %" PRIu64 ": %s",
                       r->config->needs, end->text);
    return err_set(r->err, PS_ECORRUPT,
                   "the checkpoint needs the log up to record %" PRIu64
                   ", which ends behind %" PRIu64,
                   r->config->needs, end->last);
}

int wal_replay_run(struct shard *s, const struct wal_replay_config *config, uint64_t now_ms,
                   struct wal_replay_facts *ret_facts, struct wal_end *ret_end, struct err *err)
{
    struct wal_replay r = {
        .config = config, .shard = s, .facts = ret_facts, .now_ms = now_ms, .err = err
    };
    int status = wal_reader_open(config->files, config->dir, config->identity, config->from,
                                 &r.reader, err);

    if (status)
        return status;
    *ret_facts = (struct wal_replay_facts){ .from = config->from, .last = config->from - 1 };
    r.number = ret_facts->last;
    status = read_all(&r);
    if (!status && ret_facts->covers_sync_point)
        replay_late_rows(&r);
    ret_facts->n_file_bytes = wal_reader_n_file_bytes(r.reader);
    if (!status) {
        *ret_end = *wal_reader_end(r.reader);
        status = check_needs(&r, ret_end);
    }
    wal_reader_free(r.reader);
    return status;
}
