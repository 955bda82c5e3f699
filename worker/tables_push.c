/* The tables of a run as a step pushes them (tables.h): as floats, or as a device has encoded them. */
#include <errno.h>

#include "common/log.h"
#include "proto/codec_catalog.h"
#include "worker/settings_wire.h"
#include "worker/tables.h"
#include "worker/tables_state.h"

/* No codec of first-order weights has feedback. */
static struct travel_table travels(const struct tables *t, uint32_t flow, uint32_t table,
                                   enum choice_slot slot)
{
    enum codec_id codec;
    bool is_free = settings_wire_codec(t->s, slot, &codec);

    return (struct travel_table){ .flow = flow,
                                  .table = table,
                                  .may_owe = codec_by_id(codec)->feedback ||
                                             (is_free && slot != CHOICE_WIDE_PUSH) };
}

/* The tables of a push, in the order of its sections (tell_all()). */
static uint32_t list_travels(const struct tables *t, struct travel_table *out)
{
    uint32_t n = 0;

    out[n++] = travels(t, DLRM_ROWS, t->emb, CHOICE_ROWS_PUSH);
    if (t->shape.wide)
        out[n++] = travels(t, DLRM_WIDE, t->wide, CHOICE_WIDE_PUSH);
    for (uint32_t i = 0; i < t->n_dense; i++, n++) {
        out[n] = travels(t, DLRM_DENSE + i, t->dense[i].id, CHOICE_DENSE_PUSH);
        out[n].n_blocks = t->dense[i].n_blocks;
        out[n].may_owe = out[n].may_owe && !t->dense[i].tensor->statistic;
    }
    return n;
}

int tables_push_open(struct tables *t, struct err *err)
{
    struct travel_table tables[TABLES_DENSE_MAX + 2];
    struct err why = { 0 };
    int status;

    if (!t->s->device_encode || !dlrm_encodes(t->shape.model))
        return 0;
    status = travel_new(t->shape.model, t->store->ops->encoder(t->store), tables,
                        list_travels(t, tables), &t->travel, &why);
    if (status == -ENOMEM) {
        log_info("gradients are encoded on the CPU: %s", why.text);
        return 0;
    }
    if (status)
        return err_set(err, status, "%s", why.text);
    log_info("gradients leave the device encoded, and what is owed stays there");
    t->shape.encodes = true;
    wire_encode_elsewhere(t->wire);
    return 0;
}

static struct ps_push_section tell(const struct tables *t, uint32_t table, enum codec_id codec)
{
    return (struct ps_push_section){
        .table = table, .op = SECTION_GRADIENT, .codec = codec, .topk_fraction = t->s->topk
    };
}

static struct ps_push_section tell_rows(const struct tables *t, uint32_t table,
                                        enum codec_id codec, const struct batch *batch,
                                        const float *grads)
{
    struct ps_push_section section = tell(t, table, codec);

    section.n_keys = batch->n_unique;
    section.keys = batch->unique;
    section.values = grads;
    return section;
}

static struct ps_push_section tell_dense(const struct tables *t, const struct dense *d,
                                         enum codec_id codec, const struct slot *slot)
{
    struct ps_push_section section = tell(t, d->id, d->tensor->statistic ? CODEC_FP32 : codec);

    section.n_keys = d->n_blocks;
    section.keys = d->keys;
    if (slot->dense_grads)
        section.values = slot->dense_grads + d->tensor->at;
    return section;
}

/* A step's push. */
static uint32_t tell_all(const struct tables *t, const struct slot *slot,
                         const struct codecs_plan *plan, struct ps_push_section *out)
{
    uint32_t n = 0;

    out[n++] =
        tell_rows(t, t->emb, plan->codecs[CHOICE_ROWS_PUSH], slot->batch, slot->row_grads);
    if (t->shape.wide)
        out[n++] = tell_rows(t, t->wide, plan->codecs[CHOICE_WIDE_PUSH], slot->batch,
                             slot->wide_grads);
    for (uint32_t i = 0; i < t->n_dense; i++)
        out[n++] = tell_dense(t, &t->dense[i], plan->codecs[CHOICE_DENSE_PUSH], slot);
    return n;
}

int tables_begin(struct tables *t, struct slot *slot, struct dlrm_step *ret, struct err *err)
{
    struct ps_push_section sections[TABLES_DENSE_MAX + 2];
    int status;

    *ret = tables_use(t, slot);
    if (!t->travel)
        return 0;
    status = wire_begin(t->wire, err);
    if (!status)
        status = travel_load(t->travel, err);
    if (status)
        return status;
    travel_copy_deinit(&slot->copy);
    wire_plan(t->wire, &slot->plan);
    (void)tell_all(t, slot, &slot->plan, sections);
    status = travel_begin(t->travel, &slot->travel, sections, err);
    ret->travel = slot->travel.flows;
    return status;
}

bool tables_keeps(const struct tables *t, const struct slot *slot)
{
    return t->travel && wire_keeps_at(t->wire, slot->plan.number);
}

void tables_keep(struct tables *t, struct slot *slot)
{
    struct err err;

    if (travel_copy(t->travel, &slot->copy, &err))
        log_warn("%s; it is not written this time", err.text);
}

/* With a copy of what the device keeps in its place. */
static void keep_copy(struct tables *t, struct travel_copy *copy)
{
    travel_swap(t->travel, copy);
    wire_keep(t->wire);
    travel_swap(t->travel, copy);
    travel_copy_deinit(copy);
}

int tables_push(struct tables *t, struct slot *slot, struct err *err)
{
    struct ps_push_section sections[TABLES_DENSE_MAX + 2];
    struct codecs_plan plan = slot->plan;
    uint32_t n;
    int status;

    if (!t->travel)
        wire_plan(t->wire, &plan);
    n = tell_all(t, slot, &plan, sections);
    if (t->travel)
        travel_sections(&slot->travel, sections);
    status = wire_push(t->wire, slot, &plan, sections, n, err);
    if (status)
        return status;
    if (!t->travel)
        wire_keep(t->wire);
    else if (slot->copy.n)
        keep_copy(t, &slot->copy);
    return 0;
}

/* With what the device has of it, or what is said if it cannot be had. */
static int end_travel(struct tables *t, struct err *err)
{
    struct travel_copy copy;
    struct err why;
    int status = travel_copy(t->travel, &copy, &why);

    if (status)
        return err_set(err, status,
                       "%.400s; it is lost, but for what --state-dir has of an earlier step",
                       why.text);
    travel_swap(t->travel, &copy);
    status = wire_end(t->wire, err);
    travel_swap(t->travel, &copy);
    travel_copy_deinit(&copy);
    return status;
}

int tables_end(struct tables *t, struct err *err)
{
    if (!t)
        return 0;
    if (t->travel && travel_is_loaded(t->travel) && wire_keeps(t->wire))
        return end_travel(t, err);
    return wire_end(t->wire, err);
}
