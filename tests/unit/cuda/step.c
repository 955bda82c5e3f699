#include "tests/unit/cuda/step.h"

static uint32_t *step_words(const struct step *s, enum step_array a)
{
    return (uint32_t *)(void *)s->at[a];
}

size_t step_bytes(void)
{
    size_t n = 0;

    for (int a = 0; a < STEP_N_ARRAYS; a++)
        n += (step_arrays[a].n_floats + 7) / 8 * 8;
    return n * sizeof(float);
}

struct step step_in(float *memory)
{
    struct step s = { 0 };

    for (int a = 0; a < STEP_N_ARRAYS; a++) {
        s.at[a] = memory;
        memory += (step_arrays[a].n_floats + 7) / 8 * 8;
    }
    return s;
}

/* Who uses each row, from STARTS and ROW_OF. */
static void step_find_uses(struct step *s)
{
    const uint32_t *starts = step_words(s, STEP_STARTS), *row_of = step_words(s, STEP_ROW_OF);
    uint32_t *transpose = step_words(s, STEP_USES), *spans = step_words(s, STEP_SPANS);
    uint32_t n = 0, n_spans = 0;

    for (uint32_t row = 0; row < s->n_rows; row++) {
        step_words(s, STEP_FIRST)[row] = n_spans;
        for (uint32_t bag = 0, of_row = 0; bag < STEP_BAGS; bag++)
            for (uint32_t k = starts[bag]; k < starts[bag + 1]; k++) {
                if (row_of[k] != row)
                    continue;
                if (of_row++ % BAG_TRANSPOSE_SPAN == 0)
                    spans[n_spans++] = n;
                transpose[n++] = bag;
            }
    }
    step_words(s, STEP_FIRST)[s->n_rows] = n_spans;
    spans[n_spans] = n;
    step_words(s, STEP_COUNTS)[0] = s->n_rows;
    step_words(s, STEP_COUNTS)[1] = n_spans;
}

void step_draw_numbers(struct step *s, struct fixture_rng *rng)
{
    for (int a = 0; a < STEP_N_ARRAYS; a++)
        if (step_arrays[a].role == STEP_IN)
            fixture_fill(rng, s->at[a], step_arrays[a].n_floats, 1);
    for (int i = 0; i < STEP_N; i++)
        s->at[STEP_LABEL][i] = (float)fixture_below(rng, 2);
}

/* Some of `n` rows, each at most once, or none, in another order. */
static void step_draw_places(struct fixture_rng *rng, uint32_t *at, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        at[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t other = i + fixture_below(rng, n - i), row = at[other];

        at[other] = at[i];
        at[i] = row;
    }
    for (uint32_t i = 0; i < n; i++)
        at[i] = fixture_below(rng, 5) ? at[i] : DEVICE_NONE;
}

static void step_draw_sent(struct step *s, struct fixture_rng *rng)
{
    step_words(s, STEP_N_SENT)[0] = fixture_below(rng, s->n_rows + 1);
    step_draw_places(rng, step_words(s, STEP_SENT_FROM), s->n_rows);
    step_draw_places(rng, step_words(s, STEP_RESIDUAL_AT), STEP_ROWS_MAX);
}

void step_draw_bags(struct step *s, struct fixture_rng *rng)
{
    static const enum step_array words[] = { STEP_STARTS, STEP_ROW_OF, STEP_COUNTS,
                                             STEP_USES,   STEP_SPANS,  STEP_FIRST };
    uint32_t n_keys = 0;

    for (size_t i = 0; i < COUNT_OF(words); i++)
        memset(s->at[words[i]], 0, step_arrays[words[i]].n_floats * sizeof(uint32_t));
    s->n_rows = 1 + fixture_below(rng, STEP_ROWS_MAX);
    for (uint32_t bag = 0; bag < STEP_BAGS; bag++) {
        step_words(s, STEP_STARTS)[bag] = n_keys;
        for (uint32_t k = fixture_below(rng, 5); k; k--)
            step_words(s, STEP_ROW_OF)[n_keys++] = fixture_below(rng, s->n_rows);
    }
    step_words(s, STEP_STARTS)[STEP_BAGS] = n_keys;
    step_find_uses(s);
    step_draw_sent(s, rng);
}

/* --- its ops, and two steps compared --- */

static struct linear step_linear(const struct step *s, enum step_array x, uint32_t in,
                                 enum step_array w, enum step_array b, uint32_t out)
{
    return (struct linear){ STEP_N, in, out, s->at[x], s->at[w], s->at[b], 0 };
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

static void step_shapes(const struct step *s, bool wants_transpose, struct step_shapes *h)
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
        .interact = { STEP_N, STEP_VECTORS, STEP_DIM, STEP_DIM, false, 0 },
        .norm = { STEP_N, STEP_HIDDEN, s->at[STEP_GAMMA], s->at[STEP_BETA],
                  s->at[STEP_RUNNING_MEAN], s->at[STEP_RUNNING_VAR], s->at[STEP_MEAN],
                  s->at[STEP_VAR], s->at[STEP_INV_STD] },
        .dropout = { STEP_N, STEP_HIDDEN, 0.25f, 1 / 0.75f,
                     (const uint64_t *)(const void *)s->at[STEP_DROP_KEY] },
        .top_mask = { s->at[STEP_Y], STEP_HIDDEN, 1 / 0.75f },
        .bottom_mask = { s->at[STEP_T], STEP_LD, 1 },
    };
}

static void step_forward(const struct device_ops *on, struct compute *c, const struct step *s,
                         const struct step_shapes *h)
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
    on->loss(c, &(struct cross_entropy){ .n = STEP_N, .more = 1.5f, .smoothing = 0.1f },
             at[STEP_Z], at[STEP_LABEL], at[STEP_DZ], (double *)(void *)at[STEP_LOSS]);
}

static void step_backward(const struct device_ops *on, struct compute *c, const struct step *s,
                          const struct step_shapes *h)
{
    float *const *at = s->at;

    on->wide_grad(c, &h->bags, at[STEP_DZ], at[STEP_DWIDE]);
    on->linear_backward(c, &h->head, at[STEP_DZ], at[STEP_DY], NULL, at[STEP_DW3], at[STEP_DB3],
                        NULL);
    on->norm_backward(
        c, &h->norm, &h->top_mask, at[STEP_PRE], at[STEP_DY],
        &(struct norm_grads){ at[STEP_DGAMMA], at[STEP_DBETA], at[STEP_DMEAN], at[STEP_DVAR] });
    on->linear_backward(c, &h->top, at[STEP_DY], at[STEP_DR], NULL, at[STEP_DW2], at[STEP_DB2],
                        NULL);
    on->interact_backward(c, &h->interact, at[STEP_T], at[STEP_DR], at[STEP_DT]);
    on->bag_grad(c, &h->bags, at[STEP_DT] + STEP_DIM, STEP_LD, at[STEP_DROWS]);
    on->add_rows(c, STEP_N, STEP_DIM, at[STEP_DR], STEP_WIDTH, at[STEP_DT], STEP_LD,
                 &h->bottom_mask, at[STEP_DD]);
    on->linear_backward(c, &h->bottom, at[STEP_DD], NULL, NULL, at[STEP_DW1], at[STEP_DB1],
                        NULL);
    on->axpy(c, STEP_HIDDEN * STEP_WIDTH, 0.01f, at[STEP_W2], at[STEP_DW2]);
}

/* The sum of the pairs on top of a copy of the logits. */
static void step_pairs(const struct device_ops *on, struct compute *c, const struct step *s)
{
    const struct pair_sum pairs = { STEP_N, STEP_VECTORS, STEP_DIM, STEP_LD };
    float *const *at = s->at;

    on->copy_rows(c, STEP_N, 1, at[STEP_Z], 1, at[STEP_PAIRS], 1);
    on->pair_sum_forward(c, &pairs, at[STEP_T], at[STEP_PAIRS]);
    on->pair_sum_backward(c, &pairs, at[STEP_T], at[STEP_DZ], at[STEP_DT], at[STEP_DT_PAIRS]);
}

/* A cross layer of T, as if its gradient were the factor. */
static void step_cross(const struct device_ops *on, struct compute *c, const struct step *s)
{
    const struct cross_shape shape = { STEP_N, STEP_LD, STEP_LD };
    float *const *at = s->at;

    on->cross_forward(c, &shape, at[STEP_T], at[STEP_DT], at[STEP_T], at[STEP_CROSSED]);
    on->cross_backward(c, &shape, at[STEP_T], at[STEP_DT], at[STEP_CROSSED], NULL, at[STEP_DU],
                       at[STEP_DT_CROSSED]);
    on->cross_backward(c, &shape, at[STEP_T], at[STEP_DT], at[STEP_CROSSED],
                       at[STEP_DT_CROSSED], at[STEP_DU], at[STEP_DT_CROSSED]);
}

/* The interaction once more, with the sums of bags in it where the device has that. */
static void step_bags(const struct device_ops *on, struct compute *c, const struct step *s,
                      const struct step_shapes *h)
{
    float *const *at = s->at;

    on->linear_forward(c, &h->bottom, DEVICE_RELU, at[STEP_T_OF_BAGS], STEP_LD);
    if (on->interact_bags_forward) {
        on->interact_bags_forward(c, &h->bags, at[STEP_ROWS], &h->interact, at[STEP_T_OF_BAGS],
                                  at[STEP_R_OF_BAGS]);
        on->interact_bags_backward(c, &h->bags, at[STEP_ROWS], &h->interact, at[STEP_T_OF_BAGS],
                                   at[STEP_DR], at[STEP_DT_OF_BAGS], NULL, NULL);
        return;
    }
    on->bag_sum(c, &h->bags, at[STEP_ROWS], at[STEP_T_OF_BAGS] + STEP_DIM, STEP_LD);
    on->interact_forward(c, &h->interact, at[STEP_T_OF_BAGS], at[STEP_R_OF_BAGS]);
    on->interact_backward(c, &h->interact, at[STEP_T_OF_BAGS], at[STEP_DR],
                          at[STEP_DT_OF_BAGS]);
}

/* Rows by topk, what is residual to them moving; their gradients as they are. */
static void step_encode(const struct device_ops *on, struct compute *c, const struct step *s)
{
    struct device_encode e = { .codec = CODEC_TOPK,
                               .dim = STEP_DIM,
                               .k = STEP_K,
                               .n_max = STEP_ROWS_MAX,
                               .n = step_words(s, STEP_N_SENT),
                               .rows = s->at[STEP_ROWS],
                               .from = step_words(s, STEP_SENT_FROM),
                               .residual = s->at[STEP_RESIDUAL],
                               .residual_at = step_words(s, STEP_RESIDUAL_AT),
                               .bytes = (uint8_t *)s->at[STEP_SENT] };

    on->add_rows(c, STEP_ROWS_MAX, STEP_DIM, s->at[STEP_RESIDUAL_BEFORE], STEP_DIM, NULL, 0,
                 NULL, s->at[STEP_RESIDUAL]);
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

void step_ops(const struct device_ops *on, struct compute *c, const struct step *s)
{
    struct step_shapes h;

    step_shapes(s, on->wants_transpose, &h);
    step_forward(on, c, s, &h);
    step_backward(on, c, s, &h);
    step_pairs(on, c, s);
    step_cross(on, c, s);
    step_bags(on, c, s, &h);
    step_encode(on, c, s);
}

int step_reserve(const struct device_ops *on, struct compute *c)
{
    int status = on->reserve(c, STEP_N, STEP_NUMERIC, STEP_DIM);

    if (!status)
        status = on->reserve(c, STEP_N, STEP_WIDTH, STEP_HIDDEN);
    return status ? status : on->reserve(c, STEP_N, STEP_HIDDEN, 1);
}

size_t step_n_made(const struct step *s, int a)
{
    return a == STEP_DROWS   ? (size_t)s->n_rows * STEP_DIM
           : a == STEP_DWIDE ? s->n_rows
           : a == STEP_PLAIN ? (size_t)step_words(s, STEP_N_SENT)[0] * STEP_DIM
           : a == STEP_SENT  ? (size_t)step_words(s, STEP_N_SENT)[0] * STEP_SENT_FLOATS
                             : step_arrays[a].n_floats;
}

const char *step_difference(const struct step *got, const struct step *want)
{
    for (int a = 0; a < STEP_N_ARRAYS; a++)
        if (step_goes_out(a) &&
            memcmp(got->at[a], want->at[a], step_n_made(want, a) * sizeof(float)) != 0)
            return step_arrays[a].name;
    return NULL;
}

void step_on_cpu(struct step *s)
{
    const struct device_options options = { .n_threads = 1, .products = DEVICE_BLAS };
    struct compute *c;
    struct err err;

    assert_int_equal(device_cpu.open(&options, &c, &err), 0);
    assert_int_equal(step_reserve(&device_cpu, c), 0);
    step_ops(&device_cpu, c, s);
    device_cpu.close(c);
}
