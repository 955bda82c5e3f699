#include "worker/client/traffic.h"

#include "proto/codec_catalog.h"
#include "worker/client/push_encoder.h"

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void count_values(_Atomic uint64_t *counters, enum codec_id id, uint32_t dim,
                         float topk_fraction, uint32_t n_rows)
{
    const struct codec *codec = codec_by_id(id);

    count(&counters[id],
          n_rows * codec->row_bytes(dim, push_encoder_k(codec, dim, topk_fraction)));
}

void traffic_pulled(struct traffic *t, const struct ps_pull_section *section, uint32_t dim)
{
    count(&t->rows_pulled, section->n_keys);
    count_values(t->values_pulled, section->codec, dim, 0, section->n_keys);
}

/* What is assigned goes as fp32, and so do the weights beside gradients; a learning rate has no values. */
void traffic_pushed(struct traffic *t, const struct ps_push_section *section, uint32_t dim)
{
    const enum codec_id codec =
        section_op_is_gradient(section->op) ? section->codec : CODEC_FP32;

    count(&t->rows_pushed, section->n_keys);
    if (section->op != SECTION_RATE)
        count_values(t->values_pushed, codec, dim, section->topk_fraction, section->n_keys);
    if (section->op == SECTION_GRADIENT_AT)
        count_values(t->values_pushed, CODEC_FP32, dim, 0, section->n_keys);
}

static uint64_t counted(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void traffic_read(const struct traffic *t, struct ps_stats *ret)
{
    ret->rows_pulled = counted(&t->rows_pulled);
    ret->rows_pushed = counted(&t->rows_pushed);
    for (uint32_t i = 0; i < CODEC_ID_END; i++) {
        ret->values_pulled[i] = counted(&t->values_pulled[i]);
        ret->values_pushed[i] = counted(&t->values_pushed[i]);
    }
}
