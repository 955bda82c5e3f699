#include "worker/model/projection.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>

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

int projection_alloc(struct projection *p)
{
    int status = 0;

    if (!p->n_groups)
        return 0;
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

static void free_floats(const struct projection *p, float **floats, size_t n)
{
    if (*floats)
        p->ops->memory_free(p->c, *floats, n * sizeof **floats);
    *floats = NULL;
}

static void free_rows(struct projection *p)
{
    free_floats(p, &p->rows, (size_t)p->rows_cap * p->dim);
    free_floats(p, &p->grads, (size_t)p->rows_cap * p->dim);
    p->rows_cap = 0;
}

void projection_deinit(struct projection *p)
{
    if (p->ops) {
        free_rows(p);
        free_floats(p, &p->zeros, p->dim);
        free_floats(p, &p->dw, p->dw_floats);
    }
    *p = (struct projection){ 0 };
}

int projection_reserve(struct projection *p, const struct batch *batch)
{
    const uint32_t n = batch->n_unique, cap = n + n / 2 + 1;
    const size_t n_bytes = (size_t)cap * p->dim * sizeof *p->rows;

    if (!p->n_groups || (p->rows && n <= p->rows_cap))
        return 0;
    free_rows(p);
    p->rows_cap = cap;
    p->rows = p->ops->memory_alloc(p->c, n_bytes);
    p->grads = p->rows ? p->ops->memory_alloc(p->c, n_bytes) : NULL;
    if (p->grads)
        return 0;
    free_rows(p);
    return -ENOMEM;
}

size_t projection_floats(const struct projection *p, const struct batch *batch)
{
    size_t n = 0;

    for (uint32_t g = 0; g < p->n_groups; g++)
        n += (size_t)(batch_group_start(batch, g + 1) - batch_group_start(batch, g)) *
             p->groups[g].dim;
    return n;
}

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

void projection_forward(struct projection *p, const struct batch *batch, const float *rows)
{
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const uint32_t first = batch_group_start(batch, g),
                       n = batch_group_start(batch, g + 1) - first;

        forward_group(p, &p->groups[g], n, rows, p->rows + (size_t)first * p->dim);
        rows += (size_t)n * p->groups[g].dim;
    }
}

void projection_backward(struct projection *p, const struct batch *batch, const float *rows,
                         float *row_grads)
{
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const uint32_t first = batch_group_start(batch, g),
                       n = batch_group_start(batch, g + 1) - first;
        const size_t n_floats = (size_t)n * p->groups[g].dim;

        backward_group(p, &p->groups[g], n, rows, p->grads + (size_t)first * p->dim, row_grads);
        rows += n_floats;
        row_grads += n_floats;
    }
}
