/*
 * A segment of the index, its lines, and what of a key's hash says where in it the key belongs;
 * for table*.c alone. Of hash_mix(key),
 *
 *     bits 63..52  chose the shard (proto/route.h): they are the same for many keys here
 *     bits 51..20  are u, which the directory is about (table_index.h)
 *     bits 63.. 8  choose the line, by the lowest as many as the segment needs
 *     bits  7.. 0  are the tag; 0 is turned to 1, because a tag of 0 is an empty place
 *
 *     segment    2^lines_shift lines
 *     line       [ 12 tags u8 | n_passed u32 | 12 row numbers u32 ]: 64 bytes
 *
 * A line that is full sends keys on to others of its segment, by steps that depend on the tag,
 * and counts them in each line that they pass, as F14 does (Bronson, Shi, "Open-sourcing F14 for
 * faster, more memory-efficient hash tables", 2019): a search ends at a line that none has
 * passed, and removal leaves no tombstone.
 */
#ifndef SERVER_CORE_TABLE_SEGMENT_H
#define SERVER_CORE_TABLE_SEGMENT_H

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "common/base.h"
#include "common/hash.h"

#define TABLE_SEGMENT_LINE_PLACES 12u

struct table_line {
    uint8_t tags[TABLE_SEGMENT_LINE_PLACES]; /* 0: the place is empty */
    uint32_t n_passed;                       /* keys that came by here and stand further on */
    uint32_t numbers[TABLE_SEGMENT_LINE_PLACES];
};

struct table_segment {
    struct table_line *lines; /* owned by the index */
    uint32_t n_keys;
    uint32_t n_passed;   /* of all lines */
    uint32_t n_dealt;    /* n_passed when all keys were last dealt out; 0: they never were */
    uint32_t n_taken;    /* keys taken out since */
    uint8_t lines_shift; /* log2 of the number of lines */
    uint8_t depth;       /* how many upper bits of x all its keys share (table_index.h) */
};

static inline uint64_t table_segment_n_lines(const struct table_segment *segment)
{
    return UINT64_C(1) << segment->lines_shift;
}

static inline uint64_t table_segment_n_places(const struct table_segment *segment)
{
    return TABLE_SEGMENT_LINE_PLACES * table_segment_n_lines(segment);
}

static inline uint8_t table_segment_tag(uint64_t hash)
{
    return (uint8_t)(hash | !(hash & 0xff));
}

/* Where the search begins, in a segment of any size. */
static inline uint64_t table_segment_home(uint64_t hash)
{
    return hash >> 8;
}

/* From there from line to line; odd, so that it comes to all of them. */
static inline uint64_t table_segment_step(uint64_t hash)
{
    return 2 * (uint64_t)table_segment_tag(hash) + 1;
}

static inline struct table_line *table_segment_line(const struct table_segment *segment,
                                                    uint64_t at)
{
    return &segment->lines[at & (table_segment_n_lines(segment) - 1)];
}

/* Bit i is set where tags[i] == tag: the definition of the next. */
static inline uint32_t table_segment_match_plain(const struct table_line *line, uint8_t tag)
{
    uint32_t bits = 0;

    for (uint32_t i = 0; i < TABLE_SEGMENT_LINE_PLACES; i++)
        bits |= (uint32_t)(line->tags[i] == tag) << i;
    return bits;
}

static inline uint32_t table_segment_match(const struct table_line *line, uint8_t tag)
{
#ifdef __SSE2__
    __m128i tags = _mm_loadu_si128((const __m128i *)(const void *)line);

    return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8((char)tag))) &
           ((1u << TABLE_SEGMENT_LINE_PLACES) - 1);
#else
    return table_segment_match_plain(line, tag);
#endif
}

/* Into the first line on its way that has a place; there must be one in the segment. */
static inline void table_segment_put(struct table_segment *segment, uint64_t hash,
                                     uint32_t number)
{
    uint64_t at = table_segment_home(hash);
    struct table_line *line = table_segment_line(segment, at);
    uint32_t empty, i;

    while (!(empty = table_segment_match(line, 0))) {
        line->n_passed++;
        segment->n_passed++;
        at += table_segment_step(hash);
        line = table_segment_line(segment, at);
    }
    i = (uint32_t)__builtin_ctz(empty);
    line->tags[i] = table_segment_tag(hash);
    line->numbers[i] = number;
    segment->n_keys++;
}

#endif
