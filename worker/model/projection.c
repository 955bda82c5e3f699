#include "worker/model/projection.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>

_Static_assert(BATCH_GROUPS_MAX == DEVICE_GROUPS_MAX, "an op takes all groups of a batch");

static struct dlrm_tensor *add_tensor(struct dlrm_tensor *tensors, uint32_t *n_tensors,
                                      uint32_t group, uint32_t in, uint32_t out)
{
    struct dlrm_tensor *t = &tensors[*n_tensors];

    assert(*n_tensors < DLRM_TENSORS_MAX);
    (*n_tensors)++;
    /* Its rows are then spread as those that they come from. */
    *t = (struct dlrm_tensor){ .n_floats = in * out,
                               .init = TABLE_SPEC_INIT_NORMAL,
                               .init_scale = (float)(1 / sqrt((double)in)),
                               .is_weight = true };
    snprintf(t->name, sizeof t->name, "proj.%u.W", group);
    return t;
}

void projection_init(struct projection *p, const struct device_ops *ops, struct compute *c,
                     const struct dlrm_config *config, struct dlrm_tensor *tensors,
                     uint32_t *n_tensors)
{
    *p = (struct projection){ .ops = ops,
                              .c = c,
                              .n_groups =
                                  dlrm_config_n_projections(config) ? config->n_groups : 0,
                              .dim = config->dim,
                              .n_max = config->batch_max };
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const uint32_t in = config->group_dims[g];

        p->groups[g].dim = in;
        if (in == p->dim)
            continue;
        p->groups[g].w = add_tensor(tensors, n_tensors, g, in, p->dim);
        if (p->groups[g].w->n_floats > p->dw_floats)
            p->dw_floats = p->groups[g].w->n_floats;
    }
}

static bool has_op(const struct projection *p)
{
    return p->ops->project_forward != NULL;
}

static size_t starts_bytes(const struct projection *p)
{
    return (p->n_groups + 1) * sizeof(uint32_t);
}

static int alloc_starts(struct projection *p, struct projection_set *s)
{
    s->host_starts = p->ops->host_alloc(p->c, starts_bytes(p));
    if (s->host_starts) /* zeros: see device_buffers, indices */
        s->starts = p->ops->memory_alloc_zeroed(p->c, starts_bytes(p));
    return s->starts ? 0 : -ENOMEM;
}

/* For the linear layers. */
static int alloc_layers(struct projection *p)
{
    int status = 0;

    p->zeros = p->ops->memory_alloc_zeroed(p->c, p->dim * sizeof *p->zeros);
    if (!p->zeros)
        return -ENOMEM;
    p->dw = p->ops->memory_alloc(p->c, p->dw_floats * sizeof *p->dw);
    if (!p->dw)
        return -ENOMEM;
    for (uint32_t g = 0; g < p->n_groups && !status; g++)
        if (p->groups[g].w)
            status = p->ops->reserve(p->c, p->n_max, p->groups[g].dim, p->dim);
    return status;
}

int projection_alloc(struct projection *p)
{
    int status = 0;

    if (!p->n_groups)
        return 0;
    if (!has_op(p))
        return alloc_layers(p);
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS && !status; i++)
        status = alloc_starts(p, &p->sets[i]);
    return status;
}

static void free_floats(const struct projection *p, float **floats, size_t n)
{
    if (*floats)
        p->ops->memory_free(p->c, *floats, n * sizeof **floats);
    *floats = NULL;
}

static void free_rows(const struct projection *p, struct projection_set *s)
{
    free_floats(p, &s->rows, (size_t)s->rows_cap * p->dim);
    free_floats(p, &s->grads, (size_t)s->rows_cap * p->dim);
    s->rows_cap = 0;
}

void projection_deinit(struct projection *p)
{
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS && p->ops; i++) {
        struct projection_set *s = &p->sets[i];

        free_rows(p, s);
        if (s->host_starts)
            p->ops->host_free(p->c, s->host_starts, starts_bytes(p));
        if (s->starts)
            p->ops->memory_free(p->c, s->starts, starts_bytes(p));
    }
    if (p->ops) {
        free_floats(p, &p->zeros, p->dim);
        free_floats(p, &p->dw, p->dw_floats);
    }
    *p = (struct projection){ 0 };
}

int projection_reserve(struct projection *p, uint32_t set, uint32_t n_rows)
{
    struct projection_set *s = &p->sets[set];
    const uint32_t cap = p->ops->shares_memory ? n_rows + n_rows / 2 + 1 : n_rows;
    const size_t n_bytes = (size_t)cap * p->dim * sizeof *s->rows;

    if (!p->n_groups || (s->rows && n_rows <= s->rows_cap))
        return 0;
    free_rows(p, s);
    s->rows_cap = cap;
    s->rows = p->ops->memory_alloc(p->c, n_bytes);
    s->grads = s->rows ? p->ops->memory_alloc(p->c, n_bytes) : NULL;
    if (s->grads)
        return 0;
    free_rows(p, s);
    return -ENOMEM;
}

void projection_in(struct projection *p, uint32_t set, const struct batch *batch,
                   struct dlrm_io *io)
{
    struct projection_set *s = &p->sets[set];

    if (!p->n_groups)
        return;
    if (!has_op(p)) {
        io->key = 0;
        return;
    }
    for (uint32_t g = 0; g <= p->n_groups; g++)
        s->host_starts[g] = batch_group_start(batch, g);
    p->ops->upload(p->c, set, s->starts, s->host_starts, starts_bytes(p));
}

/* ---- by the device's op ---- */

static struct row_projection row_projection_of(const struct projection *p, uint32_t set)
{
    const struct projection_set *s = &p->sets[set];
    struct row_projection ret = {
        .dim = p->dim, .n_groups = p->n_groups, .n_rows_max = s->rows_cap, .starts = s->starts
    };

    for (uint32_t g = 0; g < p->n_groups; g++) {
        const struct projection_group *group = &p->groups[g];

        ret.groups[g].dim = group->dim;
        ret.groups[g].w = group->w ? group->w->device.values : NULL;
        ret.groups[g].dw = group->w ? group->w->device.grads : NULL;
    }
    return ret;
}

/* ---- by linear layers ---- */

/* Rows first .. first + n - 1 of the batch, of one group and at most n_max; from: the group's. */
static struct linear linear_of(const struct projection *p, const struct projection_group *group,
                               uint32_t n, const float *from)
{
    return (struct linear){ n, group->dim, p->dim, from, group->w->device.values, p->zeros, 0 };
}

static void forward_group(struct projection *p, const struct projection_group *group,
                          uint32_t n, const float *from, float *to)
{
    if (!group->w) {
        p->ops->copy_rows(p->c, n, p->dim, from, p->dim, to, p->dim);
        return;
    }
    for (uint32_t i = 0; i < n; i += p->n_max) {
        const struct linear linear = linear_of(p, group, n - i < p->n_max ? n - i : p->n_max,
                                               from + (size_t)i * group->dim);

        p->ops->linear_forward(p->c, &linear, DEVICE_LINEAR, to + (size_t)i * p->dim, p->dim);
    }
}

static void backward_group(struct projection *p, const struct projection_group *group,
                           uint32_t n, const float *from, const float *dy, float *dx)
{
    if (!group->w) {
        p->ops->copy_rows(p->c, n, p->dim, dy, p->dim, dx, p->dim);
        return;
    }
    /* Once also of no rows: the gradient is 0. */
    for (uint32_t i = 0; i < n || !i; i += p->n_max) {
        const struct linear linear = linear_of(p, group, n - i < p->n_max ? n - i : p->n_max,
                                               from + (size_t)i * group->dim);

        p->ops->linear_backward(p->c, &linear, dy + (size_t)i * p->dim,
                                dx + (size_t)i * group->dim, NULL,
                                i ? p->dw : group->w->device.grads, NULL, NULL);
        if (i)
            p->ops->axpy(p->c, group->w->n_floats, 1, p->dw, group->w->device.grads);
    }
}

void projection_forward(struct projection *p, uint32_t set, const struct batch *batch,
                        const float *rows)
{
    float *wide = p->sets[set].rows;

    if (has_op(p)) {
        const struct row_projection op = row_projection_of(p, set);

        p->ops->project_forward(p->c, &op, rows, wide);
        return;
    }
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const uint32_t first = batch_group_start(batch, g),
                       n = batch_group_start(batch, g + 1) - first;

        forward_group(p, &p->groups[g], n, rows, wide + (size_t)first * p->dim);
        rows += (size_t)n * p->groups[g].dim;
    }
}

void projection_backward(struct projection *p, uint32_t set, const struct batch *batch,
                         const float *rows, float *row_grads)
{
    const float *dwide = p->sets[set].grads;

    if (has_op(p)) {
        const struct row_projection op = row_projection_of(p, set);

        p->ops->project_backward(p->c, &op, rows, dwide, row_grads);
        return;
    }
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const uint32_t first = batch_group_start(batch, g),
                       n = batch_group_start(batch, g + 1) - first;
        const size_t n_floats = (size_t)n * p->groups[g].dim;

        backward_group(p, &p->groups[g], n, rows, dwide + (size_t)first * p->dim, row_grads);
        rows += n_floats;
        row_grads += n_floats;
    }
}
