/*
 * The quick way through a row of the most common plan: one character between columns, no
 * quotes, each field exactly one key. row.c's plain way is its definition. It takes only rows
 * that are well formed as far as it can see, and leaves every other one, and so every refusal,
 * to the plain way.
 *
 *     bytes of a line -> a bit for each delimiter (row_marks.h) -> where columns end
 *     numbers of up to 8 digits: 8 bytes at once, then a table of log1p
 *     tokens of 4 to 8 bytes:    XXH3's form for short input, all fields of a row together
 *     anything else:             column by column, as the plain way does it
 */
#ifndef WORKER_DATA_ROW_QUICK_H
#define WORKER_DATA_ROW_QUICK_H

#include "common/simd.h"
#include "worker/data/batch.h"
#include "worker/data/row_plan.h"

struct row_quick;

/* Whether rows of this plan can go the quick way at all. */
bool row_quick_fits(const struct row_plan *plan);

/* What a plan's fields need, to be hung into plan->quick: a plan that has the same fields may
 * share it. NULL: no memory. Frees with free(). */
struct row_quick *row_quick_new(const struct row_plan *plan, enum simd build) MUST_CHECK;

/* Adds the line to the batch just as row_parse() would, or returns false and leaves the batch's
 * counts as they were. */
bool row_quick_parse(const struct row_plan *plan, const char *line, size_t len, struct batch *b)
    MUST_CHECK;

#endif
