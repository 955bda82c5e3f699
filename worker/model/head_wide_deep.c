/*
 * Wide & Deep (Cheng et al. 2016): z = first-order term + MLP(T), T being the bags and the numeric columns side by
 * side. The wide part has no crossed features: a crossed column of the data is a field like any other.
 */
#include "worker/model/concat.h"
#include "worker/model/first_order.h"
#include "worker/model/head.h"
#include "worker/model/head_parts.h"

static void plan(struct dlrm *m)
{
    head_parts_plan_first_order(m);
    concat_plan(m);
}

static int alloc(struct dlrm *m)
{
    int status = first_order_alloc(&m->first_order, m->config.batch_max);

    return status ? status : concat_alloc(m);
}

static void deinit(struct dlrm *m)
{
    first_order_deinit(&m->first_order);
    concat_deinit(m);
}

static void forward(struct dlrm *m, const struct dlrm_io *io, enum mlp_pass pass)
{
    concat_forward(m, io);
    mlp_forward(&m->top, io->n, m->t, pass, io->drop_keys);
    first_order_forward(&m->first_order, io->numeric, &io->bags, io->wide);
    m->ops->axpy(m->c, io->n, 1, m->first_order.y, m->z);
}

static void backward(struct dlrm *m, const struct dlrm_io *io)
{
    first_order_backward(&m->first_order, io->numeric, &io->bags, m->dz, io->wide_grads);
    mlp_backward(&m->top, io->n, m->dt);
    concat_backward(m, io);
}

const struct head head_wide_deep = { plan, alloc, deinit, forward, backward };
