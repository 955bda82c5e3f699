#include "server/core/row_admission.h"

#include <errno.h>

#include "common/hash.h"
#include "server/core/pending_rows.h"
#include "server/core/replay_decisions.h"
#include "server/core/row_decay.h"
#include "server/core/row_init.h"
#include "server/core/shard_log_events.h"
#include "server/core/weights.h"

#define SAMPLE_ROWS 512u
#define SAMPLE_SHARE 16u /* the hand takes the oldest 1/16 */
#define HAND_STEPS 256u  /* of one call */
#define NEAR_ROWS 64u
#define AGE_PUSHES 8u /* of each row on average, between two halvings of touches */

void row_admission_init(struct shard *s, struct shard_entry *entry)
{
    const struct table_spec_limits *limits = &entry->table.spec.limits;
    uint64_t max = limits->max_bytes / s->config.n_shards;

    entry->table.bytes_max = limits->max_bytes && !max ? 1 : max;
    /* What was there then has its place again, however its table is built (replay.h). */
    entry->budget = (struct memory_budget){ .parent = &s->budget,
                                            .max = s->replay ? 0 : entry->table.bytes_max };
    entry->turnover = (struct shard_turnover){
        .idle.span = limits->idle_clocks,
        .ttl.span = (uint64_t)limits->ttl_s * 1000,
    };
}

void row_admission_deinit(struct shard_entry *entry)
{
    count_min_free(entry->turnover.sketch);
    entry->turnover.sketch = NULL;
}

/* The sketch's generations follow the table's clock. */
static void advance_sketch(struct shard_entry *entry)
{
    struct shard_turnover *v = &entry->turnover;
    uint64_t admit_clocks = entry->table.spec.limits.admit_clocks;
    uint64_t half = v->clock / (admit_clocks / 2 + admit_clocks % 2);

    if (half == v->half)
        return;
    count_min_end_window(v->sketch);
    if (half - v->half > 1)
        count_min_end_window(v->sketch);
    v->half = half;
    entry->table.count_min_bytes = count_min_bytes(v->sketch);
}

/* PS_OK: the key gets a row; PS_EBUDGET: there is no place to count it; -ENOMEM. */
static int admit(struct shard_entry *entry, uint64_t key, bool *ret_admitted)
{
    const struct table_spec_limits *limits = &entry->table.spec.limits;
    struct shard_turnover *v = &entry->turnover;
    int status;

    *ret_admitted = true;
    if (limits->admit_touches < 2)
        return 0;
    if (!v->sketch) {
        status = count_min_new(&v->sketch, &entry->budget);
        if (status)
            return status;
        entry->table.count_min_bytes = count_min_bytes(v->sketch);
    }
    advance_sketch(entry);
    *ret_admitted = count_min_add(v->sketch, key) >= limits->admit_touches;
    return 0;
}

/* --- eviction --- */

/* For a new row of push number `version`. One of version 0 has just been made. Nor what the newest push
 * has changed: while it goes on, a push in slices may want space before it, and nobody could say afterwards
 * that the row had first been changed, and then gone (replay.h). */
static bool is_evictable(const struct shard *s, const struct shard_entry *entry,
                         const struct row *row, uint64_t version)
{
    return row_version(row) != 0 && row_version(row) != version &&
           row_version(row) != s->version && !pending_rows_await(entry, row->key);
}

/* The less, the sooner it goes: by age, or by touches and then by age. */
static uint64_t worth(const struct shard_entry *entry, const struct row *row)
{
    bool by_touches = entry->table.spec.limits.victims == TABLE_SPEC_VICTIMS_RAREST;

    return (by_touches ? (uint64_t)row_touches(row) << 48 : 0) | row_version(row);
}

/* Puts the item of rank `rank` in its place, the smaller ones before it (Hoare, "Find"). */
static uint64_t select_rank(uint64_t *items, uint32_t n, uint32_t rank)
{
    uint32_t low = 0, high = n - 1;

    while (low < high) {
        uint64_t pivot = items[low + (high - low) / 2];
        uint32_t i = low, j = high;

        for (;; i++, j--) {
            while (items[i] < pivot)
                i++;
            while (items[j] > pivot)
                j--;
            if (i >= j)
                break;
            uint64_t swapped = items[i];
            items[i] = items[j];
            items[j] = swapped;
        }
        if (rank <= j)
            high = j;
        else
            low = j + 1;
    }
    return items[rank];
}

/* What was pushed often long ago must not stay for ever (TinyLFU, Einziger and others 2017).
 * Under the rule of rare rows touches say something else, and the sweep resets them. */
static void begin_to_age(struct shard_entry *entry)
{
    const struct table_spec_limits *limits = &entry->table.spec.limits;
    struct shard_turnover *v = &entry->turnover;
    uint64_t n_pushed = entry->table.rows_pushed;

    if (limits->victims != TABLE_SPEC_VICTIMS_RAREST || limits->rare_touches || v->age_left ||
        (n_pushed - v->aged_at) / AGE_PUSHES < table_n_rows(entry->table.rows))
        return;
    v->aged_at = n_pushed;
    v->age_left = table_n_numbers(entry->table.rows);
}

/* Not what the newest push has changed or any has still to change: so that ageing and pushes have
 * one order for who does the same again (replay_decisions.h). */
static void age(struct shard *s, struct shard_entry *entry, struct row *row)
{
    struct shard_turnover *v = &entry->turnover;

    if (!v->age_left)
        return;
    v->age_left--;
    if (row && row_version(row) != s->version && !pending_rows_await(entry, row->key))
        shard_log_events_touches(s, entry, row, row_touches(row) / 2, row_flags(row));
}

/* Looks at SAMPLE_ROWS row numbers, or all if there are no more: sets the hand's threshold, and
 * returns the row that is worth least. NULL: none may go. */
static struct row *sample(const struct shard *s, struct shard_entry *entry, uint64_t version)
{
    struct shard_turnover *v = &entry->turnover;
    struct table *t = entry->table.rows;
    uint64_t n_numbers = table_n_numbers(t), worths[SAMPLE_ROWS];
    uint64_t seed = hash_mix(v->n_thresholds++);
    uint32_t n = 0;
    struct row *least = NULL;

    for (uint64_t i = 0; i < SAMPLE_ROWS && i < n_numbers; i++) {
        uint64_t number = n_numbers <= SAMPLE_ROWS ? i : hash_mix2(seed, i) % n_numbers;
        struct row *row = table_row(t, number);

        if (!row || !is_evictable(s, entry, row, version))
            continue;
        worths[n] = worth(entry, row);
        if (!least || worths[n] < worth(entry, least))
            least = row;
        n++;
    }
    v->threshold = n ? select_rank(worths, n, n / SAMPLE_SHARE) : 0;
    v->hand_left = n_numbers;
    begin_to_age(entry);
    return least;
}

/* The next row at or below the threshold; NULL when HAND_STEPS have met none, or the round with
 * that threshold is over. */
static struct row *advance_hand(struct shard *s, struct shard_entry *entry, uint64_t version)
{
    struct shard_turnover *v = &entry->turnover;
    struct table *t = entry->table.rows;
    uint64_t n_numbers = table_n_numbers(t);

    for (uint32_t i = 0; i < HAND_STEPS && v->hand_left; i++, v->hand_left--) {
        struct row *row = table_row(t, v->hand);

        v->hand = v->hand + 1 < n_numbers ? v->hand + 1 : 0;
        if (row && worth(entry, row) <= v->threshold && is_evictable(s, entry, row, version))
            return row;
        age(s, entry, row);
    }
    return NULL;
}

/* Of the rows in the key's part of the index. */
static struct row *oldest_near(const struct shard *s, struct shard_entry *entry, uint64_t key,
                               uint64_t version)
{
    struct row *rows[NEAR_ROWS], *least = NULL;
    uint32_t n = table_near(entry->table.rows, key, rows, NEAR_ROWS);

    for (uint32_t i = 0; i < n; i++)
        if (is_evictable(s, entry, rows[i], version) &&
            (!least || worth(entry, rows[i]) < worth(entry, least)))
            least = rows[i];
    return least;
}

static bool evict(struct shard *s, struct shard_entry *entry, uint64_t key, uint64_t version)
{
    struct table *t = entry->table.rows;
    struct row *row = NULL;

    /* Where one of a push's new rows finds nobody who may go, as its own rows fill the table, the
     * others would look in vain, too. */
    if (entry->table.spec.limits.victims == TABLE_SPEC_VICTIMS_NONE ||
        (s->mark && entry->turnover.barren == s->mark))
        return false;
    /* With a number free it is the index that has no space: for this key, in its place. */
    if (table_n_rows(t) < table_n_numbers(t))
        row = oldest_near(s, entry, key, version);
    else if (table_n_rows(t))
        row = advance_hand(s, entry, version);
    if (!row && table_n_rows(t) == table_n_numbers(t)) {
        row = sample(s, entry, version);
        entry->turnover.barren = row ? 0 : s->mark;
    }
    if (!row)
        return false;
    shard_log_events_gone(s, entry, row);
    entry->table.rows_evicted++;
    s->counters.rows_evicted++;
    return true;
}

/* Twice: the row that a victim leaves, and then the index. */
static int insert(struct shard *s, struct shard_entry *entry, uint64_t key, uint64_t version,
                  struct row **ret_row)
{
    int status = table_insert(entry->table.rows, key, ret_row);

    for (int i = 0; i < 2 && status == PS_EBUDGET && evict(s, entry, key, version); i++)
        status = table_insert(entry->table.rows, key, ret_row);
    return status;
}

void row_admission_begin(struct shard *s, const struct shard_entry *entry, uint64_t key,
                         struct row *row)
{
    const struct table_spec *spec = &entry->table.spec;
    float *state = (float *)(void *)((char *)row->floats + entry->table.weights_bytes);

    row_decay_note(&entry->table, row, 0);
    if (spec->storage == TABLE_SPEC_FP32) {
        row_init_row(spec, key, row->floats);
        entry->optim->init(row->floats, state, spec->dim, &spec->params);
        return;
    }
    row_init_row(spec, key, s->values);
    weights_set(spec->storage, s->values, spec->dim, row->floats);
    /* A state that follows from the weights follows from those that the row really has. */
    weights_load(spec->storage, row->floats, spec->dim, s->values);
    entry->optim->init(s->values, state, spec->dim, &spec->params);
}

static struct row *admit_row(struct shard *s, struct shard_entry *entry, enum section_op op,
                             uint64_t version, uint64_t key)
{
    bool is_admitted = true;
    struct row *row;
    int status = section_op_is_gradient(op) ? admit(entry, key, &is_admitted) : 0;

    if (!is_admitted) {
        entry->table.rows_unadmitted++;
        s->counters.rows_unadmitted++;
        return NULL;
    }
    if (!status)
        status = insert(s, entry, key, version, &row);
    if (status) {
        entry->table.rows_refused++;
        s->counters.rows_refused++;
        return NULL;
    }
    row_admission_begin(s, entry, key, row);
    s->counters.rows_new++;
    return row;
}

/* As it was decided then. NULL also for rows that this version, or a later one, has changed. */
static struct row *replay_existing_row(struct shard *s, struct shard_entry *entry,
                                       uint64_t version, uint64_t key, struct row *row)
{
    int status;

    if (row)
        return row_version(row) < version ? row : NULL;
    if (replay_decisions_is_left(s, entry, key))
        return NULL;
    status = table_insert(entry->table.rows, key, &row);
    if (status) {
        s->replay->status = status;
        return NULL;
    }
    row_admission_begin(s, entry, key, row);
    return row;
}

void row_admission_rows(struct shard *s, struct shard_entry *entry, enum section_op op,
                        uint64_t version, const uint64_t *keys, uint32_t n, struct row **rows)
{
    bool any_absent = false;

    if (s->replay) {
        for (uint32_t i = 0; i < n; i++)
            rows[i] = replay_existing_row(s, entry, version, keys[i], rows[i]);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (rows[i])
            continue;
        rows[i] = admit_row(s, entry, op, version, keys[i]);
        any_absent = true;
    }
    if (!any_absent)
        return;
    shard_log_events_rows(s);
    shard_log_events_left(s, entry, version, keys, n, rows);
}

int row_admission_restored(struct shard *s, struct shard_entry *entry, const uint64_t *keys,
                           uint32_t n, struct row **ret_rows)
{
    const uint64_t of_shard = s->budget.max, of_table = entry->budget.max;
    int status;

    s->budget.max += of_shard / 32;
    entry->budget.max = 0;
    status = table_upsert_batch(entry->table.rows, keys, n, ret_rows);
    s->budget.max = of_shard;
    entry->budget.max = of_table;
    return status;
}

/* --- dense tables --- */

/* What becomes of the rows of a push that has made some. */
enum fate { KEPT, UNDONE };

static uint32_t n_of_chunk(const struct pending_rows *b, uint32_t from)
{
    return b->n_keys - from < SHARD_CHUNK_MAX ? b->n_keys - from : SHARD_CHUNK_MAX;
}

static int make_blocks(struct shard *s, const struct pending_rows *b, uint64_t *n_made)
{
    struct row *rows[SHARD_CHUNK_MAX];
    int status = 0;

    for (uint32_t from = 0; from < b->n_keys; from += SHARD_CHUNK_MAX) {
        uint32_t n = n_of_chunk(b, from);

        table_find_batch(b->entry->table.rows, b->keys + from, n, rows);
        for (uint32_t i = 0; i < n; i++) {
            if (rows[i])
                continue;
            status = table_insert(b->entry->table.rows, b->keys[from + i], &rows[i]);
            if (status)
                return status;
            row_admission_begin(s, b->entry, b->keys[from + i], rows[i]);
            rows[i]->stamp = row_stamp(0, 0, ROW_MAKING);
            ++*n_made;
        }
    }
    return 0;
}

/* The memory of what is undone stays the table's: whoever waits finds it there when its clock is
 * complete. */
static void end_blocks(struct shard *s, const struct pending_rows *b, enum fate fate)
{
    struct row *rows[SHARD_CHUNK_MAX];

    for (uint32_t from = 0; from < b->n_keys; from += SHARD_CHUNK_MAX) {
        uint32_t n = n_of_chunk(b, from);

        table_find_batch(b->entry->table.rows, b->keys + from, n, rows);
        for (uint32_t i = 0; i < n; i++) {
            if (!rows[i] || !(row_flags(rows[i]) & ROW_MAKING))
                continue;
            if (fate == UNDONE) {
                table_undo(b->entry->table.rows, rows[i]);
                continue;
            }
            rows[i]->stamp = row_stamp(0, 0, 0);
            s->counters.rows_new++;
        }
    }
}

static uint32_t count_absent(const struct pending_rows *b)
{
    struct row *rows[SHARD_CHUNK_MAX];
    uint32_t n_absent = 0;

    for (uint32_t from = 0; from < b->n_keys; from += SHARD_CHUNK_MAX) {
        uint32_t n = n_of_chunk(b, from);

        table_find_batch(b->entry->table.rows, b->keys + from, n, rows);
        for (uint32_t i = 0; i < n; i++)
            n_absent += !rows[i];
    }
    return n_absent;
}

static int refuse_blocks(const struct shard *s, struct push_op *op,
                         const struct shard_entry *entry, uint32_t n_absent, int status)
{
    const char *name = entry->table.spec.name;
    struct table_facts facts;

    op->fault.entry = entry;
    table_facts(entry->table.rows, &facts);
    if (status == -ENOMEM)
        return err_set(&op->fault.err, status,
                       "dense table %s: no memory for %u blocks of %llu bytes", name, n_absent,
                       (unsigned long long)facts.row_bytes);
    return err_set(
        &op->fault.err, status,
        "dense table %s: no space for %u blocks of %llu bytes: %llu of the %llu bytes "
        "that this shard may hold are taken (psd --memory-max, over all shards)",
        name, n_absent, (unsigned long long)facts.row_bytes, (unsigned long long)s->budget.used,
        (unsigned long long)s->budget.max);
}

int row_admission_blocks(struct shard *s, struct push_op *op)
{
    const struct pending_rows *full = NULL;
    uint64_t n_made = 0;
    int status = 0;

    if (s->replay)
        return 0;
    for (uint32_t i = 0; i < op->push->n_sections && !status; i++) {
        const struct pending_rows *b = &op->sections[i].rows;

        if (b->entry->key_end)
            status = make_blocks(s, b, &n_made);
        full = status ? b : NULL;
    }
    for (uint32_t i = 0; i < op->push->n_sections && n_made; i++)
        if (op->sections[i].in.entry->key_end)
            end_blocks(s, &op->sections[i].rows, full || op->sections[i].waits ? UNDONE : KEPT);
    return full ? refuse_blocks(s, op, full->entry, count_absent(full), status) : 0;
}
