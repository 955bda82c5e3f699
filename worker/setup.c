#include "worker/setup.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/log_line.h"
#include "common/number.h"
#include "worker/client/push_journal.h"
#include "worker/cuda_plugin.h"
#include "worker/data/cardinality.h"
#include "worker/data/moments.h"
#include "worker/param_store_delta.h"
#include "worker/param_store_exact_cache.h"
#include "worker/param_store_periodic.h"
#include "worker/param_store_stale_cache.h"
#include "worker/pipeline.h"
#include "worker/resume_point.h"

_Static_assert(DLRM_MEANS_MAX >= LINE_PARSER_COLUMNS_MAX, "every field can have a mean");

#define MOMENTS_ROWS 100000u
#define CARDINALITY_ROWS 1000000u
#define READ_FLOATS_MIN (1u << 20) /* of a batch's rows, as if there was one a sample */
#define QUEUE_MIN 4u               /* batches read ahead */
#define SHUFFLE_SALT UINT64_C(0x73687566666c65)

static void free_files(char **files, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        free(files[i]);
    free((void *)files);
}

static int open_schema(struct setup *u, struct err *err)
{
    const struct settings *s = u->s;
    const struct schema_text text = { .preset = s->format,
                                      .delimiter = s->format[0] ? "" : s->delimiter,
                                      .header = s->header,
                                      .columns = s->columns,
                                      .label = s->label,
                                      .label_positive = s->label_positive,
                                      .numeric = s->numeric,
                                      .categorical = s->categorical,
                                      .ignored = s->ignore,
                                      .bucketise = s->bucketise,
                                      .missing = s->missing,
                                      .missing_as = (enum schema_missing)s->missing_as,
                                      .inner_separator = s->inner_separator,
                                      .quote = s->quote,
                                      .numeric_as = (enum schema_numeric)s->numeric_as,
                                      .shared = s->share_table };

    return u->n_train_files ? schema_open(&text, u->pipes, u->train_files[0], &u->schema, err)
                            : schema_new(&text, NULL, &u->schema, err);
}

int setup_fields(struct setup *u, struct settings *s, struct err *err)
{
    int status = field_tables_new(s, u->schema, &u->fields, err);

    s->fields = u->fields;
    return status;
}

/* Where training ends and validation begins, in rows of --data. */
static int split_rows(struct setup *u, struct err *err)
{
    const struct settings *s = u->s;
    uint64_t n_rows, n_train = s->train_rows;
    int status;

    if (!s->train_rows && !(s->valid_fraction > 0))
        return 0;
    status = data_loader_count_rows(u->train_files, u->n_train_files, u->schema, &n_rows, err);
    if (status)
        return status;
    if (!n_train)
        n_train = n_rows - (uint64_t)((double)n_rows * (double)s->valid_fraction + 0.5);
    if (n_train >= n_rows)
        return err_set(err, PS_ESETTING,
                       "--%s leaves nothing to validate on: --data has %llu row%s",
                       s->train_rows ? "train-rows" : "valid-fraction",
                       (unsigned long long)n_rows, NUMBER_PLURAL(n_rows));
    if (n_train == 0)
        return err_set(err, PS_ESETTING,
                       "--valid-fraction leaves nothing to train on: --data has %llu row%s",
                       (unsigned long long)n_rows, NUMBER_PLURAL(n_rows));
    u->train.end_row = n_train;
    u->valid = (struct data_loader_range){ .first_row = n_train, .end_row = n_rows };
    u->has_valid = true;
    return 0;
}

/* ---- files, and what can be read only once ---- */

static int expand(struct setup *u, const struct setting_list *list, char ***ret,
                  uint32_t *ret_n, struct err *err)
{
    int status = data_loader_expand(list->items, list->n, ret, ret_n, err);

    if (!status && !u->pipes)
        u->pipes = input_pipes_new();
    for (uint32_t i = 0; !status && i < *ret_n; i++)
        status = input_pipes_add(u->pipes, (*ret)[i], err);
    return status;
}

/* The first of these that is a pipe, or NULL. */
static const char *first_pipe(char *const *files, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (input_pipe_is_one(files[i]))
            return input_pipe_name(files[i]);
    return NULL;
}

const char *setup_first_pipe(const struct setup *u)
{
    return first_pipe(u->train_files, u->n_train_files);
}

/* Before anything is trained: a second pass over a pipe would fail hours later. */
static int check_pipes(const struct setup *u, struct err *err)
{
    const struct settings *s = u->s;
    const char *name = setup_first_pipe(u);

    if (name && s->epochs > 1)
        return err_set(err, PS_ESETTING,
                       "--epochs %u: %.200s can be read only once; name a file, or train one "
                       "epoch",
                       s->epochs, name);
    if (name && (s->train_rows || s->valid_fraction > 0))
        return err_set(err, PS_ESETTING,
                       "--%s: %.200s can be read only once, and its end is found by reading "
                       "it; name a file, or give validation rows by --valid",
                       s->train_rows ? "train-rows" : "valid-fraction", name);
    if (name && s->data_cache[0])
        log_line_warn("--data-cache keeps nothing of %.200s, which can be read only once",
                      name);
    name = first_pipe(u->valid_files, u->n_valid_files);
    if (name && u->valid_files != u->train_files && (s->epochs > 1 || s->eval_every))
        return err_set(err, PS_ESETTING,
                       "--valid: %.200s can be read only once, and this run validates more "
                       "often; name a file, or drop --epochs and --eval-every",
                       name);
    return 0;
}

int setup_columns(struct setup *u, const struct settings *s, struct err *err)
{
    int status;

    *u = (struct setup){ .s = s };
    status = s->data.n ? expand(u, &s->data, &u->train_files, &u->n_train_files, err) : 0;
    u->valid_files = u->train_files;
    u->n_valid_files = u->n_train_files;
    return status ? status : open_schema(u, err);
}

/* Which files; what is wrong with those that are pipes. */
static int find_files(struct setup *u, const struct settings *s, bool training, bool labelled,
                      struct err *err)
{
    bool own_valid = training && s->valid.n > 0;
    int status;

    *u = (struct setup){ .s = s, .has_valid = own_valid || !training };
    status = expand(u, &s->data, &u->train_files, &u->n_train_files, err);
    if (!status && own_valid)
        status = expand(u, &s->valid, &u->valid_files, &u->n_valid_files, err);
    if (status)
        return status;
    if (!own_valid) {
        u->valid_files = u->train_files;
        u->n_valid_files = u->n_train_files;
    }
    u->labelled = labelled;
    return training && !input_pipes_is_empty(u->pipes) ? check_pipes(u, err) : 0;
}

int setup_data(struct setup *u, const struct settings *s, bool training, bool labelled,
               struct err *err)
{
    int status = find_files(u, s, training, labelled, err);

    if (!status)
        status = open_schema(u, err);
    return status || !training ? status : split_rows(u, err);
}

static enum device_products products_of(const struct settings *s)
{
    switch ((enum settings_compute)s->compute) {
    case COMPUTE_IN_TF32:
        return DEVICE_TF32;
    case COMPUTE_IN_BF16:
        return DEVICE_BF16;
    case COMPUTE_IN_FP32:
        break;
    }
    return DEVICE_FP32;
}

/* The label that has this name, or n_labels. */
static uint32_t find_label(const struct schema *schema, const char *name, size_t len)
{
    char id[SCHEMA_NAME_MAX];
    uint32_t i = 0;

    for (; i < schema_n_labels(schema); i++) {
        schema_label_id(schema, i, id);
        if (strlen(id) == len && memcmp(id, name, len) == 0)
            break;
    }
    return i;
}

/* "click=1,buy=0.3" */
static int task_weights(const struct setup *u, struct dlrm_config *config, struct err *err)
{
    const char *at = u->s->loss_weights;

    if (config->n_tasks > 1 && u->s->keep_negatives < 1)
        return err_set(
            err, PS_ESETTING,
            "--keep-negatives: a sample of several labels is negative in some of them "
            "only; leave it out");
    for (uint32_t i = 0; i < DLRM_TASKS_MAX; i++)
        config->task_weights[i] = 1;
    while (*at) {
        const char *equals = strchr(at, '=');
        const uint32_t i = equals ? find_label(u->schema, at, (size_t)(equals - at)) : 0;
        char *end = NULL;
        const float weight = equals ? strtof(equals + 1, &end) : 0;

        if (!equals || i >= config->n_tasks || end == equals + 1 || (*end && *end != ',') ||
            !(weight > 0) || !isfinite(weight))
            return err_set(
                err, PS_ESETTING,
                "--loss-weights: \"%.60s\" is not the name of a label and a number above 0, "
                "such as click=1,buy=0.3",
                at);
        config->task_weights[i] = weight;
        at = *end ? end + 1 : end;
    }
    return 0;
}

_Static_assert(SETTINGS_GPUS_MAX <= DLRM_DEVICES_MAX,
               "a model can have the GPUs that settings name");

/* On which of the devices, or on several. */
static int place_model(const struct settings *s, const struct device_ops *ops,
                       struct dlrm_config *config, struct err *err)
{
    struct settings_gpus gpus = settings_gpus(s);

    (void)settings_device(s, &config->place);
    if (gpus.all)
        gpus.n = ops->count ? ops->count() : 1;
    if (gpus.n > SETTINGS_GPUS_MAX)
        return err_set(
            err, PS_ESETTING,
            "--device cuda:all: there are %u GPUs, and a worker can use %u at most: name them",
            gpus.n, SETTINGS_GPUS_MAX);
    config->n_devices = gpus.n;
    for (uint32_t i = 0; i < gpus.n; i++)
        config->devices[i] = gpus.all ? i : gpus.numbers[i];
    return 0;
}

/* By name or position, as lists of columns have it. */
static bool find_task_field(const struct setup *u, uint32_t *ret)
{
    char id[SCHEMA_NAME_MAX];

    for (*ret = 0; *ret < schema_n_fields(u->schema); (*ret)++) {
        schema_field_id(u->schema, *ret, id);
        if (strcmp(id, u->s->meta) == 0)
            return true;
    }
    return false;
}

static int setup_meta(struct setup *u, const struct dlrm_config *config, struct err *err)
{
    struct meta_learning_options options = { .inner_lr = u->s->meta_inner_lr,
                                             .inner_steps = u->s->meta_inner_steps };
    char id[SCHEMA_NAME_MAX] = "none";

    if (!find_task_field(u, &options.field)) {
        if (schema_n_fields(u->schema))
            schema_field_id(u->schema, 0, id);
        return err_set(
            err, PS_ESETTING,
            "--meta: \"%.60s\" is none of the %u categorical columns, whose first is "
            "%.60s",
            u->s->meta, schema_n_fields(u->schema), id);
    }
    if (meta_learning_new(u->model, config, &options, &u->meta))
        return err_set(err, -ENOMEM, "no memory for a task's copy of the model");
    return 0;
}

int setup_model_on(struct setup *u, const struct device_ops *ops, struct err *err)
{
    const struct settings *s = u->s;
    struct dlrm_config config = {
        .kind = (enum model_kind)s->model,
        .batch_max = s->batch,
        .n_numeric = schema_n_numeric(u->schema),
        .n_hats = settings_n_hats(s),
        .first_hat = settings_first_hat(s),
        .n_fields = schema_n_fields(u->schema),
        .dim = settings_dim(s),
        .n_tasks = s->n_tasks ? s->n_tasks : schema_n_labels(u->schema),
        .n_cross = s->cross_layers,
        .cross_rank = s->cross_rank,
        .concat = s->interaction == 1,
        .self_interaction = s->self_interaction,
        .wide = settings_has_wide(s),
        .batch_norm = s->batch_norm,
        .whole_layers = settings_has_layers(s),
        .dropout = s->dropout,
        .l2_dense = s->l2_dense,
        .positive_more = s->positive_weight - 1,
        .label_smoothing = s->label_smoothing,
        .logit_offset = s->keep_negatives < 1 ? -logf(s->keep_negatives) : 0,
        .l2_rows = s->l2_embedding,
        .clip_norm = s->clip_global_norm,
        .seed = settings_seed(s, SEED_DROPOUT),
        .n_threads = s->threads,
        .products = products_of(s),
    };
    int status = 0;

    status = place_model(s, ops, &config, err);
    config.n_groups = field_tables_n(s->fields);
    for (uint32_t g = 0; g < config.n_groups; g++)
        config.group_dims[g] = settings_dim(field_tables_settings(s, g));
    for (uint32_t f = 0; f < config.n_fields; f++)
        if (field_tables_has_mean(s->fields, f))
            config.means[f / 64] |= UINT64_C(1) << f % 64;
    if (!status)
        status = settings_widths("bottom", settings_bottom(s), config.bottom,
                                 DLRM_LAYERS_MAX - 1, &config.n_bottom, err);

    if (!status)
        status =
            settings_widths("top", s->top, config.top, DLRM_LAYERS_MAX - 1, &config.n_top, err);
    if (!status)
        status = task_weights(u, &config, err);
    if (!status)
        status = dlrm_new_on(ops, &config, &u->model, err);
    if (!status && s->meta[0])
        status = setup_meta(u, &config, err);
    if (!status)
        u->batch_memory = batch_memory_new(u->model);
    if (!status)
        u->deduper = key_deduper_new(u->model, KEY_DEDUPER_KEYS_MIN);
    return status;
}

static int on_gpu(struct setup *u, struct err *err)
{
    const struct device_ops *ops;
    int status = cuda_plugin_cuda(&ops, err);

    return status ? status : setup_model_on(u, ops, err);
}

int setup_model(struct setup *u, struct err *err)
{
    const enum settings_device device = settings_device(u->s, NULL);
    struct err why = { 0 };
    int status;

    if (device == DEVICE_CPU || u->s->delay_compensation > 0)
        return setup_model_on(u, &device_cpu, err);
    status = on_gpu(u, &why);
    if (status && status != PS_ESETTING && device == DEVICE_AUTO) {
        if (status == -ENODEV) /* a machine without a GPU, which nobody has asked for */
            log_line_debug("computing on the CPU: %s", why.text);
        else
            log_line_info("computing on the CPU: %s", why.text);
        return setup_model_on(u, &device_cpu, err);
    }
    return status ? err_set(err, status, "%s", why.text) : 0;
}

/* The weights of the bottom MLP's first layer; 0: the job has none. */
static int find_first_layer(const struct settings *s, struct param_store *store,
                            uint64_t *ret_n, struct err *err)
{
    struct table_spec spec = { .kind = TABLE_SPEC_DENSE };
    struct err why;
    uint32_t id;
    int status;

    snprintf(spec.name, sizeof spec.name, "%.63s/bot.0.W", s->job);
    status = store->ops->table_find(store, &spec, &id, &why);
    *ret_n = status ? 0 : spec.n_floats;
    return !status || status == PS_ENOTABLE ? 0 : err_set(err, status, "%s", why.text);
}

int setup_inputs(struct setup *u, struct settings *s, struct param_store *store,
                 struct err *err)
{
    uint64_t n_weights;
    int status = find_first_layer(s, store, &n_weights, err);
    bool is_other = !status && settings_keep_inputs(s, schema_n_numeric(u->schema), n_weights);

    schema_keep_missing(u->schema, settings_n_hats(s) > 0);
    if (!is_other)
        return status;
    log_line_info("job \"%s\" was begun without --numeric-hats: it goes on without them",
                  s->job);
    if (!u->model)
        return 0;
    key_deduper_free(u->deduper);
    batch_memory_free(u->batch_memory);
    meta_learning_free(u->meta);
    dlrm_free(u->model);
    u->deduper = NULL;
    u->meta = NULL;
    u->batch_memory = NULL;
    u->model = NULL;
    return setup_model(u, err);
}

uint64_t setup_n_samples(const struct setup *u)
{
    return u->s->keep_negatives < 1 ? 0 : u->train.end_row / u->s->workers * u->s->epochs;
}

/* In one pass over n_rows; a batch each in turn. */
static uint64_t rows_of_rank(const struct settings *s, uint64_t n_rows, uint32_t rank)
{
    uint64_t n_whole = n_rows / s->batch, rest = n_rows % s->batch;
    uint64_t rows = (n_whole / s->workers + (n_whole % s->workers > rank)) * s->batch;

    return rows + (n_whole % s->workers == rank ? rest : 0);
}

/* Rows that a rank has trained on after so many steps. */
static uint64_t rows_until(const struct settings *s, uint64_t rows, uint64_t clock)
{
    uint64_t steps = (rows + s->batch - 1) / s->batch, n_epochs, left;

    if (!steps)
        return 0;
    n_epochs = clock / steps;
    left = clock % steps * s->batch;
    return n_epochs >= s->epochs ? rows * s->epochs
                                 : n_epochs * rows + (left < rows ? left : rows);
}

uint64_t setup_n_rows_between(const struct setup *u, uint64_t n_rows, uint32_t rank,
                              uint64_t from_clock, uint64_t end_clock)
{
    uint64_t rows = rows_of_rank(u->s, n_rows, rank);
    uint64_t from = rows_until(u->s, rows, from_clock), end = rows_until(u->s, rows, end_clock);

    return end > from ? end - from : 0;
}

static bool is_stopped(const void *stop)
{
    return stop_signal_asked(stop) || stop_signal_early(stop);
}

void setup_set_stop(struct setup *u, const struct stop_signal *stop)
{
    u->stop = stop;
    input_pipes_set_stop(u->pipes, is_stopped, stop);
}

int setup_cardinalities(struct setup *u, struct err *err)
{
    const uint64_t n_rows = u->train.end_row ? u->train.end_row : CARDINALITY_ROWS;
    uint64_t counts[FIELD_TABLES_MAX];
    int status;

    if (!field_tables_want_counts(u->fields))
        return 0;
    status = cardinality_measure(
        u->schema, field_tables_groups(u->fields), u->pipes, u->train_files, u->n_train_files,
        n_rows < CARDINALITY_ROWS ? n_rows : CARDINALITY_ROWS, counts, err);
    if (!status && is_stopped(u->stop))
        status = err_set(err, -ECANCELED, "stopped while the fields' keys were counted");
    if (!status)
        field_tables_set_counts(u->fields, counts);
    return status;
}

int setup_moments(const struct setup *u, float *ret_mean, float *ret_std, struct err *err)
{
    int status = moments_measure(u->schema, u->pipes, u->train_files, u->n_train_files,
                                 MOMENTS_ROWS, ret_mean, ret_std, err);

    if (!status && is_stopped(u->stop))
        status = err_set(err, -ECANCELED, "stopped while the columns' means were measured");
    return status;
}

static void warn(void *arg, const char *sentence)
{
    (void)arg;
    log_line_warn("%s", sentence);
}

static struct data_loader_options feed_of(const struct setup *u, bool training, uint32_t epoch,
                                          uint64_t skip)
{
    const struct settings *s = u->s;
    const uint32_t n_threads = settings_loader_threads(s);

    return (struct data_loader_options){
        .schema = u->schema,
        .paths = training ? u->train_files : u->valid_files,
        .n_paths = training ? u->n_train_files : u->n_valid_files,
        .pipes = u->pipes,
        .range = training ? u->train : u->valid,
        .rank = training ? s->rank : 0,
        .n_ranks = training ? s->workers : 1,
        .by_rows = !training || s->share == SHARE_ROWS,
        .batch = s->batch,
        .shuffle_rows = training ? s->shuffle : 0,
        .seed = hash_mix2(settings_seed(s, SEED_SHUFFLE) ^ SHUFFLE_SALT, epoch),
        .keep_negatives = training ? s->keep_negatives : 1,
        .skip = skip,
        .groups = field_tables_groups(u->fields),
        /* A row that is skipped would put all later predictions on the wrong line. */
        .bad_rows_max = u->strict ? 0 : s->bad_rows_max,
        .queue = n_threads > QUEUE_MIN ? n_threads : QUEUE_MIN,
        .n_threads = n_threads,
        .lend = training ? pipeline_n_buffers(settings_ahead(s) + 1) : 1,
        .labelled = u->labelled,
        .data_cache = s->data_cache,
        .on_notice = warn,
        .is_stopped = is_stopped,
        .stop_arg = u->stop,
        .memory = u->batch_memory ? batch_memory_of_batches(u->batch_memory) : NULL,
        .deduper = key_deduper_of_batches(u->deduper),
    };
}

int setup_loader(const struct setup *u, bool training, uint32_t epoch, uint64_t skip,
                 struct data_loader **ret, struct err *err)
{
    const struct data_loader_options options = feed_of(u, training, epoch, skip);

    return data_loader_open(&options, ret, err);
}

static int refuse_empty(const struct setup *u, bool training,
                        const struct data_loader_counts *counts, struct err *err)
{
    char what[64] = "to validate on";

    if (training)
        snprintf(what, sizeof what, "for rank %u of %u to train on", u->s->rank, u->s->workers);
    return err_set(err, PS_EDATA, "there are no rows %s%s%.160s (%llu malformed ones)", what,
                   counts->bad_rows ? ": " : "", counts->bad_row,
                   (unsigned long long)counts->bad_rows);
}

static int probe_batch(const struct setup *u, bool training, struct err *err)
{
    struct data_loader_options options = feed_of(u, training, 0, 0);
    struct data_loader_counts counts;
    struct batch *batch;
    struct data_loader *loader;
    int status;

    options.shuffle_rows =
        0; /* it need not be the first batch of the run, and is to come soon */
    options.queue = options.lend = 1;
    options.is_prescan = true;
    options.data_cache = NULL;
    options.on_notice = NULL;
    options.memory = NULL;
    status = data_loader_open(&options, &loader, err);
    if (status)
        return status;
    status = data_loader_next(loader, &batch, err);
    data_loader_counts(loader, &counts);
    if (!status && !batch)
        status = refuse_empty(u, training, &counts, err);
    data_loader_close(loader);
    return status;
}

int setup_probe(const struct setup *u, struct err *err)
{
    const bool own_valid = u->valid_files != u->train_files && u->s->rank == 0;
    int status = probe_batch(u, true, err);

    return status || !own_valid ? status : probe_batch(u, false, err);
}

/* A directory that is not there yet is made by the run. */
static int check_directory(const char *name, const char *path, struct err *err)
{
    struct stat st;

    if (!path[0] || stat(path, &st) != 0)
        return 0;
    if (!S_ISDIR(st.st_mode))
        return err_set(err, -ENOTDIR, "--%s: %.200s is no directory", name, path);
    if (access(path, R_OK | W_OK | X_OK) != 0)
        return err_set(err, -errno, "--%s: %.200s cannot be used: %s", name, path,
                       strerror(errno));
    return 0;
}

/* A checkpoint is read, or one for each node. */
static int check_checkpoints(const struct settings *s, struct err *err)
{
    char list[SETTINGS_TEXT_MAX], *rest = list, *path;

    memcpy(list, s->checkpoint, sizeof list);
    while ((path = strsep(&rest, ",")) != NULL)
        if (path[0] && access(path, R_OK | X_OK) != 0)
            return err_set(err, -errno, "--checkpoint: %.200s cannot be read: %s", path,
                           strerror(errno));
    return 0;
}

int setup_check(struct setup *u, const struct settings *s, bool training, bool labelled,
                struct err *err)
{
    int status = find_files(u, s, training, labelled, err);

    /* A pipe would have lost the rows that were looked at. */
    if (!status && input_pipes_is_empty(u->pipes)) {
        status = open_schema(u, err);
        if (!status && s->key_scheme == KEYS_BY_NAME)
            status = schema_use_keys(u->schema, SCHEMA_KEYS_BY_NAME, err);
        if (!status)
            status = field_tables_new(s, u->schema, &u->fields, err);
        if (!status)
            status = training ? setup_probe(u, err) : probe_batch(u, false, err);
    }
    if (!status)
        status = check_directory("data-cache", s->data_cache, err);
    if (!status)
        status = check_directory("state-dir", s->state_dir, err);
    return status ? status : check_checkpoints(s, err);
}

/* To wake threads for the rows of a small batch takes longer than to read them. */
static bool rows_are_many(const struct settings *s)
{
    return (uint64_t)s->batch * settings_dim(s) >= READ_FLOATS_MIN;
}

/* Eight shards are enough for the cores of a machine with one GPU; small batches are faster in one. */
static int open_local(const struct settings *s, bool training, struct param_store **ret,
                      struct err *err)
{
    const struct param_store_local_options options = {
        .job = s->job,
        .checkpoint_dir = s->checkpoint[0] ? s->checkpoint : NULL,
        .n_shards = s->local_shards                ? s->local_shards
                    : training && rows_are_many(s) ? 8
                                                   : 1,
        .n_threads = settings_loader_threads(s),
    };

    return param_store_local_open(&options, ret, err);
}

/* Exact for a job's only worker; with others, rows are reused within the bound. */
static struct param_store *with_cache(const struct settings *s, struct param_store *store,
                                      const struct ps_options *options)
{
    const struct param_store_exact_cache_options exact = {
        .max_bytes = s->row_cache_bytes,
        .mode = options->mode,
        .n_threads = rows_are_many(s) ? settings_loader_threads(s) : 1,
    };
    const struct param_store_stale_cache_options bounded = { .max_bytes = s->row_cache_bytes,
                                                             .mode = options->mode,
                                                             .bound = options->bound,
                                                             .reuse_clocks = s->reuse_clocks };

    if (s->workers == 1)
        return param_store_exact_cache_new(store, &exact);
    return param_store_stale_cache_new(store, &bounded);
}

/* In the order of DELTA_CODECS. */
static enum section_delta_mode delta_mode(int codec)
{
    static const enum section_delta_mode modes[] = { SECTION_DELTA_FULL, SECTION_DELTA_ONEBIT,
                                                     SECTION_DELTA_INT8, SECTION_DELTA_SPARSE };

    return modes[codec];
}

static struct param_store *with_deltas(const struct settings *s, struct param_store *store)
{
    const struct param_store_delta_options options = {
        .max_bytes = s->row_cache_bytes,
        .rows = { s->pull_tolerance, delta_mode(s->pull_delta_codec) },
        .dense = { s->dense_pull_tolerance, delta_mode(s->dense_pull_delta_codec) },
    };

    return param_store_delta_new(store, &options);
}

static uint32_t period_of(const void *settings, const char *table)
{
    return settings_period(settings, table);
}

static uint32_t row_period_of(const void *settings, const char *table)
{
    return settings_row_period(settings, table);
}

static struct param_store *with_periods(const struct settings *s, struct param_store *store)
{
    const struct param_store_periodic_options options = {
        .rule = s->local_steps ? LOCAL_TENSOR_STEPS : LOCAL_TENSOR_SUM,
        .slow_lr = settings_slow_lr(s),
        .slow_momentum = s->slow_momentum,
        .lock_step = settings_dense_is_exact(s),
        .rotates = s->rotate,
        .freeze_at = s->freeze_at,
        .merges_adaptively = s->merge_weight == MERGE_ADAPTIVELY ? s->workers : 0,
        .period_of = period_of,
        .row_period_of = s->row_period.n ? row_period_of : NULL,
        .arg = s,
    };

    return param_store_periodic_new(store, &options);
}

/* The time: greater than that of all processes before this one, if clocks agree. */
static uint64_t new_incarnation(void)
{
    return clock_unix_ms();
}

/* Found by settings under which its place means nothing, it stays for whoever has the right ones. */
static int check_resume_point(const struct settings *s, const struct push_journal *journal,
                              struct err *err)
{
    uint8_t note[PUSH_JOURNAL_NOTE_MAX];
    uint32_t n_bytes = push_journal_found_note(journal, note);
    struct resume_point mark;

    if (!n_bytes ||
        (!resume_point_read(note, n_bytes, &mark) && mark.settings == resume_point_settings(s)))
        return 0;
    return err_set(
        err, PS_ESPEC,
        "--state-dir: %.200s/%s.%u.*.pushes are of a run that was killed and had other "
        "data, --batch, --seed, --shuffle, --share or --workers: give the same, or "
        "remove them",
        s->state_dir, s->job, s->rank);
}

int setup_state_lock(const char *dir, const char *job, uint32_t rank, int *ret_fd,
                     struct err *err)
{
    char path[4096];
    int fd, status = file_os.mkdir(file_os.state, dir);

    if (status)
        return err_set(err, status, "--state-dir: %.200s cannot be made: %s", dir,
                       status_text(status));
    if (snprintf(path, sizeof path, "%s/%s.%u.lock", dir, job, rank) >= (int)sizeof path)
        return err_set(err, -ENAMETOOLONG, "--state-dir: %.100s...: the path is too long", dir);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_set(err, -errno, "%.200s cannot be opened: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        status = errno == EWOULDBLOCK ? -EBUSY : -errno;
        close(fd);
        return err_set(err, status,
                       status == -EBUSY
                           ? "--state-dir: another process has %.200s: is job \"%s\", "
                             "rank %u, running already?"
                           : "%.200s of job \"%s\", rank %u, cannot be locked",
                       path, job, rank);
    }
    *ret_fd = fd;
    return 0;
}

int setup_journal(const struct settings *s, void (*notice)(void *, const char *), void *arg,
                  struct push_journal **ret, struct err *err)
{
    const struct push_journal_options options = { .files = &file_os,
                                                  .dir = s->state_dir,
                                                  .job = s->job,
                                                  .rank = s->rank,
                                                  .incarnation = new_incarnation(),
                                                  .notice = notice,
                                                  .notice_arg = arg };
    int status;

    *ret = NULL;
    if (!s->state_dir[0] || s->local || s->checkpoint[0])
        return 0;
    status = push_journal_open(&options, ret, err);
    return status ? status : check_resume_point(s, *ret, err);
}

static bool is_cancelled(const void *stop)
{
    return stop_signal_early(stop) != 0;
}

int setup_store(const struct settings *s, bool training, struct push_journal *journal,
                const struct stop_signal *stop, void (*notice)(void *, const char *), void *arg,
                struct param_store **ret, struct err *err)
{
    char name[64], host[48] = "?";
    struct ps_options options = { .servers = s->servers,
                                  .token = s->token,
                                  .tls = s->tls,
                                  .name = name,
                                  .reader = !training,
                                  .job = s->job,
                                  .rank = s->rank,
                                  .n_workers = s->workers,
                                  .mode =
                                      (enum table_spec_mode)(s->mode + TABLE_SPEC_MODE_ASYNC),
                                  .bound = s->staleness,
                                  .n_backups = s->backup_workers,
                                  .connect_ms = (uint32_t)s->connect_timeout_ms,
                                  .give_up_ms = (uint32_t)s->give_up_ms,
                                  .pull_ms = (uint32_t)s->pull_timeout_ms,
                                  .window_bytes = (uint32_t)s->window_bytes,
                                  .compress = s->zstd,
                                  .names_keys = training && s->workers > 1,
                                  .net_threads = s->net_threads,
                                  .report = s->report,
                                  .journal = journal,
                                  .on_notice = notice,
                                  .on_warning = warn,
                                  .notice_arg = arg,
                                  .is_cancelled = is_cancelled,
                                  .cancel_arg = stop };
    int status;

    if (s->local || s->checkpoint[0])
        return open_local(s, training, ret, err);
    if (options.mode != TABLE_SPEC_MODE_SSP)
        options.bound = 0;
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "psworker %s:%d", host, (int)getpid());
    status = param_store_remote_open(&options, ret, err);
    if (!status && training && s->row_cache_bytes && s->workers > 1 && s->pull_deltas)
        *ret = with_deltas(s, *ret);
    if (!status && training && s->row_cache_bytes && (s->workers == 1 || s->reuse_clocks))
        *ret = with_cache(s, *ret, &options);
    if (!status && training && settings_periods_are_set(s))
        *ret = with_periods(s, *ret);
    if (!status)
        (*ret)->journal = journal;
    return status;
}

void setup_deinit(struct setup *u)
{
    key_deduper_free(u->deduper);
    batch_memory_free(u->batch_memory);
    meta_learning_free(u->meta);
    dlrm_free(u->model);
    field_tables_free(u->fields);
    schema_free(u->schema);
    input_pipes_free(u->pipes);
    if (u->valid_files != u->train_files)
        free_files(u->valid_files, u->n_valid_files);
    free_files(u->train_files, u->n_train_files);
}
