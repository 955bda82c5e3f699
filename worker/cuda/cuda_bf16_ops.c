/* The ops of device_bf16.h, as those of cuda_ops.c. */
#include <assert.h>
#include <errno.h>

#include "worker/cuda/cuda.h"

static bool check(const struct cuda_target *t, const char *what, cudaError_t e)
{
    return cuda_error_check(t->fault, what, e);
}

static int bf16_reserve(struct compute *c, uint32_t n_max, uint32_t in, uint32_t out)
{
    struct cuda_error f = { 0 };

    if (!cuda_use_device(c->device, &f))
        return -ENOMEM;
    cuda_release_graphs(c);
    if (cuda_error_check(&f, "reserve", gemm_bf16_reserve(c->products, in, out)) &&
        cuda_scratch(c, kernels_sums_bytes(n_max, in > out ? in : out), &f))
        return 0;
    return -ENOMEM;
}

static int bf16_reserve_rows(struct compute *c, uint32_t n_rows, uint32_t dim)
{
    struct cuda_error f = { 0 };

    return cuda_use_device(c->device, &f) &&
                   cuda_reserve_rounded_rows(c, (size_t)n_rows * dim * sizeof(bf16), &f)
               ? 0
               : -ENOMEM;
}

static void bf16_round(struct compute *c, const struct bf16_copy *copies, uint32_t n)
{
    for (uint32_t i = 0; i < c->n_targets; i++)
        (void)check(&c->targets[i], "round",
                    kernels_bf16_round(c->targets[i].stream, copies, n));
}

static void bf16_linear_forward(struct compute *c, const struct bf16_linear *l,
                                enum device_act act, bf16 *y, uint32_t ldy)
{
    for (uint32_t i = 0; i < c->n_targets && l->n; i++)
        (void)gemm_bf16_forward(c->products, c->targets[i].stream, l, act, y, ldy,
                                c->targets[i].fault);
}

/* Of no samples. */
static void clear(const struct cuda_target *t, float *sums, size_t n)
{
    if (sums)
        (void)check(t, "linear_backward",
                    cudaMemsetAsync(sums, 0, n * sizeof *sums, t->stream));
}

static void bf16_linear_backward(struct compute *c, const struct bf16_linear *l, const bf16 *dy,
                                 bf16 *dx, const struct bf16_mask *mask, float *dw, float *db,
                                 float *sums)
{
    const uint32_t width = l->in > l->out ? l->in : l->out;

    for (uint32_t i = 0; i < c->n_targets; i++) {
        const struct cuda_target *t = &c->targets[i];
        void *scratch = cuda_scratch(c, kernels_sums_bytes(l->n, width), t->fault);

        if (!scratch)
            return;
        if (l->n) {
            (void)gemm_bf16_backward(c->products, t->stream, l, dy, dx, mask, dw, db, sums,
                                     scratch, t->fault);
            continue;
        }
        clear(t, dw, (size_t)l->in * l->out);
        clear(t, db, l->out);
        clear(t, sums, l->in);
    }
}

static void bf16_logit_forward(struct compute *c, const struct bf16_logit *l, float *z)
{
    for (uint32_t i = 0; i < c->n_targets; i++)
        (void)check(&c->targets[i], "logit_forward",
                    kernels_bf16_logit_forward(c->targets[i].stream, l, z));
}

static void bf16_logit_backward(struct compute *c, const struct bf16_logit *l, const float *dz,
                                float scale, bf16 *dx, float *dw, float *db, float *sums)
{
    for (uint32_t i = 0; i < c->n_targets; i++) {
        const struct cuda_target *t = &c->targets[i];
        void *scratch = cuda_scratch(c, kernels_bf16_logit_bytes(l), t->fault);

        if (scratch)
            (void)check(t, "logit_backward",
                        kernels_bf16_logit_backward(t->stream, l, dz, dx, scale, dw, db, sums,
                                                    scratch));
    }
}

static void bf16_dropout(struct compute *c, const struct dropout *d, bf16 *y)
{
    for (uint32_t i = 0; i < c->n_targets; i++)
        (void)check(&c->targets[i], "dropout",
                    kernels_bf16_dropout(c->targets[i].stream, d, y));
}

static void bf16_interact_forward(struct compute *c, const struct bags *b, const float *rows,
                                  const struct interact *it, bf16 *t, bf16 *r)
{
    assert((size_t)b->transpose->n_rows_max * b->dim * sizeof(bf16) <= c->rounded_rows.n_bytes);
    for (uint32_t i = 0; i < c->n_targets; i++) {
        const struct cuda_target *target = &c->targets[i];
        bf16 *rounded = c->rounded_rows.memory;

        if (check(target, "interact_forward",
                  kernels_bf16_round_rows(target->stream, b->dim, b->transpose, rows, rounded)))
            (void)check(target, "interact_forward",
                        kernels_bf16_interact_forward(target->stream, b, rounded, it, t, r));
    }
}

static void bf16_interact_backward(struct compute *c, const struct bags *b,
                                   const struct interact *it, const bf16 *t, const bf16 *dr,
                                   bf16 *dt, const struct bf16_mask *mask, bf16 *dfirst)
{
    for (uint32_t i = 0; i < c->n_targets; i++)
        (void)check(&c->targets[i], "interact_backward",
                    kernels_bf16_interact_backward(c->targets[i].stream, b,
                                                   c->rounded_rows.memory, it, t, dr, dt, mask,
                                                   dfirst));
}

static void bf16_bag_grad(struct compute *c, const struct bags *b, const bf16 *dsums,
                          uint32_t ld, float *drows)
{
    for (uint32_t i = 0; i < c->n_targets; i++) {
        const struct cuda_target *t = &c->targets[i];
        void *scratch = cuda_scratch(
            c, kernels_bag_grad_bytes(b->transpose->n_spans_max, b->dim), t->fault);

        if (scratch)
            (void)check(t, "bag_grad",
                        kernels_bf16_bag_grad(t->stream, b, dsums, ld, drows, scratch));
    }
}

const struct device_bf16_ops cuda_bf16_ops = {
    .reserve = bf16_reserve,
    .reserve_rows = bf16_reserve_rows,
    .round = bf16_round,
    .linear_forward = bf16_linear_forward,
    .linear_backward = bf16_linear_backward,
    .logit_forward = bf16_logit_forward,
    .logit_backward = bf16_logit_backward,
    .dropout = bf16_dropout,
    .interact_bags_forward = bf16_interact_forward,
    .interact_bags_backward = bf16_interact_backward,
    .bag_grad = bf16_bag_grad,
};
