/* The ops of device.h: each goes to the compute stream, and while a record is made to that, too. */
#include <assert.h>

#include "worker/cuda/cuda.h"

/* Ops stand between begin() and end(), and not where begin() has run their record. */
static uint32_t n_targets(const struct compute *c)
{
    assert(c->n_targets);
    return c->n_targets;
}

static bool check(const struct cuda_target *t, const char *what, cudaError_t e)
{
    return cuda_error_check(t->fault, what, e);
}

void cuda_ops_linear_forward(struct compute *c, const struct linear *l, enum device_act act,
                             float *y, uint32_t ldy)
{
    for (uint32_t i = 0; i < n_targets(c) && l->n; i++) {
        const struct cuda_target *t = &c->targets[i];

        if (l->out == 1)
            (void)check(t, "linear_forward", kernels_head_forward(t->stream, l, act, y, ldy));
        else
            (void)gemm_forward(c->products, t->stream, l, act, y, ldy, t->fault);
    }
}

/* Of no samples. */
static void clear_gradients(const struct cuda_target *t, const struct linear *l, float *dw,
                            float *db, float *sums)
{
    const size_t n_bytes[] = { (size_t)l->in * l->out * sizeof *dw, l->out * sizeof *db,
                               l->in * sizeof *sums };
    float *const all[] = { dw, db, sums };

    for (int i = 0; i < 3; i++)
        if (all[i])
            (void)check(t, "linear_backward",
                        cudaMemsetAsync(all[i], 0, n_bytes[i], t->stream));
}

void cuda_ops_linear_backward(struct compute *c, const struct linear *l, const float *dy,
                              float *dx, const struct relu_mask *mask, float *dw, float *db,
                              float *sums)
{
    const uint32_t width = l->in > l->out ? l->in : l->out;

    assert(!sums || linear_ldx(l) == l->in);

    for (uint32_t i = 0; i < n_targets(c); i++) {
        const struct cuda_target *t = &c->targets[i];
        void *scratch = cuda_scratch(c, kernels_sums_bytes(l->n, width), t->fault);

        if (!scratch)
            return;
        if (!l->n)
            clear_gradients(t, l, dw, db, sums);
        else if (l->out == 1)
            (void)check(
                t, "linear_backward",
                kernels_head_backward(t->stream, l, dy, dx, mask, dw, db, sums, scratch));
        else
            (void)gemm_backward(c->products, t->stream, l, dy, dx, mask, dw, db, sums, scratch,
                                t->fault);
    }
}

void cuda_ops_norm_batch(struct compute *c, const struct norm *nm, const float *x)
{
    for (uint32_t i = 0; i < n_targets(c); i++) {
        const struct cuda_target *t = &c->targets[i];
        void *scratch = cuda_scratch(c, kernels_sums_bytes(nm->n, nm->width), t->fault);

        if (scratch)
            (void)check(t, "norm_batch", kernels_norm_batch(t->stream, nm, x, scratch));
    }
}

void cuda_ops_norm_running(struct compute *c, const struct norm *nm)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "norm_running",
                    kernels_norm_running(c->targets[i].stream, nm));
}

void cuda_ops_norm_apply(struct compute *c, const struct norm *nm, enum device_act act,
                         const float *x, float *y, uint32_t ldy)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "norm_apply",
                    kernels_norm_apply(c->targets[i].stream, nm, act, x, y, ldy));
}

void cuda_ops_norm_backward(struct compute *c, const struct norm *nm,
                            const struct relu_mask *mask, const float *x, float *dy,
                            const struct norm_grads *grads)
{
    for (uint32_t i = 0; i < n_targets(c); i++) {
        const struct cuda_target *t = &c->targets[i];
        void *scratch = cuda_scratch(c, kernels_sums_bytes(nm->n, nm->width), t->fault);

        if (scratch)
            (void)check(t, "norm_backward",
                        kernels_norm_backward(t->stream, nm, mask, x, dy, grads, scratch));
    }
}

void cuda_ops_dropout(struct compute *c, const struct dropout *d, float *y)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "dropout", kernels_dropout(c->targets[i].stream, d, y));
}

void cuda_ops_bag_sum(struct compute *c, const struct bags *b, const float *rows, float *sums,
                      uint32_t ld)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "bag_sum",
                    kernels_bag_sum(c->targets[i].stream, b, rows, sums, ld));
}

void cuda_ops_bag_grad(struct compute *c, const struct bags *b, const float *dsums, uint32_t ld,
                       float *drows)
{
    assert(b->transpose);
    for (uint32_t i = 0; i < n_targets(c); i++) {
        const struct cuda_target *t = &c->targets[i];
        void *scratch = cuda_scratch(
            c, kernels_bag_grad_bytes(b->transpose->n_spans_max, b->dim), t->fault);

        if (scratch)
            (void)check(t, "bag_grad",
                        kernels_bag_grad(t->stream, b, dsums, ld, drows, scratch));
    }
}

void cuda_ops_bag_mean(struct compute *c, const struct bags *b, uint32_t first, uint32_t end,
                       float *x, uint32_t ld)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "bag_mean",
                    kernels_bag_mean(c->targets[i].stream, b, first, end, x, ld));
}

void cuda_ops_transpose_bags(struct compute *c, const struct bag_transposition *t)
{
    for (uint32_t i = 0; i < n_targets(c); i++) {
        const struct cuda_target *target = &c->targets[i];
        void *scratch = cuda_scratch(c, kernels_transpose_bags_bytes(t), target->fault);

        if (scratch)
            (void)check(target, "transpose_bags",
                        kernels_transpose_bags(target->stream, t, scratch));
    }
}

void cuda_ops_wide_sum(struct compute *c, const struct bags *b, const float *weights, float *z)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "wide_sum",
                    kernels_wide_sum(c->targets[i].stream, b, weights, z));
}

void cuda_ops_wide_grad(struct compute *c, const struct bags *b, const float *dz,
                        float *dweights)
{
    assert(b->transpose);
    for (uint32_t i = 0; i < n_targets(c); i++) {
        const struct cuda_target *t = &c->targets[i];
        void *scratch =
            cuda_scratch(c, kernels_bag_grad_bytes(b->transpose->n_spans_max, 1), t->fault);

        if (scratch)
            (void)check(t, "wide_grad", kernels_wide_grad(t->stream, b, dz, dweights, scratch));
    }
}

void cuda_ops_project_forward(struct compute *c, const struct row_projection *p,
                              const float *rows, float *wide)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "project_forward",
                    kernels_project_forward(c->targets[i].stream, p, rows, wide));
}

void cuda_ops_project_backward(struct compute *c, const struct row_projection *p,
                               const float *rows, const float *dwide, float *drows)
{
    for (uint32_t i = 0; i < n_targets(c); i++) {
        const struct cuda_target *t = &c->targets[i];
        void *scratch = cuda_scratch(c, kernels_project_bytes(p), t->fault);

        if (scratch)
            (void)check(t, "project_backward",
                        kernels_project_backward(t->stream, p, rows, dwide, drows, scratch));
    }
}

void cuda_ops_interact_forward(struct compute *c, const struct interact *it, const float *t,
                               float *r)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "interact_forward",
                    kernels_interact_forward(c->targets[i].stream, c->math, it, t, r));
}

void cuda_ops_interact_backward(struct compute *c, const struct interact *it, const float *t,
                                const float *dr, float *dt)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "interact_backward",
                    kernels_interact_backward(c->targets[i].stream, c->math, it, t, dr, dt));
}

void cuda_ops_interact_bags_forward(struct compute *c, const struct bags *b, const float *rows,
                                    const struct interact *it, float *t, float *r)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(
            &c->targets[i], "interact_bags_forward",
            kernels_interact_bags_forward(c->targets[i].stream, c->math, b, rows, it, t, r));
}

void cuda_ops_interact_bags_backward(struct compute *c, const struct bags *b, const float *rows,
                                     const struct interact *it, float *t, const float *dr,
                                     float *dt, const struct relu_mask *mask, float *dfirst)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "interact_bags_backward",
                    kernels_interact_bags_backward(c->targets[i].stream, c->math, b, rows, it,
                                                   t, dr, dt, mask, dfirst));
}

void cuda_ops_pair_sum_forward(struct compute *c, const struct pair_sum *p, const float *t,
                               float *z)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "pair_sum_forward",
                    kernels_pair_sum_forward(c->targets[i].stream, p, t, z));
}

void cuda_ops_pair_sum_backward(struct compute *c, const struct pair_sum *p, const float *t,
                                const float *dz, const float *dx, float *dt)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "pair_sum_backward",
                    kernels_pair_sum_backward(c->targets[i].stream, p, t, dz, dx, dt));
}

void cuda_ops_cross_forward(struct compute *c, const struct cross_shape *s, const float *x0,
                            const float *u, const float *x, float *y)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "cross_forward",
                    kernels_cross_forward(c->targets[i].stream, s, x0, u, x, y));
}

void cuda_ops_cross_backward(struct compute *c, const struct cross_shape *s, const float *x0,
                             const float *u, const float *dy, const float *more, float *du,
                             float *dx0)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "cross_backward",
                    kernels_cross_backward(c->targets[i].stream, s, x0, u, dy, more, du, dx0));
}

void cuda_ops_prob(struct compute *c, uint32_t n, const float *z, float *p)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "prob", kernels_prob(c->targets[i].stream, n, z, p));
}

void cuda_ops_loss(struct compute *c, const struct cross_entropy *e, const float *z,
                   const float *y, float *dz, double *ret)
{
    for (uint32_t i = 0; i < n_targets(c); i++) {
        const struct cuda_target *t = &c->targets[i];
        void *scratch = cuda_scratch(c, kernels_sums_bytes(e->n, 1), t->fault);

        if (scratch)
            (void)check(t, "loss", kernels_loss(t->stream, e, z, y, dz, ret, scratch));
    }
}

void cuda_ops_add_rows(struct compute *c, uint32_t n, uint32_t width, const float *a,
                       uint32_t lda, const float *b, uint32_t ldb, const struct relu_mask *mask,
                       float *sum)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(
            &c->targets[i], "add_rows",
            kernels_add_rows(c->targets[i].stream, n, width, a, lda, b, ldb, mask, sum));
}

void cuda_ops_copy_rows(struct compute *c, uint32_t n, uint32_t width, const float *x,
                        uint32_t ldx, float *y, uint32_t ldy)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "copy_rows",
                    kernels_copy_rows(c->targets[i].stream, n, width, x, ldx, y, ldy));
}

void cuda_ops_number_hats(struct compute *c, const struct number_hats *h, const float *x,
                          float *y)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "number_hats",
                    kernels_number_hats(c->targets[i].stream, h, x, y));
}

void cuda_ops_axpy(struct compute *c, size_t n, float a, const float *x, float *y)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "axpy", kernels_axpy(c->targets[i].stream, n, a, x, y));
}

void cuda_ops_encode(struct compute *c, const struct device_encode *e)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "encode", kernels_encode(c->targets[i].stream, e));
}

void cuda_ops_update_rows(struct compute *c, const struct row_update *u)
{
    for (uint32_t i = 0; i < n_targets(c); i++)
        (void)check(&c->targets[i], "update_rows",
                    kernels_update_rows(c->targets[i].stream, u));
}
