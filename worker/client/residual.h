/*
 * What lossy codecs with feedback owe: for each key of one table a row of floats that was lost
 * when the row was last encoded.
 *
 *     slots   open-addressed, linear probing, at most 3/4 full: row number + 1; 0 = empty
 *     rows    keys[row], floats[row * dim ...], without holes: the last row fills a gap
 */
#ifndef WORKER_CLIENT_RESIDUAL_H
#define WORKER_CLIENT_RESIDUAL_H

#include "common/base.h"

struct residual {
    uint32_t dim;
    uint32_t n_rows, cap_rows;
    uint32_t n_slots; /* a power of two, or 0 */
    uint32_t *slots;  /* owned */
    uint64_t *keys;   /* owned */
    float *floats;    /* owned */
};

void residual_init(struct residual *r, uint32_t dim);
void residual_deinit(struct residual *r);

/* Makes room for n_more rows, so that as many residual_row() cannot fail. -ENOMEM leaves what
 * is held as it was. */
int residual_reserve(struct residual *r, uint32_t n_more) MUST_CHECK;

/* The row of `key`, zeros if it had none; room has been reserved. Good until the next reserve
 * or remove. */
float *residual_row(struct residual *r, uint64_t key);

/* Forgets what is owed to `key`, if anything. */
void residual_remove(struct residual *r, uint64_t key);

uint64_t residual_bytes(const struct residual *r);

#endif
