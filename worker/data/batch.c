#include "worker/data/batch.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define N_DIGITS 8u
#define N_DIGIT_VALUES 256u
#define BUCKET_MAX 32u

/* A unique key: its number, in order of first sight, and how often it is there. */
struct item {
    uint64_t key;
    uint32_t number, count;
};

/* Of a unique key, by its number: its place among the sorted, and where in `order` its next
 * position goes. */
struct key_order {
    uint32_t rank, next;
};

/*
 * batch_dedup's working memory, one block, for n_keys keys:
 *
 *     items     [n_keys] struct item
 *     swap      [n_keys] struct item   the other side of each pass of a sort
 *     slots     [n_slots] u32          hash index: 1 + number, 0 for empty; a power of two, at
 *                                      least 2 n_keys; then the counts of a sort, then
 *               [n_unique] struct place
 */
struct scratch {
    struct item *items, *swap;
    uint32_t *slots;
    uint32_t n_slots;
    unsigned shift; /* of a 64-bit hash, to a slot */
};

static int resize(void **block, size_t n, size_t item_bytes)
{
    void *moved = memory_try_realloc(*block, n * item_bytes);

    if (!moved)
        return -ENOMEM;
    *block = moved;
    return 0;
}

static void *allocate(const struct batch *b, size_t n_bytes)
{
    return b->memory ? b->memory->alloc(b->memory->arg, n_bytes) : memory_try_alloc(n_bytes);
}

static void release(const struct batch *b, void *memory, size_t n_bytes)
{
    if (!b->memory)
        free(memory);
    else if (memory)
        b->memory->free(b->memory->arg, memory, n_bytes);
}

static size_t label_bytes(const struct batch *b)
{
    return b->n_max * sizeof *b->label;
}

static size_t numeric_bytes(const struct batch *b)
{
    return ((size_t)b->n_max * b->n_numeric + 1) * sizeof *b->numeric;
}

static size_t starts_bytes(const struct batch *b)
{
    return ((size_t)b->n_max * b->n_fields + 1) * sizeof *b->starts;
}

int batch_init(struct batch *b, uint32_t n_max, uint32_t n_numeric, uint32_t n_fields)
{
    return batch_init_in(b, NULL, n_max, n_numeric, n_fields);
}

int batch_init_in(struct batch *b, const struct batch_allocator *memory, uint32_t n_max,
                  uint32_t n_numeric, uint32_t n_fields)
{
    uint64_t n_bags = (uint64_t)n_max * n_fields;

    assert(n_max > 0);
    *b = (struct batch){
        .n_max = n_max, .n_numeric = n_numeric, .n_fields = n_fields, .memory = memory
    };
    if (n_bags >= UINT32_MAX)
        return -ENOMEM;
    b->label = allocate(b, label_bytes(b));
    b->numeric = allocate(b, numeric_bytes(b));
    b->starts = allocate(b, starts_bytes(b));
    if (!b->label || !b->numeric || !b->starts || batch_reserve_keys(b, (uint32_t)n_bags)) {
        batch_deinit(b);
        return -ENOMEM;
    }
    b->starts[0] = 0;
    return 0;
}

void batch_deinit(struct batch *b)
{
    release(b, b->label, label_bytes(b));
    release(b, b->numeric, numeric_bytes(b));
    release(b, b->starts, starts_bytes(b));
    release(b, b->row_of, b->keys_cap * sizeof *b->row_of);
    free(b->keys);
    free(b->unique);
    free(b->order);
    free(b->order_starts);
    free(b->scratch);
    *b = (struct batch){ 0 };
}

void batch_clear(struct batch *b)
{
    b->n = 0;
    b->n_keys = 0;
    b->n_unique = 0;
    b->starts[0] = 0;
}

/* Nothing has to be kept: it is filled by dedup, when all keys are there. */
static int grow_row_of(struct batch *b, size_t cap)
{
    uint32_t *larger = allocate(b, cap * sizeof *larger);

    if (!larger)
        return -ENOMEM;
    release(b, b->row_of, b->keys_cap * sizeof *b->row_of);
    b->row_of = larger;
    return 0;
}

int batch_reserve_keys(struct batch *b, uint32_t n_more)
{
    uint64_t want = (uint64_t)b->n_keys + n_more, cap = b->keys_cap;

    if (want <= cap && cap > 0)
        return 0;
    if (want >= UINT32_MAX)
        return -ENOMEM;
    cap = cap * 2 > want ? cap * 2 : want + 1;
    if (cap >= UINT32_MAX)
        cap = UINT32_MAX - 1;
    if (resize((void **)&b->keys, cap, sizeof *b->keys) ||
        resize((void **)&b->unique, cap, sizeof *b->unique) ||
        resize((void **)&b->order, cap, sizeof *b->order) ||
        resize((void **)&b->order_starts, cap + 1, sizeof *b->order_starts) ||
        grow_row_of(b, cap))
        return -ENOMEM;
    b->keys_cap = (uint32_t)cap;
    return 0;
}

/* Lays the block out for b->n_keys keys, larger when they have become more. */
static int prepare(struct batch *b, struct scratch *ret)
{
    size_t items_bytes = b->n_keys * sizeof(struct item), want;
    unsigned bits = 4;

    while ((UINT64_C(1) << bits) < 2 * (uint64_t)b->n_keys)
        bits++;
    if (bits > 31)
        return -ENOMEM;
    want = 2 * items_bytes + (sizeof(uint32_t) << bits);
    if (want > b->scratch_bytes) {
        if (resize(&b->scratch, want, 1))
            return -ENOMEM;
        b->scratch_bytes = want;
    }
    ret->items = b->scratch;
    ret->swap = ret->items + b->n_keys;
    ret->slots = (uint32_t *)(void *)(ret->swap + b->n_keys);
    ret->n_slots = UINT32_C(1) << bits;
    ret->shift = 64 - bits;
    memset(ret->slots, 0, ret->n_slots * sizeof *ret->slots);
    return 0;
}

/* Fills items with each key once and row_of with the key's number; returns how many. */
static uint32_t number_keys(struct batch *b, const struct scratch *s)
{
    uint32_t n = 0, mask = s->n_slots - 1, *row_of = b->row_of, *slots = s->slots;
    struct item *items = s->items;

    for (uint32_t i = 0; i < b->n_keys; i++) {
        uint64_t key = b->keys[i];
        uint32_t at = (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> s->shift), found;

        while ((found = slots[at]) != 0 && items[found - 1].key != key)
            at = (at + 1) & mask;
        if (!found) {
            items[n] = (struct item){ .key = key, .number = n };
            slots[at] = found = ++n;
        }
        items[found - 1].count++;
        row_of[i] = found - 1;
    }
    return n;
}

/* One pass of a radix sort: `from` to `to`, in order of the digit, equal digits as they stood.
 * counts become the digits' ends. */
static void scatter(const struct item *from, struct item *to, uint32_t n, unsigned shift,
                    uint32_t mask, uint32_t *counts)
{
    uint32_t sum = 0;

    for (uint32_t v = 0; v <= mask; v++) {
        uint32_t count = counts[v];

        counts[v] = sum;
        sum += count;
    }
    for (uint32_t i = 0; i < n; i++)
        to[counts[from[i].key >> shift & mask]++] = from[i];
}

/*
 * Keys are hashes as a rule, and so their upper bits spread them evenly: one pass over as many
 * buckets as there are keys, and what is out of order in a bucket is moved in place. False when a bucket is
 * too large for that.
 */
static bool sort_hashes(const struct scratch *s, uint32_t n)
{
    unsigned bits = 1;
    uint32_t *counts = s->slots, largest = 0, mask;

    while (UINT64_C(1) << bits < n)
        bits++;
    mask = (UINT32_C(1) << bits) - 1;
    memset(counts, 0, (mask + 1) * sizeof *counts);
    for (uint32_t i = 0; i < n; i++)
        counts[s->items[i].key >> (64 - bits)]++;
    for (uint32_t v = 0; v <= mask; v++)
        largest = counts[v] > largest ? counts[v] : largest;
    if (largest > BUCKET_MAX)
        return false;
    scatter(s->items, s->swap, n, 64 - bits, mask, counts);
    for (uint32_t i = 1; i < n; i++) {
        struct item moved = s->swap[i];
        uint32_t to = i;

        for (; to > 0 && s->swap[to - 1].key > moved.key; to--)
            s->swap[to] = s->swap[to - 1];
        s->swap[to] = moved;
    }
    return true;
}

/* Any keys, least digit first; a digit that all keys share costs nothing. */
static const struct item *sort_any(const struct scratch *s, uint32_t n)
{
    uint32_t counts[N_DIGITS][N_DIGIT_VALUES] = { 0 };
    struct item *from = s->items, *to = s->swap, *other;

    for (uint32_t i = 0; i < n; i++)
        for (unsigned d = 0; d < N_DIGITS; d++)
            counts[d][from[i].key >> (8 * d) & 0xff]++;
    for (unsigned d = 0; d < N_DIGITS; d++) {
        if (counts[d][from[0].key >> (8 * d) & 0xff] == n)
            continue;
        scatter(from, to, n, 8 * d, 0xff, counts[d]);
        other = from;
        from = to;
        to = other;
    }
    return from;
}

static void write_unique(struct batch *b, const struct item *sorted, struct key_order *places)
{
    uint32_t n_before = 0;

    for (uint32_t i = 0; i < b->n_unique; i++) {
        b->unique[i] = sorted[i].key;
        b->order_starts[i] = n_before;
        places[sorted[i].number] = (struct key_order){ i, n_before };
        n_before += sorted[i].count;
    }
    b->order_starts[b->n_unique] = n_before;
}

static void write_positions(struct batch *b, struct key_order *places)
{
    for (uint32_t i = 0; i < b->n_keys; i++) {
        struct key_order *key_order = &places[b->row_of[i]];

        b->row_of[i] = key_order->rank;
        b->order[key_order->next++] = i;
    }
}

int batch_dedup(struct batch *b)
{
    const struct item *sorted;
    struct key_order *places;
    struct scratch s;

    b->n_unique = 0;
    b->order_starts[0] = 0;
    if (b->n_keys == 0)
        return 0;
    if (prepare(b, &s))
        return -ENOMEM;
    b->n_unique = number_keys(b, &s);
    sorted = sort_hashes(&s, b->n_unique) ? s.swap : sort_any(&s, b->n_unique);
    places = (struct key_order *)(void *)s.slots;
    write_unique(b, sorted, places);
    write_positions(b, places);
    return 0;
}
