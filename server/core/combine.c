#include "server/core/combine.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/expire.h"
#include "server/core/held_push.h"
#include "server/core/pending_rows.h"
#include "server/core/row_admission.h"
#include "server/core/row_step.h"

/* Bytes of a slice, which are about nanoseconds. */
#define DECODE_COST 16u /* of a key */
#define MERGE_COST 16u  /* of a key, and of each contribution that is asked for it: */
#define TURN_COST 2u

#define DECODE_KEYS 1024u /* between two looks at what is left of a slice */
#define MERGE_KEYS 128u

/* One held section and how far the merge, or the sum, has come in it. */
struct contribution {
    const struct section *section; /* borrowed from the held push */
    struct shard_entry *entry;
    const struct codec *codec;
    size_t row_bytes;
    float weight;
    uint32_t order;                 /* by (rank, seq, place in the push) */
    struct key_codec_reader reader; /* of keys still to be decoded */
    uint64_t *keys;                 /* scratch */
    uint32_t at;                    /* the next key */
    uint32_t ahead; /* of a look at a later key: the first one that is not below it */
};

/* --- which pushes, and their weights --- */

/* The next that counts, from h on; NULL: there is none in the clock. */
static const struct bsp_held *counted(const struct bsp_held *h, uint64_t clock)
{
    while (h && h->clock == clock && !h->counts)
        h = h->next;
    return h && h->clock == clock ? h : NULL;
}

static uint64_t rank_samples(const struct bsp_held *h, uint64_t clock)
{
    uint32_t rank = h->rank;
    uint64_t most = 0;

    for (; h && h->rank == rank; h = counted(h->next, clock))
        if (h->n_samples > most)
            most = h->n_samples;
    return most;
}

/* N, and how many ranks take part. */
static uint64_t all_samples(const struct bsp_held *first, uint64_t clock, uint64_t *ret_n_ranks)
{
    const struct bsp_held *before = NULL;
    uint64_t total = 0;

    *ret_n_ranks = 0;
    for (const struct bsp_held *h = first; h; before = h, h = counted(h->next, clock)) {
        if (before && before->rank == h->rank)
            continue;
        total += rank_samples(h, clock);
        ++*ret_n_ranks;
    }
    return total;
}

static int by_table(const void *a, const void *b)
{
    const struct contribution *x = a, *y = b;

    if (x->section->table_id != y->section->table_id)
        return x->section->table_id < y->section->table_id ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static void add_contribution(const struct shard *s, struct combine *w,
                             const struct section *section, float weight)
{
    struct contribution *c = &w->contributions[w->n_contributions];

    *c = (struct contribution){ .section = section,
                                .entry = s->tables[section->table_id],
                                .codec = codec_by_id((uint32_t)section->codec),
                                .weight = weight,
                                .order = w->n_contributions++ };
    c->row_bytes = c->codec->row_bytes(c->entry->table.spec.dim, section->k);
}

static int reserve_marks(struct combine *w, uint64_t n_sections)
{
    size_t n_bytes = w->n_keys / 8 + n_sections + 1;
    uint8_t *marks = shard_scratch(&w->of_marks, n_bytes, 1);

    if (!marks)
        return -ENOMEM;
    memset(marks, 0, n_bytes);
    return 0;
}

int combine_reserve(struct combine *w, const struct bsp_held *first, bool in_slices)
{
    uint64_t n_sections = 0;

    assert(w->phase == COMBINE_IDLE);
    w->n_keys = 0;
    for (const struct bsp_held *h = first; h && h->clock == first->clock; h = h->next) {
        n_sections += h->n_sections;
        for (uint32_t i = 0; i < h->n_sections; i++)
            w->n_keys += h->sections[i].n_keys;
    }
    w->contributions =
        shard_scratch(&w->of_contributions, n_sections, sizeof *w->contributions);
    w->batches = shard_scratch(&w->of_batches, n_sections, sizeof *w->batches);
    w->merged = shard_scratch(&w->of_keys, 2 * w->n_keys, sizeof *w->merged);
    if (w->contributions && w->batches && w->merged &&
        !(in_slices && reserve_marks(w, n_sections)))
        return 0;
    while (combine_trim(w))
        ;
    return -ENOMEM;
}

/* How many contributions from `first` on are to the same table. */
static uint32_t n_of_table(const struct combine *w, uint32_t first)
{
    uint32_t n = 1;

    while (first + n < w->n_contributions &&
           w->contributions[first + n].entry == w->contributions[first].entry)
        n++;
    return n;
}

/* One batch of rows for each table. */
static void make_batches(struct combine *w)
{
    for (uint32_t i = 0, n; i < w->n_contributions; i += n) {
        struct combine_batch *b = &w->batches[w->n_batches++];

        n = n_of_table(w, i);
        *b = (struct combine_batch){ .rows = { .entry = w->contributions[i].entry },
                                     .contributions = &w->contributions[i],
                                     .n_contributions = n };
        for (uint32_t k = 0; k < n; k++)
            b->value_bytes += w->contributions[i + k].row_bytes;
    }
}

void combine_gather(const struct shard *s, struct combine *w, const struct bsp_held *first)
{
    const uint64_t clock = first->clock;
    uint64_t *keys = w->merged + w->n_keys; /* the upper half of the scratch */
    const struct bsp_held *before = NULL;
    uint64_t n_ranks, samples = 0, total;

    w->n_contributions = w->n_batches = w->at = 0;
    first = counted(first, clock);
    total = all_samples(first, clock, &n_ranks);
    for (const struct bsp_held *h = first; h; before = h, h = counted(h->next, clock)) {
        float weight;

        if (!before || before->rank != h->rank)
            samples = rank_samples(h, clock);
        weight = (float)(total ? (double)samples / (double)total : 1.0 / (double)n_ranks);
        for (uint32_t i = 0; i < h->n_sections; i++)
            add_contribution(s, w, &h->sections[i], weight);
    }
    qsort(w->contributions, w->n_contributions, sizeof *w->contributions, by_table);
    for (uint32_t i = 0; i < w->n_contributions; i++) {
        struct contribution *c = &w->contributions[i];
        int status = key_codec_reader_init(&c->reader, c->section->keys, c->section->key_bytes,
                                           c->section->n_keys);

        assert(!status); /* it was checked when it came */
        c->keys = keys;
        keys += c->section->n_keys;
    }
    make_batches(w);
    w->phase = COMBINE_DECODE;
}

/* --- the keys --- */

static uint64_t decode_some(struct combine *w, uint64_t n_bytes)
{
    struct contribution *c = &w->contributions[w->at];
    uint64_t n = n_bytes / DECODE_COST + DECODE_KEYS;
    uint32_t n_left = c->reader.n_left;
    int status;

    n = n < n_left ? n : n_left;
    status =
        key_codec_reader_next(&c->reader, (uint32_t)n, c->keys + (c->section->n_keys - n_left));
    assert(!status); /* as above */
    w->at += !c->reader.n_left;
    return n * DECODE_COST;
}

/* The least key that any of n contributions is at; false when all are at their end. */
static bool next_key(const struct contribution *c, uint32_t n, uint64_t *ret_key)
{
    bool any = false;

    *ret_key = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].at == c[i].section->n_keys || (any && c[i].keys[c[i].at] >= *ret_key))
            continue;
        *ret_key = c[i].keys[c[i].at];
        any = true;
    }
    return any;
}

static bool is_at(const struct contribution *c, uint64_t key)
{
    return c->at < c->section->n_keys && c->keys[c->at] == key;
}

static void pass(struct contribution *c, uint32_t n, uint64_t key)
{
    for (uint32_t i = 0; i < n; i++)
        c[i].at += is_at(&c[i], key);
}

/* Writes the union of the keys of all contributions, ascending. */
static uint64_t merge_some(struct combine *w, uint64_t n_bytes)
{
    struct combine_batch *b = &w->batches[w->at];
    const uint64_t cost = MERGE_COST + (uint64_t)b->n_contributions * TURN_COST;
    uint64_t n = n_bytes / cost + MERGE_KEYS, key;
    uint32_t n_before = b->rows.n_keys, n_keys = n_before;

    for (; n && next_key(b->contributions, b->n_contributions, &key); n--) {
        pass(b->contributions, b->n_contributions, key);
        b->rows.keys[n_keys++] = key;
    }
    b->rows.n_keys = n_keys;
    if (n) {
        for (uint32_t i = 0; i < b->n_contributions; i++)
            b->contributions[i].at = 0;
        w->at++;
    }
    return (n_keys - n_before + 1) * cost;
}

/* Where the keys of the batch at w->at go: behind those of the one before. */
static void begin_merge(struct combine *w)
{
    struct combine_batch *b = &w->batches[w->at];

    if (!b->rows.keys)
        b->rows.keys = w->at ? b[-1].rows.keys + b[-1].rows.n_keys : w->merged;
}

uint64_t combine_keys(struct combine *w, uint64_t n_bytes)
{
    uint64_t used = 0;

    while (used < n_bytes && w->phase == COMBINE_DECODE) {
        if (w->at < w->n_contributions) {
            used += decode_some(w, n_bytes - used);
            continue;
        }
        w->phase = COMBINE_MERGE;
        w->at = 0;
    }
    while (used < n_bytes && w->phase == COMBINE_MERGE) {
        if (w->at < w->n_batches) {
            begin_merge(w);
            used += merge_some(w, n_bytes - used);
            continue;
        }
        w->phase = COMBINE_READY;
        w->at = 0;
    }
    return used;
}

/* --- the rows --- */

static void add_weighted(float *restrict sum, const float *restrict row, float weight,
                         uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        sum[i] += weight * row[i];
}

static void scale(float *restrict row, float weight, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        row[i] *= weight;
}

/* Finite gradients may add up to more than a float holds: infinite, it would leave NaN in the row. */
static void clamp(float *restrict sum, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        sum[i] = sum[i] > FLT_MAX ? FLT_MAX : sum[i] < -FLT_MAX ? -FLT_MAX : sum[i];
}

/* s->gradient = the first weighted row, or that much more. */
static void add_row(struct shard *s, const struct contribution *c, uint32_t place, bool first,
                    uint32_t dim)
{
    float *row = first ? s->gradient : s->values;
    int status =
        c->codec->decode(c->section->values + place * c->row_bytes, dim, c->section->k, row);

    assert(!status); /* as with the keys */
    if (first)
        scale(row, c->weight, dim);
    else
        add_weighted(s->gradient, row, c->weight, dim);
}

/* s->gradient = sum of the weighted rows of `key`, in the order of c. Returns their bytes. */
static uint64_t sum_rows(struct shard *s, struct contribution *c, uint32_t n, uint64_t key,
                         uint32_t dim)
{
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (!is_at(&c[i], key))
            continue;
        add_row(s, &c[i], c[i].at++, n_bytes == 0, dim);
        n_bytes += c[i].row_bytes;
    }
    clamp(s->gradient, dim);
    return n_bytes;
}

/* The same of a key whose turn is still to come. Keys ascend from call to call. */
static void sum_rows_ahead(struct shard *s, struct contribution *c, uint32_t n, uint64_t key,
                           uint32_t dim)
{
    bool first = true;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t n_keys = c[i].section->n_keys;

        c[i].ahead = pending_rows_bound_keys(c[i].keys, n_keys, c[i].ahead, key);
        if (c[i].ahead == n_keys || c[i].keys[c[i].ahead] != key)
            continue;
        add_row(s, &c[i], c[i].ahead, first, dim);
        first = false;
    }
    clamp(s->gradient, dim);
}

static bool is_changed(const struct pending_rows *rows, uint32_t place)
{
    return rows->marks && pending_rows_mark_is_set(rows, place);
}

struct chunk {
    uint32_t n;
    uint64_t keys[SHARD_CHUNK_MAX];
    struct row *rows[SHARD_CHUNK_MAX];
};

/* Of the next n rows of the batch, 1 to SHARD_CHUNK_MAX, those that were not changed before their turn. */
static void find_chunk(struct shard *s, const struct combine *w, const struct combine_batch *b,
                       uint32_t n, struct chunk *ret)
{
    const uint64_t *keys = b->rows.keys + b->rows.n_done;
    uint32_t i = 0;

    ret->n = 0;
    do {
        ret->keys[ret->n] = keys[i];
        ret->n += !is_changed(&b->rows, b->rows.n_done + i);
    } while (++i < n);
    table_find_batch(b->rows.entry->table.rows, ret->keys, ret->n, ret->rows);
    row_admission_rows(s, b->rows.entry, SECTION_GRADIENT, w->version, ret->keys, ret->n,
                       ret->rows);
}

static uint64_t change_chunk(struct shard *s, const struct combine *w, struct combine_batch *b,
                             uint32_t n)
{
    const struct shard_entry *entry = b->rows.entry;
    const uint32_t dim = entry->table.spec.dim, from = b->rows.n_done;
    uint64_t cost = (uint64_t)n * b->n_contributions * TURN_COST;
    struct chunk c;

    find_chunk(s, w, b, n, &c);
    for (uint32_t i = from, k = 0; i < from + n; i++) {
        if (is_changed(&b->rows, i)) {
            pass(b->contributions, b->n_contributions, b->rows.keys[i]);
            continue;
        }
        cost += entry->row_cost +
                sum_rows(s, b->contributions, b->n_contributions, b->rows.keys[i], dim);
        row_step(s, entry, c.rows[k++], s->gradient, &b->step, w->version);
    }
    b->rows.n_done += n;
    return cost;
}

/* Rows that cost about a slice when each contribution has them: at least 1, at most the table's chunk. */
static uint32_t chunk_of(const struct combine_batch *b)
{
    uint64_t n = SHARD_SLICE_BYTES / (b->rows.entry->row_cost + b->value_bytes);
    uint32_t chunk = b->rows.entry->chunk_rows;

    return n < 1 ? 1 : n < chunk ? (uint32_t)n : chunk;
}

static void give_marks(struct combine *w)
{
    uint8_t *marks = w->of_marks.bytes + w->of_marks.start;

    for (uint32_t i = 0; i < w->n_batches; i++) {
        w->batches[i].rows.marks = marks;
        marks += w->batches[i].rows.n_keys / 8 + 1;
    }
}

void combine_begin(struct shard *s, struct combine *w, uint64_t run, uint64_t clock)
{
    assert(w->phase == COMBINE_READY);
    w->version = s->version;
    if (w == s->large_clock)
        give_marks(w);
    for (uint32_t i = 0; i < w->n_batches; i++)
        pending_rows_begin(&w->batches[i].rows);
    for (uint32_t i = 0; i < w->n_batches; i++) {
        struct combine_batch *b = &w->batches[i];
        struct shard_entry *entry = b->rows.entry;

        expire_note_push(entry, run, clock, s->version);
        b->step =
            optimizer_step_at(entry->optim, &entry->table.spec, clock, ++entry->table.n_pushes);
    }
    w->phase = COMBINE_APPLY;
    w->at = 0;
}

uint64_t combine_rows(struct shard *s, struct combine *w, uint64_t n_bytes)
{
    uint64_t used = 0;

    while (used < n_bytes && w->phase == COMBINE_APPLY) {
        struct combine_batch *b = &w->batches[w->at];
        uint32_t n_left = w->at < w->n_batches ? b->rows.n_keys - b->rows.n_done : 0;
        uint32_t chunk = n_left ? chunk_of(b) : 0;

        if (n_left) {
            used += change_chunk(s, w, b, n_left < chunk ? n_left : chunk);
            continue;
        }
        if (w->at < w->n_batches)
            pending_rows_end(&b->rows);
        else
            w->phase = COMBINE_END;
        w->at++;
    }
    return used;
}

static struct combine_batch *batch_of(const struct combine *w, const struct shard_entry *entry)
{
    /* Those before it have ended. */
    for (uint32_t i = w->at; i < w->n_batches; i++)
        if (w->batches[i].rows.entry == entry)
            return &w->batches[i];
    return NULL;
}

static void change_ahead(struct shard *s, const struct combine *w, struct combine_batch *b,
                         const uint64_t *keys, const uint32_t *places, uint32_t n)
{
    struct shard_entry *entry = b->rows.entry;
    struct row *rows[SHARD_CHUNK_MAX];

    table_find_batch(entry->table.rows, keys, n, rows);
    row_admission_rows(s, entry, SECTION_GRADIENT, w->version, keys, n, rows);
    for (uint32_t i = 0; i < b->n_contributions; i++)
        b->contributions[i].ahead = b->contributions[i].at;
    for (uint32_t i = 0; i < n; i++) {
        sum_rows_ahead(s, b->contributions, b->n_contributions, keys[i], entry->table.spec.dim);
        row_step(s, entry, rows[i], s->gradient, &b->step, w->version);
        pending_rows_mark_set(&b->rows, places[i]);
    }
}

void combine_rows_first(struct shard *s, struct combine *w, const struct shard_entry *entry,
                        const uint64_t *keys, uint32_t n_keys)
{
    struct combine_batch *b = batch_of(w, entry);
    uint64_t found[SHARD_CHUNK_MAX];
    uint32_t places[SHARD_CHUNK_MAX], n = 0;

    if (!b)
        return;
    for (uint32_t i = 0, at = b->rows.n_done; i < n_keys; i++) {
        at = pending_rows_bound(&b->rows, at, keys[i]);
        if (at == b->rows.n_keys)
            break;
        if (b->rows.keys[at] != keys[i] || is_changed(&b->rows, at))
            continue;
        places[n] = at;
        found[n++] = keys[i];
    }
    if (n)
        change_ahead(s, w, b, found, places, n);
}

/* --- memory --- */

/* One at a time: megabytes take their time to be given back. */
bool combine_trim(struct combine *w)
{
    struct bytes *all[] = { &w->of_keys, &w->of_contributions, &w->of_batches, &w->of_marks };

    for (size_t i = 0; i < COUNT_OF(all); i++) {
        if (all[i]->cap_bytes <= SHARD_SCRATCH_KEEP_BYTES)
            continue;
        bytes_deinit(all[i]);
        return true;
    }
    w->phase = COMBINE_IDLE;
    return false;
}

void combine_deinit(struct combine *w)
{
    struct bytes *all[] = { &w->of_keys, &w->of_contributions, &w->of_batches, &w->of_marks };

    for (size_t i = 0; i < COUNT_OF(all); i++)
        bytes_deinit(all[i]);
}
