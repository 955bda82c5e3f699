#include "server/core/table_grow.h"

#include <string.h>

#include "server/core/table_mem.h"

#define SHIFT_FIRST 6u /* a page of lines */
#define SHIFT_MAX 24u

#define DIRECTORY_SPARE 16u /* entries for each segment, at most */

#define DEAL_AHEAD 4u /* lines whose rows are asked for before their turn */

/* As many keys as a segment has before it grows: the last places are far to find. */
static uint64_t keys_max(const struct table_segment *segment)
{
    return table_segment_n_places(segment) - table_segment_n_places(segment) / 256;
}

static size_t lines_bytes(uint32_t shift)
{
    return sizeof(struct table_line) << shift;
}

/* Zeroed lines. */
static int lines_new(struct table_index *x, uint32_t shift, struct table_line **ret_lines)
{
    struct table_line *lines = x->free_lines;
    uint64_t number;
    void *pages;
    int status;

    if (shift != TABLE_INDEX_LINES_SHIFT) {
        status = table_mem_map(&x->budget, lines_bytes(shift), &pages);
        if (!status)
            *ret_lines = pages;
        return status;
    }
    if (lines) {
        memcpy(&x->free_lines, lines, sizeof(void *));
        memset(lines, 0, lines_bytes(shift));
    } else {
        status = table_slab_next(&x->lines, &number);
        if (status)
            return status;
        lines = table_slab_at(&x->lines, number);
    }
    *ret_lines = lines;
    return 0;
}

/* The first bytes of free lines lead to the next such. */
static void lines_give(struct table_index *x, struct table_line *lines, uint32_t shift)
{
    if (shift != TABLE_INDEX_LINES_SHIFT) {
        table_mem_unmap(&x->budget, lines, lines_bytes(shift));
        return;
    }
    memcpy(lines, &x->free_lines, sizeof(void *));
    x->free_lines = lines;
}

static int grow_directory(struct table_index *x)
{
    uint64_t n = UINT64_C(1) << x->depth;
    void *block = x->directory;
    int status = table_mem_grow(&x->budget, &block, n * sizeof *x->directory,
                                2 * n * sizeof *x->directory);

    if (status)
        return status;
    x->directory = block;
    for (uint64_t i = n; i-- > 0;)
        x->directory[2 * i] = x->directory[2 * i + 1] = x->directory[i];
    x->depth++;
    return 0;
}

/* Room for one more segment. */
static int grow_segments(struct table_index *x)
{
    uint32_t cap = x->segments_cap ? x->segments_cap * 2 : 4;
    void *block = x->segments;
    int status;

    if (x->n_segments < x->segments_cap)
        return 0;
    status = table_mem_grow(&x->budget, &block, x->segments_cap * sizeof *x->segments,
                            cap * sizeof *x->segments);
    if (status)
        return status;
    x->segments = block;
    x->segments_cap = cap;
    return 0;
}

static int make_first(struct table_index *x)
{
    void *block = x->directory;
    struct table_line *lines;
    int status = grow_segments(x);

    if (!status && !block)
        status = table_mem_grow(&x->budget, &block, 0, sizeof *x->directory);
    if (status)
        return status;
    x->directory = block;
    x->directory[0] = 0;
    status = lines_new(x, SHIFT_FIRST, &lines);
    if (status)
        return status;
    x->segments[0] = (struct table_segment){ .lines = lines, .lines_shift = SHIFT_FIRST };
    x->n_segments = 1;
    x->n_places = table_segment_n_places(&x->segments[0]);
    return 0;
}

/* All keys of a line into to[0], or into to[1] where bit `depth` of x, from above, is 1. */
static void deal_line(const struct table_slabs *rows, const struct table_line *line,
                      struct table_segment *to, uint32_t depth)
{
    for (uint32_t i = 0; i < TABLE_SEGMENT_LINE_PLACES; i++) {
        const struct row *row;
        uint64_t hash;

        if (!line->tags[i])
            continue;
        row = table_slab_at(rows, line->numbers[i]);
        hash = hash_mix(row->key);
        table_segment_put(&to[table_index_prefix(hash, depth) & 1], hash, line->numbers[i]);
    }
}

/* All keys of `from`; depth 0: all into to[0]. (The prefetch stands here and not in a function of
 * its own, because gcc 12 drops calls of functions that do nothing else.) */
static void deal(const struct table_slabs *rows, const struct table_segment *from,
                 struct table_segment *to, uint32_t depth)
{
    uint64_t n_lines = table_segment_n_lines(from);

    for (uint64_t at = 0; at < n_lines + DEAL_AHEAD; at++) {
        for (uint32_t i = 0; at < n_lines && i < TABLE_SEGMENT_LINE_PLACES; i++)
            if (from->lines[at].tags[i])
                __builtin_prefetch(table_slab_at(rows, from->lines[at].numbers[i]));
        if (at >= DEAL_AHEAD)
            deal_line(rows, &from->lines[at - DEAL_AHEAD], to, depth);
    }
}

/* The segment gets twice the lines. */
static int enlarge(struct table_index *x, const struct table_slabs *rows,
                   struct table_segment *segment)
{
    struct table_segment to = { .lines_shift = (uint8_t)(segment->lines_shift + 1),
                                .depth = segment->depth };
    int status = -ENOMEM;

    if (segment->lines_shift < SHIFT_MAX)
        status = lines_new(x, to.lines_shift, &to.lines);
    if (status)
        return status;
    deal(rows, segment, &to, 0);
    x->n_places += table_segment_n_places(segment);
    lines_give(x, segment->lines, segment->lines_shift);
    *segment = to;
    return 0;
}

/* The segment of that hash becomes two, between which the directory has room to tell. */
static int split(struct table_index *x, const struct table_slabs *rows, uint64_t hash)
{
    struct table_segment *from, to[2];
    uint64_t first, n;
    int status = grow_segments(x);

    if (status)
        return status;
    from = table_index_segment(x, hash);
    to[0] = (struct table_segment){ .lines_shift = from->lines_shift,
                                    .depth = (uint8_t)(from->depth + 1) };
    to[1] = to[0];
    status = lines_new(x, from->lines_shift, &to[0].lines);
    if (status)
        return status;
    status = lines_new(x, from->lines_shift, &to[1].lines);
    if (status) {
        lines_give(x, to[0].lines, from->lines_shift);
        return status;
    }
    deal(rows, from, to, to[0].depth);
    n = UINT64_C(1) << (x->depth - to[1].depth);
    first = (table_index_prefix(hash, from->depth) * 2 + 1) * n;
    for (uint64_t i = first; i < first + n; i++)
        x->directory[i] = x->n_segments;
    x->n_places += table_segment_n_places(from);
    lines_give(x, from->lines, from->lines_shift);
    *from = to[0];
    x->segments[x->n_segments++] = to[1];
    x->n_splits++;
    return 0;
}

static int make_room(struct table_index *x, const struct table_slabs *rows, uint64_t hash)
{
    struct table_segment *segment = table_index_segment(x, hash);
    uint64_t directory_max = (uint64_t)DIRECTORY_SPARE * (x->n_segments + 1);
    int status = 0;

    if (segment->lines_shift < TABLE_INDEX_LINES_SHIFT)
        return enlarge(x, rows, segment);
    if (segment->depth == x->depth) {
        if (x->depth == 32 || UINT64_C(2) << x->depth > directory_max)
            return enlarge(x, rows, segment);
        status = grow_directory(x);
    }
    return status ? status : split(x, rows, hash);
}

/*
 * Where keys come and go, ever more stand far from home: what was displaced stays so when its
 * place is free again. Then all keys are dealt out anew; half a millisecond at most, and paid by
 * the thousands of keys that have come and gone since the last time.
 */
static void tidy(struct table_index *x, const struct table_slabs *rows,
                 struct table_segment *segment)
{
    struct table_segment to = { .lines_shift = segment->lines_shift, .depth = segment->depth };
    uint64_t n_lines = table_segment_n_lines(segment);

    if (segment->n_passed <= n_lines || segment->n_taken < n_lines ||
        segment->n_passed <= 2 * (uint64_t)segment->n_dealt)
        return;
    segment->n_taken = 0; /* without memory it is tried again after as many */
    if (lines_new(x, to.lines_shift, &to.lines) != 0)
        return;
    deal(rows, segment, &to, 0);
    to.n_dealt = to.n_passed;
    lines_give(x, segment->lines, segment->lines_shift);
    *segment = to;
}

int table_grow_reserve(struct table_index *x, const struct table_slabs *rows, uint64_t key)
{
    const struct table_segment *segment;
    uint64_t hash = hash_mix(key);
    int status = x->n_segments ? 0 : make_first(x);

    if (!x->n_segments)
        return status;
    tidy(x, rows, table_index_segment(x, hash));
    while (!status) {
        segment = table_index_segment(x, hash);
        if (segment->n_keys < keys_max(segment))
            return 0;
        status = make_room(x, rows, hash);
    }
    return status;
}

/* The hashes that lead to the segment of u, a fraction of 2^32 (table_index.h), are those up to here. */
static uint64_t segment_end(const struct table_index *x, uint64_t u)
{
    const struct table_segment *segment = table_index_segment(x, u << 20);
    uint64_t low = u, high = UINT64_C(1) << 32;

    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        if (table_index_segment(x, middle << 20) == segment)
            low = middle;
        else
            high = middle;
    }
    return high;
}

void table_grow_ahead(struct table_index *x, const struct table_slabs *rows, uint64_t n_keys)
{
    uint64_t u = 0;

    if (x->n_segments || make_first(x) != 0)
        return;
    while (u < UINT64_C(1) << 32) {
        const struct table_segment *segment = table_index_segment(x, u << 20);
        uint64_t end = segment_end(x, u), n_places = table_segment_n_places(segment);
        double n = (double)n_keys * (double)(end - u) / 0x1p32;

        /* Some get more than their share: 5 standard deviations of 12,000 are a 22nd. */
        if (n <= (double)n_places * (1 - 1.0 / 22))
            u = end;
        else if (make_room(x, rows, u << 20) != 0)
            return;
    }
}
