#include "worker/tables_spec.h"

#include <stdio.h>

#include "common/hash.h"

static void name_table(const struct settings *s, struct table_spec *spec, const char *tail)
{
    /* settings_check() holds a job's name under 64 characters. */
    snprintf(spec->name, sizeof spec->name, "%.63s/%s", s->job, tail);
}

struct table_spec tables_spec_sparse(const struct settings *s, const char *name, uint32_t dim)
{
    struct table_spec spec = {
        .kind = SPEC_SPARSE,
        .dim = dim,
        .seed = hash_mix2(s->seed, dim),
        .init = (enum spec_init)s->init,
        .init_scale = s->init_scale,
        .optim = settings_optim(s, false),
        .params = settings_optim_params(s, false),
        .schedule = settings_schedule(s),
        .clip_norm = s->clip_norm,
        .mode = (enum spec_mode)s->embedding_mode,
        .bound = s->embedding_mode == SPEC_MODE_SSP ? s->embedding_staleness : 0,
        .storage = (enum spec_storage)s->table_storage,
        .limits = settings_limits(s),
    };

    name_table(s, &spec, name);
    return spec;
}

struct table_spec tables_spec_dense(const struct settings *s, const char *name,
                                    uint64_t n_floats)
{
    struct table_spec spec = {
        .kind = SPEC_DENSE,
        .dim = n_floats < SPEC_DENSE_BLOCK ? (uint32_t)n_floats : SPEC_DENSE_BLOCK,
        .n_floats = n_floats,
        .optim = SPEC_SGD,
        .params = spec_optim_defaults(SPEC_SGD),
    };

    name_table(s, &spec, name);
    spec.params.learning_rate = 1;
    spec.params.weight_decay = 0;
    return spec;
}

struct table_spec tables_spec_tensor(const struct settings *s, const struct dlrm_tensor *tensor,
                                     uint32_t i)
{
    struct table_spec spec = tables_spec_dense(s, tensor->name, tensor->n_floats);

    spec.seed = hash_mix2(s->seed, UINT64_C(0x64656e7365) + i);
    spec.init = tensor->init;
    spec.init_scale = tensor->init_scale;
    spec.mode = (enum spec_mode)s->dense_mode;
    spec.bound = s->dense_mode == SPEC_MODE_SSP ? s->dense_staleness : 0;
    if (!tensor->statistic) {
        spec.optim = settings_optim(s, true);
        spec.params = settings_optim_params(s, true);
        spec.schedule = settings_schedule(s);
    }
    return spec;
}
