#include "worker/cache/eviction.h"

#include "common/hash.h"

#define SAMPLE_ROWS 64u
#define SAMPLE_SHARE 8u

/* Ascending; n is small. */
static void sort(uint64_t *items, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        uint64_t item = items[i];
        uint32_t at = i;

        for (; at && items[at - 1] > item; at--)
            items[at] = items[at - 1];
        items[at] = item;
    }
}

/* Row number i of a sample: all of them where there are few. */
static struct row *sampled(const struct eviction *eviction, const struct table *t,
                           uint64_t n_numbers, uint64_t i)
{
    if (n_numbers <= SAMPLE_ROWS)
        return i < n_numbers ? table_row(t, i) : NULL;
    return table_row(t, hash_mix2(eviction->n_samples, i) % n_numbers);
}

/* False: none of the sampled rows may go. */
static bool begin_round(struct eviction *eviction, const struct table *t, uint64_t keep)
{
    uint64_t n_numbers = table_n_numbers(t), versions[SAMPLE_ROWS];
    uint32_t n = 0;

    eviction->n_samples++;
    for (uint64_t i = 0; i < SAMPLE_ROWS; i++) {
        const struct row *row = sampled(eviction, t, n_numbers, i);

        if (row && row_version(row) < keep)
            versions[n++] = row_version(row);
    }
    if (!n)
        return false;
    sort(versions, n);
    eviction->threshold = versions[n / SAMPLE_SHARE];
    eviction->hand_left = n_numbers;
    return true;
}

struct row *eviction_find(struct eviction *eviction, const struct table *t, uint64_t keep)
{
    uint64_t n_numbers = table_n_numbers(t);

    if (eviction->barren == keep)
        return NULL;
    for (int rounds = 0; rounds < 3; rounds++) {
        while (eviction->hand_left) {
            struct row *row = table_row(t, eviction->hand);

            eviction->hand = eviction->hand + 1 < n_numbers ? eviction->hand + 1 : 0;
            eviction->hand_left--;
            if (row && row_version(row) <= eviction->threshold && row_version(row) < keep)
                return row;
        }
        if (!begin_round(eviction, t, keep))
            break;
    }
    eviction->barren = keep;
    return NULL;
}
