/*
 * What lossy codecs with feedback owe: for each key of one table a row of floats that was lost
 * when the row was last encoded.
 *
 *     slots   open-addressed, linear probing, at most 3/4 full: row number + 1; 0 = empty
 *     rows    keys[row], floats[row * dim ...], without holes: the last row fills a gap
 *     links   older[row], newer[row]: a chain in the order of use; row number + 1, 0 = end
 *
 * Of a sparse table so many rows are kept as fit the bound; who pushes makes room by sending the
 * oldest ones in full (settle.h). Nothing here drops a row by itself.
 */
#ifndef WORKER_CLIENT_RESIDUAL_H
#define WORKER_CLIENT_RESIDUAL_H

#include "common/base.h"

struct residual {
    uint32_t dim;
    uint32_t rows_max; /* the bound */
    uint32_t n_rows, cap_rows;
    uint32_t n_slots;        /* a power of two, or 0 */
    uint32_t oldest, newest; /* row number + 1; 0: there is none */
    uint32_t *slots;         /* owned */
    uint64_t *keys;          /* owned, as the next two */
    uint32_t *older, *newer;
    float *floats; /* owned */
};

void residual_init(struct residual *r, uint32_t dim);
void residual_deinit(struct residual *r);

/* So many rows as take no more than max_bytes, slots included; 0: no bound. Rows beyond a bound
 * that is lowered stay until they are removed. */
void residual_bound(struct residual *r, uint64_t max_bytes);

/* Makes room for n_more rows, so that as many residual_row() cannot fail. -ENOMEM leaves what
 * is held as it was. */
int residual_reserve(struct residual *r, uint32_t n_more) MUST_CHECK;

/* The row of `key`, zeros if it had none; room has been reserved. It becomes the newest. Good
 * until the next reserve or remove. */
float *residual_row(struct residual *r, uint64_t key);

/* The row of `key`, or NULL; its age stays. Good as long. */
float *residual_find(const struct residual *r, uint64_t key);

/* How many of the keys have no row. */
uint32_t residual_n_absent(const struct residual *r, const uint64_t *keys, uint32_t n_keys);

/* From the oldest row to the newest: for (i = r->oldest; i; i = r->newer[i - 1]), of key
 * r->keys[i - 1]. */

/* Forgets what is owed to `key`, if anything. */
void residual_remove(struct residual *r, uint64_t key);

uint64_t residual_bytes(const struct residual *r);

#endif
