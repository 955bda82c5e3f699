#include "worker/model/data_parallel.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/compute/thread_pool.h"

#define ROWS_MIN 64u
#define BLOCKS 32u /* tasks of a copy or a sum, for threads that are not equally fast */
#define NONE UINT32_MAX

struct part {
    struct batch batch; /* label and numeric: the whole batch's; starts, row_of, order: owned */
    uint32_t first;     /* its first sample */
    float weight;
    uint32_t keys_cap, rows_cap, batch_rows_cap;
    uint32_t *place;  /* owned: [rows of the batch] -> row of the part, or NONE */
    uint32_t *source; /* owned: [rows of the part] -> row of the batch */
    float *rows, *row_grads, *wide, *wide_grads, *grads; /* owned */
};

struct set {
    struct dlrm_step step; /* of the whole batch; borrowed */
    struct part parts[DLRM_DEVICES_MAX];
};

struct data_parallel {
    const struct device_ops *ops;
    struct compute *c;                /* borrowed */
    const struct dlrm_config *config; /* borrowed */
    uint32_t n, n_max;                /* parts; samples of one */
    size_t dense_floats;
    struct thread_pool *pool; /* owned */
    struct set sets[DLRM_BUFFER_SETS];
};

/* Rows of one width, one behind another. */
struct run {
    uint32_t first, end, dim;
    size_t at; /* floats before the first one */
};

/* ---- memory ---- */

static void *host_alloc(const struct data_parallel *p, size_t n_bytes)
{
    return p->ops->host_alloc(p->c, n_bytes);
}

static void host_free(const struct data_parallel *p, void *memory, size_t n_bytes)
{
    if (memory)
        p->ops->host_free(p->c, memory, n_bytes);
}

static size_t starts_bytes(const struct data_parallel *p)
{
    return ((size_t)p->n_max * p->config->n_fields + 1) * sizeof(uint32_t);
}

static size_t row_bytes(const struct data_parallel *p, const struct part *part)
{
    return (size_t)part->rows_cap * dlrm_config_row_width(p->config) * sizeof(float);
}

static void free_keys(const struct data_parallel *p, struct part *part)
{
    struct batch *b = &part->batch;

    host_free(p, b->row_of, part->keys_cap * sizeof *b->row_of);
    host_free(p, b->order, part->keys_cap * sizeof *b->order);
    host_free(p, b->order_starts, ((size_t)part->keys_cap + 1) * sizeof *b->order_starts);
    free(part->source);
    b->row_of = b->order = b->order_starts = part->source = NULL;
    part->keys_cap = 0;
}

static void free_rows(const struct data_parallel *p, struct part *part)
{
    host_free(p, part->rows, row_bytes(p, part));
    host_free(p, part->row_grads, row_bytes(p, part));
    host_free(p, part->wide, part->rows_cap * sizeof *part->wide);
    host_free(p, part->wide_grads, part->rows_cap * sizeof *part->wide_grads);
    part->rows = part->row_grads = part->wide = part->wide_grads = NULL;
    part->rows_cap = 0;
}

static uint32_t with_headroom(uint32_t n)
{
    return n < UINT32_MAX / 2 ? n + n / 2 : n;
}

/* A part has at most a row for each key. */
static int reserve_keys(const struct data_parallel *p, struct part *part, uint32_t n_keys)
{
    struct batch *b = &part->batch;

    if (part->keys_cap && n_keys <= part->keys_cap)
        return 0;
    free_keys(p, part);
    part->keys_cap = with_headroom(n_keys ? n_keys : 1);
    b->row_of = host_alloc(p, part->keys_cap * sizeof *b->row_of);
    if (b->row_of)
        b->order = host_alloc(p, part->keys_cap * sizeof *b->order);
    if (b->order)
        b->order_starts = host_alloc(p, ((size_t)part->keys_cap + 1) * sizeof *b->order_starts);
    if (b->order_starts)
        part->source = memory_try_alloc(part->keys_cap * sizeof *part->source);
    if (part->source)
        return 0;
    free_keys(p, part);
    return -ENOMEM;
}

static int reserve_batch_rows(struct part *part, uint32_t n_rows)
{
    if (part->place && n_rows <= part->batch_rows_cap)
        return 0;
    free(part->place);
    part->batch_rows_cap = with_headroom(n_rows ? n_rows : 1);
    part->place = memory_try_alloc(part->batch_rows_cap * sizeof *part->place);
    return part->place ? 0 : -ENOMEM;
}

static int reserve_rows(const struct data_parallel *p, struct part *part)
{
    const uint32_t n_rows = part->batch.n_unique;

    if (part->rows_cap && n_rows <= part->rows_cap)
        return 0;
    free_rows(p, part);
    part->rows_cap = n_rows > ROWS_MIN ? with_headroom(n_rows) : ROWS_MIN;
    part->rows = host_alloc(p, row_bytes(p, part));
    if (part->rows)
        part->row_grads = host_alloc(p, row_bytes(p, part));
    if (part->row_grads && p->config->wide)
        part->wide = host_alloc(p, part->rows_cap * sizeof *part->wide);
    if (part->wide)
        part->wide_grads = host_alloc(p, part->rows_cap * sizeof *part->wide_grads);
    if (part->row_grads && !part->wide_grads == !p->config->wide)
        return 0;
    free_rows(p, part);
    return -ENOMEM;
}

static int init_part(const struct data_parallel *p, struct part *part)
{
    part->batch = (struct batch){ .n_max = p->n_max,
                                  .n_labels = dlrm_config_n_tasks(p->config),
                                  .n_numeric = p->config->n_numeric,
                                  .n_fields = p->config->n_fields };
    part->batch.starts = host_alloc(p, starts_bytes(p));
    if (part->batch.starts)
        part->grads = host_alloc(p, p->dense_floats * sizeof *part->grads);
    return part->grads ? 0 : -ENOMEM;
}

static void deinit_part(const struct data_parallel *p, struct part *part)
{
    free_keys(p, part);
    free_rows(p, part);
    free(part->place);
    host_free(p, part->batch.starts, starts_bytes(p));
    host_free(p, part->grads, p->dense_floats * sizeof *part->grads);
}

int data_parallel_new(const struct device_ops *ops, struct compute *c,
                      const struct dlrm_config *config, size_t dense_floats,
                      struct data_parallel **ret)
{
    const uint32_t n = config->n_devices;
    struct data_parallel *p = memory_alloc(sizeof *p);
    int status = thread_pool_new(config->n_threads ? config->n_threads : 1, &p->pool);

    p->ops = ops;
    p->c = c;
    p->config = config;
    p->n = n;
    p->n_max = (config->batch_max + n - 1) / n;
    p->dense_floats = dense_floats;
    for (uint32_t s = 0; s < DLRM_BUFFER_SETS; s++)
        for (uint32_t d = 0; d < n && !status; d++)
            status = init_part(p, &p->sets[s].parts[d]);
    if (status) {
        data_parallel_free(p);
        return status;
    }
    *ret = p;
    return 0;
}

void data_parallel_free(struct data_parallel *p)
{
    if (!p)
        return;
    for (uint32_t s = 0; s < DLRM_BUFFER_SETS; s++)
        for (uint32_t d = 0; d < p->n; d++)
            deinit_part(p, &p->sets[s].parts[d]);
    thread_pool_free(p->pool);
    free(p);
}

/* ---- rows ---- */

/* Groups of rows whose width is not the model's may be between others. */
static uint32_t n_runs(const struct data_parallel *p)
{
    return dlrm_config_n_projections(p->config) ? p->config->n_groups : 1;
}

/* Run i of a batch's rows, which begins at that float. */
static struct run run_of(const struct data_parallel *p, const struct batch *b, uint32_t i,
                         size_t at)
{
    if (!dlrm_config_n_projections(p->config))
        return (struct run){ 0, b->n_unique, p->config->dim, 0 };
    return (struct run){ batch_group_start(b, i), batch_group_start(b, i + 1),
                         p->config->group_dims[i], at };
}

static size_t run_end(const struct run *r)
{
    return r->at + (size_t)(r->end - r->first) * r->dim;
}

static size_t float_of(const struct run *r, uint32_t row)
{
    return r->at + (size_t)(row - r->first) * r->dim;
}

/* Block i of n things. */
static uint32_t block_start(uint32_t n, uint32_t i)
{
    return (uint32_t)((uint64_t)n * i / BLOCKS);
}

/* ---- parts ---- */

struct job {
    struct data_parallel *p;
    struct set *s;
    const struct data_parallel_sums *to;
};

static uint32_t first_sample(const struct data_parallel *p, uint32_t n, uint32_t d)
{
    return (uint32_t)((uint64_t)n * d / p->n);
}

/* Samples and bags. */
static void begin_part(const struct data_parallel *p, const struct batch *whole, uint32_t d,
                       struct part *part)
{
    const uint32_t first = first_sample(p, whole->n, d),
                   n = first_sample(p, whole->n, d + 1) - first;
    const uint32_t *starts = whole->starts + (size_t)first * whole->n_fields;
    struct batch *b = &part->batch;

    part->first = first;
    part->weight = whole->n ? (float)n / (float)whole->n : 1;
    b->n = n;
    b->label = whole->label ? whole->label + (size_t)first * b->n_labels : NULL;
    b->numeric = whole->numeric ? whole->numeric + (size_t)first * b->n_numeric : NULL;
    b->groups = whole->groups;
    b->n_keys = starts[(size_t)n * whole->n_fields] - starts[0];
}

/* Numbers the rows of the part in the order of the batch's. On entry place: how often the part has each. */
static void number_rows(const struct batch *whole, struct part *part)
{
    struct batch *b = &part->batch;
    uint32_t n = 0, at = 0, g = 0;

    for (uint32_t r = 0; r < whole->n_unique; r++) {
        const uint32_t count = part->place[r];

        for (; b->groups && g <= b->groups->n && batch_group_start(whole, g) <= r; g++)
            b->group_starts[g] = n;
        part->place[r] = count ? n : NONE;
        if (!count)
            continue;
        part->source[n] = r;
        b->order_starts[n++] = at;
        at += count;
    }
    for (; b->groups && g <= b->groups->n; g++)
        b->group_starts[g] = n;
    b->n_unique = n;
}

/* order_starts[r] goes from the first place of row r to that behind its last, which is the first of row r + 1. */
static void order_keys(const struct batch *whole, uint32_t first_key, struct part *part)
{
    struct batch *b = &part->batch;

    for (uint32_t i = 0; i < b->n_keys; i++) {
        const uint32_t r = part->place[whole->row_of[first_key + i]];

        b->row_of[i] = r;
        b->order[b->order_starts[r]++] = i;
    }
    memmove(b->order_starts + 1, b->order_starts, b->n_unique * sizeof *b->order_starts);
    b->order_starts[0] = 0;
}

static void make_part(void *arg, uint32_t d, uint32_t thread)
{
    struct job *job = arg;
    const struct batch *whole = job->s->step.batch;
    struct part *part = &job->s->parts[d];
    const uint32_t *starts = whole->starts + (size_t)part->first * whole->n_fields;
    const uint32_t n_bags = part->batch.n * whole->n_fields, first_key = starts[0];

    (void)thread;
    for (uint32_t i = 0; i <= n_bags; i++)
        part->batch.starts[i] = starts[i] - first_key;
    memset(part->place, 0, whole->n_unique * sizeof *part->place);
    for (uint32_t i = 0; i < part->batch.n_keys; i++)
        part->place[whole->row_of[first_key + i]]++;
    number_rows(whole, part);
    order_keys(whole, first_key, part);
}

/* Task: block task / n of part task % n. */
static void copy_rows(void *arg, uint32_t task, uint32_t thread)
{
    const struct job *job = arg;
    const struct data_parallel *p = job->p;
    const struct dlrm_step *step = &job->s->step;
    struct part *part = &job->s->parts[task % p->n];
    const uint32_t n_rows = part->batch.n_unique, first = block_start(n_rows, task / p->n),
                   end = block_start(n_rows, task / p->n + 1);
    size_t at = 0, to = 0;

    (void)thread;
    for (uint32_t i = 0; i < n_runs(p); i++) {
        const struct run from = run_of(p, step->batch, i, at),
                         own = run_of(p, &part->batch, i, to);
        const uint32_t last = own.end < end ? own.end : end;

        for (uint32_t r = own.first > first ? own.first : first; r < last; r++)
            memcpy(part->rows + float_of(&own, r),
                   step->rows + float_of(&from, part->source[r]), own.dim * sizeof(float));
        at = run_end(&from);
        to = run_end(&own);
    }
    for (uint32_t r = first; r < end && p->config->wide; r++)
        part->wide[r] = step->wide[part->source[r]];
}

int data_parallel_divide(struct data_parallel *p, uint32_t set, const struct dlrm_step *step)
{
    struct set *s = &p->sets[set];
    struct job job = { .p = p, .s = s };
    int status = 0;

    assert(!step->encoded);
    s->step = *step;
    for (uint32_t d = 0; d < p->n && !status; d++) {
        begin_part(p, step->batch, d, &s->parts[d]);
        status = reserve_keys(p, &s->parts[d], s->parts[d].batch.n_keys);
        if (!status)
            status = reserve_batch_rows(&s->parts[d], step->batch->n_unique);
    }
    if (status)
        return status;
    thread_pool_run(p->pool, p->n, make_part, &job);
    for (uint32_t d = 0; d < p->n && !status; d++)
        status = reserve_rows(p, &s->parts[d]);
    if (!status)
        thread_pool_run(p->pool, p->n * BLOCKS, copy_rows, &job);
    return status;
}

/* A batch without samples is the first part's. */
static bool is_used(const struct set *s, uint32_t d)
{
    return s->parts[d].batch.n || (!s->step.batch->n && !d);
}

bool data_parallel_part(const struct data_parallel *p, uint32_t set, uint32_t d,
                        struct dlrm_step *ret, float **ret_grads)
{
    const struct set *s = &p->sets[set];
    const struct part *part = &s->parts[d];

    if (!is_used(s, d))
        return false;
    *ret = (struct dlrm_step){ .batch = &part->batch,
                               .rows = part->rows,
                               .wide = part->wide,
                               .row_grads = part->row_grads,
                               .wide_grads = part->wide_grads,
                               .number = s->step.number };
    *ret_grads = part->grads;
    return true;
}

uint32_t data_parallel_first(const struct data_parallel *p, uint32_t set, uint32_t d)
{
    return p->sets[set].parts[d].first;
}

/* ---- sums ---- */

/* to (+)= weight x */
static void add(float *to, const float *x, size_t n, float weight, bool is_first)
{
    if (is_first)
        for (size_t i = 0; i < n; i++)
            to[i] = weight * x[i];
    else
        for (size_t i = 0; i < n; i++)
            to[i] += weight * x[i];
}

static void add_dense(const struct job *job, uint32_t block)
{
    const size_t first = job->p->dense_floats * block / BLOCKS,
                 end = job->p->dense_floats * (block + 1) / BLOCKS;
    bool is_first = true;

    for (uint32_t d = 0; d < job->p->n; d++) {
        const struct part *part = &job->s->parts[d];

        if (!is_used(job->s, d))
            continue;
        add(job->to->dense + first, part->grads + first, end - first, part->weight, is_first);
        is_first = false;
    }
}

/* Rows first .. end - 1 of the batch, as far as they are of this run. */
static void add_run(const struct job *job, const struct run *run, const struct run *own,
                    uint32_t first, uint32_t end)
{
    const struct data_parallel *p = job->p;
    const uint32_t last = run->end < end ? run->end : end;

    for (uint32_t r = run->first > first ? run->first : first; r < last; r++) {
        float *to = job->to->rows + float_of(run, r);
        bool is_first = true;

        for (uint32_t d = 0; d < p->n; d++) {
            const struct part *part = &job->s->parts[d];
            const uint32_t at = part->place[r];

            if (at == NONE)
                continue;
            add(to, part->row_grads + float_of(&own[d], at), run->dim, part->weight, is_first);
            is_first = false;
        }
        if (p->config->l2_rows > 0)
            add(to, job->s->step.rows + float_of(run, r), run->dim, p->config->l2_rows, false);
    }
}

static void add_wide(const struct job *job, uint32_t first, uint32_t end)
{
    for (uint32_t r = first; r < end; r++) {
        float sum = 0;

        for (uint32_t d = 0; d < job->p->n; d++) {
            const struct part *part = &job->s->parts[d];

            if (part->place[r] != NONE)
                sum += part->weight * part->wide_grads[part->place[r]];
        }
        job->to->wide[r] = sum;
    }
}

static void add_block(void *arg, uint32_t block, uint32_t thread)
{
    const struct job *job = arg;
    const struct data_parallel *p = job->p;
    const struct batch *whole = job->s->step.batch;
    const uint32_t first = block_start(whole->n_unique, block),
                   end = block_start(whole->n_unique, block + 1);
    struct run run = { 0 }, own[DLRM_DEVICES_MAX] = { { 0 } };

    (void)thread;
    for (uint32_t i = 0; i < n_runs(p); i++) {
        run = run_of(p, whole, i, run_end(&run));
        for (uint32_t d = 0; d < p->n; d++)
            own[d] = run_of(p, &job->s->parts[d].batch, i, run_end(&own[d]));
        add_run(job, &run, own, first, end);
    }
    if (job->to->wide)
        add_wide(job, first, end);
    add_dense(job, block);
}

double data_parallel_add(struct data_parallel *p, uint32_t set, const double *losses,
                         const struct data_parallel_sums *to)
{
    struct set *s = &p->sets[set];
    struct job job = { p, s, to };
    const uint32_t n = s->step.batch->n;
    double loss = 0;

    thread_pool_run(p->pool, BLOCKS, add_block, &job);
    for (uint32_t d = 0; d < p->n; d++)
        if (is_used(s, d))
            loss += n ? losses[d] * s->parts[d].batch.n / n : losses[d];
    return loss;
}
