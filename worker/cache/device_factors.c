/* The servers' optimizers as a device has them (ROW_UPDATE_ADAM and its like, worker/compute/device_args.h). */
#include "server/core/optimizer.h"
#include "server/core/optimizer_builds.h"
#include "worker/cache/device_rows.h"

bool device_rows_suits(const struct table_spec *spec)
{
    switch (spec->optim) {
    case TABLE_SPEC_SGD:
    case TABLE_SPEC_MOMENTUM:
    case TABLE_SPEC_ADAGRAD:
    case TABLE_SPEC_ROWWISE_ADAGRAD:
    case TABLE_SPEC_ADAM:
        return spec->kind == TABLE_SPEC_SPARSE && spec->storage == TABLE_SPEC_FP32 &&
               !(spec->clip_norm > 0) && !(spec->row_decay > 0);
    default:
        return false;
    }
}

static void fill_momentum(struct device_rows_step *step, const struct optimizer_params *p)
{
    const bool is_nesterov = p->nesterov > 0.0f;

    step->beta1 = p->momentum;
    step->rest1 = is_nesterov ? 1.0f : 0.0f;
    step->rest2 = is_nesterov ? p->momentum : 1.0f;
}

static void fill_adam(struct device_rows_step *step, const float *derived)
{
    step->rate = derived[OPTIMIZER_RATE];
    step->beta1 = derived[OPTIMIZER_BETA1];
    step->rest1 = derived[OPTIMIZER_REST1];
    step->beta2 = derived[OPTIMIZER_BETA2];
    step->rest2 = derived[OPTIMIZER_REST2];
    step->root_scale = derived[OPTIMIZER_ROOT_SCALE];
}

void device_rows_fill_step(struct device_rows_step *step, const struct table_spec *spec,
                           uint64_t t)
{
    const struct optimizer_step s =
        optimizer_step_at(optimizer_find(spec->optim), spec, step->clock, t);

    step->rate = s.lr;
    step->epsilon = spec->params.epsilon;
    step->weight_decay = spec->params.weight_decay;
    step->beta1 = step->rest1 = step->beta2 = step->rest2 = step->root_scale = 0;
    if (spec->optim == TABLE_SPEC_ADAGRAD || spec->optim == TABLE_SPEC_ROWWISE_ADAGRAD)
        step->rate = s.derived[OPTIMIZER_ADAGRAD_RATE];
    else if (spec->optim == TABLE_SPEC_MOMENTUM)
        fill_momentum(step, &spec->params);
    else if (spec->optim == TABLE_SPEC_ADAM)
        fill_adam(step, s.derived);
}
