#include "deploy/psctl/import.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "common/number.h"
#include "common/token_file.h"
#include "deploy/psctl/cluster_query.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/export.h"
#include "deploy/psctl/tensor_input.h"
#include "worker/client/ps.h"

#define SLICE_BYTES ((size_t)4 << 20) /* of rows: read, checked or assigned at a time */
#define PROGRESS_NS UINT64_C(2000000000)
#define NANOS 1e9

/* --- which arrays are which table's --- */

static bool ends_with(const char *name, const char *tail)
{
    const size_t n = strlen(name), n_tail = strlen(tail);

    return n > n_tail && strcmp(name + n - n_tail, tail) == 0;
}

/* NAME.TAIL, or NULL. */
static const struct tensor_input *find_part(const struct tensor_inputs *set, const char *name,
                                            const char *tail)
{
    char full[TENSOR_FILES_NAME_MAX + 16];

    snprintf(full, sizeof full, "%s%s", name, tail);
    return tensor_inputs_find(set, full);
}

/* Of the table X that X.TAIL is named after: `name` is X.TAIL, and X is there. */
static bool is_part_by_tail(const struct tensor_inputs *set, const char *name, const char *tail,
                            bool of_dense)
{
    char table[TENSOR_FILES_NAME_MAX];

    if (!ends_with(name, tail))
        return false;
    snprintf(table, sizeof table, "%.*s", (int)(strlen(name) - strlen(tail)), name);
    return find_part(set, table, ".keys") || (of_dense && tensor_inputs_find(set, table));
}

/* Is it a part of a table X, and not one by itself? */
static bool is_part(const struct tensor_inputs *set, const char *name)
{
    if (ends_with(name, ".keys") || is_part_by_tail(set, name, ".weight", false))
        return true;
    for (int i = 0; i < TABLE_SPEC_OPTIM_END; i++) {
        const enum table_spec_optim optim = (enum table_spec_optim)i;

        for (uint32_t k = 0; k < export_n_states(optim); k++)
            if (is_part_by_tail(set, name, export_state_names(optim)[k], true))
                return true;
    }
    return false;
}

/* How many arrays of this optimizer's state are there, up to the first that is not. */
static uint32_t count_state(const struct tensor_inputs *set, const char *table,
                            enum table_spec_optim optim)
{
    const char *const *names = export_state_names(optim);
    uint32_t n = 0;

    while (n < export_n_states(optim) && find_part(set, table, names[n]))
        n++;
    return n;
}

/* The arrays of state that are there: those of one optimizer, in its order. */
static void find_state(const struct tensor_inputs *set, struct import_table *t)
{
    for (int i = 0; i < TABLE_SPEC_OPTIM_END; i++) {
        const enum table_spec_optim optim = (enum table_spec_optim)i;
        const uint32_t n = count_state(set, t->name, optim);

        if (n <= t->n_state)
            continue;
        t->n_state = n;
        for (uint32_t k = 0; k < n; k++)
            t->state[k] = find_part(set, t->name, export_state_names(optim)[k]);
    }
}

static int refuse(const struct tensor_input *a, struct err *err, const char *expected)
{
    char shape[120] = "";
    size_t n = 0;

    for (uint32_t i = 0; i < a->n_dims; i++)
        n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%" PRIu64, i ? ", " : "",
                              a->dims[i]);
    return err_set(err, PS_EDATA, "array %.100s is %s [%s]; expected %s", a->name, a->type,
                   shape, expected);
}

static int check_sparse(struct import_table *t, struct err *err)
{
    if ((strcmp(t->keys->type, "I64") != 0 && strcmp(t->keys->type, "U64") != 0) ||
        t->keys->n_dims != 1)
        return refuse(t->keys, err, "I64 or U64, of one dimension: the keys");
    t->n_rows = t->keys->dims[0];
    if (strcmp(t->weights->type, "F32") != 0 || t->weights->n_dims != 2)
        return refuse(t->weights, err, "F32, of two dimensions: rows and floats of a row");
    if (t->weights->dims[0] != t->n_rows)
        return refuse(t->weights, err, "as many rows as there are keys");
    t->dim = t->weights->dims[1];
    if (t->dim < 1 || t->dim > TABLE_SPEC_DIM_MAX)
        return refuse(t->weights, err, "1 to 16384 floats in a row");
    return 0;
}

static int check_state_type(const struct import_table *t, struct err *err)
{
    for (uint32_t i = 0; i < t->n_state; i++)
        if (strcmp(t->state[i]->type, "F32") != 0 || t->state[i]->n_dims < 1 ||
            t->state[i]->n_dims > 2)
            return refuse(t->state[i], err, "F32, as the weights or one float a row");
    return 0;
}

static void read_steps(const struct tensor_inputs *set, struct import_table *t)
{
    const char *note = tensor_inputs_note(set, t->name);
    cJSON *json = note ? cJSON_Parse(note) : NULL;
    const cJSON *steps = cJSON_GetObjectItemCaseSensitive(json, "steps");

    if (cJSON_IsNumber(steps) && steps->valuedouble > 0 && steps->valuedouble < 0x1p48)
        t->steps = (uint64_t)steps->valuedouble;
    cJSON_Delete(json);
}

static bool is_name(const char *text, size_t n)
{
    bool is_good = n > 0 && n < TABLE_SPEC_NAME_MAX;

    for (size_t i = 0; i < n; i++)
        is_good = is_good && text[i] > ' ' && text[i] <= '~';
    return is_good;
}

static int read_table(const struct tensor_inputs *set, const struct tensor_input *a,
                      struct import_table *ret, struct err *err)
{
    const bool is_sparse = ends_with(a->name, ".keys");
    const size_t n = strlen(a->name) - (is_sparse ? strlen(".keys") : 0);
    int status = 0;

    *ret = (struct import_table){ .keys = is_sparse ? a : NULL, .weights = a };
    if (!is_name(a->name, n))
        return err_set(
            err, PS_EDATA,
            "array \"%.100s\": a table's name has 1 to %u printable characters, and no blanks",
            a->name, TABLE_SPEC_NAME_MAX - 1);
    snprintf(ret->name, sizeof ret->name, "%.*s", (int)n, a->name);
    if (is_sparse) {
        ret->weights = find_part(set, ret->name, ".weight");
        if (!ret->weights)
            return err_set(err, PS_EDATA, "array %.100s is there, and no %.100s.weight",
                           a->name, ret->name);
        status = check_sparse(ret, err);
    } else if (strcmp(a->type, "F32") != 0 || a->n_dims == 0) {
        return refuse(
            a, err,
            "F32: a dense table; rows of a sparse one are NAME.weight, beside their NAME.keys");
    }
    find_state(set, ret);
    read_steps(set, ret);
    return status ? status : check_state_type(ret, err);
}

int import_find_tables(const struct tensor_inputs *set, struct import_table **ret,
                       uint32_t *ret_n, struct err *err)
{
    struct import_table *tables = memory_try_alloc((set->n + 1) * sizeof *tables);
    uint32_t n = 0;
    int status = tables ? 0 : err_set(err, -ENOMEM, "no memory for %" PRIu32 " tables", set->n);

    for (uint32_t i = 0; i < set->n && !status; i++)
        if (!is_part(set, set->items[i].name) || ends_with(set->items[i].name, ".keys"))
            status = read_table(set, &set->items[i], &tables[n++], err);
    if (status) {
        free(tables);
        return status;
    }
    *ret = tables;
    *ret_n = n;
    return 0;
}

/* --- numbers --- */

static int check_floats(const struct import_table *t, const struct tensor_input *a,
                        struct err *err)
{
    const size_t n_most = SLICE_BYTES / sizeof(float);
    const uint64_t n = a->n_bytes / sizeof(float),
                   width = t->keys && a->n_dims == 2 ? a->dims[1] : 1;
    float *x = memory_alloc(n_most * sizeof *x);
    int status = 0;

    for (uint64_t at = 0; at < n && !status; at += n_most) {
        const size_t n_here = n - at < n_most ? (size_t)(n - at) : n_most;

        status = tensor_input_read(a, at * sizeof *x, x, n_here * sizeof *x, err);
        for (size_t i = 0; i < n_here && !status; i++)
            if (!isfinite(x[i]))
                status =
                    err_set(err, PS_EDATA, "array %.100s: row %" PRIu64 " has NaN or infinity",
                            a->name, (at + i) / width);
    }
    free(x);
    return status;
}

static bool do_ascend(bool is_signed, uint64_t a, uint64_t b)
{
    return is_signed ? (int64_t)a < (int64_t)b : a < b;
}

static int check_keys(const struct tensor_input *a, struct err *err)
{
    const size_t n_most = SLICE_BYTES / sizeof(uint64_t);
    const uint64_t n = a->n_bytes / sizeof(uint64_t);
    const bool is_signed = strcmp(a->type, "I64") == 0;
    uint64_t *keys = memory_alloc(n_most * sizeof *keys), before = 0;
    int status = 0;

    for (uint64_t at = 0; at < n && !status; at += n_most) {
        const size_t n_here = n - at < n_most ? (size_t)(n - at) : n_most;

        status = tensor_input_read(a, at * sizeof *keys, keys, n_here * sizeof *keys, err);
        for (size_t i = 0; i < n_here && !status; before = keys[i++])
            if (at + i > 0 && !do_ascend(is_signed, before, keys[i]))
                status = err_set(err, PS_EDATA,
                                 before == keys[i]
                                     ? "array %.100s: row %" PRIu64
                                       " has the key of the row before it, %" PRIu64
                                     : "array %.100s: the keys do not ascend at row %" PRIu64
                                       ", key %" PRIu64,
                                 a->name, at + i, keys[i]);
    }
    free(keys);
    return status;
}

int import_check_numbers(const struct import_table *t, struct err *err)
{
    int status = t->keys ? check_keys(t->keys, err) : 0;

    if (!status)
        status = check_floats(t, t->weights, err);
    for (uint32_t i = 0; i < t->n_state && !status; i++)
        status = check_floats(t, t->state[i], err);
    return status;
}

/* --- against the servers' table --- */

/* The floats that one array of state has for a row, or 0: it has another shape. */
static uint32_t state_width(const struct import_table *t, const struct table_spec *spec,
                            uint32_t i)
{
    const uint32_t width = export_state_width(spec, i);
    const uint64_t n = t->state[i]->n_bytes / sizeof(float);

    if (t->keys)
        return n == t->n_rows * width ? width : 0;
    return n == (export_state_is_as_weights(spec->optim, i) ? spec->n_floats
                                                            : table_spec_n_blocks(spec) * width)
               ? width
               : 0;
}

static int check_state(const struct import_table *t, const struct table_spec *spec,
                       struct err *err)
{
    const char *const *names = export_state_names(spec->optim);

    for (uint32_t i = 0; i < t->n_state; i++) {
        if (!names[i] || !ends_with(t->state[i]->name, names[i]))
            return err_set(err, PS_ESPEC,
                           "table %.80s trains with %s here, and array %.80s is the state of "
                           "another optimizer: --weights "
                           "imports the weights alone",
                           t->name, table_spec_optim_name(spec->optim), t->state[i]->name);
        if (!state_width(t, spec, i))
            return refuse(t->state[i], err, "the state of each row");
    }
    if (t->n_state && t->n_state < export_n_states(spec->optim))
        return err_set(err, PS_ESPEC, "array %.100s%s is missing: the state of %s", t->name,
                       names[t->n_state], table_spec_optim_name(spec->optim));
    return 0;
}

int import_check_spec(const struct import_table *t, const struct table_spec *spec,
                      struct err *err)
{
    const bool is_sparse = spec->kind == TABLE_SPEC_SPARSE;

    if (is_sparse != (t->keys != NULL))
        return err_set(err, PS_ESPEC, "table %.100s is %s here; the file has %s", t->name,
                       table_spec_kind_name(spec->kind), is_sparse ? "no keys of it" : "keys");
    if (is_sparse && t->dim != spec->dim)
        return err_set(err, PS_ESPEC,
                       "table %.100s has rows of %" PRIu32
                       " floats here; array %.100s has rows of %" PRIu64,
                       t->name, spec->dim, t->weights->name, t->dim);
    if (!is_sparse && t->weights->n_bytes / sizeof(float) != spec->n_floats)
        return err_set(err, PS_ESPEC,
                       "table %.100s has %" PRIu64 " floats here; the array has %" PRIu64,
                       t->name, spec->n_floats, t->weights->n_bytes / sizeof(float));
    return check_state(t, spec, err);
}

/* --- the import --- */

struct import {
    const struct options *options;
    char token[TOKEN_FILE_MAX], name[64], job[TABLE_SPEC_NAME_MAX];
    int signals; /* a descriptor: SIGINT and SIGTERM */
    _Atomic bool is_interrupted;
    struct ps_client *client; /* owned; NULL: not connected */
    uint64_t n_rows, n_rows_done, n_refused, began_ns, reported_ns;
    uint32_t n_tables;
    /* Owned: a slice of rows. */
    uint64_t *keys;
    float *weights, *state, *part;
};

static bool is_interrupted(const void *arg)
{
    struct import *w =
        (struct import *)(uintptr_t)arg; /* is_cancelled() takes what it must not change */
    struct signalfd_siginfo info;

    if (w->signals >= 0 && read(w->signals, &info, sizeof info) == (ssize_t)sizeof info)
        atomic_store(&w->is_interrupted, true);
    return atomic_load(&w->is_interrupted);
}

/* Before any thread runs: all of them leave the signals to the descriptor. */
static void block_signals(struct import *w)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    w->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

static void report_progress(struct import *w, const char *table)
{
    const uint64_t now = clock_mono_ns();

    if (now - w->reported_ns < PROGRESS_NS)
        return;
    w->reported_ns = now;
    fprintf(stderr, "table %s: %" PRIu64 " of %" PRIu64 " rows in all, %.0f rows/s\n", table,
            w->n_rows_done, w->n_rows,
            (double)w->n_rows_done / ((double)(now - w->began_ns) / NANOS));
}

static void on_notice(void *arg, const char *sentence)
{
    (void)arg;
    fprintf(stderr, "psctl: %s\n", sentence);
}

/* The job that trains the table is not joined: this one has a name below it, so that psctl drop sees it. */
static void job_of(const char *table, char ret[static TABLE_SPEC_NAME_MAX])
{
    const char *slash = strrchr(table, '/');
    const size_t n = slash ? (size_t)(slash - table) : strlen(table),
                 most = TABLE_SPEC_NAME_MAX - sizeof "/import";

    snprintf(ret, TABLE_SPEC_NAME_MAX, "%.*s/import", (int)(n < most ? n : most), table);
}

static int leave(struct import *w, struct err *err)
{
    struct ps_stats stats;
    int status = 0;

    if (!w->client)
        return 0;
    status = ps_leave(w->client, err);
    ps_stats(w->client, &stats);
    w->n_refused += stats.rows_refused;
    ps_close(w->client);
    w->client = NULL;
    return status;
}

/* A client for the tables of one job. */
static int join(struct import *w, const char *table, struct err *err)
{
    uint32_t timeout_ms = cluster_query_timeout_ms(w->options, true);
    char job[TABLE_SPEC_NAME_MAX];
    struct ps_options options = { .servers = w->options->server,
                                  .token = w->token,
                                  .tls = w->options->tls,
                                  .name = w->name,
                                  .job = w->job,
                                  .n_workers = 1,
                                  .mode = TABLE_SPEC_MODE_ASYNC,
                                  .connect_ms = timeout_ms,
                                  .give_up_ms = timeout_ms,
                                  .window_bytes = 32u << 20,
                                  .on_notice = on_notice,
                                  .is_cancelled = is_interrupted,
                                  .cancel_arg = w,
                                  .origin = { .incarnation = clock_unix_ms() } };
    int status;

    job_of(table, job);
    if (w->client && strcmp(job, w->job) == 0)
        return 0;
    status = leave(w, err);
    if (status)
        return status;
    memcpy(w->job, job, sizeof w->job);
    return ps_open(&options, &w->client, err);
}

/* From what the file says, its settings being the defaults and those of --set. */
static int make_table(struct import *w, const struct tensor_inputs *set,
                      const struct import_table *t, struct table_spec *spec, uint32_t *ret,
                      struct err *err)
{
    const char *note = tensor_inputs_note(set, t->name);
    cJSON *json = note ? cJSON_Parse(note) : NULL;
    const char *optim =
                   cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "optimizer")),
               *storage =
                   cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "storage"));
    const cJSON *dim = cJSON_GetObjectItemCaseSensitive(json, "dim");
    int status = 0;

    spec->kind = t->keys ? TABLE_SPEC_SPARSE : TABLE_SPEC_DENSE;
    spec->dim = t->keys                                    ? (uint32_t)t->dim
                : cJSON_IsNumber(dim) && dim->valueint > 0 ? (uint32_t)dim->valueint
                                                           : 0;
    spec->n_floats = t->keys ? 0 : t->weights->n_bytes / sizeof(float);
    while (optim && spec->optim < TABLE_SPEC_OPTIM_END &&
           strcmp(table_spec_optim_name(spec->optim), optim) != 0)
        spec->optim++;
    while (storage && spec->storage < TABLE_SPEC_STORAGE_END &&
           strcmp(table_spec_storage_name(spec->storage), storage) != 0)
        spec->storage++;
    if (!spec->dim || spec->optim == TABLE_SPEC_OPTIM_END ||
        spec->storage == TABLE_SPEC_STORAGE_END || (!optim && t->n_state))
        status =
            err_set(err, PS_EDATA,
                    "table %.100s: the file does not say what it is, as psctl export writes it",
                    t->name);
    cJSON_Delete(json);
    if (status)
        return status;
    spec->params = table_spec_optim_defaults(spec->optim);
    if (w->options->set[0])
        status = table_spec_set(spec, w->options->set, err);
    return status ? status : ps_table(w->client, spec, ret, err);
}

static int open_table(struct import *w, const struct tensor_inputs *set,
                      const struct import_table *t, struct table_spec *spec, uint32_t *ret,
                      struct err *err)
{
    int status = join(w, t->name, err);

    *spec = (struct table_spec){ 0 };
    memcpy(spec->name, t->name, sizeof spec->name);
    if (!status)
        status = ps_table_find(w->client, spec, ret, err);
    if (status != PS_ENOTABLE)
        return status;
    if (!w->options->make)
        return err_set(err, status,
                       "table %.100s is not there: start its job first, or --make makes it as "
                       "the file says",
                       t->name);
    return make_table(w, set, t, spec, ret, err);
}

/* --- slices of a table --- */

/* Rows [from, from + n) of a sparse table; floats [from x dim ...) of a dense one, whose last block is filled up. */
static int read_floats(const struct import_table *t, const struct tensor_input *a,
                       uint64_t from, size_t n, uint32_t width, float *dst, struct err *err)
{
    const uint64_t at = from * width, n_floats = a->n_bytes / sizeof(float),
                   n_wanted = (uint64_t)n * width;
    const size_t n_there = (size_t)(n_floats - at < n_wanted ? n_floats - at : n_wanted);

    (void)t;
    memset(dst + n_there, 0, (n_wanted - n_there) * sizeof *dst);
    return tensor_input_read(a, at * sizeof *dst, dst, n_there * sizeof *dst, err);
}

/* Each row's state together, of arrays that have a part of it each. */
static int read_state(struct import *w, const struct import_table *t,
                      const struct table_spec *spec, uint64_t from, size_t n, struct err *err)
{
    const size_t n_state = table_spec_state_floats(spec);
    int status = 0;

    for (uint32_t i = 0; i < t->n_state && !status; i++) {
        const uint32_t width = state_width(t, spec, i);

        status = read_floats(t, t->state[i], from, n, width, w->part, err);
        for (size_t row = 0; row < n && !status; row++)
            memcpy(w->state + row * n_state + i * spec->dim, w->part + row * width,
                   width * sizeof(float));
    }
    /* Exported weights have decayed up to the step of the export. */
    for (size_t row = 0; row < n && spec->row_decay > 0; row++)
        w->state[row * n_state + n_state - 1] = (float)t->steps;
    return status;
}

static int read_keys(struct import *w, const struct import_table *t, uint64_t from, size_t n,
                     struct err *err)
{
    if (t->keys)
        return tensor_input_read(t->keys, from * sizeof *w->keys, w->keys, n * sizeof *w->keys,
                                 err);
    for (size_t i = 0; i < n; i++)
        w->keys[i] = from + i;
    return 0;
}

/* Keys of 2^63 and more come first in a file of signed ones. */
static int assign(struct import *w, uint32_t table, const struct table_spec *spec, size_t n,
                  bool with_state, uint64_t steps, struct err *err)
{
    size_t n_first = 1;
    int status;

    while (n_first < n && w->keys[n_first - 1] < w->keys[n_first])
        n_first++;
    status = ps_assign(w->client, table, w->keys, n_first, w->weights,
                       with_state ? w->state : NULL, steps, err);
    if (!status && n_first < n)
        status = ps_assign(
            w->client, table, w->keys + n_first, n - n_first, w->weights + n_first * spec->dim,
            with_state ? w->state + n_first * table_spec_state_floats(spec) : NULL, steps, err);
    return status;
}

static int import_rows(struct import *w, const struct import_table *t,
                       const struct table_spec *spec, uint32_t table, struct err *err)
{
    const size_t row_bytes =
        (spec->dim + (size_t)table_spec_state_floats(spec)) * sizeof(float);
    const size_t n_most = SLICE_BYTES / row_bytes ? SLICE_BYTES / row_bytes : 1;
    const uint64_t n = t->keys ? t->n_rows : table_spec_n_blocks(spec);
    /* SGD has no state, but steps. */
    const bool with_state =
        !w->options->weights && (t->n_state > 0 || (spec->optim == TABLE_SPEC_SGD && t->steps));
    int status = 0;

    w->keys = memory_alloc(n_most * sizeof *w->keys);
    w->weights = memory_alloc(n_most * spec->dim * sizeof(float));
    w->state = memory_alloc(n_most * row_bytes);
    w->part = memory_alloc(n_most * row_bytes);
    for (uint64_t at = 0; at < n && !status; at += n_most) {
        const size_t n_here = n - at < n_most ? (size_t)(n - at) : n_most;

        if (is_interrupted(w))
            status = err_set(err, -ECANCELED, "interrupted");
        if (!status)
            status = read_keys(w, t, at, n_here, err);
        if (!status)
            status = read_floats(t, t->weights, at, n_here, spec->dim, w->weights, err);
        if (!status && with_state)
            status = read_state(w, t, spec, at, n_here, err);
        if (!status)
            status = assign(w, table, spec, n_here, with_state, t->steps, err);
        w->n_rows_done += status ? 0 : n_here;
        report_progress(w, t->name);
    }
    free(w->keys);
    free(w->weights);
    free(w->state);
    free(w->part);
    return status;
}

static int import_table(struct import *w, const struct tensor_inputs *set,
                        struct import_table *t, struct err *err)
{
    struct table_spec spec;
    uint32_t table;
    int status;

    if (w->options->weights)
        t->n_state = 0;
    status = open_table(w, set, t, &spec, &table, err);
    if (!status)
        status = import_check_spec(t, &spec, err);
    if (!status)
        status = import_rows(w, t, &spec, table, err);
    if (!status)
        status = ps_flush(w->client, err);
    return status;
}

/* --- all of it --- */

/* --table names those that are meant. */
static int choose(const struct options *o, struct import_table *tables, uint32_t *n,
                  struct err *err)
{
    uint32_t n_kept = 0;

    for (uint32_t k = 0; k < o->tables.n; k++) {
        uint32_t i = 0;

        while (i < *n && strcmp(tables[i].name, o->tables.items[k]) != 0)
            i++;
        if (i == *n)
            return err_set(err, PS_ESETTING, "table: the file has no table %.100s",
                           o->tables.items[k]);
    }
    for (uint32_t i = 0; i < *n; i++) {
        bool is_meant = o->tables.n == 0;

        for (uint32_t k = 0; k < o->tables.n; k++)
            is_meant |= strcmp(tables[i].name, o->tables.items[k]) == 0;
        if (is_meant)
            tables[n_kept++] = tables[i];
    }
    *n = n_kept;
    return n_kept ? 0
                  : err_set(err, PS_EDATA,
                            "there is no table in it: NAME.keys with NAME.weight, or NAME of a "
                            "dense one");
}

static int import_all(struct import *w, const struct tensor_inputs *set,
                      struct import_table *tables, uint32_t n, struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < n && !status; i++) {
        status = import_check_numbers(&tables[i], err);
        w->n_rows += tables[i].n_rows;
    }
    w->began_ns = w->reported_ns = clock_mono_ns();
    for (uint32_t i = 0; i < n && !status; i++, w->n_tables++)
        status = import_table(w, set, &tables[i], err);
    return status ? status : leave(w, err);
}

static int report(const struct import *w)
{
    const double seconds = (double)(clock_mono_ns() - w->began_ns) / NANOS;
    cJSON *json;

    if (w->options->json) {
        json = cJSON_CreateObject();
        data_dir_add_u64(json, "tables", w->n_tables);
        data_dir_add_u64(json, "rows", w->n_rows_done);
        data_dir_add_u64(json, "rows_refused", w->n_refused);
        data_dir_print_json(json);
    } else {
        printf("%" PRIu32 " table%s, %" PRIu64 " row%s imported in %.1f s, %.0f rows/s\n",
               w->n_tables, NUMBER_PLURAL(w->n_tables), w->n_rows_done,
               NUMBER_PLURAL(w->n_rows_done), seconds,
               (double)w->n_rows_done / (seconds > 0 ? seconds : 1));
    }
    if (!w->n_refused)
        return EXIT_ANSWERED;
    fprintf(stderr,
            "psctl: %" PRIu64 " of these rows found no place in memory and are left out "
            "(--memory-max, --table-max)\n",
            w->n_refused);
    return EXIT_FAILED;
}

static int fail_import(const struct import *w, struct err *err)
{
    struct err inner = *err;

    if (atomic_load(&w->is_interrupted))
        err_set(err, inner.status,
                "interrupted: %" PRIu64
                " rows were sent; the same import once more completes it, from the beginning",
                w->n_rows_done);
    return data_dir_fail(err);
}

int import_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct import w = { .options = o, .signals = -1 };
    struct tensor_inputs set = { 0 };
    struct import_table *tables = NULL;
    struct err err = { 0 };
    uint32_t n = 0;
    int status, code;

    (void)n_words;
    snprintf(w.name, sizeof w.name, "psctl import %d", (int)getpid());
    block_signals(&w);
    status = token_file_read(&file_os, o->token_file, w.token, &err);
    if (!status)
        status = tensor_inputs_open(&set, words[0], &err);
    if (!status)
        status = import_find_tables(&set, &tables, &n, &err);
    if (!status)
        status = choose(o, tables, &n, &err);
    if (!status)
        status = import_all(&w, &set, tables, n, &err);
    code = status ? fail_import(&w, &err) : report(&w);
    ps_close(w.client);
    free(tables);
    tensor_inputs_close(&set);
    if (w.signals >= 0)
        close(w.signals);
    return code;
}
