/*
 * DeepFM (Guo et al. 2017): z = first-order term + sum of E_i . E_j over i < j + MLP(T). The pairs and the MLP share
 * the embeddings E; numeric columns are in the first-order term and in T (head_fm.c, head_wide_deep.c).
 */
#include "worker/model/concat.h"
#include "worker/model/first_order.h"
#include "worker/model/head.h"

static void plan(struct dlrm *m)
{
    head_wide_deep.plan(m);
}

static int alloc(struct dlrm *m)
{
    return head_wide_deep.alloc(m);
}

static void deinit(struct dlrm *m)
{
    head_wide_deep.deinit(m);
}

static struct pair_sum pairs_of(const struct dlrm *m, uint32_t n)
{
    return (struct pair_sum){ n, m->n_vectors, m->config.dim, m->ldt };
}

static void forward(struct dlrm *m, const struct dlrm_io *io, enum mlp_pass pass)
{
    const struct pair_sum pairs = pairs_of(m, io->n);

    head_wide_deep.forward(m, io, pass);
    if (m->config.n_fields)
        m->ops->pair_sum_forward(m->c, &pairs, m->t, m->z);
}

static void backward(struct dlrm *m, const struct dlrm_io *io)
{
    const struct pair_sum pairs = pairs_of(m, io->n);

    first_order_backward(&m->first_order, io->numeric, &io->bags, m->dz, io->wide_grads);
    mlp_backward(&m->top, io->n, m->dt);
    if (m->config.n_fields)
        m->ops->pair_sum_backward(m->c, &pairs, m->t, m->dz, m->dt, m->dt);
    concat_backward(m, io);
}

const struct head head_deepfm = { plan, alloc, deinit, forward, backward };
