#include "worker/model/bf16_mlp.h"

#include <assert.h>
#include <errno.h>

void bf16_mlp_init(struct bf16_mlp *mlp, const struct mlp *of, uint32_t n_layers)
{
    *mlp = (struct bf16_mlp){ .ops = of->ops, .c = of->c, .n_layers = n_layers };
    for (uint32_t i = 0; i < n_layers; i++) {
        const struct mlp_layer *l = &of->layers[i];

        assert(l->act == DEVICE_RELU && !l->gamma && l->out % 8 == 0);
        mlp->layers[i] = (struct bf16_layer){ .in = l->in,
                                              .out = l->out,
                                              .ldx = (l->in + 7) / 8 * 8,
                                              .dropout = l->dropout,
                                              .w = l->w,
                                              .b = l->b,
                                              .ldy = l->out };
    }
}

struct bf16_layer *bf16_mlp_last(struct bf16_mlp *mlp)
{
    assert(mlp->n_layers);
    return &mlp->layers[mlp->n_layers - 1];
}

void bf16_mlp_place_output(struct bf16_mlp *mlp, bf16 *y, uint32_t ldy)
{
    bf16_mlp_last(mlp)->y = y;
    bf16_mlp_last(mlp)->ldy = ldy;
}

static size_t y_bytes(const struct bf16_mlp *mlp, const struct bf16_layer *l)
{
    return (size_t)mlp->n_max * l->out * sizeof(bf16);
}

static size_t w_bytes(const struct bf16_layer *l)
{
    return (size_t)l->out * l->ldx * sizeof(bf16);
}

static int alloc(const struct bf16_mlp *mlp, size_t n_bytes, bf16 **ret)
{
    *ret = mlp->ops->memory_alloc(mlp->c, n_bytes);
    return *ret ? 0 : -ENOMEM;
}

static int alloc_layer(const struct bf16_mlp *mlp, struct bf16_layer *l)
{
    int status = l->y ? 0 : alloc(mlp, y_bytes(mlp, l), &l->own_y);

    if (!l->y)
        l->y = l->own_y;
    if (!status)
        status = alloc(mlp, y_bytes(mlp, l), &l->dy);
    if (!status)
        status = alloc(mlp, w_bytes(l), &l->copy_of_w);
    if (!status)
        status = alloc(mlp, l->out * sizeof(bf16), &l->copy_of_b);
    return status ? status : mlp->ops->bf16->reserve(mlp->c, mlp->n_max, l->in, l->out);
}

int bf16_mlp_alloc(struct bf16_mlp *mlp, uint32_t n_max)
{
    int status = 0;

    mlp->n_max = n_max;
    for (uint32_t i = 0; i < mlp->n_layers && !status; i++)
        status = alloc_layer(mlp, &mlp->layers[i]);
    return status;
}

static void release(const struct bf16_mlp *mlp, bf16 *memory, size_t n_bytes)
{
    if (memory)
        mlp->ops->memory_free(mlp->c, memory, n_bytes);
}

void bf16_mlp_deinit(struct bf16_mlp *mlp)
{
    for (uint32_t i = 0; i < mlp->n_layers; i++) {
        const struct bf16_layer *l = &mlp->layers[i];

        release(mlp, l->own_y, y_bytes(mlp, l));
        release(mlp, l->dy, y_bytes(mlp, l));
        release(mlp, l->copy_of_w, w_bytes(l));
        release(mlp, l->copy_of_b, l->out * sizeof(bf16));
    }
    *mlp = (struct bf16_mlp){ 0 };
}

void bf16_mlp_list_copies(const struct bf16_mlp *mlp, struct bf16_copy *copies, uint32_t *n)
{
    assert(*n + 2 * mlp->n_layers <= DEVICE_BF16_COPIES_MAX);
    for (uint32_t i = 0; i < mlp->n_layers; i++) {
        const struct bf16_layer *l = &mlp->layers[i];

        copies[(*n)++] = (struct bf16_copy){
            l->w->device.values, l->copy_of_w, l->out, l->in, l->in, l->ldx
        };
        copies[(*n)++] =
            (struct bf16_copy){ l->b->device.values, l->copy_of_b, 1, l->out, l->out, l->out };
    }
}

static struct bf16_linear linear_of(const struct bf16_layer *l, uint32_t n)
{
    return (struct bf16_linear){ n, l->in, l->out, l->x, l->copy_of_w, l->copy_of_b, l->ldx };
}

static float keep_scale(const struct bf16_layer *l)
{
    return 1 / (1 - l->dropout);
}

struct bf16_mask bf16_mlp_mask(const struct bf16_layer *l)
{
    return (struct bf16_mask){ l->y, l->ldy, keep_scale(l) };
}

void bf16_mlp_forward(struct bf16_mlp *mlp, uint32_t n, const bf16 *x, enum mlp_pass pass,
                      const uint64_t *drop_keys)
{
    for (uint32_t i = 0; i < mlp->n_layers; x = mlp->layers[i++].y) {
        struct bf16_layer *l = &mlp->layers[i];
        struct bf16_linear linear;

        l->x = x;
        linear = linear_of(l, n);
        mlp->ops->bf16->linear_forward(mlp->c, &linear, DEVICE_RELU, l->y, l->ldy);
        if (pass == MLP_TRAIN && l->dropout > 0)
            mlp->ops->bf16->dropout(
                mlp->c,
                &(struct dropout){ n, l->out, l->dropout, keep_scale(l), drop_keys + i }, l->y);
    }
}

void bf16_mlp_backward(struct bf16_mlp *mlp, uint32_t n, bool has_sums, bf16 *dx)
{
    for (uint32_t i = mlp->n_layers; i-- > 0; has_sums = true) {
        const struct bf16_layer *l = &mlp->layers[i], *below = i ? l - 1 : NULL;
        const struct bf16_linear linear = linear_of(l, n);
        const struct bf16_mask mask = below ? bf16_mlp_mask(below) : (struct bf16_mask){ 0 };

        mlp->ops->bf16->linear_backward(mlp->c, &linear, l->dy, below ? below->dy : dx,
                                        below ? &mask : NULL, l->w->device.grads,
                                        has_sums ? NULL : l->b->device.grads,
                                        below ? below->b->device.grads : NULL);
    }
}
