/* The parts of the kernels in the catalog, each in a file of its name. */
#ifndef WORKER_COMPUTE_CPU_TILES_KERNELS_H
#define WORKER_COMPUTE_CPU_TILES_KERNELS_H

#include "worker/compute/cpu_tiles.h"

/* In front of loops of a few turns over registers, which must not be addressed by a
 * variable. */
#define CPU_TILES_UNROLL _Pragma("GCC unroll 16")

/* The definitions. */
cpu_tiles_rows cpu_tiles_plain_rows_bf16, cpu_tiles_plain_rows_fp32;
cpu_tiles_pairs cpu_tiles_plain_pairs_bf16, cpu_tiles_plain_pairs_fp32;
cpu_tiles_multiply cpu_tiles_plain_fma, cpu_tiles_plain_amx, cpu_tiles_plain_dot;

#if defined(__x86_64__)
/* AVX512-BF16. */
cpu_tiles_rows cpu_tiles_round_rows;
cpu_tiles_pairs cpu_tiles_round_pairs;
cpu_tiles_multiply cpu_tiles_amx_multiply, cpu_tiles_dot_multiply;

/* AVX-512. */
cpu_tiles_rows cpu_tiles_fma_rows;
cpu_tiles_pairs cpu_tiles_fma_pairs;
cpu_tiles_multiply cpu_tiles_fma_multiply;
#endif

#endif
