#include "worker/table_specs.h"

#include <stdio.h>

#include "common/hash.h"
#include "worker/param_store_periodic.h"

static void name_table(const struct settings *s, struct table_spec *spec, const char *name,
                       const char *tail)
{
    /* settings_check() holds a job's name under 64 characters, field_tables.c a tail under 60. */
    snprintf(spec->name, sizeof spec->name, "%.63s/%s%s", s->job, name, tail);
}

struct table_spec table_specs_rows(const struct settings *s, const char *name, const char *tail,
                                   uint32_t dim)
{
    struct table_spec spec = {
        .kind = TABLE_SPEC_SPARSE,
        .dim = dim,
        .init = settings_init(s),
        .init_scale = settings_init_scale(s),
        .optim = settings_optim(s, false),
        .params = settings_optim_params(s, false, settings_optim(s, false)),
        .schedule = settings_schedule(s),
        .clip_norm = s->clip_norm,
        .mode = (enum table_spec_mode)s->embedding_mode,
        .bound = s->embedding_mode == TABLE_SPEC_MODE_SSP ? s->embedding_staleness : 0,
        .storage = (enum table_spec_storage)s->table_storage,
        .limits = settings_limits(s),
        .row_decay = s->row_decay,
    };

    name_table(s, &spec, name, tail);
    return spec;
}

struct table_spec table_specs_dense(const struct settings *s, const char *name,
                                    uint64_t n_floats)
{
    struct table_spec spec = {
        .kind = TABLE_SPEC_DENSE,
        .dim = n_floats < TABLE_SPEC_DENSE_BLOCK ? (uint32_t)n_floats : TABLE_SPEC_DENSE_BLOCK,
        .n_floats = n_floats,
        .optim = TABLE_SPEC_SGD,
        .params = table_spec_optim_defaults(TABLE_SPEC_SGD),
    };

    name_table(s, &spec, name, "");
    spec.params.learning_rate = 1;
    spec.params.weight_decay = 0;
    return spec;
}

struct table_spec table_specs_tensor(const struct settings *s, const struct dlrm_tensor *tensor,
                                     uint32_t i)
{
    struct table_spec spec = table_specs_dense(s, tensor->name, tensor->n_floats);

    spec.dim = tensor->block;
    spec.seed = hash_mix2(settings_seed(s, SEED_INIT), UINT64_C(0x64656e7365) + i);
    spec.init = tensor->init;
    spec.init_scale = tensor->init_scale;
    spec.mode = (enum table_spec_mode)s->dense_mode;
    spec.bound = s->dense_mode == TABLE_SPEC_MODE_SSP ? s->dense_staleness : 0;
    if (!tensor->statistic) {
        spec.optim = settings_optim(s, true);
        spec.params = settings_optim_params(s, true, spec.optim);
        spec.schedule = settings_dense_schedule(s, spec.optim);
    }
    return spec;
}

bool table_specs_fit(const struct table_spec *have, const struct table_spec *want)
{
    if (have->kind != want->kind)
        return false;
    if (have->kind == TABLE_SPEC_SPARSE)
        return have->dim == want->dim;
    return have->dim == want->n_floats ||
           (have->dim == TABLE_SPEC_DENSE_BLOCK && want->n_floats > TABLE_SPEC_DENSE_BLOCK);
}

/* A layer is one block or several: as the table was made, by another optimizer or an earlier psworker. */
static void keep_block(const struct table_spec *have, struct table_spec *spec)
{
    if (table_specs_fit(have, spec) &&
        (have->dim <= TABLE_SPEC_DIM_MAX || table_spec_takes_layers(spec->optim)))
        spec->dim = have->dim;
}

void table_specs_keep(const struct settings *s, const struct table_spec *have,
                      struct table_spec *spec)
{
    const bool dense = spec->kind == TABLE_SPEC_DENSE;

    if (settings_warmup_is_auto(s))
        spec->schedule.warmup_clocks = have->schedule.warmup_clocks;
    if (!dense && !(s->init_scale > 0))
        spec->init_scale = have->init_scale;
    if (dense && settings_dense_optim_is_auto(s) && !param_store_periodic_merges(have)) {
        spec->optim = have->optim;
        spec->params = settings_optim_params(s, true, have->optim);
    }
    if (settings_rate_is_auto(s, dense, spec->optim) &&
        have->schedule.decay != TABLE_SPEC_DECAY_PLATEAU)
        spec->params.learning_rate = have->params.learning_rate;
    if (dense)
        keep_block(have, spec);
}

int table_specs_check_layers(const struct settings *s, struct dlrm *model,
                             struct param_store *store, struct err *err)
{
    for (uint32_t i = 0; i < dlrm_n_tensors(model); i++) {
        struct table_spec spec = table_specs_tensor(s, dlrm_tensor(model, i), i), have = spec;
        struct err unwanted;
        uint32_t id;

        if (spec.dim > TABLE_SPEC_LAYER_MAX &&
            store->ops->table_find(store, &have, &id, &unwanted) != 0)
            return err_set(err, PS_ESETTING,
                           "--dense-optimizer %s takes each layer whole: %s has %llu floats, "
                           "%u at most",
                           table_spec_optim_name(spec.optim), dlrm_tensor(model, i)->name,
                           (unsigned long long)spec.n_floats, TABLE_SPEC_LAYER_MAX);
    }
    return 0;
}
