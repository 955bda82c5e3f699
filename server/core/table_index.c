#include "server/core/table_index.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#include "server/core/table_mem.h"

#define PREFETCH_BYTES_MAX ((size_t)512) /* of a row; callers read all of it next */

void table_index_init(struct table_index *x, struct budget *parent)
{
    size_t lines_bytes = sizeof(struct table_line) << TABLE_INDEX_LINES_SHIFT;

    *x = (struct table_index){ .budget = { .parent = parent } };
    table_slab_init(&x->lines, lines_bytes, lines_bytes, &x->budget);
}

void table_index_deinit(struct table_index *x)
{
    for (uint32_t i = 0; i < x->n_segments; i++)
        if (x->segments[i].lines_shift != TABLE_INDEX_LINES_SHIFT)
            table_mem_unmap(&x->budget, x->segments[i].lines,
                            sizeof(struct table_line) << x->segments[i].lines_shift);
    table_slab_deinit(&x->lines);
    free(x->segments);
    free(x->directory);
    budget_give(&x->budget, x->budget.used);
}

void table_index_ask_lines(const struct table_index *x, struct table_group *g)
{
    for (uint32_t i = 0; i < g->n_keys; i++) {
        uint64_t hash = hash_mix(g->keys[i]);

        g->hashes[i] = hash;
        g->lines[i] =
            table_segment_line(table_index_segment(x, hash), table_segment_home(hash));
        __builtin_prefetch(g->lines[i]);
    }
}

/* Key i's row, if this is its line, is asked for, whole; into the second cache, as there are more
 * rows under way than the first one holds. False: the line does not know the tag. */
static inline bool ask_row(const struct table_slabs *rows, struct table_group *g, uint32_t i)
{
    const struct table_line *line = g->lines[i];
    uint32_t bits = table_segment_match(line, table_segment_tag(g->hashes[i]));
    size_t n_bytes = rows->thing_bytes;
    const char *at;

    g->rows[i] = NULL;
    if (!bits)
        return false;
    g->rows[i] = table_slab_at(rows, line->numbers[__builtin_ctz(bits)]);
    at = (const char *)g->rows[i];
    n_bytes = n_bytes < PREFETCH_BYTES_MAX ? n_bytes : PREFETCH_BYTES_MAX;
    /* As often for every row, wherever its lines begin: a loop that no branch predictor loses. */
    for (size_t past = 0; past < n_bytes; past += 64)
        __builtin_prefetch(at + past, 0, 2);
    __builtin_prefetch(at + n_bytes - 1, 0, 2);
    return true;
}

/* Keys that stand in a line further on take a step, side by side, until none is left. */
void table_index_ask_rows(const struct table_index *x, const struct table_slabs *rows,
                          struct table_group *g)
{
    uint32_t left[TABLE_GROUP_MAX], n_left = 0;

    for (uint32_t i = 0; i < g->n_keys; i++)
        if (!ask_row(rows, g, i) && g->lines[i]->n_passed)
            left[n_left++] = i;
    for (uint64_t n = 1; n_left; n++) {
        uint32_t n_asked = n_left;

        for (uint32_t j = 0; j < n_asked; j++) {
            uint64_t hash = g->hashes[left[j]];
            uint64_t at = table_segment_home(hash) + n * table_segment_step(hash);

            g->lines[left[j]] = table_segment_line(table_index_segment(x, hash), at);
            __builtin_prefetch(g->lines[left[j]]);
        }
        n_left = 0;
        for (uint32_t j = 0; j < n_asked; j++) {
            uint32_t i = left[j];

            if (!ask_row(rows, g, i) && g->lines[i]->n_passed &&
                n < table_segment_n_lines(table_index_segment(x, g->hashes[i])))
                left[n_left++] = i;
        }
    }
}

struct row *table_index_find_one(const struct table_index *x, const struct table_slabs *rows,
                                 uint64_t key, uint64_t hash)
{
    const struct table_segment *segment = table_index_segment(x, hash);
    uint64_t at = table_segment_home(hash);

    for (uint64_t n = 0; n < table_segment_n_lines(segment); n++) {
        const struct table_line *line = table_segment_line(segment, at);
        uint32_t bits = table_segment_match(line, table_segment_tag(hash));

        for (; bits; bits &= bits - 1) {
            struct row *row = table_slab_at(rows, line->numbers[__builtin_ctz(bits)]);

            if (row->key == key)
                return row;
        }
        if (!line->n_passed)
            return NULL;
        at += table_segment_step(hash);
    }
    return NULL;
}

/* A tag is not a key yet. */
void table_index_compare(const struct table_index *x, const struct table_slabs *rows,
                         struct table_group *g)
{
    for (uint32_t i = 0; i < g->n_keys; i++)
        if (g->rows[i] && g->rows[i]->key != g->keys[i])
            g->rows[i] = table_index_find_one(x, rows, g->keys[i], g->hashes[i]);
}

void table_index_find(const struct table_index *x, const struct table_slabs *rows,
                      const uint64_t *keys, uint32_t n_keys, struct row **ret_rows)
{
    uint32_t n_groups = n_keys / TABLE_GROUP_MAX + (n_keys % TABLE_GROUP_MAX != 0);
    struct table_group groups[3];

    if (!x->n_segments) {
        for (uint32_t i = 0; i < n_keys; i++)
            ret_rows[i] = NULL;
        return;
    }
    /* In step k group k asks for its lines, the one before for its rows, the one before that
     * compares keys. */
    for (uint32_t k = 0; k < n_groups + 2; k++) {
        if (k < n_groups) {
            struct table_group *g = &groups[k % 3];
            uint32_t first = k * TABLE_GROUP_MAX;

            g->keys = keys + first;
            g->rows = ret_rows + first;
            g->n_keys = n_keys - first < TABLE_GROUP_MAX ? n_keys - first : TABLE_GROUP_MAX;
            table_index_ask_lines(x, g);
        }
        if (k >= 1 && k - 1 < n_groups)
            table_index_ask_rows(x, rows, &groups[(k - 1) % 3]);
        if (k >= 2)
            table_index_compare(x, rows, &groups[(k - 2) % 3]);
    }
}

void table_index_put(struct table_index *x, uint64_t key, uint32_t number)
{
    uint64_t hash = hash_mix(key);

    table_segment_put(table_index_segment(x, hash), hash, number);
}

uint32_t table_index_number(const struct table_index *x, const struct table_slabs *rows,
                            const struct row *row)
{
    uint64_t hash = hash_mix(row->key), at = table_segment_home(hash);
    const struct table_segment *segment = table_index_segment(x, hash);

    for (;; at += table_segment_step(hash)) {
        const struct table_line *line = table_segment_line(segment, at);
        uint32_t bits = table_segment_match(line, table_segment_tag(hash));

        for (; bits; bits &= bits - 1) {
            uint32_t number = line->numbers[__builtin_ctz(bits)];

            if (table_slab_at(rows, number) == row)
                return number;
        }
        assert(line->n_passed > 0); /* it stands further on */
    }
}

uint32_t table_index_take(struct table_index *x, const struct table_slabs *rows,
                          const struct row *row)
{
    uint64_t hash = hash_mix(row->key), at = table_segment_home(hash);
    struct table_segment *segment = table_index_segment(x, hash);

    for (;;) {
        struct table_line *line = table_segment_line(segment, at);
        uint32_t bits = table_segment_match(line, table_segment_tag(hash));

        for (; bits; bits &= bits - 1) {
            uint32_t i = (uint32_t)__builtin_ctz(bits);

            if (table_slab_at(rows, line->numbers[i]) != row)
                continue;
            line->tags[i] = 0;
            segment->n_keys--;
            segment->n_taken++;
            return line->numbers[i];
        }
        assert(line->n_passed > 0); /* it stands further on */
        line->n_passed--;
        segment->n_passed--;
        at += table_segment_step(hash);
    }
}

uint32_t table_index_near(const struct table_index *x, const struct table_slabs *rows,
                          uint64_t key, struct row **ret_rows, uint32_t n_max)
{
    const struct table_segment *segment;
    uint64_t hash = hash_mix(key);
    uint32_t n = 0;

    if (!x->n_segments)
        return 0;
    segment = table_index_segment(x, hash);
    for (uint64_t i = 0; i < table_segment_n_lines(segment); i++) {
        const struct table_line *line =
            table_segment_line(segment, table_segment_home(hash) + i);

        for (uint32_t place = 0; place < TABLE_SEGMENT_LINE_PLACES; place++) {
            if (!line->tags[place])
                continue;
            if (n == n_max)
                return n;
            ret_rows[n] = table_slab_at(rows, line->numbers[place]);
            __builtin_prefetch(ret_rows[n++]);
        }
    }
    return n;
}
