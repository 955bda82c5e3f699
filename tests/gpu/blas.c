/* Products for the CPU's ops where OpenBLAS is missing: what the kernels are held to needs none of them to be fast. */
#include "worker/compute/blas.h"

const char *blas_pin(void)
{
    return "plain";
}

void blas_forward(uint32_t n, uint32_t in, uint32_t out, const float *x, const float *w,
                  float *y, uint32_t ldy)
{
    for (size_t s = 0; s < n; s++)
        for (size_t o = 0; o < out; o++) {
            float sum = 0;

            for (size_t i = 0; i < in; i++)
                sum += x[s * in + i] * w[o * in + i];
            y[s * ldy + o] = sum;
        }
}

void blas_dx(uint32_t n, uint32_t in, uint32_t out, const float *dy, const float *w, float *dx)
{
    for (size_t s = 0; s < n; s++)
        for (size_t i = 0; i < in; i++) {
            float sum = 0;

            for (size_t o = 0; o < out; o++)
                sum += dy[s * out + o] * w[o * in + i];
            dx[s * in + i] = sum;
        }
}

void blas_dw(uint32_t n, uint32_t in, uint32_t out, const float *dy, uint32_t ldy,
             const float *x, float *dw)
{
    for (size_t o = 0; o < out; o++)
        for (size_t i = 0; i < in; i++) {
            float sum = 0;

            for (size_t s = 0; s < n; s++)
                sum += dy[s * ldy + o] * x[s * in + i];
            dw[o * in + i] = sum;
        }
}
