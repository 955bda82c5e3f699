/*
 * Logistic regression: z = X w^T + b + the weights of all keys. The embedding table's rows are those weights, of one
 * float each (MODEL_EMBEDDINGS).
 */
#include "worker/model/first_order.h"
#include "worker/model/head.h"
#include "worker/model/head_parts.h"

static void plan(struct dlrm *m)
{
    head_parts_plan_first_order(m);
}

static int alloc(struct dlrm *m)
{
    const int status = first_order_alloc(&m->first_order, m->config.batch_max);

    m->z = m->first_order.y;
    m->dz = m->first_order.dy;
    return status;
}

static void deinit(struct dlrm *m)
{
    first_order_deinit(&m->first_order);
}

static void forward(struct dlrm *m, const struct dlrm_io *io, enum mlp_pass pass)
{
    (void)pass;
    first_order_forward(&m->first_order, io->numeric, &io->bags, io->rows);
}

static void backward(struct dlrm *m, const struct dlrm_io *io)
{
    first_order_backward(&m->first_order, io->numeric, &io->bags, m->dz, io->row_grads);
}

const struct head head_lr = { plan, alloc, deinit, forward, backward };
