#include "common/unique.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define DIGIT_BITS 11u
#define N_DIGITS 6u /* of 11 bits in 64 */
#define N_DIGIT_VALUES (1u << DIGIT_BITS)
#define BUCKET_MAX 32u

/* How many slots a key may look at on average, before the hash is given up. A half full table needs 1.5. */
#define PROBES_PER_KEY 8u
#define PROBES_AT_LEAST 64u

/* A key, and the number that it has in order of first sight; in unique_sort() its place among all keys. */
struct item {
    uint64_t key;
    uint32_t number;
};

/*
 * The working memory for n keys, one block:
 *
 *     items     [n] struct item
 *     swap      [n] struct item   the other side of each pass of a sort
 *     slots     [n_slots] u32     hash index: 1 + number, 0 for empty; a power of two, at least 2 n. Then the counts of
 *                                 a sort, then the ranks of the numbers
 *     numbers   [n] u32           of each of the keys
 */
struct scratch {
    struct item *items, *swap;
    uint32_t *slots, *numbers;
    size_t n_slots;
    unsigned shift; /* of a 64-bit hash, to a slot */
};

void unique_deinit(struct unique *u)
{
    if (!u)
        return;
    free(u->scratch);
    *u = (struct unique){ 0 };
}

/* Lays the block out for n keys, larger when they have become more. */
static int prepare(struct unique *u, size_t n, struct scratch *ret)
{
    unsigned bits = 4;
    size_t want;
    void *larger;

    if (n > UNIQUE_KEYS_MAX)
        return -ENOMEM;
    while ((size_t)1 << bits < 2 * n)
        bits++;
    want = n * (2 * sizeof *ret->items + sizeof *ret->numbers) + (sizeof *ret->slots << bits);
    if (want > u->scratch_bytes) {
        larger = memory_try_large(want);
        if (!larger)
            return -ENOMEM;
        free(u->scratch);
        u->scratch = larger;
        u->scratch_bytes = want;
    }
    ret->items = u->scratch;
    ret->swap = ret->items + n;
    ret->slots = (uint32_t *)(void *)(ret->swap + n);
    ret->n_slots = (size_t)1 << bits;
    ret->numbers = ret->slots + ret->n_slots;
    ret->shift = 64 - bits;
    return 0;
}

/* Fills items with each key once, and numbers. False: too many keys fall into too few slots. */
static bool number_keys(const struct scratch *s, const uint64_t *keys, size_t n,
                        uint32_t *ret_n)
{
    const uint32_t mask = (uint32_t)(s->n_slots - 1);
    size_t probes_left = PROBES_PER_KEY * n + PROBES_AT_LEAST;
    uint32_t n_items = 0, *slots = s->slots;
    struct item *items = s->items;

    memset(slots, 0, s->n_slots * sizeof *slots);
    for (size_t i = 0; i < n; i++) {
        uint64_t key = keys[i];
        uint32_t at = (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> s->shift), found;

        while ((found = slots[at]) != 0 && items[found - 1].key != key) {
            at = (at + 1) & mask;
            if (--probes_left == 0)
                return false;
        }
        if (!found) {
            items[n_items] = (struct item){ key, n_items };
            slots[at] = found = ++n_items;
        }
        s->numbers[i] = found - 1;
    }
    *ret_n = n_items;
    return true;
}

/* One pass of a radix sort: `from` to `to`, in order of the digit, equal digits as they stood. counts become the
 * digits' ends. */
static void scatter(const struct item *from, struct item *to, size_t n, unsigned shift,
                    uint32_t n_values, uint32_t *counts)
{
    uint32_t sum = 0;

    for (uint32_t v = 0; v < n_values; v++) {
        uint32_t count = counts[v];

        counts[v] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++)
        to[counts[from[i].key >> shift & (n_values - 1)]++] = from[i];
}

/*
 * Keys are hashes as a rule, and so their upper bits spread them evenly: one pass over as many buckets as there are
 * keys, and what is out of order in a bucket is moved in place. False when a bucket is too large for that.
 */
static bool sort_hashes(const struct scratch *s, size_t n)
{
    unsigned bits = 1;
    uint32_t *counts = s->slots, largest = 0, n_values;

    while ((size_t)1 << bits < n)
        bits++;
    n_values = UINT32_C(1) << bits;
    memset(counts, 0, n_values * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        counts[s->items[i].key >> (64 - bits)]++;
    for (uint32_t v = 0; v < n_values; v++)
        largest = counts[v] > largest ? counts[v] : largest;
    if (largest > BUCKET_MAX)
        return false;
    scatter(s->items, s->swap, n, 64 - bits, n_values, counts);
    for (size_t i = 1; i < n; i++) {
        struct item moved = s->swap[i];
        size_t to = i;

        for (; to > 0 && s->swap[to - 1].key > moved.key; to--)
            s->swap[to] = s->swap[to - 1];
        s->swap[to] = moved;
    }
    return true;
}

/* Any keys, least digit first; a digit that all keys share costs nothing. Equal keys stay as they stood. */
static const struct item *sort_any(const struct scratch *s, size_t n)
{
    uint32_t counts[N_DIGITS][N_DIGIT_VALUES] = { 0 };
    struct item *from = s->items, *to = s->swap, *other;

    for (size_t i = 0; i < n; i++)
        for (unsigned d = 0; d < N_DIGITS; d++)
            counts[d][from[i].key >> (DIGIT_BITS * d) & (N_DIGIT_VALUES - 1)]++;
    for (unsigned d = 0; d < N_DIGITS; d++) {
        if (counts[d][from[0].key >> (DIGIT_BITS * d) & (N_DIGIT_VALUES - 1)] == n)
            continue;
        scatter(from, to, n, DIGIT_BITS * d, N_DIGIT_VALUES, counts[d]);
        other = from;
        from = to;
        to = other;
    }
    return from;
}

static size_t find_by_sort(const struct scratch *s, const uint64_t *keys, size_t n,
                           uint64_t *unique, int64_t *inverse)
{
    const struct item *sorted;
    size_t n_unique = 0;

    for (size_t i = 0; i < n; i++)
        s->items[i] = (struct item){ keys[i], (uint32_t)i };
    sorted = sort_any(s, n);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || sorted[i].key != sorted[i - 1].key)
            unique[n_unique++] = sorted[i].key;
        if (inverse)
            inverse[sorted[i].number] = (int64_t)(n_unique - 1);
    }
    return n_unique;
}

int unique_sort(struct unique *u, const uint64_t *keys, size_t n, uint64_t *unique,
                int64_t *inverse, size_t *ret_n_unique)
{
    struct scratch s;

    if (prepare(u, n, &s))
        return -ENOMEM;
    *ret_n_unique = n > 0 ? find_by_sort(&s, keys, n, unique, inverse) : 0;
    return 0;
}

int unique_find(struct unique *u, const uint64_t *keys, size_t n, uint64_t *unique,
                int64_t *inverse, size_t *ret_n_unique)
{
    const struct item *sorted;
    uint32_t n_unique, *ranks;
    struct scratch s;

    if (prepare(u, n, &s))
        return -ENOMEM;
    *ret_n_unique = 0;
    if (n == 0)
        return 0;
    if (!number_keys(&s, keys, n, &n_unique)) {
        *ret_n_unique = find_by_sort(&s, keys, n, unique, inverse);
        return 0;
    }
    sorted = sort_hashes(&s, n_unique) ? s.swap : sort_any(&s, n_unique);
    ranks = s.slots;
    for (uint32_t i = 0; i < n_unique; i++) {
        unique[i] = sorted[i].key;
        ranks[sorted[i].number] = i;
    }
    for (size_t i = 0; inverse && i < n; i++)
        inverse[i] = ranks[s.numbers[i]];
    *ret_n_unique = n_unique;
    return 0;
}
