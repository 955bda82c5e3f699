/*
 * The builds of an optimizer, common/simd.h. An optimizer's file has its step() as a SIMD_INLINE
 * function and ends with OPTIM_BUILDS: optim_X is the plain build, the definition; optim_X_avx2
 * and optim_X_avx512 are the others. optim_catalog.c knows them all.
 */
#ifndef SERVER_CORE_OPTIM_BUILDS_H
#define SERVER_CORE_OPTIM_BUILDS_H

#include "common/simd.h"
#include "server/core/optim.h"

#define OPTIM_BUILDS(name, number, prepare_or_null)                     \
    OPTIM_BUILD(name, , SIMD_TARGET_PLAIN, number, prepare_or_null)     \
    OPTIM_BUILD(name, _avx2, SIMD_TARGET_AVX2, number, prepare_or_null) \
    OPTIM_BUILD(name, _avx512, SIMD_TARGET_AVX512, number, prepare_or_null)

#define OPTIM_BUILD(name, suffix, target, number, prepare_or_null)                         \
    target static void step_row##suffix(float *restrict weights, float *restrict state,    \
                                        const optim_gradient *restrict grad, uint32_t dim, \
                                        const struct optim_step *s)                        \
    {                                                                                      \
        step(weights, state, grad, dim, s);                                                \
    }                                                                                      \
    const struct optim optim_##name##suffix = {                                            \
        .id = (number),                                                                    \
        .state_floats = state_floats,                                                      \
        .prepare = (prepare_or_null),                                                      \
        .init = init,                                                                      \
        .step = step_row##suffix,                                                          \
    };

/* What optim.h declares of each, for the other builds. */
extern const struct optim optim_sgd_avx2, optim_sgd_avx512, optim_momentum_avx2,
    optim_momentum_avx512, optim_adagrad_avx2, optim_adagrad_avx512, optim_rowwise_adagrad_avx2,
    optim_rowwise_adagrad_avx512, optim_adam_avx2, optim_adam_avx512, optim_ftrl_avx2,
    optim_ftrl_avx512;

#endif
