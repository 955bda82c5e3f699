/*
 * bench-unique [IDS]: the different keys among IDS (53,000) ids of 26 columns whose values are as skewed as those of
 * click logs, by unique_find() and by sorting all of them. Prints the best and the median time of 200 calls each.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/memory.h"
#include "common/unique.h"

#define N_COLUMNS 26u
#define N_VALUES \
    1000000.0 /* of the largest column; that of column c has e^-c/3 of them, at least 8 */
#define N_CALLS 200u

typedef int find_function(struct unique *, const uint64_t *, size_t, uint64_t *, int64_t *,
                          size_t *);

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The value's rank is log-uniform, which is Zipf's law with exponent 1. */
static uint64_t skewed_key(uint64_t i, uint64_t batch)
{
    const uint64_t column = i % N_COLUMNS;
    double n_values = N_VALUES * exp(-(double)column / 3.0),
           u = (double)hash_unit(hash_mix2(batch, i));

    return hash_mix2(column, (uint64_t)pow(n_values > 8 ? n_values : 8, u));
}

static void measure(const char *name, find_function *find, const uint64_t *keys, size_t n)
{
    uint64_t *unique = memory_alloc(n * sizeof *unique), took_ns[N_CALLS];
    int64_t *inverse = memory_alloc(n * sizeof *inverse);
    struct unique scratch = { 0 };
    size_t n_unique = 0;

    for (uint32_t i = 0; i < N_CALLS; i++) {
        const uint64_t before_ns = clock_mono_ns();

        if (find(&scratch, keys + i % 8 * n, n, unique, inverse, &n_unique))
            exit(1);
        took_ns[i] = clock_mono_ns() - before_ns;
    }
    qsort(took_ns, N_CALLS, sizeof *took_ns, compare);
    printf("%-12s %zu ids, %zu different: best %.3f ms, median %.3f ms\n", name, n, n_unique,
           (double)took_ns[0] / 1e6, (double)took_ns[N_CALLS / 2] / 1e6);
    unique_deinit(&scratch);
    free(unique);
    free(inverse);
}

int main(int argc, char **argv)
{
    size_t n = argc > 1 ? strtoul(argv[1], NULL, 10) : 53000;
    uint64_t *keys = memory_alloc((8 * n + 1) * sizeof *keys);

    for (uint64_t i = 0; i < 8 * n; i++)
        keys[i] = skewed_key(i % n, i / n);
    measure("unique_find", unique_find, keys, n);
    measure("unique_sort", unique_sort, keys, n);
    free(keys);
    return 0;
}
