#include "worker/compute/blas.h"

#include <cblas.h>
#include <string.h>

const char *blas_pin(void)
{
    openblas_set_num_threads(1);
    return openblas_get_corename();
}

void blas_forward(uint32_t n, uint32_t in, uint32_t out, const float *x, const float *w,
                  float *y, uint32_t ldy)
{
    if (n)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)n, (blasint)out,
                    (blasint)in, 1.0f, x, (blasint)in, w, (blasint)in, 0.0f, y, (blasint)ldy);
}

void blas_dx(uint32_t n, uint32_t in, uint32_t out, const float *dy, const float *w, float *dx)
{
    if (n)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)n, (blasint)in,
                    (blasint)out, 1.0f, dy, (blasint)out, w, (blasint)in, 0.0f, dx,
                    (blasint)in);
}

void blas_dw(uint32_t n, uint32_t in, uint32_t out, const float *dy, uint32_t ldy,
             const float *x, float *dw)
{
    if (n)
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)out, (blasint)in,
                    (blasint)n, 1.0f, dy, (blasint)ldy, x, (blasint)in, 0.0f, dw, (blasint)in);
    else
        memset(dw, 0, (size_t)out * in * sizeof *dw);
}
