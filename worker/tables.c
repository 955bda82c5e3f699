#include "worker/tables.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/mem.h"
#include "worker/tables_spec.h"
#include "worker/tables_state.h"

#define CONTROL_BITS 24 /* of a clock, in one float without loss */

/* How a table is got: tables_create() makes it, tables_find() asks for it. */
typedef int get_table(struct tables *t, struct table_spec *spec, uint32_t *ret_id,
                      struct err *err);

/* A warm-up of nobody's choice is what the table was made with: another number of workers may go on. */
static int make(struct tables *t, struct table_spec *spec, uint32_t *ret_id, struct err *err)
{
    struct table_spec have = *spec;
    struct err unwanted, why;
    int status;

    if (settings_warmup_is_auto(t->s) &&
        t->store->ops->table_find(t->store, &have, ret_id, &unwanted) == 0)
        spec->schedule.warmup_clocks = have.schedule.warmup_clocks;
    status = t->store->ops->table(t->store, spec, ret_id, err);
    if (status == PS_ESPEC) {
        why = *err;
        return err_set(
            err, status,
            "%s: what an earlier run of job \"%s\" has made it with stays; go on with "
            "the same model and training settings, or take another --job",
            why.text, t->s->job);
    }
    return status;
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
    if (spec->n_floats != want.n_floats)
        return err_set(
            err, PS_ESPEC,
            "table %s holds %llu floats, these settings ask for %llu: --dim, --bottom, --top "
            "and the columns must be those of the training",
            want.name, (unsigned long long)spec->n_floats, (unsigned long long)want.n_floats);
    if (spec->kind != want.kind || spec->dim != want.dim)
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

static int dense_init(struct tables *t, struct dense *d, const struct dlrm_tensor *tensor,
                      get_table *get, struct err *err)
{
    int status = get(t, &d->spec, &d->id, err);

    if (status)
        return status;
    d->tensor = tensor;
    d->n_blocks = (uint32_t)spec_n_blocks(&d->spec);
    d->keys = mem_alloc(d->n_blocks * sizeof *d->keys);
    for (uint32_t i = 0; i < d->n_blocks; i++)
        d->keys[i] = i;
    if (!tensor)
        d->values = mem_alloc((size_t)d->n_blocks * d->spec.dim * sizeof *d->values);
    return 0;
}

static int open_tensors(struct tables *t, get_table *get, struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < dlrm_n_tensors(t->shape.model) && !status; i++) {
        struct dense *d = &t->dense[t->n_dense];

        d->spec = tables_spec_tensor(t->s, dlrm_tensor(t->shape.model, i), i);
        status = dense_init(t, d, dlrm_tensor(t->shape.model, i), get, err);
        t->n_dense++;
    }
    return status;
}

static int open_sparse(struct tables *t, get_table *get, struct err *err)
{
    struct table_spec spec = tables_spec_sparse(t->s, "emb", t->shape.dim);
    int status = get(t, &spec, &t->emb, err);

    if (status || !t->shape.wide)
        return status;
    spec = tables_spec_sparse(t->s, "wide", 1);
    spec.init = SPEC_INIT_ZERO;
    return get(t, &spec, &t->wide, err);
}

static struct ps_pull_section ask_dense(const struct tables *t, const struct dense *d,
                                        float *dst)
{
    /* Moments and the stop flag must come as they are. */
    enum codec_id codec = d->tensor ? wire_codec(t->wire, CHOICE_DENSE_PULL) : CODEC_FP32;

    return (struct ps_pull_section){
        .table = d->id, .codec = codec, .n_keys = d->n_blocks, .keys = d->keys, .dst = dst
    };
}

/* One dense table, outside the steps. */
static int read_alone(struct tables *t, struct dense *d, struct err *err)
{
    struct ps_pull_section section = ask_dense(t, d, d->values);
    int status = t->store->ops->pull_start(t->store, 0, &section, 1, err);

    return status ? status : t->store->ops->pull_wait(t->store, err);
}

static uint64_t n_dense_floats(const struct tables *t)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < t->n_dense; i++)
        n += t->dense[i].spec.n_floats;
    return n;
}

/* Rows that the store keeps stay on the device too: more than it keeps would be of no use there. */
static void keep_rows(struct tables *t)
{
    const uint64_t at_most = t->s->row_cache_bytes, n_bytes = t->s->device_cache_bytes;

    if (!t->store->ops->tells_places)
        return;
    if (dlrm_keep_rows(t->shape.model, n_bytes < at_most ? n_bytes : at_most))
        log_warn("--device-cache: the device has no room, each step copies all its rows");
    t->shape.places = dlrm_keeps_rows(t->shape.model);
}

/* What the stop counter was when the run began, which may have been in a process before. */
static void note_control(struct tables *t)
{
    struct bookmark *mark = wire_bookmark(t->wire);

    if (!wire_goes_on(t->wire))
        mark->control_start = t->control.values[0];
    t->control_start = mark->control_start;
}

static int open_all(const struct settings *s, struct dlrm *model, uint32_t n_numeric,
                    struct store *store, get_table *get, struct tables **ret, struct err *err)
{
    struct tables *t = mem_alloc(sizeof *t);
    int status;

    *t = (struct tables){ .s = s,
                          .shape = { .model = model, .dim = s->dim, .wide = s->wide },
                          .store = store,
                          .n_numeric = n_numeric,
                          .has_control = get == make && s->early_stop > 0 };
    t->has_moments = s->numeric_as == 1 && !s->format[0] && t->n_numeric > 0;
    status = open_sparse(t, get, err);
    if (!status)
        status = open_tensors(t, get, err);
    if (!status && t->has_moments) {
        t->moments.spec = tables_spec_dense(t->s, "moments", 2ull * t->n_numeric);
        status = dense_init(t, &t->moments, NULL, get, err);
    }
    if (!status && t->has_control) {
        t->control.spec = tables_spec_dense(t->s, "control", SLOT_CONTROL_FLOATS);
        t->control.spec.mode = SPEC_MODE_ASYNC;
        status = dense_init(t, &t->control, NULL, get, err);
        if (!status)
            status = read_alone(t, &t->control, err);
    }
    if (!status)
        status = wire_new(s, store, n_dense_floats(t), get == make, &t->wire, err);
    if (!status && t->has_control)
        note_control(t);
    if (!status && get == make)
        status = tables_push_open(t, err);
    if (!status && get == make)
        keep_rows(t);
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
    travel_free(t->travel);
    wire_free(t->wire);
    dense_deinit(&t->moments);
    dense_deinit(&t->control);
    free(t);
}

/* ---- slots ---- */

int tables_slot_init(struct tables *t, struct slot *slot, struct err *err)
{
    return slot_init(slot, &t->shape, err);
}

/* The model's dense array lies there from here on, with the values that it has. */
static void move_dense(struct tables *t, float *values, float *grads)
{
    struct dlrm *model = t->shape.model;
    const float *from = dlrm_dense(model);

    dlrm_use(model, values, grads);
    if (dlrm_dense(model) != from)
        memcpy(dlrm_dense(model), from, dlrm_dense_floats(model) * sizeof *from);
}

void tables_slot_deinit(struct tables *t, struct slot *slot)
{
    if (slot->dense && dlrm_dense(t->shape.model) == slot->dense)
        move_dense(t, NULL, NULL);
    slot_deinit(slot, &t->shape);
}

struct dlrm_step tables_use(struct tables *t, struct slot *slot)
{
    if (slot->has_dense)
        dlrm_use(t->shape.model, slot->dense, slot->dense_grads);
    else
        move_dense(t, slot->dense, slot->dense_grads);
    return (struct dlrm_step){ .batch = slot->batch,
                               .rows = slot->rows,
                               .wide = slot->wide,
                               .row_grads = slot->row_grads,
                               .wide_grads = slot->wide_grads,
                               .versions = slot->versions,
                               .places = slot->places,
                               .number = slot->clock,
                               .keeps_dense = !slot->has_dense };
}

static uint32_t ask_rows(const struct tables *t, const struct slot *slot,
                         struct ps_pull_section *out)
{
    const struct batch *b = slot->batch;

    out[0] = (struct ps_pull_section){ .table = t->emb,
                                       .codec = wire_codec(t->wire, CHOICE_ROWS_PULL),
                                       .n_keys = b->n_unique,
                                       .keys = b->unique,
                                       .dst = slot->rows,
                                       .versions = slot->versions,
                                       .places = slot->places };
    if (!t->shape.wide)
        return 1;
    out[1] = (struct ps_pull_section){ .table = t->wide,
                                       .codec = wire_codec(t->wire, CHOICE_WIDE_PULL),
                                       .n_keys = b->n_unique,
                                       .keys = b->unique,
                                       .dst = slot->wide };
    return 2;
}

static uint32_t ask_all_dense(const struct tables *t, struct slot *slot,
                              struct ps_pull_section *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n_dense; i++)
        out[n++] = ask_dense(t, &t->dense[i], slot->dense + t->dense[i].tensor->at);
    return n;
}

int tables_pull(struct tables *t, struct slot *slot, enum tables_want want, struct err *err)
{
    struct ps_pull_section sections[TABLES_DENSE_MAX + 2];
    const struct store_ops *ops = t->store->ops;
    bool is_step = want == TABLES_STEP;
    uint32_t n = 0;
    int status = slot_reserve_rows(slot, &t->shape, err);

    if (status)
        return status;
    if (is_step && !wire_wants_dense(t->wire, slot->clock))
        want = TABLES_ROWS;
    if (want & TABLES_ROWS)
        n = ask_rows(t, slot, sections);
    if (want & TABLES_DENSE)
        n += ask_all_dense(t, slot, sections + n);
    if (t->has_control && is_step)
        sections[n++] = ask_dense(t, &t->control, slot->control);
    slot->has_dense = (want & TABLES_DENSE) != 0;
    status = (is_step || !ops->pull_aside ? ops->pull_start : ops->pull_aside)(
        t->store, slot->clock, sections, n, err);
    if (!status)
        status = ops->pull_wait(t->store, err);
    if (!status && (is_step || slot->has_dense))
        wire_pulled(t->wire, slot->clock, slot->has_dense);
    return status;
}

int tables_ahead(struct tables *t, struct slot *slot, struct err *err)
{
    int status;

    if (!t->store->ops->ahead)
        return 0;
    status = slot_reserve_rows(slot, &t->shape, err);
    return status ? status
                  : t->store->ops->ahead(t->store, t->ahead, ask_rows(t, slot, t->ahead), err);
}

struct wire *tables_wire(const struct tables *t)
{
    return t->wire;
}

void tables_stats(const struct tables *t, struct ps_stats *ret)
{
    wire_stats(t->wire, ret);
    if (t->travel)
        travel_stats(t->travel, ret);
}

void tables_restart(struct tables *t)
{
    wire_forget(t->wire);
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

    /* This worker had been declared dead, and by now it has joined again. */
    if (status == PS_EFENCED)
        status = t->store->ops->push(t->store, t->store->ops->resume(t->store), 0, false,
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

bool tables_stopped(const struct tables *t, const struct slot *slot)
{
    const float *control = slot->control;

    return t->has_control && control[0] != t->control_start &&
           slot->clock >= ((uint64_t)control[1] << CONTROL_BITS | (uint64_t)control[2]);
}
