/*
 * What lossy codecs with feedback owe: for each key of one table a row of floats that was lost
 * when the row was last encoded.
 *
 *     slots   open-addressed, linear probing, at most 3/4 full: row number + 1; 0 = empty
 *     rows    keys[row], floats[row * dim ...]
 *     links   older[row], newer[row]: a chain in the order of use; row number + 1, 0 = end
 *     free    numbers of rows that were removed, a chain too, by newer[]; to be given out again
 *
 * A row keeps its number until it is removed; numbers begin anew at 0 where none is left. So this may also be the index of rows whose floats lie
 * elsewhere, each where its number says (residual_init_index()): in a device's memory.
 *
 * Of a sparse table so many rows are kept as fit the bound; who pushes makes room by sending the
 * oldest ones in full (settle.h). Nothing here drops a row by itself.
 */
#ifndef WORKER_CLIENT_RESIDUAL_H
#define WORKER_CLIENT_RESIDUAL_H

#include <stdbool.h>

#include "common/base.h"

#define RESIDUAL_NONE UINT32_MAX              /* no row's number */
#define RESIDUAL_ROWS_MAX (UINT32_C(1) << 30) /* without a bound */

struct residual {
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

void residual_init(struct residual *r, uint32_t dim);
void residual_init_index(struct residual *r, uint32_t dim);
void residual_deinit(struct residual *r);

/* Fills `ret`, which is nobody's yet, with the index' rows, under their numbers, and with room for as many floats as
 * there are numbers, zeros. -ENOMEM: it is empty. */
int residual_copy(struct residual *ret, const struct residual *index) MUST_CHECK;

/* So many rows as take no more than max_bytes, slots included, and floats wherever they lie; 0: no bound.
 * Rows beyond a bound that is lowered stay until they are removed. */
void residual_bound(struct residual *r, uint64_t max_bytes);

/* Makes room for n_more rows, so that as many residual_touch() cannot fail. -ENOMEM leaves what
 * is held as it was. */
int residual_reserve(struct residual *r, uint32_t n_more) MUST_CHECK;

/* The number of `key`'s row, which becomes the newest; of a new one, zeros, if it had none: the lowest number that
 * no row has had, or one that was removed. Room has been reserved. */
uint32_t residual_touch(struct residual *r, uint64_t key);

/* The number of `key`'s row, or RESIDUAL_NONE; its age stays. */
uint32_t residual_at(const struct residual *r, uint64_t key);

/* The floats of residual_touch(), and of residual_at(), or NULL. Good until the next reserve. */
float *residual_row(struct residual *r, uint64_t key);
float *residual_find(const struct residual *r, uint64_t key);

/* How many of the keys have no row. */
uint32_t residual_n_absent(const struct residual *r, const uint64_t *keys, uint32_t n_keys);

/* From the oldest row to the newest: for (i = r->oldest; i; i = r->newer[i - 1]), of key
 * r->keys[i - 1]. */

/* Forgets what is owed to `key`, if anything. */
void residual_remove(struct residual *r, uint64_t key);

/* Here, and so without an index' floats. */
uint64_t residual_bytes(const struct residual *r);

#endif
