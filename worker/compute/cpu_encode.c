/*
 * Rows as they travel, one after the other: the definition of the op, by the codecs themselves. On the CPU psworker encodes where
 * it pushes (worker/client/row_format.c), so nothing here is in a hurry.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "proto/codec_catalog.h"
#include "worker/compute/cpu.h"

/* NULL: there is none. */
static float *row_of(float *rows, const uint32_t *at, uint32_t i, uint32_t dim)
{
    const uint32_t row = at ? at[i] : i;

    return !rows || row == COMPUTE_NONE ? NULL : rows + (size_t)row * dim;
}

static bool all_finite(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static void fill(float *x, uint32_t n, float value)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = value;
}

/* A codec that keeps nothing: what is owed goes too, from when another one kept it. */
static void put_plain(const struct codec *codec, const struct compute_encode *e, float *v,
                      float *owed, uint8_t *bytes)
{
    for (uint32_t d = 0; owed && d < e->dim; d++)
        v[d] = isnan(v[d]) ? v[d] : v[d] + owed[d];
    codec->encode(v, e->dim, e->k, bytes);
    if (owed)
        fill(owed, e->dim, 0);
}

static void put_row(const struct codec *codec, const struct compute_encode *e, uint32_t i,
                    float *scratch)
{
    const float *row = row_of((float *)e->rows, e->from, i, e->dim);
    float *owed = row_of(e->owed, e->owed_at, i, e->dim), *v = scratch + 2 * (size_t)e->dim;
    uint8_t *bytes = e->bytes + i * codec->row_bytes(e->dim, e->k);

    if (row)
        memcpy(v, row, e->dim * sizeof *v);
    else
        fill(v, e->dim, 0);
    if (!codec->feedback) {
        put_plain(codec, e, v, owed, bytes);
        return;
    }
    if (all_finite(v, e->dim) && owed) {
        codec_encode_feedback(codec, v, owed, e->dim, e->k, scratch, bytes);
        return;
    }
    if (!all_finite(v, e->dim))
        fill(v, e->dim, NAN);
    codec->encode(v, e->dim, e->k, bytes);
}

void cpu_encode(struct compute *c, const struct compute_encode *e)
{
    const struct codec *codec = codec_by_id(e->codec);
    float *scratch = mem_alloc(3 * (size_t)e->dim * sizeof *scratch);

    (void)c;
    for (uint32_t i = 0; i < *e->n; i++)
        put_row(codec, e, i, scratch);
    free(scratch);
}
