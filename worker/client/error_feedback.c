#include "worker/client/error_feedback.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"

#define SLOTS_FIRST UINT64_C(128)

void error_feedback_init(struct error_feedback *r, uint32_t dim)
{
    *r = (struct error_feedback){ .dim = dim, .rows_max = ERROR_FEEDBACK_ROWS_MAX };
}

void error_feedback_init_index(struct error_feedback *r, uint32_t dim)
{
    *r = (struct error_feedback){ .dim = dim,
                                  .rows_max = ERROR_FEEDBACK_ROWS_MAX,
                                  .is_index = true };
}

void error_feedback_deinit(struct error_feedback *r)
{
    free(r->slots);
    free(r->keys);
    free(r->older);
    free(r->newer);
    free(r->floats);
    *r = (struct error_feedback){ .dim = r->dim,
                                  .is_index = r->is_index,
                                  .rows_max = r->rows_max };
}

static uint64_t float_bytes(const struct error_feedback *r)
{
    return r->dim * sizeof *r->floats;
}

/* Of one row, its slots and floats left out. */
static uint64_t index_bytes(const struct error_feedback *r)
{
    return sizeof *r->keys + sizeof *r->older + sizeof *r->newer;
}

/* Slots double, and so with each power of two there are either more slots or more rows: the
 * best of all that fit. */
void error_feedback_bound(struct error_feedback *r, uint64_t max_bytes)
{
    uint64_t n_slots, rows, best = 0;

    r->rows_max = ERROR_FEEDBACK_ROWS_MAX;
    if (!max_bytes)
        return;
    for (n_slots = SLOTS_FIRST; n_slots * sizeof *r->slots < max_bytes; n_slots *= 2) {
        rows = (max_bytes - n_slots * sizeof *r->slots) / (index_bytes(r) + float_bytes(r));
        rows = rows < n_slots / 4 * 3 ? rows : n_slots / 4 * 3;
        best = rows > best ? rows : best;
    }
    r->rows_max = best < ERROR_FEEDBACK_ROWS_MAX ? (uint32_t)best : ERROR_FEEDBACK_ROWS_MAX;
}

static uint32_t home(const struct error_feedback *r, uint64_t key)
{
    return (uint32_t)hash_mix(key) & (r->n_slots - 1);
}

/* The slot that holds `key`, or the empty one where it belongs. */
static uint32_t probe(const struct error_feedback *r, uint64_t key)
{
    uint32_t i = home(r, key);

    while (r->slots[i] && r->keys[r->slots[i] - 1] != key)
        i = (i + 1) & (r->n_slots - 1);
    return i;
}

/* *array with room for cap elements; as it was on -ENOMEM. */
static int grow(void **array, uint64_t cap, size_t element_bytes)
{
    void *grown = memory_try_realloc(*array, cap * element_bytes);

    if (!grown)
        return -ENOMEM;
    *array = grown;
    return 0;
}

static int grow_rows(struct error_feedback *r, uint64_t want)
{
    uint64_t cap = r->cap_rows ? r->cap_rows : 64;

    while (cap < want)
        cap *= 2;
    if (cap > r->rows_max)
        cap = want > r->rows_max ? want : r->rows_max;
    if (grow((void **)&r->keys, cap, sizeof *r->keys) ||
        grow((void **)&r->older, cap, sizeof *r->older) ||
        grow((void **)&r->newer, cap, sizeof *r->newer) ||
        (!r->is_index && grow((void **)&r->floats, cap, float_bytes(r))))
        return -ENOMEM;
    r->cap_rows = (uint32_t)cap;
    return 0;
}

static int grow_slots(struct error_feedback *r, uint64_t want_rows)
{
    uint64_t n = r->n_slots ? r->n_slots : SLOTS_FIRST;
    uint32_t *slots, i;

    while (n / 4 * 3 < want_rows)
        n *= 2;
    slots = memory_try_alloc(n * sizeof *slots);
    if (!slots)
        return -ENOMEM;
    free(r->slots);
    r->slots = slots;
    r->n_slots = (uint32_t)n;
    for (i = r->oldest; i; i = r->newer[i - 1])
        r->slots[probe(r, r->keys[i - 1])] = i;
    return 0;
}

int error_feedback_reserve(struct error_feedback *r, uint32_t n_more)
{
    uint64_t want = (uint64_t)r->n_rows + n_more;

    if (want > ERROR_FEEDBACK_ROWS_MAX)
        return -ENOMEM;
    if (want > r->cap_rows && grow_rows(r, want))
        return -ENOMEM;
    if (want > r->n_slots / 4 * 3 && grow_slots(r, want))
        return -ENOMEM;
    return 0;
}

/* A copy of n elements; one of none is of no element. */
static void *copy_of(const void *array, uint64_t n, size_t element_bytes)
{
    void *copy = memory_try_alloc(n * element_bytes + 1);

    if (copy && n)
        memcpy(copy, array, n * element_bytes);
    return copy;
}

int error_feedback_copy(struct error_feedback *ret, const struct error_feedback *index)
{
    const uint32_t n = index->n_numbers;

    *ret = *index;
    ret->is_index = false;
    ret->cap_rows = n;
    ret->slots = copy_of(index->slots, index->n_slots, sizeof *ret->slots);
    ret->keys = copy_of(index->keys, n, sizeof *ret->keys);
    ret->older = copy_of(index->older, n, sizeof *ret->older);
    ret->newer = copy_of(index->newer, n, sizeof *ret->newer);
    ret->floats = memory_try_alloc(n * float_bytes(ret) + 1);
    if (ret->slots && ret->keys && ret->older && ret->newer && ret->floats)
        return 0;
    error_feedback_deinit(ret);
    return -ENOMEM;
}

/* ---- the chain ---- */

/* What points at row i from its older and from its newer side. */
static uint32_t *to_newer_of(struct error_feedback *r, uint32_t older)
{
    return older ? &r->newer[older - 1] : &r->oldest;
}

static uint32_t *to_older_of(struct error_feedback *r, uint32_t newer)
{
    return newer ? &r->older[newer - 1] : &r->newest;
}

static void unlink_row(struct error_feedback *r, uint32_t row)
{
    *to_newer_of(r, r->older[row]) = r->newer[row];
    *to_older_of(r, r->newer[row]) = r->older[row];
}

static void link_newest(struct error_feedback *r, uint32_t row)
{
    r->older[row] = r->newest;
    r->newer[row] = 0;
    *to_newer_of(r, r->newest) = row + 1;
    r->newest = row + 1;
}

/* ---- rows ---- */

static uint32_t allocate_number(struct error_feedback *r)
{
    uint32_t row = r->n_numbers;

    if (r->free) {
        row = r->free - 1;
        r->free = r->newer[row];
    } else {
        assert(row < r->cap_rows);
        r->n_numbers++;
    }
    return row;
}

static uint32_t add_row(struct error_feedback *r, uint64_t key)
{
    uint32_t row = allocate_number(r);

    r->n_rows++;
    r->keys[row] = key;
    if (!r->is_index)
        memset(r->floats + (size_t)row * r->dim, 0, float_bytes(r));
    return row;
}

uint32_t error_feedback_touch(struct error_feedback *r, uint64_t key)
{
    uint32_t i, row;

    assert(r->n_slots > 0);
    i = probe(r, key);
    if (r->slots[i]) {
        row = r->slots[i] - 1;
        unlink_row(r, row);
    } else {
        row = add_row(r, key);
        r->slots[i] = row + 1;
    }
    link_newest(r, row);
    return row;
}

uint32_t error_feedback_at(const struct error_feedback *r, uint64_t key)
{
    uint32_t i;

    if (!r->n_rows)
        return ERROR_FEEDBACK_NONE;
    i = probe(r, key);
    return r->slots[i] ? r->slots[i] - 1 : ERROR_FEEDBACK_NONE;
}

float *error_feedback_row(struct error_feedback *r, uint64_t key)
{
    uint32_t row = error_feedback_touch(r, key);

    assert(!r->is_index);
    return r->floats + (size_t)row * r->dim;
}

float *error_feedback_find(const struct error_feedback *r, uint64_t key)
{
    uint32_t row = error_feedback_at(r, key);

    assert(!r->is_index);
    return row == ERROR_FEEDBACK_NONE ? NULL : r->floats + (size_t)row * r->dim;
}

uint32_t error_feedback_n_absent(const struct error_feedback *r, const uint64_t *keys,
                                 uint32_t n_keys)
{
    uint32_t i, n = 0;

    for (i = 0; i < n_keys; i++)
        n += error_feedback_at(r, keys[i]) == ERROR_FEEDBACK_NONE;
    return n;
}

/* Empties slot i and moves up what probing would no longer reach: Knuth, volume 3, 6.4,
 * algorithm R. */
static void empty_slot(struct error_feedback *r, uint32_t i)
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

void error_feedback_remove(struct error_feedback *r, uint64_t key)
{
    uint32_t i, row;

    if (!r->n_rows)
        return;
    i = probe(r, key);
    if (!r->slots[i])
        return;
    row = r->slots[i] - 1;
    empty_slot(r, i);
    unlink_row(r, row);
    r->newer[row] = r->free;
    r->free = row + 1;
    if (--r->n_rows == 0)
        r->free = r->n_numbers = 0;
}

uint64_t error_feedback_bytes(const struct error_feedback *r)
{
    uint64_t row_bytes = index_bytes(r) + (r->is_index ? 0 : float_bytes(r));

    return r->n_slots * sizeof *r->slots + r->cap_rows * row_bytes;
}
