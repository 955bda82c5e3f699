/* A DLRM: dlrm.h's drawing. */
#include <errno.h>

#include "worker/model/head.h"
#include "worker/model/head_parts.h"

static void plan(struct dlrm *m)
{
    const struct dlrm_config *cfg = &m->config;

    m->pairs = !cfg->concat && cfg->n_fields > 0;
    if (cfg->n_numeric)
        mlp_init(&m->bottom,
                 &(struct mlp_plan){ .name = "bot",
                                     .in = m->n_inputs,
                                     .out = cfg->dim,
                                     .n_hidden = cfg->n_bottom,
                                     .hidden = cfg->bottom,
                                     .last = DEVICE_RELU,
                                     .norm = cfg->batch_norm },
                 m->tensors, &m->n_tensors);
    if (m->ldx != m->n_inputs)
        m->bottom.layers[0].ldx = m->ldx;
    m->ldr = m->r_width;
    if (m->pairs && m->ops->row_floats > 1)
        m->ldr = dlrm_internal_ld(m, m->r_width);
    head_parts_plan_top(m, m->ldr);
}

static size_t t_width(const struct dlrm *m)
{
    return (size_t)m->n_vectors * m->config.dim;
}

static int alloc_vectors(struct dlrm *m)
{
    m->t = dlrm_internal_alloc(m, t_width(m));
    if (!m->t)
        return -ENOMEM;
    m->dt = dlrm_internal_alloc(m, t_width(m));
    if (!m->dt)
        return -ENOMEM;
    if (!m->pairs)
        return 0;
    m->r = dlrm_internal_alloc_zeroed(m, m->ldr); /* its gaps stay zeros */
    if (!m->r)
        return -ENOMEM;
    m->dr = dlrm_internal_alloc(m, m->ldr);
    return m->dr ? 0 : -ENOMEM;
}

static int alloc(struct dlrm *m)
{
    int status = alloc_vectors(m);

    if (!status && m->config.n_numeric) {
        mlp_place_output(&m->bottom, m->t, m->n_vectors * m->config.dim);
        status = mlp_alloc(&m->bottom, m->config.batch_max);
    }
    return status ? status : head_parts_alloc_top(m);
}

static void deinit(struct dlrm *m)
{
    mlp_deinit(&m->bottom);
    mlp_deinit(&m->top);
    dlrm_internal_free(m, m->t, t_width(m));
    dlrm_internal_free(m, m->dt, t_width(m));
    dlrm_internal_free(m, m->r, m->ldr);
    dlrm_internal_free(m, m->dr, m->ldr);
}

/* Floats of D in front of the bags. */
static uint32_t dense_floats(const struct dlrm *m)
{
    return m->config.n_numeric ? m->config.dim : 0;
}

static struct interact interact_of(const struct dlrm *m, uint32_t n)
{
    return (struct interact){
        n, m->n_vectors, m->config.dim, dense_floats(m), m->config.self_interaction, m->ldr
    };
}

/* Sums alone are made by the interaction as it goes. */
static bool is_fused(const struct dlrm *m)
{
    return m->ops->interact_bags_forward && !head_parts_has_means(m);
}

/* The bags' sums or means in T, unless the interaction makes them as it goes, and R. */
static void forward_vectors(struct dlrm *m, const struct dlrm_io *io)
{
    const struct interact interact = interact_of(m, io->n);

    if (m->pairs && is_fused(m)) {
        m->ops->interact_bags_forward(m->c, &io->bags, io->rows, &interact, m->t, m->r);
        return;
    }
    if (m->config.n_fields)
        m->ops->bag_sum(m->c, &io->bags, io->rows, m->t + dense_floats(m),
                        m->n_vectors * m->config.dim);
    head_parts_make_means(m, &io->bags, m->t + dense_floats(m), m->n_vectors * m->config.dim);
    if (m->pairs)
        m->ops->interact_forward(m->c, &interact, m->t, m->r);
}

static void forward(struct dlrm *m, const struct dlrm_io *io, enum mlp_pass pass)
{
    if (m->config.n_numeric)
        mlp_forward(&m->bottom, io->n, io->numeric, pass, NULL);
    forward_vectors(m, io);
    mlp_forward(&m->top, io->n, m->pairs ? m->r : m->t, pass, io->drop_keys);
    if (m->config.wide)
        m->ops->wide_sum(m->c, &io->bags, io->wide, m->z);
}

/* T's gradient; and, if that is made on the way, the bottom MLP's, R's direct part included. */
static void backward_pairs(struct dlrm *m, const struct dlrm_io *io,
                           const struct relu_mask *mask, float *d)
{
    const struct interact interact = interact_of(m, io->n);

    if (is_fused(m))
        m->ops->interact_bags_backward(m->c, &io->bags, io->rows, &interact, m->t, m->dr, m->dt,
                                       mask, d);
    else
        m->ops->interact_backward(m->c, &interact, m->t, m->dr, m->dt);
}

static void backward_bottom(struct dlrm *m, const struct dlrm_io *io,
                            const struct relu_mask *mask, float *d)
{
    const uint32_t dim = m->config.dim, ld = m->n_vectors * dim;

    if (!m->pairs)
        m->ops->add_rows(m->c, io->n, dim, m->dt, ld, NULL, 0, mask, d);
    else if (!is_fused(m))
        m->ops->add_rows(m->c, io->n, dim, m->dr, m->ldr, m->dt, ld, mask, d);
    mlp_backward(&m->bottom, io->n, NULL);
}

/* T's gradient to the bags' rows and to the bottom MLP, which gets R's direct part too. */
static void backward_vectors(struct dlrm *m, const struct dlrm_io *io)
{
    const bool has_bottom = m->config.n_numeric > 0;
    const uint32_t ld = m->n_vectors * m->config.dim;
    struct relu_mask mask;
    const struct relu_mask *through = has_bottom ? mlp_mask(mlp_last(&m->bottom), &mask) : NULL;
    float *d = has_bottom ? mlp_last(&m->bottom)->dy : NULL;

    if (m->pairs)
        backward_pairs(m, io, through, d);
    head_parts_make_means(m, &io->bags, m->dt + dense_floats(m), ld);
    if (m->config.n_fields)
        m->ops->bag_grad(m->c, &io->bags, m->dt + dense_floats(m), ld, io->row_grads);
    if (has_bottom)
        backward_bottom(m, io, through, d);
}

static void backward(struct dlrm *m, const struct dlrm_io *io)
{
    if (m->config.wide)
        m->ops->wide_grad(m->c, &io->bags, m->dz, io->wide_grads);
    mlp_backward(&m->top, io->n, m->pairs ? m->dr : m->dt);
    backward_vectors(m, io);
}

const struct head head_dlrm = { plan, alloc, deinit, forward, backward };
