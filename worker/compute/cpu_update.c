/* An optimizer's step on kept rows: the definition that devices with memory of their own are held to. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "worker/compute/cpu_internal.h"

/* Sums of lanes, folded by halves. */
static float sum_of_squares(const float *g, uint32_t dim)
{
    float sums[ROW_UPDATE_LANES] = { 0 };

    for (uint32_t i = 0; i < dim; i++)
        sums[i % ROW_UPDATE_LANES] += g[i] * g[i];
    for (uint32_t half = ROW_UPDATE_LANES / 2; half; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            sums[l] += sums[l + half];
    return sums[0];
}

static void step_momentum(const struct row_update_factors *f, const float *g, uint32_t dim,
                          float *w, float *b)
{
    for (uint32_t i = 0; i < dim; i++) {
        b[i] = f->beta1 * b[i] + g[i];
        w[i] -= f->rate * (f->rest1 * g[i] + f->rest2 * b[i]);
    }
}

static void step_adagrad(const struct row_update_factors *f, const float *g, uint32_t dim,
                         float *w, float *s)
{
    for (uint32_t i = 0; i < dim; i++) {
        s[i] += g[i] * g[i];
        w[i] -= f->rate * (g[i] / (sqrtf(s[i]) + f->epsilon));
    }
}

static void step_adam(const struct row_update_factors *f, const float *g, uint32_t dim,
                      float *w, float *m)
{
    float *v = m + dim;

    for (uint32_t i = 0; i < dim; i++) {
        m[i] = f->beta1 * m[i] + f->rest1 * g[i];
        v[i] = f->beta2 * v[i] + f->rest2 * (g[i] * g[i]);
        w[i] -= f->rate * (m[i] / (sqrtf(v[i]) * f->root_scale + f->epsilon));
    }
}

static void step_all(float rate, const float *g, uint32_t dim, float *w)
{
    for (uint32_t i = 0; i < dim; i++)
        w[i] -= rate * g[i];
}

static void step_row(const struct row_update *u, const float *g, float *w, float *states)
{
    const struct row_update_factors *f = u->factors;

    switch (u->rule) {
    case ROW_UPDATE_SGD:
        step_all(f->rate, g, u->dim, w);
        break;
    case ROW_UPDATE_MOMENTUM:
        step_momentum(f, g, u->dim, w, states);
        break;
    case ROW_UPDATE_ADAGRAD:
        step_adagrad(f, g, u->dim, w, states);
        break;
    case ROW_UPDATE_ROWWISE:
        states[0] += sum_of_squares(g, u->dim) / (float)u->dim;
        step_all(f->rate / (sqrtf(states[0]) + f->epsilon), g, u->dim, w);
        break;
    case ROW_UPDATE_ADAM:
        step_adam(f, g, u->dim, w, states);
        break;
    }
}

void cpu_update_rows(struct compute *c, const struct row_update *u)
{
    const struct codec *codec = codec_by_id(u->codec);
    const size_t row_bytes = codec->row_bytes(u->dim, u->k);
    float *g = memory_alloc(u->dim * sizeof *g);

    (void)c;
    for (uint32_t r = 0; r < *u->n; r++) {
        const uint32_t place = u->places[r];
        float *w = u->kept + (size_t)place * u->dim;
        int status;

        if (place == DEVICE_NONE)
            continue;
        status = codec->decode(u->bytes + r * row_bytes, u->dim, u->k, g);
        assert(!status); /* an encoder's bytes */
        (void)status;
        for (uint32_t i = 0; i < u->dim; i++)
            g[i] += u->factors->weight_decay * w[i];
        step_row(u, g, w, u->states + (size_t)place * u->n_states);
    }
    free(g);
}
