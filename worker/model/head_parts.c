#include "worker/model/head_parts.h"

void head_parts_plan_first_order(struct dlrm *m)
{
    first_order_init(&m->first_order, m->ops, m->c, m->config.n_numeric, m->tensors,
                     &m->n_tensors);
}

void head_parts_plan_top(struct dlrm *m, uint32_t ldx)
{
    const struct dlrm_config *cfg = &m->config;

    mlp_init(&m->top,
             &(struct mlp_plan){ .name = "top",
                                 .in = m->r_width,
                                 .out = 1,
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
