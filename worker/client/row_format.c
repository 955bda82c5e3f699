#include "worker/client/row_format.h"

#include <assert.h>
#include <math.h>

#include "proto/codec_catalog.h"

uint32_t row_format_k(const struct codec *codec, uint32_t dim, float fraction)
{
    float k = floorf((float)dim * fraction);

    if (codec->id != CODEC_TOPK)
        return 0;
    if (!(k >= 1.0f))
        return 1;
    return k < (float)dim ? (uint32_t)k : dim;
}

uint32_t row_format_new_rows(const struct residual *r, uint32_t n_keys)
{
    uint32_t room = r->rows_max > r->n_rows ? r->rows_max - r->n_rows : 0;

    return n_keys < room ? n_keys : room;
}

void row_format_init(struct row_format *f, const struct ps_push_section *section, uint32_t dim,
                     struct residual *residual)
{
    *f = (struct row_format){ .dim = dim };
    f->codec = codec_by_id(section->op == SECTION_ASSIGN ? CODEC_FP32 : section->codec);
    assert(f->codec);
    f->k = row_format_k(f->codec, dim, section->topk_fraction);
    f->row_bytes = f->codec->row_bytes(dim, f->k);
    if (section->encoded)
        return;
    if (f->codec->feedback)
        f->residual = residual;
    else if (section->op == SECTION_GRADIENT && residual->n_rows)
        f->owed = residual;
}

void row_format_touch(const struct row_format *f, const uint64_t *keys, uint32_t n_keys)
{
    uint32_t i;

    for (i = 0; i < n_keys && f->residual; i++)
        (void)residual_row(f->residual, keys[i]);
}

static bool all_finite(const float *x, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* A row that holds NaN or infinity goes out as NaN all over: no codec then hides it from the
 * server, who refuses it, and what is owed to the row stays clean. */
static void put_poison(const struct row_format *f, float *scratch, uint8_t *dst)
{
    uint32_t i;

    for (i = 0; i < f->dim; i++)
        scratch[i] = NAN;
    f->codec->encode(scratch, f->dim, f->k, dst);
}

/* The table's codec keeps nothing now, but did: the row's next push brings what it is owed. */
static void put_plain(const struct row_format *f, uint64_t key, const float *values,
                      float *scratch, uint8_t *dst)
{
    const float *owed = f->owed ? residual_find(f->owed, key) : NULL;
    uint32_t i;

    if (!owed) {
        f->codec->encode(values, f->dim, f->k, dst);
        return;
    }
    for (i = 0; i < f->dim; i++)
        scratch[i] = values[i] + owed[i];
    f->codec->encode(scratch, f->dim, f->k, dst);
    residual_remove(f->owed, key);
}

void row_format_put(const struct row_format *f, uint64_t key, const float *values,
                    float *scratch, uint8_t *dst)
{
    if (!f->residual)
        put_plain(f, key, values, scratch, dst);
    else if (!all_finite(values, f->dim))
        put_poison(f, scratch, dst);
    else
        codec_encode_feedback(f->codec, values, residual_find(f->residual, key), f->dim, f->k,
                              scratch, dst);
}
