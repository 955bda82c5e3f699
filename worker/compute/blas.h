/*
 * The three matrix products of a linear layer, by OpenBLAS, row-major.
 *
 * OpenBLAS runs on the caller's thread alone. Its own pool spins and would take the cores that the reader, the network
 * and the servers need (a factor of 3 at batch 128). With one thread the order of sums, and so every bit of the
 * result, is the same in each run on one kind of processor. Several threads may call at once.
 */
#ifndef WORKER_COMPUTE_BLAS_H
#define WORKER_COMPUTE_BLAS_H

#include "common/base.h"

/* Pins OpenBLAS to one thread, process-wide; returns the name of its kernels for the log
 * (static storage). */
const char *blas_pin(void);

/* y [n][out], ldy = x [n][in] . w [out][in]^T */
void blas_forward(uint32_t n, uint32_t in, uint32_t out, const float *x, const float *w,
                  float *y, uint32_t ldy);

/* dx [n][in] = dy [n][out] . w [out][in] */
void blas_dx(uint32_t n, uint32_t in, uint32_t out, const float *dy, const float *w, float *dx);

/* dw [out][in] = dy [n][out]^T . x [n][in]; 0 of no samples */
void blas_dw(uint32_t n, uint32_t in, uint32_t out, const float *dy, uint32_t ldy,
             const float *x, float *dw);

#endif
