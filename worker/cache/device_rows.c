#include "worker/cache/device_rows.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/core/table.h"
#include "worker/cache/eviction.h"

#define BATCH 64u
#define NO_PLACE DEVICE_ROWS_NO_PLACE

/* What a row of the index has in place of floats. Its number is the place. */
struct entry {
    uint64_t version; /* of what was copied to the place: no other row of it has the same */
    uint32_t arrival; /* its payload among the arrivals, from 1; 0: the device has the row */
} __attribute__((packed, aligned(4)));

/* Places and versions of the keys of a pull, so that they are looked up once. */
struct lookup {
    const uint64_t *keys; /* borrowed */
    uint32_t n, cap;
    uint32_t *places;   /* owned; NO_PLACE: to be looked up again */
    uint64_t *versions; /* owned */
};

struct device_rows {
    struct device_rows_options options;
    struct table *rows;     /* owned: key -> entry */
    struct table *unplaced; /* owned: likewise, of rows without a place */
    struct eviction eviction;
    uint64_t turn, n_versions;
    bool is_read;    /* and no step has begun since */
    float *arrivals; /* owned, cap_arrivals payloads */
    uint64_t *arrived_keys;
    uint32_t n_arrivals, cap_arrivals;
    struct lookup lookup;  /* by the last device_rows_missing() */
    struct lookup current; /* of the last pull */
};

static struct entry *entry_of(struct row *row)
{
    return (struct entry *)(void *)row->floats;
}

static uint32_t payload_floats(const struct device_rows *d)
{
    return d->options.dim + d->options.n_states;
}

static struct table *new_table(void)
{
    struct table *t;

    return table_new(&t, sizeof(struct entry), 0, NULL) ? NULL : t;
}

static void free_lookup(struct lookup *l)
{
    free(l->places);
    free(l->versions);
    *l = (struct lookup){ 0 };
}

struct device_rows *device_rows_new(const struct device_rows_options *options)
{
    struct device_rows *d = memory_try_alloc(sizeof *d);

    if (!d)
        return NULL;
    *d = (struct device_rows){ .options = *options, .turn = 1 };
    d->rows = new_table();
    d->unplaced = new_table();
    if (d->rows && d->unplaced)
        return d;
    device_rows_free(d);
    return NULL;
}

void device_rows_free(struct device_rows *d)
{
    if (!d)
        return;
    table_free(d->rows);
    table_free(d->unplaced);
    free(d->arrivals);
    free(d->arrived_keys);
    free_lookup(&d->lookup);
    free_lookup(&d->current);
    free(d);
}

int device_rows_clear(struct device_rows *d)
{
    table_free(d->rows);
    table_free(d->unplaced);
    d->rows = new_table();
    d->unplaced = new_table();
    d->eviction = (struct eviction){ 0 };
    d->n_arrivals = 0;
    d->is_read = false;
    d->lookup.n = d->current.n = 0;
    return d->rows && d->unplaced ? 0 : -ENOMEM;
}

bool device_rows_begin_turn(struct device_rows *d)
{
    device_rows_pushed(d);
    d->turn++;
    return !d->is_read;
}

uint64_t device_rows_n_rows(const struct device_rows *d)
{
    return d->rows ? table_n_rows(d->rows) : 0;
}

static void lose(struct device_rows *d, struct table *t, struct row *row)
{
    d->options.lost(d->options.arg, row->key);
    table_remove(t, row);
}

/* ---- which rows are there ---- */

static struct row *find(const struct table *t, uint64_t key)
{
    struct row *row;

    table_find_batch(t, &key, 1, &row);
    return row;
}

/* Without memory for it nothing is noted, and all is looked up again. */
static bool reserve_lookup(struct lookup *l, const uint64_t *keys, uint32_t n)
{
    l->keys = keys;
    l->n = 0;
    if (n > l->cap) {
        free_lookup(l);
        l->places = memory_try_alloc(n * sizeof *l->places);
        l->versions = memory_try_alloc(n * sizeof *l->versions);
        l->cap = l->places && l->versions ? n : 0;
        l->keys = keys;
    }
    if (n > l->cap)
        return false;
    l->n = n;
    return true;
}

/* A row that waits on the host is looked up again, to be read. */
static void note(const struct device_rows *d, struct lookup *l, uint32_t i, struct row *row)
{
    const bool is_there = row && !entry_of(row)->arrival;

    l->places[i] = is_there ? table_number(d->rows, row) : NO_PLACE;
    l->versions[i] = is_there ? entry_of(row)->version : 0;
}

uint32_t device_rows_missing(struct device_rows *d, const uint64_t *keys, uint32_t n,
                             uint64_t *ret_keys)
{
    const bool notes = reserve_lookup(&d->lookup, keys, n);
    struct row *rows[BATCH];
    uint32_t n_missing = 0;

    for (uint32_t from = 0; from < n; from += BATCH) {
        const uint32_t n_batch = n - from < BATCH ? n - from : BATCH;

        table_find_batch(d->rows, keys + from, n_batch, rows);
        for (uint32_t i = 0; i < n_batch; i++) {
            const uint64_t key = keys[from + i];

            if (notes)
                note(d, &d->lookup, from + i, rows[i]);
            if (rows[i])
                rows[i]->stamp = row_stamp(d->turn, 0, 0);
            else if (!find(d->unplaced, key))
                ret_keys[n_missing++] = key;
        }
    }
    return n_missing;
}

/* ---- rows arrive ---- */

static int reserve_arrival(struct device_rows *d)
{
    const uint32_t cap = d->cap_arrivals ? 2 * d->cap_arrivals : BATCH;
    uint64_t *keys;
    float *arrivals;

    if (d->n_arrivals < d->cap_arrivals)
        return 0;
    keys = memory_try_realloc(d->arrived_keys, cap * sizeof *keys);
    if (!keys)
        return -ENOMEM;
    d->arrived_keys = keys;
    arrivals =
        memory_try_realloc(d->arrivals, (size_t)cap * payload_floats(d) * sizeof *arrivals);
    if (!arrivals)
        return -ENOMEM;
    d->arrivals = arrivals;
    d->cap_arrivals = cap;
    return 0;
}

/* Is there a place for one more row? */
static bool make_space(struct device_rows *d)
{
    struct row *row;

    if (table_n_rows(d->rows) < d->options.n_places)
        return true;
    row = eviction_find(&d->eviction, d->rows, d->turn);
    if (row)
        lose(d, d->rows, row);
    return row != NULL;
}

int device_rows_insert(struct device_rows *d, uint64_t key, const void *payload, bool is_ahead)
{
    const bool has_place = make_space(d);
    struct row *row;

    if (!has_place && is_ahead) {
        d->options.lost(d->options.arg, key);
        return 0;
    }
    if (reserve_arrival(d) || table_insert(has_place ? d->rows : d->unplaced, key, &row))
        return -ENOMEM;
    row->stamp = row_stamp(d->turn, 0, 0);
    *entry_of(row) = (struct entry){ ++d->n_versions, d->n_arrivals + 1 };
    memcpy(d->arrivals + (size_t)d->n_arrivals * payload_floats(d), payload,
           payload_floats(d) * sizeof *d->arrivals);
    d->arrived_keys[d->n_arrivals++] = key;
    assert(!has_place || table_number(d->rows, row) < d->options.n_places);
    return 0;
}

/* ---- rows are read ---- */

/* Of a row with a place; of one that has arrived, all that the device is to copy. */
static void read_row(struct device_rows *d, const struct ps_pull_section *section, uint32_t i)
{
    const uint32_t dim = d->options.dim, n_states = d->options.n_states;
    struct row *row = find(d->rows, section->keys[i]);
    const bool has_place = row != NULL;
    const float *payload;

    if (!row)
        row = find(d->unplaced, section->keys[i]);
    assert(row); /* it has arrived */
    section->places[i] = has_place ? table_number(d->rows, row) : NO_PLACE;
    section->versions[i] = has_place ? entry_of(row)->version : 0;
    if (!entry_of(row)->arrival)
        return;
    payload = d->arrivals + (size_t)(entry_of(row)->arrival - 1) * payload_floats(d);
    memcpy(section->dst + (size_t)i * dim, payload, dim * sizeof *payload);
    if (n_states)
        memcpy(section->states + (size_t)i * n_states, payload + dim,
               n_states * sizeof *payload);
    entry_of(row)->arrival = 0;
}

/* Those that arrived for a batch that is another one now. */
static void drop_arrivals(struct device_rows *d)
{
    for (uint32_t i = 0; i < d->n_arrivals; i++) {
        struct row *row = find(d->rows, d->arrived_keys[i]);

        if (row && entry_of(row)->arrival)
            lose(d, d->rows, row);
    }
    d->n_arrivals = 0;
}

static bool is_of(const struct lookup *l, const uint64_t *keys, uint32_t n)
{
    return l->keys == keys && l->n == n && n;
}

void device_rows_read(struct device_rows *d, const struct ps_pull_section *section)
{
    const bool is_noted = is_of(&d->lookup, section->keys, section->n_keys);
    const struct lookup before = d->current;

    assert(!section->rows && section->codec == CODEC_FP32);
    for (uint32_t i = 0; i < section->n_keys; i++) {
        const bool is_there = is_noted && d->lookup.places[i] != NO_PLACE;

        if (!is_there) {
            read_row(d, section, i);
            continue;
        }
        section->places[i] = d->lookup.places[i];
        section->versions[i] = d->lookup.versions[i];
    }
    drop_arrivals(d);
    d->is_read = true;
    if (is_noted)
        memcpy(d->lookup.places, section->places, section->n_keys * sizeof *section->places);
    d->current = d->lookup;
    d->lookup = before;
    d->current.n = is_noted ? section->n_keys : 0;
    d->lookup.n = 0;
}

/* ---- a step ---- */

/* The device cannot change a row that waits on the host: it is lost. */
static uint32_t place_of(struct device_rows *d, uint64_t key, uint32_t *n_unknown)
{
    struct row *row = find(d->rows, key);

    if (row && !entry_of(row)->arrival)
        return table_number(d->rows, row);
    *n_unknown += !row && !find(d->unplaced, key);
    if (row)
        lose(d, d->rows, row);
    else
        d->options.lost(d->options.arg, key);
    return NO_PLACE;
}

uint32_t device_rows_update(struct device_rows *d, const uint64_t *keys, uint32_t n,
                            uint32_t *ret_places)
{
    const bool is_noted = is_of(&d->current, keys, n);
    uint32_t n_unknown = 0;

    d->is_read = false;
    for (uint32_t i = 0; i < n; i++) {
        const bool is_there = is_noted && d->current.places[i] != NO_PLACE;

        ret_places[i] = is_there ? d->current.places[i] : place_of(d, keys[i], &n_unknown);
    }
    return n_unknown;
}

void device_rows_pushed(struct device_rows *d)
{
    for (uint64_t i = 0; i < table_n_numbers(d->unplaced) && table_n_rows(d->unplaced); i++) {
        struct row *row = table_row(d->unplaced, i);

        if (row)
            lose(d, d->unplaced, row);
    }
}
