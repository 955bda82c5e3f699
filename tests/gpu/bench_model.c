#include "tests/gpu/bench_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/hash.h"

static void must(int status, const char *what, const struct err *err)
{
    if (!status)
        return;
    fprintf(stderr, "bench: %s: %s\n", what, err ? err->text : status_text(status));
    exit(1);
}

const char *bench_products_name(enum compute_products products)
{
    return products == COMPUTE_TF32 ? "tf32" : products == COMPUTE_BF16 ? "bf16" : "fp32";
}

static float random_float(uint64_t i, float scale)
{
    return (2 * hash_unit(hash_mix2(7, i)) - 1) * scale;
}

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
        const double u = (double)hash_unit(hash_mix2(2, i));

        b->keys[i] = hash_mix2(i % BENCH_FIELDS, (uint64_t)(1e5 * u * u * u * u));
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

static float *host_rows(const struct bench_model *x)
{
    float *rows = dlrm_host_alloc(x->m, rows_bytes(x));

    must(rows ? 0 : -ENOMEM, "pinned memory", NULL);
    return rows;
}

void bench_model_init(struct bench_model *x, struct watch *w, const struct batch *batch,
                      uint32_t dim, enum compute_products products)
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
    *w = (struct watch){
        .records = true, .copies = true, .n_rows = batch->n_unique, .n_keys = batch->n_keys
    };
    must(dlrm_new_on(watch_ops(w), &config, &x->m, &err), "no GPU", &err);
    init_dense(x->m);
    x->rows = host_rows(x);
    for (uint32_t i = 0; i < DLRM_SLOTS; i++)
        x->row_grads[i] = host_rows(x);
    for (size_t i = 0; i < (size_t)batch->n_unique * dim; i++)
        x->rows[i] = random_float(i, 0.1f);
}

void bench_model_deinit(struct bench_model *x)
{
    dlrm_host_free(x->m, x->rows, rows_bytes(x));
    for (uint32_t i = 0; i < DLRM_SLOTS; i++)
        dlrm_host_free(x->m, x->row_grads[i], rows_bytes(x));
    dlrm_free(x->m);
}

static void must_device(const struct bench_model *x, int status)
{
    struct err err = { 0 };

    if (status)
        must(dlrm_failed(x->m, status, &err), "step", &err);
}

void bench_model_begin(struct bench_model *x, uint32_t slot)
{
    const struct dlrm_step step = { .batch = x->batch,
                                    .rows = x->rows,
                                    .row_grads = x->row_grads[slot] };

    must_device(x, dlrm_step_begin(x->m, slot, &step));
}

double bench_model_end(struct bench_model *x, uint32_t slot)
{
    double loss;

    must_device(x, dlrm_step_end(x->m, slot, &loss));
    return loss;
}

static uint64_t fnv(uint64_t h, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    return h;
}

uint64_t bench_model_digest(const struct bench_model *x, uint32_t slot, double loss)
{
    uint64_t h = fnv(UINT64_C(0xcbf29ce484222325), &loss, sizeof loss);

    h = fnv(h, x->row_grads[slot], rows_bytes(x));
    return fnv(h, dlrm_tensor(x->m, 0)->grads, dlrm_dense_floats(x->m) * sizeof(float));
}
