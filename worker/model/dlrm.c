#include "worker/model/dlrm.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/memory.h"
#include "worker/model/dlrm_internal.h"
#include "worker/model/head.h"

#define LINE_FLOATS 16u
#define CLIP_EPSILON 1e-6 /* of clip_grad_norm_ */
#define CLIP_LANES 16u

static const struct head *const heads[MODEL_KINDS] = {
    [MODEL_DLRM] = &head_dlrm,     [MODEL_LR] = &head_lr,
    [MODEL_FM] = &head_fm,         [MODEL_WIDE_DEEP] = &head_wide_deep,
    [MODEL_DEEPFM] = &head_deepfm, [MODEL_DCNV2] = &head_dcnv2,
};

/* Shapes and tensors; no memory yet. */
static void plan(struct dlrm *m)
{
    m->n_vectors = dlrm_config_n_vectors(&m->config);
    m->r_width = (uint32_t)dlrm_config_r_width(&m->config);
    m->head->plan(m);
    projection_init(&m->projection, m->ops, m->c, &m->config, m->tensors, &m->n_tensors);
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

static int alloc_all(struct dlrm *m)
{
    int status = device_buffers_init(&m->buffers, m->ops, m->c, &m->config, lay_out(m));

    device_push_encode_init(&m->encoder, m->ops, m->c, &m->config, m->tensors, m->n_tensors);
    if (!status)
        status = m->head->alloc(m);
    if (!status)
        status = projection_alloc(&m->projection);
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
                                            config->products, config->place };
    struct dlrm *m;
    int status = dlrm_config_check(config, err);

    if (status)
        return status;
    m = memory_alloc(sizeof *m);
    m->config = *config;
    m->head = heads[config->kind];
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
    m->head->deinit(m);
    projection_deinit(&m->projection);
    device_push_encode_deinit(&m->encoder);
    device_buffers_deinit(&m->buffers);
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

uint32_t dlrm_n_tasks(const struct dlrm *m)
{
    return dlrm_config_n_tasks(&m->config);
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

bool dlrm_dedups(const struct dlrm *m)
{
    return m->ops->dedup_new != NULL;
}

int dlrm_dedup_new(struct dlrm *m, struct device_dedup **ret, struct err *err)
{
    return m->ops->dedup_new(m->c, ret, err);
}

int dlrm_dedup(struct dlrm *m, struct device_dedup *d, const struct key_dedup *keys,
               uint32_t *ret_n_unique, struct err *err)
{
    return m->ops->dedup(d, keys, ret_n_unique, err);
}

void dlrm_dedup_free(struct dlrm *m, struct device_dedup *d)
{
    m->ops->dedup_free(d);
}

int dlrm_keep_rows(struct dlrm *m, size_t n_bytes)
{
    return device_row_cache_keep(&m->buffers.rows, n_bytes);
}

bool dlrm_keeps_rows(const struct dlrm *m)
{
    return m->buffers.rows.n_places > 0;
}

bool dlrm_decodes(const struct dlrm *m)
{
    return m->ops->decode_rows && !m->ops->shares_memory && !m->projection.n_groups;
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

void dlrm_take_pulled(struct dlrm *m)
{
    assert(is_at_rest(m) && dlrm_decodes(m));
    device_buffers_take_pulled(&m->buffers);
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

/* Tensors where the step's ops find them. */
static void aim(struct dlrm *m, const struct dlrm_io *io)
{
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        struct dlrm_tensor *t = &m->tensors[i];

        t->device.values = io->values + t->at;
        t->device.grads = io->grads + t->at;
    }
}

/* rows: as they came, projected or not. */
static void backward_l2(struct dlrm *m, const struct dlrm_io *io)
{
    for (uint32_t i = 0; i < m->n_tensors && m->config.l2_dense > 0; i++) {
        const struct dlrm_tensor *t = &m->tensors[i];

        if (t->is_weight)
            m->ops->axpy(m->c, t->n_floats, m->config.l2_dense, t->device.values,
                         t->device.grads);
    }
    if (m->config.l2_rows > 0)
        m->ops->axpy(m->c, io->n_row_floats, m->config.l2_rows, io->rows, io->row_grads);
}

/* Task by task: of the logits [n][n_tasks] each has a column, and a sum. */
static void make_loss(struct dlrm *m, const struct dlrm_io *io)
{
    const uint32_t n_tasks = dlrm_config_n_tasks(&m->config);

    for (uint32_t i = 0; i < n_tasks; i++) {
        const struct cross_entropy e = { .n = io->n,
                                         .more = m->config.positive_more,
                                         .smoothing = m->config.label_smoothing,
                                         .offset = m->config.logit_offset,
                                         .ld = n_tasks,
                                         .weight = dlrm_config_task_weight(&m->config, i) };

        m->ops->loss(m->c, &e, m->z + i, io->label + i, m->dz + i, io->loss + i);
    }
}

static void make_step(struct dlrm *m, const struct dlrm_io *io)
{
    m->head->forward(m, io, MLP_TRAIN);
    make_loss(m, io);
    m->head->backward(m, io);
}

static void make_prediction(struct dlrm *m, const struct dlrm_io *io)
{
    m->head->forward(m, io, MLP_EVAL);
    m->ops->prob(m->c, io->n * dlrm_config_n_tasks(&m->config), m->z, io->probs);
}

/* Between the step's rows and the model are rows as wide as it. */
static void make_projected(struct dlrm *m, uint32_t set, const struct batch *batch,
                           const struct dlrm_io *io, enum device_buffers_pass pass)
{
    struct projection *p = &m->projection;
    struct dlrm_io wide = *io;

    wide.rows = p->sets[set].rows;
    wide.row_grads = p->sets[set].grads;
    projection_forward(p, set, batch, io->rows);
    if (pass == DEVICE_BUFFERS_PREDICT) {
        make_prediction(m, &wide);
        return;
    }
    make_step(m, &wide);
    projection_backward(p, set, batch, io->rows, io->row_grads);
    backward_l2(m, io);
}

static void make(struct dlrm *m, uint32_t set, const struct batch *batch,
                 const struct dlrm_io *io, enum device_buffers_pass pass)
{
    if (io->transposition)
        m->ops->transpose_bags(m->c, io->transposition);
    if (m->projection.n_groups) {
        make_projected(m, set, batch, io, pass);
        return;
    }
    if (pass == DEVICE_BUFFERS_PREDICT) {
        make_prediction(m, io);
        return;
    }
    make_step(m, io);
    backward_l2(m, io);
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
    assert(pass == DEVICE_BUFFERS_PREDICT ||
           step->batch->n_labels == dlrm_config_n_tasks(&m->config));
    status = encoded ? device_push_encode_reserve(&m->encoder, set, encoded) : 0;
    if (!status)
        status = device_buffers_reserve(&m->buffers, set, step->batch);
    if (!status)
        status = projection_reserve(&m->projection, set,
                                    m->ops->shares_memory ? step->batch->n_unique
                                                          : m->buffers.sets[set].rows_cap);
    if (status)
        return status;
    device_buffers_in(&m->buffers, set, step, pass, &io);
    projection_in(&m->projection, set, step->batch, &io);
    if (encoded)
        device_push_encode_in(&m->encoder, set, encoded, &io);
    m->n = io.n;
    aim(m, &io);
    if (!m->ops->begin(m->c, set, io.key))
        make(m, set, step->batch, &io, pass);
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

/* Sums side by side, so that the compiler can use vectors; their order is fixed. */
static double squares(const float *x, size_t n)
{
    double sums[CLIP_LANES] = { 0 }, all = 0;
    size_t i = 0;

    for (; i + CLIP_LANES <= n; i += CLIP_LANES)
        for (size_t k = 0; k < CLIP_LANES; k++)
            sums[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++)
        all += (double)x[i] * (double)x[i];
    for (size_t k = 0; k < CLIP_LANES; k++)
        all += sums[k];
    return all;
}

static void scale(float *x, size_t n, float by)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= by;
}

/*
 * Clipping by the global norm (Pascanu et al. 2013), as PyTorch's clip_grad_norm_ has it:
 *
 *     norm = |all gradients of the batch, as one vector|
 *     if norm > most:  each gradient *= most / (norm + 1e-6)
 *
 * Running statistics are no gradients, and stay. A norm that is not finite changes nothing: servers refuse such
 * gradients with a sentence.
 */
static void clip(const struct dlrm *m, const struct dlrm_gradients *g, float most)
{
    double sum = squares(g->rows, g->n_rows) + squares(g->wide, g->n_wide), norm;
    float by;

    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (!m->tensors[i].statistic)
            sum += squares(g->dense + m->tensors[i].at, m->tensors[i].n_floats);
    norm = sqrt(sum);
    if (!isfinite(norm) || norm <= (double)most)
        return;
    by = (float)((double)most / (norm + CLIP_EPSILON));
    scale(g->rows, g->n_rows, by);
    scale(g->wide, g->n_wide, by);
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (!m->tensors[i].statistic)
            scale(g->dense + m->tensors[i].at, m->tensors[i].n_floats, by);
}

/* The arrays where the step's gradients will be, which may be others at the next. */
static struct dlrm_gradients gradients_of(struct dlrm *m, const struct dlrm_step *step)
{
    const struct batch *b = step->batch;

    return (struct dlrm_gradients){ .dense = m->buffers.host_grads,
                                    .rows = step->row_grads,
                                    .n_rows = dlrm_config_row_floats(&m->config, b),
                                    .wide = step->wide_grads,
                                    .n_wide = m->config.wide ? b->n_unique : 0 };
}

int dlrm_step_begin(struct dlrm *m, uint32_t set, const struct dlrm_step *step)
{
    assert(step->encoded ? dlrm_encodes(m) : !step->wide_grads == !m->config.wide);
    assert(!step->encoded || (!(m->config.clip_norm > 0) && !m->projection.n_groups));
    m->gradients[set] = gradients_of(m, step);
    return begin(m, set, step, DEVICE_BUFFERS_TRAIN);
}

int dlrm_step_end(struct dlrm *m, uint32_t set, double *ret_loss)
{
    int status = device_buffers_wait(&m->buffers, set, ret_loss);

    if (!status && m->config.clip_norm > 0)
        clip(m, &m->gradients[set], m->config.clip_norm);
    return status;
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
