#include "worker/compute/cpu_tiles_catalog.h"

#include "worker/compute/cpu_tiles_kernels.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* arch_prctl(2): the tile unit's registers are 8 KiB a thread, which Linux (since 5.16)
 * keeps for a process that has asked; its threads inherit the answer. */
enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

static bool runs_dot(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;

    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & 1u << 5;
}

static bool runs_amx(void)
{
    const unsigned tile_and_bf16 = 1u << 24 | 1u << 22;
    unsigned a = 0, b = 0, c = 0, d = 0;

    return runs_dot() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d & tile_and_bf16) == tile_and_bf16 &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static bool runs_fma(void)
{
    return __builtin_cpu_supports("avx512f");
}

static const struct cpu_tiles kernels[] = {
    { "amx", COMPUTE_BF16, CPU_TILES_BF16, runs_amx, cpu_tiles_round_rows,
      cpu_tiles_plain_rows_bf16, cpu_tiles_round_pairs, cpu_tiles_plain_pairs_bf16,
      cpu_tiles_amx_multiply, cpu_tiles_plain_amx },
    { "avx512_bf16", COMPUTE_BF16, CPU_TILES_BF16, runs_dot, cpu_tiles_round_rows,
      cpu_tiles_plain_rows_bf16, cpu_tiles_round_pairs, cpu_tiles_plain_pairs_bf16,
      cpu_tiles_dot_multiply, cpu_tiles_plain_dot },
    { "fma", COMPUTE_FP32, CPU_TILES_FP32, runs_fma, cpu_tiles_fma_rows,
      cpu_tiles_plain_rows_fp32, cpu_tiles_fma_pairs, cpu_tiles_plain_pairs_fp32,
      cpu_tiles_fma_multiply, cpu_tiles_plain_fma },
};

const struct cpu_tiles *cpu_tiles_catalog_at(uint32_t i)
{
    return i < COUNT_OF(kernels) ? &kernels[i] : NULL;
}

#else

const struct cpu_tiles *cpu_tiles_catalog_at(uint32_t i)
{
    (void)i;
    return NULL;
}

#endif

const struct cpu_tiles *cpu_tiles_catalog_best(enum compute_products products)
{
    const struct cpu_tiles *k;

    for (uint32_t i = 0; (k = cpu_tiles_catalog_at(i)) != NULL; i++)
        if (k->products == products && k->runs())
            return k;
    return NULL;
}
