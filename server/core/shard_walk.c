#include "server/core/shard_walk.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/core/shard_held_bytes.h"
#include "server/core/shard_lockstep.h"
#include "server/core/shard_tell.h"

/* Of a table at the first moment. */
struct walk_table {
    uint64_t n_pushes, n_numbers;
    struct buf gone; /* owned: keys u64 */
};

struct shard_walk {
    enum shard_walk_mode mode;
    struct shard_walk_facts facts;
    struct buf head;          /* owned: of the state */
    struct shard_held **held; /* owned; each is used by this walk */
    size_t n_held;
    struct walk_table *tables; /* owned, n_tables */

    enum shard_walk_what what; /* what comes next, */
    size_t piece, offset; /* of the state: 0 the head, then held[piece - 1]; from there on */
    uint32_t table;
    uint64_t at; /* key, row number */
};

bool shard_walk_may_be_delta(const struct shard *s)
{
    return s->base.is_there;
}

static size_t count_held(const struct shard *s)
{
    size_t n = 0;

    for (const struct shard_queue *q = s->queues; q; q = q->next)
        for (const struct shard_held *h = q->first; h; h = h->next)
            n++;
    return n;
}

static void use_held(const struct shard *s, struct shard_walk *w)
{
    for (struct shard_queue *q = s->queues; q; q = q->next)
        for (struct shard_held *h = q->first; h; h = h->next) {
            size_t n_bytes;

            (void)shard_held_payload(h, &n_bytes);
            w->facts.state_bytes += n_bytes;
            w->held[w->n_held++] = h;
            h->n_users++;
        }
}

/* All that can fail. */
static int reserve(const struct shard *s, struct shard_walk *w)
{
    struct state_writer writer = { .dst = &w->head };

    w->held = mem_try_alloc((count_held(s) + 1) * sizeof(struct shard_held *));
    w->tables = mem_try_alloc((s->n_tables + 1) * sizeof *w->tables);
    if (!w->held || !w->tables)
        return -ENOMEM;
    shard_held_encode(s, &writer);
    return writer.no_memory ? -ENOMEM : 0;
}

static void note_tables(struct shard *s, struct shard_walk *w)
{
    for (uint32_t i = 0; i < s->n_tables; i++) {
        struct walk_table *t = &w->tables[i];

        t->n_pushes = s->tables[i]->table.n_pushes;
        t->n_numbers = table_n_numbers(s->tables[i]->table.rows);
        w->facts.n_numbers += t->n_numbers;
        if (w->mode != SHARD_WALK_DELTA)
            continue;
        t->gone = s->tables[i]->gone;
        s->tables[i]->gone = (struct buf){ 0 };
    }
}

static void free_walk(struct shard *s, struct shard_walk *w)
{
    for (size_t i = 0; i < w->n_held; i++)
        shard_lockstep_let_go(s, w->held[i]);
    for (uint32_t i = 0; i < w->facts.n_tables; i++)
        buf_deinit(&w->tables[i].gone);
    free(w->held);
    free(w->tables);
    buf_deinit(&w->head);
    free(w);
}

int shard_walk_begin(struct shard *s, enum shard_walk_mode mode, struct shard_walk **ret)
{
    struct shard_walk *w;
    int status;

    assert(!s->walk);
    if (s->large.phase == SHARD_APPLY)
        return -EAGAIN;
    if (mode == SHARD_WALK_DELTA && !s->base.is_there)
        return -EINVAL;
    w = mem_alloc(sizeof *w);
    w->mode = mode;
    status = reserve(s, w);
    if (status) {
        free_walk(s, w);
        return status;
    }
    w->facts =
        (struct shard_walk_facts){ .version = s->version,
                                   .base = mode == SHARD_WALK_DELTA ? s->base.version : 0,
                                   .n_tables = s->n_tables,
                                   .state_bytes = buf_len(&w->head) };
    use_held(s, w);
    note_tables(s, w);
    shard_tell_cut(s);
    s->base.is_there = true; /* unless too many go from here on */
    s->base.version = s->version;
    s->walk = w;
    *ret = w;
    return 0;
}

void shard_walk_facts(const struct shard_walk *w, struct shard_walk_facts *ret)
{
    *ret = w->facts;
}

uint64_t shard_walk_n_pushes(const struct shard_walk *w, uint32_t id)
{
    assert(id < w->facts.n_tables);
    return w->tables[id].n_pushes;
}

/* --- slices --- */

/* As many of src's bytes, from *offset on, as dst has room for; true at src's end. */
static bool copy_piece(const uint8_t *src, size_t n_bytes, size_t *offset, uint8_t *dst,
                       size_t dst_bytes, size_t *used)
{
    size_t n = n_bytes - *offset, n_room = dst_bytes - *used;

    n = n < n_room ? n : n_room;
    if (n)
        memcpy(dst + *used, src + *offset, n);
    *used += n;
    *offset += n;
    return *offset == n_bytes;
}

static void walk_state(struct shard_walk *w, uint8_t *dst, size_t dst_bytes,
                       struct shard_walk_slice *ret)
{
    while (w->piece <= w->n_held) {
        const uint8_t *src = buf_front(&w->head);
        size_t n_bytes = buf_len(&w->head);

        if (w->piece)
            src = shard_held_payload(w->held[w->piece - 1], &n_bytes);
        if (!copy_piece(src, n_bytes, &w->offset, dst, dst_bytes, &ret->n_bytes))
            return;
        w->piece++;
        w->offset = 0;
    }
    w->what = SHARD_WALK_GONE;
}

/* On to the next table, or to what comes after the last. */
static void next_table(struct shard_walk *w, enum shard_walk_what then)
{
    w->at = 0;
    if (++w->table < w->facts.n_tables)
        return;
    w->table = 0;
    w->what = then;
}

static void walk_gone(struct shard_walk *w, uint8_t *dst, size_t dst_bytes,
                      struct shard_walk_slice *ret)
{
    const struct buf *gone = &w->tables[w->table].gone;
    size_t n_left = buf_len(gone) / sizeof(uint64_t) - w->at, n = dst_bytes / sizeof(uint64_t);

    n = n < n_left ? n : n_left;
    ret->table_id = w->table;
    ret->n_items = (uint32_t)n;
    ret->n_bytes = n * sizeof(uint64_t);
    if (n)
        memcpy(dst, buf_front(gone) + w->at * sizeof(uint64_t), ret->n_bytes);
    w->at += n;
    if (n == n_left)
        next_table(w, SHARD_WALK_ROWS);
}

static bool is_wanted(const struct shard_walk *w, const struct row *row)
{
    return w->mode == SHARD_WALK_FULL || row_version(row) > w->facts.base ||
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

static void walk_rows(struct shard *s, struct shard_walk *w, uint8_t *dst, size_t dst_bytes,
                      struct shard_walk_slice *ret)
{
    const struct shard_table *table = &s->tables[w->table]->table;
    const struct walk_table *t = &w->tables[w->table];
    size_t row_bytes = sizeof(struct row) + table->payload_bytes;
    uint64_t begin = w->at, end = t->n_numbers;

    assert(dst_bytes >= row_bytes);
    if (end - begin > SHARD_WALK_LOOKS)
        end = begin + SHARD_WALK_LOOKS;
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
        next_table(w, SHARD_WALK_DONE);
}

void shard_walk_more(struct shard *s, struct shard_walk *w, uint8_t *dst, size_t dst_bytes,
                     struct shard_walk_slice *ret)
{
    assert(s->walk == w);
    *ret = (struct shard_walk_slice){ .what = w->what };
    if (w->what == SHARD_WALK_STATE)
        walk_state(w, dst, dst_bytes, ret);
    else if (w->what != SHARD_WALK_DONE && w->facts.n_tables == 0)
        ret->what = w->what = SHARD_WALK_DONE;
    else if (w->what == SHARD_WALK_GONE)
        walk_gone(w, dst, dst_bytes, ret);
    else if (w->what == SHARD_WALK_ROWS)
        walk_rows(s, w, dst, dst_bytes, ret);
}

void shard_walk_end(struct shard *s, struct shard_walk *w, enum shard_walk_end how)
{
    assert(s->walk == w && (how == SHARD_WALK_DROPPED || w->what == SHARD_WALK_DONE));
    s->walk = NULL;
    if (how == SHARD_WALK_DROPPED) {
        shard_tell_cut(s);
        s->base.counts = s->base.is_there = false;
    }
    free_walk(s, w);
}
