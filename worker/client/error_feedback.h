/*
 * The residuals of one table (Seide et al. 2014, 1-bit SGD): for each key a row of floats, the error of
 * the codec when the row was last encoded. LRU order.
 *
 *     slots   open-addressed, linear probing, at most 3/4 full: row number + 1; 0 = empty
 *     rows    keys[row], floats[row * dim ...]
 *     links   older[row], newer[row]: a chain in the order of use; row number + 1, 0 = end
 *     free    numbers of rows that were removed, a chain too, by newer[]; to be given out again
 *
 * A row keeps its number until it is removed; numbers begin anew at 0 where none is left. So this may also be the
 * index of rows whose floats lie elsewhere, each where its number says (error_feedback_init_index()): in a device's
 * memory.
 *
 * Of a sparse table so many rows are kept as fit the bound; a push frees memory by sending the
 * oldest ones in full (error_feedback_flush.h). Nothing here drops a row by itself.
 */
#ifndef WORKER_CLIENT_ERROR_FEEDBACK_H
#define WORKER_CLIENT_ERROR_FEEDBACK_H

#include <stdbool.h>

#include "common/base.h"

#define ERROR_FEEDBACK_NONE UINT32_MAX              /* no row's number */
#define ERROR_FEEDBACK_ROWS_MAX (UINT32_C(1) << 30) /* without a bound */

struct error_feedback {
    uint32_t dim;
    bool is_index;     /* it has no floats */
    uint32_t rows_max; /* the bound */
    uint32_t n_rows, cap_rows;
    uint32_t n_numbers;      /* given out so far, free ones included */
    uint32_t free;           /* row number + 1; 0: there is none */
    uint32_t n_slots;        /* a power of two, or 0 */
    uint32_t oldest, newest; /* row number + 1; 0: there is none */
    uint32_t *slots;         /* owned */
    uint64_t *keys;          /* owned, as the next two */
    uint32_t *older, *newer;
    float *floats; /* owned */
};

void error_feedback_init(struct error_feedback *r, uint32_t dim);
void error_feedback_init_index(struct error_feedback *r, uint32_t dim);
void error_feedback_deinit(struct error_feedback *r);

/* Fills `ret`, which has no owner yet, with the rows of the index under the same numbers, and with zeros for as many
 * rows of floats as there are numbers. -ENOMEM: it is empty. */
int error_feedback_copy(struct error_feedback *ret, const struct error_feedback *index)
    MUST_CHECK;

/* So many rows as take no more than max_bytes, slots included, and floats wherever they lie; 0: no bound.
 * Rows beyond a bound that is lowered stay until they are removed. */
void error_feedback_bound(struct error_feedback *r, uint64_t max_bytes);

/* Reserves memory for n_more rows, so that as many error_feedback_touch() cannot fail. -ENOMEM leaves what
 * is held as it was. */
int error_feedback_reserve(struct error_feedback *r, uint32_t n_more) MUST_CHECK;

/* The number of `key`'s row, which becomes the newest; of a new one, zeros, if it had none: the lowest number that
 * no row has had, or one that was removed. Room has been reserved. */
uint32_t error_feedback_touch(struct error_feedback *r, uint64_t key);

/* The number of `key`'s row, or ERROR_FEEDBACK_NONE; its age stays. */
uint32_t error_feedback_at(const struct error_feedback *r, uint64_t key);

/* The floats of error_feedback_touch(), and of error_feedback_at(), or NULL. Good until the next reserve. */
float *error_feedback_row(struct error_feedback *r, uint64_t key);
float *error_feedback_find(const struct error_feedback *r, uint64_t key);

/* The number of keys without a row. */
uint32_t error_feedback_n_absent(const struct error_feedback *r, const uint64_t *keys,
                                 uint32_t n_keys);

/* From the oldest row to the newest: for (i = r->oldest; i; i = r->newer[i - 1]), of key
 * r->keys[i - 1]. */

/* Removes the residual of `key`, if there is one. */
void error_feedback_remove(struct error_feedback *r, uint64_t key);

/* Here, and so without an index' floats. */
uint64_t error_feedback_bytes(const struct error_feedback *r);

#endif
