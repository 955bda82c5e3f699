#include "tests/bench-step/timed.h"

#include <assert.h>
#include <time.h>

static const struct device_ops *const cpu = &device_cpu;

/* A program for one measurement: the only file-scope state. */
static struct timed *timed;

double timed_now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void timed_restart(struct timed *t)
{
    t->at = 0;
}

/* Since `start`. floats: moved at least. */
static void note(double start, const char *name, uint32_t in, uint32_t out, double floats,
                 double n_flop)
{
    const double s = timed_now_s() - start;
    struct timed_op *op;

    assert(timed->at < TIMED_OPS_MAX);
    op = &timed->ops[timed->at++];
    if (timed->at > timed->n) {
        timed->n = timed->at;
        *op = (struct timed_op){ name, in, out, s, 4 * floats, n_flop };
    }
    if (s < op->best_s)
        op->best_s = s;
}

static void linear_forward(struct compute *c, const struct linear *l, enum device_act act,
                           float *y, uint32_t ldy)
{
    const double start = timed_now_s(), n = l->n, in = l->in, out = l->out;

    cpu->linear_forward(c, l, act, y, ldy);
    note(start, "linear forward", l->in, l->out, n * in + in * out + n * out, 2 * n * in * out);
}

static void linear_backward(struct compute *c, const struct linear *l, const float *dy,
                            float *dx, const struct relu_mask *mask, float *dw, float *db,
                            float *sums)
{
    const double start = timed_now_s(), n = l->n, in = l->in, out = l->out;

    cpu->linear_backward(c, l, dy, dx, mask, dw, db, sums);
    note(start, "linear backward", l->in, l->out,
         n * in + n * out + (dx ? n * in + in * out : 0) + (mask ? n * in : 0) + in * out,
         (dx ? 4 : 2) * n * in * out);
}

static void bag_sum(struct compute *c, const struct bags *b, const float *rows, float *sums,
                    uint32_t ld)
{
    const double start = timed_now_s(), n_keys = b->starts[(size_t)b->n * b->n_fields];

    cpu->bag_sum(c, b, rows, sums, ld);
    note(start, "bag sum", 0, 0,
         (double)b->n_rows * b->dim + 2 * n_keys + (double)b->n * b->n_fields * b->dim, 0);
}

static void bag_grad(struct compute *c, const struct bags *b, const float *dsums, uint32_t ld,
                     float *drows)
{
    const double start = timed_now_s(), n_keys = b->starts[(size_t)b->n * b->n_fields];

    cpu->bag_grad(c, b, dsums, ld, drows);
    note(start, "bag gradient", 0, 0,
         (double)b->n_rows * b->dim + 2 * n_keys + (double)b->n * b->n_fields * b->dim, 0);
}

static double pairs(const struct interact *it)
{
    return (double)it->n_vectors * (it->n_vectors + (it->self ? 1.0 : -1.0)) / 2;
}

static void interact_forward(struct compute *c, const struct interact *it, const float *t,
                             float *r)
{
    const double start = timed_now_s();

    cpu->interact_forward(c, it, t, r);
    note(start, "interaction forward", 0, 0,
         it->n * ((double)it->n_vectors * it->dim + it->direct + pairs(it)), 0);
}

static void interact_backward(struct compute *c, const struct interact *it, const float *t,
                              const float *dr, float *dt)
{
    const double start = timed_now_s();

    cpu->interact_backward(c, it, t, dr, dt);
    note(start, "interaction backward", 0, 0,
         it->n * (2.0 * it->n_vectors * it->dim + pairs(it)), 0);
}

static void prob(struct compute *c, uint32_t n, const float *z, float *p)
{
    const double start = timed_now_s();

    cpu->prob(c, n, z, p);
    note(start, "probability", 0, 0, 2.0 * n, 0);
}

static void loss(struct compute *c, const struct cross_entropy *e, const float *z,
                 const float *y, float *dz, double *ret)
{
    const double start = timed_now_s();

    cpu->loss(c, e, z, y, dz, ret);
    note(start, "loss and its gradient", 0, 0, 3.0 * e->n, 0);
}

static void add_rows(struct compute *c, uint32_t n, uint32_t width, const float *a,
                     uint32_t lda, const float *b, uint32_t ldb, const struct relu_mask *mask,
                     float *sum)
{
    const double start = timed_now_s();

    cpu->add_rows(c, n, width, a, lda, b, ldb, mask, sum);
    note(start, "add gradients of D", 0, 0, 4.0 * n * width, 0);
}

/* The ops of a plain DLRM; others are the CPU's own. */
static const struct device_ops *table(struct device_ops *ops)
{
    *ops = device_cpu;
    ops->linear_forward = linear_forward;
    ops->linear_backward = linear_backward;
    ops->bag_sum = bag_sum;
    ops->bag_grad = bag_grad;
    ops->interact_forward = interact_forward;
    ops->interact_backward = interact_backward;
    ops->prob = prob;
    ops->loss = loss;
    ops->add_rows = add_rows;
    return ops;
}

const struct device_ops *timed_ops(struct timed *t)
{
    static struct device_ops ops;

    *t = (struct timed){ 0 };
    timed = t;
    return table(&ops);
}
