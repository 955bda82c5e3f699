#include "worker/client/owed.h"

#include <assert.h>
#include <errno.h>

#include "proto/codec_catalog.h"
#include "worker/client/row_format.h"

void owed_deinit(struct owed *o)
{
    settle_deinit(&o->settle);
    *o = (struct owed){ 0 };
}

/* Who the rows are that go out, and how. */
static int choose_rows(struct owed *o, const struct residual *index,
                       const struct ps_push_section *section)
{
    const struct codec *codec = codec_by_id(section->codec);

    o->codec = section->codec;
    o->n = section->n_keys;
    o->keys = section->keys;
    o->settles = codec->feedback && settle_is_due(index, section->keys, section->n_keys);
    if (!o->settles)
        return 0;
    if (settle_collect(&o->settle, index, section->keys, section->n_keys))
        return -ENOMEM;
    o->codec = CODEC_FP32;
    o->n = o->settle.n_keys;
    o->keys = o->settle.keys;
    return 0;
}

int owed_prepare(struct owed *o, struct residual *index, const struct ps_push_section *section)
{
    const struct codec *codec;

    assert(section->op == SECTION_GRADIENT);
    o->from = o->at = NULL;
    if (choose_rows(o, index, section))
        return -ENOMEM;
    codec = codec_by_id(o->codec);
    o->k = row_format_k(codec, index->dim, section->topk_fraction);
    o->row_bytes = codec->row_bytes(index->dim, o->k);
    return codec->feedback ? residual_reserve(index, row_format_new_rows(index, o->n)) : 0;
}

/* Both ascend, so one run finds the section's rows. */
static void find_gradients(struct owed *o, const struct ps_push_section *section,
                           uint32_t *from)
{
    uint32_t i, row = 0;

    for (i = 0; i < o->n; i++) {
        bool has_one = row < section->n_keys && section->keys[row] == o->keys[i];

        from[i] = has_one ? row++ : RESIDUAL_NONE;
    }
    o->from = from;
}

/* All that is owed to the rows goes out with them. */
static void empty(struct owed *o, struct residual *index, uint32_t *at)
{
    uint32_t i;

    for (i = 0; i < o->n; i++)
        at[i] = residual_at(index, o->keys[i]);
    for (i = 0; i < o->n; i++)
        residual_remove(index, o->keys[i]);
    o->at = at;
}

void owed_take(struct owed *o, struct residual *index, const struct ps_push_section *section,
               uint32_t *room)
{
    uint32_t *at = room + o->n, i;

    if (o->settles)
        find_gradients(o, section, room);
    if (!codec_by_id(o->codec)->feedback) {
        if (index->n_rows)
            empty(o, index, at);
        return;
    }
    for (i = 0; i < o->n; i++)
        at[i] = residual_touch(index, o->keys[i]);
    o->at = at;
}
