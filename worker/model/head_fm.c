/*
 * A factorisation machine (Rendle 2010) over the fields' bags E_f:
 *
 *     z = first-order term + sum of E_i . E_j over i < j
 *
 * Numeric columns are in the first-order term alone: a vector for each of them would be a dense table of its own, and a
 * column that is put into buckets (--bucketise) is a field and has one. Keys of one bag make no pairs among themselves.
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

    if (!status && m->config.n_fields)
        status = concat_alloc(m);
    m->z = m->first_order.y;
    m->dz = m->first_order.dy;
    return status;
}

static void deinit(struct dlrm *m)
{
    first_order_deinit(&m->first_order);
    concat_deinit(m);
}

static struct pair_sum pairs_of(const struct dlrm *m, uint32_t n)
{
    return (struct pair_sum){ n, m->n_vectors, m->config.dim, m->ldt };
}

static void forward(struct dlrm *m, const struct dlrm_io *io, enum mlp_pass pass)
{
    const struct pair_sum pairs = pairs_of(m, io->n);

    (void)pass;
    first_order_forward(&m->first_order, io->numeric, &io->bags, io->wide);
    if (!m->config.n_fields)
        return;
    concat_forward(m, io);
    m->ops->pair_sum_forward(m->c, &pairs, m->t, m->z);
}

static void backward(struct dlrm *m, const struct dlrm_io *io)
{
    const struct pair_sum pairs = pairs_of(m, io->n);

    first_order_backward(&m->first_order, io->numeric, &io->bags, m->dz, io->wide_grads);
    if (!m->config.n_fields)
        return;
    m->ops->pair_sum_backward(m->c, &pairs, m->t, m->dz, NULL, m->dt);
    concat_backward(m, io);
}

const struct head head_fm = { plan, alloc, deinit, forward, backward };
