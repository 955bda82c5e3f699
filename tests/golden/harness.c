#include "tests/golden/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/memory.h"

static void must(int status, const struct err *err, const char *what)
{
    if (status)
        fail_msg("%s: %s (%s)", what, err->text, status_text(status));
}

static void open_store(struct harness *h, struct err *err)
{
    const char *servers = getenv("PS_SERVERS");
    struct ps_options options = { .servers = servers,
                                  .token = "",
                                  .name = "golden",
                                  .job = h->s.job,
                                  .n_workers = 1,
                                  .mode = TABLE_SPEC_MODE_BSP,
                                  .connect_ms = 20000,
                                  .give_up_ms = 20000,
                                  .pull_ms = 60000,
                                  .window_bytes = 64u << 20 };

    must(servers ? param_store_remote_open(&options, &h->store, err)
                 : param_store_local_open(
                       &(struct param_store_local_options){ .job = h->s.job }, &h->store, err),
         err, "store");
}

void harness_open(struct harness *h, const char *const *flags, uint32_t n_numeric,
                  uint32_t n_fields)
{
    harness_open_tasks(h, flags, n_numeric, n_fields, 1, (float[]){ 1 });
}

void harness_open_tasks(struct harness *h, const char *const *flags, uint32_t n_numeric,
                        uint32_t n_fields, uint32_t n, const float *weights)
{
    struct dlrm_config config = { .n_numeric = n_numeric, .n_fields = n_fields, .n_tasks = n };
    enum settings_action action;
    struct err err = { 0 };
    int argc = 0;

    *h = (struct harness){ 0 };
    while (flags[argc])
        argc++;
    must(settings_load(&settings_worker, argc, (char **)(uintptr_t)flags, 0, &h->s, &action,
                       &err),
         &err, "settings");
    config.batch_max = h->s.batch;
    memcpy(config.task_weights, weights, n * sizeof *weights);
    config.kind = (enum model_kind)h->s.model;
    config.dim = settings_dim(&h->s);
    config.wide = settings_has_wide(&h->s);
    config.self_interaction = h->s.self_interaction;
    config.n_cross = h->s.cross_layers;
    config.cross_rank = h->s.cross_rank;
    if (strcmp(h->s.bottom, "auto") == 0) /* PyTorch's models read numbers without hats */
        snprintf(h->s.bottom, sizeof h->s.bottom, "512,256,64");
    must(settings_widths("bottom", h->s.bottom, config.bottom, DLRM_LAYERS_MAX - 1,
                         &config.n_bottom, &err),
         &err, "bottom");
    must(settings_widths("top", h->s.top, config.top, DLRM_LAYERS_MAX - 1, &config.n_top, &err),
         &err, "top");
    must(dlrm_new(&config, &h->model, &err), &err, "model");
    h->config = config;
    open_store(h, &err);
    must(model_tables_create(&h->s, h->model, n_numeric, h->store, &h->tables, &err), &err,
         "tables");
    must(batch_init_labels(&h->batch, NULL, h->s.batch, n, n_numeric, n_fields), &err, "batch");
    must(model_tables_step_init(h->tables, &h->buffers, &err), &err, "step buffers");
    h->buffers.batch = &h->batch;
}

void harness_close(struct harness *h)
{
    struct err err = { 0 };

    must(h->store->ops->leave(h->store, &err), &err, "leave");
    model_tables_step_deinit(h->tables, &h->buffers);
    batch_deinit(&h->batch);
    model_tables_free(h->tables);
    h->store->ops->close(h->store);
    dlrm_free(h->model);
    settings_free(&settings_worker, &h->s);
}

/* The store's number and specification of one of the run's tables. */
static uint32_t find(struct harness *h, const char *name, struct table_spec *ret_spec)
{
    struct err err = { 0 };
    uint32_t id;

    *ret_spec = (struct table_spec){ .dim = 1 };
    snprintf(ret_spec->name, sizeof ret_spec->name, "%.63s/%s", h->s.job, name);
    must(h->store->ops->table_find(h->store, ret_spec, &id, &err), &err, name);
    return id;
}

static uint64_t *block_keys(const struct table_spec *spec)
{
    uint64_t n = table_spec_n_blocks(spec), *keys = memory_alloc(n * sizeof *keys);

    for (uint64_t i = 0; i < n; i++)
        keys[i] = i;
    return keys;
}

static void assign(struct harness *h, uint32_t table, const uint64_t *keys, uint32_t n_keys,
                   const float *values)
{
    struct ps_push_section section = { .table = table,
                                       .op = SECTION_ASSIGN,
                                       .codec = CODEC_FP32,
                                       .n_keys = n_keys,
                                       .keys = keys,
                                       .values = values };
    struct err err = { 0 };

    must(h->store->ops->push(h->store, 0, 0, false, &section, 1, &err), &err, "assign");
}

static void read_rows(struct harness *h, uint32_t table, const uint64_t *keys, uint32_t n_keys,
                      float *dst)
{
    struct ps_pull_section section = {
        .table = table, .codec = CODEC_FP32, .n_keys = n_keys, .keys = keys, .dst = dst
    };
    struct err err = { 0 };

    must(h->store->ops->pull_start(h->store, h->clock, &section, 1, &err), &err, "pull");
    must(h->store->ops->pull_wait(h->store, &err), &err, "pull");
}

void harness_assign_dense(struct harness *h, const char *name, const float *values,
                          uint32_t n_floats)
{
    struct table_spec spec;
    uint32_t id = find(h, name, &spec);
    uint64_t *keys = block_keys(&spec);
    float *padded = memory_alloc(table_spec_n_blocks(&spec) * spec.dim * sizeof *padded);

    assert_int_equal(spec.n_floats, n_floats);
    memcpy(padded, values, n_floats * sizeof *values);
    assign(h, id, keys, (uint32_t)table_spec_n_blocks(&spec), padded);
    free(padded);
    free(keys);
}

void harness_assign_rows(struct harness *h, const char *name, const uint64_t *keys,
                         const float *rows, uint32_t n_rows)
{
    struct table_spec spec;
    uint32_t id = find(h, name, &spec);

    assign(h, id, keys, n_rows, rows);
}

void harness_read_dense(struct harness *h, const char *name, float *ret_values,
                        uint32_t n_floats)
{
    struct table_spec spec;
    uint32_t id = find(h, name, &spec);
    uint64_t *keys = block_keys(&spec);
    float *padded = memory_alloc(table_spec_n_blocks(&spec) * spec.dim * sizeof *padded);

    assert_int_equal(spec.n_floats, n_floats);
    read_rows(h, id, keys, (uint32_t)table_spec_n_blocks(&spec), padded);
    memcpy(ret_values, padded, n_floats * sizeof *ret_values);
    free(padded);
    free(keys);
}

void harness_read_rows(struct harness *h, const char *name, const uint64_t *keys,
                       float *ret_rows, uint32_t n_rows)
{
    struct table_spec spec;
    uint32_t id = find(h, name, &spec);

    read_rows(h, id, keys, n_rows, ret_rows);
}

static uint64_t key_of(uint32_t field, int64_t id)
{
    return (uint64_t)field << 32 | (uint64_t)id;
}

uint64_t *harness_keys_of(uint32_t field, uint32_t n_rows)
{
    uint64_t *keys = memory_alloc(n_rows * sizeof *keys);

    for (uint32_t i = 0; i < n_rows; i++)
        keys[i] = key_of(field, i);
    return keys;
}

struct harness_data harness_load(const char *name)
{
    return (struct harness_data){ npy_load(name, "X"), npy_load(name, "y"),
                                  npy_load(name, "seg"), npy_load(name, "indices"),
                                  npy_load(name, "offsets") };
}

void harness_unload(struct harness_data *d)
{
    npy_free(&d->X);
    npy_free(&d->y);
    npy_free(&d->seg);
    npy_free(&d->indices);
    npy_free(&d->offsets);
}

void harness_fill(struct harness *h, const struct harness_data *d, uint32_t step)
{
    struct batch *b = &h->batch;
    const uint32_t n = b->n_max, n_fields = b->n_fields;
    const size_t n_numbers = (size_t)n * b->n_numeric;

    batch_clear(b);
    b->n = n;
    memcpy(b->numeric, d->X.f + step * n_numbers, n_numbers * sizeof(float));
    memcpy(b->label, d->y.f + (size_t)step * n * b->n_labels,
           (size_t)n * b->n_labels * sizeof(float));
    b->n_keys = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n_fields; k++) {
            size_t s = (size_t)step * n_fields + k;
            const int64_t *offsets = d->offsets.i + s * n;
            int64_t from = d->seg.i[s] + offsets[i];
            int64_t to = i + 1 < n ? d->seg.i[s] + offsets[i + 1] : d->seg.i[s + 1];

            assert_int_equal(batch_reserve_keys(b, (uint32_t)(to - from)), 0);
            b->starts[i * n_fields + k] = b->n_keys;
            for (int64_t j = from; j < to; j++)
                b->keys[b->n_keys++] = key_of(k, d->indices.i[j]);
        }
    b->starts[n * n_fields] = b->n_keys;
}

static struct dlrm_step pull(struct harness *h)
{
    struct err err = { 0 };

    must(batch_dedup(&h->batch), &err, "dedup");
    h->buffers.clock = h->clock;
    must(model_tables_pull(h->tables, &h->buffers, MODEL_TABLES_ALL, &err), &err, "pull");
    return model_tables_use(h->tables, &h->buffers);
}

void harness_forward(struct harness *h)
{
    const struct dlrm_step step = pull(h);
    struct err err = { 0 };

    must(dlrm_predict(h->model, &step), &err, "predict");
}

double harness_meta_step(struct harness *h, struct meta_learning *meta)
{
    const struct dlrm_step step = pull(h);
    struct err err = { 0 };
    double loss;

    must(meta_learning_step(meta, &step, h->buffers.dense_grads, &loss), &err, "step");
    must(model_tables_push(h->tables, &h->buffers, &err), &err, "push");
    h->clock++;
    return loss;
}

void harness_meta_predict(struct harness *h, struct meta_learning *meta,
                          struct meta_learning_scores *ret)
{
    const struct dlrm_step step = pull(h);
    struct err err = { 0 };

    must(meta_learning_predict(meta, &step, h->buffers.dense_grads, ret), &err, "predict");
}

double harness_step(struct harness *h)
{
    const struct dlrm_step step = pull(h);
    struct err err = { 0 };
    double loss;

    must(dlrm_step(h->model, &step, &loss), &err, "step");
    must(model_tables_push(h->tables, &h->buffers, &err), &err, "push");
    h->clock++;
    return loss;
}
