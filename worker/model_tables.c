#include "worker/model_tables.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log_line.h"
#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "worker/device_replica.h"
#include "worker/field_tables.h"
#include "worker/model_record.h"
#include "worker/plateau.h"
#include "worker/table_specs.h"

#define CONTROL_BITS 24 /* of a clock, in one float without loss */
/* A dense array and the table that holds it. */
struct dense {
    struct table_spec spec;
    uint32_t id, n_blocks;
    uint64_t *keys;                   /* owned: 0 .. n_blocks - 1 */
    const struct dlrm_tensor *tensor; /* borrowed; NULL for moments and control */
    float *values;                    /* moments and control: owned, padded */
};

/* The rows of a group of fields. */
struct rows {
    const struct settings *s; /* borrowed: the group's */
    bool has_fields;          /* else it has no keys, and no step asks for it */
    uint32_t dim;
    uint32_t emb, wide;
    struct table_spec spec; /* of emb */
};

struct rated_table {
    uint32_t id;
    float base;
};

struct model_tables {
    const struct settings *s;
    struct step_buffers_shape shape; /* of every step; its model is borrowed */
    struct param_store *store;       /* borrowed */
    struct sync_policy *sync;        /* owned: codecs and refresh of each step */
    struct device_push *device; /* owned: gradients leave the device encoded; NULL: as floats */
    struct device_replica replica; /* of the rows of rows[0] */
    uint32_t n_numeric;
    struct rows rows[FIELD_TABLES_MAX];
    uint32_t n_rows; /* groups */
    struct dense dense[DLRM_TENSORS_MAX];
    uint32_t n_dense; /* tensors of the model */
    struct dense moments, control;
    bool has_moments, has_control;
    struct rated_table rated[SECTIONS_MAX];
    uint32_t n_rated;
    float rate_factor;   /* of --decay plateau, for all of them */
    float control_start; /* what the stop counter was when this run began */
    struct ps_pull_section
        prefetched[2 * FIELD_TABLES_MAX]; /* lent to the store until the next pull */
};

/* ---- opening the tables ---- */

/* Makes a table (model_tables_create()) or finds it (model_tables_find()). The settings are the job's or a group's. */
typedef int get_table(struct model_tables *t, const struct settings *s, struct table_spec *spec,
                      uint32_t *ret_id, struct err *err);

static bool is_plateau(const struct table_spec *spec)
{
    return spec->schedule.decay == TABLE_SPEC_DECAY_PLATEAU;
}

/* The rate of the first table says where an earlier run, or an earlier process of this one, has left them all. */
static void keep_rate(struct model_tables *t, const struct table_spec *have,
                      struct table_spec *spec)
{
    const struct plateau_rule rule = plateau_rule_of(t->s);

    if (!is_plateau(have) || !is_plateau(spec))
        return;
    if (!t->n_rated)
        t->rate_factor =
            plateau_factor_of(&rule, spec->params.learning_rate, have->params.learning_rate);
    spec->params.learning_rate = have->params.learning_rate;
}

/* A table whose learning rate the training changes (--decay plateau), and what it begins with. */
static void add_rated(struct model_tables *t, uint32_t id, float base)
{
    assert(t->n_rated < COUNT_OF(t->rated));
    t->rated[t->n_rated++] = (struct rated_table){ id, base };
}

/* *ret_base: the learning rate, before --decay plateau has changed it. */
static int make_or_keep(struct model_tables *t, const struct settings *s,
                        struct table_spec *spec, uint32_t *ret_id, float *ret_base,
                        struct err *err)
{
    struct table_spec have = *spec;
    struct err unwanted;
    bool is_there = !table_spec_only_adds(spec) &&
                    t->store->ops->table_find(t->store, &have, ret_id, &unwanted) == 0;

    if (is_there)
        table_specs_keep(s, &have, spec);
    *ret_base = spec->params.learning_rate;
    if (is_there)
        keep_rate(t, &have, spec);
    return t->store->ops->table(t->store, spec, ret_id, err);
}

static int make(struct model_tables *t, const struct settings *s, struct table_spec *spec,
                uint32_t *ret_id, struct err *err)
{
    struct err why;
    float base;
    int status = make_or_keep(t, s, spec, ret_id, &base, err);

    /* Another worker may have made it meanwhile, of keys that it has counted in other rows. */
    if (status == PS_ESPEC && s->init == TABLE_SPEC_INIT_END)
        status = make_or_keep(t, s, spec, ret_id, &base, err);
    if (status == PS_ESPEC) {
        why = *err;
        return err_set(
            err, status,
            "%s: what an earlier run of job \"%s\" has made it with stays; go on with "
            "the same model and training settings, or take another --job",
            why.text, t->s->job);
    }
    if (!status && is_plateau(spec))
        add_rated(t, *ret_id, base);
    return status;
}

/* The table must fit the model, whatever it was trained with. */
static int find(struct model_tables *t, const struct settings *s, struct table_spec *spec,
                uint32_t *ret_id, struct err *err)
{
    struct table_spec want = *spec;
    int status = t->store->ops->table_find(t->store, spec, ret_id, err);

    (void)s;
    if (status == PS_ENOTABLE)
        return err_set(err, status,
                       "table %s is not there: has job \"%s\" been trained, with the same "
                       "model settings?",
                       want.name, t->s->job);
    if (status)
        return status;
    if (spec->n_floats != want.n_floats)
        return err_set(
            err, PS_ESPEC,
            "table %s holds %llu floats, these settings ask for %llu: --dim, --bottom, --top "
            "and the columns must be those of the training",
            want.name, (unsigned long long)spec->n_floats, (unsigned long long)want.n_floats);
    if (!table_specs_fit(spec, &want))
        return err_set(err, PS_ESPEC,
                       "table %s has rows of %u floats, these settings ask for rows of %u: "
                       "--dim must be that of the training",
                       want.name, spec->dim, want.dim);
    return 0;
}

static void dense_deinit(struct dense *d)
{
    free(d->keys);
    free(d->values);
}

static int dense_init(struct model_tables *t, struct dense *d, const struct dlrm_tensor *tensor,
                      get_table *get, struct err *err)
{
    int status = get(t, t->s, &d->spec, &d->id, err);

    if (status)
        return status;
    d->tensor = tensor;
    d->n_blocks = (uint32_t)table_spec_n_blocks(&d->spec);
    d->keys = memory_alloc(d->n_blocks * sizeof *d->keys);
    for (uint32_t i = 0; i < d->n_blocks; i++)
        d->keys[i] = i;
    if (!tensor)
        d->values = memory_alloc((size_t)d->n_blocks * d->spec.dim * sizeof *d->values);
    return 0;
}

static int open_tensors(struct model_tables *t, get_table *get, struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < dlrm_n_tensors(t->shape.model) && !status; i++) {
        struct dense *d = &t->dense[t->n_dense];

        d->spec = table_specs_tensor(t->s, dlrm_tensor(t->shape.model, i), i);
        status = dense_init(t, d, dlrm_tensor(t->shape.model, i), get, err);
        dlrm_set_block(t->shape.model, i, d->spec.dim);
        t->n_dense++;
    }
    return status;
}

static int open_rows(struct model_tables *t, uint32_t group, get_table *get, struct err *err)
{
    const char *tail = field_tables_tail(t->s->fields, group);
    struct rows *rows = &t->rows[group];
    struct table_spec spec;
    int status;

    rows->s = field_tables_settings(t->s, group);
    rows->dim = settings_dim(rows->s);
    if (rows->dim > t->shape.dim)
        t->shape.dim = rows->dim;
    rows->has_fields = field_tables_has_fields(t->s->fields, group);
    /* The scheme of keys, which the seed has in it, is the job's, and known only now. */
    spec = table_specs_rows(rows->s, "emb", tail, rows->dim);
    spec.seed = model_record_rows_seed(t->s, rows->dim);
    status = get(t, rows->s, &spec, &rows->emb, err);
    rows->spec = spec;
    if (status || !t->shape.wide)
        return status;
    spec = table_specs_rows(rows->s, "wide", tail, 1);
    spec.seed = model_record_rows_seed(t->s, 1);
    spec.init = TABLE_SPEC_INIT_ZERO;
    return get(t, rows->s, &spec, &rows->wide, err);
}

static int open_sparse(struct model_tables *t, get_table *get, struct err *err)
{
    int status = 0;

    t->n_rows = field_tables_n(t->s->fields);
    for (uint32_t g = 0; g < t->n_rows && !status; g++)
        status = open_rows(t, g, get, err);
    return status;
}

static struct ps_pull_section pull_dense(const struct model_tables *t, const struct dense *d,
                                         float *dst)
{
    /* Moments and the stop flag must come as they are. */
    enum codec_id codec =
        d->tensor ? sync_policy_codec(t->sync, CODEC_POLICY_DENSE_PULL) : CODEC_FP32;

    return (struct ps_pull_section){
        .table = d->id, .codec = codec, .n_keys = d->n_blocks, .keys = d->keys, .dst = dst
    };
}

/* One dense table, outside the steps. */
static int read_alone(struct model_tables *t, struct dense *d, struct err *err)
{
    struct ps_pull_section section = pull_dense(t, d, d->values);
    int status = t->store->ops->pull_start(t->store, 0, &section, 1, err);

    return status ? status : t->store->ops->pull_wait(t->store, err);
}

static uint64_t n_dense_floats(const struct model_tables *t)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < t->n_dense; i++)
        n += t->dense[i].spec.n_floats;
    return n;
}

/* Blocks that are longer than topk can number. */
static bool has_layers(const struct model_tables *t)
{
    uint32_t i = 0;

    while (i < t->n_dense && t->dense[i].spec.dim <= TABLE_SPEC_DIM_MAX)
        i++;
    return i < t->n_dense;
}

/* Where the store has no cache, rows go to the device as they come. The compensation of delays asks for the rows
 * themselves. */
static void decode_on_device(struct model_tables *t)
{
    if (t->store->ops->takes_pulled && t->s->device_encode && t->n_rows == 1 &&
        !t->s->meta[0] && !settings_compensates(t->s, false))
        step_buffers_decode(&t->shape);
}

/* The stop counter's value when the run began, maybe in an earlier process. */
static void read_control_start(struct model_tables *t)
{
    struct resume_point *mark = sync_policy_resume_point(t->sync);

    if (!sync_policy_resumes(t->sync))
        mark->control_start = t->control.values[0];
    t->control_start = mark->control_start;
}

/* No codec of first-order weights has feedback. */
static struct device_push_table device_table(const struct model_tables *t, uint32_t gradient,
                                             uint32_t table, enum codec_policy_direction step)
{
    enum codec_id codec;
    bool is_free = settings_codec(t->s, step, &codec);

    return (struct device_push_table){ .gradient = gradient,
                                       .table = table,
                                       .has_feedback =
                                           codec_by_id(codec)->feedback ||
                                           (is_free && step != CODEC_POLICY_WIDE_PUSH) };
}

/* The tables of a push, in the order of its sections (plan_push()). */
static uint32_t list_device_tables(const struct model_tables *t, struct device_push_table *out)
{
    uint32_t n = 0;

    out[n++] = device_table(t, DLRM_ROWS, t->rows[0].emb, CODEC_POLICY_ROWS_PUSH);
    if (t->shape.wide)
        out[n++] = device_table(t, DLRM_WIDE, t->rows[0].wide, CODEC_POLICY_WIDE_PUSH);
    for (uint32_t i = 0; i < t->n_dense; i++, n++) {
        out[n] = device_table(t, DLRM_DENSE + i, t->dense[i].id, CODEC_POLICY_DENSE_PUSH);
        out[n].n_blocks = t->dense[i].n_blocks;
        out[n].has_feedback = out[n].has_feedback && !t->dense[i].tensor->statistic;
    }
    return n;
}

static int open_device_push(struct model_tables *t, struct err *err)
{
    struct device_push_table tables[STEP_BUFFERS_SECTIONS_MAX];
    struct err why = { 0 };
    int status;

    if (!t->s->device_encode || !dlrm_encodes(t->shape.model))
        return 0;
    if (t->n_rows > 1) {
        log_line_info("gradients are encoded on the CPU: fields have several tables (--field)");
        return 0;
    }
    if (settings_changes_gradients(t->s)) {
        log_line_info("gradients are encoded on the CPU: it changes them before (--%s)",
                      settings_changes_gradients(t->s));
        return 0;
    }
    status = device_push_new(t->shape.model, t->store->ops->encoder(t->store), tables,
                             list_device_tables(t, tables), &t->device, &why);
    if (status == -ENOMEM) {
        log_line_info("gradients are encoded on the CPU: %s", why.text);
        return 0;
    }
    if (status)
        return err_set(err, status, "%s", why.text);
    log_line_info("gradients leave the device encoded, and residuals stay there");
    t->shape.encodes = true;
    sync_policy_set_device_encodes(t->sync);
    return 0;
}

static int open_all(const struct settings *s, struct dlrm *model, uint32_t n_numeric,
                    struct param_store *store, get_table *get, struct model_tables **ret,
                    struct err *err)
{
    struct model_tables *t = memory_alloc(sizeof *t);
    int status;

    *t = (struct model_tables){
        .s = s,
        .shape = { .model = model, .dim = settings_dim(s), .wide = settings_has_wide(s) },
        .store = store,
        .rate_factor = 1,
        .n_numeric = n_numeric,
        .has_control = get == make && s->early_stop > 0
    };
    t->has_moments = s->numeric_as == 1 && !s->format[0] && t->n_numeric > 0;
    status = open_sparse(t, get, err);
    if (!status)
        status = open_tensors(t, get, err);
    if (!status && t->has_moments) {
        t->moments.spec = table_specs_dense(t->s, "moments", 2ull * t->n_numeric);
        status = dense_init(t, &t->moments, NULL, get, err);
    }
    if (!status && t->has_control) {
        t->control.spec = table_specs_dense(t->s, "control", STEP_BUFFERS_CONTROL_FLOATS);
        t->control.spec.mode = TABLE_SPEC_MODE_ASYNC;
        status = dense_init(t, &t->control, NULL, get, err);
        if (!status)
            status = read_alone(t, &t->control, err);
    }
    if (!status)
        status = sync_policy_new(s, store, n_dense_floats(t), has_layers(t), get == make,
                                 &t->sync, err);
    if (!status && t->has_control)
        read_control_start(t);
    if (!status && get == make)
        status = open_device_push(t, err);
    if (!status && get == make)
        decode_on_device(t);
    if (!status && get == make && !s->meta[0])
        device_replica_open(&t->replica, s, store, t->rows[0].emb, &t->rows[0].spec, &t->shape);
    if (status) {
        model_tables_free(t);
        return status;
    }
    *ret = t;
    return 0;
}

int model_tables_create(const struct settings *s, struct dlrm *model, uint32_t n_numeric,
                        struct param_store *store, struct model_tables **ret, struct err *err)
{
    return open_all(s, model, n_numeric, store, make, ret, err);
}

int model_tables_find(const struct settings *s, struct dlrm *model, uint32_t n_numeric,
                      struct param_store *store, struct model_tables **ret, struct err *err)
{
    return open_all(s, model, n_numeric, store, find, ret, err);
}

bool model_tables_exist(const struct settings *s, struct param_store *store)
{
    struct table_spec spec = { .dim = settings_dim(s) };
    struct err err;
    uint32_t id;

    snprintf(spec.name, sizeof spec.name, "%.63s/emb", s->job);
    return store->ops->table_find(store, &spec, &id, &err) == 0;
}

void model_tables_free(struct model_tables *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n_dense; i++)
        dense_deinit(&t->dense[i]);
    device_push_free(t->device);
    sync_policy_free(t->sync);
    dense_deinit(&t->moments);
    dense_deinit(&t->control);
    free(t);
}

/* ---- the buffers of a step ---- */

int model_tables_step_init(struct model_tables *t, struct step_buffers *step, struct err *err)
{
    return step_buffers_init(step, &t->shape, err);
}

/* The model's dense array lies there from here on, with the values that it has. */
static void move_dense(struct model_tables *t, float *values, float *grads)
{
    struct dlrm *model = t->shape.model;
    const float *from = dlrm_dense(model);

    dlrm_use(model, values, grads);
    if (dlrm_dense(model) != from)
        memcpy(dlrm_dense(model), from, dlrm_dense_floats(model) * sizeof *from);
}

void model_tables_step_deinit(struct model_tables *t, struct step_buffers *step)
{
    if (step->dense && dlrm_dense(t->shape.model) == step->dense)
        move_dense(t, NULL, NULL);
    step_buffers_deinit(step, &t->shape);
}

struct dlrm_step model_tables_use(struct model_tables *t, struct step_buffers *step)
{
    if (step->has_dense)
        dlrm_use(t->shape.model, step->dense, step->dense_grads);
    else
        move_dense(t, step->dense, step->dense_grads);
    return (struct dlrm_step){ .batch = step->batch,
                               .rows = step->rows,
                               .pulled = step_buffers_pulled(step),
                               .wide = step->wide,
                               .row_grads = step->row_grads,
                               .wide_grads = step->wide_grads,
                               .versions = step->versions,
                               .places = step->places,
                               .number = step->clock,
                               .keeps_dense = !step->has_dense };
}

/* Where the rows of a group begin in an array of all of them. */
static size_t first_float(const struct model_tables *t, const struct batch *b, uint32_t group)
{
    size_t at = 0;

    for (uint32_t g = 0; g < group; g++)
        at += (size_t)(batch_group_start(b, g + 1) - batch_group_start(b, g)) * t->rows[g].dim;
    return at;
}

/* The codec of a group's rows: its fields' own, or the one that the job's tables have now. */
static enum codec_id rows_codec(const struct model_tables *t, uint32_t group,
                                enum codec_policy_direction direction, enum codec_id now)
{
    enum codec_id own, job;

    if (settings_codec(t->rows[group].s, direction, &own))
        return now;
    return settings_codec(t->s, direction, &job) || own != job ? own : now;
}

static uint32_t pull_group(const struct model_tables *t, const struct step_buffers *step,
                           uint32_t group, struct ps_pull_section *out)
{
    const struct batch *b = step->batch;
    const uint32_t first = batch_group_start(b, group),
                   n = batch_group_start(b, group + 1) - first;
    const enum codec_id now = sync_policy_codec(t->sync, CODEC_POLICY_ROWS_PULL);

    out[0] =
        (struct ps_pull_section){ .table = t->rows[group].emb,
                                  .codec = rows_codec(t, group, CODEC_POLICY_ROWS_PULL, now),
                                  .n_keys = n,
                                  .keys = b->unique + first,
                                  .dst = step->rows + first_float(t, b, group),
                                  .versions = step->versions ? step->versions + first : NULL,
                                  .places = step->places ? step->places + first : NULL,
                                  .states = step->states,
                                  .pulled = step->pulled };
    if (!t->shape.wide)
        return 1;
    out[1] =
        (struct ps_pull_section){ .table = t->rows[group].wide,
                                  .codec = sync_policy_codec(t->sync, CODEC_POLICY_WIDE_PULL),
                                  .n_keys = n,
                                  .keys = b->unique + first,
                                  .dst = step->wide + first };
    return 2;
}

static uint32_t pull_rows(const struct model_tables *t, const struct step_buffers *step,
                          struct ps_pull_section *out)
{
    uint32_t n = 0;

    for (uint32_t g = 0; g < t->n_rows; g++)
        n += t->rows[g].has_fields ? pull_group(t, step, g, out + n) : 0;
    return n;
}

static uint32_t pull_all_dense(const struct model_tables *t, struct step_buffers *step,
                               struct ps_pull_section *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n_dense; i++)
        out[n++] = pull_dense(t, &t->dense[i], step->dense + t->dense[i].tensor->at);
    return n;
}

bool model_tables_pulls_overlap(const struct model_tables *t)
{
    return t->store->ops->pull && sync_policy_always_pulls_dense(t->sync);
}

static int pull(struct model_tables *t, const struct step_buffers *step, bool is_step,
                const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    const struct param_store_ops *ops = t->store->ops;
    int status;

    if (is_step && ops->pull)
        return ops->pull(t->store, step->clock, sections, n, err);
    status = (is_step || !ops->pull_for_eval ? ops->pull_start : ops->pull_for_eval)(
        t->store, step->clock, sections, n, err);
    return status ? status : ops->pull_wait(t->store, err);
}

int model_tables_pull(struct model_tables *t, struct step_buffers *step,
                      enum model_tables_want want, struct err *err)
{
    struct ps_pull_section sections[STEP_BUFFERS_SECTIONS_MAX + 1];
    bool is_step = want == MODEL_TABLES_STEP;
    uint32_t n = 0;
    int status = step_buffers_reserve_rows(step, &t->shape, err);

    if (status)
        return status;
    if (is_step && !sync_policy_wants_dense(t->sync, step->clock))
        want = MODEL_TABLES_ROWS;
    if (want & MODEL_TABLES_ROWS)
        n = pull_rows(t, step, sections);
    if (want & MODEL_TABLES_DENSE)
        n += pull_all_dense(t, step, sections + n);
    if (t->has_control && is_step)
        sections[n++] = pull_dense(t, &t->control, step->control);
    step->has_dense = (want & MODEL_TABLES_DENSE) != 0;
    status = pull(t, step, is_step, sections, n, err);
    if (!status && (is_step || step->has_dense))
        sync_policy_pulled(t->sync, step->clock, step->has_dense);
    return status;
}

int model_tables_prefetch(struct model_tables *t, struct step_buffers *step, struct err *err)
{
    int status;

    if (!t->store->ops->prefetch)
        return 0;
    status = step_buffers_reserve_rows(step, &t->shape, err);
    return status ? status
                  : t->store->ops->prefetch(t->store, t->prefetched,
                                            pull_rows(t, step, t->prefetched), err);
}

struct sync_policy *model_tables_sync_policy(const struct model_tables *t)
{
    return t->sync;
}

void model_tables_stats(const struct model_tables *t, struct ps_stats *ret)
{
    sync_policy_stats(t->sync, ret);
    if (t->device)
        device_push_stats(t->device, ret);
}

void model_tables_restart(struct model_tables *t)
{
    sync_policy_reset(t->sync);
}

/* Outside the steps: no tick, no samples. */
static int push_outside(struct model_tables *t, const struct ps_push_section *sections,
                        uint32_t n, struct err *err)
{
    const struct param_store_ops *ops = t->store->ops;
    int status = ops->push(t->store, ops->clock(t->store), 0, false, sections, n, err);

    /* The servers had declared this worker dead; it has joined again. */
    if (status == PS_EFENCED)
        status = ops->push(t->store, ops->resume(t->store), 0, false, sections, n, err);
    return status;
}

static int assign(struct model_tables *t, struct dense *d, struct err *err)
{
    struct ps_push_section section = { .table = d->id,
                                       .op = SECTION_ASSIGN,
                                       .codec = CODEC_FP32,
                                       .n_keys = d->n_blocks,
                                       .keys = d->keys,
                                       .values = d->values };

    return push_outside(t, &section, 1, err);
}

int model_tables_store_moments(struct model_tables *t, const float *mean, const float *std,
                               struct err *err)
{
    if (!t->has_moments)
        return 0;
    memcpy(t->moments.values, mean, t->n_numeric * sizeof *mean);
    memcpy(t->moments.values + t->n_numeric, std, t->n_numeric * sizeof *std);
    return assign(t, &t->moments, err);
}

int model_tables_load_moments(struct model_tables *t, float *ret_mean, float *ret_std,
                              struct err *err)
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

float model_tables_rate_factor(const struct model_tables *t)
{
    return t->rate_factor;
}

int model_tables_set_rate_factor(struct model_tables *t, float factor, struct err *err)
{
    struct ps_push_section sections[SECTIONS_MAX];
    int status;

    for (uint32_t i = 0; i < t->n_rated; i++)
        sections[i] =
            (struct ps_push_section){ .table = t->rated[i].id,
                                      .op = SECTION_RATE,
                                      .steps = section_rate_steps(t->rated[i].base * factor) };
    status = push_outside(t, sections, t->n_rated, err);
    if (!status)
        t->rate_factor = factor;
    return status;
}

int model_tables_set_stop(struct model_tables *t, uint64_t clock, struct err *err)
{
    if (!t->has_control)
        return 0;
    t->control.values[0] = t->control_start + 1;
    t->control.values[1] = (float)(clock >> CONTROL_BITS);
    t->control.values[2] = (float)(clock & ((1u << CONTROL_BITS) - 1));
    return assign(t, &t->control, err);
}

bool model_tables_stopped(const struct model_tables *t, const struct step_buffers *step)
{
    const float *control = step->control;

    return t->has_control && control[0] != t->control_start &&
           step->clock >= ((uint64_t)control[1] << CONTROL_BITS | (uint64_t)control[2]);
}

/* ---- the push of a step ---- */

/* grads: of the group; NULL: the device has them. */
static struct ps_push_section push_rows(const struct model_tables *t, uint32_t table,
                                        enum codec_id codec, const struct batch *batch,
                                        uint32_t group, const float *grads)
{
    const uint32_t first = batch_group_start(batch, group);

    return (struct ps_push_section){ .table = table,
                                     .op = SECTION_GRADIENT,
                                     .codec = codec,
                                     .topk_fraction = t->s->topk,
                                     .n_keys = batch_group_start(batch, group + 1) - first,
                                     .keys = batch->unique + first,
                                     .values = grads };
}

/* Gradients go with the weights that they are of, if the servers are to compensate their delay. */
static void add_weights(const struct model_tables *t, bool dense, const float *weights,
                        struct ps_push_section *section)
{
    if (!settings_compensates(t->s, dense))
        return;
    section->op = SECTION_GRADIENT_AT;
    section->then = weights;
    section->steps = section_delay_steps(settings_delay(t->s));
}

static uint32_t push_group(const struct model_tables *t, const struct step_buffers *step,
                           uint32_t group, struct ps_push_section *out)
{
    const enum codec_id *codecs = step->plan.codecs;
    const struct batch *b = step->batch;
    const struct rows *rows = &t->rows[group];
    const float *grads = step->row_grads ? step->row_grads + first_float(t, b, group) : NULL;
    const float *wide_grads =
        step->wide_grads ? step->wide_grads + batch_group_start(b, group) : NULL;

    out[0] =
        push_rows(t, rows->emb,
                  rows_codec(t, group, CODEC_POLICY_ROWS_PUSH, codecs[CODEC_POLICY_ROWS_PUSH]),
                  b, group, grads);
    add_weights(t, false, step->rows + first_float(t, b, group), &out[0]);
    if (!t->shape.wide)
        return 1;
    out[1] = push_rows(t, rows->wide, codecs[CODEC_POLICY_WIDE_PUSH], b, group, wide_grads);
    add_weights(t, false, step->wide + batch_group_start(b, group), &out[1]);
    return 2;
}

static struct ps_push_section push_dense(const struct model_tables *t, const struct dense *d,
                                         enum codec_id codec, const float *grads)
{
    return (struct ps_push_section){ .table = d->id,
                                     .op = SECTION_GRADIENT,
                                     .codec = d->tensor->statistic ? CODEC_FP32 : codec,
                                     .topk_fraction = t->s->topk,
                                     .n_keys = d->n_blocks,
                                     .keys = d->keys,
                                     .values = grads ? grads + d->tensor->at : NULL };
}

/* Plans the step's codecs and describes its push, once: these sections go to the servers. */
static void plan_push(const struct model_tables *t, struct step_buffers *step)
{
    const enum codec_id *codecs = step->plan.codecs;
    struct ps_push_section *out = step->sections;
    uint32_t n = 0;

    sync_policy_plan(t->sync, &step->plan);
    for (uint32_t g = 0; g < t->n_rows; g++)
        n += t->rows[g].has_fields ? push_group(t, step, g, out + n) : 0;
    for (uint32_t i = 0; i < t->n_dense; i++) {
        const struct dlrm_tensor *tensor = t->dense[i].tensor;

        out[n] =
            push_dense(t, &t->dense[i], codecs[CODEC_POLICY_DENSE_PUSH], step->dense_grads);
        if (!tensor->statistic)
            add_weights(t, true, step->dense + tensor->at, &out[n]);
        n++;
    }
    step->n_sections = n;
}

int model_tables_begin(struct model_tables *t, struct step_buffers *step, struct dlrm_step *ret,
                       struct err *err)
{
    int status;

    *ret = model_tables_use(t, step);
    if (!t->device)
        return 0;
    status = sync_policy_begin(t->sync, err);
    if (!status)
        status = device_push_load(t->device, err);
    if (status)
        return status;
    device_push_copy_deinit(&step->copy);
    plan_push(t, step);
    status = device_push_begin(t->device, &step->device, step->sections, err);
    ret->encoded = step->device.encoded;
    if (!status && t->replica.model) /* the first section is that of rows[0].emb */
        status = device_replica_begin(&t->replica, step, &step->sections[0], ret, err);
    return status;
}

bool model_tables_copies_residuals(const struct model_tables *t,
                                   const struct step_buffers *step)
{
    return t->device && sync_policy_saves_residuals_at(t->sync, step->plan.number);
}

void model_tables_copy_residuals(struct model_tables *t, struct step_buffers *step)
{
    struct err err;

    if (device_push_copy(t->device, &step->copy, &err))
        log_line_warn("%s; residuals are not written this time", err.text);
}

/* The encoder's residuals are the device's copy while they are written. */
static void save_copy(struct model_tables *t, struct device_push_copy *copy)
{
    device_push_swap(t->device, copy);
    sync_policy_save_residuals(t->sync);
    device_push_swap(t->device, copy);
    device_push_copy_deinit(copy);
}

int model_tables_push(struct model_tables *t, struct step_buffers *step, struct err *err)
{
    int status;

    if (!t->device)
        plan_push(t, step);
    status = sync_policy_push(t->sync, step, err);
    if (status)
        return status;
    if (!t->device)
        sync_policy_save_residuals(t->sync);
    else if (step->copy.n)
        save_copy(t, &step->copy);
    return 0;
}

/* With the device's residuals; if they cannot be copied, the sentence says so. */
static int end_device(struct model_tables *t, struct err *err)
{
    struct device_push_copy copy;
    struct err why;
    int status = device_push_copy(t->device, &copy, &why);

    if (status)
        return err_set(err, status,
                       "%.400s; they are lost, but for those in --state-dir of an earlier step",
                       why.text);
    device_push_swap(t->device, &copy);
    status = sync_policy_end(t->sync, err);
    device_push_swap(t->device, &copy);
    device_push_copy_deinit(&copy);
    return status;
}

int model_tables_end(struct model_tables *t, struct err *err)
{
    if (!t)
        return 0;
    if (t->device && device_push_is_loaded(t->device) && sync_policy_saves_residuals(t->sync))
        return end_device(t, err);
    return sync_policy_end(t->sync, err);
}
