#include "worker/model/dlrm.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/memory.h"
#include "worker/model/dlrm_internal.h"

#define LINE_FLOATS 16u

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
                                     .last = DEVICE_RELU,
                                     .norm = cfg->batch_norm },
                 m->tensors, &m->n_tensors);
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
    m->ldr = m->r_width;
    if (m->pairs && m->ops->row_floats > 1) {
        m->ldr =
            (m->r_width + m->ops->row_floats - 1) / m->ops->row_floats * m->ops->row_floats;
        m->top.layers[0].ldx = m->ldr;
    }
    m->bottom.ops = m->top.ops = m->ops;
    m->bottom.c = m->top.c = m->c;
}

/* With its last block full. */
static size_t padded(size_t n_floats)
{
    const size_t unit =
        n_floats < TABLE_SPEC_DENSE_BLOCK ? LINE_FLOATS : TABLE_SPEC_DENSE_BLOCK;

    return (n_floats + unit - 1) / unit * unit;
}

/* The tensors' places; floats of all. */
static size_t lay_out(struct dlrm *m)
{
    size_t at = 0;

    for (uint32_t i = 0; i < m->n_tensors; i++) {
        m->tensors[i].at = at;
        at += padded(m->tensors[i].n_floats);
    }
    return at;
}

/* Of batch_max samples of `width` floats. */
static size_t sample_bytes(const struct dlrm *m, size_t width)
{
    return m->config.batch_max * width * sizeof(float);
}

static size_t t_bytes(const struct dlrm *m)
{
    return sample_bytes(m, (size_t)m->n_vectors * m->config.dim);
}

static float *device_memory_alloc(const struct dlrm *m, size_t n_bytes)
{
    return m->ops->memory_alloc(m->c, n_bytes);
}

static void device_memory_free(const struct dlrm *m, float *memory, size_t n_bytes)
{
    if (memory)
        m->ops->memory_free(m->c, memory, n_bytes);
}

static int alloc_vectors(struct dlrm *m)
{
    m->t = device_memory_alloc(m, t_bytes(m));
    if (!m->t)
        return -ENOMEM;
    m->dt = device_memory_alloc(m, t_bytes(m));
    if (!m->dt)
        return -ENOMEM;
    if (!m->pairs)
        return 0;
    m->r = m->ops->memory_alloc_zeroed(m->c, sample_bytes(m, m->ldr)); /* its gaps stay zeros */
    if (!m->r)
        return -ENOMEM;
    m->dr = device_memory_alloc(m, sample_bytes(m, m->ldr));
    return m->dr ? 0 : -ENOMEM;
}

static int alloc_all(struct dlrm *m)
{
    int status = device_buffers_init(&m->buffers, m->ops, m->c, &m->config, lay_out(m));

    device_push_encode_init(&m->encoder, m->ops, m->c, &m->config, m->tensors, m->n_tensors);
    if (!status)
        status = alloc_vectors(m);
    if (!status && m->config.n_numeric) {
        mlp_place_output(&m->bottom, m->t, m->n_vectors * m->config.dim);
        status = mlp_alloc(&m->bottom, m->config.batch_max);
    }
    if (!status)
        status = mlp_alloc(&m->top, m->config.batch_max);
    if (!status)
        dlrm_use(m, NULL, NULL);
    return status;
}

int dlrm_new(const struct dlrm_config *config, struct dlrm **ret_model, struct err *err)
{
    return dlrm_new_on(&device_cpu, config, ret_model, err);
}

int dlrm_new_on(const struct device_ops *ops, const struct dlrm_config *config,
                struct dlrm **ret_model, struct err *err)
{
    const struct device_options options = { config->n_threads ? config->n_threads : 1,
                                            config->products };
    struct dlrm *m;
    int status = dlrm_config_check(config, err);

    if (status)
        return status;
    m = memory_alloc(sizeof *m);
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
    device_push_encode_deinit(&m->encoder);
    device_buffers_deinit(&m->buffers);
    device_memory_free(m, m->t, t_bytes(m));
    device_memory_free(m, m->dt, t_bytes(m));
    device_memory_free(m, m->r, sample_bytes(m, m->ldr));
    device_memory_free(m, m->dr, sample_bytes(m, m->ldr));
    m->ops->close(m->c);
    free(m);
}

const char *dlrm_device(const struct dlrm *m)
{
    return m->ops->describe(m->c);
}

int dlrm_failed(const struct dlrm *m, int status, struct err *err)
{
    const char *why = status == PS_EDEVICE ? m->ops->failure(m->c) : "";

    return err_set(err, status, "the model on %s: %s%s%.150s", m->ops->name,
                   status_text(status), *why ? ": " : "", why);
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

size_t dlrm_dense_floats(const struct dlrm *m)
{
    return m->buffers.dense_floats;
}

float *dlrm_dense(const struct dlrm *m)
{
    return m->buffers.host_values;
}

void dlrm_use(struct dlrm *m, float *values, float *grads)
{
    device_buffers_use(&m->buffers, values, grads);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        struct dlrm_tensor *t = &m->tensors[i];

        t->values = m->buffers.host_values + t->at;
        t->grads = m->buffers.host_grads + t->at;
    }
}

void *dlrm_host_alloc(struct dlrm *m, size_t n_bytes)
{
    return m->ops->host_alloc(m->c, n_bytes);
}

void dlrm_host_free(struct dlrm *m, void *memory, size_t n_bytes)
{
    if (memory)
        m->ops->host_free(m->c, memory, n_bytes);
}

int dlrm_keep_rows(struct dlrm *m, size_t n_bytes)
{
    return device_row_cache_keep(&m->buffers.rows, n_bytes);
}

bool dlrm_keeps_rows(const struct dlrm *m)
{
    return m->buffers.rows.n_places > 0;
}

struct dlrm_row_counts dlrm_row_counts(const struct dlrm *m)
{
    return (struct dlrm_row_counts){ m->buffers.rows.n_copied, m->buffers.rows.n_kept };
}

bool dlrm_encodes(const struct dlrm *m)
{
    return !m->ops->shares_memory;
}

uint32_t dlrm_n_gradients(const struct dlrm *m)
{
    return m->encoder.n;
}

static bool is_at_rest(const struct dlrm *m)
{
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS; i++)
        if (m->buffers.sets[i].busy)
            return false;
    return true;
}

int dlrm_residual_reserve(struct dlrm *m, uint32_t gradient, uint32_t n_rows)
{
    assert(is_at_rest(m) && dlrm_encodes(m));
    return device_push_encode_reserve_residual(&m->encoder, gradient, n_rows);
}

void dlrm_residual_release(struct dlrm *m)
{
    assert(is_at_rest(m));
    device_push_encode_release_residuals(&m->encoder);
}

int dlrm_residual_put(struct dlrm *m, uint32_t gradient, const uint32_t *at, uint32_t n,
                      const float *rows)
{
    assert(is_at_rest(m) && dlrm_encodes(m));
    return device_push_encode_put_residual(&m->encoder, gradient, at, n, rows);
}

int dlrm_residual_get(struct dlrm *m, uint32_t gradient, const uint32_t *at, uint32_t n,
                      float *rows)
{
    assert(is_at_rest(m) && dlrm_encodes(m));
    return device_push_encode_get_residual(&m->encoder, gradient, at, n, rows);
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

/* Tensors where the step's ops find them. */
static void aim(struct dlrm *m, const struct dlrm_io *io)
{
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        struct dlrm_tensor *t = &m->tensors[i];

        t->device.values = io->values + t->at;
        t->device.grads = io->grads + t->at;
    }
}

/* The bags' sums in T, unless the interaction makes them as it goes, and R. */
static void forward_vectors(struct dlrm *m, const struct dlrm_io *io)
{
    const struct interact interact = interact_of(m, io->n);

    if (m->pairs && m->ops->interact_bags_forward) {
        m->ops->interact_bags_forward(m->c, &io->bags, io->rows, &interact, m->t, m->r);
        return;
    }
    if (m->config.n_fields)
        m->ops->bag_sum(m->c, &io->bags, io->rows, m->t + dense_floats(m),
                        m->n_vectors * m->config.dim);
    if (m->pairs)
        m->ops->interact_forward(m->c, &interact, m->t, m->r);
}

static void forward(struct dlrm *m, const struct dlrm_io *io, enum mlp_pass pass)
{
    const struct mlp_layer *head = mlp_last(&m->top);

    if (m->config.n_numeric)
        mlp_forward(&m->bottom, io->n, io->numeric, pass, NULL);
    forward_vectors(m, io);
    mlp_forward(&m->top, io->n, m->pairs ? m->r : m->t, pass, io->drop_keys);
    if (m->config.wide)
        m->ops->wide_sum(m->c, &io->bags, io->wide, head->y);
}

static void backward_pairs(struct dlrm *m, const struct dlrm_io *io)
{
    const struct interact interact = interact_of(m, io->n);

    if (m->ops->interact_bags_backward)
        m->ops->interact_bags_backward(m->c, &io->bags, io->rows, &interact, m->t, m->dr,
                                       m->dt);
    else
        m->ops->interact_backward(m->c, &interact, m->t, m->dr, m->dt);
}

/* T's gradient to the bags' rows and to the bottom MLP, which gets R's direct part too. */
static void backward_vectors(struct dlrm *m, const struct dlrm_io *io)
{
    const uint32_t dim = m->config.dim, ld = m->n_vectors * dim;
    const struct mlp_layer *last;
    struct relu_mask mask;

    if (m->config.n_fields)
        m->ops->bag_grad(m->c, &io->bags, m->dt + dense_floats(m), ld, io->row_grads);
    if (!m->config.n_numeric)
        return;
    last = mlp_last(&m->bottom);
    if (m->pairs)
        m->ops->add_rows(m->c, io->n, dim, m->dr, m->ldr, m->dt, ld, mlp_mask(last, &mask),
                         last->dy);
    else
        m->ops->add_rows(m->c, io->n, dim, m->dt, ld, NULL, 0, mlp_mask(last, &mask), last->dy);
    mlp_backward(&m->bottom, io->n, NULL);
}

static void backward_l2(struct dlrm *m, const struct dlrm_io *io)
{
    const struct mlp *mlps[] = { &m->bottom, &m->top };

    for (size_t i = 0; i < COUNT_OF(mlps) && m->config.l2_dense > 0; i++)
        for (uint32_t k = 0; k < mlps[i]->n_layers; k++) {
            const struct dlrm_tensor *w = mlps[i]->layers[k].w;

            m->ops->axpy(m->c, w->n_floats, m->config.l2_dense, w->device.values,
                         w->device.grads);
        }
    if (m->config.l2_rows > 0)
        m->ops->axpy(m->c, (size_t)io->n_rows * m->config.dim, m->config.l2_rows, io->rows,
                     io->row_grads);
}

static void backward(struct dlrm *m, const struct dlrm_io *io)
{
    const struct mlp_layer *head = mlp_last(&m->top);

    if (m->config.wide)
        m->ops->wide_grad(m->c, &io->bags, head->dy, io->wide_grads);
    mlp_backward(&m->top, io->n, m->pairs ? m->dr : m->dt);
    if (m->pairs)
        backward_pairs(m, io);
    backward_vectors(m, io);
    backward_l2(m, io);
}

static void make(struct dlrm *m, const struct dlrm_io *io, enum device_buffers_pass pass)
{
    const struct mlp_layer *head = mlp_last(&m->top);

    if (pass == DEVICE_BUFFERS_PREDICT) {
        forward(m, io, MLP_EVAL);
        m->ops->prob(m->c, io->n, head->y, io->probs);
        return;
    }
    forward(m, io, MLP_TRAIN);
    m->ops->loss(m->c, io->n, head->y, io->label, head->dy, io->loss);
    backward(m, io);
    for (uint32_t i = 0; i < io->n_encodes; i++)
        m->ops->encode(m->c, &io->encodes[i]);
}

/* Everything of a step but the wait for it. */
static int begin(struct dlrm *m, uint32_t set, const struct dlrm_step *step,
                 enum device_buffers_pass pass)
{
    const struct dlrm_encoded *encoded = pass == DEVICE_BUFFERS_TRAIN ? step->encoded : NULL;
    struct dlrm_io io;
    int status;

    assert(step->batch->n <= m->config.batch_max && !step->wide == !m->config.wide);
    assert(step->batch->n_numeric == m->config.n_numeric &&
           step->batch->n_fields == m->config.n_fields);
    status = encoded ? device_push_encode_reserve(&m->encoder, set, encoded) : 0;
    if (!status)
        status = device_buffers_in(&m->buffers, set, step, pass, &io);
    if (status)
        return status;
    if (encoded)
        device_push_encode_in(&m->encoder, set, encoded, &io);
    m->n = io.n;
    aim(m, &io);
    if (!m->ops->begin(m->c, set, io.key))
        make(m, &io, pass);
    m->ops->end(m->c, set);
    device_buffers_out(&m->buffers, set, step, pass);
    if (encoded)
        device_push_encode_out(&m->encoder, set, encoded);
    return 0;
}

uint32_t dlrm_n_buffer_sets(const struct dlrm *m)
{
    return m->ops->shares_memory ? 1 : DLRM_BUFFER_SETS;
}

int dlrm_step_begin(struct dlrm *m, uint32_t set, const struct dlrm_step *step)
{
    assert(step->encoded ? dlrm_encodes(m) : !step->wide_grads == !m->config.wide);
    return begin(m, set, step, DEVICE_BUFFERS_TRAIN);
}

int dlrm_step_end(struct dlrm *m, uint32_t set, double *ret_loss)
{
    return device_buffers_wait(&m->buffers, set, ret_loss);
}

int dlrm_step(struct dlrm *m, const struct dlrm_step *step, double *ret_loss)
{
    int status = dlrm_step_begin(m, 0, step);

    return status ? status : dlrm_step_end(m, 0, ret_loss);
}

int dlrm_predict(struct dlrm *m, const struct dlrm_step *step)
{
    double none;
    int status = begin(m, 0, step, DEVICE_BUFFERS_PREDICT);

    return status ? status : device_buffers_wait(&m->buffers, 0, &none);
}

const float *dlrm_probs(const struct dlrm *m)
{
    return m->buffers.probs;
}
