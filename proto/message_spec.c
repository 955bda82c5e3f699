#include "proto/message_spec.h"

#include "proto/message_head.h"

static void put_params(const struct optim_params *p, Ps__OptimParams *head)
{
    ps__optim_params__init(head);
    head->learning_rate = p->learning_rate;
    head->epsilon = p->epsilon;
    head->momentum = p->momentum;
    head->nesterov = p->nesterov;
    head->weight_decay = p->weight_decay;
    head->beta1 = p->beta1;
    head->beta2 = p->beta2;
    head->initial_accumulator = p->initial_accumulator;
    head->lr_decay = p->lr_decay;
    head->ftrl_beta = p->ftrl_beta;
    head->ftrl_l1 = p->ftrl_l1;
    head->ftrl_l2 = p->ftrl_l2;
}

static struct optim_params take_params(const Ps__OptimParams *head)
{
    return (struct optim_params){
        .learning_rate = head->learning_rate,
        .epsilon = head->epsilon,
        .momentum = head->momentum,
        .nesterov = head->nesterov,
        .weight_decay = head->weight_decay,
        .beta1 = head->beta1,
        .beta2 = head->beta2,
        .initial_accumulator = head->initial_accumulator,
        .lr_decay = head->lr_decay,
        .ftrl_beta = head->ftrl_beta,
        .ftrl_l1 = head->ftrl_l1,
        .ftrl_l2 = head->ftrl_l2,
    };
}

static void put_limits(const struct spec_limits *l, Ps__TableSpec *head)
{
    head->admit_touches = l->admit_touches;
    head->admit_clocks = l->admit_clocks;
    head->idle_clocks = l->idle_clocks;
    head->ttl_s = l->ttl_s;
    head->rare_touches = l->rare_touches;
    head->rare_clocks = l->rare_clocks;
    head->victims = l->victims;
    head->max_bytes = l->max_bytes;
}

static struct spec_limits take_limits(const Ps__TableSpec *head)
{
    return (struct spec_limits){
        .admit_touches = head->admit_touches,
        .admit_clocks = head->admit_clocks,
        .idle_clocks = head->idle_clocks,
        .ttl_s = head->ttl_s,
        .rare_touches = head->rare_touches,
        .rare_clocks = head->rare_clocks,
        .victims = (enum spec_victims)head->victims,
        .max_bytes = head->max_bytes,
    };
}

void message_spec_put(const struct table_spec *spec, Ps__TableSpec *head,
                      Ps__OptimParams *params)
{
    ps__table_spec__init(head);
    put_params(&spec->params, params);
    head->name = (char *)spec->name;
    head->kind = spec->kind;
    head->dim = spec->dim;
    head->n_floats = spec->n_floats;
    head->seed = spec->seed;
    head->init = spec->init;
    head->init_scale = spec->init_scale;
    head->optim = spec->optim;
    head->params = params;
    head->warmup_clocks = spec->schedule.warmup_clocks;
    head->decay = spec->schedule.decay;
    head->decay_start = spec->schedule.decay_start;
    head->decay_clocks = spec->schedule.decay_clocks;
    head->decay_rate = spec->schedule.decay_rate;
    head->decay_floor = spec->schedule.decay_floor;
    head->clip_norm = spec->clip_norm;
    head->mode = spec->mode;
    head->bound = spec->bound;
    head->storage = spec->storage;
    put_limits(&spec->limits, head);
}

int message_spec_take(const Ps__TableSpec *head, struct table_spec *ret)
{
    struct table_spec spec = { 0 };

    if (head->kind >= SPEC_KIND_END || head->init >= SPEC_INIT_END ||
        head->optim >= SPEC_OPTIM_END || head->decay >= SPEC_DECAY_END ||
        head->mode >= SPEC_MODE_END || head->storage >= SPEC_STORAGE_END ||
        head->victims >= SPEC_VICTIMS_END)
        return PS_EPROTO;
    if (message_head_name(spec.name, sizeof spec.name, head->name))
        return PS_EPROTO;
    spec.kind = (enum spec_kind)head->kind;
    spec.dim = head->dim;
    spec.n_floats = head->n_floats;
    spec.seed = head->seed;
    spec.init = (enum spec_init)head->init;
    spec.init_scale = head->init_scale;
    spec.optim = (enum spec_optim)head->optim;
    if (head->params)
        spec.params = take_params(head->params);
    spec.schedule = (struct lr_schedule){
        .warmup_clocks = head->warmup_clocks,
        .decay = (enum spec_decay)head->decay,
        .decay_start = head->decay_start,
        .decay_clocks = head->decay_clocks,
        .decay_rate = head->decay_rate,
        .decay_floor = head->decay_floor,
    };
    spec.clip_norm = head->clip_norm;
    spec.mode = (enum spec_mode)head->mode;
    spec.bound = head->bound;
    spec.storage = (enum spec_storage)head->storage;
    spec.limits = take_limits(head);
    *ret = spec;
    return 0;
}
