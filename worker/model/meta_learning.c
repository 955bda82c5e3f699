#include "worker/model/meta_learning.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define NONE UINT32_MAX

/* Host memory in which a device finds them. */
struct arrays {
    float *rows, *row_grads, *wide, *wide_grads; /* of the task's rows */
    size_t n_row_floats, n_rows;                 /* space */
    float *dense, *dense_grads;                  /* [dlrm_dense_floats()] */
};

struct meta_learning {
    struct dlrm *model; /* borrowed */
    struct dlrm_config config;
    struct meta_learning_options options;
    struct batch_allocator memory;
    struct batch part;    /* the support or the query of a task */
    struct arrays copies; /* owned */

    /* The tasks of the batch: task t has samples[starts[t]] .. samples[starts[t + 1] - 1], ascending. [n_max] and one
     * more of starts. */
    uint32_t n, *starts, *samples, *task_of_sample;
    /* By row of the batch, [cap_rows]: the task with this key, while tasks are found; the row's number in the task. */
    uint32_t *task_of_row, *number_of_row, cap_rows;
    uint32_t *rows, n_rows; /* the task's, as rows of the batch, ascending; cap_rows */

    float *probs, *labels; /* [n_max][n_tasks] */
    struct meta_learning_counts counts;
};

static void *alloc_host(void *model, size_t n_bytes)
{
    return dlrm_host_alloc(model, n_bytes);
}

static void free_host(void *model, void *memory, size_t n_bytes)
{
    dlrm_host_free(model, memory, n_bytes);
}

static void free_array(struct meta_learning *m, float **array, size_t n_floats)
{
    dlrm_host_free(m->model, *array, n_floats * sizeof **array);
    *array = NULL;
}

static void free_rows(struct meta_learning *m)
{
    struct arrays *a = &m->copies;

    free_array(m, &a->rows, a->n_row_floats);
    free_array(m, &a->row_grads, a->n_row_floats);
    free_array(m, &a->wide, a->n_rows);
    free_array(m, &a->wide_grads, a->n_rows);
    a->n_row_floats = a->n_rows = 0;
}

static int alloc_samples(struct meta_learning *m)
{
    const uint32_t n = m->config.batch_max;
    const size_t n_outputs = (size_t)n * dlrm_n_tasks(m->model);
    const size_t n_bytes = dlrm_dense_floats(m->model) * sizeof(float);

    m->starts = memory_try_alloc((n + 1) * sizeof *m->starts);
    m->samples = memory_try_alloc(n * sizeof *m->samples);
    m->task_of_sample = memory_try_alloc(n * sizeof *m->task_of_sample);
    m->probs = memory_try_alloc(n_outputs * sizeof *m->probs);
    m->labels = memory_try_alloc(n_outputs * sizeof *m->labels);
    m->copies.dense = dlrm_host_alloc(m->model, n_bytes);
    m->copies.dense_grads = dlrm_host_alloc(m->model, n_bytes);
    return m->starts && m->samples && m->task_of_sample && m->probs && m->labels &&
                   m->copies.dense && m->copies.dense_grads
               ? 0
               : -ENOMEM;
}

int meta_learning_new(struct dlrm *model, const struct dlrm_config *config,
                      const struct meta_learning_options *options, struct meta_learning **ret)
{
    struct meta_learning *m = memory_try_alloc(sizeof *m);
    int status;

    if (!m)
        return -ENOMEM;
    *m = (struct meta_learning){ .model = model, .config = *config, .options = *options };
    m->memory = (struct batch_allocator){ alloc_host, free_host, model };
    status = batch_init_labels(&m->part, &m->memory, config->batch_max, dlrm_n_tasks(model),
                               config->n_numeric, config->n_fields);
    if (!status)
        status = alloc_samples(m);
    if (status) {
        meta_learning_free(m);
        return status;
    }
    *ret = m;
    return 0;
}

void meta_learning_free(struct meta_learning *m)
{
    if (!m)
        return;
    batch_deinit(&m->part);
    free_rows(m);
    free_array(m, &m->copies.dense, dlrm_dense_floats(m->model));
    free_array(m, &m->copies.dense_grads, dlrm_dense_floats(m->model));
    free(m->starts);
    free(m->samples);
    free(m->task_of_sample);
    free(m->task_of_row);
    free(m->number_of_row);
    free(m->rows);
    free(m->probs);
    free(m->labels);
    free(m);
}

/* ---- the tasks of a batch ---- */

static int grow(uint32_t **array, uint32_t n)
{
    void *grown = memory_try_realloc(*array, n * sizeof **array);

    if (!grown)
        return -ENOMEM;
    *array = grown;
    return 0;
}

static int reserve_rows(struct meta_learning *m, uint32_t n)
{
    if (n <= m->cap_rows)
        return 0;
    m->cap_rows = 0;
    if (grow(&m->task_of_row, n) || grow(&m->number_of_row, n) || grow(&m->rows, n))
        return -ENOMEM;
    m->cap_rows = n;
    return 0;
}

/* The row of the sample's task; NONE: it has none. */
static uint32_t task_row(const struct meta_learning *m, const struct batch *b, uint32_t sample)
{
    const size_t bag = (size_t)sample * b->n_fields + m->options.field;

    return b->starts[bag] < b->starts[bag + 1] ? b->row_of[b->starts[bag]] : NONE;
}

/* In the order of their first samples. */
static int find_tasks(struct meta_learning *m, const struct batch *b)
{
    uint32_t without = NONE, at = 0;
    int status = reserve_rows(m, b->n_unique);

    if (status)
        return status;
    memset(m->task_of_row, 0xff, b->n_unique * sizeof *m->task_of_row);
    memset(m->number_of_row, 0xff, b->n_unique * sizeof *m->number_of_row);
    m->n = 0;
    for (uint32_t s = 0; s < b->n; s++) {
        const uint32_t row = task_row(m, b, s);
        uint32_t *task = row == NONE ? &without : &m->task_of_row[row];

        if (*task == NONE) {
            m->starts[m->n] = 0;
            *task = m->n++;
        }
        m->starts[*task]++;
        m->task_of_sample[s] = *task;
    }
    for (uint32_t t = 0; t < m->n; t++) {
        const uint32_t n = m->starts[t];

        m->starts[t] = at;
        at += n;
    }
    /* Each start runs to the next task's, and back. */
    for (uint32_t s = 0; s < b->n; s++)
        m->samples[m->starts[m->task_of_sample[s]]++] = s;
    for (uint32_t t = m->n; t > 0; t--)
        m->starts[t] = m->starts[t - 1];
    m->starts[0] = 0;
    return 0;
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Rows that the task's samples use, ascending as in the batch, so groups of fields keep their order. */
static void find_rows(struct meta_learning *m, const struct batch *b, uint32_t task)
{
    for (uint32_t i = 0; i < m->n_rows; i++)
        m->number_of_row[m->rows[i]] = NONE;
    m->n_rows = 0;
    for (uint32_t i = m->starts[task]; i < m->starts[task + 1]; i++) {
        const size_t bag = (size_t)m->samples[i] * b->n_fields;

        for (uint32_t k = b->starts[bag]; k < b->starts[bag + b->n_fields]; k++)
            if (m->number_of_row[b->row_of[k]] == NONE) {
                m->number_of_row[b->row_of[k]] = 0;
                m->rows[m->n_rows++] = b->row_of[k];
            }
    }
    qsort(m->rows, m->n_rows, sizeof *m->rows, by_number);
    for (uint32_t i = 0; i < m->n_rows; i++)
        m->number_of_row[m->rows[i]] = i;
}

static uint32_t n_groups(const struct batch *b)
{
    return b->groups ? b->groups->n : 1;
}

/* The rows of the part are the task's, whether its samples use them or not. */
static void begin_part(struct meta_learning *m, const struct batch *b)
{
    struct batch *part = &m->part;
    uint32_t i = 0;

    batch_clear(part);
    part->groups = b->groups;
    part->number = b->number;
    part->n_unique = m->n_rows;
    for (uint32_t g = 0; b->groups && g <= n_groups(b); g++) {
        while (i < m->n_rows && m->rows[i] < batch_group_start(b, g))
            i++;
        part->group_starts[g] = i;
    }
}

/* What a dedup would have: for each row the positions that hold it, ascending. */
static void order_part(struct batch *part, const uint64_t *unique, const uint32_t *rows)
{
    uint32_t *ends = part->order_starts;

    for (uint32_t i = 0; i < part->n_unique; i++)
        part->unique[i] = unique[rows[i]];
    memset(ends, 0, (part->n_unique + 1) * sizeof *ends);
    for (uint32_t k = 0; k < part->n_keys; k++)
        ends[part->row_of[k] + 1]++;
    for (uint32_t i = 0; i < part->n_unique; i++)
        ends[i + 1] += ends[i];
    for (uint32_t k = 0; k < part->n_keys; k++)
        part->order[ends[part->row_of[k]]++] = k;
    memmove(ends + 1, ends, part->n_unique * sizeof *ends);
    ends[0] = 0;
}

static void add_sample(struct meta_learning *m, const struct batch *b, uint32_t sample)
{
    struct batch *part = &m->part;
    const size_t bag = (size_t)sample * b->n_fields, to = (size_t)part->n * b->n_fields;
    const size_t label = (size_t)sample * b->n_labels, number = (size_t)sample * b->n_numeric;

    memcpy(part->label + (size_t)part->n * b->n_labels, b->label + label,
           b->n_labels * sizeof *b->label);
    if (b->n_numeric)
        memcpy(part->numeric + (size_t)part->n * b->n_numeric, b->numeric + number,
               b->n_numeric * sizeof *b->numeric);
    for (uint32_t f = 0; f < b->n_fields; f++) {
        part->starts[to + f] = part->n_keys;
        for (uint32_t k = b->starts[bag + f]; k < b->starts[bag + f + 1]; k++) {
            part->keys[part->n_keys] = b->keys[k];
            part->row_of[part->n_keys++] = m->number_of_row[b->row_of[k]];
        }
    }
    part->starts[to + b->n_fields] = part->n_keys;
    part->n++;
}

/* Samples [first, end) of m->samples. */
static int make_part(struct meta_learning *m, const struct batch *b, uint32_t first,
                     uint32_t end)
{
    uint32_t n_keys = m->n_rows;
    int status;

    for (uint32_t i = first; i < end; i++) {
        const size_t bag = (size_t)m->samples[i] * b->n_fields;

        n_keys += b->starts[bag + b->n_fields] - b->starts[bag];
    }
    begin_part(m, b);
    status = batch_reserve_keys(&m->part, n_keys);
    if (status)
        return status;
    for (uint32_t i = first; i < end; i++)
        add_sample(m, b, m->samples[i]);
    order_part(&m->part, b->unique, m->rows);
    return 0;
}

/* ---- a task's own weights ---- */

static uint32_t width_of(const struct meta_learning *m, uint32_t group)
{
    return dlrm_config_n_projections(&m->config) ? m->config.group_dims[group] : m->config.dim;
}

static int reserve_copies(struct meta_learning *m)
{
    const size_t n_floats = dlrm_config_row_floats(&m->config, &m->part);
    struct arrays *a = &m->copies;

    if (a->rows && n_floats <= a->n_row_floats && m->n_rows <= a->n_rows)
        return 0;
    free_rows(m);
    a->n_row_floats = n_floats + n_floats / 2 + 1;
    a->n_rows = m->n_rows + m->n_rows / 2 + 1;
    a->rows = dlrm_host_alloc(m->model, a->n_row_floats * sizeof *a->rows);
    a->row_grads = dlrm_host_alloc(m->model, a->n_row_floats * sizeof *a->row_grads);
    a->wide = dlrm_host_alloc(m->model, a->n_rows * sizeof *a->wide);
    a->wide_grads = dlrm_host_alloc(m->model, a->n_rows * sizeof *a->wide_grads);
    if (a->rows && a->row_grads && a->wide && a->wide_grads)
        return 0;
    free_rows(m); /* else the next call would take them for reserved */
    return -ENOMEM;
}

/* fn(floats of the batch's row, floats of the task's row, how many) for each row of the task. */
static void for_rows(struct meta_learning *m, const struct batch *b, float *all, float *own,
                     void (*fn)(float *of_batch, float *of_task, size_t n, float weight),
                     float weight)
{
    const uint32_t n = n_groups(b);
    uint32_t i = 0;

    for (uint32_t g = 0; g < n; g++) {
        const uint32_t width = width_of(m, g), first = batch_group_start(b, g),
                       end = batch_group_start(b, g + 1);

        for (; i < m->n_rows && m->rows[i] < end; i++, own += width)
            fn(all + (size_t)(m->rows[i] - first) * width, own, width, weight);
        all += (size_t)(end - first) * width;
    }
}

static void copy_out(float *of_batch, float *of_task, size_t n, float weight)
{
    (void)weight;
    memcpy(of_task, of_batch, n * sizeof *of_task);
}

static void add(float *to, float *from, size_t n, float weight)
{
    for (size_t i = 0; i < n; i++)
        to[i] += weight * from[i];
}

static int begin_task(struct meta_learning *m, const struct dlrm_step *step, const float *dense)
{
    struct arrays *a = &m->copies;
    int status;

    begin_part(m, step->batch);
    status = reserve_copies(m);
    if (status)
        return status;
    for_rows(m, step->batch, (float *)step->rows, a->rows, copy_out, 0);
    for (uint32_t i = 0; i < m->n_rows && m->config.wide; i++)
        a->wide[i] = step->wide[m->rows[i]];
    memcpy(a->dense, dense, dlrm_dense_floats(m->model) * sizeof *dense);
    return 0;
}

static struct dlrm_step own_step(struct meta_learning *m, const struct dlrm_step *step)
{
    struct arrays *a = &m->copies;

    dlrm_use(m->model, a->dense, a->dense_grads);
    return (struct dlrm_step){ .batch = &m->part,
                               .rows = a->rows,
                               .wide = m->config.wide ? a->wide : NULL,
                               .row_grads = a->row_grads,
                               .wide_grads = m->config.wide ? a->wide_grads : NULL,
                               .number = step->number };
}

/* SGD. The padding behind tensors has no gradient, and running statistics are none. */
static void descend(struct meta_learning *m)
{
    const float by = -m->options.inner_lr;
    struct arrays *a = &m->copies;

    add(a->rows, a->row_grads, dlrm_config_row_floats(&m->config, &m->part), by);
    if (m->config.wide)
        add(a->wide, a->wide_grads, m->n_rows, by);
    for (uint32_t i = 0; i < dlrm_n_tensors(m->model); i++) {
        const struct dlrm_tensor *t = dlrm_tensor(m->model, i);

        if (!t->statistic)
            add(a->dense + t->at, a->dense_grads + t->at, t->n_floats, by);
    }
}

/* The weights are the task's own, and the part its query. */
static int adapt(struct meta_learning *m, const struct dlrm_step *step, uint32_t task,
                 const float *dense)
{
    const uint32_t first = m->starts[task], end = m->starts[task + 1],
                   half = first + (end - first) / 2;
    int status = 0;
    double loss;

    find_rows(m, step->batch, task);
    status = begin_task(m, step, dense);
    if (!status && half > first)
        status = make_part(m, step->batch, first, half);
    for (uint32_t k = 0; k < m->options.inner_steps && half > first && !status; k++) {
        const struct dlrm_step own = own_step(m, step);

        status = dlrm_step(m->model, &own, &loss);
        if (!status)
            descend(m);
    }
    return status ? status : make_part(m, step->batch, half, end);
}

static void add_gradients(struct meta_learning *m, const struct dlrm_step *step,
                          float *dense_grads)
{
    const float weight = 1 / (float)m->n;
    struct arrays *a = &m->copies;

    for_rows(m, step->batch, step->row_grads, a->row_grads, add, weight);
    for (uint32_t i = 0; i < m->n_rows && m->config.wide; i++)
        step->wide_grads[m->rows[i]] += weight * a->wide_grads[i];
    for (uint32_t i = 0; i < dlrm_n_tensors(m->model); i++) {
        const struct dlrm_tensor *t = dlrm_tensor(m->model, i);

        add(dense_grads + t->at, a->dense_grads + t->at, t->n_floats, weight);
    }
}

static void clear_gradients(struct meta_learning *m, const struct dlrm_step *step,
                            float *dense_grads)
{
    const struct batch *b = step->batch;

    memset(step->row_grads, 0, dlrm_config_row_floats(&m->config, b) * sizeof(float));
    if (m->config.wide)
        memset(step->wide_grads, 0, b->n_unique * sizeof(float));
    memset(dense_grads, 0, dlrm_dense_floats(m->model) * sizeof(float));
}

int meta_learning_step(struct meta_learning *m, const struct dlrm_step *step,
                       float *dense_grads, double *ret_loss)
{
    float *dense = dlrm_dense(m->model);
    int status = find_tasks(m, step->batch);
    double loss;

    m->n_rows = 0;
    *ret_loss = 0;
    clear_gradients(m, step, dense_grads);
    for (uint32_t t = 0; t < m->n && !status; t++) {
        struct dlrm_step own;

        m->counts.n_tasks++;
        m->counts.n_single += m->starts[t + 1] - m->starts[t] == 1;
        status = adapt(m, step, t, dense);
        own = own_step(m, step);
        if (!status)
            status = dlrm_step(m->model, &own, &loss);
        if (status)
            break;
        *ret_loss += loss / m->n;
        add_gradients(m, step, dense_grads);
    }
    dlrm_use(m->model, dense, dense_grads);
    return status;
}

int meta_learning_predict(struct meta_learning *m, const struct dlrm_step *step,
                          float *dense_grads, struct meta_learning_scores *ret)
{
    const uint32_t n_outputs = dlrm_n_tasks(m->model);
    float *dense = dlrm_dense(m->model);
    int status = find_tasks(m, step->batch);

    m->n_rows = 0;
    *ret = (struct meta_learning_scores){ .probs = m->probs, .labels = m->labels };
    for (uint32_t t = 0; t < m->n && !status; t++) {
        const size_t at = (size_t)ret->n * n_outputs;
        struct dlrm_step own;

        status = adapt(m, step, t, dense);
        own = own_step(m, step);
        if (!status)
            status = dlrm_predict(m->model, &own);
        if (status)
            break;
        memcpy(m->probs + at, dlrm_probs(m->model),
               (size_t)m->part.n * n_outputs * sizeof *m->probs);
        memcpy(m->labels + at, m->part.label,
               (size_t)m->part.n * n_outputs * sizeof *m->labels);
        ret->n += m->part.n;
    }
    dlrm_use(m->model, dense, dense_grads);
    return status;
}

struct meta_learning_counts meta_learning_counts(const struct meta_learning *m)
{
    return m->counts;
}
