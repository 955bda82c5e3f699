#include "tests/gpu/op_monitor.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "proto/codec_catalog.h"
#include "worker/compute/device_bf16.h"
#include "worker/cuda/device_cuda.h"

enum { CALLS = 10, WARM = 3, RUNS = 15 };

static const struct device_ops *const gpu = &device_cuda;

/* A program for measurements: the only file-scope state. */
static struct op_monitor *op_monitor;

double op_monitor_now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double op_monitor_median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, compare);
    return n ? values[n / 2] : 0;
}

/* An op that is called again and again: runs of CALLS each, one by one first, then as a graph. The step that it is part of is
 * interrupted meanwhile; it changes nothing that it reads, so the step goes on as if it had been called once. */
struct timing {
    struct monitored_op op;
    uint32_t run, calls_left, n_eager, n_graph;
    bool is_open, is_graph, is_encode;
    double start_s, eager[RUNS], graph[RUNS];
};

static void finish(struct compute *c)
{
    gpu->end(c, op_monitor->set);
    if (!gpu->wait(c, op_monitor->set))
        return;
    fprintf(stderr, "bench: %s\n", gpu->failure(c));
    exit(1);
}

static void end_run(struct compute *c, struct timing *t)
{
    double took;

    finish(c);
    took = (op_monitor_now_s() - t->start_s) / CALLS;
    if (t->is_graph && t->n_graph < RUNS)
        t->graph[t->n_graph++] = took;
    if (!t->is_graph && t->run >= WARM && t->n_eager < RUNS)
        t->eager[t->n_eager++] = took;
    t->run++;
}

static void keep(struct timing *t)
{
    assert(op_monitor->n < OP_MONITOR_OPS_MAX);
    t->op.eager_s = op_monitor_median(t->eager, t->n_eager);
    t->op.graph_s = op_monitor_median(t->graph, t->n_graph);
    op_monitor->at[op_monitor->n++] = t->op;
    op_monitor->n_measured++;
}

/* Whether the op is to be called once more. Recorded runs need no calls. */
static bool again(struct compute *c, struct timing *t)
{
    const uint64_t own_key = UINT64_C(1) << 63 | (uint64_t)op_monitor->n_measured << 1;

    if (!op_monitor->ops || (op_monitor->encodes && !t->is_encode))
        return t->run++ == 0;
    if (t->calls_left) {
        t->calls_left--;
        return true;
    }
    if (!t->run && !t->is_open)
        finish(c);
    for (;;) {
        if (t->is_open)
            end_run(c, t);
        t->is_open = t->run < 2 * (WARM + RUNS);
        if (!t->is_open)
            break;
        t->start_s = op_monitor_now_s();
        t->is_graph = gpu->begin(c, op_monitor->set, t->run < WARM + RUNS ? 0 : own_key);
        if (!t->is_graph) {
            t->calls_left = CALLS - 1;
            return true;
        }
    }
    keep(t);
    (void)gpu->begin(c, op_monitor->set, 0);
    return false;
}

static struct timing timing_of(const char *name, uint32_t in, uint32_t out, double floats,
                               double n_flop)
{
    return (struct timing){ .op = { name, in, out, 0, 0, 4 * floats, n_flop } };
}

static void linear_forward(struct compute *c, const struct linear *l, enum device_act act,
                           float *y, uint32_t ldy)
{
    const double n = l->n, in = l->in, out = l->out;
    struct timing t = timing_of("linear forward", l->in, l->out, n * in + in * out + n * out,
                                2 * n * in * out);

    while (again(c, &t))
        gpu->linear_forward(c, l, act, y, ldy);
}

static void linear_backward(struct compute *c, const struct linear *l, const float *dy,
                            float *dx, const struct relu_mask *mask, float *dw, float *db,
                            float *sums)
{
    const double n = l->n, in = l->in, out = l->out;
    struct timing t = timing_of("linear backward", l->in, l->out,
                                n * in + n * out + (dx ? n * in + in * out : 0) +
                                    (mask ? n * in : 0) + in * out,
                                (dx ? 4 : 2) * n * in * out);

    while (again(c, &t))
        gpu->linear_backward(c, l, dy, dx, mask, dw, db, sums);
}

static double bag_floats(const struct bags *b)
{
    return (double)op_monitor->n_rows * b->dim + 2.0 * op_monitor->n_keys +
           (double)b->n * b->n_fields * b->dim;
}

static void bag_grad(struct compute *c, const struct bags *b, const float *dsums, uint32_t ld,
                     float *drows)
{
    struct timing t = timing_of("bag gradient", 0, 0, bag_floats(b), 0);

    while (again(c, &t))
        gpu->bag_grad(c, b, dsums, ld, drows);
}

static double pairs(const struct interact *it)
{
    return (double)it->n_vectors * (it->n_vectors + (it->self ? 1.0 : -1.0)) / 2;
}

/* T's vectors that are no bags are read, rows in place of the others. */
static double sources_floats(const struct bags *b, const struct interact *it)
{
    return (double)op_monitor->n_rows * b->dim + 2.0 * op_monitor->n_keys +
           (double)it->n * (it->n_vectors - b->n_fields) * it->dim;
}

static void interact_bags_forward(struct compute *c, const struct bags *b, const float *rows,
                                  const struct interact *it, float *x, float *r)
{
    struct timing t = timing_of("bags and interaction forward", 0, 0,
                                sources_floats(b, it) + it->n * (it->direct + pairs(it)),
                                2.0 * it->n * pairs(it) * it->dim);

    while (again(c, &t))
        gpu->interact_bags_forward(c, b, rows, it, x, r);
}

static void interact_bags_backward(struct compute *c, const struct bags *b, const float *rows,
                                   const struct interact *it, float *x, const float *dr,
                                   float *dt, const struct relu_mask *mask, float *dfirst)
{
    const double of_sample =
        (double)it->n_vectors * it->dim + pairs(it) + (dfirst ? 2.0 * it->direct : 0);
    struct timing t =
        timing_of("interaction backward", 0, 0, sources_floats(b, it) + it->n * of_sample,
                  4.0 * it->n * pairs(it) * it->dim);

    while (again(c, &t))
        gpu->interact_bags_backward(c, b, rows, it, x, dr, dt, mask, dfirst);
}

static void loss(struct compute *c, const struct cross_entropy *e, const float *z,
                 const float *y, float *dz, double *ret)
{
    struct timing t = timing_of("loss and its gradient", 0, 0, 3.0 * e->n, 0);

    while (again(c, &t))
        gpu->loss(c, e, z, y, dz, ret);
}

static void add_rows(struct compute *c, uint32_t n, uint32_t width, const float *a,
                     uint32_t lda, const float *b, uint32_t ldb, const struct relu_mask *mask,
                     float *sum)
{
    struct timing t = timing_of("add gradients of D", 0, 0, 4.0 * n * width, 0);

    while (again(c, &t))
        gpu->add_rows(c, n, width, a, lda, b, ldb, mask, sum);
}

static double residual_floats(const struct device_encode *e)
{
    return e->residual ? 2 * (double)e->dim : 0;
}

/* Residuals change with each call, so the encoded rows are not those that a step would send. */
static void encode(struct compute *c, const struct device_encode *e)
{
    const struct codec *codec = codec_by_id(e->codec);
    /* There is room for more rows than a batch has. */
    const double n = e->n_max < op_monitor->n_rows ? e->n_max : op_monitor->n_rows;
    struct timing t = timing_of("encode", 0, 0,
                                n * (e->dim + residual_floats(e) + (e->residual_at ? 1 : 0) +
                                     (double)codec->row_bytes(e->dim, e->k) / 4),
                                0);

    t.is_encode = true;
    while (again(c, &t))
        gpu->encode(c, e);
}

/* ---- activations in bf16: half a float each ---- */

static void bf16_round(struct compute *c, const struct bf16_copy *copies, uint32_t n)
{
    double floats = 0;
    struct timing t;

    for (uint32_t i = 0; i < n; i++)
        floats += copies[i].n * (copies[i].width + 0.5 * copies[i].ldy);
    t = timing_of("copies in bf16", 0, 0, floats, 0);
    while (again(c, &t))
        gpu->bf16->round(c, copies, n);
}

static void bf16_linear_forward(struct compute *c, const struct bf16_linear *l,
                                enum device_act act, bf16 *y, uint32_t ldy)
{
    const double n = l->n, in = l->in, out = l->out;
    struct timing t = timing_of("linear forward", l->in, l->out,
                                (n * in + in * out + n * out) / 2, 2 * n * in * out);

    while (again(c, &t))
        gpu->bf16->linear_forward(c, l, act, y, ldy);
}

static void bf16_linear_backward(struct compute *c, const struct bf16_linear *l, const bf16 *dy,
                                 bf16 *dx, const struct bf16_mask *mask, float *dw, float *db,
                                 float *sums)
{
    const double n = l->n, in = l->in, out = l->out;
    struct timing t = timing_of(
        "linear backward", l->in, l->out,
        (n * in + n * out + (dx ? n * in + in * out : 0) + (mask ? n * in : 0)) / 2 + in * out,
        (dx ? 4 : 2) * n * in * out);

    while (again(c, &t))
        gpu->bf16->linear_backward(c, l, dy, dx, mask, dw, db, sums);
}

static void bf16_logit_forward(struct compute *c, const struct bf16_logit *l, float *z)
{
    const double n = l->n, in = l->in;
    struct timing t = timing_of("linear forward", l->in, 1, n * in / 2 + in + n, 2 * n * in);

    while (again(c, &t))
        gpu->bf16->logit_forward(c, l, z);
}

static void bf16_logit_backward(struct compute *c, const struct bf16_logit *l, const float *dz,
                                float scale, bf16 *dx, float *dw, float *db, float *sums)
{
    const double n = l->n, in = l->in;
    struct timing t = timing_of("linear backward", l->in, 1, n * in + 3 * in + n, 4 * n * in);

    while (again(c, &t))
        gpu->bf16->logit_backward(c, l, dz, scale, dx, dw, db, sums);
}

/* Rows are read, and their copies written and read. */
static double bf16_rows_floats(const struct bags *b)
{
    return 2.0 * op_monitor->n_rows * b->dim + 2.0 * op_monitor->n_keys;
}

static void bf16_interact_forward(struct compute *c, const struct bags *b, const float *rows,
                                  const struct interact *it, bf16 *x, bf16 *r)
{
    struct timing t = timing_of("bags and interaction forward", 0, 0,
                                bf16_rows_floats(b) + it->n * (it->direct + pairs(it) / 2),
                                2.0 * it->n * pairs(it) * it->dim);

    while (again(c, &t))
        gpu->bf16->interact_bags_forward(c, b, rows, it, x, r);
}

static void bf16_interact_backward(struct compute *c, const struct bags *b,
                                   const struct interact *it, const bf16 *x, const bf16 *dr,
                                   bf16 *dt, const struct bf16_mask *mask, bf16 *dfirst)
{
    const double of_sample = (double)it->n_vectors * it->dim + pairs(it) + 2.0 * it->direct;
    struct timing t = timing_of("interaction backward", 0, 0,
                                (op_monitor->n_rows * (double)b->dim + it->n * of_sample) / 2 +
                                    2.0 * op_monitor->n_keys,
                                4.0 * it->n * pairs(it) * it->dim);

    while (again(c, &t))
        gpu->bf16->interact_bags_backward(c, b, it, x, dr, dt, mask, dfirst);
}

static void bf16_bag_grad(struct compute *c, const struct bags *b, const bf16 *dsums,
                          uint32_t ld, float *drows)
{
    struct timing t = timing_of("bag gradient", 0, 0,
                                bag_floats(b) - (double)b->n * b->n_fields * b->dim / 2, 0);

    while (again(c, &t))
        gpu->bf16->bag_grad(c, b, dsums, ld, drows);
}

static const struct device_bf16_ops *bf16_ops(void)
{
    static struct device_bf16_ops ops;

    ops = *gpu->bf16;
    ops.round = bf16_round;
    ops.linear_forward = bf16_linear_forward;
    ops.linear_backward = bf16_linear_backward;
    ops.logit_forward = bf16_logit_forward;
    ops.logit_backward = bf16_logit_backward;
    ops.interact_bags_forward = bf16_interact_forward;
    ops.interact_bags_backward = bf16_interact_backward;
    ops.bag_grad = bf16_bag_grad;
    return &ops;
}

static bool begin(struct compute *c, uint32_t set, uint64_t key)
{
    op_monitor->set = set;
    op_monitor->began_s = op_monitor_now_s();
    return gpu->begin(c, set, op_monitor->records && !op_monitor->ops ? key : 0);
}

static void upload(struct compute *c, uint32_t set, void *device, const void *host,
                   size_t n_bytes)
{
    op_monitor->in_bytes += (double)n_bytes;
    if (op_monitor->copies)
        gpu->upload(c, set, device, host, n_bytes);
}

static void download(struct compute *c, uint32_t set, void *host, const void *device,
                     size_t n_bytes)
{
    op_monitor->out_bytes += (double)n_bytes;
    if (op_monitor->copies)
        gpu->download(c, set, host, device, n_bytes);
}

/* The ops of a plain DLRM; others are the GPU's own. */
const struct device_ops *op_monitor_ops(struct op_monitor *w)
{
    static struct device_ops ops;

    op_monitor = w;
    ops = device_cuda;
    ops.begin = begin;
    ops.upload = upload;
    ops.download = download;
    ops.linear_forward = linear_forward;
    ops.linear_backward = linear_backward;
    ops.bag_grad = bag_grad;
    ops.interact_bags_forward = interact_bags_forward;
    ops.interact_bags_backward = interact_bags_backward;
    ops.loss = loss;
    ops.add_rows = add_rows;
    ops.encode = encode;
    ops.bf16 = bf16_ops();
    return &ops;
}
