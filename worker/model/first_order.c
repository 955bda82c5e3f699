#include "worker/model/first_order.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

static struct dlrm_tensor *add_tensor(struct dlrm_tensor *tensors, uint32_t *n_tensors,
                                      const char *name, uint32_t n_floats)
{
    struct dlrm_tensor *t = &tensors[*n_tensors];

    assert(*n_tensors < DLRM_TENSORS_MAX);
    (*n_tensors)++;
    *t = (struct dlrm_tensor){ .n_floats = n_floats, .init = TABLE_SPEC_INIT_ZERO };
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

void first_order_init(struct first_order *f, const struct device_ops *ops, struct compute *c,
                      uint32_t n_inputs, uint32_t ldx, struct dlrm_tensor *tensors,
                      uint32_t *n_tensors)
{
    *f = (struct first_order){ .ops = ops, .c = c, .n_inputs = n_inputs, .ldx = ldx };
    if (n_inputs) {
        f->w = add_tensor(tensors, n_tensors, "lin.0.W", n_inputs);
        f->w->is_weight = true;
    }
    f->b = add_tensor(tensors, n_tensors, "lin.0.b", 1);
}

static size_t n_bytes(const struct first_order *f)
{
    return f->n_max * sizeof(float);
}

int first_order_alloc(struct first_order *f, uint32_t n_max)
{
    f->n_max = n_max;
    f->y = f->ops->memory_alloc(f->c, n_bytes(f));
    if (!f->y)
        return -ENOMEM;
    f->dy = f->ops->memory_alloc(f->c, n_bytes(f));
    if (!f->dy)
        return -ENOMEM;
    return f->ops->reserve(f->c, n_max, f->n_inputs ? f->n_inputs : 1, 1);
}

void first_order_deinit(struct first_order *f)
{
    if (f->y)
        f->ops->memory_free(f->c, f->y, n_bytes(f));
    if (f->dy)
        f->ops->memory_free(f->c, f->dy, n_bytes(f));
    *f = (struct first_order){ 0 };
}

/* A layer without inputs reads and writes nothing but its bias; its pointers are valid all the same. */
static struct linear linear_of(const struct first_order *f, uint32_t n, const float *numeric)
{
    const float *b = f->b->device.values;

    return (struct linear){ n,
                            f->n_inputs,
                            1,
                            f->w ? numeric : b,
                            f->w ? f->w->device.values : b,
                            b,
                            f->ldx != f->n_inputs ? f->ldx : 0 };
}

void first_order_forward(struct first_order *f, const float *numeric, const struct bags *bags,
                         const float *weights)
{
    const struct linear linear = linear_of(f, bags->n, numeric);

    f->ops->linear_forward(f->c, &linear, DEVICE_LINEAR, f->y, 1);
    f->ops->wide_sum(f->c, bags, weights, f->y);
}

void first_order_backward(struct first_order *f, const float *numeric, const struct bags *bags,
                          const float *dz, float *weight_grads)
{
    const struct linear linear = linear_of(f, bags->n, numeric);
    float *db = f->b->device.grads;

    f->ops->wide_grad(f->c, bags, dz, weight_grads);
    f->ops->linear_backward(f->c, &linear, dz, NULL, NULL, f->w ? f->w->device.grads : db, db,
                            NULL);
}
