/*
 * How a row of a push is written: the codec of its section, and what becomes of what is lost.
 */
#ifndef WORKER_CLIENT_ROW_FORMAT_H
#define WORKER_CLIENT_ROW_FORMAT_H

#include "worker/client/ps_types.h"
#include "worker/client/residual.h"

struct row_format {
    const struct codec *codec;
    uint32_t dim, k;
    size_t row_bytes;
    struct residual *residual; /* keeps what is lost; NULL: nothing is kept */
    struct residual *owed;     /* from when the codec kept it; NULL: nothing */
};

/* How many values topk keeps of a row: a fraction, one at least; 0 for other codecs. */
uint32_t row_format_k(const struct codec *codec, uint32_t dim, float fraction);

/* Rows that n_keys with feedback may add to what is owed by their table, which stands in no other section: what would
 * go beyond the bound is settled instead. */
uint32_t row_format_new_rows(const struct residual *r, uint32_t n_keys);

/* residual: of the section's table, borrowed; one that is encoded already leaves it alone. */
void row_format_init(struct row_format *f, const struct ps_push_section *section, uint32_t dim,
                     struct residual *residual);

/* Before the first row: those of the keys become the newest that are owed anything, in the
 * order of the keys, and not in that of the shards that they are dealt out to. Room for them
 * has been reserved. */
void row_format_touch(const struct row_format *f, const uint64_t *keys, uint32_t n_keys);

/* Writes row_bytes to dst. scratch: 2 * dim floats. */
void row_format_put(const struct row_format *f, uint64_t key, const float *values,
                    float *scratch, uint8_t *dst);

#endif
