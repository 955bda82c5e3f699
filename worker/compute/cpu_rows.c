/*
 * Ops over rows and columns of arrays: rows from the host, as they are or encoded, dropout, sums, axpy, cross layers,
 * batch normalisation, encoding.
 *
 * Norms take columns CPU_LANES at a time, with sums over samples, ascending, in double; past the last column lanes
 * hold 0. The encoder is the op's definition, by the codecs themselves, one row after the other: on the CPU psworker
 * encodes in worker/client instead, so this need not be fast.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "worker/compute/cpu_epilogue.h"
#include "worker/compute/cpu_internal.h"

/* ---- element by element ---- */

/* Floats of a task of an op that knows no samples. */
enum { FLOATS = 1 << 14 };

/* Only as the definition: here nothing need be copied. */
void cpu_rows_upload(struct compute *c, uint32_t set, const struct row_upload *u)
{
    const size_t n_bytes = u->dim * sizeof *u->rows;

    (void)c, (void)set;
    for (size_t r = 0; r < u->n; r++) {
        float *row = u->rows + r * u->dim;
        float *kept = u->kept + (size_t)(u->how[r] & ~DEVICE_ROW_KEPT) * u->dim;
        const bool is_there = u->how[r] & DEVICE_ROW_KEPT;

        memcpy(row, is_there ? kept : u->host + r * u->dim, n_bytes);
        if (is_there || u->how[r] == DEVICE_ROW_NEW)
            continue;
        memcpy(kept, row, n_bytes);
        if (u->n_states)
            memcpy(u->states + (size_t)u->how[r] * u->n_states,
                   u->host_states + r * u->n_states, u->n_states * sizeof *u->states);
    }
}

/* Likewise. */
void cpu_rows_decode(struct compute *c, uint32_t set, const struct row_decode *d)
{
    const struct codec *codec = codec_by_id(d->codec);
    const size_t row_bytes = codec->row_bytes(d->dim, 0);

    (void)c, (void)set;
    assert(row_decode_takes(d->codec));
    for (size_t i = 0; i < d->n; i++)
        (void)codec->decode(d->bytes + i * row_bytes, d->dim, 0,
                            d->rows + (size_t)d->to[i] * d->dim);
}

struct drop_job {
    const struct dropout *d;
    float *y;
};

/* What is kept and what is not depends on the element's number alone: on no order, batch
 * size or thread. The bound is hash_unit() >= p in integers, which vector units compare
 * faster than they convert. */
CPU_CLONES static void drop(const struct dropout *d, float *restrict y, size_t first,
                            size_t end)
{
    const uint64_t key = *d->key, least = (uint64_t)ceilf(d->p * 0x1p24f);
    const float scale = d->scale;

    for (size_t i = first; i < end; i++)
        y[i] *= hash_mix2(key, i) >> 40 >= least ? scale : 0.0f;
}

static void drop_samples(void *job, uint32_t task, uint32_t thread)
{
    const struct drop_job *j = job;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->d->n);

    (void)thread;
    drop(j->d, j->y, (size_t)r.first * j->d->width, (size_t)r.end * j->d->width);
}

void cpu_rows_dropout(struct compute *c, const struct dropout *d, float *y)
{
    struct drop_job job = { d, y };

    cpu_run(c, cpu_ceil_div(d->n, CPU_SAMPLES), drop_samples, &job);
}

struct add_job {
    uint32_t n, width, lda, ldb;
    const float *a, *b;
    const struct relu_mask *mask;
    float *sum;
};

static void add_samples(void *job, uint32_t task, uint32_t thread)
{
    const struct add_job *j = job;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->n);
    float *sum = j->sum + (size_t)r.first * j->width;
    const struct relu_mask mask = cpu_mask_at(j->mask, r.first);

    (void)thread;
    for (uint32_t s = r.first; s < r.end; s++) {
        const float *a = j->a + (size_t)s * j->lda,
                    *b = j->b ? j->b + (size_t)s * j->ldb : NULL;
        float *to = j->sum + (size_t)s * j->width;

        for (uint32_t o = 0; o < j->width; o++)
            to[o] = b ? a[o] + b[o] : a[o];
    }
    cpu_epilogue_mask(r.end - r.first, j->width, sum, j->width, j->mask ? &mask : NULL, sum,
                      j->width);
}

void cpu_rows_add(struct compute *c, uint32_t n, uint32_t width, const float *a, uint32_t lda,
                  const float *b, uint32_t ldb, const struct relu_mask *mask, float *sum)
{
    struct add_job job = { n, width, lda, ldb, a, b, mask, sum };

    cpu_run(c, cpu_ceil_div(n, CPU_SAMPLES), add_samples, &job);
}

struct copy_job {
    uint32_t n, width, ldx, ldy;
    const float *x;
    float *y;
};

static void copy_samples(void *job, uint32_t task, uint32_t thread)
{
    const struct copy_job *j = job;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->n);

    (void)thread;
    for (size_t s = r.first; s < r.end; s++)
        memcpy(j->y + s * j->ldy, j->x + s * j->ldx, j->width * sizeof *j->y);
}

void cpu_rows_copy(struct compute *c, uint32_t n, uint32_t width, const float *x, uint32_t ldx,
                   float *y, uint32_t ldy)
{
    struct copy_job job = { n, width, ldx, ldy, x, y };

    cpu_run(c, cpu_ceil_div(n, CPU_SAMPLES), copy_samples, &job);
}

struct hats_job {
    const struct number_hats *h;
    const float *x;
    float *y;
};

static void hats_of(const struct number_hats *h, float x, float *y)
{
    const float last = h->first + (float)h->n_hats - 1, held = fminf(fmaxf(x, h->first), last);
    const bool is_missing = isnan(x);

    y[0] = is_missing ? 0 : x;
    y[1] = is_missing;
    for (uint32_t k = 0; k < h->n_hats; k++)
        y[2 + k] = is_missing ? 0 : fmaxf(0, 1 - fabsf(held - (h->first + (float)k)));
}

static void hats_of_samples(void *job, uint32_t task, uint32_t thread)
{
    const struct hats_job *j = job;
    const struct number_hats *h = j->h;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, h->n);
    const uint32_t width = number_hats_width(h->n_hats);

    (void)thread;
    for (size_t s = r.first; s < r.end; s++)
        for (uint32_t i = 0; i < h->n_numbers; i++)
            hats_of(h, j->x[s * h->n_numbers + i], j->y + s * h->ldy + (size_t)i * width);
}

void cpu_rows_number_hats(struct compute *c, const struct number_hats *h, const float *x,
                          float *y)
{
    struct hats_job job = { h, x, y };

    cpu_run(c, cpu_ceil_div(h->n, CPU_SAMPLES), hats_of_samples, &job);
}

struct axpy_job {
    size_t n;
    float a;
    const float *x;
    float *y;
};

CPU_CLONES static void axpy(size_t n, float a, const float *restrict x, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void axpy_chunk(void *job, uint32_t task, uint32_t thread)
{
    const struct axpy_job *j = job;
    const size_t first = (size_t)task * FLOATS, left = j->n - first;

    (void)thread;
    axpy(left < FLOATS ? left : FLOATS, j->a, j->x + first, j->y + first);
}

void cpu_rows_axpy(struct compute *c, size_t n, float a, const float *x, float *y)
{
    struct axpy_job job = { n, a, x, y };

    cpu_run(c, (uint32_t)((n + FLOATS - 1) / FLOATS), axpy_chunk, &job);
}

struct cross_job {
    const struct cross_shape *s;
    const float *x0, *u, *x, *dy, *more;
    float *y, *du, *dx0;
};

CPU_CLONES static void cross_row(uint32_t width, const float *restrict x0,
                                 const float *restrict u, const float *restrict x,
                                 float *restrict y)
{
    for (uint32_t o = 0; o < width; o++)
        y[o] = x0[o] * u[o] + x[o];
}

static void cross_samples(void *job, uint32_t task, uint32_t thread)
{
    const struct cross_job *j = job;
    const size_t width = j->s->width, ld = j->s->ld;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->s->n);

    (void)thread;
    for (size_t s = r.first; s < r.end; s++)
        cross_row(j->s->width, j->x0 + s * ld, j->u + s * width, j->x + s * ld, j->y + s * ld);
}

void cpu_rows_cross_forward(struct compute *c, const struct cross_shape *s, const float *x0,
                            const float *u, const float *x, float *y)
{
    struct cross_job job = { .s = s, .x0 = x0, .u = u, .x = x, .y = y };

    cpu_run(c, cpu_ceil_div(s->n, CPU_SAMPLES), cross_samples, &job);
}

/* more: NULL, or dx0 itself. */
CPU_CLONES static void cross_row_backward(uint32_t width, const float *restrict x0,
                                          const float *restrict u, const float *restrict dy,
                                          const float *more, float *restrict du, float *dx0)
{
    for (uint32_t o = 0; o < width; o++)
        du[o] = dy[o] * x0[o];
    for (uint32_t o = 0; more && o < width; o++)
        dx0[o] = dy[o] * u[o] + more[o];
    for (uint32_t o = 0; !more && o < width; o++)
        dx0[o] = dy[o] * u[o];
}

static void cross_samples_backward(void *job, uint32_t task, uint32_t thread)
{
    const struct cross_job *j = job;
    const size_t width = j->s->width, ld = j->s->ld;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->s->n);

    (void)thread;
    for (size_t s = r.first; s < r.end; s++)
        cross_row_backward(j->s->width, j->x0 + s * ld, j->u + s * width, j->dy + s * ld,
                           j->more ? j->more + s * ld : NULL, j->du + s * width,
                           j->dx0 + s * ld);
}

void cpu_rows_cross_backward(struct compute *c, const struct cross_shape *s, const float *x0,
                             const float *u, const float *dy, const float *more, float *du,
                             float *dx0)
{
    struct cross_job job = {
        .s = s, .x0 = x0, .u = u, .dy = dy, .more = more, .du = du, .dx0 = dx0
    };

    cpu_run(c, cpu_ceil_div(s->n, CPU_SAMPLES), cross_samples_backward, &job);
}

/* ---- batch normalisation ---- */

typedef double double_lanes
    __attribute__((vector_size(CPU_LANES * sizeof(double)), aligned(8)));

static inline uint32_t lanes_of(uint32_t width, uint32_t column)
{
    return width - column < CPU_LANES ? width - column : CPU_LANES;
}

static inline void load_lanes(cpu_lanes *to, const float *x, uint32_t n_lanes)
{
    if (n_lanes == CPU_LANES)
        *to = *(const cpu_lanes *)x;
    else
        memcpy(to, x, n_lanes * sizeof *x);
}

static inline void store_lanes(float *to, const cpu_lanes *x, uint32_t n_lanes)
{
    if (n_lanes == CPU_LANES)
        *(cpu_lanes *)to = *x;
    else
        memcpy(to, x, n_lanes * sizeof *to);
}

static float inverse_std(float var)
{
    return (float)(1 / sqrt((double)var + (double)DEVICE_NORM_EPSILON));
}

/* Mean and variance of one group of columns. Two walks, mean first: the difference of two large
 * sums would lose the variance. */
CPU_CLONES static void batch_columns(const float *x, uint32_t n, uint32_t width,
                                     uint32_t n_lanes, float *mean, float *var)
{
    double_lanes sum = { 0 }, squares = { 0 };
    cpu_lanes v = { 0 };

    for (size_t s = 0; s < n; s++) {
        load_lanes(&v, x + s * width, n_lanes);
        sum += __builtin_convertvector(v, double_lanes);
    }
    sum /= (double)(n ? n : 1);
    for (size_t s = 0; s < n; s++) {
        double_lanes d;

        load_lanes(&v, x + s * width, n_lanes);
        d = __builtin_convertvector(v, double_lanes) - sum;
        squares += d * d;
    }
    for (uint32_t k = 0; k < n_lanes; k++) {
        mean[k] = (float)sum[k];
        var[k] = (float)(squares[k] / (n ? n : 1));
    }
}

struct norm_job {
    const struct norm *nm;
    const float *x;
    float *y, *dy;
    uint32_t ldy;
    float least; /* of y */
    const struct relu_mask *mask;
    const struct norm_grads *grads;
};

static void batch_task(void *job, uint32_t task, uint32_t thread)
{
    const struct norm_job *j = job;
    const struct norm *nm = j->nm;
    const uint32_t o = task * CPU_LANES;

    (void)thread;
    batch_columns(j->x + o, nm->n, nm->width, lanes_of(nm->width, o), nm->mean + o,
                  nm->var + o);
}

void cpu_rows_norm_batch(struct compute *c, const struct norm *nm, const float *x)
{
    struct norm_job job = { .nm = nm, .x = x };

    cpu_run(c, cpu_ceil_div(nm->width, CPU_LANES), batch_task, &job);
    for (uint32_t o = 0; o < nm->width; o++)
        nm->inv_std[o] = inverse_std(nm->var[o]);
}

void cpu_rows_norm_running(struct compute *c, const struct norm *nm)
{
    (void)c;
    for (uint32_t o = 0; o < nm->width; o++) {
        const float var = 1 + nm->running_var[o];

        nm->mean[o] = nm->running_mean[o];
        nm->var[o] = var > 0 ? var : 0; /* lossy pushes may leave a tiny variance below 0 */
        nm->inv_std[o] = inverse_std(nm->var[o]);
    }
}

/* least: 0 for ReLU, else -infinity; a NaN stays one. */
CPU_CLONES static void apply_row(const struct norm *nm, float least, const float *restrict x,
                                 float *restrict y)
{
    const float *restrict gamma = nm->gamma, *restrict beta = nm->beta,
                          *restrict mean = nm->mean;
    const float *restrict inv_std = nm->inv_std;

    for (uint32_t o = 0; o < nm->width; o++) {
        const float v = (1 + gamma[o]) * ((x[o] - mean[o]) * inv_std[o]) + beta[o];

        y[o] = least > v ? least : v;
    }
}

static void apply_task(void *job, uint32_t task, uint32_t thread)
{
    const struct norm_job *j = job;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->nm->n);

    (void)thread;
    for (size_t s = r.first; s < r.end; s++)
        apply_row(j->nm, j->least, j->x + s * j->nm->width, j->y + s * j->ldy);
}

void cpu_rows_norm_apply(struct compute *c, const struct norm *nm, enum device_act act,
                         const float *x, float *y, uint32_t ldy)
{
    struct norm_job job = {
        .nm = nm, .x = x, .y = y, .ldy = ldy, .least = act == DEVICE_RELU ? 0.0f : -INFINITY
    };

    cpu_run(c, cpu_ceil_div(nm->n, CPU_SAMPLES), apply_task, &job);
}

static void mask_task(void *job, uint32_t task, uint32_t thread)
{
    const struct norm_job *j = job;
    const uint32_t width = j->nm->width;
    const struct cpu_range r = cpu_range_of(task, CPU_SAMPLES, j->nm->n);
    const struct relu_mask mask = cpu_mask_at(j->mask, r.first);
    float *dy = j->dy + (size_t)r.first * width;

    (void)thread;
    cpu_epilogue_mask(r.end - r.first, width, dy, width, &mask, dy, width);
}

/* Of columns o ..:  dx = (1 + gamma) inv_std (dy - (sum dy + xhat sum(dy xhat)) / n) */
CPU_CLONES static void backward_columns(const struct norm *nm, const float *x, uint32_t o,
                                        float *dy, const struct norm_grads *grads)
{
    const uint32_t width = nm->width, n_lanes = lanes_of(width, o);
    cpu_lanes mean = { 0 }, inv_std = { 0 }, gamma = { 0 }, v = { 0 }, d = { 0 };
    double_lanes sum = { 0 }, dot = { 0 };

    load_lanes(&mean, nm->mean + o, n_lanes);
    load_lanes(&inv_std, nm->inv_std + o, n_lanes);
    load_lanes(&gamma, nm->gamma + o, n_lanes);
    for (size_t s = 0; s < nm->n; s++) {
        load_lanes(&v, x + s * width + o, n_lanes);
        load_lanes(&d, dy + s * width + o, n_lanes);
        sum += __builtin_convertvector(d, double_lanes);
        dot += __builtin_convertvector(d, double_lanes) *
               __builtin_convertvector((v - mean) * inv_std, double_lanes);
    }
    for (uint32_t k = 0; k < n_lanes; k++) {
        grads->gamma[o + k] = (float)dot[k];
        grads->beta[o + k] = (float)sum[k];
    }
    sum /= (double)(nm->n ? nm->n : 1);
    dot /= (double)(nm->n ? nm->n : 1);
    for (size_t s = 0; s < nm->n; s++) {
        load_lanes(&v, x + s * width + o, n_lanes);
        load_lanes(&d, dy + s * width + o, n_lanes);
        d -= __builtin_convertvector(
            sum + __builtin_convertvector((v - mean) * inv_std, double_lanes) * dot, cpu_lanes);
        d *= (1 + gamma) * inv_std;
        store_lanes(dy + s * width + o, &d, n_lanes);
    }
}

static void backward_task(void *job, uint32_t task, uint32_t thread)
{
    const struct norm_job *j = job;

    (void)thread;
    backward_columns(j->nm, j->x, task * CPU_LANES, j->dy, j->grads);
}

void cpu_rows_norm_backward(struct compute *c, const struct norm *nm,
                            const struct relu_mask *mask, const float *x, float *dy,
                            const struct norm_grads *grads)
{
    const float unbias = nm->n > 1 ? (float)nm->n / (float)(nm->n - 1) : 1.0f;
    struct norm_job job = { .nm = nm, .x = x, .dy = dy, .mask = mask, .grads = grads };

    if (mask)
        cpu_run(c, cpu_ceil_div(nm->n, CPU_SAMPLES), mask_task, &job);
    cpu_run(c, cpu_ceil_div(nm->width, CPU_LANES), backward_task, &job);
    for (uint32_t o = 0; o < nm->width; o++) {
        grads->running_mean[o] =
            nm->n ? DEVICE_NORM_MOMENTUM * (nm->running_mean[o] - nm->mean[o]) : 0;
        grads->running_var[o] =
            nm->n ? DEVICE_NORM_MOMENTUM * (1 + nm->running_var[o] - nm->var[o] * unbias) : 0;
    }
}

/* ---- rows as a codec has them ---- */

/* NULL: there is none. */
static float *row_of(float *rows, const uint32_t *at, uint32_t i, uint32_t dim)
{
    const uint32_t row = at ? at[i] : i;

    return !rows || row == DEVICE_NONE ? NULL : rows + (size_t)row * dim;
}

static bool all_finite(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static void fill(float *x, uint32_t n, float value)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = value;
}

/* A codec without error feedback: it clears residuals that an earlier codec kept. */
static void put_plain(const struct codec *codec, const struct device_encode *e, float *v,
                      float *residual, uint8_t *bytes)
{
    for (uint32_t d = 0; residual && d < e->dim; d++)
        v[d] = isnan(v[d]) ? v[d] : v[d] + residual[d];
    codec->encode(v, e->dim, e->k, bytes);
    if (residual)
        fill(residual, e->dim, 0);
}

static void put_row(const struct codec *codec, const struct device_encode *e, uint32_t i,
                    float *scratch)
{
    const float *row = row_of((float *)e->rows, e->from, i, e->dim);
    float *residual = row_of(e->residual, e->residual_at, i, e->dim),
          *v = scratch + 2 * (size_t)e->dim;
    uint8_t *bytes = e->bytes + i * codec->row_bytes(e->dim, e->k);

    if (row)
        memcpy(v, row, e->dim * sizeof *v);
    else
        fill(v, e->dim, 0);
    if (!codec->feedback) {
        put_plain(codec, e, v, residual, bytes);
        return;
    }
    if (all_finite(v, e->dim) && residual) {
        codec_encode_feedback(codec, v, residual, e->dim, e->k, scratch, bytes);
        return;
    }
    if (!all_finite(v, e->dim))
        fill(v, e->dim, NAN);
    codec->encode(v, e->dim, e->k, bytes);
}

void cpu_rows_encode(struct compute *c, const struct device_encode *e)
{
    const struct codec *codec = codec_by_id(e->codec);
    float *scratch = memory_alloc(3 * (size_t)e->dim * sizeof *scratch);

    (void)c;
    for (uint32_t i = 0; i < *e->n; i++)
        put_row(codec, e, i, scratch);
    free(scratch);
}
