#include "worker/model/dlrm.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/mem.h"
#include "common/pages.h"
#include "worker/model/dlrm_state.h"

/* Shapes and tensors; no memory yet. */
static void plan(struct dlrm *m)
{
    const struct dlrm_config *cfg = &m->config;

    m->n_vectors = dlrm_config_n_vectors(cfg);
    m->r_width = (uint32_t)dlrm_config_r_width(cfg);
    m->pairs = !cfg->concat && cfg->n_fields > 0;
    if (cfg->n_numeric)
        mlp_init(&m->bottom,
                 &(struct mlp_plan){ .name = "bot",
                                     .in = cfg->n_numeric,
                                     .out = cfg->dim,
                                     .n_hidden = cfg->n_bottom,
                                     .hidden = cfg->bottom,
                                     .last = COMPUTE_RELU,
                                     .norm = cfg->batch_norm },
                 m->tensors, &m->n_tensors);
    mlp_init(&m->top,
             &(struct mlp_plan){ .name = "top",
                                 .in = m->r_width,
                                 .out = 1,
                                 .n_hidden = cfg->n_top,
                                 .hidden = cfg->top,
                                 .last = COMPUTE_LINEAR,
                                 .norm = cfg->batch_norm,
                                 .dropout = cfg->dropout },
             m->tensors, &m->n_tensors);
    m->bottom.ops = m->top.ops = m->ops;
    m->bottom.c = m->top.c = m->c;
}

static size_t tensor_bytes(const struct dlrm *m)
{
    size_t n = 0;

    for (uint32_t i = 0; i < m->n_tensors; i++)
        n += m->tensors[i].n_floats;
    return n * sizeof(float);
}

/* Of n_max samples of `width` floats. */
static size_t sample_bytes(const struct dlrm *m, size_t width)
{
    return m->config.batch_max * width * sizeof(float);
}

static size_t t_bytes(const struct dlrm *m)
{
    return sample_bytes(m, (size_t)m->n_vectors * m->config.dim);
}

static int alloc_tensors(struct dlrm *m)
{
    size_t at = 0;

    m->values = pages_alloc(tensor_bytes(m));
    if (!m->values)
        return -ENOMEM;
    m->grads = pages_alloc(tensor_bytes(m));
    if (!m->grads)
        return -ENOMEM;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        m->tensors[i].values = m->values + at;
        m->tensors[i].grads = m->grads + at;
        at += m->tensors[i].n_floats;
    }
    return 0;
}

static int alloc_vectors(struct dlrm *m)
{
    m->t = pages_alloc(t_bytes(m));
    if (!m->t)
        return -ENOMEM;
    m->dt = pages_alloc(t_bytes(m));
    if (!m->dt)
        return -ENOMEM;
    m->probs = pages_alloc(sample_bytes(m, 1));
    if (!m->probs)
        return -ENOMEM;
    if (!m->pairs)
        return 0;
    m->r = pages_alloc(sample_bytes(m, m->r_width));
    if (!m->r)
        return -ENOMEM;
    m->dr = pages_alloc(sample_bytes(m, m->r_width));
    return m->dr ? 0 : -ENOMEM;
}

static int alloc_all(struct dlrm *m)
{
    int status = alloc_tensors(m);

    if (!status)
        status = alloc_vectors(m);
    if (!status && m->config.n_numeric) {
        mlp_place_output(&m->bottom, m->t, m->n_vectors * m->config.dim);
        status = mlp_alloc(&m->bottom, m->config.batch_max);
    }
    if (!status)
        status = mlp_alloc(&m->top, m->config.batch_max);
    return status;
}

int dlrm_new(const struct dlrm_config *config, struct dlrm **ret_model, struct err *err)
{
    return dlrm_new_on(&compute_cpu, config, ret_model, err);
}

int dlrm_new_on(const struct compute_ops *ops, const struct dlrm_config *config,
                struct dlrm **ret_model, struct err *err)
{
    const struct compute_options options = { config->n_threads ? config->n_threads : 1,
                                             config->bf16 ? COMPUTE_BF16 : COMPUTE_FP32 };
    struct dlrm *m;
    int status = dlrm_config_check(config, err);

    if (status)
        return status;
    m = mem_alloc(sizeof *m);
    m->config = *config;
    m->ops = ops;
    status = m->ops->open(&options, &m->c, err);
    if (status) {
        dlrm_free(m);
        return status;
    }
    plan(m);
    status = alloc_all(m);
    if (status) {
        dlrm_free(m);
        return err_set(
            err, status,
            "model: no memory for batches of %u samples; choose a smaller batch or MLP",
            config->batch_max);
    }
    *ret_model = m;
    return 0;
}

void dlrm_free(struct dlrm *m)
{
    if (!m)
        return;
    mlp_deinit(&m->bottom);
    mlp_deinit(&m->top);
    pages_free(m->values, tensor_bytes(m));
    pages_free(m->grads, tensor_bytes(m));
    pages_free(m->t, t_bytes(m));
    pages_free(m->dt, t_bytes(m));
    pages_free(m->r, sample_bytes(m, m->r_width));
    pages_free(m->dr, sample_bytes(m, m->r_width));
    pages_free(m->probs, sample_bytes(m, 1));
    free(m->peeked);
    m->ops->close(m->c);
    free(m);
}

const char *dlrm_device(const struct dlrm *m)
{
    return m->ops->describe(m->c);
}

uint32_t dlrm_n_tensors(const struct dlrm *m)
{
    return m->n_tensors;
}

struct dlrm_tensor *dlrm_tensor(struct dlrm *m, uint32_t i)
{
    assert(i < m->n_tensors);
    return &m->tensors[i];
}

static struct bags bags_of(const struct dlrm *m, const struct batch *batch)
{
    return (struct bags){ .n = batch->n,
                          .n_fields = m->config.n_fields,
                          .dim = m->config.dim,
                          .n_rows = batch->n_unique,
                          .starts = batch->starts,
                          .row_of = batch->row_of };
}

/* Floats of D in front of the bags. */
static uint32_t dense_floats(const struct dlrm *m)
{
    return m->config.n_numeric ? m->config.dim : 0;
}

static struct interact interact_of(const struct dlrm *m, uint32_t n)
{
    return (struct interact){ n, m->n_vectors, m->config.dim, dense_floats(m),
                              m->config.self_interaction };
}

int dlrm_forward(struct dlrm *m, const struct batch *batch, const float *rows,
                 const float *wide, bool training, uint64_t step)
{
    const enum mlp_pass pass = training ? MLP_TRAIN : MLP_EVAL;
    const struct bags bags = bags_of(m, batch);
    const struct interact interact = interact_of(m, batch->n);
    const struct mlp_layer *head = mlp_last(&m->top);

    assert(batch->n <= m->config.batch_max && !wide == !m->config.wide);
    assert(batch->n_numeric == m->config.n_numeric && batch->n_fields == m->config.n_fields);
    m->n = batch->n;
    m->trained = training;
    m->graded = false;
    if (m->config.n_numeric)
        mlp_forward(&m->bottom, m->n, batch->numeric, pass, 0);
    m->ops->bag_sum(m->c, &bags, rows, m->t + dense_floats(m), m->n_vectors * m->config.dim);
    if (m->pairs)
        m->ops->interact_forward(m->c, &interact, m->t, m->r);
    mlp_forward(&m->top, m->n, m->pairs ? m->r : m->t, pass, hash_mix2(m->config.seed, step));
    if (wide)
        m->ops->wide_sum(m->c, &bags, wide, head->y);
    m->ops->prob(m->c, m->n, head->y, m->probs);
    return m->ops->wait(m->c, 0);
}

const float *dlrm_probs(const struct dlrm *m)
{
    return m->probs;
}

const float *dlrm_logits(const struct dlrm *m)
{
    return m->top.layers[m->top.n_layers - 1].y;
}

double dlrm_loss(struct dlrm *m, const struct batch *batch)
{
    const struct mlp_layer *head = mlp_last(&m->top);
    double loss = 0;

    assert(batch->n == m->n);
    m->ops->loss(m->c, m->n, head->y, batch->label, head->dy, &loss);
    m->graded = true;
    return m->ops->wait(m->c, 0) ? (double)NAN : loss;
}

/* T's gradient to the bags' rows and to the bottom MLP, which gets R's direct part too. */
static void backward_vectors(struct dlrm *m, const struct bags *bags, float *row_grads)
{
    const uint32_t dim = m->config.dim, ld = m->n_vectors * dim;
    const struct mlp_layer *last;
    struct relu_mask mask;

    if (m->config.n_fields)
        m->ops->bag_grad(m->c, bags, m->dt + dense_floats(m), ld, row_grads);
    if (!m->config.n_numeric)
        return;
    last = mlp_last(&m->bottom);
    if (m->pairs)
        m->ops->add_rows(m->c, m->n, dim, m->dr, m->r_width, m->dt, ld, mlp_mask(last, &mask),
                         last->dy);
    else
        m->ops->add_rows(m->c, m->n, dim, m->dt, ld, NULL, 0, mlp_mask(last, &mask), last->dy);
    mlp_backward(&m->bottom, m->n, NULL);
}

static void backward_l2(struct dlrm *m, const struct batch *batch, const float *rows,
                        float *row_grads)
{
    const struct mlp *mlps[] = { &m->bottom, &m->top };

    for (size_t i = 0; i < COUNT_OF(mlps) && m->config.l2_dense > 0; i++)
        for (uint32_t k = 0; k < mlps[i]->n_layers; k++) {
            struct dlrm_tensor *w = mlps[i]->layers[k].w;

            m->ops->axpy(m->c, w->n_floats, m->config.l2_dense, w->values, w->grads);
        }
    if (m->config.l2_rows > 0)
        m->ops->axpy(m->c, (size_t)batch->n_unique * m->config.dim, m->config.l2_rows, rows,
                     row_grads);
}

int dlrm_backward(struct dlrm *m, const struct batch *batch, const float *rows,
                  const float *wide, float *row_grads, float *wide_grads)
{
    const struct bags bags = bags_of(m, batch);
    const struct interact interact = interact_of(m, m->n);
    const struct mlp_layer *head = mlp_last(&m->top);

    assert(m->trained && batch->n == m->n && !wide == !m->config.wide && !wide_grads == !wide);
    m->trained = false;
    if (!m->graded)
        (void)dlrm_loss(m, batch);
    if (wide)
        m->ops->wide_grad(m->c, &bags, head->dy, wide_grads);
    mlp_backward(&m->top, m->n, m->pairs ? m->dr : m->dt);
    if (m->pairs)
        m->ops->interact_backward(m->c, &interact, m->t, m->dr, m->dt);
    backward_vectors(m, &bags, row_grads);
    backward_l2(m, batch, rows, row_grads);
    return m->ops->wait(m->c, 0);
}
