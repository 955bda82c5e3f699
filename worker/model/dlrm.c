#include "worker/model/dlrm.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
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
    m->n_inputs = dlrm_config_n_inputs(&m->config);
    m->ldx = m->config.n_hats ? dlrm_internal_ld(m, m->n_inputs) : m->n_inputs;
    m->head->plan(m);
    projection_init(&m->projection, m->ops, m->c, &m->config, m->tensors, &m->n_tensors);
    m->bottom.ops = m->top.ops = m->ops;
    m->bottom.c = m->top.c = m->c;
}

/* With its last block full, of a whole layer as well: its table may have been made in blocks. */
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
        struct dlrm_tensor *t = &m->tensors[i];
        const bool is_whole =
            (m->config.whole_layers && !t->statistic) || t->n_floats < TABLE_SPEC_DENSE_BLOCK;

        t->block = is_whole ? t->n_floats : TABLE_SPEC_DENSE_BLOCK;
        t->at = at;
        at += padded(t->n_floats);
    }
    return at;
}

/* Its gaps stay zeros. */
static int alloc_inputs(struct dlrm *m)
{
    if (!m->config.n_hats || !m->n_inputs)
        return 0;
    m->x = dlrm_internal_alloc_zeroed(m, m->ldx);
    return m->x ? 0 : -ENOMEM;
}

static int alloc_all(struct dlrm *m)
{
    int status = device_buffers_init(&m->buffers, m->ops, m->c, &m->config, lay_out(m));

    device_push_encode_init(&m->encoder, m->ops, m->c, &m->config, m->tensors, m->n_tensors);
    if (!status)
        status = alloc_inputs(m);
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

static int no_memory(const struct dlrm_config *config, int status, struct err *err)
{
    return err_set(err, status,
                   "model: no memory for batches of %u samples; choose a smaller batch or MLP",
                   config->batch_max);
}

/* On one device. */
static int new_single(const struct device_ops *ops, const struct dlrm_config *config,
                      struct dlrm **ret_model, struct err *err)
{
    const struct device_options options = { config->n_threads ? config->n_threads : 1,
                                            config->products, config->place };
    struct dlrm *m = memory_alloc(sizeof *m);
    int status;

    m->config = *config;
    m->head = head_dlrm_bf16_fits(ops, config) ? &head_dlrm_bf16 : heads[config->kind];
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
        return no_memory(config, status, err);
    }
    *ret_model = m;
    return 0;
}

/*
 * What a member makes of its part. The norm of all gradients, and the L2 term of a row that several parts have, are the
 * whole batch's. Each member drops other outputs: they are numbered from 0 in each part.
 */
static struct dlrm_config member_config(const struct dlrm_config *config, uint32_t i)
{
    struct dlrm_config own = *config;

    own.batch_max = (config->batch_max + config->n_devices - 1) / config->n_devices;
    own.place = (struct device_place){ .number = config->devices[i] };
    own.n_devices = 0;
    own.clip_norm = own.l2_rows = 0;
    own.seed = i ? hash_mix2(config->seed, i) : config->seed;
    return own;
}

static int new_members(struct dlrm *m, struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < m->config.n_devices && !status; i++) {
        const struct dlrm_config own = member_config(&m->config, i);

        status = new_single(m->ops, &own, &m->members[i], err);
        m->n_members += !status;
    }
    return status;
}

static void describe_members(struct dlrm *m)
{
    size_t n = (size_t)snprintf(m->device, sizeof m->device,
                                "%s; each batch is divided among %u devices",
                                dlrm_device(m->members[0]), m->n_members);

    for (uint32_t i = 0; i < m->n_members && n < sizeof m->device; i++)
        n += (size_t)snprintf(m->device + n, sizeof m->device - n, "%s %s:%u", i ? "," : ":",
                              m->ops->name, m->config.devices[i]);
}

/* On several. */
static int new_parallel(const struct device_ops *ops, const struct dlrm_config *config,
                        struct dlrm **ret_model, struct err *err)
{
    struct dlrm *m = memory_alloc(sizeof *m);
    const struct dlrm *first;
    int status;

    m->config = *config;
    m->head = heads[config->kind];
    m->ops = ops;
    status = new_members(m, err);
    if (status) {
        dlrm_free(m);
        return status;
    }
    first = m->members[0];
    m->c = first->c;
    m->n_tensors = first->n_tensors;
    memcpy(m->tensors, first->tensors, sizeof m->tensors);
    status = device_buffers_init_host(&m->buffers, ops, m->c, &m->config,
                                      first->buffers.dense_floats);
    if (!status)
        status =
            data_parallel_new(ops, m->c, &m->config, first->buffers.dense_floats, &m->parallel);
    if (status) {
        dlrm_free(m);
        return no_memory(config, status, err);
    }
    dlrm_use(m, NULL, NULL);
    describe_members(m);
    *ret_model = m;
    return 0;
}

int dlrm_new_on(const struct device_ops *ops, const struct dlrm_config *config,
                struct dlrm **ret_model, struct err *err)
{
    int status = dlrm_config_check(config, err);

    if (status)
        return status;
    return config->n_devices > 1 ? new_parallel(ops, config, ret_model, err)
                                 : new_single(ops, config, ret_model, err);
}

static void free_parallel(struct dlrm *m)
{
    data_parallel_free(m->parallel);
    device_buffers_deinit(&m->buffers);
    for (uint32_t i = 0; i < m->n_members; i++)
        dlrm_free(m->members[i]);
    free(m);
}

void dlrm_free(struct dlrm *m)
{
    if (!m)
        return;
    if (m->n_members) {
        free_parallel(m);
        return;
    }
    m->head->deinit(m);
    dlrm_internal_free(m, m->x, m->ldx);
    projection_deinit(&m->projection);
    device_push_encode_deinit(&m->encoder);
    device_buffers_deinit(&m->buffers);
    m->ops->close(m->c);
    free(m);
}

const char *dlrm_device(const struct dlrm *m)
{
    return m->n_members ? m->device : m->ops->describe(m->c);
}

int dlrm_failed(const struct dlrm *m, int status, struct err *err)
{
    const struct dlrm *one = m->n_members ? m->members[m->failed] : m;
    const char *why = status == PS_EDEVICE ? m->ops->failure(one->c) : "";
    char number[16] = "";

    if (m->n_members)
        snprintf(number, sizeof number, ":%u", m->config.devices[m->failed]);
    return err_set(err, status, "the model on %s%s: %s%s%.150s", m->ops->name, number,
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

void dlrm_set_block(struct dlrm *m, uint32_t i, uint32_t block)
{
    dlrm_tensor(m, i)->block = block;
    if (m->encoder.n) /* devices that share a batch encode nothing */
        device_push_encode_set_width(&m->encoder, DLRM_DENSE + i, block);
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
    return m->n_members ? 0 : device_row_cache_keep(&m->buffers.rows, n_bytes);
}

int dlrm_replicate_rows(struct dlrm *m, const struct dlrm_replica *replica)
{
    return m->projection.n_groups || m->n_members
               ? 0
               : device_row_cache_replicate(&m->buffers.rows, replica);
}

void dlrm_release_rows(struct dlrm *m)
{
    device_row_cache_release(&m->buffers.rows);
}

uint32_t dlrm_n_places(const struct dlrm *m)
{
    return m->buffers.rows.n_places;
}

bool dlrm_keeps_rows(const struct dlrm *m)
{
    return m->buffers.rows.n_places > 0;
}

bool dlrm_decodes(const struct dlrm *m)
{
    return m->ops->decode_rows && !m->ops->shares_memory && !m->projection.n_groups &&
           !m->n_members;
}

struct dlrm_row_counts dlrm_row_counts(const struct dlrm *m)
{
    const struct device_row_cache *r = &m->buffers.rows;
    struct dlrm_row_counts counts = { r->n_copied, r->n_kept,
                                      (r->dim + r->n_states) * sizeof *r->kept };

    for (uint32_t i = 0; i < m->n_members; i++)
        counts.n_copied += m->members[i]->buffers.rows.n_copied;
    return counts;
}

bool dlrm_encodes(const struct dlrm *m)
{
    return !m->ops->shares_memory && !m->n_members;
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

/* What the numbers of a batch are to the model. */
static void make_inputs(struct dlrm *m, struct dlrm_io *io)
{
    const struct number_hats hats = { io->n, m->config.n_numeric, m->config.n_hats,
                                      m->config.first_hat, m->ldx };

    if (!m->x)
        return;
    m->ops->number_hats(m->c, &hats, io->numeric, m->x);
    io->numeric = m->x;
}

static void make(struct dlrm *m, uint32_t set, const struct batch *batch, struct dlrm_io *io,
                 enum device_buffers_pass pass)
{
    make_inputs(m, io);
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
    if (io->update)
        m->ops->update_rows(m->c, io->update);
}

/* Everything of a step but the wait for it, on one device. */
static int begin_single(struct dlrm *m, uint32_t set, const struct dlrm_step *step,
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
    if (!status && m->bf16)
        status = m->ops->bf16->reserve_rows(m->c, m->buffers.sets[set].rows_cap, m->config.dim);
    if (!status && encoded && step->update)
        status = device_buffers_reserve_update(&m->buffers, set, encoded[DLRM_ROWS].n);
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
    if (encoded && step->update)
        io.update = device_row_cache_update(&m->buffers.rows, set, step, encoded[DLRM_ROWS].n,
                                            m->encoder.buffers[set].bytes[DLRM_ROWS]);
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

/* Waits for the first n members' parts. The first failure among them. losses: NULL or of each part. */
static int wait_members(struct dlrm *m, uint32_t set, uint32_t n, double *losses)
{
    struct dlrm_step part;
    float *grads;
    double loss;
    int status = 0;

    for (uint32_t i = 0; i < n; i++) {
        int one;

        if (!data_parallel_part(m->parallel, set, i, &part, &grads))
            continue;
        one = device_buffers_wait(&m->members[i]->buffers, set, losses ? &losses[i] : &loss);
        if (one && !status) {
            status = one;
            m->failed = i;
        }
    }
    return status;
}

/* A member without samples is asked for nothing, and has the dense array of an earlier step. */
static int begin_member(struct dlrm *m, uint32_t i, uint32_t set, enum device_buffers_pass pass)
{
    struct dlrm *member = m->members[i];
    struct dlrm_step part;
    float *grads;
    int status;

    if (!data_parallel_part(m->parallel, set, i, &part, &grads))
        return 0;
    part.keeps_dense = m->has_dense[i];
    dlrm_use(member, m->buffers.host_values, grads);
    status = begin_single(member, set, &part, pass);
    if (status)
        m->failed = i;
    else
        m->has_dense[i] = true;
    return status;
}

static int begin_members(struct dlrm *m, uint32_t set, const struct dlrm_step *step,
                         enum device_buffers_pass pass)
{
    uint32_t n = 0;
    int status = data_parallel_divide(m->parallel, set, step);

    if (status)
        return status;
    if (!step->keeps_dense)
        memset(m->has_dense, 0, sizeof m->has_dense);
    for (; n < m->n_members && !status; n++)
        status = begin_member(m, n, set, pass);
    if (status) {
        const uint32_t failed = m->failed;

        (void)wait_members(m, set, n - 1, NULL);
        m->failed = failed;
    }
    return status;
}

static int begin(struct dlrm *m, uint32_t set, const struct dlrm_step *step,
                 enum device_buffers_pass pass)
{
    return m->n_members ? begin_members(m, set, step, pass) : begin_single(m, set, step, pass);
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

static int end_members(struct dlrm *m, uint32_t set, double *ret_loss)
{
    const struct dlrm_gradients *g = &m->gradients[set];
    const struct data_parallel_sums sums = { g->dense, g->rows, g->wide };
    double losses[DLRM_DEVICES_MAX];
    int status = wait_members(m, set, m->n_members, losses);

    *ret_loss = status ? (double)NAN : data_parallel_add(m->parallel, set, losses, &sums);
    return status;
}

static int predict_members(struct dlrm *m)
{
    const uint32_t n_tasks = dlrm_n_tasks(m);
    struct dlrm_step part;
    float *grads;
    int status = wait_members(m, 0, m->n_members, NULL);

    for (uint32_t i = 0; i < m->n_members && !status; i++)
        if (data_parallel_part(m->parallel, 0, i, &part, &grads))
            memcpy(m->buffers.probs + (size_t)data_parallel_first(m->parallel, 0, i) * n_tasks,
                   dlrm_probs(m->members[i]),
                   (size_t)part.batch->n * n_tasks * sizeof *m->buffers.probs);
    return status;
}

int dlrm_step_end(struct dlrm *m, uint32_t set, double *ret_loss)
{
    int status = m->n_members ? end_members(m, set, ret_loss)
                              : device_buffers_wait(&m->buffers, set, ret_loss);

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

    if (status)
        return status;
    return m->n_members ? predict_members(m) : device_buffers_wait(&m->buffers, 0, &none);
}

const float *dlrm_probs(const struct dlrm *m)
{
    return m->buffers.probs;
}
