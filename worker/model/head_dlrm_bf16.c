/* head_dlrm.c with activations and their gradients in bf16, where the model's shape permits (device_bf16.h). */
#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"
#include "worker/model/head.h"

static bool are_eights(const uint32_t *widths, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (widths[i] % 8)
            return false;
    return true;
}

static bool dim_fits(uint32_t dim)
{
    return dim == 16 || dim == 32 || dim == 64 || dim == 128;
}

bool head_dlrm_bf16_fits(const struct device_ops *ops, const struct dlrm_config *config)
{
    uint32_t first, end;

    return ops->bf16 && config->products == DEVICE_BF16 && config->kind == MODEL_DLRM &&
           !config->concat && config->n_fields && dlrm_config_n_vectors(config) <= 32 &&
           dim_fits(config->dim) && !config->batch_norm && dlrm_config_n_tasks(config) == 1 &&
           config->n_top && are_eights(config->bottom, config->n_bottom) &&
           are_eights(config->top, config->n_top) &&
           !dlrm_config_means(config, 0, &first, &end);
}

static void plan(struct dlrm *m)
{
    head_dlrm.plan(m);
    m->ldr = (m->r_width + 7) / 8 * 8;
}

static size_t bytes_of(const struct dlrm *m, uint32_t width)
{
    return (size_t)m->config.batch_max * width * sizeof(bf16);
}

static int alloc_arrays(struct dlrm *m, struct bf16_dlrm *h)
{
    const struct {
        bf16 **at;
        uint32_t width;
    } arrays[] = {
        { &h->x, h->ldx }, { &h->t, h->ldt },  { &h->dt, h->ldt },
        { &h->r, m->ldr }, { &h->dr, m->ldr },
    };

    for (size_t i = 0; i < COUNT_OF(arrays); i++) {
        if (!arrays[i].width)
            continue;
        *arrays[i].at = m->ops->memory_alloc(m->c, bytes_of(m, arrays[i].width));
        if (!*arrays[i].at)
            return -ENOMEM;
    }
    h->z = m->z = dlrm_internal_alloc(m, 1);
    if (!h->z)
        return -ENOMEM;
    h->dz = m->dz = dlrm_internal_alloc(m, 1);
    return h->dz ? 0 : -ENOMEM;
}

static int alloc(struct dlrm *m)
{
    struct bf16_dlrm *h = m->bf16 = memory_alloc(sizeof *h);
    int status;

    h->ldx = (m->n_inputs + 7) / 8 * 8;
    h->ldt = m->n_vectors * m->config.dim;
    status = alloc_arrays(m, h);
    if (!status && m->config.n_numeric) {
        bf16_mlp_init(&h->bottom, &m->bottom, m->bottom.n_layers);
        bf16_mlp_place_output(&h->bottom, h->t, h->ldt);
        status = bf16_mlp_alloc(&h->bottom, m->config.batch_max);
    }
    if (status)
        return status;
    bf16_mlp_init(&h->top, &m->top, m->config.n_top);
    status = bf16_mlp_alloc(&h->top, m->config.batch_max);
    return status ? status : m->ops->reserve(m->c, m->config.batch_max, 1, 1); /* the loss */
}

static void release(struct dlrm *m, bf16 *memory, uint32_t width)
{
    if (memory)
        m->ops->memory_free(m->c, memory, bytes_of(m, width));
}

static void deinit(struct dlrm *m)
{
    struct bf16_dlrm *h = m->bf16;

    if (!h)
        return;
    bf16_mlp_deinit(&h->bottom);
    bf16_mlp_deinit(&h->top);
    release(m, h->x, h->ldx);
    release(m, h->t, h->ldt);
    release(m, h->dt, h->ldt);
    release(m, h->r, m->ldr);
    release(m, h->dr, m->ldr);
    dlrm_internal_free(m, h->z, 1);
    dlrm_internal_free(m, h->dz, 1);
    free(h);
    m->bf16 = NULL;
}

static struct interact interact_of(const struct dlrm *m, uint32_t n)
{
    const uint32_t direct = m->config.n_numeric ? m->config.dim : 0;

    return (struct interact){
        n, m->n_vectors, m->config.dim, direct, m->config.self_interaction, m->ldr
    };
}

static struct bf16_logit logit_of(const struct dlrm *m, uint32_t n)
{
    const struct mlp_layer *last = &m->top.layers[m->config.n_top];

    return (struct bf16_logit){ n, last->in, bf16_mlp_last(&m->bf16->top)->y,
                                last->w->device.values, last->b->device.values };
}

/* Numeric columns, weights and biases. */
static void round_inputs(struct dlrm *m, const struct dlrm_io *io)
{
    struct bf16_copy copies[DEVICE_BF16_COPIES_MAX];
    uint32_t n = 0;

    if (m->config.n_numeric)
        copies[n++] = (struct bf16_copy){ io->numeric, m->bf16->x, io->n,
                                          m->n_inputs, m->ldx,     m->bf16->ldx };
    bf16_mlp_list_copies(&m->bf16->bottom, copies, &n);
    bf16_mlp_list_copies(&m->bf16->top, copies, &n);
    m->ops->bf16->round(m->c, copies, n);
}

static void forward(struct dlrm *m, const struct dlrm_io *io, enum mlp_pass pass)
{
    const struct interact interact = interact_of(m, io->n);
    struct bf16_dlrm *h = m->bf16;
    struct bf16_logit logit;

    round_inputs(m, io);
    bf16_mlp_forward(&h->bottom, io->n, h->x, pass, NULL);
    m->ops->bf16->interact_bags_forward(m->c, &io->bags, io->rows, &interact, h->t, h->r);
    bf16_mlp_forward(&h->top, io->n, h->r, pass, io->drop_keys);
    logit = logit_of(m, io->n);
    m->ops->bf16->logit_forward(m->c, &logit, m->z);
    if (m->config.wide)
        m->ops->wide_sum(m->c, &io->bags, io->wide, m->z);
}

/* To the last hidden layer, the gradient of its bias included. */
static void backward_logit(struct dlrm *m, const struct dlrm_io *io)
{
    const struct mlp_layer *last = &m->top.layers[m->config.n_top];
    const struct bf16_layer *hidden = bf16_mlp_last(&m->bf16->top);
    const struct bf16_logit logit = logit_of(m, io->n);

    m->ops->bf16->logit_backward(m->c, &logit, m->dz, bf16_mlp_mask(hidden).scale, hidden->dy,
                                 last->w->device.grads, last->b->device.grads,
                                 hidden->b->device.grads);
}

static void backward(struct dlrm *m, const struct dlrm_io *io)
{
    const bool has_bottom = m->config.n_numeric > 0;
    const struct interact interact = interact_of(m, io->n);
    struct bf16_dlrm *h = m->bf16;
    struct bf16_mask mask = { 0 };

    if (m->config.wide)
        m->ops->wide_grad(m->c, &io->bags, m->dz, io->wide_grads);
    backward_logit(m, io);
    bf16_mlp_backward(&h->top, io->n, true, h->dr);
    if (has_bottom)
        mask = bf16_mlp_mask(bf16_mlp_last(&h->bottom));
    m->ops->bf16->interact_bags_backward(m->c, &io->bags, &interact, h->t, h->dr, h->dt,
                                         has_bottom ? &mask : NULL,
                                         has_bottom ? bf16_mlp_last(&h->bottom)->dy : NULL);
    m->ops->bf16->bag_grad(m->c, &io->bags, h->dt + interact.direct, h->ldt, io->row_grads);
    bf16_mlp_backward(&h->bottom, io->n, false, NULL);
}

const struct head head_dlrm_bf16 = { plan, alloc, deinit, forward, backward };
