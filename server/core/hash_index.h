/*
 * Key -> row number, for table.c alone: extendible hashing (Fagin, Nievergelt, Pippenger, Strong,
 * 1979) over segments. The directory is indexed by the upper `depth` bits of
 *
 *     x = 2 (1 - 2^-u),  u and x in [0, 1)
 *
 * where u is 32 bits of the key's hash. The skew from u to x leads twice as many keys to one end of x as
 * to the other. So splits come one after another, as many with each million keys, and the share of
 * places in use stays what it is: ln 2 of what a segment holds when it splits. Without it all segments
 * would fill at the same moment.
 *
 *     no segment yet                     one of 64 lines
 *     a full one of fewer than 1024      gets twice the lines
 *     a full one of 1024 lines (64 KiB)  becomes two, by the next bit of x
 *     that would make the directory      gets twice the lines: keys that agree in so many bits
 *     larger than 16 x the segments      were chosen on purpose
 *
 * A split distributes all keys of one segment and reads the head of each of its 12,000 rows: well under a millisecond.
 * No growth costs more, except of the last kind.
 *
 * A segment, its lines, and the place of a key in it by its hash. Of hash_mix(key),
 *
 *     bits 63..52  chose the shard (proto/placement.h): they are the same for many keys here
 *     bits 51..20  are u, which the directory is about (hash_index.h)
 *     bits 63.. 8  choose the line, by the lowest as many as the segment needs
 *     bits  7.. 0  are the tag; 0 is turned to 1, because a tag of 0 is an empty place
 *
 *     segment    2^lines_shift lines
 *     line       [ 12 tags u8 | n_passed u32 | 12 row numbers u32 ]: 64 bytes
 *
 * A key that finds its line full goes on to other lines of the segment, by steps that depend on the tag, and is
 * counted in each line that it passes, as in F14 (Bronson, Shi, "Open-sourcing F14 for faster, more memory-efficient
 * hash tables", 2019). A search ends at a line that no key has passed, and removal leaves no tombstone.
 */
#ifndef SERVER_CORE_HASH_INDEX_H
#define SERVER_CORE_HASH_INDEX_H

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "common/hash.h"
#include "server/core/row.h"
#include "server/core/slab.h"

#define HASH_INDEX_GROUP_MAX 128u
#define HASH_INDEX_LINE_PLACES 12u
#define HASH_INDEX_LINES_SHIFT 10u /* of a segment of the usual size: 64 KiB */

struct hash_index_line {
    uint8_t tags[HASH_INDEX_LINE_PLACES]; /* 0: the place is empty */
    uint32_t n_passed;                    /* keys that came by here and stand further on */
    uint32_t numbers[HASH_INDEX_LINE_PLACES];
};

struct hash_index_segment {
    struct hash_index_line *lines; /* owned by the index */
    uint32_t n_keys;
    uint32_t n_passed; /* of all lines */
    uint32_t
        n_passed_then;   /* n_passed when all keys were last distributed; 0: they never were */
    uint32_t n_taken;    /* keys taken out since */
    uint8_t lines_shift; /* log2 of the number of lines */
    uint8_t depth;       /* how many upper bits of x all its keys share (hash_index.h) */
};

static inline uint64_t hash_index_n_lines(const struct hash_index_segment *segment)
{
    return UINT64_C(1) << segment->lines_shift;
}

static inline uint64_t hash_index_n_places(const struct hash_index_segment *segment)
{
    return HASH_INDEX_LINE_PLACES * hash_index_n_lines(segment);
}

static inline uint8_t hash_index_tag(uint64_t hash)
{
    return (uint8_t)(hash | !(hash & 0xff));
}

/* The line at which a search begins, in a segment of any size. */
static inline uint64_t hash_index_home(uint64_t hash)
{
    return hash >> 8;
}

/* From there from line to line; odd, so that it comes to all of them. */
static inline uint64_t hash_index_step(uint64_t hash)
{
    return 2 * (uint64_t)hash_index_tag(hash) + 1;
}

static inline struct hash_index_line *hash_index_line(const struct hash_index_segment *segment,
                                                      uint64_t at)
{
    return &segment->lines[at & (hash_index_n_lines(segment) - 1)];
}

/* Bit i is set where tags[i] == tag: the definition of the next. */
static inline uint32_t hash_index_match_plain(const struct hash_index_line *line, uint8_t tag)
{
    uint32_t bits = 0;

    for (uint32_t i = 0; i < HASH_INDEX_LINE_PLACES; i++)
        bits |= (uint32_t)(line->tags[i] == tag) << i;
    return bits;
}

static inline uint32_t hash_index_match(const struct hash_index_line *line, uint8_t tag)
{
#ifdef __SSE2__
    __m128i tags = _mm_loadu_si128((const __m128i *)(const void *)line);

    return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8((char)tag))) &
           ((1u << HASH_INDEX_LINE_PLACES) - 1);
#else
    return hash_index_match_plain(line, tag);
#endif
}

/* Into the first line on its way that has a place; there must be one in the segment. */
static inline void hash_index_segment_put(struct hash_index_segment *segment, uint64_t hash,
                                          uint32_t number)
{
    uint64_t at = hash_index_home(hash);
    struct hash_index_line *line = hash_index_line(segment, at);
    uint32_t empty, i;

    while (!(empty = hash_index_match(line, 0))) {
        line->n_passed++;
        segment->n_passed++;
        at += hash_index_step(hash);
        line = hash_index_line(segment, at);
    }
    i = (uint32_t)__builtin_ctz(empty);
    line->tags[i] = hash_index_tag(hash);
    line->numbers[i] = number;
    segment->n_keys++;
}

/* A few keys on their way through a lookup (table_group_begin()), so that callers can have several on their
 * stacks. The fields are the index's own. */
struct hash_index_group {
    const uint64_t *keys; /* borrowed: n_keys of them */
    struct row **rows;    /* borrowed: the answers */
    uint32_t n_keys;
    uint64_t n_changes; /* of the table, when it began */
    uint64_t hashes[HASH_INDEX_GROUP_MAX];
    const struct hash_index_line *lines[HASH_INDEX_GROUP_MAX]; /* where the search stands */
};

struct hash_index {
    uint32_t *directory; /* owned: 2^depth numbers of segments; NULL while there is none */
    uint32_t depth;
    uint32_t n_segments, segments_cap;
    struct hash_index_segment *segments; /* owned */
    struct slab lines;                   /* the lines of segments of the usual size */
    void *free_lines;                    /* of those, for the next split; a list */
    uint64_t n_places, n_splits;
    struct memory_budget budget; /* used: the bytes of the whole index */
};

/* The upper n_bits of x: u + u (1 - u) (a + b (1 - u)). At its ends it has the slopes of the exact x, 2 ln 2 and ln 2;
 * it is within 0.001 of it. All in fractions of 2^32. */
static inline uint64_t hash_index_prefix(uint64_t hash, uint32_t n_bits)
{
    const uint64_t a = 1317922824, b = 341198823; /* 1 - ln 2, 3 ln 2 - 2 */
    uint64_t u = (uint32_t)(hash >> 20), rest = (uint32_t)~u;
    uint64_t x = u + ((u * rest >> 32) * (a + (b * rest >> 32)) >> 32);

    return x >> (32 - n_bits);
}

/* There must be a segment. */
static inline struct hash_index_segment *hash_index_segment(const struct hash_index *x,
                                                            uint64_t hash)
{
    return &x->segments[x->directory[hash_index_prefix(hash, x->depth)]];
}

/* In the caller's memory; holds nothing yet. `parent` is borrowed for its life. */
void hash_index_init(struct hash_index *x, struct memory_budget *parent);

/* Gives all back. */
void hash_index_deinit(struct hash_index *x);

/* rows[i] = the row of keys[i] or NULL. `rows` is where the row numbers lead. */
void hash_index_find(const struct hash_index *x, const struct slab *rows, const uint64_t *keys,
                     uint32_t n_keys, struct row **ret_rows);

/* The search for one, without looking ahead; NULL. There must be a segment. */
struct row *hash_index_find_one(const struct hash_index *x, const struct slab *rows,
                                uint64_t key, uint64_t hash);

/* Its three rounds: the first prefetches the index lines of g's keys, the second the rows that these
 * name, the third compares keys. There must be a segment, and nothing may change in between. */
void hash_index_prefetch_lines(const struct hash_index *x, struct hash_index_group *g);
void hash_index_prefetch_rows(const struct hash_index *x, const struct slab *rows,
                              struct hash_index_group *g);
void hash_index_compare(const struct hash_index *x, const struct slab *rows,
                        struct hash_index_group *g);

/* The key, which is not there, and for which hash_index_reserve() has made space, has this row. */
void hash_index_put(struct hash_index *x, uint64_t key, uint32_t number);

/* The number of `row`, which is there. */
uint32_t hash_index_number(const struct hash_index *x, const struct slab *rows,
                           const struct row *row);

/* Takes the key of `row`, which is there, out; says the row's number. */
uint32_t hash_index_remove(struct hash_index *x, const struct slab *rows,
                           const struct row *row);

/* table_near() */
uint32_t hash_index_near(const struct hash_index *x, const struct slab *rows, uint64_t key,
                         struct row **ret_rows, uint32_t n_max);

/* A key's place in a scan of the index: the bits that its directory is about come first, then the others. So the
 * keys of a segment are neighbours, however it is split, and the order is a function of the keys alone. */
static inline uint64_t hash_index_order(uint64_t key)
{
    const uint64_t hash = hash_mix(key);

    return hash << 12 | hash >> 52;
}

/* In bytes of a slice (shard.h): a line that a scan looks at, and a row in it. */
#define HASH_INDEX_LINE_COST 16u
#define HASH_INDEX_ROW_COST 20u

/* table_range() */
uint32_t hash_index_range(const struct hash_index *x, const struct slab *rows, uint64_t from,
                          uint32_t n_max, struct row **ret_rows, uint64_t *ret_last,
                          uint64_t *cost);

/* Makes sure that one more key finds a place. PS_EBUDGET or -ENOMEM: there is no place; existing keys are found as
 * before. */
int hash_index_reserve(struct hash_index *x, const struct slab *rows, uint64_t key) MUST_CHECK;

/* Of an empty index: segments for about n_keys keys, so that on the way there none has to be distributed. As far
 * as memory and budget reach. */
void hash_index_expect(struct hash_index *x, const struct slab *rows, uint64_t n_keys);

#endif
