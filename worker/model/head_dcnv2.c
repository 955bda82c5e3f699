/*
 * DCN V2 (Wang et al. 2021): z = MLP(x_L), x_L being a cross network's output of T, the bags and the numeric columns
 * side by side. The MLP stands on the cross network ("stacked"), as NVIDIA Merlin's DCNModel has it by default
 * (stacked=True) and the tutorial of TensorFlow Recommenders.
 */
#include "worker/model/concat.h"
#include "worker/model/cross_net.h"
#include "worker/model/head.h"

static void plan(struct dlrm *m)
{
    cross_net_init(&m->cross,
                   &(struct cross_net_plan){ m->ops, m->c, m->config.n_cross, m->r_width,
                                             m->config.cross_rank,
                                             dlrm_internal_ld(m, m->r_width) },
                   m->tensors, &m->n_tensors);
    concat_plan(m);
}

static int alloc(struct dlrm *m)
{
    int status = cross_net_alloc(&m->cross, m->config.batch_max);

    return status ? status : concat_alloc(m);
}

static void deinit(struct dlrm *m)
{
    cross_net_deinit(&m->cross);
    concat_deinit(m);
}

static void forward(struct dlrm *m, const struct dlrm_io *io, enum mlp_pass pass)
{
    concat_forward(m, io);
    mlp_forward(&m->top, io->n, cross_net_forward(&m->cross, io->n, m->t), pass, io->drop_keys);
    if (m->config.wide)
        m->ops->wide_sum(m->c, &io->bags, io->wide, m->z);
}

static void backward(struct dlrm *m, const struct dlrm_io *io)
{
    if (m->config.wide)
        m->ops->wide_grad(m->c, &io->bags, m->dz, io->wide_grads);
    mlp_backward(&m->top, io->n, m->cross.dy);
    cross_net_backward(&m->cross, io->n, m->t, m->dt);
    concat_backward(m, io);
}

const struct head head_dcnv2 = { plan, alloc, deinit, forward, backward };
