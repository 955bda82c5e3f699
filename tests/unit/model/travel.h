/*
 * Steps whose gradients leave a device encoded, against the same steps whose floats the CPU's op encodes: models, batches and
 * flows are drawn from a seed, and what is owed moves from step to step. As many steps are under way as the model takes.
 */
#ifndef TESTS_UNIT_MODEL_TRAVEL_H
#define TESTS_UNIT_MODEL_TRAVEL_H

#include <math.h>

#include "proto/codec_catalog.h"
#include "tests/unit/model/fixture.h"

enum {
    TRAVEL_STEPS = 12,
    TRAVEL_SAMPLES = 40,
    TRAVEL_PLACES = 64, /* rows that are owed something, of rows and of wide ones */
    TRAVEL_GAP = 3      /* bytes between those of two flows, in some steps */
};

/* One that is under way. */
struct travel_step {
    struct fixture f; /* its batch and rows; the model is the travel's */
    struct dlrm_travel flows[DLRM_FLOWS_MAX];
    uint32_t *from[DLRM_FLOWS_MAX], *owed_at[DLRM_FLOWS_MAX];
    uint8_t *bytes, *want;
    size_t n_bytes;
};

struct travel {
    struct fixture_rng rng;
    struct dlrm_config config;
    struct dlrm *plain, *m;
    struct compute *cpu;
    float *owed[DLRM_FLOWS_MAX]; /* what must be */
    enum codec_id codecs[DLRM_FLOWS_MAX];
    struct travel_step steps[DLRM_SLOTS];
};

static inline uint32_t travel_width(struct travel *t, uint32_t flow)
{
    uint32_t n_floats;

    if (flow < DLRM_DENSE)
        return flow == DLRM_ROWS ? t->config.dim : 1;
    n_floats = dlrm_tensor(t->m, flow - DLRM_DENSE)->n_floats;
    return n_floats < SPEC_DENSE_BLOCK ? n_floats : SPEC_DENSE_BLOCK;
}

/* Of rows: places of what they are owed. */
static inline uint32_t travel_n_rows(struct travel *t, uint32_t flow)
{
    const uint32_t width = travel_width(t, flow);

    return flow < DLRM_DENSE
               ? TRAVEL_PLACES
               : (dlrm_tensor(t->m, flow - DLRM_DENSE)->n_floats + width - 1) / width;
}

static inline bool travel_has(const struct travel *t, uint32_t flow)
{
    return flow != DLRM_WIDE || t->config.wide;
}

/* n of `end` places, each at most once; some are none, and all that are too many. */
static inline void travel_draw_places(struct fixture_rng *rng, uint32_t *at, uint32_t n,
                                      uint32_t end)
{
    uint32_t *pool = mem_alloc((n + end) * sizeof *pool + 1);

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

static inline struct dlrm *travel_model(const struct compute_ops *device,
                                        const struct dlrm_config *config)
{
    struct dlrm *m = NULL;
    struct err err = { 0 };

    if (dlrm_new_on(device, config, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

/* A place for everything that is owed, and something owed there. */
static inline void travel_owe(struct travel *t, uint32_t flow)
{
    const uint32_t n = travel_n_rows(t, flow), width = travel_width(t, flow);
    uint32_t *at = mem_alloc(n * sizeof *at);

    for (uint32_t i = 0; i < n; i++)
        at[i] = i;
    t->owed[flow] = mem_alloc((size_t)n * width * sizeof(float));
    fixture_fill(&t->rng, t->owed[flow], (size_t)n * width, 0.01f);
    assert_int_equal(dlrm_owed_reserve(t->m, flow, n), 0);
    assert_int_equal(dlrm_owed_put(t->m, flow, at, n, t->owed[flow]), 0);
    free(at);
}

static inline void travel_open(struct travel *t, const struct compute_ops *plain,
                               const struct compute_ops *device,
                               const struct dlrm_config *config, uint64_t seed)
{
    *t = (struct travel){ .rng = { seed, 0 }, .config = *config };
    assert_int_equal(
        compute_cpu.open(&(struct compute_options){ 1, COMPUTE_BLAS }, &t->cpu, NULL), 0);
    t->plain = travel_model(plain, config);
    t->m = travel_model(device, config);
    assert_true(dlrm_encodes(t->m));
    assert_int_equal(dlrm_n_flows(t->m), DLRM_DENSE + dlrm_n_tensors(t->m));
    for (uint32_t i = 0; i < dlrm_n_tensors(t->m); i++) {
        const struct dlrm_tensor *to = dlrm_tensor(t->m, i), *also = dlrm_tensor(t->plain, i);

        fixture_fill(&t->rng, to->values, to->n_floats, 0.5f);
        memcpy(also->values, to->values, to->n_floats * sizeof(float));
    }
    for (uint32_t i = 0; i < dlrm_n_flows(t->m); i++)
        if (travel_has(t, i))
            travel_owe(t, i);
}

/* What the device says it owes, asked for in an order of its own. */
static inline void travel_check_owed(struct travel *t, uint32_t flow)
{
    const uint32_t n = travel_n_rows(t, flow), width = travel_width(t, flow);
    uint32_t *at = mem_alloc(n * sizeof *at), n_asked = 0;
    float *got = mem_alloc((size_t)n * width * sizeof(float));

    travel_draw_places(&t->rng, at, n, n);
    for (uint32_t i = 0; i < n; i++)
        if (at[i] != DLRM_NONE)
            at[n_asked++] = at[i];
    assert_int_equal(dlrm_owed_get(t->m, flow, at, n_asked, got), 0);
    for (uint32_t i = 0; i < n_asked; i++)
        if (memcmp(got + (size_t)i * width, t->owed[flow] + (size_t)at[i] * width,
                   width * sizeof *got) != 0)
            fail_msg("flow %u: row %u is owed something else", flow, at[i]);
    free(at);
    free(got);
}

static inline void travel_close(struct travel *t)
{
    for (uint32_t i = 0; i < dlrm_n_flows(t->m); i++)
        free(t->owed[i]);
    dlrm_free(t->plain);
    dlrm_free(t->m);
    compute_cpu.close(t->cpu);
}

/* ---- a step ---- */

static inline void travel_draw_batch(struct travel *t, struct travel_step *s)
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
    assert_true(n <= TRAVEL_PLACES);
    f->rows = mem_alloc(n * c->dim * sizeof(float) + 1);
    f->row_grads = mem_alloc(n * c->dim * sizeof(float) + 1);
    fixture_fill(&t->rng, f->rows, n * c->dim, 0.7f);
    if (n && fixture_below(&t->rng, 12) == 0)
        f->rows[0] = NAN;
    if (!c->wide)
        return;
    f->wide = mem_alloc(n * sizeof(float) + 1);
    f->wide_grads = mem_alloc(n * sizeof(float) + 1);
    fixture_fill(&t->rng, f->wide, n, 0.7f);
}

/* Of rows: those of the batch, sometimes more, that are only paid what they are owed. Of tensors: all blocks. */
static inline void travel_draw_flow(struct travel *t, struct travel_step *s, uint32_t flow)
{
    const uint32_t n_rows = flow < DLRM_DENSE ? s->f.batch.n_unique : travel_n_rows(t, flow);
    const bool anyhow = fixture_below(&t->rng, 3) == 0;
    struct dlrm_travel *to = &s->flows[flow];

    if (!fixture_below(&t->rng, 6))
        t->codecs[flow] = (enum codec_id)fixture_below(&t->rng, CODEC_ID_END);
    to->codec = t->codecs[flow];
    to->k = to->codec == CODEC_TOPK ? 1 + (travel_width(t, flow) - 1) / 3 : 0;
    to->n = flow < DLRM_DENSE && anyhow
                ? n_rows + fixture_below(&t->rng, TRAVEL_PLACES - n_rows + 1)
                : n_rows;
    s->from[flow] = mem_alloc(to->n * sizeof(uint32_t) + 1);
    s->owed_at[flow] = mem_alloc(to->n * sizeof(uint32_t) + 1);
    travel_draw_places(&t->rng, s->from[flow], to->n, n_rows);
    travel_draw_places(&t->rng, s->owed_at[flow], to->n, travel_n_rows(t, flow));
    for (uint32_t i = 0; flow >= DLRM_DENSE && !anyhow && i < to->n; i++)
        s->from[flow][i] = s->owed_at[flow][i] = i;
    if (to->n > n_rows || fixture_below(&t->rng, 2))
        to->from = s->from[flow];
    if (fixture_below(&t->rng, 5))
        to->owed_at = s->owed_at[flow];
}

static inline size_t travel_bytes(struct travel *t, const struct travel_step *s, uint32_t flow)
{
    const struct dlrm_travel *to = &s->flows[flow];

    return to->n * codec_by_id(to->codec)->row_bytes(travel_width(t, flow), to->k);
}

/* Room for the bytes of all flows, one behind the other, sometimes with gaps. */
static inline void travel_lay_out(struct travel *t, struct travel_step *s)
{
    const size_t gap = fixture_below(&t->rng, 2) ? TRAVEL_GAP : 0;
    uint8_t *at;

    for (uint32_t i = 0; i < dlrm_n_flows(t->m); i++)
        s->n_bytes += travel_bytes(t, s, i) + gap;
    at = s->bytes = dlrm_host_alloc(t->m, s->n_bytes + 1);
    assert_non_null(at);
    s->want = mem_alloc(s->n_bytes + 1);
    for (uint32_t i = 0; i < dlrm_n_flows(t->m); i++) {
        s->flows[i].bytes = at;
        at += travel_bytes(t, s, i) + gap;
    }
}

/* By the CPU, of the other model's floats. */
static inline void travel_encode(struct travel *t, struct travel_step *s, uint32_t flow)
{
    const struct dlrm_travel *to = &s->flows[flow];

    compute_cpu.encode(t->cpu,
                       &(struct compute_encode){
                           .codec = to->codec,
                           .dim = travel_width(t, flow),
                           .k = to->k,
                           .n_max = to->n,
                           .n = &to->n,
                           .rows = flow == DLRM_ROWS ? s->f.row_grads
                                   : flow == DLRM_WIDE
                                       ? s->f.wide_grads
                                       : dlrm_tensor(t->plain, flow - DLRM_DENSE)->grads,
                           .from = to->from,
                           .owed = to->owed_at ? t->owed[flow] : NULL,
                           .owed_at = to->owed_at,
                           .bytes = s->want + (to->bytes - s->bytes),
                       });
}

static inline void travel_draw(struct travel *t, struct travel_step *s)
{
    *s = (struct travel_step){ 0 };
    travel_draw_batch(t, s);
    for (uint32_t i = 0; i < dlrm_n_flows(t->m); i++)
        if (travel_has(t, i))
            travel_draw_flow(t, s, i);
    travel_lay_out(t, s);
}

/* The step to make; what must come of it is known, and must be owed then. */
static inline struct dlrm_step travel_prepare(struct travel *t, uint32_t slot, uint64_t number)
{
    struct travel_step *s = &t->steps[slot];
    struct dlrm_step step;

    travel_draw(t, s);
    step = fixture_step_of(&s->f, number);
    assert_int_equal(dlrm_step(t->plain, &step, &s->f.loss), 0);
    for (uint32_t i = 0; i < dlrm_n_flows(t->m); i++)
        if (travel_has(t, i))
            travel_encode(t, s, i);
    step.row_grads = step.wide_grads = NULL;
    step.travel = s->flows;
    return step;
}

static inline void travel_begin(struct travel *t, uint32_t slot, uint64_t number)
{
    const struct dlrm_step step = travel_prepare(t, slot, number);

    assert_int_equal(dlrm_step_begin(t->m, slot, &step), 0);
}

static inline void travel_free_step(struct travel *t, struct travel_step *s)
{
    for (uint32_t i = 0; i < dlrm_n_flows(t->m); i++) {
        free(s->from[i]);
        free(s->owed_at[i]);
    }
    dlrm_host_free(t->m, s->bytes, s->n_bytes + 1);
    free(s->want);
    s->f.m = NULL;
    fixture_deinit(&s->f);
}

static inline void travel_end(struct travel *t, uint32_t slot)
{
    struct travel_step *s = &t->steps[slot];
    double loss;

    assert_int_equal(dlrm_step_end(t->m, slot, &loss), 0);
    assert_memory_equal(&loss, &s->f.loss, sizeof loss);
    for (uint32_t i = 0; i < dlrm_n_flows(t->m); i++)
        if (memcmp(s->flows[i].bytes, s->want + (s->flows[i].bytes - s->bytes),
                   travel_bytes(t, s, i)) != 0)
            fail_msg("flow %u by codec %u: %u rows of %u have other bytes", i,
                     s->flows[i].codec, s->flows[i].n, travel_width(t, i));
    assert_memory_equal(s->bytes, s->want, s->n_bytes);
    travel_free_step(t, s);
}

/* As many steps at a time as the device takes. */
static inline void travel_run(struct travel *t, uint32_t n_steps)
{
    const uint32_t n_slots = dlrm_n_slots(t->m);

    for (uint32_t i = 0; i < n_steps + n_slots; i++) {
        if (i >= n_slots && i - n_slots < n_steps)
            travel_end(t, i % n_slots);
        if (i < n_steps)
            travel_begin(t, i % n_slots, i);
    }
    for (uint32_t i = 0; i < dlrm_n_flows(t->m); i++)
        if (travel_has(t, i))
            travel_check_owed(t, i);
}

static inline struct dlrm_config travel_config(struct fixture_rng *rng)
{
    return fixture_config(
        rng, (struct fixture_most){ .samples = TRAVEL_SAMPLES, .dim = 40, .width = 60 });
}

#endif
