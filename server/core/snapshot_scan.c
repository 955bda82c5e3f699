#include "server/core/snapshot_scan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/core/bsp.h"
#include "server/core/push_apply.h"
#include "server/core/shard_log_events.h"
#include "server/core/snapshot_meta.h"

/* Of a table at the first moment. */
struct scan_table {
    uint64_t n_pushes, n_numbers;
    struct bytes gone; /* owned: keys u64 */
};

struct snapshot_scan {
    enum snapshot_scan_mode mode;
    struct snapshot_scan_facts facts;
    struct bytes head;      /* owned: of the state */
    struct bsp_held **held; /* owned; each is used by this scan */
    size_t n_held;
    struct scan_table *tables; /* owned, n_tables */

    enum snapshot_scan_what what; /* what comes next, */
    size_t piece, offset; /* of the state: 0 the head, then held[piece - 1]; from there on */
    uint32_t table;
    uint64_t at; /* key, row number */
};

bool snapshot_scan_may_be_delta(const struct shard *s)
{
    return s->base.is_there;
}

static size_t count_held(const struct shard *s)
{
    size_t n = 0;

    for (const struct bsp_queue *q = s->queues; q; q = q->next)
        for (const struct bsp_held *h = q->first; h; h = h->next)
            n++;
    return n;
}

static void use_held(const struct shard *s, struct snapshot_scan *w)
{
    for (struct bsp_queue *q = s->queues; q; q = q->next)
        for (struct bsp_held *h = q->first; h; h = h->next) {
            size_t n_bytes;

            (void)snapshot_meta_payload(h, &n_bytes);
            w->facts.state_bytes += n_bytes;
            w->held[w->n_held++] = h;
            h->n_users++;
        }
}

/* All that can fail. */
static int reserve(const struct shard *s, struct snapshot_scan *w)
{
    w->held = memory_try_alloc((count_held(s) + 1) * sizeof(struct bsp_held *));
    w->tables = memory_try_alloc((s->n_tables + 1) * sizeof *w->tables);
    if (!w->held || !w->tables)
        return -ENOMEM;
    return snapshot_meta_encode(s, &w->head);
}

static void note_tables(struct shard *s, struct snapshot_scan *w)
{
    for (uint32_t i = 0; i < s->n_tables; i++) {
        struct scan_table *t = &w->tables[i];

        if (!s->tables[i])
            continue; /* all of it is 0 */
        t->n_pushes = s->tables[i]->table.n_pushes;
        t->n_numbers = table_n_numbers(s->tables[i]->table.rows);
        w->facts.n_numbers += t->n_numbers;
        if (w->mode != SNAPSHOT_SCAN_DELTA)
            continue;
        t->gone = s->tables[i]->gone;
        s->tables[i]->gone = (struct bytes){ 0 };
    }
}

static void free_scan(struct shard *s, struct snapshot_scan *w)
{
    for (size_t i = 0; i < w->n_held; i++)
        bsp_release_held(s, w->held[i]);
    for (uint32_t i = 0; i < w->facts.n_tables; i++)
        bytes_deinit(&w->tables[i].gone);
    free(w->held);
    free(w->tables);
    bytes_deinit(&w->head);
    free(w);
}

int snapshot_scan_begin(struct shard *s, enum snapshot_scan_mode mode,
                        struct snapshot_scan **ret)
{
    struct snapshot_scan *w;
    int status;

    assert(!s->scan);
    if (push_apply_is_under_way(s))
        return -EAGAIN;
    if (mode == SNAPSHOT_SCAN_DELTA && !s->base.is_there)
        return -EINVAL;
    w = memory_alloc(sizeof *w);
    w->mode = mode;
    status = reserve(s, w);
    if (status) {
        free_scan(s, w);
        return status;
    }
    w->facts =
        (struct snapshot_scan_facts){ .version = s->version,
                                      .base = mode == SNAPSHOT_SCAN_DELTA ? s->base.version : 0,
                                      .n_tables = s->n_tables,
                                      .state_bytes = bytes_len(&w->head) };
    use_held(s, w);
    note_tables(s, w);
    shard_log_events_reset(s);
    s->base.is_there = true; /* unless too many go from here on */
    s->base.version = s->version;
    s->scan = w;
    *ret = w;
    return 0;
}

void snapshot_scan_facts(const struct snapshot_scan *w, struct snapshot_scan_facts *ret)
{
    *ret = w->facts;
}

uint64_t snapshot_scan_n_pushes(const struct snapshot_scan *w, uint32_t id)
{
    assert(id < w->facts.n_tables);
    return w->tables[id].n_pushes;
}

/* --- slices --- */

/* As many of src's bytes, from *offset on, as dst has space for; true at src's end. */
static bool copy_piece(const uint8_t *src, size_t n_bytes, size_t *offset, uint8_t *dst,
                       size_t dst_bytes, size_t *used)
{
    size_t n = n_bytes - *offset, n_space = dst_bytes - *used;

    n = n < n_space ? n : n_space;
    if (n)
        memcpy(dst + *used, src + *offset, n);
    *used += n;
    *offset += n;
    return *offset == n_bytes;
}

static void scan_state(struct snapshot_scan *w, uint8_t *dst, size_t dst_bytes,
                       struct snapshot_scan_slice *ret)
{
    while (w->piece <= w->n_held) {
        const uint8_t *src = bytes_front(&w->head);
        size_t n_bytes = bytes_len(&w->head);

        if (w->piece)
            src = snapshot_meta_payload(w->held[w->piece - 1], &n_bytes);
        if (!copy_piece(src, n_bytes, &w->offset, dst, dst_bytes, &ret->n_bytes))
            return;
        w->piece++;
        w->offset = 0;
    }
    w->what = SNAPSHOT_SCAN_GONE;
}

/* On to the next table, or to what comes after the last. */
static void next_table(struct snapshot_scan *w, enum snapshot_scan_what then)
{
    w->at = 0;
    if (++w->table < w->facts.n_tables)
        return;
    w->table = 0;
    w->what = then;
}

static void scan_gone(struct snapshot_scan *w, uint8_t *dst, size_t dst_bytes,
                      struct snapshot_scan_slice *ret)
{
    const struct bytes *gone = &w->tables[w->table].gone;
    size_t n_left = bytes_len(gone) / sizeof(uint64_t) - w->at,
           n = dst_bytes / sizeof(uint64_t);

    n = n < n_left ? n : n_left;
    ret->table_id = w->table;
    ret->n_items = (uint32_t)n;
    ret->n_bytes = n * sizeof(uint64_t);
    if (n)
        memcpy(dst, bytes_front(gone) + w->at * sizeof(uint64_t), ret->n_bytes);
    w->at += n;
    if (n == n_left)
        next_table(w, SNAPSHOT_SCAN_ROWS);
}

static bool is_wanted(const struct snapshot_scan *w, const struct row *row)
{
    return w->mode == SNAPSHOT_SCAN_FULL || row_version(row) > w->facts.base ||
           row_flags(row) & ROW_AGED;
}

static void emit(struct row *row, uint32_t payload_bytes, uint8_t *dst)
{
    const uint64_t stamp = row_stamp(row_version(row), row_touches(row), 0);

    memcpy(dst, &row->key, sizeof row->key);
    memcpy(dst + 8, &stamp, sizeof stamp);
    memcpy(dst + 16, row->floats, payload_bytes);
    row->stamp &= ~(uint64_t)ROW_AGED;
}

static void scan_rows(struct shard *s, struct snapshot_scan *w, uint8_t *dst, size_t dst_bytes,
                      struct snapshot_scan_slice *ret)
{
    const struct shard_entry *entry = shard_entry_at(s, w->table);
    const struct shard_table *table = entry ? &entry->table : NULL;
    const struct scan_table *t = &w->tables[w->table];
    size_t row_bytes;
    uint64_t begin = w->at, end = t->n_numbers;

    if (!table) { /* dropped, before the scan or since it began: an event says so */
        w->facts.n_seen += end - begin;
        next_table(w, SNAPSHOT_SCAN_DONE);
        return;
    }
    row_bytes = sizeof(struct row) + table->payload_bytes;
    assert(dst_bytes >= row_bytes);
    if (end - begin > SNAPSHOT_SCAN_HEADS)
        end = begin + SNAPSHOT_SCAN_HEADS;
    ret->table_id = w->table;
    for (; w->at < end && dst_bytes - ret->n_bytes >= row_bytes; w->at++) {
        struct row *row = table_row(table->rows, w->at);

        if (!row || !is_wanted(w, row))
            continue;
        emit(row, table->payload_bytes, dst + ret->n_bytes);
        ret->n_bytes += row_bytes;
        ret->n_items++;
    }
    w->facts.n_seen += w->at - begin;
    if (w->at == t->n_numbers)
        next_table(w, SNAPSHOT_SCAN_DONE);
}

static size_t bytes_of(const struct shard *s, uint32_t table)
{
    const struct shard_entry *entry = shard_entry_at(s, table);
    const size_t row_bytes = entry ? sizeof(struct row) + entry->table.payload_bytes : 0;

    return row_bytes > SNAPSHOT_SCAN_BYTES ? row_bytes : SNAPSHOT_SCAN_BYTES;
}

size_t snapshot_scan_slice_bytes(const struct shard *s, const struct snapshot_scan *w)
{
    return w->what == SNAPSHOT_SCAN_ROWS && w->table < w->facts.n_tables ? bytes_of(s, w->table)
                                                                         : SNAPSHOT_SCAN_BYTES;
}

size_t snapshot_scan_bytes_max(const struct shard *s)
{
    size_t most = SNAPSHOT_SCAN_BYTES;

    for (uint32_t i = 0; i < s->n_tables; i++)
        most = bytes_of(s, i) > most ? bytes_of(s, i) : most;
    return most;
}

void snapshot_scan_more(struct shard *s, struct snapshot_scan *w, uint8_t *dst,
                        size_t dst_bytes, struct snapshot_scan_slice *ret)
{
    assert(s->scan == w);
    *ret = (struct snapshot_scan_slice){ .what = w->what };
    if (w->what == SNAPSHOT_SCAN_STATE)
        scan_state(w, dst, dst_bytes, ret);
    else if (w->what != SNAPSHOT_SCAN_DONE && w->facts.n_tables == 0)
        ret->what = w->what = SNAPSHOT_SCAN_DONE;
    else if (w->what == SNAPSHOT_SCAN_GONE)
        scan_gone(w, dst, dst_bytes, ret);
    else if (w->what == SNAPSHOT_SCAN_ROWS)
        scan_rows(s, w, dst, dst_bytes, ret);
}

void snapshot_scan_end(struct shard *s, struct snapshot_scan *w, enum snapshot_scan_end how)
{
    assert(s->scan == w && (how == SNAPSHOT_SCAN_DROPPED || w->what == SNAPSHOT_SCAN_DONE));
    s->scan = NULL;
    if (how == SNAPSHOT_SCAN_DROPPED) {
        shard_log_events_reset(s);
        s->base.counts = s->base.is_there = false;
    }
    free_scan(s, w);
}
