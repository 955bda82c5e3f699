/* Only tests read intermediates, so what a step overwrites is computed again. */
#include "tests/unit/model/debug_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/model/dlrm_internal.h"
#include "worker/model/mlp.h"

enum { MODELS_MAX = 8 };

/* Answers, one a model; a model that is freed leaves its answer to the next one at its address, or to the end. */
static struct {
    const struct dlrm *m;
    float *floats;
} answers[MODELS_MAX];
static uint32_t n_models;

static float **answer_of(const struct dlrm *m)
{
    uint32_t i = 0;

    while (i < MODELS_MAX && answers[i].m != m)
        i++;
    if (i == MODELS_MAX)
        i = n_models++ % MODELS_MAX;
    answers[i].m = m;
    return &answers[i].floats;
}

/* One that is being read. */
struct reading {
    float *device;
    size_t n_bytes;
};

/* Space for n floats in the device's memory; ops may follow, which are not recorded. */
static float *start(struct dlrm *m, struct reading *a, size_t n)
{
    a->n_bytes = n * sizeof(float) + 1;
    a->device = m->ops->memory_alloc(m->c, a->n_bytes);
    if (a->device)
        (void)m->ops->begin(m->c, 0, 0);
    return a->device;
}

/* What the ops have written there, in the host's memory, until the next call for m. */
static const float *finish(struct dlrm *m, const struct reading *a)
{
    float **host = answer_of(m);
    int status;

    if (!a->device)
        return NULL;
    m->ops->end(m->c, 0);
    free(*host);
    *host = memory_try_alloc(a->n_bytes);
    if (*host)
        m->ops->download(m->c, 0, *host, a->device, a->n_bytes - 1);
    status = m->ops->wait(m->c, 0);
    m->ops->memory_free(m->c, a->device, a->n_bytes);
    return status ? NULL : *host;
}

/* `width` floats of each row of `from`. */
static const float *columns(struct dlrm *m, const float *from, uint32_t ld, uint32_t width,
                            uint32_t *ret_n)
{
    struct reading a;
    float *to = start(m, &a, (size_t)m->n * width);

    if (to)
        m->ops->add_rows(m->c, m->n, width, from, ld, NULL, 0, NULL, to);
    *ret_n = m->n * width;
    return finish(m, &a);
}

/* The product without ReLU. */
static const float *read_pre(struct dlrm *m, const struct mlp_layer *l, uint32_t *ret_n)
{
    const struct linear linear = {
        m->n, l->in, l->out, l->x, l->w->device.values, l->b->device.values, l->ldx
    };
    struct reading a;
    float *to = start(m, &a, (size_t)m->n * l->out);

    if (to)
        m->ops->linear_forward(m->c, &linear, DEVICE_LINEAR, to, l->out);
    *ret_n = m->n * l->out;
    return finish(m, &a);
}

static const float *read_prob(struct dlrm *m, uint32_t *ret_n)
{
    struct reading a;
    const uint32_t n = m->n * dlrm_n_tasks(m);
    float *to = start(m, &a, n);

    if (to)
        m->ops->prob(m->c, n, m->z, to);
    *ret_n = n;
    return finish(m, &a);
}

/* Of a layer's y: what the next layer hands down; of the bottom MLP's last one: R's direct part
 * and T's. */
static const float *read_d_out(struct dlrm *m, const struct mlp *mlp, uint32_t i,
                               uint32_t *ret_n)
{
    const struct mlp_layer *l = &mlp->layers[i], *next = l + 1;
    const uint32_t ld = m->n_vectors * m->config.dim;
    struct reading a;
    float *to = start(m, &a, (size_t)m->n * l->out);

    *ret_n = m->n * l->out;
    if (!to)
        return NULL;
    if (i + 1 < mlp->n_layers) {
        const struct linear linear = { m->n,
                                       next->in,
                                       next->out,
                                       next->x,
                                       next->w->device.values,
                                       next->b->device.values,
                                       next->ldx };

        m->ops->linear_backward(m->c, &linear, next->dy, to, NULL, NULL, NULL, NULL);
    } else if (mlp == &m->top) {
        m->ops->add_rows(m->c, m->n, l->out, l->dy, l->out, NULL, 0, NULL, to);
    } else if (m->pairs) {
        m->ops->add_rows(m->c, m->n, l->out, m->dr, m->r_width, m->dt, ld, NULL, to);
    } else {
        m->ops->add_rows(m->c, m->n, l->out, m->dt, ld, NULL, 0, NULL, to);
    }
    return finish(m, &a);
}

static const float *read_layer(struct dlrm *m, const struct mlp *mlp, uint32_t i,
                               const char *what, bool grad, uint32_t *ret_n)
{
    const struct mlp_layer *l = &mlp->layers[i];

    if (i >= mlp->n_layers)
        return NULL;
    if (!strcmp(what, "pre") && grad)
        return columns(m, l->dy, l->out, l->out, ret_n);
    if (!strcmp(what, "pre"))
        return read_pre(m, l, ret_n);
    if (!strcmp(what, "out") && grad)
        return read_d_out(m, mlp, i, ret_n);
    if (!strcmp(what, "out"))
        return columns(m, l->y, l->ldy, l->out, ret_n);
    return NULL;
}

static const float *read_vectors(struct dlrm *m, const char *name, bool grad, uint32_t *ret_n)
{
    const uint32_t dim = m->config.dim, ld = m->n_vectors * dim,
                   direct = m->config.n_numeric ? dim : 0;
    const float *t = grad ? m->dt : m->t, *r = !m->pairs ? t : grad ? m->dr : m->r;
    unsigned field;
    int end = 0;

    if (!strcmp(name, "T"))
        return columns(m, t, ld, ld, ret_n);
    if (!strcmp(name, "R"))
        return columns(m, r, m->r_width, m->r_width, ret_n);
    if (!strcmp(name, "Zflat") && m->pairs)
        return columns(m, r + direct, m->r_width, m->r_width - direct, ret_n);
    if (sscanf(name, "bag_%u%n", &field, &end) == 1 && !name[end] && field < m->config.n_fields)
        return columns(m, t + direct + (size_t)field * dim, ld, dim, ret_n);
    return NULL;
}

const float *debug_read(struct dlrm *m, const char *name, uint32_t *ret_n)
{
    const bool grad = !strncmp(name, "d_", 2);
    const char *what = grad ? name + 2 : name;
    char stage[4], what_of[4];
    unsigned layer;

    if (!strcmp(what, "logit"))
        return columns(m, grad ? m->dz : m->z, dlrm_n_tasks(m), dlrm_n_tasks(m), ret_n);
    if (!strcmp(name, "prob"))
        return read_prob(m, ret_n);
    if (sscanf(what, "%3[a-z]_%u_%3s", stage, &layer, what_of) == 3 && layer < MLP_LAYERS_MAX &&
        (!strcmp(stage, "bot") || !strcmp(stage, "top")))
        return read_layer(m, *stage == 'b' ? &m->bottom : &m->top, layer, what_of, grad, ret_n);
    return read_vectors(m, what, grad, ret_n);
}
