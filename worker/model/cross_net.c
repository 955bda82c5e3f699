#include "worker/model/cross_net.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>

static struct dlrm_tensor *add_tensor(struct dlrm_tensor *tensors, uint32_t *n_tensors,
                                      uint32_t layer, const char *what, uint32_t n_floats)
{
    struct dlrm_tensor *t = &tensors[*n_tensors];

    assert(*n_tensors < DLRM_TENSORS_MAX);
    (*n_tensors)++;
    *t = (struct dlrm_tensor){ .n_floats = n_floats, .init = TABLE_SPEC_INIT_ZERO };
    snprintf(t->name, sizeof t->name, "cross.%u.%s", layer, what);
    return t;
}

/* Starts as a product of an MLP does (mlp.c). */
static struct dlrm_tensor *add_matrix(struct dlrm_tensor *tensors, uint32_t *n_tensors,
                                      uint32_t layer, const char *what, uint32_t out,
                                      uint32_t in)
{
    struct dlrm_tensor *t = add_tensor(tensors, n_tensors, layer, what, out * in);

    t->is_weight = true;
    t->init = TABLE_SPEC_INIT_NORMAL;
    t->init_scale = (float)sqrt(2 / ((double)in + (double)out));
    return t;
}

void cross_net_init(struct cross_net *net, const struct cross_net_plan *plan,
                    struct dlrm_tensor *tensors, uint32_t *n_tensors)
{
    assert(plan->n_layers <= DLRM_CROSS_MAX);
    *net = (struct cross_net){ .ops = plan->ops,
                               .c = plan->c,
                               .n_layers = plan->n_layers,
                               .width = plan->width,
                               .rank = plan->rank,
                               .ld = plan->ld };
    for (uint32_t i = 0; i < net->n_layers; i++) {
        struct cross_layer *l = &net->layers[i];
        const uint32_t in = net->rank ? net->rank : net->width;

        if (net->rank)
            l->v_weights = add_matrix(tensors, n_tensors, i, "V", net->rank, net->width);
        l->w = add_matrix(tensors, n_tensors, i, "W", net->width, in);
        l->b = add_tensor(tensors, n_tensors, i, "b", net->width);
    }
}

static size_t array_bytes(const struct cross_net *net, uint32_t width)
{
    return (size_t)net->n_max * width * sizeof(float);
}

static size_t zeros_bytes(const struct cross_net *net)
{
    return net->rank * sizeof(float);
}

/* Zeros, so that gaps are. */
static int alloc_array(const struct cross_net *net, uint32_t width, float **ret)
{
    *ret = net->ops->memory_alloc_zeroed(net->c, array_bytes(net, width));
    return *ret ? 0 : -ENOMEM;
}

static int alloc_layer(const struct cross_net *net, struct cross_layer *l)
{
    int status = alloc_array(net, net->ld, &l->x);

    if (!status)
        status = alloc_array(net, net->width, &l->u);
    if (!status && net->rank)
        status = alloc_array(net, net->rank, &l->v);
    return status;
}

static int alloc_low_rank(struct cross_net *net)
{
    int status = alloc_array(net, net->rank, &net->dv);

    if (status)
        return status;
    net->zeros = net->ops->memory_alloc_zeroed(net->c, zeros_bytes(net));
    if (!net->zeros)
        return -ENOMEM;
    status = net->ops->reserve(net->c, net->n_max, net->width, net->rank);
    return status ? status : net->ops->reserve(net->c, net->n_max, net->rank, net->width);
}

int cross_net_alloc(struct cross_net *net, uint32_t n_max)
{
    int status = 0;

    net->n_max = n_max;
    for (uint32_t i = 0; i < net->n_layers && !status; i++)
        status = alloc_layer(net, &net->layers[i]);
    if (!status)
        status = alloc_array(net, net->width, &net->du);
    if (!status)
        status = alloc_array(net, net->ld, &net->dy);
    if (!status)
        status = alloc_array(net, net->ld, &net->dx);
    if (status)
        return status;
    return net->rank ? alloc_low_rank(net)
                     : net->ops->reserve(net->c, n_max, net->width, net->width);
}

static void free_array(const struct cross_net *net, float *memory, size_t n_bytes)
{
    if (memory)
        net->ops->memory_free(net->c, memory, n_bytes);
}

void cross_net_deinit(struct cross_net *net)
{
    for (uint32_t i = 0; i < net->n_layers; i++) {
        free_array(net, net->layers[i].x, array_bytes(net, net->ld));
        free_array(net, net->layers[i].u, array_bytes(net, net->width));
        free_array(net, net->layers[i].v, array_bytes(net, net->rank));
    }
    free_array(net, net->du, array_bytes(net, net->width));
    free_array(net, net->dv, array_bytes(net, net->rank));
    free_array(net, net->dy, array_bytes(net, net->ld));
    free_array(net, net->dx, array_bytes(net, net->ld));
    free_array(net, net->zeros, zeros_bytes(net));
    *net = (struct cross_net){ 0 };
}

static struct cross_shape shape_of(const struct cross_net *net, uint32_t n)
{
    return (struct cross_shape){ n, net->width, net->ld };
}

/* V x_l; of low rank alone. */
static struct linear narrowing(const struct cross_net *net, const struct cross_layer *l,
                               uint32_t n, const float *x)
{
    return (struct linear){ n,          net->width, net->rank, x, l->v_weights->device.values,
                            net->zeros, net->ld };
}

/* W x_l + b, or W of what narrowing() has made. */
static struct linear product(const struct cross_net *net, const struct cross_layer *l,
                             uint32_t n, const float *x)
{
    const float *w = l->w->device.values, *b = l->b->device.values;

    if (net->rank)
        return (struct linear){ n, net->rank, net->width, l->v, w, b, 0 };
    return (struct linear){ n, net->width, net->width, x, w, b, net->ld };
}

const float *cross_net_forward(struct cross_net *net, uint32_t n, const float *x0)
{
    const struct cross_shape shape = shape_of(net, n);
    const float *x = x0;

    for (uint32_t i = 0; i < net->n_layers; x = net->layers[i++].x) {
        const struct cross_layer *l = &net->layers[i];
        const struct linear linear = product(net, l, n, x);

        if (net->rank) {
            const struct linear narrow = narrowing(net, l, n, x);

            net->ops->linear_forward(net->c, &narrow, DEVICE_LINEAR, l->v, net->rank);
        }
        net->ops->linear_forward(net->c, &linear, DEVICE_LINEAR, l->u, net->width);
        net->ops->cross_forward(net->c, &shape, x0, l->u, x, l->x);
    }
    return x;
}

/* du is filled: gradients of the layer's tensors, and dx, of x_l through u. */
static void backward_product(const struct cross_net *net, const struct cross_layer *l,
                             uint32_t n, const float *x)
{
    const struct linear linear = product(net, l, n, x);

    net->ops->linear_backward(net->c, &linear, net->du, net->rank ? net->dv : net->dx, NULL,
                              l->w->device.grads, l->b->device.grads, NULL);
    if (net->rank) {
        const struct linear narrow = narrowing(net, l, n, x);

        net->ops->linear_backward(net->c, &narrow, net->dv, net->dx, NULL,
                                  l->v_weights->device.grads, NULL, NULL);
    }
}

void cross_net_backward(struct cross_net *net, uint32_t n, const float *x0, float *dx0)
{
    const struct cross_shape shape = shape_of(net, n);
    const size_t n_floats = (size_t)n * net->ld;

    for (uint32_t i = net->n_layers; i-- > 0;) {
        const struct cross_layer *l = &net->layers[i];
        const bool is_last = i + 1 == net->n_layers;

        net->ops->cross_backward(net->c, &shape, x0, l->u, net->dy, is_last ? NULL : dx0,
                                 net->du, dx0);
        backward_product(net, l, n, i ? net->layers[i - 1].x : x0);
        net->ops->axpy(net->c, n_floats, 1, net->dx, net->dy);
    }
    net->ops->axpy(net->c, n_floats, 1, net->dy, dx0);
}
