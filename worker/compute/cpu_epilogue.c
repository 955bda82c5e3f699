#include "worker/compute/cpu_epilogue.h"

#include <string.h>

#include "worker/compute/cpu_internal.h"

CPU_CLONES static void add_bias(uint32_t n, uint32_t width, const float *x, uint32_t ldx,
                                const float *b, float *y, uint32_t ldy)
{
    for (uint32_t s = 0; s < n; s++, x += ldx, y += ldy)
        for (uint32_t o = 0; o < width; o++)
            y[o] = x[o] + b[o];
}

/* Written so that a NaN stays one: a model that has blown up must not look healthy. */
CPU_CLONES static void add_bias_relu(uint32_t n, uint32_t width, const float *x, uint32_t ldx,
                                     const float *b, float *y, uint32_t ldy)
{
    for (uint32_t s = 0; s < n; s++, x += ldx, y += ldy)
        for (uint32_t o = 0; o < width; o++) {
            const float v = x[o] + b[o];

            y[o] = 0.0f > v ? 0.0f : v;
        }
}

void cpu_epilogue_bias(uint32_t n, uint32_t width, const float *x, uint32_t ldx, const float *b,
                       enum device_act act, float *y, uint32_t ldy)
{
    if (act == DEVICE_RELU)
        add_bias_relu(n, width, x, ldx, b, y, ldy);
    else
        add_bias(n, width, x, ldx, b, y, ldy);
}

CPU_CLONES static void apply_mask(uint32_t n, uint32_t width, const float *x, uint32_t ldx,
                                  const struct relu_mask *mask, float *d, uint32_t ldd)
{
    const float *y = mask->y;
    const float scale = mask->scale;

    for (uint32_t s = 0; s < n; s++, x += ldx, d += ldd, y += mask->ldy)
        for (uint32_t o = 0; o < width; o++)
            d[o] = y[o] > 0.0f ? x[o] * scale : 0.0f;
}

void cpu_epilogue_mask(uint32_t n, uint32_t width, const float *x, uint32_t ldx,
                       const struct relu_mask *mask, float *d, uint32_t ldd)
{
    if (mask)
        apply_mask(n, width, x, ldx, mask, d, ldd);
    else if (d != x)
        for (uint32_t s = 0; s < n; s++)
            memcpy(d + (size_t)s * ldd, x + (size_t)s * ldx, width * sizeof *d);
}

CPU_CLONES static void add_rows(uint32_t n, uint32_t width, const float *x, uint32_t ldx,
                                float *restrict sum)
{
    for (uint32_t s = 0; s < n; s++, x += ldx)
        for (uint32_t o = 0; o < width; o++)
            sum[o] += x[o];
}

void cpu_epilogue_sum(uint32_t n, uint32_t width, const float *x, uint32_t ldx, float *sum)
{
    memset(sum, 0, width * sizeof *sum);
    add_rows(n, width, x, ldx, sum);
}
