#include "worker/tables.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/mem.h"

#define N_DENSE_MAX (DLRM_TENSORS_MAX + 2)
#define CONTROL_FLOATS 3
#define CONTROL_BITS 24 /* of a clock, in one float without loss */

/* A dense array and the table that holds it. */
struct dense {
    struct table_spec spec;
    uint32_t id, n_blocks;
    uint64_t *keys; /* owned: 0 .. n_blocks - 1 */
    float *values,
        *grads; /* of the model when the array fills its blocks, else owned, padded */
    struct dlrm_tensor *tensor; /* borrowed; NULL for moments and control */
    bool padded;
};

struct tables {
    const struct settings *s;
    struct dlrm *model;  /* borrowed */
    struct store *store; /* borrowed */
    uint32_t dim, n_numeric;
    uint32_t emb, wide;
    bool has_wide;
    struct dense dense[N_DENSE_MAX];
    uint32_t n_dense; /* tensors of the model */
    struct dense moments, control;
    bool has_moments, has_control;
    float control_start; /* what the stop counter was when this run began */
    float *rows, *row_grads, *wide_rows, *wide_grads; /* owned, rows_cap rows */
    uint32_t rows_cap;
};

/* How a table is got: tables_create() makes it, tables_find() asks for it. */
typedef int get_table(struct tables *t, struct table_spec *spec, uint32_t *ret_id,
                      struct err *err);

static int make(struct tables *t, struct table_spec *spec, uint32_t *ret_id, struct err *err)
{
    return t->store->ops->table(t->store, spec, ret_id, err);
}

/* What is there must fit the model, whatever it was trained with. */
static int find(struct tables *t, struct table_spec *spec, uint32_t *ret_id, struct err *err)
{
    struct table_spec want = *spec;
    int status = t->store->ops->table_find(t->store, spec, ret_id, err);

    if (status == PS_ENOTABLE)
        return err_set(err, status,
                       "table %s is not there: has job \"%s\" been trained, with the same "
                       "model settings?",
                       want.name, t->s->job);
    if (status)
        return status;
    if (spec->kind != want.kind || spec->dim != want.dim || spec->n_floats != want.n_floats)
        return err_set(
            err, PS_ESPEC,
            "table %s holds %llu floats in rows of %u, these settings ask for %llu in rows of "
            "%u: --dim, --bottom, --top and the columns must be those of the training",
            want.name, (unsigned long long)spec->n_floats, spec->dim,
            (unsigned long long)want.n_floats, want.dim);
    return 0;
}

static void name_table(const struct tables *t, struct table_spec *spec, const char *tail)
{
    /* settings_check() holds a job's name under 64 characters. */
    snprintf(spec->name, sizeof spec->name, "%.63s/%s", t->s->job, tail);
}

/* What the sparse tables share. */
static struct table_spec sparse_spec(const struct tables *t, const char *name, uint32_t dim)
{
    struct table_spec spec = {
        .kind = SPEC_SPARSE,
        .dim = dim,
        .seed = hash_mix2(t->s->seed, dim),
        .init = (enum spec_init)t->s->init,
        .init_scale = t->s->init_scale,
        .optim = settings_optim(t->s, false),
        .params = settings_optim_params(t->s, false),
        .schedule = settings_schedule(t->s),
        .clip_norm = t->s->clip_norm,
        .mode = (enum spec_mode)t->s->embedding_mode,
        .bound = t->s->embedding_mode == SPEC_MODE_SSP ? t->s->embedding_staleness : 0,
        .storage = (enum spec_storage)t->s->table_storage,
        .limits = settings_limits(t->s),
    };

    name_table(t, &spec, name);
    return spec;
}

static struct table_spec dense_spec(const struct tables *t, const char *name, uint64_t n_floats)
{
    struct table_spec spec = {
        .kind = SPEC_DENSE,
        .dim = n_floats < SPEC_DENSE_BLOCK ? (uint32_t)n_floats : SPEC_DENSE_BLOCK,
        .n_floats = n_floats,
        .optim = SPEC_SGD,
        .params = spec_optim_defaults(SPEC_SGD),
    };

    name_table(t, &spec, name);
    spec.params.learning_rate = 1;
    spec.params.weight_decay = 0;
    return spec;
}

static struct table_spec tensor_spec(const struct tables *t, const struct dlrm_tensor *tensor,
                                     uint32_t i)
{
    struct table_spec spec = dense_spec(t, tensor->name, tensor->n_floats);

    spec.seed = hash_mix2(t->s->seed, UINT64_C(0x64656e7365) + i);
    spec.init = tensor->init;
    spec.init_scale = tensor->init_scale;
    spec.mode = (enum spec_mode)t->s->dense_mode;
    spec.bound = t->s->dense_mode == SPEC_MODE_SSP ? t->s->dense_staleness : 0;
    if (!tensor->statistic) {
        spec.optim = settings_optim(t->s, true);
        spec.params = settings_optim_params(t->s, true);
        spec.schedule = settings_schedule(t->s);
    }
    return spec;
}

static void dense_deinit(struct dense *d)
{
    free(d->keys);
    if (d->padded) {
        free(d->values);
        free(d->grads);
    }
}

static int dense_init(struct tables *t, struct dense *d, struct dlrm_tensor *tensor,
                      get_table *get, struct err *err)
{
    uint64_t n_padded;
    int status = get(t, &d->spec, &d->id, err);

    if (status)
        return status;
    d->tensor = tensor;
    d->n_blocks = (uint32_t)spec_n_blocks(&d->spec);
    d->keys = mem_alloc(d->n_blocks * sizeof *d->keys);
    for (uint32_t i = 0; i < d->n_blocks; i++)
        d->keys[i] = i;
    n_padded = (uint64_t)d->n_blocks * d->spec.dim;
    d->padded = !tensor || n_padded != d->spec.n_floats;
    d->values = d->padded ? mem_alloc(n_padded * sizeof *d->values) : tensor->values;
    d->grads = d->padded ? mem_alloc(n_padded * sizeof *d->grads) : tensor->grads;
    return 0;
}

static int open_tensors(struct tables *t, get_table *get, struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < dlrm_n_tensors(t->model) && !status; i++) {
        struct dense *d = &t->dense[t->n_dense];

        d->spec = tensor_spec(t, dlrm_tensor(t->model, i), i);
        status = dense_init(t, d, dlrm_tensor(t->model, i), get, err);
        t->n_dense++;
    }
    return status;
}

static int open_sparse(struct tables *t, get_table *get, struct err *err)
{
    struct table_spec spec = sparse_spec(t, "emb", t->dim);
    int status = get(t, &spec, &t->emb, err);

    if (status || !t->has_wide)
        return status;
    spec = sparse_spec(t, "wide", 1);
    spec.init = SPEC_INIT_ZERO;
    return get(t, &spec, &t->wide, err);
}

static struct ps_pull_section ask_dense(const struct tables *t, const struct dense *d)
{
    /* Moments and the stop flag must come as they are. */
    enum codec_id codec = d->tensor ? (enum codec_id)t->s->dense_pull_codec : CODEC_FP32;

    return (struct ps_pull_section){ d->id, codec, d->n_blocks, d->keys, d->values, NULL };
}

/* One dense table, outside the steps. */
static int read_alone(struct tables *t, struct dense *d, struct err *err)
{
    struct ps_pull_section section = ask_dense(t, d);
    int status = t->store->ops->pull_start(t->store, 0, &section, 1, err);

    return status ? status : t->store->ops->pull_wait(t->store, err);
}

static int open_all(const struct settings *s, struct dlrm *model, uint32_t n_numeric,
                    struct store *store, get_table *get, struct tables **ret, struct err *err)
{
    struct tables *t = mem_alloc(sizeof *t);
    int status;

    *t = (struct tables){ .s = s,
                          .model = model,
                          .store = store,
                          .dim = s->dim,
                          .has_wide = s->wide,
                          .n_numeric = n_numeric,
                          .has_control = get == make && s->early_stop > 0 };
    t->has_moments = s->numeric_as == 1 && !s->format[0] && t->n_numeric > 0;
    status = open_sparse(t, get, err);
    if (!status)
        status = open_tensors(t, get, err);
    if (!status && t->has_moments) {
        t->moments.spec = dense_spec(t, "moments", 2ull * t->n_numeric);
        status = dense_init(t, &t->moments, NULL, get, err);
    }
    if (!status && t->has_control) {
        t->control.spec = dense_spec(t, "control", CONTROL_FLOATS);
        t->control.spec.mode = SPEC_MODE_ASYNC;
        status = dense_init(t, &t->control, NULL, get, err);
        if (!status)
            status = read_alone(t, &t->control, err);
        t->control_start = status ? 0 : t->control.values[0];
    }
    if (status) {
        tables_free(t);
        return status;
    }
    *ret = t;
    return 0;
}

int tables_create(const struct settings *s, struct dlrm *model, uint32_t n_numeric,
                  struct store *store, struct tables **ret, struct err *err)
{
    return open_all(s, model, n_numeric, store, make, ret, err);
}

int tables_find(const struct settings *s, struct dlrm *model, uint32_t n_numeric,
                struct store *store, struct tables **ret, struct err *err)
{
    return open_all(s, model, n_numeric, store, find, ret, err);
}

bool tables_exist(const struct settings *s, struct store *store)
{
    struct table_spec spec = { .dim = s->dim };
    struct err err;
    uint32_t id;

    snprintf(spec.name, sizeof spec.name, "%.63s/emb", s->job);
    return store->ops->table_find(store, &spec, &id, &err) == 0;
}

void tables_free(struct tables *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n_dense; i++)
        dense_deinit(&t->dense[i]);
    dense_deinit(&t->moments);
    dense_deinit(&t->control);
    free(t->rows);
    free(t->row_grads);
    free(t->wide_rows);
    free(t->wide_grads);
    free(t);
}

static int grow(float **array, size_t n_floats)
{
    float *grown = mem_try_realloc(*array, n_floats * sizeof *grown);

    if (!grown)
        return -ENOMEM;
    *array = grown;
    return 0;
}

static int reserve_rows(struct tables *t, uint32_t n_rows, struct err *err)
{
    uint32_t cap = n_rows + n_rows / 2;
    size_t n_floats = (size_t)cap * t->dim;

    if (n_rows <= t->rows_cap)
        return 0;
    if (grow(&t->rows, n_floats) || grow(&t->row_grads, n_floats) || grow(&t->wide_rows, cap) ||
        grow(&t->wide_grads, cap))
        return err_set(err, -ENOMEM, "no memory for %u embedding rows of %u floats", n_rows,
                       t->dim);
    t->rows_cap = cap;
    return 0;
}

static uint32_t ask(struct tables *t, const struct batch *batch, enum tables_want want,
                    struct ps_pull_section *out)
{
    uint32_t n = 0;

    if (want & TABLES_ROWS) {
        out[n++] = (struct ps_pull_section){ t->emb,          (enum codec_id)t->s->pull_codec,
                                             batch->n_unique, batch->unique,
                                             t->rows,         NULL };
        if (t->has_wide)
            out[n++] = (struct ps_pull_section){ t->wide,       CODEC_FP32,   batch->n_unique,
                                                 batch->unique, t->wide_rows, NULL };
    }
    if (want & TABLES_DENSE) {
        for (uint32_t i = 0; i < t->n_dense; i++)
            out[n++] = ask_dense(t, &t->dense[i]);
        if (t->has_control)
            out[n++] = ask_dense(t, &t->control);
    }
    return n;
}

int tables_pull(struct tables *t, const struct batch *batch, uint64_t clock,
                enum tables_want want, struct err *err)
{
    struct ps_pull_section sections[N_DENSE_MAX + 2];
    uint32_t n;
    int status = batch ? reserve_rows(t, batch->n_unique, err) : 0;

    if (status)
        return status;
    n = ask(t, batch, want, sections);
    status = t->store->ops->pull_start(t->store, clock, sections, n, err);
    if (!status)
        status = t->store->ops->pull_wait(t->store, err);
    if (status || !(want & TABLES_DENSE))
        return status;
    for (uint32_t i = 0; i < t->n_dense; i++)
        if (t->dense[i].padded)
            memcpy(t->dense[i].tensor->values, t->dense[i].values,
                   t->dense[i].spec.n_floats * sizeof(float));
    return 0;
}

static struct ps_push_section tell_dense(const struct tables *t, const struct dense *d)
{
    int codec = t->s->dense_push_codec ? t->s->dense_push_codec - 1 : t->s->push_codec;

    if (d->padded)
        memcpy(d->grads, d->tensor->grads, d->spec.n_floats * sizeof(float));
    return (struct ps_push_section){ .table = d->id,
                                     .op = SECTION_GRADIENT,
                                     .topk_fraction = t->s->topk,
                                     .codec = d->tensor->statistic ? CODEC_FP32
                                                                   : (enum codec_id)codec,
                                     .n_keys = d->n_blocks,
                                     .keys = d->keys,
                                     .values = d->grads };
}

int tables_push(struct tables *t, const struct batch *batch, uint64_t clock, struct err *err)
{
    struct ps_push_section sections[N_DENSE_MAX + 2];
    uint32_t n = 0;

    sections[n++] = (struct ps_push_section){ .table = t->emb,
                                              .op = SECTION_GRADIENT,
                                              .codec = (enum codec_id)t->s->push_codec,
                                              .topk_fraction = t->s->topk,
                                              .n_keys = batch->n_unique,
                                              .keys = batch->unique,
                                              .values = t->row_grads };
    if (t->has_wide)
        sections[n++] = (struct ps_push_section){ .table = t->wide,
                                                  .op = SECTION_GRADIENT,
                                                  .codec = CODEC_FP32,
                                                  .n_keys = batch->n_unique,
                                                  .keys = batch->unique,
                                                  .values = t->wide_grads };
    for (uint32_t i = 0; i < t->n_dense; i++)
        sections[n++] = tell_dense(t, &t->dense[i]);
    return t->store->ops->push(t->store, clock, batch->n, true, sections, n, err);
}

const float *tables_rows(const struct tables *t)
{
    return t->rows;
}

const float *tables_wide(const struct tables *t)
{
    return t->has_wide ? t->wide_rows : NULL;
}

float *tables_row_grads(struct tables *t)
{
    return t->row_grads;
}

float *tables_wide_grads(struct tables *t)
{
    return t->has_wide ? t->wide_grads : NULL;
}

/* Sets a dense table outside the steps: no tick, no samples. */
static int assign(struct tables *t, struct dense *d, struct err *err)
{
    struct ps_push_section section = { .table = d->id,
                                       .op = SECTION_ASSIGN,
                                       .codec = CODEC_FP32,
                                       .n_keys = d->n_blocks,
                                       .keys = d->keys,
                                       .values = d->values };

    int status = t->store->ops->push(t->store, t->store->ops->clock(t->store), 0, false,
                                     &section, 1, err);

    /* Told once that this worker had been declared dead, and by now it has joined again. */
    if (status == PS_EFENCED)
        status = t->store->ops->push(t->store, t->store->ops->clock(t->store), 0, false,
                                     &section, 1, err);
    return status;
}

int tables_store_moments(struct tables *t, const float *mean, const float *std, struct err *err)
{
    if (!t->has_moments)
        return 0;
    memcpy(t->moments.values, mean, t->n_numeric * sizeof *mean);
    memcpy(t->moments.values + t->n_numeric, std, t->n_numeric * sizeof *std);
    return assign(t, &t->moments, err);
}

int tables_load_moments(struct tables *t, float *ret_mean, float *ret_std, struct err *err)
{
    int status;

    if (!t->has_moments)
        return 0;
    status = read_alone(t, &t->moments, err);
    if (status)
        return status;
    memcpy(ret_mean, t->moments.values, t->n_numeric * sizeof *ret_mean);
    memcpy(ret_std, t->moments.values + t->n_numeric, t->n_numeric * sizeof *ret_std);
    return 0;
}

int tables_tell_stop(struct tables *t, uint64_t clock, struct err *err)
{
    if (!t->has_control)
        return 0;
    t->control.values[0] = t->control_start + 1;
    t->control.values[1] = (float)(clock >> CONTROL_BITS);
    t->control.values[2] = (float)(clock & ((1u << CONTROL_BITS) - 1));
    return assign(t, &t->control, err);
}

bool tables_stopped(const struct tables *t, uint64_t clock)
{
    const float *control = t->control.values;

    return t->has_control && control[0] != t->control_start &&
           clock >= ((uint64_t)control[1] << CONTROL_BITS | (uint64_t)control[2]);
}
