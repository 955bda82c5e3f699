#include "server/core/hash_index.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PREFETCH_BYTES_MAX ((size_t)512) /* of a row; callers read all of it next */

#define SHIFT_FIRST 6u /* a page of lines */

#define SHIFT_MAX 24u

#define DIRECTORY_ENTRIES_MAX 16u /* entries for each segment, at most */

#define DISTRIBUTE_AHEAD 4u /* lines whose rows are asked for before their turn */

void hash_index_init(struct hash_index *x, struct memory_budget *parent)
{
    size_t lines_bytes = sizeof(struct hash_index_line) << HASH_INDEX_LINES_SHIFT;

    *x = (struct hash_index){ .budget = { .parent = parent } };
    slab_init(&x->lines, lines_bytes, lines_bytes, &x->budget);
}

void hash_index_deinit(struct hash_index *x)
{
    for (uint32_t i = 0; i < x->n_segments; i++)
        if (x->segments[i].lines_shift != HASH_INDEX_LINES_SHIFT)
            slab_unmap(&x->budget, x->segments[i].lines,
                       sizeof(struct hash_index_line) << x->segments[i].lines_shift);
    slab_deinit(&x->lines);
    free(x->segments);
    free(x->directory);
    memory_budget_release(&x->budget, x->budget.used);
}

void hash_index_prefetch_lines(const struct hash_index *x, struct hash_index_group *g)
{
    for (uint32_t i = 0; i < g->n_keys; i++) {
        uint64_t hash = hash_mix(g->keys[i]);

        g->hashes[i] = hash;
        g->lines[i] = hash_index_line(hash_index_segment(x, hash), hash_index_home(hash));
        __builtin_prefetch(g->lines[i]);
    }
}

/* Key i's row, if this is its line, is asked for, whole; into the second cache, as there are more
 * rows under way than the first one holds. False: the line does not know the tag. */
static inline bool prefetch_row(const struct slab *rows, struct hash_index_group *g, uint32_t i)
{
    const struct hash_index_line *line = g->lines[i];
    uint32_t bits = hash_index_match(line, hash_index_tag(g->hashes[i]));
    size_t n_bytes = rows->thing_bytes;
    const char *at;

    g->rows[i] = NULL;
    if (!bits)
        return false;
    g->rows[i] = slab_at(rows, line->numbers[__builtin_ctz(bits)]);
    at = (const char *)g->rows[i];
    n_bytes = n_bytes < PREFETCH_BYTES_MAX ? n_bytes : PREFETCH_BYTES_MAX;
    /* As often for every row, wherever its lines begin: a loop that no branch predictor loses. */
    for (size_t past = 0; past < n_bytes; past += 64)
        __builtin_prefetch(at + past, 0, 2);
    __builtin_prefetch(at + n_bytes - 1, 0, 2);
    return true;
}

/* Keys that stand in a line further on take a step, side by side, until none is left. */
void hash_index_prefetch_rows(const struct hash_index *x, const struct slab *rows,
                              struct hash_index_group *g)
{
    uint32_t left[HASH_INDEX_GROUP_MAX], n_left = 0;

    for (uint32_t i = 0; i < g->n_keys; i++)
        if (!prefetch_row(rows, g, i) && g->lines[i]->n_passed)
            left[n_left++] = i;
    for (uint64_t n = 1; n_left; n++) {
        uint32_t n_asked = n_left;

        for (uint32_t j = 0; j < n_asked; j++) {
            uint64_t hash = g->hashes[left[j]];
            uint64_t at = hash_index_home(hash) + n * hash_index_step(hash);

            g->lines[left[j]] = hash_index_line(hash_index_segment(x, hash), at);
            __builtin_prefetch(g->lines[left[j]]);
        }
        n_left = 0;
        for (uint32_t j = 0; j < n_asked; j++) {
            uint32_t i = left[j];

            if (!prefetch_row(rows, g, i) && g->lines[i]->n_passed &&
                n < hash_index_n_lines(hash_index_segment(x, g->hashes[i])))
                left[n_left++] = i;
        }
    }
}

struct row *hash_index_find_one(const struct hash_index *x, const struct slab *rows,
                                uint64_t key, uint64_t hash)
{
    const struct hash_index_segment *segment = hash_index_segment(x, hash);
    uint64_t at = hash_index_home(hash);

    for (uint64_t n = 0; n < hash_index_n_lines(segment); n++) {
        const struct hash_index_line *line = hash_index_line(segment, at);
        uint32_t bits = hash_index_match(line, hash_index_tag(hash));

        for (; bits; bits &= bits - 1) {
            struct row *row = slab_at(rows, line->numbers[__builtin_ctz(bits)]);

            if (row->key == key)
                return row;
        }
        if (!line->n_passed)
            return NULL;
        at += hash_index_step(hash);
    }
    return NULL;
}

/* A tag is not a key yet. */
void hash_index_compare(const struct hash_index *x, const struct slab *rows,
                        struct hash_index_group *g)
{
    for (uint32_t i = 0; i < g->n_keys; i++)
        if (g->rows[i] && g->rows[i]->key != g->keys[i])
            g->rows[i] = hash_index_find_one(x, rows, g->keys[i], g->hashes[i]);
}

void hash_index_find(const struct hash_index *x, const struct slab *rows, const uint64_t *keys,
                     uint32_t n_keys, struct row **ret_rows)
{
    uint32_t n_groups = n_keys / HASH_INDEX_GROUP_MAX + (n_keys % HASH_INDEX_GROUP_MAX != 0);
    struct hash_index_group groups[3];

    if (!x->n_segments) {
        for (uint32_t i = 0; i < n_keys; i++)
            ret_rows[i] = NULL;
        return;
    }
    /* In step k group k asks for its lines, the one before for its rows, the one before that
     * compares keys. */
    for (uint32_t k = 0; k < n_groups + 2; k++) {
        if (k < n_groups) {
            struct hash_index_group *g = &groups[k % 3];
            uint32_t first = k * HASH_INDEX_GROUP_MAX;

            g->keys = keys + first;
            g->rows = ret_rows + first;
            g->n_keys =
                n_keys - first < HASH_INDEX_GROUP_MAX ? n_keys - first : HASH_INDEX_GROUP_MAX;
            hash_index_prefetch_lines(x, g);
        }
        if (k >= 1 && k - 1 < n_groups)
            hash_index_prefetch_rows(x, rows, &groups[(k - 1) % 3]);
        if (k >= 2)
            hash_index_compare(x, rows, &groups[(k - 2) % 3]);
    }
}

void hash_index_put(struct hash_index *x, uint64_t key, uint32_t number)
{
    uint64_t hash = hash_mix(key);

    hash_index_segment_put(hash_index_segment(x, hash), hash, number);
}

uint32_t hash_index_number(const struct hash_index *x, const struct slab *rows,
                           const struct row *row)
{
    uint64_t hash = hash_mix(row->key), at = hash_index_home(hash);
    const struct hash_index_segment *segment = hash_index_segment(x, hash);

    for (;; at += hash_index_step(hash)) {
        const struct hash_index_line *line = hash_index_line(segment, at);
        uint32_t bits = hash_index_match(line, hash_index_tag(hash));

        for (; bits; bits &= bits - 1) {
            uint32_t number = line->numbers[__builtin_ctz(bits)];

            if (slab_at(rows, number) == row)
                return number;
        }
        assert(line->n_passed > 0); /* it stands further on */
    }
}

uint32_t hash_index_remove(struct hash_index *x, const struct slab *rows, const struct row *row)
{
    uint64_t hash = hash_mix(row->key), at = hash_index_home(hash);
    struct hash_index_segment *segment = hash_index_segment(x, hash);

    for (;;) {
        struct hash_index_line *line = hash_index_line(segment, at);
        uint32_t bits = hash_index_match(line, hash_index_tag(hash));

        for (; bits; bits &= bits - 1) {
            uint32_t i = (uint32_t)__builtin_ctz(bits);

            if (slab_at(rows, line->numbers[i]) != row)
                continue;
            line->tags[i] = 0;
            segment->n_keys--;
            segment->n_taken++;
            return line->numbers[i];
        }
        assert(line->n_passed > 0); /* it stands further on */
        line->n_passed--;
        segment->n_passed--;
        at += hash_index_step(hash);
    }
}

uint32_t hash_index_near(const struct hash_index *x, const struct slab *rows, uint64_t key,
                         struct row **ret_rows, uint32_t n_max)
{
    const struct hash_index_segment *segment;
    uint64_t hash = hash_mix(key);
    uint32_t n = 0;

    if (!x->n_segments)
        return 0;
    segment = hash_index_segment(x, hash);
    for (uint64_t i = 0; i < hash_index_n_lines(segment); i++) {
        const struct hash_index_line *line =
            hash_index_line(segment, hash_index_home(hash) + i);

        for (uint32_t place = 0; place < HASH_INDEX_LINE_PLACES; place++) {
            if (!line->tags[place])
                continue;
            if (n == n_max)
                return n;
            ret_rows[n] = slab_at(rows, line->numbers[place]);
            __builtin_prefetch(ret_rows[n++]);
        }
    }
    return n;
}

/* --- growth --- */

/* As many keys as a segment has before it grows: the last places are far to find. */
static uint64_t keys_max(const struct hash_index_segment *segment)
{
    return hash_index_n_places(segment) - hash_index_n_places(segment) / 256;
}

static size_t lines_bytes(uint32_t shift)
{
    return sizeof(struct hash_index_line) << shift;
}

/* Zeroed lines. */
static int lines_new(struct hash_index *x, uint32_t shift, struct hash_index_line **ret_lines)
{
    struct hash_index_line *lines = x->free_lines;
    uint64_t number;
    void *pages;
    int status;

    if (shift != HASH_INDEX_LINES_SHIFT) {
        status = slab_map(&x->budget, lines_bytes(shift), &pages);
        if (!status)
            *ret_lines = pages;
        return status;
    }
    if (lines) {
        memcpy(&x->free_lines, lines, sizeof(void *));
        memset(lines, 0, lines_bytes(shift));
    } else {
        status = slab_next(&x->lines, &number);
        if (status)
            return status;
        lines = slab_at(&x->lines, number);
    }
    *ret_lines = lines;
    return 0;
}

/* The first bytes of free lines lead to the next such. */
static void lines_free(struct hash_index *x, struct hash_index_line *lines, uint32_t shift)
{
    if (shift != HASH_INDEX_LINES_SHIFT) {
        slab_unmap(&x->budget, lines, lines_bytes(shift));
        return;
    }
    memcpy(lines, &x->free_lines, sizeof(void *));
    x->free_lines = lines;
}

static int grow_directory(struct hash_index *x)
{
    uint64_t n = UINT64_C(1) << x->depth;
    void *block = x->directory;
    int status = slab_grow_block(&x->budget, &block, n * sizeof *x->directory,
                                 2 * n * sizeof *x->directory);

    if (status)
        return status;
    x->directory = block;
    for (uint64_t i = n; i-- > 0;)
        x->directory[2 * i] = x->directory[2 * i + 1] = x->directory[i];
    x->depth++;
    return 0;
}

/* Space for one more segment. */
static int grow_segments(struct hash_index *x)
{
    uint32_t cap = x->segments_cap ? x->segments_cap * 2 : 4;
    void *block = x->segments;
    int status;

    if (x->n_segments < x->segments_cap)
        return 0;
    status = slab_grow_block(&x->budget, &block, x->segments_cap * sizeof *x->segments,
                             cap * sizeof *x->segments);
    if (status)
        return status;
    x->segments = block;
    x->segments_cap = cap;
    return 0;
}

static int make_first(struct hash_index *x)
{
    void *block = x->directory;
    struct hash_index_line *lines;
    int status = grow_segments(x);

    if (!status && !block)
        status = slab_grow_block(&x->budget, &block, 0, sizeof *x->directory);
    if (status)
        return status;
    x->directory = block;
    x->directory[0] = 0;
    status = lines_new(x, SHIFT_FIRST, &lines);
    if (status)
        return status;
    x->segments[0] = (struct hash_index_segment){ .lines = lines, .lines_shift = SHIFT_FIRST };
    x->n_segments = 1;
    x->n_places = hash_index_n_places(&x->segments[0]);
    return 0;
}

/* All keys of a line into to[0], or into to[1] where bit `depth` of x, from above, is 1. */
static void distribute_line(const struct slab *rows, const struct hash_index_line *line,
                            struct hash_index_segment *to, uint32_t depth)
{
    for (uint32_t i = 0; i < HASH_INDEX_LINE_PLACES; i++) {
        const struct row *row;
        uint64_t hash;

        if (!line->tags[i])
            continue;
        row = slab_at(rows, line->numbers[i]);
        hash = hash_mix(row->key);
        hash_index_segment_put(&to[hash_index_prefix(hash, depth) & 1], hash, line->numbers[i]);
    }
}

/* All keys of `from`; depth 0: all into to[0]. (The prefetch stands here and not in a function of
 * its own, because gcc 12 drops calls of functions that do nothing else.) */
static void distribute(const struct slab *rows, const struct hash_index_segment *from,
                       struct hash_index_segment *to, uint32_t depth)
{
    uint64_t n_lines = hash_index_n_lines(from);

    for (uint64_t at = 0; at < n_lines + DISTRIBUTE_AHEAD; at++) {
        for (uint32_t i = 0; at < n_lines && i < HASH_INDEX_LINE_PLACES; i++)
            if (from->lines[at].tags[i])
                __builtin_prefetch(slab_at(rows, from->lines[at].numbers[i]));
        if (at >= DISTRIBUTE_AHEAD)
            distribute_line(rows, &from->lines[at - DISTRIBUTE_AHEAD], to, depth);
    }
}

/* The segment gets twice the lines. */
static int enlarge(struct hash_index *x, const struct slab *rows,
                   struct hash_index_segment *segment)
{
    struct hash_index_segment to = { .lines_shift = (uint8_t)(segment->lines_shift + 1),
                                     .depth = segment->depth };
    int status = -ENOMEM;

    if (segment->lines_shift < SHIFT_MAX)
        status = lines_new(x, to.lines_shift, &to.lines);
    if (status)
        return status;
    distribute(rows, segment, &to, 0);
    x->n_places += hash_index_n_places(segment);
    lines_free(x, segment->lines, segment->lines_shift);
    *segment = to;
    return 0;
}

/* The segment of that hash becomes two, between which the directory has space to tell. */
static int split(struct hash_index *x, const struct slab *rows, uint64_t hash)
{
    struct hash_index_segment *from, to[2];
    uint64_t first, n;
    int status = grow_segments(x);

    if (status)
        return status;
    from = hash_index_segment(x, hash);
    to[0] = (struct hash_index_segment){ .lines_shift = from->lines_shift,
                                         .depth = (uint8_t)(from->depth + 1) };
    to[1] = to[0];
    status = lines_new(x, from->lines_shift, &to[0].lines);
    if (status)
        return status;
    status = lines_new(x, from->lines_shift, &to[1].lines);
    if (status) {
        lines_free(x, to[0].lines, from->lines_shift);
        return status;
    }
    distribute(rows, from, to, to[0].depth);
    n = UINT64_C(1) << (x->depth - to[1].depth);
    first = (hash_index_prefix(hash, from->depth) * 2 + 1) * n;
    for (uint64_t i = first; i < first + n; i++)
        x->directory[i] = x->n_segments;
    x->n_places += hash_index_n_places(from);
    lines_free(x, from->lines, from->lines_shift);
    *from = to[0];
    x->segments[x->n_segments++] = to[1];
    x->n_splits++;
    return 0;
}

static int grow_segment(struct hash_index *x, const struct slab *rows, uint64_t hash)
{
    struct hash_index_segment *segment = hash_index_segment(x, hash);
    uint64_t directory_max = (uint64_t)DIRECTORY_ENTRIES_MAX * (x->n_segments + 1);
    int status = 0;

    if (segment->lines_shift < HASH_INDEX_LINES_SHIFT)
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
 * place is free again. Then all keys are distributed anew; half a millisecond at most, and paid by
 * the thousands of keys that have come and gone since the last time.
 */
static void compact(struct hash_index *x, const struct slab *rows,
                    struct hash_index_segment *segment)
{
    struct hash_index_segment to = { .lines_shift = segment->lines_shift,
                                     .depth = segment->depth };
    uint64_t n_lines = hash_index_n_lines(segment);

    if (segment->n_passed <= n_lines || segment->n_taken < n_lines ||
        segment->n_passed <= 2 * (uint64_t)segment->n_passed_then)
        return;
    segment->n_taken = 0; /* without memory it is tried again after as many */
    if (lines_new(x, to.lines_shift, &to.lines) != 0)
        return;
    distribute(rows, segment, &to, 0);
    to.n_passed_then = to.n_passed;
    lines_free(x, segment->lines, segment->lines_shift);
    *segment = to;
}

int hash_index_reserve(struct hash_index *x, const struct slab *rows, uint64_t key)
{
    const struct hash_index_segment *segment;
    uint64_t hash = hash_mix(key);
    int status = x->n_segments ? 0 : make_first(x);

    if (!x->n_segments)
        return status;
    compact(x, rows, hash_index_segment(x, hash));
    while (!status) {
        segment = hash_index_segment(x, hash);
        if (segment->n_keys < keys_max(segment))
            return 0;
        status = grow_segment(x, rows, hash);
    }
    return status;
}

/* The hashes that lead to the segment of u, a fraction of 2^32 (hash_index.h), are those from *ret_first up to here. */
static uint64_t segment_end(const struct hash_index *x, uint64_t u, uint64_t *ret_first)
{
    const struct hash_index_segment *segment = hash_index_segment(x, u << 20);
    uint64_t low = u, high = UINT64_C(1) << 32;
    int64_t before = -1, first = (int64_t)u;

    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        if (hash_index_segment(x, middle << 20) == segment)
            low = middle;
        else
            high = middle;
    }
    while (first - before > 1) {
        int64_t middle = before + (first - before) / 2;

        if (hash_index_segment(x, (uint64_t)middle << 20) == segment)
            first = middle;
        else
            before = middle;
    }
    *ret_first = (uint64_t)first;
    return high;
}

/* --- a scan's range of a segment --- */

#define RANGE_PARTS 1024u

/* From so many rows on a range is guessed: a few rows fewer than that are as good. */
#define GUESSED_ROWS_MIN 256u

/* Looks at all rows of the segment, each of which may lie anywhere: visit(arg, row, its place in the order) for those
 * in [from, last], until it says false. What that costs is added to *cost. */
static void visit_range(const struct slab *rows, const struct hash_index_segment *segment,
                        uint64_t from, uint64_t last,
                        bool (*visit)(void *arg, struct row *row, uint64_t order), void *arg,
                        uint64_t *cost)
{
    const uint64_t n_lines = hash_index_n_lines(segment);

    *cost += n_lines * HASH_INDEX_LINE_COST + segment->n_keys * HASH_INDEX_ROW_COST;
    for (uint64_t at = 0; at < n_lines + DISTRIBUTE_AHEAD; at++) {
        const struct hash_index_line *line;

        for (uint32_t i = 0; at < n_lines && i < HASH_INDEX_LINE_PLACES; i++)
            if (segment->lines[at].tags[i])
                __builtin_prefetch(slab_at(rows, segment->lines[at].numbers[i]));
        if (at < DISTRIBUTE_AHEAD)
            continue;
        line = &segment->lines[at - DISTRIBUTE_AHEAD];
        for (uint32_t i = 0; i < HASH_INDEX_LINE_PLACES; i++) {
            struct row *row = line->tags[i] ? slab_at(rows, line->numbers[i]) : NULL;
            uint64_t order = row ? hash_index_order(row->key) : 0;

            if (row && order >= from && order <= last && !visit(arg, row, order))
                return;
        }
    }
}

/* How many rows each part of a range has. */
struct range_counts {
    uint64_t from;
    unsigned shift;
    uint32_t n[RANGE_PARTS];
};

static bool count_row(void *arg, struct row *row, uint64_t order)
{
    struct range_counts *counts = arg;

    (void)row;
    counts->n[(order - counts->from) >> counts->shift]++;
    return true;
}

/* Makes [from, *last] end so soon that it has at most n_max rows of the segment, and some parts of what it was. The
 * first part alone may have more: keys that were chosen on purpose, or few are wanted. */
static void narrow(const struct slab *rows, const struct hash_index_segment *segment,
                   uint64_t from, uint32_t n_max, uint64_t *last, uint64_t *cost)
{
    struct range_counts counts;
    uint32_t n = 0, i = 0;

    do {
        counts = (struct range_counts){ .from = from };
        while ((*last - from) >> counts.shift >= RANGE_PARTS)
            counts.shift++;
        visit_range(rows, segment, from, *last, count_row, &counts, cost);
        for (i = n = 0; i < RANGE_PARTS && n + counts.n[i] <= n_max; i++)
            n += counts.n[i];
        if (i < RANGE_PARTS)
            *last = from + ((uint64_t)(i > 0 ? i : 1) << counts.shift) - 1;
    } while (i == 0);
}

/* Where a range of the segment ends that has about n rows, if keys lie as hashes do: at *last, or before it. */
static uint64_t guess_last(const struct hash_index_segment *segment, uint64_t first,
                           uint64_t from, double n, uint64_t last)
{
    const double width = ((double)(last - first) + 1) / (double)segment->n_keys * n;

    return width < (double)(last - from) ? from + (uint64_t)width : last;
}

struct range_rows {
    struct row **rows; /* borrowed */
    uint32_t n, n_max;
    bool is_full; /* there are more than n_max */
};

static bool take_row(void *arg, struct row *row, uint64_t order)
{
    struct range_rows *taken = arg;

    (void)order;
    taken->is_full = taken->n == taken->n_max;
    if (!taken->is_full)
        taken->rows[taken->n++] = row;
    return !taken->is_full;
}

uint32_t hash_index_range(const struct hash_index *x, const struct slab *rows, uint64_t from,
                          uint32_t n_max, struct row **ret_rows, uint64_t *ret_last,
                          uint64_t *cost)
{
    const struct hash_index_segment *segment;
    struct range_rows taken = { .rows = ret_rows, .n_max = n_max };
    uint64_t first;

    *ret_last = UINT64_MAX;
    if (!x->n_segments)
        return 0;
    segment = hash_index_segment(x, from >> 32 << 20);
    *ret_last = (segment_end(x, from >> 32, &first) << 32) - 1;
    first <<= 32;
    if (segment->n_keys > n_max && n_max >= GUESSED_ROWS_MIN)
        /* Five standard deviations fewer: nearly always all of them have a place. */
        *ret_last = guess_last(segment, first, from, n_max - 5 * sqrt(n_max), *ret_last);
    else if (segment->n_keys > n_max) {
        *ret_last = guess_last(segment, first, from, 4.0 * n_max + 64, *ret_last);
        narrow(rows, segment, from, n_max, ret_last, cost);
    }
    visit_range(rows, segment, from, *ret_last, take_row, &taken, cost);
    if (!taken.is_full)
        return taken.n;
    narrow(rows, segment, from, n_max, ret_last, cost);
    taken = (struct range_rows){ .rows = ret_rows, .n_max = n_max };
    visit_range(rows, segment, from, *ret_last, take_row, &taken, cost);
    assert(!taken.is_full);
    return taken.n;
}

void hash_index_expect(struct hash_index *x, const struct slab *rows, uint64_t n_keys)
{
    uint64_t u = 0, first;

    if (x->n_segments || make_first(x) != 0)
        return;
    while (u < UINT64_C(1) << 32) {
        const struct hash_index_segment *segment = hash_index_segment(x, u << 20);
        uint64_t end = segment_end(x, u, &first), n_places = hash_index_n_places(segment);
        double n = (double)n_keys * (double)(end - u) / 0x1p32;

        /* Some get more than their share: 5 standard deviations of 12,000 are a 22nd. */
        if (n <= (double)n_places * (1 - 1.0 / 22))
            u = end;
        else if (grow_segment(x, rows, u << 20) != 0)
            return;
    }
}
