#include "server/core/optim_catalog.h"

#include <math.h>

/* To add an optimizer: write optim_NAME.c, name it in optim.h and here. */
static const struct optim *const catalog[] = {
    [SPEC_SGD] = &optim_sgd,         [SPEC_MOMENTUM] = &optim_momentum,
    [SPEC_ADAGRAD] = &optim_adagrad, [SPEC_ROWWISE_ADAGRAD] = &optim_rowwise_adagrad,
    [SPEC_ADAM] = &optim_adam,       [SPEC_FTRL] = &optim_ftrl,
};

const struct optim *optim_find(enum spec_optim id)
{
    return (size_t)id < COUNT_OF(catalog) ? catalog[id] : NULL;
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
