/*
 * A DLRM whose activations are bf16 in the device's memory: every array of a step, read back, is what the step's other
 * arrays make it, in double, rounded where device_bf16.h says. So a number that lies between two roundings, or at a
 * ReLU's 0, changes nothing of what is expected of the arrays behind it, and tolerances are those of one sum.
 */
#include <errno.h>
#include <math.h>

#include "proto/codec_half.h"
#include "tests/emu/rt.h"
#include "tests/unit/model/fixture.h"
#include "worker/cuda/device_cuda.h"
#include "worker/model/dlrm_internal.h"

#define SUM_ERROR 1e-5 /* of a sum in fp32: of its numbers' magnitudes */

/* ---- sums in double */

struct sum {
    double at, magnitude;
};

static void add(struct sum *s, double a, double b)
{
    s->at += a * b;
    s->magnitude += fabs(a * b);
}

static float float_of(bf16 x)
{
    return codec_bytes_to_float((uint32_t)x << 16);
}

static bf16 rounded(float x)
{
    return (bf16)codec_half_to_bf16(codec_bytes_of_float(x));
}

/* What a number may be, both included. */
struct range {
    float low, high;
};

static struct range range_of(struct sum s)
{
    const double off = SUM_ERROR * s.magnitude + 1e-30;

    return (struct range){ (float)(s.at - off), (float)(s.at + off) };
}

static struct range round_range(struct range r)
{
    return (struct range){ float_of(rounded(r.low)), float_of(rounded(r.high)) };
}

static struct range scale_range(struct range r, float by)
{
    return (struct range){ r.low * by, r.high * by };
}

static struct range relu_range(struct range r)
{
    return (struct range){ r.low > 0 ? r.low : 0, r.high > 0 ? r.high : 0 };
}

static void expect(const char *what, size_t i, float got, struct range want)
{
    if (!(got >= want.low && got <= want.high))
        fail_msg("%s[%zu] is %.9g, want %.9g to %.9g", what, i, (double)got, (double)want.low,
                 (double)want.high);
}

static void expect_sum(const char *what, size_t i, float got, struct sum want)
{
    expect(what, i, got, range_of(want));
}

/* ---- a step's arrays, in the host's memory */

struct layer {
    struct bf16_layer shape; /* its arrays: of the host */
    const struct dlrm_tensor *w, *b;
};

struct arrays {
    struct fixture *f;
    const struct dlrm *m;
    bool trained;
    double product_error; /* of a product, to itself: 0 unless it was rounded before its bias */
    struct layer bottom[MLP_LAYERS_MAX], top[MLP_LAYERS_MAX];
    uint32_t n_bottom, n_top;
    const bf16 *x, *t, *dt, *r, *dr;
    const float *z, *dz;
    const float *rows, *row_grads; /* as wide as the model */
    float *vectors;                /* T with every bag's sum */
    void *owned[8 * MLP_LAYERS_MAX + 16];
    uint32_t n_owned;
};

static void *own(struct arrays *a, size_t n_bytes)
{
    assert_true(a->n_owned < COUNT_OF(a->owned));
    return a->owned[a->n_owned++] = memory_alloc(n_bytes + 1);
}

static const void *read_back(struct arrays *a, const void *device, size_t n_bytes)
{
    struct dlrm *m = a->f->m;
    void *host;

    if (!device || !n_bytes)
        return NULL;
    host = own(a, n_bytes);
    (void)m->ops->begin(m->c, 0, 0);
    m->ops->end(m->c, 0);
    m->ops->download(m->c, 0, host, device, n_bytes);
    assert_int_equal(m->ops->wait(m->c, 0), 0);
    return host;
}

static const bf16 *read_bf16(struct arrays *a, const bf16 *device, size_t n)
{
    return read_back(a, device, n * sizeof(bf16));
}

static uint32_t read_layers(struct arrays *a, const struct bf16_mlp *mlp, struct layer *to)
{
    const size_t n = a->m->n;

    for (uint32_t i = 0; i < mlp->n_layers; i++) {
        struct bf16_layer l = mlp->layers[i];

        l.copy_of_w = (bf16 *)(uintptr_t)read_bf16(a, l.copy_of_w, (size_t)l.out * l.ldx);
        l.copy_of_b = (bf16 *)(uintptr_t)read_bf16(a, l.copy_of_b, l.out);
        l.y = (bf16 *)(uintptr_t)read_bf16(a, l.y, (n - 1) * l.ldy + l.out);
        l.dy = (bf16 *)(uintptr_t)read_bf16(a, l.dy, a->trained ? n * l.out : 0);
        l.x = i ? to[i - 1].shape.y : NULL;
        to[i] = (struct layer){ l, l.w, l.b };
    }
    return mlp->n_layers;
}

static size_t n_row_floats(const struct arrays *a)
{
    return (size_t)a->f->batch.n_unique * a->m->config.dim;
}

/* Of the last step of the first buffer set. */
static void read_arrays(struct arrays *a, struct fixture *f, bool trained, double product_error)
{
    const struct dlrm *m = f->m;
    const struct bf16_dlrm *h = m->bf16;
    const struct projection_set *p = &m->projection.sets[0];
    const size_t n = m->n;

    *a = (struct arrays){ .f = f, .m = m, .trained = trained, .product_error = product_error };
    a->x = read_bf16(a, h->x, m->config.n_numeric ? n * h->ldx : 0);
    a->t = read_bf16(a, h->t, n * h->ldt);
    a->r = read_bf16(a, h->r, n * m->ldr);
    a->z = read_back(a, h->z, n * sizeof(float));
    a->n_bottom = read_layers(a, &h->bottom, a->bottom);
    a->n_top = read_layers(a, &h->top, a->top);
    a->bottom[0].shape.x = a->x;
    a->top[0].shape.x = a->r;
    a->rows = f->rows;
    a->row_grads = f->row_grads;
    if (m->projection.n_groups) {
        a->rows = read_back(a, p->rows, n_row_floats(a) * sizeof(float));
        a->row_grads = read_back(a, p->grads, trained ? n_row_floats(a) * sizeof(float) : 0);
    }
    if (!trained)
        return;
    a->dt = read_bf16(a, h->dt, n * h->ldt);
    a->dr = read_bf16(a, h->dr, n * m->ldr);
    a->dz = read_back(a, h->dz, n * sizeof(float));
}

static void release_arrays(struct arrays *a)
{
    while (a->n_owned)
        free(a->owned[--a->n_owned]);
}

/* ---- the way forward */

static void check_copies(const struct layer *layers, uint32_t n_layers)
{
    for (uint32_t i = 0; i < n_layers; i++) {
        const struct bf16_layer *l = &layers[i].shape;

        for (uint32_t o = 0; o < l->out; o++) {
            assert_int_equal(l->copy_of_b[o], rounded(layers[i].b->values[o]));
            for (uint32_t k = 0; k < l->ldx; k++)
                assert_int_equal(l->copy_of_w[o * l->ldx + k],
                                 k < l->in ? rounded(layers[i].w->values[o * l->in + k]) : 0);
        }
    }
}

/* y's number, before it may be dropped. */
static struct range output_of(const struct arrays *a, const struct bf16_layer *l, size_t s,
                              uint32_t o)
{
    struct sum sum = { 0 };

    for (uint32_t k = 0; k < l->in; k++)
        add(&sum, (double)float_of(l->x[s * l->ldx + k]),
            (double)float_of(l->copy_of_w[o * l->ldx + k]));
    sum.magnitude += fabs(sum.at) * a->product_error / SUM_ERROR;
    add(&sum, (double)float_of(l->copy_of_b[o]), 1);
    return round_range(relu_range(range_of(sum)));
}

/* drop_keys: NULL, or one a layer. */
static void check_forward(const struct arrays *a, const char *what, const struct layer *layers,
                          uint32_t n_layers, const uint64_t *drop_keys)
{
    for (uint32_t i = 0; i < n_layers; i++) {
        const struct bf16_layer *l = &layers[i].shape;

        for (size_t s = 0; s < a->m->n; s++)
            for (uint32_t o = 0; o < l->out; o++) {
                struct range want = output_of(a, l, s, o);
                const float got = float_of(l->y[s * l->ldy + o]);

                if (drop_keys && l->dropout > 0)
                    want = hash_unit(hash_mix2(drop_keys[i], s * l->out + o)) < l->dropout
                               ? (struct range){ 0, 0 }
                               : round_range(scale_range(want, 1 / (1 - l->dropout)));
                expect(what, s * l->out + o, got, want);
            }
    }
}

static uint32_t n_own(const struct arrays *a)
{
    return a->m->config.n_numeric ? 1 : 0;
}

static const uint32_t *bag_of(const struct arrays *a, size_t s, uint32_t field)
{
    return a->f->batch.starts + s * a->f->batch.n_fields + field;
}

/* Bags' sums are made in their order, so they have the very bits. Those of several rows stand in T. */
static void check_bags(struct arrays *a)
{
    const struct dlrm *m = a->m;
    const uint32_t dim = m->config.dim;
    const size_t n = (size_t)m->n * m->n_vectors * dim;

    a->vectors = own(a, n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        const size_t s = i / dim / m->n_vectors, v = i / dim % m->n_vectors;
        const uint32_t *bag;
        float sum = 0;

        a->vectors[i] = float_of(a->t[i]);
        if (v < n_own(a))
            continue;
        bag = bag_of(a, s, (uint32_t)v - n_own(a));
        for (uint32_t k = bag[0]; k < bag[1]; k++)
            sum += float_of(rounded(a->rows[(size_t)a->f->batch.row_of[k] * dim + i % dim]));
        a->vectors[i] = float_of(rounded(sum));
        if (bag[1] - bag[0] > 1)
            assert_int_equal(a->t[i], rounded(sum));
    }
}

static uint32_t n_pairs(const struct dlrm *m)
{
    const uint32_t n = m->n_vectors;

    return m->config.self_interaction ? n * (n + 1) / 2 : n * (n - 1) / 2;
}

static uint32_t direct_of(const struct arrays *a)
{
    return n_own(a) * a->m->config.dim;
}

static void check_interaction(const struct arrays *a)
{
    const struct dlrm *m = a->m;
    const uint32_t dim = m->config.dim, self = m->config.self_interaction;

    for (size_t s = 0; s < m->n; s++) {
        const float *t = a->vectors + s * m->n_vectors * dim;
        const bf16 *r = a->r + s * m->ldr;
        uint32_t p = direct_of(a);

        for (uint32_t d = 0; d < p; d++)
            expect("R", d, float_of(r[d]), (struct range){ t[d], t[d] });
        for (uint32_t i = 0; i < m->n_vectors; i++)
            for (uint32_t j = 0; j < i + self; j++, p++) {
                struct sum sum = { 0 };

                for (uint32_t d = 0; d < dim; d++)
                    add(&sum, (double)t[i * dim + d], (double)t[j * dim + d]);
                expect("R", s * m->ldr + p, float_of(r[p]), round_range(range_of(sum)));
            }
        assert_int_equal(p, direct_of(a) + n_pairs(m));
        for (; p < m->ldr; p++)
            assert_int_equal(r[p], 0);
    }
}

static void check_logits(const struct arrays *a)
{
    const struct bf16_layer *last = &a->top[a->n_top - 1].shape;
    const struct mlp_layer *logit = &a->m->top.layers[a->n_top];
    const struct batch *b = &a->f->batch;

    for (size_t s = 0; s < a->m->n; s++) {
        struct sum z = { 0 };

        for (uint32_t i = 0; i < last->out; i++)
            add(&z, (double)float_of(last->y[s * last->ldy + i]), (double)logit->w->values[i]);
        add(&z, (double)logit->b->values[0], 1);
        for (uint32_t k = *bag_of(a, s, 0); a->f->wide && k < *bag_of(a, s + 1, 0); k++)
            add(&z, (double)a->f->wide[b->row_of[k]], 1);
        expect_sum("z", s, a->z[s], z);
    }
}

static void check_way_forward(struct arrays *a)
{
    const struct dlrm *m = a->m;

    for (size_t i = 0; a->x && i < (size_t)m->n * m->bf16->ldx; i++) {
        const size_t s = i / m->bf16->ldx, k = i % m->bf16->ldx;

        assert_int_equal(a->x[i],
                         k < m->config.n_numeric
                             ? rounded(a->f->batch.numeric[s * m->config.n_numeric + k])
                             : 0);
    }
    check_copies(a->bottom, a->n_bottom);
    check_copies(a->top, a->n_top);
    check_forward(a, "bottom y", a->bottom, a->n_bottom, NULL);
    check_bags(a);
    check_interaction(a);
    check_forward(a, "top y", a->top, a->n_top,
                  a->trained ? m->buffers.sets[0].host_drop_keys : NULL);
    check_logits(a);
}

/* ---- the way back */

static void check_loss(const struct arrays *a)
{
    const double n = a->m->n;
    double loss = 0;

    for (size_t s = 0; s < a->m->n; s++) {
        const double z = (double)a->z[s], y = (double)a->f->batch.label[s];
        const struct sum dz = { (1 / (1 + exp(-z)) - y) / n, 1 / n };

        loss += (z > 0 ? z + log1p(exp(-z)) : log1p(exp(z))) - y * z;
        expect_sum("dz", s, a->dz[s], dz);
    }
    assert_true(fabs(a->f->loss - loss / n) <= 1e-6 * (1 + loss / n));
}

/* The gradient of a tensor's number, that of its L2 included. */
static void expect_gradient(const struct arrays *a, const struct dlrm_tensor *t, size_t i,
                            struct sum want)
{
    if (t->is_weight)
        add(&want, (double)a->m->config.l2_dense, (double)t->values[i]);
    expect_sum(t->name, i, t->grads[i], want);
}

static float scale_of(const struct bf16_layer *l)
{
    return 1 / (1 - l->dropout);
}

/* dy of the last hidden layer is the logit's: of fp32, rounded once. */
static void check_logit_gradients(const struct arrays *a)
{
    const struct layer *hidden = &a->top[a->n_top - 1];
    const struct bf16_layer *l = &hidden->shape;
    const struct mlp_layer *logit = &a->m->top.layers[a->n_top];
    struct sum db = { 0 };

    for (uint32_t i = 0; i < l->out; i++) {
        struct sum dw = { 0 }, sums = { 0 };

        for (size_t s = 0; s < a->m->n; s++) {
            const float y = float_of(l->y[s * l->ldy + i]);
            const float dx = y > 0 ? logit->w->values[i] * a->dz[s] * scale_of(l) : 0;

            add(&dw, (double)y, (double)a->dz[s]);
            add(&sums, (double)dx, 1);
            expect("dy of the last", s * l->out + i, float_of(l->dy[s * l->out + i]),
                   round_range(range_of((struct sum){ (double)dx, fabs((double)dx) })));
        }
        expect_gradient(a, logit->w, i, dw);
        expect_gradient(a, hidden->b, i, sums);
    }
    for (size_t s = 0; s < a->m->n; s++)
        add(&db, (double)a->dz[s], 1);
    expect_gradient(a, logit->b, 0, db);
}

static void check_weight_gradients(const struct arrays *a, const struct layer *layer)
{
    const struct bf16_layer *l = &layer->shape;

    for (uint32_t o = 0; o < l->out; o++)
        for (uint32_t k = 0; k < l->in; k++) {
            struct sum dw = { 0 };

            for (size_t s = 0; s < a->m->n; s++)
                add(&dw, (double)float_of(l->dy[s * l->out + o]),
                    (double)float_of(l->x[s * l->ldx + k]));
            expect_gradient(a, layer->w, o * l->in + k, dw);
        }
}

/* The gradient of a bias is summed before dy's last rounding, which a mask without a scale leaves as it is. */
static void check_bias_gradient(const struct arrays *a, const struct layer *layer)
{
    const struct bf16_layer *l = &layer->shape;

    for (uint32_t o = 0; o < l->out; o++) {
        struct sum db = { 0 };

        for (size_t s = 0; s < a->m->n; s++)
            add(&db, (double)float_of(l->dy[s * l->out + o]), 1);
        if (l->dropout > 0)
            db.magnitude *= 0x1p-8 / SUM_ERROR;
        expect_gradient(a, layer->b, o, db);
    }
}

static struct range input_gradient(const struct bf16_layer *l, size_t s, uint32_t k)
{
    struct sum dx = { 0 };

    for (uint32_t o = 0; o < l->out; o++)
        add(&dx, (double)float_of(l->dy[s * l->out + o]),
            (double)float_of(l->copy_of_w[o * l->ldx + k]));
    return round_range(range_of(dx));
}

/* dy of the layer below, through its ReLU; of the first layer dx. */
static void check_below(const struct arrays *a, const struct layer *layer, bool is_first)
{
    const struct bf16_layer *l = &layer->shape, *below = is_first ? NULL : &layer[-1].shape;
    const uint32_t width = below ? l->in : l->ldx;

    for (size_t s = 0; s < a->m->n; s++)
        for (uint32_t k = 0; k < width; k++) {
            struct range want = input_gradient(l, s, k);

            if (below && !(float_of(below->y[s * below->ldy + k]) > 0))
                want = (struct range){ 0, 0 };
            else if (below)
                want = round_range(scale_range(want, scale_of(below)));
            expect(below ? "dy" : "dR", s * width + k,
                   float_of((below ? below->dy : a->dr)[s * width + k]), want);
        }
}

/* What comes through the pairs, and of the first vector R's direct part, too. */
static struct range vector_gradient(const struct arrays *a, size_t s, uint32_t v, uint32_t d)
{
    const struct dlrm *m = a->m;
    const uint32_t dim = m->config.dim, self = m->config.self_interaction;
    const float *t = a->vectors + s * m->n_vectors * dim;
    const bf16 *dr = a->dr + s * m->ldr;
    struct sum sum = { 0 };

    if (v < n_own(a))
        add(&sum, (double)float_of(dr[d]), 1);
    for (uint32_t other = 0; other < m->n_vectors; other++) {
        const uint32_t i = other > v ? other : v, j = other > v ? v : other;
        const uint32_t p = direct_of(a) + (self ? i * (i + 1) / 2 : i * (i - 1) / 2) + j;

        if (i != j || self)
            add(&sum, (double)float_of(dr[p]) * (i == j ? 2 : 1), (double)t[other * dim + d]);
    }
    return range_of(sum);
}

static void check_interaction_gradients(const struct arrays *a)
{
    const struct dlrm *m = a->m;
    const uint32_t dim = m->config.dim;
    const struct bf16_layer *bottom = &a->bottom[a->n_bottom ? a->n_bottom - 1 : 0].shape;

    for (size_t i = 0; i < (size_t)m->n * m->n_vectors * dim; i++) {
        const size_t s = i / dim / m->n_vectors;
        const uint32_t v = (uint32_t)(i / dim % m->n_vectors), d = (uint32_t)(i % dim);
        const struct range want = round_range(vector_gradient(a, s, v, d));

        if (v >= n_own(a))
            expect("dT", i, float_of(a->dt[i]), want);
        else if (float_of(bottom->y[s * bottom->ldy + d]) > 0)
            expect("dy of D", i, float_of(bottom->dy[s * dim + d]), want);
        else
            assert_int_equal(bottom->dy[s * dim + d], 0);
    }
}

/* Of rows as wide as the model; of those that are not, the L2 comes behind their projection. */
static void check_row_gradients(const struct arrays *a)
{
    const struct dlrm *m = a->m;
    const struct batch *b = &a->f->batch;
    const uint32_t dim = m->config.dim;
    struct sum *sums = memory_alloc((n_row_floats(a) + 1) * sizeof *sums);

    for (size_t bag = 0; bag < (size_t)m->n * b->n_fields; bag++) {
        const size_t s = bag / b->n_fields, v = bag % b->n_fields + n_own(a);

        for (uint32_t k = b->starts[bag]; k < b->starts[bag + 1]; k++)
            for (uint32_t d = 0; d < dim; d++)
                add(&sums[(size_t)b->row_of[k] * dim + d],
                    (double)float_of(a->dt[(s * m->n_vectors + v) * dim + d]), 1);
    }
    for (size_t i = 0; i < n_row_floats(a); i++) {
        if (!m->projection.n_groups)
            add(&sums[i], (double)m->config.l2_rows, (double)a->rows[i]);
        expect_sum("row gradients", i, a->row_grads[i], sums[i]);
    }
    free(sums);
}

static void check_wide_gradients(const struct arrays *a)
{
    const struct batch *b = &a->f->batch;
    struct sum *sums = memory_alloc((b->n_unique + 1) * sizeof *sums);

    for (size_t s = 0; s < a->m->n; s++)
        for (uint32_t k = *bag_of(a, s, 0); k < *bag_of(a, s + 1, 0); k++)
            add(&sums[b->row_of[k]], (double)a->dz[s], 1);
    for (uint32_t r = 0; r < b->n_unique && a->f->wide; r++)
        expect_sum("wide gradients", r, a->f->wide_grads[r], sums[r]);
    free(sums);
}

static void check_layers_back(const struct arrays *a, const struct layer *layers, uint32_t n)
{
    for (uint32_t i = n; i-- > 0;) {
        check_weight_gradients(a, &layers[i]);
        if (i || layers == a->top)
            check_below(a, &layers[i], i == 0);
        if (layers == a->bottom || i + 1 < n)
            check_bias_gradient(a, &layers[i]);
    }
}

static void check_way_back(const struct arrays *a)
{
    check_loss(a);
    check_logit_gradients(a);
    check_layers_back(a, a->top, a->n_top);
    check_interaction_gradients(a);
    check_layers_back(a, a->bottom, a->n_bottom);
    check_row_gradients(a);
    check_wide_gradients(a);
}

/* ---- rows that are not as wide as the model */

/* Of row r: group, and where its numbers begin in the packed rows. */
static void check_projection(const struct arrays *a)
{
    const struct projection *p = &a->m->projection;
    const uint32_t dim = a->m->config.dim;
    const float *row = a->f->rows, *grads = a->f->row_grads;

    for (size_t r = 0; r < a->f->batch.n_unique && p->n_groups; r++) {
        const struct projection_group *g = &p->groups[a->f->batch.unique[r] >> 32];
        const float *wide = a->rows + r * dim,
                    *dwide = a->trained ? a->row_grads + r * dim : NULL;

        for (uint32_t d = 0; d < dim; d++) {
            struct sum sum = { 0 };

            for (uint32_t k = 0; k < g->dim && g->w; k++)
                add(&sum, (double)g->w->values[d * g->dim + k], (double)row[k]);
            if (!g->w)
                add(&sum, (double)row[d], 1);
            expect_sum("wide row", r * dim + d, wide[d], sum);
        }
        for (uint32_t k = 0; k < g->dim && dwide; k++) {
            struct sum sum = { 0 };

            for (uint32_t d = 0; d < dim && g->w; d++)
                add(&sum, (double)g->w->values[d * g->dim + k], (double)dwide[d]);
            if (!g->w)
                add(&sum, (double)dwide[k], 1);
            add(&sum, (double)a->m->config.l2_rows, (double)row[k]);
            expect_sum("row gradients", r, grads[k], sum);
        }
        row += g->dim;
        grads += g->dim;
    }
}

/* ---- tests */

static void check_arrays(struct fixture *f, bool trained, double product_error)
{
    struct arrays a;

    read_arrays(&a, f, trained, product_error);
    check_way_forward(&a);
    if (trained)
        check_way_back(&a);
    check_projection(&a);
    release_arrays(&a);
}

static void draw_eights(struct fixture_rng *rng, uint32_t *widths, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        widths[i] = 8 * (1 + fixture_below(rng, 4));
}

/* Shapes whose activations are bf16 in the device's memory. */
static struct dlrm_config random_config(struct fixture_rng *rng)
{
    struct dlrm_config c = { .batch_max = 1 + fixture_below(rng, 36),
                             .n_numeric = fixture_below(rng, 4) ? fixture_below(rng, 20) : 0,
                             .n_fields = 1 + fixture_below(rng, 6),
                             .dim = 16u << fixture_below(rng, 4),
                             .n_bottom = fixture_below(rng, 3),
                             .n_top = 1 + fixture_below(rng, 3),
                             .products = DEVICE_BF16,
                             .seed = rng->seed,
                             .n_threads = 1 };

    draw_eights(rng, c.bottom, c.n_bottom);
    draw_eights(rng, c.top, c.n_top);
    c.self_interaction = fixture_below(rng, 2) == 0;
    c.wide = fixture_below(rng, 2) == 0;
    c.dropout = fixture_below(rng, 3) ? 0 : 0.3f;
    c.l2_dense = fixture_below(rng, 2) ? 0.1f : 0;
    c.l2_rows = fixture_below(rng, 2) ? 0.1f : 0;
    c.n_groups = fixture_below(rng, 3) ? 0 : 2;
    for (uint32_t g = 0; g < c.n_groups; g++)
        c.group_dims[g] = fixture_below(rng, 2) ? 1 + fixture_below(rng, 40) : c.dim;
    return c;
}

static void check_prediction(struct fixture *f)
{
    const float *z;

    fixture_predict(f);
    check_arrays(f, false, 0);
    z = fixture_read(f, "logit");
    for (uint32_t s = 0; s < f->batch.n; s++)
        assert_true(fabs((double)dlrm_probs(f->m)[s] - 1 / (1 + exp(-(double)z[s]))) <= 1e-6);
}

/* Four steps in one buffer set: called, recorded, and twice from the record. */
static void every_array_of_a_step_is_made_of_the_others(void **state)
{
    const uint64_t seed = seed_of_run(4711);
    uint32_t n_checked = 0;

    (void)state;
    for (uint64_t i = 0; i < 24; i++) {
        struct fixture_rng rng = { hash_mix2(seed, i), 0 };
        const struct dlrm_config config = random_config(&rng);
        struct fixture f;

        if (dlrm_config_check(&config, NULL))
            continue;
        emu_rt_seed(rng.seed);
        fixture_init_on(&f, &device_cuda, &config, config.batch_max, &rng);
        assert_non_null(f.m->bf16);
        for (uint64_t step = 0; step < 4; step++) {
            fixture_step(&f, step);
            check_arrays(&f, true, 0);
        }
        check_prediction(&f);
        fixture_deinit(&f);
        assert_int_equal(emu_rt_alive(), 0);
        n_checked++;
    }
    assert_true(n_checked > 12);
}

/* Whatever call fails, it is reported, or a product is made otherwise: rounded before its bias is added. */
static void a_call_that_fails_is_reported(void **state)
{
    const struct dlrm_config config = { .batch_max = 8,
                                        .n_numeric = 3,
                                        .n_fields = 2,
                                        .dim = 16,
                                        .n_bottom = 1,
                                        .bottom = { 8 },
                                        .n_top = 1,
                                        .top = { 8 },
                                        .products = DEVICE_BF16,
                                        .n_threads = 1 };
    const uint64_t seed = seed_of_run(4711);
    struct fixture f;
    bool failed = true;
    long k = 0, n_made = 0;

    (void)state;
    if (emu_rt_is_real())
        skip();
    for (; failed; k++) {
        struct dlrm_step step;
        int status;

        fixture_init_on(&f, &device_cuda, &config, config.batch_max,
                        &(struct fixture_rng){ seed, 0 });
        step = fixture_step_of(&f, 0);
        emu_rt_fail(k, EMU_RT_ONCE);
        status = dlrm_step(f.m, &step, &f.loss);
        failed = emu_rt_has_failed();
        emu_rt_fail(-1, EMU_RT_ONCE);
        assert_true(!status || (failed && (status == PS_EDEVICE || status == -ENOMEM)));
        if (!status)
            check_arrays(&f, true, 0x1p-8);
        n_made += !status;
        fixture_deinit(&f);
    }
    print_message("%ld calls, %ld of them failed and the step was made all the same\n", k - 1,
                  n_made - 1);
    assert_true(k > 40 && n_made > 1);
    assert_int_equal(emu_rt_alive(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_array_of_a_step_is_made_of_the_others),
        cmocka_unit_test(a_call_that_fails_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
