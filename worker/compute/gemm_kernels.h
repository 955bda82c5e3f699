/*
 * Matrix products by kernels of our own: C [m][n] = or += A [m][k] . B [k][n].
 *
 * Inputs are fp32 arrays, packed into tiles of 16 x 32 numbers as the kernel reads them:
 *
 *                  fp32, 2 KiB                   bf16, 1 KiB
 *     tile of A    [32 k][16 rows of A]          [16 rows of A][32 k]
 *     tile of B    [32 k][16 columns of B]       [16 pairs of k][16 columns of B][2: k, k + 1]
 *     panel        the tiles of 16 rows of A, or of 16 columns of B, k ascending
 *
 * For bf16 they are rounded on the way, to nearest even; denormals become 0. Past an array's end tiles hold 0, which
 * adds nothing. A source array may stand either way:
 *
 *     rows     16 rows of the source, cut along k          A, or B^T transposed
 *     pairs    32 rows of the source, which are k          B, or A^T transposed
 *
 * The order of sums is the kernel's, as OpenBLAS's is, so that last bits differ between kinds
 * of processors:
 *
 *     fma           c = fma(a, b, c), k ascending
 *     amx           each 32 k: even and odd k summed apart, from 0, ascending; c += even + odd
 *     avx512_bf16   each pair of k: c += odd product, c += even product
 *
 * The last two round to nearest and take denormals for 0, going in and coming out; products of
 * two bf16 numbers are exact in their fused multiply-adds. Beside each kernel stands its plain
 * version, which is its definition and its test.
 */
#ifndef WORKER_COMPUTE_GEMM_KERNELS_H
#define WORKER_COMPUTE_GEMM_KERNELS_H

#include <stdbool.h>

#include "worker/compute/device.h"

#define GEMM_KERNELS_ROWS 16u  /* of a panel */
#define GEMM_KERNELS_DEPTH 32u /* k of a tile */

/* Tiles are counted in uint16_t, whatever is in them. */
#define GEMM_KERNELS_BF16 (GEMM_KERNELS_ROWS * GEMM_KERNELS_DEPTH)
#define GEMM_KERNELS_FP32 (2 * GEMM_KERNELS_BF16)

enum gemm_kernels_layout { GEMM_KERNELS_STRAIGHT, GEMM_KERNELS_TRANSPOSED };
enum gemm_kernels_start { GEMM_KERNELS_SET, GEMM_KERNELS_ADD }; /* c = or c += */

/* n_rows x n_cols floats at src, rows ld floats apart. */
struct gemm_kernels_source {
    const float *src;
    size_t ld;
    uint32_t n_rows, n_cols;
};

/* n panels, `stride` from one to the next. */
struct gemm_kernels_panels {
    const uint16_t *tiles;
    size_t stride;
    uint32_t n;
};

/* c [16 a->n][16 b->n], rows ldc floats apart, = or += the products over n_k tiles. */
typedef void gemm_kernels_multiply(const struct gemm_kernels_panels *a,
                                   const struct gemm_kernels_panels *b, uint32_t n_k,
                                   enum gemm_kernels_start start, float *c, size_t ldc);

/* At most 16 rows -> one panel; transposed: of B. */
typedef void gemm_kernels_rows(const struct gemm_kernels_source *s,
                               enum gemm_kernels_layout layout, uint16_t *tiles);

/* At most 32 rows -> one tile for each 16 columns, `stride` apart; transposed: of A. */
typedef void gemm_kernels_pairs(const struct gemm_kernels_source *s,
                                enum gemm_kernels_layout layout, uint16_t *tiles,
                                size_t stride);

struct gemm_kernels {
    const char *name;
    enum device_products products;
    uint32_t tile; /* uint16_t of one */

    /* Whether this processor and its kernel, which is asked to permit it, run it. */
    bool (*runs)(void);

    gemm_kernels_rows *rows, *rows_plain;
    gemm_kernels_pairs *pairs, *pairs_plain;
    gemm_kernels_multiply *multiply, *multiply_plain;
};

/* The i-th kernel, faster ones first; NULL past the last. */
const struct gemm_kernels *gemm_kernels_at(uint32_t i);

/* The first kernel for such products that runs here, or NULL. */
const struct gemm_kernels *gemm_kernels_best(enum device_products products);

#endif
