#include "worker/model/head_parts.h"

void head_parts_plan_first_order(struct dlrm *m)
{
    first_order_init(&m->first_order, m->ops, m->c, m->n_inputs, m->ldx, m->tensors,
                     &m->n_tensors);
}

void head_parts_plan_top(struct dlrm *m, uint32_t ldx)
{
    const struct dlrm_config *cfg = &m->config;

    mlp_init(&m->top,
             &(struct mlp_plan){ .name = "top",
                                 .in = m->r_width,
                                 .out = dlrm_config_n_tasks(cfg),
                                 .n_hidden = cfg->n_top,
                                 .hidden = cfg->top,
                                 .last = DEVICE_LINEAR,
                                 .norm = cfg->batch_norm,
                                 .dropout = cfg->dropout },
             m->tensors, &m->n_tensors);
    m->top.layers[0].ldx = ldx != m->r_width ? ldx : 0;
}

int head_parts_alloc_top(struct dlrm *m)
{
    int status = mlp_alloc(&m->top, m->config.batch_max);

    if (status)
        return status;
    m->z = mlp_last(&m->top)->y;
    m->dz = mlp_last(&m->top)->dy;
    return 0;
}

bool head_parts_has_means(const struct dlrm *m)
{
    uint32_t first, end;

    return dlrm_config_means(&m->config, 0, &first, &end);
}

void head_parts_make_means(const struct dlrm *m, const struct bags *bags, float *vectors,
                           uint32_t ld)
{
    uint32_t first, end = 0;

    while (dlrm_config_means(&m->config, end, &first, &end))
        m->ops->bag_mean(m->c, bags, first, end, vectors, ld);
}
