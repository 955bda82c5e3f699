/* The ops of a step (step.h), and what came of two steps, compared. */
#ifndef TESTS_UNIT_CUDA_STEP_OPS_H
#define TESTS_UNIT_CUDA_STEP_OPS_H

#include "tests/unit/cuda/step.h"

static inline struct linear step_linear(const struct step *s, enum step_array x, uint32_t in,
                                        enum step_array w, enum step_array b, uint32_t out)
{
    return (struct linear){ STEP_N, in, out, s->at[x], s->at[w], s->at[b] };
}

/* All that ops are told of a step; pointers into its arrays. */
struct step_shapes {
    struct linear bottom, top, head;
    struct bag_transpose transpose;
    struct bags bags;
    struct interact interact;
    struct norm norm;
    struct dropout dropout;
    struct relu_mask top_mask, bottom_mask;
};

static inline void step_shapes(const struct step *s, bool wants_transpose,
                               struct step_shapes *h)
{
    *h = (struct step_shapes){
        .bottom = step_linear(s, STEP_X, STEP_NUMERIC, STEP_W1, STEP_B1, STEP_DIM),
        .top = step_linear(s, STEP_R, STEP_WIDTH, STEP_W2, STEP_B2, STEP_HIDDEN),
        .head = step_linear(s, STEP_Y, STEP_HIDDEN, STEP_W3, STEP_B3, 1),
        .transpose = { STEP_ROWS_MAX, STEP_SPANS_MAX, step_words(s, STEP_COUNTS),
                       step_words(s, STEP_USES), step_words(s, STEP_SPANS),
                       step_words(s, STEP_FIRST) },
        .bags = { STEP_N, STEP_FIELDS, STEP_DIM, s->n_rows, step_words(s, STEP_STARTS),
                  step_words(s, STEP_ROW_OF), wants_transpose ? &h->transpose : NULL },
        .interact = { STEP_N, STEP_VECTORS, STEP_DIM, STEP_DIM, false },
        .norm = { STEP_N, STEP_HIDDEN, s->at[STEP_GAMMA], s->at[STEP_BETA],
                  s->at[STEP_RUNNING_MEAN], s->at[STEP_RUNNING_VAR], s->at[STEP_MEAN],
                  s->at[STEP_VAR], s->at[STEP_INV_STD] },
        .dropout = { STEP_N, STEP_HIDDEN, 0.25f, 1 / 0.75f,
                     (const uint64_t *)(const void *)s->at[STEP_DROP_KEY] },
        .top_mask = { s->at[STEP_Y], STEP_HIDDEN, 1 / 0.75f },
        .bottom_mask = { s->at[STEP_T], STEP_LD, 1 },
    };
}

static inline void step_forward(const struct device_ops *on, struct compute *c,
                                const struct step *s, const struct step_shapes *h)
{
    float *const *at = s->at;

    on->linear_forward(c, &h->bottom, DEVICE_RELU, at[STEP_T], STEP_LD);
    on->bag_sum(c, &h->bags, at[STEP_ROWS], at[STEP_T] + STEP_DIM, STEP_LD);
    on->interact_forward(c, &h->interact, at[STEP_T], at[STEP_R]);
    on->linear_forward(c, &h->top, DEVICE_LINEAR, at[STEP_PRE], STEP_HIDDEN);
    on->norm_running(c, &h->norm);
    on->norm_apply(c, &h->norm, DEVICE_LINEAR, at[STEP_PRE], at[STEP_EVALUATED], STEP_HIDDEN);
    on->norm_batch(c, &h->norm, at[STEP_PRE]);
    on->norm_apply(c, &h->norm, DEVICE_RELU, at[STEP_PRE], at[STEP_Y], STEP_HIDDEN);
    on->dropout(c, &h->dropout, at[STEP_Y]);
    on->linear_forward(c, &h->head, DEVICE_LINEAR, at[STEP_Z], 1);
    on->wide_sum(c, &h->bags, at[STEP_WIDE], at[STEP_Z]);
    on->prob(c, STEP_N, at[STEP_Z], at[STEP_P]);
    on->loss(c, STEP_N, at[STEP_Z], at[STEP_LABEL], at[STEP_DZ],
             (double *)(void *)at[STEP_LOSS]);
}

static inline void step_backward(const struct device_ops *on, struct compute *c,
                                 const struct step *s, const struct step_shapes *h)
{
    float *const *at = s->at;

    on->wide_grad(c, &h->bags, at[STEP_DZ], at[STEP_DWIDE]);
    on->linear_backward(c, &h->head, at[STEP_DZ], at[STEP_DY], NULL, at[STEP_DW3],
                        at[STEP_DB3]);
    on->norm_backward(
        c, &h->norm, &h->top_mask, at[STEP_PRE], at[STEP_DY],
        &(struct norm_grads){ at[STEP_DGAMMA], at[STEP_DBETA], at[STEP_DMEAN], at[STEP_DVAR] });
    on->linear_backward(c, &h->top, at[STEP_DY], at[STEP_DR], NULL, at[STEP_DW2], at[STEP_DB2]);
    on->interact_backward(c, &h->interact, at[STEP_T], at[STEP_DR], at[STEP_DT]);
    on->bag_grad(c, &h->bags, at[STEP_DT] + STEP_DIM, STEP_LD, at[STEP_DROWS]);
    on->add_rows(c, STEP_N, STEP_DIM, at[STEP_DR], STEP_WIDTH, at[STEP_DT], STEP_LD,
                 &h->bottom_mask, at[STEP_DD]);
    on->linear_backward(c, &h->bottom, at[STEP_DD], NULL, NULL, at[STEP_DW1], at[STEP_DB1]);
    on->axpy(c, STEP_HIDDEN * STEP_WIDTH, 0.01f, at[STEP_W2], at[STEP_DW2]);
}

/* Rows by topk, what is residual to them moving; their gradients as they are. */
static inline void step_encode(const struct device_ops *on, struct compute *c,
                               const struct step *s)
{
    struct device_encode e = { .codec = CODEC_TOPK,
                               .dim = STEP_DIM,
                               .k = STEP_K,
                               .n_max = STEP_ROWS_MAX,
                               .n = step_words(s, STEP_N_SENT),
                               .rows = s->at[STEP_ROWS],
                               .from = step_words(s, STEP_SENT_FROM),
                               .residual = s->at[STEP_OWED],
                               .residual_at = step_words(s, STEP_OWED_AT),
                               .bytes = (uint8_t *)s->at[STEP_SENT] };

    on->add_rows(c, STEP_ROWS_MAX, STEP_DIM, s->at[STEP_OWED_BEFORE], STEP_DIM, NULL, 0, NULL,
                 s->at[STEP_OWED]);
    on->encode(c, &e);
    e = (struct device_encode){ .codec = CODEC_FP32,
                                .dim = STEP_DIM,
                                .n_max = STEP_ROWS_MAX,
                                .n = e.n,
                                .rows = s->at[STEP_DROWS],
                                .from = e.from,
                                .bytes = (uint8_t *)s->at[STEP_PLAIN] };
    on->encode(c, &e);
}

static inline void step_ops(const struct device_ops *on, struct compute *c,
                            const struct step *s)
{
    struct step_shapes h;

    step_shapes(s, on->wants_transpose, &h);
    step_forward(on, c, s, &h);
    step_backward(on, c, s, &h);
    step_encode(on, c, s);
}

static inline int step_reserve(const struct device_ops *on, struct compute *c)
{
    int status = on->reserve(c, STEP_N, STEP_NUMERIC, STEP_DIM);

    if (!status)
        status = on->reserve(c, STEP_N, STEP_WIDTH, STEP_HIDDEN);
    return status ? status : on->reserve(c, STEP_N, STEP_HIDDEN, 1);
}

/* Numbers of an output that there are: of rows, those of this step. */
static inline size_t step_n_made(const struct step *s, int a)
{
    return a == STEP_DROWS   ? (size_t)s->n_rows * STEP_DIM
           : a == STEP_DWIDE ? s->n_rows
           : a == STEP_PLAIN ? (size_t)step_words(s, STEP_N_SENT)[0] * STEP_DIM
           : a == STEP_SENT  ? (size_t)step_words(s, STEP_N_SENT)[0] * STEP_SENT_FLOATS
                             : step_arrays[a].n_floats;
}

/* The first output that differs, or NULL. Bit for bit. */
static inline const char *step_difference(const struct step *got, const struct step *want)
{
    for (int a = 0; a < STEP_N_ARRAYS; a++)
        if (step_goes_out(a) &&
            memcmp(got->at[a], want->at[a], step_n_made(want, a) * sizeof(float)) != 0)
            return step_arrays[a].name;
    return NULL;
}

/* The same step on the CPU, in place. */
static inline void step_on_cpu(struct step *s)
{
    const struct device_options options = { 1, DEVICE_BLAS };
    struct compute *c;
    struct err err;

    assert_int_equal(device_cpu.open(&options, &c, &err), 0);
    assert_int_equal(step_reserve(&device_cpu, c), 0);
    step_ops(&device_cpu, c, s);
    device_cpu.close(c);
}

#endif
