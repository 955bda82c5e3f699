#include "worker/client/error_feedback_index.h"

#include <assert.h>
#include <errno.h>

#include "proto/codec_catalog.h"
#include "worker/client/push_encoder.h"

void error_feedback_index_deinit(struct error_feedback_index *o)
{
    error_feedback_flush_deinit(&o->flush);
    *o = (struct error_feedback_index){ 0 };
}

/* The rows to send, and their codec. */
static int choose_rows(struct error_feedback_index *o, const struct error_feedback *index,
                       const struct ps_push_section *section)
{
    const struct codec *codec = codec_by_id(section->codec);

    o->codec = section->codec;
    o->n = section->n_keys;
    o->keys = section->keys;
    o->flushes =
        codec->feedback && error_feedback_flush_is_due(index, section->keys, section->n_keys);
    if (!o->flushes)
        return 0;
    if (error_feedback_flush_collect(&o->flush, index, section->keys, section->n_keys))
        return -ENOMEM;
    o->codec = CODEC_FP32;
    o->n = o->flush.n_keys;
    o->keys = o->flush.keys;
    return 0;
}

int error_feedback_index_prepare(struct error_feedback_index *o, struct error_feedback *index,
                                 const struct ps_push_section *section)
{
    const struct codec *codec;

    assert(section->op == SECTION_GRADIENT);
    o->from = o->at = NULL;
    if (choose_rows(o, index, section))
        return -ENOMEM;
    codec = codec_by_id(o->codec);
    o->k = push_encoder_k(codec, index->dim, section->topk_fraction);
    o->row_bytes = codec->row_bytes(index->dim, o->k);
    return codec->feedback ? error_feedback_reserve(index, push_encoder_n_new_rows(index, o->n))
                           : 0;
}

/* Both ascend, so one run finds the section's rows. */
static void find_gradients(struct error_feedback_index *o,
                           const struct ps_push_section *section, uint32_t *from)
{
    uint32_t i, row = 0;

    for (i = 0; i < o->n; i++) {
        bool has_one = row < section->n_keys && section->keys[row] == o->keys[i];

        from[i] = has_one ? row++ : ERROR_FEEDBACK_NONE;
    }
    o->from = from;
}

/* The rows take their residuals with them. */
static void take_residuals(struct error_feedback_index *o, struct error_feedback *index,
                           uint32_t *at)
{
    uint32_t i;

    for (i = 0; i < o->n; i++)
        at[i] = error_feedback_at(index, o->keys[i]);
    for (i = 0; i < o->n; i++)
        error_feedback_remove(index, o->keys[i]);
    o->at = at;
}

void error_feedback_index_acquire(struct error_feedback_index *o, struct error_feedback *index,
                                  const struct ps_push_section *section, uint32_t *space)
{
    uint32_t *at = space + o->n, i;

    if (o->flushes)
        find_gradients(o, section, space);
    if (!codec_by_id(o->codec)->feedback) {
        if (index->n_rows)
            take_residuals(o, index, at);
        return;
    }
    for (i = 0; i < o->n; i++)
        at[i] = error_feedback_touch(index, o->keys[i]);
    o->at = at;
}
