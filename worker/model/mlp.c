#include "worker/model/mlp.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>

static struct dlrm_tensor *add_tensor(struct dlrm_tensor *tensors, uint32_t *n_tensors,
                                      const char *mlp, uint32_t layer, const char *what)
{
    struct dlrm_tensor *t = &tensors[*n_tensors];

    assert(*n_tensors < DLRM_TENSORS_MAX);
    (*n_tensors)++;
    *t = (struct dlrm_tensor){ .init = TABLE_SPEC_INIT_ZERO };
    snprintf(t->name, sizeof t->name, "%s.%u.%s", mlp, layer, what);
    return t;
}

/* dlrm's own start: Glorot-like, Naumov et al.'s code; golden/README.md, 8. */
static void add_product(struct mlp_layer *l, const char *mlp, uint32_t i,
                        struct dlrm_tensor *tensors, uint32_t *n_tensors)
{
    l->w = add_tensor(tensors, n_tensors, mlp, i, "W");
    l->w->n_floats = l->in * l->out;
    l->w->is_weight = true;
    l->w->init = TABLE_SPEC_INIT_NORMAL;
    l->w->init_scale = (float)sqrt(2 / ((double)l->in + (double)l->out));
    l->b = add_tensor(tensors, n_tensors, mlp, i, "b");
    l->b->n_floats = l->out;
    l->b->init = TABLE_SPEC_INIT_NORMAL;
    l->b->init_scale = (float)sqrt(1 / (double)l->out);
}

static void add_norm(struct mlp_layer *l, const char *mlp, uint32_t i,
                     struct dlrm_tensor *tensors, uint32_t *n_tensors)
{
    l->gamma = add_tensor(tensors, n_tensors, mlp, i, "gamma");
    l->beta = add_tensor(tensors, n_tensors, mlp, i, "beta");
    l->mean = add_tensor(tensors, n_tensors, mlp, i, "mean");
    l->var = add_tensor(tensors, n_tensors, mlp, i, "var");
    l->gamma->n_floats = l->beta->n_floats = l->mean->n_floats = l->var->n_floats = l->out;
    l->gamma->init_offset = l->var->init_offset = 1;
    l->mean->statistic = l->var->statistic = true;
}

void mlp_init(struct mlp *mlp, const struct mlp_plan *plan, struct dlrm_tensor *tensors,
              uint32_t *n_tensors)
{
    assert(plan->n_hidden < MLP_LAYERS_MAX);
    mlp->n_layers = plan->n_hidden + 1;
    for (uint32_t i = 0, in = plan->in; i < mlp->n_layers; i++) {
        struct mlp_layer *l = &mlp->layers[i];
        const bool hidden = i < plan->n_hidden;

        *l = (struct mlp_layer){ .in = in, .out = hidden ? plan->hidden[i] : plan->out };
        l->act = hidden ? DEVICE_RELU : plan->last;
        l->dropout = hidden ? plan->dropout : 0;
        l->ldy = in = l->out;
        add_product(l, plan->name, i, tensors, n_tensors);
        if (plan->norm && l->act == DEVICE_RELU)
            add_norm(l, plan->name, i, tensors, n_tensors);
    }
}

struct mlp_layer *mlp_last(struct mlp *mlp)
{
    assert(mlp->n_layers);
    return &mlp->layers[mlp->n_layers - 1];
}

void mlp_place_output(struct mlp *mlp, float *y, uint32_t ldy)
{
    mlp_last(mlp)->y = y;
    mlp_last(mlp)->ldy = ldy;
}

static size_t layer_bytes(const struct mlp *mlp, const struct mlp_layer *l)
{
    return (size_t)mlp->n_max * l->out * sizeof(float);
}

static size_t stats_bytes(const struct mlp_layer *l)
{
    return 3 * (size_t)l->out * sizeof(float);
}

static float *device_memory_alloc(const struct mlp *mlp, size_t n_bytes)
{
    return mlp->ops->memory_alloc(mlp->c, n_bytes);
}

static void device_memory_free(const struct mlp *mlp, float *memory, size_t n_bytes)
{
    if (memory)
        mlp->ops->memory_free(mlp->c, memory, n_bytes);
}

static int alloc_layer(const struct mlp *mlp, struct mlp_layer *l)
{
    if (!l->y)
        l->y = l->own_y = device_memory_alloc(mlp, layer_bytes(mlp, l));
    if (!l->y)
        return -ENOMEM;
    l->dy = device_memory_alloc(mlp, layer_bytes(mlp, l));
    if (!l->dy)
        return -ENOMEM;
    if (!l->gamma)
        return 0;
    l->pre = device_memory_alloc(mlp, layer_bytes(mlp, l));
    if (!l->pre)
        return -ENOMEM;
    l->stats = device_memory_alloc(mlp, stats_bytes(l));
    return l->stats ? 0 : -ENOMEM;
}

int mlp_alloc(struct mlp *mlp, uint32_t n_max)
{
    int status = 0;

    mlp->n_max = n_max;
    for (uint32_t i = 0; i < mlp->n_layers && !status; i++) {
        struct mlp_layer *l = &mlp->layers[i];

        status = alloc_layer(mlp, l);
        if (!status)
            status = mlp->ops->reserve(mlp->c, n_max, l->in, l->out);
    }
    return status;
}

void mlp_deinit(struct mlp *mlp)
{
    for (uint32_t i = 0; i < mlp->n_layers; i++) {
        const struct mlp_layer *l = &mlp->layers[i];

        device_memory_free(mlp, l->own_y, layer_bytes(mlp, l));
        device_memory_free(mlp, l->dy, layer_bytes(mlp, l));
        device_memory_free(mlp, l->pre, layer_bytes(mlp, l));
        device_memory_free(mlp, l->stats, stats_bytes(l));
    }
    *mlp = (struct mlp){ 0 };
}

static struct linear linear_of(const struct mlp_layer *l, uint32_t n)
{
    return (struct linear){
        n, l->in, l->out, l->x, l->w->device.values, l->b->device.values, l->ldx
    };
}

static struct norm norm_of(const struct mlp_layer *l, uint32_t n)
{
    return (struct norm){ .n = n,
                          .width = l->out,
                          .gamma = l->gamma->device.values,
                          .beta = l->beta->device.values,
                          .running_mean = l->mean->device.values,
                          .running_var = l->var->device.values,
                          .mean = l->stats,
                          .var = l->stats + l->out,
                          .inv_std = l->stats + 2 * (size_t)l->out };
}

static void forward_norm(const struct mlp *mlp, const struct mlp_layer *l, uint32_t n,
                         enum mlp_pass pass)
{
    const struct norm nm = norm_of(l, n);

    if (pass == MLP_TRAIN)
        mlp->ops->norm_batch(mlp->c, &nm, l->pre);
    else
        mlp->ops->norm_running(mlp->c, &nm);
    mlp->ops->norm_apply(mlp->c, &nm, l->act, l->pre, l->y, l->ldy);
}

static float keep_scale(const struct mlp_layer *l)
{
    return 1 / (1 - l->dropout);
}

void mlp_forward(struct mlp *mlp, uint32_t n, const float *x, enum mlp_pass pass,
                 const uint64_t *drop_keys)
{
    for (uint32_t i = 0; i < mlp->n_layers; x = mlp->layers[i++].y) {
        struct mlp_layer *l = &mlp->layers[i];
        struct linear linear;

        l->x = x;
        linear = linear_of(l, n);
        if (l->gamma) {
            mlp->ops->linear_forward(mlp->c, &linear, DEVICE_LINEAR, l->pre, l->out);
            forward_norm(mlp, l, n, pass);
        } else {
            mlp->ops->linear_forward(mlp->c, &linear, l->act, l->y, l->ldy);
        }
        if (pass == MLP_TRAIN && l->dropout > 0)
            mlp->ops->dropout(
                mlp->c,
                &(struct dropout){ n, l->out, l->dropout, keep_scale(l), drop_keys + i }, l->y);
    }
}

static bool has_relu(const struct mlp_layer *l)
{
    return l->act == DEVICE_RELU;
}

/* With a norm in between, the norm applies ReLU's mask. */
const struct relu_mask *mlp_mask(const struct mlp_layer *l, struct relu_mask *mask)
{
    *mask = (struct relu_mask){ l->y, l->ldy, keep_scale(l) };
    return has_relu(l) && !l->gamma ? mask : NULL;
}

static void backward_norm(const struct mlp *mlp, const struct mlp_layer *l, uint32_t n)
{
    const struct relu_mask mask = { l->y, l->ldy, keep_scale(l) };
    const struct norm nm = norm_of(l, n);

    mlp->ops->norm_backward(mlp->c, &nm, has_relu(l) ? &mask : NULL, l->pre, l->dy,
                            &(struct norm_grads){ l->gamma->device.grads, l->beta->device.grads,
                                                  l->mean->device.grads,
                                                  l->var->device.grads });
}

void mlp_backward(struct mlp *mlp, uint32_t n, float *dx)
{
    bool has_sums =
        false; /* of dy: the layer above has made them, so the bias has its gradient */

    for (uint32_t i = mlp->n_layers; i-- > 0;) {
        const struct mlp_layer *l = &mlp->layers[i], *below = i ? l - 1 : NULL;
        const struct linear linear = linear_of(l, n);
        struct relu_mask mask;
        const struct relu_mask *through = below ? mlp_mask(below, &mask) : NULL;
        float *sums = through && mlp->ops->makes_sums ? below->b->device.grads : NULL;

        if (l->gamma)
            backward_norm(mlp, l, n);
        mlp->ops->linear_backward(mlp->c, &linear, l->dy, below ? below->dy : dx, through,
                                  l->w->device.grads, has_sums ? NULL : l->b->device.grads,
                                  sums);
        has_sums = sums != NULL;
    }
}
