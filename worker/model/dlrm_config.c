#include "worker/model/dlrm_config.h"

#include <math.h>

#include "proto/table_spec.h"

static const struct {
    const char *name;
    uint32_t parts;
} kinds[MODEL_KINDS] = {
    [MODEL_DLRM] = { "dlrm", MODEL_EMBEDDINGS | MODEL_BOTTOM | MODEL_INTERACTION | MODEL_TOP },
    [MODEL_LR] = { "lr", MODEL_LINEAR },
    [MODEL_FM] = { "fm", MODEL_EMBEDDINGS | MODEL_LINEAR | MODEL_FIRST_ORDER },
    [MODEL_WIDE_DEEP] = { "wide_deep",
                          MODEL_EMBEDDINGS | MODEL_TOP | MODEL_LINEAR | MODEL_FIRST_ORDER },
    [MODEL_DEEPFM] = { "deepfm",
                       MODEL_EMBEDDINGS | MODEL_TOP | MODEL_LINEAR | MODEL_FIRST_ORDER },
    [MODEL_DCNV2] = { "dcnv2", MODEL_EMBEDDINGS | MODEL_TOP | MODEL_CROSS },
};

uint32_t dlrm_config_parts(enum model_kind kind)
{
    return kinds[kind].parts;
}

const char *dlrm_config_kind_name(enum model_kind kind)
{
    return kinds[kind].name;
}

static bool has(const struct dlrm_config *config, enum model_part part)
{
    return (dlrm_config_parts(config->kind) & part) != 0;
}

uint32_t dlrm_config_n_tasks(const struct dlrm_config *config)
{
    return config->n_tasks ? config->n_tasks : 1;
}

float dlrm_config_task_weight(const struct dlrm_config *config, uint32_t task)
{
    return config->n_tasks > 1 ? config->task_weights[task] : 1;
}

uint32_t dlrm_config_n_inputs(const struct dlrm_config *config)
{
    return config->n_numeric * (config->n_hats ? number_hats_width(config->n_hats) : 1);
}

uint32_t dlrm_config_n_projections(const struct dlrm_config *config)
{
    uint32_t n = 0;

    for (uint32_t g = 0; g < config->n_groups; g++)
        n += config->group_dims[g] != config->dim;
    return n;
}

uint32_t dlrm_config_row_width(const struct dlrm_config *config)
{
    uint32_t most = config->dim;

    for (uint32_t g = 0; g < config->n_groups; g++)
        most = config->group_dims[g] > most ? config->group_dims[g] : most;
    return most;
}

size_t dlrm_config_row_floats(const struct dlrm_config *config, const struct batch *batch)
{
    size_t n = 0;

    if (!dlrm_config_n_projections(config))
        return (size_t)batch->n_unique * config->dim;
    for (uint32_t g = 0; g < config->n_groups; g++)
        n += (size_t)(batch_group_start(batch, g + 1) - batch_group_start(batch, g)) *
             config->group_dims[g];
    return n;
}

uint32_t dlrm_config_n_vectors(const struct dlrm_config *config)
{
    return config->n_fields + (config->n_numeric && has(config, MODEL_BOTTOM) ? 1 : 0);
}

uint64_t dlrm_config_r_width(const struct dlrm_config *config)
{
    const uint64_t n = dlrm_config_n_vectors(config);

    if (!has(config, MODEL_INTERACTION))
        return n * config->dim + dlrm_config_n_inputs(config);
    if (config->concat || !config->n_fields)
        return n * config->dim;
    return (config->n_numeric ? config->dim : 0) +
           (config->self_interaction ? n * (n + 1) : n * (n - 1)) / 2;
}

static int check_range(const char *name, uint32_t found, uint32_t min, uint32_t max,
                       struct err *err)
{
    if (found >= min && found <= max)
        return 0;
    return err_set(err, PS_ESETTING, "model: %s is %u, expected %u to %u", name, found, min,
                   max);
}

static int check_rate(const char *name, float found, float end, struct err *err)
{
    if (found >= 0 && found < end)
        return 0;
    return err_set(err, PS_ESETTING, "model: %s is %g, expected a number from 0 to below %g",
                   name, (double)found, (double)end);
}

/* Tensors are counted in 32 bits, and so are OpenBLAS's indices. */
static int check_layers(const char *name, const uint32_t *widths, uint32_t n_hidden,
                        uint64_t in, uint32_t out, struct err *err)
{
    if (n_hidden > DLRM_LAYERS_MAX)
        return err_set(err, PS_ESETTING,
                       "model: the %s MLP has %u hidden layers, expected at most %u", name,
                       n_hidden, DLRM_LAYERS_MAX);
    for (uint32_t i = 0; i <= n_hidden; i++) {
        const uint32_t width = i < n_hidden ? widths[i] : out;

        if (i < n_hidden && (!width || width > DLRM_WIDTH_MAX))
            return err_set(err, PS_ESETTING,
                           "model: hidden layer %u of the %s MLP is %u wide, expected 1 to %u",
                           i + 1, name, width, DLRM_WIDTH_MAX);
        if (in * width > INT32_MAX)
            return err_set(
                err, PS_ESETTING,
                "model: layer %u of the %s MLP has %llu x %u weights, expected at most %d",
                i + 1, name, (unsigned long long)in, width, INT32_MAX);
        in = width;
    }
    return 0;
}

static int check_vectors(const struct dlrm_config *config, struct err *err)
{
    if (!config->n_numeric && !config->n_fields)
        return err_set(
            err, PS_ESETTING,
            "model: there are neither numeric nor categorical columns to learn from");
    if (has(config, MODEL_TOP) && !dlrm_config_r_width(config))
        return err_set(
            err, PS_ESETTING,
            "model: dot interaction of a single field has no pairs; choose interaction "
            "concat or self interaction, or add columns");
    return 0;
}

static int check_kind(const struct dlrm_config *config, struct err *err)
{
    const char *name = dlrm_config_kind_name(config->kind);

    if (has(config, MODEL_FIRST_ORDER) && !config->wide)
        return err_set(err, PS_ESETTING, "model: %s has first-order weights: wide is missing",
                       name);
    if (!has(config, MODEL_EMBEDDINGS) && (config->wide || config->dim != 1))
        return err_set(err, PS_ESETTING,
                       "model: the rows of %s are its first-order weights: dim is 1, and there "
                       "are no others",
                       name);
    return 0;
}

static int check_cross(const struct dlrm_config *config, struct err *err)
{
    const uint64_t width = dlrm_config_r_width(config);
    const uint64_t rank = config->cross_rank ? config->cross_rank : width;
    int status =
        check_range("the number of cross layers", config->n_cross, 1, DLRM_CROSS_MAX, err);

    if (!status)
        status = check_range("the rank of the cross layers", config->cross_rank, 0,
                             DLRM_WIDTH_MAX, err);
    if (status || width * rank <= INT32_MAX)
        return status;
    return err_set(
        err, PS_ESETTING,
        "model: a cross layer has %llu x %llu weights, expected at most %d; choose a "
        "smaller cross rank or dim",
        (unsigned long long)width, (unsigned long long)rank, INT32_MAX);
}

/* Several labels share all but the top MLP's last layer. */
static int check_tasks(const struct dlrm_config *config, struct err *err)
{
    int status = check_range("the number of labels", config->n_tasks, 0, DLRM_TASKS_MAX, err);

    if (status || config->n_tasks <= 1)
        return status;
    if (!has(config, MODEL_TOP) || has(config, MODEL_LINEAR) || config->wide)
        return err_set(
            err, PS_ESETTING,
            "model: several labels need logits that a top MLP alone makes: dlrm or dcnv2, "
            "without wide");
    for (uint32_t i = 0; i < config->n_tasks && !status; i++)
        if (!(config->task_weights[i] > 0))
            status = err_set(err, PS_ESETTING,
                             "model: the loss weight of label %u is %g, expected above 0",
                             i + 1, (double)config->task_weights[i]);
        else
            status = check_rate("a loss weight", config->task_weights[i], INFINITY, err);
    return status;
}

static bool has_mean(const struct dlrm_config *config, uint32_t field)
{
    return field < DLRM_MEANS_MAX && config->means[field / 64] >> field % 64 & 1;
}

bool dlrm_config_means(const struct dlrm_config *config, uint32_t from, uint32_t *ret_first,
                       uint32_t *ret_end)
{
    while (from < config->n_fields && !has_mean(config, from))
        from++;
    *ret_first = from;
    while (from < config->n_fields && has_mean(config, from))
        from++;
    *ret_end = from;
    return *ret_end > *ret_first;
}

static int check_groups(const struct dlrm_config *config, struct err *err)
{
    int status =
        check_range("the number of tables", config->n_groups, 0, BATCH_GROUPS_MAX, err);

    for (uint32_t g = 0; g < config->n_groups && !status; g++)
        status =
            check_range("dim of a field", config->group_dims[g], 1, TABLE_SPEC_DIM_MAX, err);
    if (!status && dlrm_config_n_projections(config) > DLRM_PROJECTIONS_MAX)
        status =
            err_set(err, PS_ESETTING,
                    "model: %u tables have rows of another dim than the model's %u, expected "
                    "at most %u",
                    dlrm_config_n_projections(config), config->dim, DLRM_PROJECTIONS_MAX);
    return status;
}

int dlrm_config_check(const struct dlrm_config *config, struct err *err)
{
    int status = check_range("batch", config->batch_max, 1, DLRM_BATCH_MAX, err);

    if (!status)
        status = check_range("dim", config->dim, 1, TABLE_SPEC_DIM_MAX, err);
    if (!status)
        status = check_range("the number of numeric columns", config->n_numeric, 0,
                             DLRM_WIDTH_MAX, err);
    if (!status)
        status = check_range("the number of hats of a numeric column", config->n_hats, 0,
                             DLRM_HATS_MAX, err);
    if (!status)
        status = check_range("the number of categorical fields", config->n_fields, 0,
                             DLRM_WIDTH_MAX, err);
    if (!status)
        status =
            check_range("the number of threads", config->n_threads, 0, DLRM_THREADS_MAX, err);
    if (!status)
        status =
            check_range("the number of devices", config->n_devices, 0, DLRM_DEVICES_MAX, err);
    if (!status)
        status = check_rate("dropout", config->dropout, 1, err);
    if (!status)
        status = check_rate("l2_dense", config->l2_dense, INFINITY, err);
    if (!status)
        status = check_rate("l2_rows", config->l2_rows, INFINITY, err);
    if (!status)
        status = check_rate("clip_norm", config->clip_norm, INFINITY, err);
    if (!status)
        status = check_groups(config, err);
    if (!status)
        status = check_kind(config, err);
    if (!status)
        status = check_vectors(config, err);
    if (!status && config->n_numeric && has(config, MODEL_BOTTOM))
        status = check_layers("bottom", config->bottom, config->n_bottom,
                              dlrm_config_n_inputs(config), config->dim, err);
    if (!status)
        status = check_tasks(config, err);
    if (!status && has(config, MODEL_CROSS))
        status = check_cross(config, err);
    if (!status && has(config, MODEL_TOP))
        status = check_layers("top", config->top, config->n_top, dlrm_config_r_width(config),
                              dlrm_config_n_tasks(config), err);
    return status;
}
