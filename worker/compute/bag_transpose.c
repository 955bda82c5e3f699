#include "worker/compute/bag_transpose.h"

#include <stdbool.h>
#include <string.h>

/* Every row has one span that it does not fill, at most. */
uint32_t bag_transpose_n_spans_max(uint32_t n_rows, uint32_t n_keys)
{
    const uint64_t n = (uint64_t)n_rows + n_keys / BAG_TRANSPOSE_SPAN;

    return n < n_keys ? (uint32_t)n : n_keys;
}

/* Then a position is its bag, as with columns of one value each. */
static bool holds_one_each(const struct bag_transpose_input *from)
{
    if (from->starts[from->n_bags] != from->n_bags)
        return false;
    for (uint32_t b = 0; b < from->n_bags; b++)
        if (from->starts[b] != b)
            return false;
    return true;
}

/* `next` [n_rows]: scratch. */
static void write_bags(const struct bag_transpose_input *from, uint32_t *next, uint32_t *bags)
{
    memcpy(next, from->order_starts, from->n_rows * sizeof *next);
    for (uint32_t b = 0; b < from->n_bags; b++)
        for (uint32_t p = from->starts[b]; p < from->starts[b + 1]; p++)
            bags[next[from->row_of[p]]++] = b;
}

static uint32_t write_spans(const struct bag_transpose_input *from,
                            const struct bag_transpose_arrays *to)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < from->n_rows; r++) {
        to->first[r] = n;
        for (uint32_t i = from->order_starts[r]; i < from->order_starts[r + 1];
             i += BAG_TRANSPOSE_SPAN)
            to->spans[n++] = i;
    }
    to->first[from->n_rows] = n;
    to->spans[n] = from->starts[from->n_bags];
    return n;
}

void bag_transpose_build(const struct bag_transpose_input *from,
                         const struct bag_transpose_arrays *to)
{
    const uint32_t n_keys = from->starts[from->n_bags];

    to->counts[0] = from->n_rows;
    if (n_keys && holds_one_each(from))
        memcpy(to->bags, from->order, n_keys * sizeof *to->bags);
    else if (n_keys)
        write_bags(from, to->first, to->bags);
    to->counts[1] = write_spans(from, to);
}
