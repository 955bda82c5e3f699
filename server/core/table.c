#include "server/core/table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/mem.h"
#include "common/pages.h"

#define N_ROWS_MAX (UINT64_C(3) << 30) /* 3/4 of the slots that a 32-bit hash can reach */
#define N_SLOTS_FIRST 64u
#define SLAB_BYTES_FIRST ((size_t)16 << 10)
#define SLAB_BYTES_LAST ((size_t)8 << 20)

/* Keys looked up side by side: enough misses under way to fill a core's miss buffers. */
#define GROUP 32u

struct slot {
    uint32_t row_plus_1;
    uint32_t hash; /* of the key; its low bits say where the search begins */
};

struct table {
    struct slot *slots; /* owned; NULL while n_slots is 0 */
    uint64_t n_slots;   /* 0 or a power of two */
    uint8_t **slabs;    /* owned, and each slab in it */
    uint32_t n_slabs, slabs_cap;
    uint32_t first_shift, last_shift; /* log2 of the first and the largest slabs' rows */
    uint64_t n_rows;
    size_t row_bytes;
};

/* The upper bits of hash_mix() chose the shard (proto/route.h), so that only the lower ones
 * still differ freely. */
static inline uint32_t hash_of(uint64_t key)
{
    return (uint32_t)hash_mix(key);
}

/* Which slab row i stands in, and where in it. Slab 0 holds 2^first_shift rows; slab j as many
 * as all before it, until that is 2^last_shift; then all hold 2^last_shift. */
static inline uint32_t slab_of(const struct table *t, uint64_t i, uint64_t *ret_at)
{
    uint64_t firsts = i >> t->first_shift;
    uint32_t bits;

    if (i >> t->last_shift) {
        *ret_at = i & ((UINT64_C(1) << t->last_shift) - 1);
        return t->last_shift - t->first_shift + (uint32_t)(i >> t->last_shift);
    }
    if (!firsts) {
        *ret_at = i;
        return 0;
    }
    bits = 64u - (uint32_t)__builtin_clzll(firsts);
    *ret_at = i - (UINT64_C(1) << (bits - 1 + t->first_shift));
    return bits;
}

static inline struct row *row_at(const struct table *t, uint64_t i)
{
    uint64_t at;
    uint32_t slab = slab_of(t, i, &at);

    return (struct row *)(void *)(t->slabs[slab] + at * t->row_bytes);
}

/* How many rows the first n_slabs slabs hold. */
static uint64_t slabs_rows(const struct table *t, uint64_t n_slabs)
{
    uint32_t n_doublings = t->last_shift - t->first_shift;

    if (n_slabs == 0)
        return 0;
    if (n_slabs <= n_doublings + 1)
        return UINT64_C(1) << (t->first_shift + n_slabs - 1);
    return (n_slabs - n_doublings) << t->last_shift;
}

static size_t slab_bytes(const struct table *t, uint32_t slab)
{
    return (size_t)(slabs_rows(t, slab + 1) - slabs_rows(t, slab)) * t->row_bytes;
}

/* How many slabs n_rows rows need. */
static uint32_t slabs_for(const struct table *t, uint64_t n_rows)
{
    uint64_t at;

    return n_rows ? slab_of(t, n_rows - 1, &at) + 1 : 0;
}

static uint64_t slots_for(const struct table *t, uint64_t n_rows)
{
    uint64_t n = t->n_slots ? t->n_slots : N_SLOTS_FIRST;

    if (!n_rows)
        return t->n_slots;
    while (n_rows > n / 4 * 3)
        n *= 2;
    return n;
}

/* log2 of the largest power of two of rows that n_bytes hold; 0 if they hold none. */
static uint32_t rows_shift(size_t n_bytes, size_t row_bytes)
{
    uint32_t shift = 0;

    while (((size_t)2 << shift) * row_bytes <= n_bytes)
        shift++;
    return shift;
}

int table_new(struct table **ret_table, uint32_t row_floats)
{
    struct table *t = mem_try_alloc(sizeof *t);

    assert(row_floats > 0);
    if (!t)
        return -ENOMEM;
    t->row_bytes = (sizeof(struct row) + row_floats * sizeof(float) + 7) & ~(size_t)7;
    t->first_shift = rows_shift(SLAB_BYTES_FIRST, t->row_bytes);
    t->last_shift = rows_shift(SLAB_BYTES_LAST, t->row_bytes);
    *ret_table = t;
    return 0;
}

void table_free(struct table *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n_slabs; i++)
        pages_free(t->slabs[i], slab_bytes(t, i));
    free(t->slabs);
    pages_free(t->slots, t->n_slots * sizeof *t->slots);
    free(t);
}

uint64_t table_n_rows(const struct table *t)
{
    return t->n_rows;
}

static uint64_t bytes_of(const struct table *t, uint64_t n_slots, uint64_t n_slabs,
                         uint64_t slabs_cap)
{
    return sizeof *t + n_slots * sizeof *t->slots + slabs_cap * sizeof *t->slabs +
           slabs_rows(t, n_slabs) * t->row_bytes;
}

uint64_t table_bytes(const struct table *t)
{
    return bytes_of(t, t->n_slots, t->n_slabs, t->slabs_cap);
}

static uint32_t slabs_cap_for(const struct table *t, uint32_t n_slabs)
{
    uint32_t cap = t->slabs_cap ? t->slabs_cap : 8;

    if (!n_slabs)
        return t->slabs_cap;
    while (cap < n_slabs)
        cap *= 2;
    return cap;
}

uint64_t table_bytes_after(const struct table *t, uint64_t n_new)
{
    uint64_t n_rows = n_new > N_ROWS_MAX - t->n_rows ? N_ROWS_MAX : t->n_rows + n_new;
    uint32_t n_slabs = slabs_for(t, n_rows);

    if (n_slabs < t->n_slabs)
        n_slabs = t->n_slabs;
    return bytes_of(t, slots_for(t, n_rows), n_slabs, slabs_cap_for(t, n_slabs));
}

/* From slot i on: the one that holds `key`, or the empty one where it belongs. */
static inline uint64_t probe(const struct table *t, uint64_t key, uint32_t hash, uint64_t i)
{
    uint64_t mask = t->n_slots - 1;

    for (;; i = (i + 1) & mask) {
        const struct slot *slot = &t->slots[i];

        if (!slot->row_plus_1)
            return i;
        if (slot->hash == hash && row_at(t, slot->row_plus_1 - 1)->key == key)
            return i;
    }
}

/* From slot i on: the first that is empty or has the hash. Touches no row. */
static inline uint64_t probe_hash(const struct table *t, uint32_t hash, uint64_t i)
{
    uint64_t mask = t->n_slots - 1;

    while (t->slots[i].row_plus_1 && t->slots[i].hash != hash)
        i = (i + 1) & mask;
    return i;
}

/* At most GROUP keys, in three rounds, each of which asks for the memory that the next one
 * reads. */
static void find_group(const struct table *t, const uint64_t *keys, uint32_t n_keys,
                       struct row **ret_rows)
{
    uint64_t mask = t->n_slots - 1, at[GROUP];
    uint32_t hashes[GROUP];

    for (uint32_t i = 0; i < n_keys; i++) {
        hashes[i] = hash_of(keys[i]);
        __builtin_prefetch(&t->slots[hashes[i] & mask]);
    }
    for (uint32_t i = 0; i < n_keys; i++) {
        const struct slot *slot;

        at[i] = probe_hash(t, hashes[i], hashes[i] & mask);
        slot = &t->slots[at[i]];
        ret_rows[i] = slot->row_plus_1 ? row_at(t, slot->row_plus_1 - 1) : NULL;
        __builtin_prefetch(ret_rows[i]);
    }
    for (uint32_t i = 0; i < n_keys; i++) {
        if (!ret_rows[i] || ret_rows[i]->key == keys[i])
            continue;
        /* Another key has this hash. */
        at[i] = probe(t, keys[i], hashes[i], (at[i] + 1) & mask);
        ret_rows[i] =
            t->slots[at[i]].row_plus_1 ? row_at(t, t->slots[at[i]].row_plus_1 - 1) : NULL;
    }
}

void table_find_batch(const struct table *t, const uint64_t *keys, uint32_t n_keys,
                      struct row **ret_rows)
{
    if (!t->n_slots) {
        for (uint32_t i = 0; i < n_keys; i++)
            ret_rows[i] = NULL;
        return;
    }
    for (uint32_t i = 0; i < n_keys; i += GROUP)
        find_group(t, keys + i, n_keys - i < GROUP ? n_keys - i : GROUP, ret_rows + i);
}

/* Rows stay where they are: a slot knows enough of its key to find its new place. */
static int grow_slots(struct table *t, uint64_t n_slots)
{
    struct slot *slots = pages_alloc(n_slots * sizeof *slots);

    if (!slots)
        return -ENOMEM;
    for (uint64_t i = 0; i < t->n_slots; i++) {
        uint64_t at = t->slots[i].hash & (n_slots - 1);

        if (!t->slots[i].row_plus_1)
            continue;
        while (slots[at].row_plus_1)
            at = (at + 1) & (n_slots - 1);
        slots[at] = t->slots[i];
    }
    pages_free(t->slots, t->n_slots * sizeof *slots);
    t->slots = slots;
    t->n_slots = n_slots;
    return 0;
}

static int add_slab(struct table *t)
{
    uint32_t cap = slabs_cap_for(t, t->n_slabs + 1);

    if (cap > t->slabs_cap) {
        uint8_t **slabs = mem_try_realloc(t->slabs, cap * sizeof *slabs);

        if (!slabs)
            return -ENOMEM;
        t->slabs = slabs;
        t->slabs_cap = cap;
    }
    t->slabs[t->n_slabs] = pages_alloc(slab_bytes(t, t->n_slabs));
    if (!t->slabs[t->n_slabs])
        return -ENOMEM;
    t->n_slabs++;
    return 0;
}

int table_reserve(struct table *t, uint64_t n_new)
{
    uint64_t n_slots;
    uint32_t n_slabs;
    int status = 0;

    if (n_new > N_ROWS_MAX - t->n_rows)
        return -ENOMEM;
    n_slots = slots_for(t, t->n_rows + n_new);
    n_slabs = slabs_for(t, t->n_rows + n_new);
    while (t->n_slabs < n_slabs && !status)
        status = add_slab(t);
    if (!status && n_slots > t->n_slots)
        status = grow_slots(t, n_slots);
    return status;
}

int table_upsert(struct table *t, uint64_t key, struct row **ret_row, bool *ret_is_new)
{
    uint32_t hash = hash_of(key);
    struct slot *slot;
    struct row *row;
    int status;

    if (t->n_slots) {
        slot = &t->slots[probe(t, key, hash, hash & (t->n_slots - 1))];
        if (slot->row_plus_1) {
            *ret_row = row_at(t, slot->row_plus_1 - 1);
            *ret_is_new = false;
            return 0;
        }
    }
    status = table_reserve(t, 1);
    if (status)
        return status;
    slot = &t->slots[probe(t, key, hash, hash & (t->n_slots - 1))];
    row = row_at(t, t->n_rows++);
    *slot = (struct slot){ .row_plus_1 = (uint32_t)t->n_rows, .hash = hash };
    *row = (struct row){ .key = key };
    *ret_row = row;
    *ret_is_new = true;
    return 0;
}

struct row *table_row(const struct table *t, uint64_t i)
{
    assert(i < t->n_rows);
    return row_at(t, i);
}
