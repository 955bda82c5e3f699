#include "worker/data/batch.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define N_DIGITS 8u
#define N_DIGIT_VALUES 256u
#define BITS_MIN 6u
#define PROBES_MAX 256u    /* slots that a new key may pass by: more, and keys are no hashes */
#define PREFETCH_SLOTS 32u /* keys ahead; as are the next two */
#define PREFETCH_PLACES 32u
#define PREFETCH_ORDER 16u

/* A different key: its number, in order of first sight, and how often it is there; count 0: an empty slot. */
struct slot {
    uint64_t key;
    uint32_t number, count;
};

/* A key and its position among all. */
struct item {
    uint64_t key;
    uint32_t position;
};

/* Of a different key, by its number: its place among the sorted, and where in `order` its next
 * position goes. */
struct key_order {
    uint32_t rank, next;
};

/*
 * batch_dedup's working memory, one block:
 *
 *     slots   [n_slots]    hash index. Keys are hashes, so a key's upper bits are its slot, or that of one of the
 *                          next that is free: the slots hold the different keys nearly in order. Behind the
 *                          2^bits slots are PROBES_MAX, and one that stays empty
 *     found   [n_max + 1]  the different keys, at most as many as half of the slots
 *     places  [n_max]
 *
 * or, for keys that are no hashes, the two sides of each pass of a sort, [n_keys] struct item each.
 */
struct scratch {
    struct slot *slots, *found;
    struct key_order *places;
    uint64_t n_slots;
    uint32_t n_max;
    unsigned shift; /* of a key, to a slot */
};

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

/* The arrays of a batch's keys: space for so many. */
struct key_arrays {
    uint64_t *keys, *unique;
    uint32_t *row_of, *order, *order_starts;
};

static struct key_arrays key_arrays_of(const struct batch *b)
{
    return (struct key_arrays){ b->keys, b->unique, b->row_of, b->order, b->order_starts };
}

static void release_keys(const struct batch *b, const struct key_arrays *a, size_t cap)
{
    release(b, a->keys, cap * sizeof *a->keys);
    release(b, a->unique, cap * sizeof *a->unique);
    release(b, a->row_of, cap * sizeof *a->row_of);
    release(b, a->order, cap * sizeof *a->order);
    release(b, a->order_starts, (cap + 1) * sizeof *a->order_starts);
}

static int allocate_keys(const struct batch *b, size_t cap, struct key_arrays *ret)
{
    *ret = (struct key_arrays){ .keys = allocate(b, cap * sizeof *ret->keys),
                                .unique = allocate(b, cap * sizeof *ret->unique),
                                .row_of = allocate(b, cap * sizeof *ret->row_of),
                                .order = allocate(b, cap * sizeof *ret->order),
                                .order_starts =
                                    allocate(b, (cap + 1) * sizeof *ret->order_starts) };
    if (ret->keys && ret->unique && ret->row_of && ret->order && ret->order_starts)
        return 0;
    release_keys(b, ret, cap);
    return -ENOMEM;
}

static size_t label_bytes(const struct batch *b)
{
    return (size_t)b->n_max * b->n_labels * sizeof *b->label;
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
    return batch_init_labels(b, memory, n_max, 1, n_numeric, n_fields);
}

int batch_init_labels(struct batch *b, const struct batch_allocator *memory, uint32_t n_max,
                      uint32_t n_labels, uint32_t n_numeric, uint32_t n_fields)
{
    uint64_t n_bags = (uint64_t)n_max * n_fields;

    assert(n_max > 0);
    *b = (struct batch){ .n_max = n_max,
                         .n_labels = n_labels,
                         .n_numeric = n_numeric,
                         .n_fields = n_fields,
                         .memory = memory };
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
    const struct key_arrays keys = key_arrays_of(b);

    release(b, b->label, label_bytes(b));
    release(b, b->numeric, numeric_bytes(b));
    release(b, b->starts, starts_bytes(b));
    release_keys(b, &keys, b->keys_cap);
    batch_scratch_deinit(&b->scratch);
    *b = (struct batch){ 0 };
}

void batch_clear(struct batch *b)
{
    b->n = 0;
    b->n_keys = 0;
    b->n_unique = 0;
    b->starts[0] = 0;
}

void batch_drop_last(struct batch *b)
{
    b->n--;
    b->n_keys = b->starts[(size_t)b->n * b->n_fields];
}

int batch_reserve_keys(struct batch *b, uint32_t n_more)
{
    uint64_t want = (uint64_t)b->n_keys + n_more, cap = b->keys_cap;
    struct key_arrays old = key_arrays_of(b), larger;

    if (want <= cap && cap > 0)
        return 0;
    if (want >= UINT32_MAX)
        return -ENOMEM;
    cap = cap * 2 > want ? cap * 2 : want + 1;
    if (cap >= UINT32_MAX)
        cap = UINT32_MAX - 1;
    if (allocate_keys(b, cap, &larger))
        return -ENOMEM;
    /* The others are filled by dedup, when all keys are there. */
    if (b->n_keys)
        memcpy(larger.keys, b->keys, b->n_keys * sizeof *b->keys);
    release_keys(b, &old, b->keys_cap);
    b->keys = larger.keys;
    b->unique = larger.unique;
    b->row_of = larger.row_of;
    b->order = larger.order;
    b->order_starts = larger.order_starts;
    b->keys_cap = (uint32_t)cap;
    return 0;
}

/* Memory that is not kept. */
static void *reserve(struct batch_scratch *s, size_t n_bytes)
{
    if (n_bytes > s->n_bytes) {
        free(s->memory);
        s->memory = memory_try_large(n_bytes);
        s->n_bytes = s->memory ? n_bytes : 0;
    }
    return s->memory;
}

/* Half of the slots stay empty. */
static int lay_out(struct batch_scratch *memory, unsigned bits, struct scratch *ret)
{
    const uint64_t n_slots = (UINT64_C(1) << bits) + PROBES_MAX + 1, n_max = UINT64_C(1)
                                                                             << (bits - 1);
    struct slot *block;

    if (bits > 32)
        return -ENOMEM;
    block = reserve(memory,
                    (n_slots + n_max + 1) * sizeof *ret->slots + n_max * sizeof *ret->places);
    if (!block)
        return -ENOMEM;
    ret->slots = block;
    ret->found = block + n_slots;
    ret->places = (struct key_order *)(void *)(ret->found + n_max + 1);
    ret->n_slots = n_slots;
    ret->n_max = (uint32_t)n_max;
    ret->shift = 64 - bits;
    memset(ret->slots, 0, n_slots * sizeof *ret->slots);
    return 0;
}

static uint32_t ahead(uint32_t i, uint32_t by, uint32_t n)
{
    return n - i > by ? i + by : i;
}

enum numbered { NUMBERED, TOO_MANY, NO_HASHES };

/* Fills slots, and row_of with each key's number. */
static enum numbered number_keys(struct batch *b, const struct scratch *s, uint32_t *ret_n)
{
    const uint32_t n_keys = b->n_keys;
    const uint64_t *keys = b->keys;
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_keys; i++) {
        const uint64_t key = keys[i];
        struct slot *home = &s->slots[key >> s->shift], *slot = home;

        __builtin_prefetch(&s->slots[keys[ahead(i, PREFETCH_SLOTS, n_keys)] >> s->shift], 1);
        while (slot->count && slot->key != key)
            slot++;
        if (!slot->count) {
            if (n == s->n_max)
                return TOO_MANY;
            if (slot - home > (ptrdiff_t)PROBES_MAX)
                return NO_HASHES;
            *slot = (struct slot){ .key = key, .number = n++ };
        }
        slot->count++;
        b->row_of[i] = slot->number;
    }
    *ret_n = n;
    return NUMBERED;
}

/* The different keys, ascending. No key is far from its place: it is moved there. */
static void sort_slots(const struct scratch *s)
{
    struct slot *found = s->found;
    uint32_t n = 0;

    for (uint64_t at = 0; at < s->n_slots; at++) {
        found[n] = s->slots[at];
        n += s->slots[at].count > 0;
    }
    for (uint32_t i = 1; i < n; i++) {
        struct slot moved = found[i];
        uint32_t to = i;

        for (; to > 0 && found[to - 1].key > moved.key; to--)
            found[to] = found[to - 1];
        found[to] = moved;
    }
}

static void write_unique(struct batch *b, const struct slot *sorted, struct key_order *places)
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
    uint32_t *row_of = b->row_of, *order = b->order;
    const uint32_t n_keys = b->n_keys;

    for (uint32_t i = 0; i < n_keys; i++) {
        struct key_order *key_order = &places[row_of[i]];

        __builtin_prefetch(&places[row_of[ahead(i, PREFETCH_PLACES, n_keys)]], 1);
        __builtin_prefetch(&order[places[row_of[ahead(i, PREFETCH_ORDER, n_keys)]].next], 1);
        row_of[i] = key_order->rank;
        order[key_order->next++] = i;
    }
}

/* One pass of a radix sort: `from` to `to`, in order of the digit, equal digits as they stood.
 * counts become the digits' ends. */
static void scatter(const struct item *from, struct item *to, uint32_t n, unsigned shift,
                    uint32_t *counts)
{
    uint32_t sum = 0;

    for (uint32_t v = 0; v < N_DIGIT_VALUES; v++) {
        uint32_t count = counts[v];

        counts[v] = sum;
        sum += count;
    }
    for (uint32_t i = 0; i < n; i++)
        to[counts[from[i].key >> shift & 0xff]++] = from[i];
}

/* Least digit first; a digit that all keys share costs nothing. */
static const struct item *sort_items(struct item *from, struct item *to, uint32_t n)
{
    uint32_t counts[N_DIGITS][N_DIGIT_VALUES] = { 0 };
    struct item *other;

    for (uint32_t i = 0; i < n; i++)
        for (unsigned d = 0; d < N_DIGITS; d++)
            counts[d][from[i].key >> (8 * d) & 0xff]++;
    for (unsigned d = 0; d < N_DIGITS; d++) {
        if (counts[d][from[0].key >> (8 * d) & 0xff] == n)
            continue;
        scatter(from, to, n, 8 * d, counts[d]);
        other = from;
        from = to;
        to = other;
    }
    return from;
}

/* Any keys: all of them are sorted. */
static int dedup_by_sort(struct batch *b, struct batch_scratch *memory)
{
    struct item *items = reserve(memory, 2 * (size_t)b->n_keys * sizeof *items);
    const struct item *sorted;

    if (!items)
        return -ENOMEM;
    for (uint32_t i = 0; i < b->n_keys; i++)
        items[i] = (struct item){ b->keys[i], i };
    sorted = sort_items(items, items + b->n_keys, b->n_keys);
    for (uint32_t i = 0; i < b->n_keys; i++) {
        if (i == 0 || sorted[i].key != sorted[i - 1].key) {
            b->order_starts[b->n_unique] = i;
            b->unique[b->n_unique++] = sorted[i].key;
        }
        b->order[i] = sorted[i].position;
        b->row_of[sorted[i].position] = b->n_unique - 1;
    }
    b->order_starts[b->n_unique] = b->n_keys;
    return 0;
}

/* As many slots as the last batch needed, or as for a key in eight that is another one; never more than for keys that
 * all are. */
static unsigned first_bits(const struct batch *b, const struct batch_scratch *memory)
{
    unsigned bits = memory->bits > BITS_MIN ? memory->bits : BITS_MIN;

    while (UINT64_C(1) << bits < b->n_keys / 4)
        bits++;
    while (bits > BITS_MIN && UINT64_C(1) << (bits - 1) >= 2 * (uint64_t)b->n_keys)
        bits--;
    return bits;
}

/* ---- groups ---- */

/* What the order by group is made of, in one block. */
struct regroup {
    uint64_t *unique;                    /* as they were; [n_unique] */
    uint32_t *starts, *order, *new_rank; /* [n_unique + 1], [n_keys], [n_unique] */
    uint8_t *group;                      /* [n_unique] */
};

static int regroup_init(const struct batch *b, struct batch_scratch *memory,
                        struct regroup *ret)
{
    const size_t n = b->n_unique, n_keys = b->n_keys;
    uint64_t *block = reserve(memory, n * sizeof *ret->unique +
                                          (2 * n + 1 + n_keys) * sizeof *ret->starts + n);

    if (!block)
        return -ENOMEM;
    ret->unique = block;
    ret->starts = (uint32_t *)(void *)(block + n);
    ret->order = ret->starts + n + 1;
    ret->new_rank = ret->order + n_keys;
    ret->group = (uint8_t *)(ret->new_rank + n);
    memcpy(ret->unique, b->unique, n * sizeof *b->unique);
    memcpy(ret->starts, b->order_starts, (n + 1) * sizeof *b->order_starts);
    memcpy(ret->order, b->order, n_keys * sizeof *b->order);
    return 0;
}

/* The group of each key: that of a bag it is in. Keys of different groups are different (field_tables.h). */
static void find_groups(const struct batch *b, uint8_t *group)
{
    uint32_t bag = 0, at = 0;

    for (uint32_t i = 0; i < b->n; i++)
        for (uint32_t f = 0; f < b->n_fields; f++, bag++)
            for (; at < b->starts[bag + 1]; at++)
                group[b->row_of[at]] = b->groups->of_field[f];
    assert(at == b->n_keys);
}

/* Keys that are in order stay so within their group. */
static int order_by_group(struct batch *b, struct batch_scratch *memory)
{
    uint32_t next[BATCH_GROUPS_MAX + 1] = { 0 }, n_before = 0;
    struct regroup r;

    if (regroup_init(b, memory, &r))
        return -ENOMEM;
    find_groups(b, r.group);
    for (uint32_t u = 0; u < b->n_unique; u++)
        next[r.group[u] + 1]++;
    for (uint32_t g = 0; g < b->groups->n; g++)
        next[g + 1] += next[g];
    memcpy(b->group_starts, next, (b->groups->n + 1) * sizeof *next);
    for (uint32_t u = 0; u < b->n_unique; u++) {
        r.new_rank[u] = next[r.group[u]]++;
        b->unique[r.new_rank[u]] = r.unique[u];
        b->order_starts[r.new_rank[u]] = r.starts[u + 1] - r.starts[u];
    }
    for (uint32_t u = 0; u < b->n_unique; u++) {
        const uint32_t n = b->order_starts[u];

        b->order_starts[u] = n_before;
        n_before += n;
    }
    for (uint32_t u = 0; u < b->n_unique; u++)
        memcpy(b->order + b->order_starts[r.new_rank[u]], r.order + r.starts[u],
               (r.starts[u + 1] - r.starts[u]) * sizeof *r.order);
    for (uint32_t i = 0; i < b->n_keys; i++)
        b->row_of[i] = r.new_rank[b->row_of[i]];
    return 0;
}

static int dedup(struct batch *b, struct batch_scratch *memory)
{
    enum numbered numbered = TOO_MANY;
    struct scratch s;
    uint32_t n = 0;

    if (b->n_keys == 0)
        return 0;
    for (unsigned bits = first_bits(b, memory); numbered == TOO_MANY; bits++) {
        if (lay_out(memory, bits, &s))
            return -ENOMEM;
        numbered = number_keys(b, &s, &n);
        memory->bits = bits;
    }
    if (numbered == NO_HASHES)
        return dedup_by_sort(b, memory);
    b->n_unique = n;
    sort_slots(&s);
    write_unique(b, s.found, s.places);
    write_positions(b, s.places);
    return 0;
}

int batch_dedup_with(struct batch *b, struct batch_scratch *memory)
{
    int status;

    b->n_unique = 0;
    b->order_starts[0] = 0;
    memset(b->group_starts, 0, sizeof b->group_starts);
    status = dedup(b, memory);
    return status || !b->groups ? status : order_by_group(b, memory);
}

int batch_dedup(struct batch *b)
{
    return batch_dedup_with(b, &b->scratch);
}

void batch_scratch_deinit(struct batch_scratch *memory)
{
    free(memory->memory);
    *memory = (struct batch_scratch){ 0 };
}
