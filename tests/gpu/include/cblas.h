/* For machines with a GPU and no OpenBLAS: its products of worker/compute/cpu_gemm.c, plain, with sums in double. */
#ifndef GPU_CBLAS_H
#define GPU_CBLAS_H

typedef int blasint;
enum cblas_order { CblasRowMajor };
enum cblas_turn { CblasNoTrans, CblasTrans };

static inline void openblas_set_num_threads(int n)
{
    (void)n;
}

static inline const char *openblas_get_corename(void)
{
    return "plain";
}

/* c [m][n] = op(a) op(b), over k. */
static inline void cblas_sgemm(enum cblas_order order, enum cblas_turn ta, enum cblas_turn tb,
                               blasint m, blasint n, blasint k, float alpha, const float *a,
                               blasint lda, const float *b, blasint ldb, float beta, float *c,
                               blasint ldc)
{
    (void)order, (void)alpha, (void)beta;
    for (long i = 0; i < m; i++)
        for (long j = 0; j < n; j++) {
            double sum = 0;

            for (long l = 0; l < k; l++)
                sum += (double)a[ta == CblasTrans ? l * lda + i : i * lda + l] *
                       (double)b[tb == CblasTrans ? j * ldb + l : l * ldb + j];
            c[i * ldc + j] = (float)sum;
        }
}

#endif
