#include "tests/gpu/bench_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "proto/codec_catalog.h"

static void must(int status, const char *what, const struct err *err)
{
    if (!status)
        return;
    fprintf(stderr, "bench: %s: %s\n", what, err ? err->text : status_text(status));
    exit(1);
}

const char *bench_products_name(enum device_products products)
{
    return products == DEVICE_TF32 ? "tf32" : products == DEVICE_BF16 ? "bf16" : "fp32";
}

static float random_float(uint64_t i, float scale)
{
    return (2 * hash_unit(hash_mix2(7, i)) - 1) * scale;
}

/* Of each field of Criteo's click logs, as their first 65,536 rows have it: a key is the whole part of values u^power for
 * u from 0 to 1, which has as many different keys (181,000 in all) and as frequent a first one as the field. */
static const struct {
    double values, power;
} fields[BENCH_FIELDS] = {
    { 414, 8.79 },   { 492, 2.85 },   { 94821, 3.45 }, { 23665, 3.03 }, { 118, 12.07 },
    { 12, 2.7 },     { 7060, 2.23 },  { 207, 10.31 },  { 3, 10.17 },    { 12724, 6.22 },
    { 3573, 2.3 },   { 52432, 3.27 }, { 2718, 2.22 },  { 25, 3.1 },     { 4571, 2.03 },
    { 44374, 3.22 }, { 10, 2.95 },    { 2296, 2.3 },   { 1109, 8.4 },   { 4, 1.66 },
    { 49082, 3.25 }, { 13, 9.63 },    { 14, 3.14 },    { 9681, 3.1 },   { 51, 4.71 },
    { 9173, 10.93 },
};

void bench_batch_fill(struct batch *b, uint32_t n)
{
    must(batch_init(b, n, BENCH_NUMERIC, BENCH_FIELDS), "batch", NULL);
    must(batch_reserve_keys(b, n * BENCH_FIELDS), "keys", NULL);
    b->n = n;
    for (uint32_t i = 0; i < n; i++)
        b->label[i] = (float)(hash_mix2(1, i) & 1);
    for (uint32_t i = 0; i < n * BENCH_NUMERIC; i++)
        b->numeric[i] = random_float(i, 1);
    for (uint32_t i = 0; i < n * BENCH_FIELDS; i++) {
        const uint32_t f = i % BENCH_FIELDS;
        const double u = (double)hash_unit(hash_mix2(2, i));

        b->keys[i] = hash_mix2(f, (uint64_t)(fields[f].values * pow(u, fields[f].power)));
        b->starts[i + 1] = i + 1;
    }
    b->n_keys = n * BENCH_FIELDS;
    must(batch_dedup(b), "dedup", NULL);
}

static void init_dense(struct dlrm *m)
{
    for (uint32_t i = 0; i < dlrm_n_tensors(m); i++) {
        struct dlrm_tensor *t = dlrm_tensor(m, i);

        for (uint32_t k = 0; k < t->n_floats; k++)
            t->values[k] = random_float((uint64_t)i << 32 | k, t->init_scale);
    }
}

static size_t rows_bytes(const struct bench_model *x)
{
    return (size_t)x->batch->n_unique * x->dim * sizeof(float);
}

static void *pinned(const struct bench_model *x, size_t n_bytes)
{
    void *memory = dlrm_host_alloc(x->m, n_bytes);

    must(memory ? 0 : -ENOMEM, "pinned memory", NULL);
    return memory;
}

/* Of the arrays that are copied to the device: label, numeric, starts, row_of, order, order_starts. */
static size_t batch_words(const struct batch *b)
{
    return (size_t)b->n * (1 + BENCH_NUMERIC + BENCH_FIELDS) + 1 + 2 * (size_t)b->n_keys +
           b->n_unique + 1;
}

static void *put(uint32_t **at, const void *from, size_t n_words)
{
    void *to = memcpy(*at, from, n_words * sizeof **at);

    *at += n_words;
    return to;
}

/* As the worker's feed has it. */
static void pin_batch(struct bench_model *x)
{
    const struct batch *b = x->batch;
    uint32_t *at = pinned(x, batch_words(b) * sizeof *at);

    x->pinned = *b;
    x->pinned.label = put(&at, b->label, b->n);
    x->pinned.numeric = put(&at, b->numeric, (size_t)b->n * BENCH_NUMERIC);
    x->pinned.starts = put(&at, b->starts, (size_t)b->n * BENCH_FIELDS + 1);
    x->pinned.row_of = put(&at, b->row_of, b->n_keys);
    x->pinned.order = put(&at, b->order, b->n_keys);
    x->pinned.order_starts = put(&at, b->order_starts, b->n_unique + 1);
}

void bench_model_init(struct bench_model *x, struct op_monitor *w, const struct batch *batch,
                      uint32_t dim, enum device_products products)
{
    const struct dlrm_config config = { .batch_max = batch->n,
                                        .n_numeric = BENCH_NUMERIC,
                                        .n_fields = BENCH_FIELDS,
                                        .dim = dim,
                                        .n_bottom = 2,
                                        .bottom = { 512, 256 },
                                        .n_top = 4,
                                        .top = { 1024, 1024, 512, 256 },
                                        .n_threads = 1,
                                        .products = products };
    struct err err = { 0 };

    *x = (struct bench_model){ .batch = batch, .dim = dim };
    *w = (struct op_monitor){
        .records = true, .copies = true, .n_rows = batch->n_unique, .n_keys = batch->n_keys
    };
    must(dlrm_new_on(op_monitor_ops(w), &config, &x->m, &err), "no GPU", &err);
    init_dense(x->m);
    pin_batch(x);
    x->rows = pinned(x, rows_bytes(x));
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS; i++)
        x->row_grads[i] = pinned(x, rows_bytes(x));
    for (size_t i = 0; i < (size_t)batch->n_unique * dim; i++)
        x->rows[i] = random_float(i, 0.1f);
}

/* Rows of a gradient, and how wide they are. */
static uint32_t gradient_rows(struct bench_model *x, uint32_t gradient, uint32_t *ret_width)
{
    uint32_t n_floats;

    *ret_width = x->dim;
    if (gradient < DLRM_DENSE)
        return gradient == DLRM_ROWS ? x->batch->n_unique : 0;
    n_floats = dlrm_tensor(x->m, gradient - DLRM_DENSE)->n_floats;
    *ret_width = n_floats < TABLE_SPEC_DENSE_BLOCK ? n_floats : TABLE_SPEC_DENSE_BLOCK;
    return (n_floats + *ret_width - 1) / *ret_width;
}

/* The most that any codec makes of them: 6 bytes of a float. */
static size_t encoded_bytes(struct bench_model *x)
{
    uint32_t width;
    size_t n = 0;

    for (uint32_t i = 0; i < dlrm_n_gradients(x->m); i++)
        n += 6 * (size_t)gradient_rows(x, i, &width) * width;
    return n;
}

static size_t places_bytes(const struct bench_model *x)
{
    return (x->batch->n_unique + dlrm_dense_floats(x->m) / TABLE_SPEC_DENSE_BLOCK + 1) *
           sizeof *x->places;
}

static void make_encoded(struct bench_model *x)
{
    uint32_t width;

    x->places = pinned(x, places_bytes(x));
    for (uint32_t i = 0; i < places_bytes(x) / sizeof *x->places; i++)
        x->places[i] = i;
    for (uint32_t i = 0; i < dlrm_n_gradients(x->m); i++)
        must(dlrm_residual_reserve(x->m, i, gradient_rows(x, i, &width)), "residuals", NULL);
    for (uint32_t set = 0; set < DLRM_BUFFER_SETS; set++) {
        x->gradients[set] = memory_alloc(dlrm_n_gradients(x->m) * sizeof *x->gradients[set]);
        x->bytes[set] = pinned(x, encoded_bytes(x));
    }
}

void bench_model_encode(struct bench_model *x, enum codec_id codec)
{
    const struct codec *c = codec_by_id(codec);

    if (!x->places)
        make_encoded(x);
    for (uint32_t set = 0; set < DLRM_BUFFER_SETS; set++) {
        uint8_t *bytes = x->bytes[set];

        for (uint32_t i = 0; i < dlrm_n_gradients(x->m); i++) {
            uint32_t width;
            const uint32_t n = gradient_rows(x, i, &width);
            const uint32_t k = codec == CODEC_TOPK ? (width + 9) / 10 : 0;

            x->gradients[set][i] =
                (struct dlrm_encoded){ codec, k, n, NULL, c->feedback && n ? x->places : NULL,
                                       bytes };
            bytes += n * c->row_bytes(width, k);
        }
    }
}

static void free_encoded(struct bench_model *x)
{
    if (!x->places)
        return;
    dlrm_host_free(x->m, x->places, places_bytes(x));
    for (uint32_t set = 0; set < DLRM_BUFFER_SETS; set++) {
        dlrm_host_free(x->m, x->bytes[set], encoded_bytes(x));
        free(x->gradients[set]);
    }
}

void bench_model_deinit(struct bench_model *x)
{
    free_encoded(x);
    dlrm_host_free(x->m, x->pinned.label, batch_words(x->batch) * sizeof(uint32_t));
    dlrm_host_free(x->m, x->rows, rows_bytes(x));
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS; i++)
        dlrm_host_free(x->m, x->row_grads[i], rows_bytes(x));
    dlrm_free(x->m);
}

static void must_device(const struct bench_model *x, int status)
{
    struct err err = { 0 };

    if (status)
        must(dlrm_failed(x->m, status, &err), "step", &err);
}

void bench_model_begin(struct bench_model *x, uint32_t set)
{
    const struct dlrm_step step = { .batch = &x->pinned,
                                    .rows = x->rows,
                                    .row_grads = x->row_grads[set],
                                    .encoded = x->gradients[set] };

    must_device(x, dlrm_step_begin(x->m, set, &step));
}

double bench_model_end(struct bench_model *x, uint32_t set)
{
    double loss;

    must_device(x, dlrm_step_end(x->m, set, &loss));
    return loss;
}

static uint64_t fnv(uint64_t h, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    return h;
}

uint64_t bench_model_digest(const struct bench_model *x, uint32_t set, double loss)
{
    uint64_t h = fnv(UINT64_C(0xcbf29ce484222325), &loss, sizeof loss);

    h = fnv(h, x->row_grads[set], rows_bytes(x));
    return fnv(h, dlrm_tensor(x->m, 0)->grads, dlrm_dense_floats(x->m) * sizeof(float));
}
