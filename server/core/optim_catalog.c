#include "server/core/optim_catalog.h"

#include <math.h>

#include "server/core/optim_builds.h"

#define BUILDS_OF(name)                                                   \
    {                                                                     \
        [SIMD_PLAIN] = &optim_##name, [SIMD_AVX2] = &optim_##name##_avx2, \
        [SIMD_AVX512] = &optim_##name##_avx512                            \
    }

/* To add an optimizer: write optim_NAME.c, name it in optim.h, optim_builds.h and here. */
static const struct optim *const catalog[][SIMD_END] = {
    [SPEC_SGD] = BUILDS_OF(sgd),         [SPEC_MOMENTUM] = BUILDS_OF(momentum),
    [SPEC_ADAGRAD] = BUILDS_OF(adagrad), [SPEC_ROWWISE_ADAGRAD] = BUILDS_OF(rowwise_adagrad),
    [SPEC_ADAM] = BUILDS_OF(adam),       [SPEC_FTRL] = BUILDS_OF(ftrl),
};

const struct optim *optim_build(enum spec_optim id, enum simd build)
{
    return catalog[id][build];
}

const struct optim *optim_find(enum spec_optim id)
{
    return (size_t)id < COUNT_OF(catalog) ? catalog[id][simd_best()] : NULL;
}

static double decay(const struct lr_schedule *schedule, uint64_t clock)
{
    double x = clock > schedule->decay_start ? (double)(clock - schedule->decay_start) : 0.0;
    double span = schedule->decay_clocks ? (double)schedule->decay_clocks : 1.0;
    double factor = 1.0;

    switch (schedule->decay) {
    case SPEC_DECAY_LINEAR:
        factor = 1.0 - x / span;
        break;
    case SPEC_DECAY_EXP:
        factor = pow((double)schedule->decay_rate, x / span);
        break;
    case SPEC_DECAY_INV_SQRT:
        factor = 1.0 / sqrt(1.0 + x / span);
        break;
    case SPEC_DECAY_NONE:
    case SPEC_DECAY_END:
        return 1.0;
    }
    return fmax((double)schedule->decay_floor, factor);
}

float optim_rate(float learning_rate, const struct lr_schedule *schedule, uint64_t clock)
{
    double rate = (double)learning_rate * decay(schedule, clock);

    if (clock < schedule->warmup_clocks)
        rate *= ((double)clock + 1.0) / (double)schedule->warmup_clocks;
    return (float)rate;
}

struct optim_step optim_step_at(const struct optim *optim, const struct table_spec *spec,
                                uint64_t clock, uint64_t t)
{
    struct optim_step step = {
        .params = &spec->params,
        .lr = optim_rate(spec->params.learning_rate, &spec->schedule, clock),
        .t = t,
        .dense = spec->kind == SPEC_DENSE,
    };

    if (optim->prepare)
        optim->prepare(&step);
    return step;
}
