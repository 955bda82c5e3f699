#include "tests/unit/model/encoded.h"

/* --- two models side by side, one of which encodes its gradients on a device, and their residuals --- */

static uint32_t encoded_width(struct encoded_run *t, uint32_t gradient)
{
    if (gradient < DLRM_DENSE)
        return gradient == DLRM_ROWS ? t->config.dim : 1;
    return dlrm_tensor(t->m, gradient - DLRM_DENSE)->block;
}

/* Of rows: places of their residuals. */
static uint32_t encoded_n_rows(struct encoded_run *t, uint32_t gradient)
{
    const uint32_t width = encoded_width(t, gradient);

    return gradient < DLRM_DENSE
               ? ENCODED_PLACES
               : (dlrm_tensor(t->m, gradient - DLRM_DENSE)->n_floats + width - 1) / width;
}

static bool encoded_has(const struct encoded_run *t, uint32_t gradient)
{
    return gradient != DLRM_WIDE || t->config.wide;
}

/* n of `end` places, each at most once; some are none, and all that are too many. */
static void encoded_draw_places(struct fixture_rng *rng, uint32_t *at, uint32_t n, uint32_t end)
{
    uint32_t *pool = memory_alloc((n + end) * sizeof *pool + 1);

    for (uint32_t i = 0; i < n + end; i++)
        pool[i] = i < end ? i : DLRM_NONE;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t other = i < end ? i + fixture_below(rng, end - i) : i;

        at[i] = fixture_below(rng, 6) ? pool[other] : DLRM_NONE;
        pool[other] = pool[i];
    }
    free(pool);
}

/* ---- the two models ---- */

struct dlrm *encoded_model(const struct device_ops *device, const struct dlrm_config *config)
{
    struct dlrm *m = NULL;
    struct err err = { 0 };

    if (dlrm_new_on(device, config, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

/* A place for every residual, and a residual there. */
static void encoded_owe(struct encoded_run *t, uint32_t gradient)
{
    const uint32_t n = encoded_n_rows(t, gradient), width = encoded_width(t, gradient);
    uint32_t *at = memory_alloc(n * sizeof *at);

    for (uint32_t i = 0; i < n; i++)
        at[i] = i;
    t->residual[gradient] = memory_alloc((size_t)n * width * sizeof(float));
    fixture_fill(&t->rng, t->residual[gradient], (size_t)n * width, 0.01f);
    assert_int_equal(dlrm_residual_reserve(t->m, gradient, n), 0);
    assert_int_equal(dlrm_residual_put(t->m, gradient, at, n, t->residual[gradient]), 0);
    free(at);
}

void encoded_open(struct encoded_run *t, const struct device_ops *plain,
                  const struct device_ops *device, const struct dlrm_config *config,
                  uint64_t seed)
{
    encoded_open_in_blocks(t, plain, device, config, seed, NULL);
}

void encoded_open_in_blocks(struct encoded_run *t, const struct device_ops *plain,
                            const struct device_ops *device, const struct dlrm_config *config,
                            uint64_t seed, const uint32_t *blocks)
{
    *t = (struct encoded_run){ .rng = { seed, 0 }, .config = *config };
    assert_int_equal(
        device_cpu.open(&(struct device_options){ .n_threads = 1, .products = DEVICE_BLAS },
                        &t->cpu, NULL),
        0);
    t->plain = encoded_model(plain, config);
    t->m = encoded_model(device, config);
    assert_true(dlrm_encodes(t->m));
    assert_int_equal(dlrm_n_gradients(t->m), DLRM_DENSE + dlrm_n_tensors(t->m));
    for (uint32_t i = 0; blocks && i < dlrm_n_tensors(t->m); i++)
        dlrm_set_block(t->m, i, blocks[i]);
    for (uint32_t i = 0; i < dlrm_n_tensors(t->m); i++) {
        const struct dlrm_tensor *to = dlrm_tensor(t->m, i), *also = dlrm_tensor(t->plain, i);

        fixture_fill(&t->rng, to->values, to->n_floats, 0.5f);
        memcpy(also->values, to->values, to->n_floats * sizeof(float));
    }
    for (uint32_t i = 0; i < dlrm_n_gradients(t->m); i++)
        if (encoded_has(t, i))
            encoded_owe(t, i);
}

/* The device's residuals, read in an order of its own. */
static void encoded_check_residuals(struct encoded_run *t, uint32_t gradient)
{
    const uint32_t n = encoded_n_rows(t, gradient), width = encoded_width(t, gradient);
    uint32_t *at = memory_alloc(n * sizeof *at), n_asked = 0;
    float *got = memory_alloc((size_t)n * width * sizeof(float));

    encoded_draw_places(&t->rng, at, n, n);
    for (uint32_t i = 0; i < n; i++)
        if (at[i] != DLRM_NONE)
            at[n_asked++] = at[i];
    assert_int_equal(dlrm_residual_get(t->m, gradient, at, n_asked, got), 0);
    for (uint32_t i = 0; i < n_asked; i++)
        if (memcmp(got + (size_t)i * width, t->residual[gradient] + (size_t)at[i] * width,
                   width * sizeof *got) != 0)
            fail_msg("gradient %u: row %u has another residual", gradient, at[i]);
    free(at);
    free(got);
}

void encoded_close(struct encoded_run *t)
{
    for (uint32_t i = 0; i < dlrm_n_gradients(t->m); i++)
        free(t->residual[i]);
    dlrm_free(t->plain);
    dlrm_free(t->m);
    device_cpu.close(t->cpu);
}

/* ---- a step ---- */

/* The NaN that this processor's own arithmetic makes. A sum of two NaNs has the bits of one of them, of which one is
 * the compiler's choice: with one NaN alone in a model every op has the same bits in every build. */
static float encoded_nan(void)
{
    volatile float zero = 0;

    return zero / zero;
}

static void encoded_draw_batch(struct encoded_run *t, struct encoded_step *s)
{
    const struct dlrm_config *c = &t->config;
    struct fixture *f = &s->f;
    size_t n;

    f->config = *c;
    fixture_batch_init(&f->batch, c->batch_max, c->n_numeric, c->n_fields,
                       3 * c->batch_max * c->n_fields);
    fixture_batch_fill(&f->batch,
                       fixture_below(&t->rng, 3) ? c->batch_max
                                                 : fixture_below(&t->rng, c->batch_max),
                       &t->rng);
    n = f->batch.n_unique;
    assert_true(n <= ENCODED_PLACES);
    f->rows = memory_alloc(n * c->dim * sizeof(float) + 1);
    f->row_grads = memory_alloc(n * c->dim * sizeof(float) + 1);
    fixture_fill(&t->rng, f->rows, n * c->dim, 0.7f);
    if (n && fixture_below(&t->rng, 12) == 0)
        f->rows[0] = encoded_nan();
    if (!c->wide)
        return;
    f->wide = memory_alloc(n * sizeof(float) + 1);
    f->wide_grads = memory_alloc(n * sizeof(float) + 1);
    fixture_fill(&t->rng, f->wide, n, 0.7f);
}

/* Of rows: those of the batch, sometimes more, whose residuals are only sent. Of tensors: all blocks. */
static void encoded_draw_gradient(struct encoded_run *t, struct encoded_step *s,
                                  uint32_t gradient)
{
    const uint32_t n_rows =
        gradient < DLRM_DENSE ? s->f.batch.n_unique : encoded_n_rows(t, gradient);
    const bool anyhow = fixture_below(&t->rng, 3) == 0;
    struct dlrm_encoded *to = &s->gradients[gradient];

    if (!fixture_below(&t->rng, 6))
        t->codecs[gradient] = (enum codec_id)fixture_below(&t->rng, CODEC_ID_END);
    to->codec = t->codecs[gradient];
    to->k = to->codec == CODEC_TOPK ? 1 + (encoded_width(t, gradient) - 1) / 3 : 0;
    to->n = gradient < DLRM_DENSE && anyhow
                ? n_rows + fixture_below(&t->rng, ENCODED_PLACES - n_rows + 1)
                : n_rows;
    s->from[gradient] = memory_alloc(to->n * sizeof(uint32_t) + 1);
    s->residual_at[gradient] = memory_alloc(to->n * sizeof(uint32_t) + 1);
    encoded_draw_places(&t->rng, s->from[gradient], to->n, n_rows);
    encoded_draw_places(&t->rng, s->residual_at[gradient], to->n, encoded_n_rows(t, gradient));
    for (uint32_t i = 0; gradient >= DLRM_DENSE && !anyhow && i < to->n; i++)
        s->from[gradient][i] = s->residual_at[gradient][i] = i;
    if (to->n > n_rows || fixture_below(&t->rng, 2))
        to->from = s->from[gradient];
    if (fixture_below(&t->rng, 5))
        to->residual_at = s->residual_at[gradient];
}

size_t encoded_bytes(struct encoded_run *t, const struct encoded_step *s, uint32_t gradient)
{
    const struct dlrm_encoded *to = &s->gradients[gradient];

    return to->n * codec_by_id(to->codec)->row_bytes(encoded_width(t, gradient), to->k);
}

/* Room for the bytes of all gradients, one behind the other, sometimes with gaps. */
static void encoded_lay_out(struct encoded_run *t, struct encoded_step *s)
{
    const size_t gap = fixture_below(&t->rng, 2) ? ENCODED_GAP : 0;
    uint8_t *at;

    for (uint32_t i = 0; i < dlrm_n_gradients(t->m); i++)
        s->n_bytes += encoded_bytes(t, s, i) + gap;
    at = s->bytes = dlrm_host_alloc(t->m, s->n_bytes + 1);
    assert_non_null(at);
    s->want = memory_alloc(s->n_bytes + 1);
    for (uint32_t i = 0; i < dlrm_n_gradients(t->m); i++) {
        s->gradients[i].bytes = at;
        at += encoded_bytes(t, s, i) + gap;
    }
}

/* By the CPU, of the other model's floats. */
static void encoded_encode(struct encoded_run *t, struct encoded_step *s, uint32_t gradient)
{
    const struct dlrm_encoded *to = &s->gradients[gradient];

    device_cpu.encode(t->cpu,
                      &(struct device_encode){
                          .codec = to->codec,
                          .dim = encoded_width(t, gradient),
                          .k = to->k,
                          .n_max = to->n,
                          .n = &to->n,
                          .rows = gradient == DLRM_ROWS ? s->f.row_grads
                                  : gradient == DLRM_WIDE
                                      ? s->f.wide_grads
                                      : dlrm_tensor(t->plain, gradient - DLRM_DENSE)->grads,
                          .from = to->from,
                          .residual = to->residual_at ? t->residual[gradient] : NULL,
                          .residual_at = to->residual_at,
                          .bytes = s->want + (to->bytes - s->bytes),
                      });
}

void encoded_draw(struct encoded_run *t, struct encoded_step *s)
{
    *s = (struct encoded_step){ 0 };
    encoded_draw_batch(t, s);
    for (uint32_t i = 0; i < dlrm_n_gradients(t->m); i++)
        if (encoded_has(t, i))
            encoded_draw_gradient(t, s, i);
    encoded_lay_out(t, s);
}

struct dlrm_step encoded_prepare(struct encoded_run *t, uint32_t set, uint64_t number)
{
    struct encoded_step *s = &t->steps[set];
    struct dlrm_step step;

    encoded_draw(t, s);
    step = fixture_step_of(&s->f, number);
    fixture_must(t->plain, dlrm_step(t->plain, &step, &s->f.loss));
    for (uint32_t i = 0; i < dlrm_n_gradients(t->m); i++)
        if (encoded_has(t, i))
            encoded_encode(t, s, i);
    step.row_grads = step.wide_grads = NULL;
    step.encoded = s->gradients;
    return step;
}

void encoded_begin(struct encoded_run *t, uint32_t set, uint64_t number)
{
    const struct dlrm_step step = encoded_prepare(t, set, number);

    assert_int_equal(dlrm_step_begin(t->m, set, &step), 0);
}

void encoded_free_step(struct encoded_run *t, struct encoded_step *s)
{
    for (uint32_t i = 0; i < dlrm_n_gradients(t->m); i++) {
        free(s->from[i]);
        free(s->residual_at[i]);
    }
    dlrm_host_free(t->m, s->bytes, s->n_bytes + 1);
    free(s->want);
    s->f.m = NULL;
    fixture_deinit(&s->f);
}

void encoded_end(struct encoded_run *t, uint32_t set)
{
    struct encoded_step *s = &t->steps[set];
    double loss;

    assert_int_equal(dlrm_step_end(t->m, set, &loss), 0);
    assert_memory_equal(&loss, &s->f.loss, sizeof loss);
    for (uint32_t i = 0; i < dlrm_n_gradients(t->m); i++)
        if (memcmp(s->gradients[i].bytes, s->want + (s->gradients[i].bytes - s->bytes),
                   encoded_bytes(t, s, i)) != 0)
            fail_msg("gradient %u by codec %u: %u rows of %u have other bytes", i,
                     s->gradients[i].codec, s->gradients[i].n, encoded_width(t, i));
    assert_memory_equal(s->bytes, s->want, s->n_bytes);
    encoded_free_step(t, s);
}

void encoded_run(struct encoded_run *t, uint32_t n_steps)
{
    const uint32_t n_sets = dlrm_n_buffer_sets(t->m);

    for (uint32_t i = 0; i < n_steps + n_sets; i++) {
        if (i >= n_sets && i - n_sets < n_steps)
            encoded_end(t, i % n_sets);
        if (i < n_steps)
            encoded_begin(t, i % n_sets, i);
    }
    for (uint32_t i = 0; i < dlrm_n_gradients(t->m); i++)
        if (encoded_has(t, i))
            encoded_check_residuals(t, i);
}

struct dlrm_config encoded_config(struct fixture_rng *rng)
{
    return fixture_config(
        rng, (struct fixture_most){ .samples = ENCODED_SAMPLES, .dim = 40, .width = 60 });
}
