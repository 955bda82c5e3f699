#include "worker/compute/cpu.h"
#include "worker/compute/cpu_gemm.h"

#include <string.h>

CPU_CLONES static void add_bias(uint32_t n, uint32_t width, const float *restrict b,
                                float *restrict y, uint32_t ldy)
{
    for (uint32_t s = 0; s < n; s++, y += ldy)
        for (uint32_t o = 0; o < width; o++)
            y[o] += b[o];
}

/* Written so that a NaN stays one: a model that has blown up must not look healthy. */
CPU_CLONES static void add_bias_relu(uint32_t n, uint32_t width, const float *restrict b,
                                     float *restrict y, uint32_t ldy)
{
    for (uint32_t s = 0; s < n; s++, y += ldy)
        for (uint32_t o = 0; o < width; o++) {
            const float v = y[o] + b[o];

            y[o] = 0.0f > v ? 0.0f : v;
        }
}

void cpu_linear_forward(struct compute *c, const struct linear *l, enum compute_act act,
                        float *y, uint32_t ldy)
{
    (void)c;
    cpu_gemm_forward(l->n, l->in, l->out, l->x, l->w, y, ldy);
    if (act == COMPUTE_RELU)
        add_bias_relu(l->n, l->out, l->b, y, ldy);
    else
        add_bias(l->n, l->out, l->b, y, ldy);
}

CPU_CLONES static void sum_columns(uint32_t n, uint32_t width, const float *restrict dy,
                                   float *restrict db)
{
    for (uint32_t s = 0; s < n; s++, dy += width)
        for (uint32_t o = 0; o < width; o++)
            db[o] += dy[o];
}

/* Mask and column sums in one walk: dy is larger than a cache. */
CPU_CLONES static void mask_and_sum(uint32_t n, uint32_t width, const struct relu_mask *mask,
                                    float *restrict dy, float *restrict db)
{
    const float *restrict y = mask->y;
    const float scale = mask->scale;

    for (uint32_t s = 0; s < n; s++, dy += width, y += mask->ldy)
        for (uint32_t o = 0; o < width; o++) {
            const float d = y[o] > 0.0f ? dy[o] * scale : 0.0f;

            dy[o] = d;
            db[o] += d;
        }
}

void cpu_linear_backward(struct compute *c, const struct linear *l,
                         const struct relu_mask *mask, float *dy, float *dx, float *dw,
                         float *db)
{
    (void)c;
    if (db) {
        memset(db, 0, l->out * sizeof *db);
        if (mask)
            mask_and_sum(l->n, l->out, mask, dy, db);
        else
            sum_columns(l->n, l->out, dy, db);
    }
    if (dw)
        cpu_gemm_dw(l->n, l->in, l->out, dy, l->x, dw);
    if (dx)
        cpu_gemm_dx(l->n, l->in, l->out, dy, l->w, dx);
}
