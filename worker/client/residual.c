#include "worker/client/residual.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/mem.h"

#define ROWS_MAX (UINT32_C(1) << 30)

void residual_init(struct residual *r, uint32_t dim)
{
    *r = (struct residual){ .dim = dim };
}

void residual_deinit(struct residual *r)
{
    free(r->slots);
    free(r->keys);
    free(r->floats);
    *r = (struct residual){ .dim = r->dim };
}

static uint32_t home(const struct residual *r, uint64_t key)
{
    return (uint32_t)hash_mix(key) & (r->n_slots - 1);
}

/* The slot that holds `key`, or the empty one where it belongs. */
static uint32_t probe(const struct residual *r, uint64_t key)
{
    uint32_t i = home(r, key);

    while (r->slots[i] && r->keys[r->slots[i] - 1] != key)
        i = (i + 1) & (r->n_slots - 1);
    return i;
}

static int grow_rows(struct residual *r, uint64_t want)
{
    uint64_t cap = r->cap_rows ? r->cap_rows : 64;
    void *keys, *floats;

    while (cap < want)
        cap *= 2;
    keys = mem_try_realloc(r->keys, cap * sizeof *r->keys);
    if (!keys)
        return -ENOMEM;
    r->keys = keys;
    floats = mem_try_realloc(r->floats, cap * r->dim * sizeof *r->floats);
    if (!floats)
        return -ENOMEM;
    r->floats = floats;
    r->cap_rows = (uint32_t)cap;
    return 0;
}

static int grow_slots(struct residual *r, uint64_t want_rows)
{
    uint64_t n = r->n_slots ? r->n_slots : 128;
    uint32_t *slots, row;

    while (n / 4 * 3 < want_rows)
        n *= 2;
    slots = mem_try_alloc(n * sizeof *slots);
    if (!slots)
        return -ENOMEM;
    free(r->slots);
    r->slots = slots;
    r->n_slots = (uint32_t)n;
    for (row = 0; row < r->n_rows; row++)
        r->slots[probe(r, r->keys[row])] = row + 1;
    return 0;
}

int residual_reserve(struct residual *r, uint32_t n_more)
{
    uint64_t want = (uint64_t)r->n_rows + n_more;

    if (want > ROWS_MAX)
        return -ENOMEM;
    if (want > r->cap_rows && grow_rows(r, want))
        return -ENOMEM;
    if (want > r->n_slots / 4 * 3 && grow_slots(r, want))
        return -ENOMEM;
    return 0;
}

float *residual_row(struct residual *r, uint64_t key)
{
    uint32_t i, row;

    assert(r->n_slots > 0);
    i = probe(r, key);
    if (!r->slots[i]) {
        assert(r->n_rows < r->cap_rows);
        row = r->n_rows++;
        r->keys[row] = key;
        memset(r->floats + (size_t)row * r->dim, 0, r->dim * sizeof(float));
        r->slots[i] = row + 1;
    }
    return r->floats + (size_t)(r->slots[i] - 1) * r->dim;
}

/* Empties slot i and moves up what probing would no longer reach: Knuth, volume 3, 6.4,
 * algorithm R. */
static void empty_slot(struct residual *r, uint32_t i)
{
    uint32_t mask = r->n_slots - 1, j = i, want;

    for (;;) {
        r->slots[i] = 0;
        do {
            j = (j + 1) & mask;
            if (!r->slots[j])
                return;
            want = home(r, r->keys[r->slots[j] - 1]);
        } while (((j - want) & mask) < ((j - i) & mask));
        r->slots[i] = r->slots[j];
        i = j;
    }
}

void residual_remove(struct residual *r, uint64_t key)
{
    uint32_t i, row, last;

    if (!r->n_rows)
        return;
    i = probe(r, key);
    if (!r->slots[i])
        return;
    row = r->slots[i] - 1;
    last = r->n_rows - 1;
    empty_slot(r, i);
    if (row != last) {
        r->slots[probe(r, r->keys[last])] = row + 1;
        r->keys[row] = r->keys[last];
        memcpy(r->floats + (size_t)row * r->dim, r->floats + (size_t)last * r->dim,
               r->dim * sizeof(float));
    }
    r->n_rows = last;
}

uint64_t residual_bytes(const struct residual *r)
{
    return r->n_slots * sizeof *r->slots +
           r->cap_rows * (sizeof *r->keys + r->dim * sizeof *r->floats);
}
