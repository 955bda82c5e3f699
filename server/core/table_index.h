/*
 * Key -> row number, for table*.c alone: extendible hashing (Fagin, Nievergelt, Pippenger, Strong,
 * 1979) over segments. The directory is indexed by the upper `depth` bits of
 *
 *     x = 2 (1 - 2^-u),  u and x in [0, 1)
 *
 * where u is 32 bits of the key's hash. A full segment becomes two, by the next bit of x
 * (table_grow.h). The skew from u to x leads twice as many keys to one end of x as to the other, and
 * just so many between that splits come one after another, as many with each million keys, and
 * the share of places in use stays what it is: ln 2 of what a segment holds when it splits. Without
 * it all segments would fill at the same moment.
 */
#ifndef SERVER_CORE_TABLE_INDEX_H
#define SERVER_CORE_TABLE_INDEX_H

#include "server/core/table_group.h"
#include "server/core/table_segment.h"
#include "server/core/table_slab.h"

#define TABLE_INDEX_LINES_SHIFT 10u /* of a segment of the usual size: 64 KiB */

struct table_index {
    uint32_t *directory; /* owned: 2^depth numbers of segments; NULL while there is none */
    uint32_t depth;
    uint32_t n_segments, segments_cap;
    struct table_segment *segments; /* owned */
    struct table_slabs lines;       /* the lines of segments of the usual size */
    void *free_lines;               /* of those, for the next split; table_grow.c's list */
    uint64_t n_places, n_splits;
    struct budget budget; /* used: what all this holds */
};

/* The upper n_bits of x: u + u (1 - u) (a + b (1 - u)), which has the slopes of the exact x, 2 ln 2
 * and ln 2, at its ends, and is within 0.001 of it. All in fractions of 2^32. */
static inline uint64_t table_index_prefix(uint64_t hash, uint32_t n_bits)
{
    const uint64_t a = 1317922824, b = 341198823; /* 1 - ln 2, 3 ln 2 - 2 */
    uint64_t u = (uint32_t)(hash >> 20), rest = (uint32_t)~u;
    uint64_t x = u + ((u * rest >> 32) * (a + (b * rest >> 32)) >> 32);

    return x >> (32 - n_bits);
}

/* There must be a segment. */
static inline struct table_segment *table_index_segment(const struct table_index *x,
                                                        uint64_t hash)
{
    return &x->segments[x->directory[table_index_prefix(hash, x->depth)]];
}

/* In the caller's memory; holds nothing yet. `parent` is borrowed for its life. */
void table_index_init(struct table_index *x, struct budget *parent);

/* Gives all back. */
void table_index_deinit(struct table_index *x);

/* rows[i] = the row of keys[i] or NULL. `rows` is where the row numbers lead. */
void table_index_find(const struct table_index *x, const struct table_slabs *rows,
                      const uint64_t *keys, uint32_t n_keys, struct row **ret_rows);

/* The search for one, without looking ahead; NULL. There must be a segment. */
struct row *table_index_find_one(const struct table_index *x, const struct table_slabs *rows,
                                 uint64_t key, uint64_t hash);

/* Its three rounds: the first asks for the lines of g's keys, the second for the rows that these
 * name, the third compares keys. There must be a segment, and nothing may change in between. */
void table_index_ask_lines(const struct table_index *x, struct table_group *g);
void table_index_ask_rows(const struct table_index *x, const struct table_slabs *rows,
                          struct table_group *g);
void table_index_compare(const struct table_index *x, const struct table_slabs *rows,
                         struct table_group *g);

/* The key, which is not there, and for which table_grow_reserve() has made room, has this row. */
void table_index_put(struct table_index *x, uint64_t key, uint32_t number);

/* The number of `row`, which is there. */
uint32_t table_index_number(const struct table_index *x, const struct table_slabs *rows,
                            const struct row *row);

/* Takes the key of `row`, which is there, out; says the row's number. */
uint32_t table_index_take(struct table_index *x, const struct table_slabs *rows,
                          const struct row *row);

/* table_near() */
uint32_t table_index_near(const struct table_index *x, const struct table_slabs *rows,
                          uint64_t key, struct row **ret_rows, uint32_t n_max);

#endif
