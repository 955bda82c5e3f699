#include "server/replication/arithmetic.h"

#include <gnu/libc-version.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/crc32c.h"
#include "common/hash.h"
#include "server/core/optimizer.h"
#include "server/core/row_init.h"
#include "server/core/weights.h"

#define N_RESULTS 8192u /* of each function */
#define DIM 64u

/* The optimizers, and the derived numbers of a step, that the first psds with a fingerprint had: two versions that
 * compute alike say so. Later optimizers are made of the same operations. */
#define OPTIM_END (TABLE_SPEC_FTRL + 1)
#define N_DERIVED 6u

/* The doubles themselves, before they are rounded to floats: they differ first. */
static uint32_t add_libm(uint32_t crc)
{
    for (uint32_t i = 0; i < N_RESULTS; i++) {
        const double u = 1.0 - (double)hash_unit(hash_mix2(1, i));
        const double results[] = { log(u), sin(6.283185307179586 * u),
                                   cos(6.283185307179586 * u), pow(u, 1 + i % 100), sqrt(u) };

        crc = crc32c_extend(crc, results, sizeof results);
    }
    return crc;
}

static struct table_spec spec_of(enum table_spec_optim optim)
{
    return (struct table_spec){ .kind = TABLE_SPEC_SPARSE,
                                .dim = DIM,
                                .seed = 7,
                                .init = TABLE_SPEC_INIT_NORMAL,
                                .init_scale = 0.5f,
                                .optim = optim,
                                .params = table_spec_optim_defaults(optim) };
}

/* Some steps on one row, as a push takes them. */
static uint32_t add_optimizer(uint32_t crc, enum table_spec_optim id)
{
    const struct optimizer *optim = optimizer_find(id);
    const struct table_spec spec = spec_of(id);
    float weights[DIM], gradient[DIM], state[2 * DIM];
    uint16_t halves[DIM];

    row_init_row(&spec, id, weights);
    optim->init(weights, state, DIM, &spec.params);
    for (uint64_t t = 1; t <= 16; t++) {
        const struct optimizer_step step = optimizer_step_at(optim, &spec, t, t);

        row_init_row(&spec, 1000 + t, gradient);
        optim->step(weights, state, gradient, DIM, &step);
        weights_store(TABLE_SPEC_BF16, weights, DIM, t, halves);
        crc = crc32c_extend(crc, weights, sizeof weights);
        crc = crc32c_extend(crc, halves, sizeof halves);
        crc = crc32c_extend(crc, step.derived, N_DERIVED * sizeof *step.derived);
    }
    return crc;
}

void arithmetic_fingerprint(char ret[static ARITHMETIC_MAX])
{
    static const char *const builds[] = {
        [SIMD_PLAIN] = "plain", [SIMD_AVX2] = "avx2", [SIMD_AVX512] = "avx512"
    };
    uint32_t crc = add_libm(0);

    for (enum table_spec_optim id = 0; id < OPTIM_END; id++)
        crc = add_optimizer(crc, id);
    snprintf(ret, ARITHMETIC_MAX, "%s glibc-%.20s %08x", builds[simd_best()],
             gnu_get_libc_version(), crc);
}
