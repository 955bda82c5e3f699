#include "worker/data/batch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define N_DIGITS 8u
#define N_DIGIT_VALUES 256u

/* A unique key and the number it got when it was first seen. */
struct pair {
    uint64_t key;
    uint64_t first_seen;
};

/*
 * batch_dedup's working memory, one block, for n_keys keys:
 *
 *     pairs     [n_keys] struct pair
 *     swap      [n_keys] struct pair   the other side of each radix pass
 *     slots     [n_slots] u32          hash index: 1 + first_seen, 0 for empty;
 *                                      a power of two, at least 2 n_keys
 */
struct scratch {
    struct pair *pairs, *swap;
    uint32_t *slots;
    uint32_t n_slots;
    unsigned shift; /* of a 64-bit hash, to a slot */
};

static int resize(void **block, size_t n, size_t item_bytes)
{
    void *moved = mem_try_realloc(*block, n * item_bytes);

    if (!moved)
        return -ENOMEM;
    *block = moved;
    return 0;
}

int batch_init(struct batch *b, uint32_t n_max, uint32_t n_numeric, uint32_t n_fields)
{
    uint64_t n_bags = (uint64_t)n_max * n_fields;

    assert(n_max > 0);
    *b = (struct batch){ .n_max = n_max, .n_numeric = n_numeric, .n_fields = n_fields };
    if (n_bags >= UINT32_MAX)
        return -ENOMEM;
    b->label = mem_try_alloc(n_max * sizeof *b->label);
    b->numeric = mem_try_alloc(((size_t)n_max * n_numeric + 1) * sizeof *b->numeric);
    b->starts = mem_try_alloc((n_bags + 1) * sizeof *b->starts);
    if (!b->label || !b->numeric || !b->starts || batch_reserve_keys(b, (uint32_t)n_bags)) {
        batch_deinit(b);
        return -ENOMEM;
    }
    return 0;
}

void batch_deinit(struct batch *b)
{
    free(b->label);
    free(b->numeric);
    free(b->starts);
    free(b->keys);
    free(b->row_of);
    free(b->unique);
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
        resize((void **)&b->row_of, cap, sizeof *b->row_of) ||
        resize((void **)&b->unique, cap, sizeof *b->unique))
        return -ENOMEM;
    b->keys_cap = (uint32_t)cap;
    return 0;
}

/* Lays the block out for b->n_keys keys, larger when they have become more. */
static int prepare(struct batch *b, struct scratch *ret)
{
    size_t pairs_bytes = b->n_keys * sizeof(struct pair), want;
    unsigned bits = 4;

    while ((UINT64_C(1) << bits) < 2 * (uint64_t)b->n_keys)
        bits++;
    if (bits > 31)
        return -ENOMEM;
    want = 2 * pairs_bytes + (sizeof(uint32_t) << bits);
    if (want > b->scratch_bytes) {
        if (resize(&b->scratch, want, 1))
            return -ENOMEM;
        b->scratch_bytes = want;
    }
    ret->pairs = b->scratch;
    ret->swap = ret->pairs + b->n_keys;
    ret->slots = (uint32_t *)(void *)(ret->swap + b->n_keys);
    ret->n_slots = UINT32_C(1) << bits;
    ret->shift = 64 - bits;
    memset(ret->slots, 0, ret->n_slots * sizeof *ret->slots);
    return 0;
}

/* Fills pairs with each key once and row_of with the key's number in order of first sight;
 * returns how many. */
static uint32_t number_keys(struct batch *b, const struct scratch *s)
{
    uint32_t n = 0, mask = s->n_slots - 1;

    for (uint32_t i = 0; i < b->n_keys; i++) {
        uint64_t key = b->keys[i];
        uint32_t at = (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> s->shift);

        while (s->slots[at] && s->pairs[s->slots[at] - 1].key != key)
            at = (at + 1) & mask;
        if (!s->slots[at]) {
            s->pairs[n] = (struct pair){ .key = key, .first_seen = n };
            s->slots[at] = ++n;
        }
        b->row_of[i] = s->slots[at] - 1;
    }
    return n;
}

static void count_digits(const struct pair *pairs, uint32_t n,
                         uint32_t counts[N_DIGITS][N_DIGIT_VALUES])
{
    memset(counts, 0, sizeof(uint32_t) * N_DIGITS * N_DIGIT_VALUES);
    for (uint32_t i = 0; i < n; i++)
        for (unsigned d = 0; d < N_DIGITS; d++)
            counts[d][pairs[i].key >> (8 * d) & 0xff]++;
}

/* One pass of the radix sort: `from` to `to`, in order of digit d, equal
 * digits as they stood. */
static void scatter(const struct pair *from, struct pair *to, uint32_t n, unsigned d,
                    const uint32_t counts[N_DIGIT_VALUES])
{
    uint32_t next[N_DIGIT_VALUES], sum = 0;

    for (unsigned v = 0; v < N_DIGIT_VALUES; v++) {
        next[v] = sum;
        sum += counts[v];
    }
    for (uint32_t i = 0; i < n; i++)
        to[next[from[i].key >> (8 * d) & 0xff]++] = from[i];
}

/* Sorts s->pairs by key; they may end on either side. Least digit first; a digit that all keys
 * share costs nothing. */
static const struct pair *sort_pairs(const struct scratch *s, uint32_t n)
{
    uint32_t counts[N_DIGITS][N_DIGIT_VALUES];
    struct pair *from = s->pairs, *to = s->swap, *other;

    count_digits(from, n, counts);
    for (unsigned d = 0; d < N_DIGITS; d++) {
        if (counts[d][from[0].key >> (8 * d) & 0xff] == n)
            continue;
        scatter(from, to, n, d, counts[d]);
        other = from;
        from = to;
        to = other;
    }
    return from;
}

int batch_dedup(struct batch *b)
{
    const struct pair *sorted;
    struct scratch s;

    b->n_unique = 0;
    if (b->n_keys == 0)
        return 0;
    if (prepare(b, &s))
        return -ENOMEM;
    b->n_unique = number_keys(b, &s);
    sorted = sort_pairs(&s, b->n_unique);
    /* The index is done with; its room, at least as long, takes the rank of each number. */
    for (uint32_t i = 0; i < b->n_unique; i++) {
        b->unique[i] = sorted[i].key;
        s.slots[sorted[i].first_seen] = i;
    }
    for (uint32_t i = 0; i < b->n_keys; i++)
        b->row_of[i] = s.slots[b->row_of[i]];
    return 0;
}
