#include "worker/device_replica.h"

#include <errno.h>
#include <stdlib.h>

#include "common/log_line.h"
#include "common/memory.h"
#include "worker/cache/device_rows.h"
#include "worker/field_tables.h"

_Static_assert(DLRM_NONE == DEVICE_ROWS_NO_PLACE, "places go to the device as they come");

static bool rule_of(enum table_spec_optim optim, enum row_update_rule *ret)
{
    static const struct {
        enum table_spec_optim optim;
        enum row_update_rule rule;
    } rules[] = {
        { TABLE_SPEC_SGD, ROW_UPDATE_SGD },
        { TABLE_SPEC_MOMENTUM, ROW_UPDATE_MOMENTUM },
        { TABLE_SPEC_ADAGRAD, ROW_UPDATE_ADAGRAD },
        { TABLE_SPEC_ROWWISE_ADAGRAD, ROW_UPDATE_ROWWISE },
        { TABLE_SPEC_ADAM, ROW_UPDATE_ADAM },
    };

    for (size_t i = 0; i < COUNT_OF(rules); i++)
        if (rules[i].optim == optim) {
            *ret = rules[i].rule;
            return true;
        }
    return false;
}

/* There would be a cache of all rows, which a device could have in its place. */
static bool is_expected(const struct settings *s, const struct param_store *store,
                        const struct dlrm *model)
{
    const bool is_cached = store->ops->replicate || (settings_periods_are_set(s) && !s->local &&
                                                     s->workers == 1 && s->row_cache_bytes);

    return is_cached && s->device_cache_bytes && dlrm_encodes(model);
}

/* Why a device does not get the rows; NULL: it may. */
static const char *why_not(const struct settings *s, const struct param_store *store,
                           const struct table_spec *spec,
                           const struct step_buffers_shape *shape,
                           enum row_update_rule *ret_rule)
{
    enum codec_id codec;

    if (!store->ops->replicate)
        return "steps between pushes change them (--local-steps, --period, --row-period)";
    if (field_tables_n(s->fields) > 1) /* a place is one of a table */
        return "fields have several tables (--field, --init auto)";
    if (!shape->encodes)
        return "the device does not encode their gradients (--device-encode)";
    if (!device_rows_suits(spec) || !rule_of(spec->optim, ret_rule))
        return "the device knows sgd, momentum, adagrad, rowwise_adagrad and adam, without "
               "--clip-norm, --row-decay and 16-bit rows";
    if (settings_codec(s, CODEC_POLICY_ROWS_PULL, &codec) || codec != CODEC_FP32)
        return "rows are pulled in another codec than fp32 (--pull-codec)";
    return NULL;
}

static void log_why(const char *why)
{
    log_line_info("--device-cache: rows stay in the row cache: %s", why);
}

/* Up to --row-cache, too: what the device holds is held in its place. */
static size_t bytes_of(const struct settings *s)
{
    return s->device_cache_bytes < s->row_cache_bytes ? s->device_cache_bytes
                                                      : s->row_cache_bytes;
}

static bool reserve(const struct settings *s, struct dlrm *model, enum row_update_rule rule,
                    uint32_t n_states)
{
    const struct dlrm_replica replica = { .rule = rule,
                                          .n_states = n_states,
                                          .n_bytes = bytes_of(s) };

    if (!dlrm_replicate_rows(model, &replica)) {
        if (!dlrm_n_places(model))
            log_why("the device has no place for one (--device-cache, --row-cache)");
        return dlrm_n_places(model) > 0;
    }
    log_line_warn("--device-cache: the device has no space, rows stay in the row cache");
    return false;
}

/* The rows that --reuse-clocks reuses stay on the device, too. A row that decays has other weights although its version
 * is the same. */
static void keep_reused(const struct settings *s, struct step_buffers_shape *shape)
{
    if (s->row_decay > 0)
        return;
    if (dlrm_keep_rows(shape->model, bytes_of(s)))
        log_line_warn("--device-cache: the device has no space, each step copies all its rows");
    shape->places = dlrm_keeps_rows(shape->model);
}

void device_replica_open(struct device_replica *r, const struct settings *s,
                         struct param_store *store, uint32_t table,
                         const struct table_spec *spec, struct step_buffers_shape *shape)
{
    const uint32_t n_states = table_spec_state_floats(spec);
    enum row_update_rule rule;
    const char *why;

    if (store->ops->has_places && field_tables_n(s->fields) == 1)
        keep_reused(s, shape);
    if (!is_expected(s, store, shape->model))
        return;
    why = why_not(s, store, spec, shape, &rule);
    if (why) {
        log_why(why);
        return;
    }
    if (!reserve(s, shape->model, rule, n_states))
        return;
    if (!store->ops->replicate(store, table, dlrm_n_places(shape->model))) {
        log_why("it is off, or does not have them");
        dlrm_release_rows(shape->model);
        return;
    }
    *r = (struct device_replica){ .model = shape->model,
                                  .store = store,
                                  .table = table,
                                  .row_bytes =
                                      (uint32_t)((spec->dim + n_states) * sizeof(float)) };
    shape->places = true;
    shape->n_states = n_states;
    log_line_info(
        "the device has the rows with their optimizer's states: up to %u rows of %u bytes",
        dlrm_n_places(shape->model), r->row_bytes);
}

static int reserve_places(struct step_buffers *step, uint32_t n, struct err *err)
{
    if (step->update_places && n <= step->update_cap)
        return 0;
    free(step->update_places);
    step->update_cap = n + n / 2 + 1;
    step->update_places = memory_try_alloc(step->update_cap * sizeof *step->update_places);
    return step->update_places ? 0 : err_set(err, -ENOMEM, "no memory for %u rows' places", n);
}

int device_replica_begin(const struct device_replica *r, struct step_buffers *step,
                         const struct ps_push_section *section, struct dlrm_step *ret,
                         struct err *err)
{
    struct device_rows_step change = {
        .table = r->table, .clock = step->clock, .n = section->n_keys, .keys = section->keys
    };
    const int status = reserve_places(step, change.n, err);

    if (status)
        return status;
    change.places = step->update_places;
    r->store->ops->begin_update(r->store, &change);
    step->update = (struct dlrm_row_update){
        .places = step->update_places,
        .factors = { .rate = change.rate,
                     .epsilon = change.epsilon,
                     .weight_decay = change.weight_decay,
                     .beta1 = change.beta1,
                     .rest1 = change.rest1,
                     .beta2 = change.beta2,
                     .rest2 = change.rest2,
                     .root_scale = change.root_scale },
    };
    ret->states = step->states;
    ret->update = &step->update;
    return 0;
}
