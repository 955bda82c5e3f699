#include "server/core/expire.h"

#include "server/core/pending_rows.h"
#include "server/core/shard_log_events.h"

/* This run's place; one that is new takes that of the oldest, whose numbers are the least. */
static struct shard_turnover_run *find_run(struct shard_turnover *v, uint64_t run,
                                           uint64_t clock)
{
    struct shard_turnover_run *oldest = &v->runs[0];

    for (uint32_t i = 0; i < SHARD_TURNOVER_RUNS; i++) {
        if (v->runs[i].run == run)
            return &v->runs[i];
        if (v->runs[i].run < oldest->run)
            oldest = &v->runs[i];
    }
    *oldest = (struct shard_turnover_run){ run, clock };
    return oldest;
}

void expire_note_push(struct shard_entry *entry, uint64_t run, uint64_t clock, uint64_t version)
{
    struct shard_turnover *v = &entry->turnover;
    struct shard_turnover_run *r = find_run(v, run, clock);

    if (v->idle.n_marks && clock <= r->clock)
        return;
    /* All pushes before this one came while the table's clock stood where it stands. */
    if (v->idle.span)
        version_age_note(&v->idle, v->clock, version - 1);
    if (clock > r->clock && v->clock < UINT64_MAX / 2) {
        v->clock += clock - r->clock;
        r->clock = clock;
    }
}

static bool has_rules(const struct table_spec_limits *limits)
{
    return limits->idle_clocks || limits->ttl_s || limits->rare_touches;
}

/* Rows of this version and below are beyond a horizon. */
static uint64_t beyond(struct shard_turnover *v, uint64_t now_ms)
{
    uint64_t idle = version_age_version(&v->idle, v->clock);
    uint64_t expired = version_age_version(&v->ttl, now_ms);

    return idle > expired ? idle : expired;
}

/* Is there a pass under way, or one to begin? */
static bool goes_on(struct shard_entry *entry, uint64_t now_ms)
{
    struct shard_turnover *v = &entry->turnover;
    const struct table_spec_limits *limits = &entry->table.spec.limits;
    bool rare = limits->rare_touches && v->clock >= v->rare_from;
    uint64_t now_beyond = beyond(v, now_ms);

    if (v->sweeps)
        return true;
    if (!table_n_rows(entry->table.rows) || (!rare && now_beyond <= v->beyond))
        return false;
    v->sweeps = true;
    v->rare = rare;
    v->beyond = now_beyond;
    v->at = 0;
    return true;
}

static void end_pass(struct shard_entry *entry)
{
    struct shard_turnover *v = &entry->turnover;

    if (v->rare)
        v->rare_from = v->clock + entry->table.spec.limits.rare_clocks;
    v->sweeps = v->rare = false;
}

/* Under the rule of rare rows: true if it goes. */
static bool is_rare(struct shard *s, const struct shard_entry *entry, struct row *row)
{
    uint32_t flags = row_flags(row);

    if (flags & ROW_VISITED && row_touches(row) < entry->table.spec.limits.rare_touches)
        return true;
    shard_log_events_touches(s, entry, row, 0, flags | ROW_VISITED);
    return false;
}

/* The counter of the rule by which a row goes, of the table and of the shard; false: it stays. */
static bool count_expired(struct shard *s, struct shard_entry *entry, struct row *row,
                          uint64_t idle, uint64_t expired)
{
    struct shard_table *t = &entry->table;
    uint64_t version = row_version(row);

    if (version == 0 || pending_rows_await(entry, row->key))
        return false;
    if (version <= idle) {
        t->rows_idle++;
        s->counters.rows_idle++;
    } else if (version <= expired) {
        t->rows_expired++;
        s->counters.rows_expired++;
    } else if (entry->turnover.rare && is_rare(s, entry, row)) {
        t->rows_rare++;
        s->counters.rows_rare++;
    } else {
        return false;
    }
    return true;
}

/* Scans at most n_rows numbers; returns how many. */
static uint32_t sweep_table(struct shard *s, struct shard_entry *entry, uint64_t now_ms,
                            uint32_t n_rows)
{
    struct shard_turnover *v = &entry->turnover;
    struct table *t = entry->table.rows;
    uint64_t idle, expired, n_numbers = table_n_numbers(t);
    uint32_t n = 0;

    if (!goes_on(entry, now_ms))
        return 0;
    idle = version_age_version(&v->idle, v->clock);
    expired = version_age_version(&v->ttl, now_ms);
    for (; n < n_rows && v->at < n_numbers; n++, v->at++) {
        struct row *row = table_row(t, v->at);

        if (row && count_expired(s, entry, row, idle, expired))
            shard_log_events_gone(s, entry, row);
    }
    shard_log_events_rows(s);
    if (v->at >= n_numbers)
        end_pass(entry);
    return n;
}

void expire_sweep(struct shard *s, uint64_t now_ms)
{
    uint32_t left = EXPIRE_ROWS;

    for (uint32_t i = 0; i < s->n_tables; i++) {
        struct shard_entry *entry = s->tables[i];

        if (entry)
            version_age_note(&entry->turnover.ttl, now_ms, s->version);
    }
    for (uint32_t i = 0; i < s->n_tables && left; i++) {
        struct shard_entry *entry = s->tables[s->sweeps_table % s->n_tables];

        if (entry && has_rules(&entry->table.spec.limits))
            left -= sweep_table(s, entry, now_ms, left);
        if (left)
            s->sweeps_table = (s->sweeps_table + 1) % s->n_tables;
    }
}
