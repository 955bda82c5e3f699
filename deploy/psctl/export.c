#include "deploy/psctl/export.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/memory.h"
#include "common/number.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/tensor_files.h"
#include "server/core/optimizer.h"
#include "server/core/restore.h"
#include "server/core/row_decay.h"
#include "server/core/weights.h"

/* --- parts of tensors --- */

static size_t key_part(void *owner, uint64_t i, uint8_t *dst)
{
    const struct export_source *s = owner;

    memcpy(dst, &s->arrays->items[i].key, sizeof s->arrays->items[i].key);
    return sizeof s->arrays->items[i].key;
}

/* Weights and state of a row, as floats. */
static const float *load_row(const struct export_arrays *a, uint64_t i)
{
    const struct shard_table *t = a->table;
    const struct row *row = a->items[i].row;

    weights_load(t->spec.storage, row->floats, t->spec.dim, a->floats);
    row_decay_show(t, row, a->floats);
    memcpy(a->floats + t->spec.dim, (const uint8_t *)row->floats + t->weights_bytes,
           a->n_state * sizeof(float));
    return a->floats;
}

static size_t row_part(void *owner, uint64_t i, uint8_t *dst)
{
    const struct export_source *s = owner;

    memcpy(dst, load_row(s->arrays, i) + s->first, s->n_floats * sizeof(float));
    return s->n_floats * sizeof(float);
}

/* The last block's tail is padding. */
static size_t block_part(void *owner, uint64_t i, uint8_t *dst)
{
    const struct export_source *s = owner;
    const struct table_spec *spec = &s->arrays->table->spec;
    uint64_t left = spec->n_floats - i * spec->dim;
    size_t n = left < spec->dim ? (size_t)left : spec->dim;

    memcpy(dst, load_row(s->arrays, i) + s->first, n * sizeof(float));
    return n * sizeof(float);
}

/* --- tensors --- */

static struct tensor_array *add(struct export_arrays *a, const char *tail,
                                enum tensor_files_type type)
{
    struct tensor_array *t = &a->tensors[a->n_tensors];
    struct export_source *s = &a->sources[a->n_tensors++];

    *s = (struct export_source){ .arrays = a };
    *t = (struct tensor_array){ .type = type, .owner = s, .n_parts = a->n_items };
    snprintf(t->name, sizeof t->name, "%s%s", a->table->spec.name, tail);
    return t;
}

static void add_keys(struct export_arrays *a)
{
    struct tensor_array *t = add(a, ".keys", TENSOR_FILES_I64);

    t->n_dims = 1;
    t->dims[0] = a->n_items;
    t->part = key_part;
    t->part_bytes = sizeof(int64_t);
}

/* Floats `first` to first + n_floats of each row. */
static void add_floats(struct export_arrays *a, const char *tail, uint32_t first,
                       uint32_t n_floats, bool is_as_weights)
{
    const struct table_spec *spec = &a->table->spec;
    struct tensor_array *t = add(a, tail, TENSOR_FILES_F32);
    struct export_source *s = t->owner;
    const bool is_flat = spec->kind == TABLE_SPEC_DENSE && is_as_weights;
    const bool is_one = n_floats == 1 && !is_as_weights;

    s->first = first;
    s->n_floats = n_floats;
    t->part = is_flat ? block_part : row_part;
    t->part_bytes = n_floats * sizeof(float);
    t->n_dims = is_flat || is_one ? 1 : 2;
    t->dims[0] = is_flat ? spec->n_floats : a->n_items;
    t->dims[1] = n_floats;
}

const char *const *export_state_names(enum table_spec_optim optim)
{
    static const char *const names[][EXPORT_STATES_MAX] = {
        [TABLE_SPEC_SGD] = { NULL },
        [TABLE_SPEC_MOMENTUM] = { ".state.b" },
        [TABLE_SPEC_ADAGRAD] = { ".state.s" },
        [TABLE_SPEC_ROWWISE_ADAGRAD] = { ".state.s" },
        [TABLE_SPEC_ADAM] = { ".state.m", ".state.v" },
        [TABLE_SPEC_FTRL] = { ".state.z", ".state.n" },
        [TABLE_SPEC_ADAMW] = { ".state.m", ".state.v", ".state.t" },
        [TABLE_SPEC_LION] = { ".state.m", ".state.t" },
        [TABLE_SPEC_LAMB] = { ".state.m", ".state.v" },
        [TABLE_SPEC_LARS] = { ".state.b" },
        [TABLE_SPEC_SM3] = { ".state.s" },
        [TABLE_SPEC_CAME] = { ".state.m", ".state.f" },
        [TABLE_SPEC_SM3_MATRIX] = { ".state.s" },
    };
    _Static_assert(sizeof names / sizeof *names == TABLE_SPEC_OPTIM_END,
                   "names of each optimizer's state");

    return names[optim];
}

uint32_t export_n_states(enum table_spec_optim optim)
{
    const char *const *names = export_state_names(optim);
    uint32_t n = 0;

    while (n < EXPORT_STATES_MAX && names[n])
        n++;
    return n;
}

bool export_state_is_as_weights(enum table_spec_optim optim, uint32_t i)
{
    static const uint32_t n_first[TABLE_SPEC_OPTIM_END] = {
        [TABLE_SPEC_MOMENTUM] = 1, [TABLE_SPEC_ADAGRAD] = 1, [TABLE_SPEC_ADAM] = 2,
        [TABLE_SPEC_FTRL] = 2,     [TABLE_SPEC_ADAMW] = 2,   [TABLE_SPEC_LION] = 1,
        [TABLE_SPEC_LAMB] = 2,     [TABLE_SPEC_LARS] = 1,    [TABLE_SPEC_CAME] = 1,
    };

    return i < n_first[optim];
}

/* At most one array is not as the weights, and it comes last: it has what is left of the row. */
uint32_t export_state_width(const struct table_spec *spec, uint32_t i)
{
    const uint32_t n_floats = optimizer_find(spec->optim)->state_floats(spec->dim);

    return export_state_is_as_weights(spec->optim, i) ? spec->dim : n_floats - i * spec->dim;
}

static void add_state(struct export_arrays *a)
{
    const struct table_spec *spec = &a->table->spec;
    const char *const *names = export_state_names(spec->optim);
    uint32_t n = export_n_states(spec->optim), first = spec->dim;

    for (uint32_t i = 0; i < n; first += export_state_width(spec, i++))
        add_floats(a, names[i], first, export_state_width(spec, i),
                   export_state_is_as_weights(spec->optim, i));
}

/* --- rows --- */

static int by_key(const void *left, const void *right)
{
    int64_t a = ((const struct export_item *)left)->key;
    int64_t b = ((const struct export_item *)right)->key;

    return a < b ? -1 : a > b;
}

static int fill_blocks(struct shard *shard, uint32_t table_id) ON_SHARD
{
    const struct shard_table *t = shard_table(shard, table_id);
    uint64_t n = t->spec.kind == TABLE_SPEC_DENSE ? table_spec_n_blocks(&t->spec) : 0;
    int status = 0;

    for (uint64_t key = 0; key < n && !status; key++) {
        struct row *row;

        table_find_batch(t->rows, &key, 1, &row);
        if (!row)
            status = restore_row(shard, table_id, key, 0, NULL);
    }
    return status;
}

static int gather(struct export_arrays *a)
{
    const struct table *rows = a->table->rows;
    uint64_t n = table_n_numbers(rows);

    a->items = memory_try_alloc((table_n_rows(rows) + 1) * sizeof *a->items);
    if (!a->items)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++) {
        const struct row *row = table_row(rows, i);

        if (row)
            a->items[a->n_items++] = (struct export_item){ (int64_t)row->key, row };
    }
    qsort(a->items, a->n_items, sizeof *a->items, by_key);
    return 0;
}

int export_init(struct export_arrays *a, struct shard *shard, uint32_t table_id,
                enum export_extent extent, struct err *err)
{
    const struct table_spec *spec;
    int status = fill_blocks(shard, table_id);

    *a = (struct export_arrays){ .table = shard_table(shard, table_id) };
    spec = &a->table->spec;
    if (!status)
        status = gather(a);
    if (status) {
        export_deinit(a);
        return err_set(err, status, "table %s: cannot be put in order: %s", spec->name,
                       status_text(status));
    }
    a->n_state = optimizer_find(spec->optim)->state_floats(spec->dim);
    a->floats = memory_alloc((spec->dim + a->n_state) * sizeof(float));
    if (spec->kind == TABLE_SPEC_SPARSE)
        add_keys(a);
    add_floats(a, spec->kind == TABLE_SPEC_SPARSE ? ".weight" : "", 0, spec->dim, true);
    if (extent == EXPORT_WITH_STATE)
        add_state(a);
    return 0;
}

void export_deinit(struct export_arrays *a)
{
    free(a->items);
    free(a->floats);
    a->items = NULL;
    a->floats = NULL;
}

#define INDEX_NAME "tables.json"

struct export
{
    const struct options *options;
    struct shard *shard;          /* owned: everything */
    struct export_arrays *arrays; /* owned: of each table */
    uint32_t n_tables;
    uint64_t n_bytes;
};

static uint32_t n_tensors(const struct export *e)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < e->n_tables; i++)
        n += e->arrays[i].n_tensors;
    return n;
}

/* What a table is, beside its numbers. */
static cJSON *describe(const struct shard_table *t)
{
    cJSON *object = cJSON_CreateObject();
    char seed[24]; /* as text: a JSON number is not sure to keep 64 bits */

    cJSON_AddStringToObject(object, "name", t->spec.name);
    cJSON_AddStringToObject(object, "kind", table_spec_kind_name(t->spec.kind));
    data_dir_add_u64(object, "dim", t->spec.dim);
    if (t->spec.kind == TABLE_SPEC_DENSE)
        data_dir_add_u64(object, "n_floats", t->spec.n_floats);
    else
        data_dir_add_u64(object, "rows", table_n_rows(t->rows));
    /* A key without a row has initial weights: a server of the export needs them, too. */
    cJSON_AddStringToObject(object, "init", table_spec_init_name(t->spec.init));
    cJSON_AddNumberToObject(object, "init_scale", (double)t->spec.init_scale);
    snprintf(seed, sizeof seed, "%" PRIu64, t->spec.seed);
    cJSON_AddStringToObject(object, "seed", seed);
    cJSON_AddStringToObject(object, "optimizer", table_spec_optim_name(t->spec.optim));
    cJSON_AddStringToObject(object, "storage", table_spec_storage_name(t->spec.storage));
    data_dir_add_u64(object, "steps", t->n_pushes);
    return object;
}

/* --- the record of a job's model (worker/model_record.h) --- */

#define MODEL_TAIL "/model"
#define MODEL_BYTES_MAX (UINT64_C(1) << 24)

/* The JSON text in table JOB/model, a byte in each float, for the caller to delete; *ret_job: the length of JOB.
 * NULL: it is no record, or one that has not been written yet. */
static cJSON *read_model(const struct export_arrays *a, int *ret_job)
{
    const struct table_spec *spec = &a->table->spec;
    const size_t n_name = strlen(spec->name), n_tail = strlen(MODEL_TAIL);
    uint64_t n = 0;
    cJSON *json;
    char *text;

    if (spec->kind != TABLE_SPEC_DENSE || n_name <= n_tail ||
        spec->n_floats > MODEL_BYTES_MAX ||
        strcmp(spec->name + n_name - n_tail, MODEL_TAIL) != 0)
        return NULL;
    text = memory_alloc(a->n_items * spec->dim + 1);
    for (uint64_t i = 0; i < a->n_items; i++) {
        const float *floats = load_row(a, i);

        for (uint32_t k = 0; k < spec->dim; k++)
            text[n++] = floats[k] >= 1 && floats[k] < 256 ? (char)(uint8_t)floats[k] : '\0';
    }
    text[n] = '\0';
    json = cJSON_Parse(text);
    free(text);
    if (!cJSON_IsString(cJSON_GetObjectItemCaseSensitive(json, "format"))) {
        cJSON_Delete(json);
        return NULL;
    }
    *ret_job = (int)(n_name - n_tail);
    return json;
}

/* --- safetensors --- */

/* Takes the object; the text is the caller's to free. */
static char *text_of(cJSON *object)
{
    char *text = cJSON_PrintUnformatted(object);

    cJSON_Delete(object);
    return text ? text : memory_alloc(1);
}

/* For each table, and for each model. */
static struct safetensors_note *make_notes(const struct export *e, uint32_t *ret_n)
{
    struct safetensors_note *notes = memory_alloc((2 * e->n_tables + 1) * sizeof *notes);
    uint32_t n = 0;

    for (uint32_t i = 0; i < e->n_tables; i++) {
        const struct export_arrays *a = &e->arrays[i];
        int n_job = 0;
        cJSON *model = read_model(a, &n_job);

        snprintf(notes[n].name, sizeof notes[n].name, "psd:%s", a->table->spec.name);
        notes[n++].text = text_of(describe(a->table));
        if (!model)
            continue;
        snprintf(notes[n].name, sizeof notes[n].name, "psd.model:%.*s", n_job,
                 a->table->spec.name);
        notes[n++].text = text_of(model);
    }
    *ret_n = n;
    return notes;
}

static int write_safetensors(const struct export *e, struct err *err)
{
    struct tensor_array *tensors = memory_alloc((n_tensors(e) + 1) * sizeof *tensors);
    uint32_t n = 0, n_notes = 0;
    struct safetensors_note *notes = make_notes(e, &n_notes);
    int status;

    for (uint32_t i = 0; i < e->n_tables; i++)
        for (uint32_t k = 0; k < e->arrays[i].n_tensors; k++)
            tensors[n++] = e->arrays[i].tensors[k];
    status = tensor_files_write_safetensors(&file_os, e->options->out, tensors, n, notes,
                                            n_notes, err);
    for (uint32_t i = 0; i < n_notes; i++)
        free(notes[i].text);
    free(tensors);
    free(notes);
    return status;
}

/* --- npy --- */

/* A name of a file, from which the name of the array can be read back. */
static void escape(const char *name, char *dst, size_t dst_bytes)
{
    size_t len = 0;

    for (; *name && len + 4 < dst_bytes; name++) {
        bool plain = isalnum((unsigned char)*name) || (*name && strchr("._-", *name));

        if (plain && !(len == 0 && *name == '.'))
            dst[len++] = *name;
        else
            len += (size_t)snprintf(dst + len, dst_bytes - len, "%%%02X", (unsigned char)*name);
    }
    dst[len] = '\0';
}

static int write_array(const struct export *e, const struct tensor_array *t, cJSON *names,
                       struct err *err)
{
    char path[TENSOR_FILES_PATH_MAX + 600], name[3 * TENSOR_FILES_NAME_MAX + 8];

    escape(t->name, name, sizeof name);
    cJSON_AddItemToArray(names, cJSON_CreateString(name));
    snprintf(path, sizeof path, "%s/%s.npy", e->options->out, name);
    return tensor_files_write_npy(&file_os, path, t, err);
}

static int write_index(const struct export *e, cJSON *root, struct err *err)
{
    char path[TENSOR_FILES_PATH_MAX + 600], *text = cJSON_Print(root);
    struct tensor_file f;
    int status;

    snprintf(path, sizeof path, "%s/" INDEX_NAME, e->options->out);
    status = text ? tensor_files_open(&f, &file_os, path, err) : -ENOMEM;
    if (!status)
        status = tensor_files_close(&f, tensor_files_put(&f, text, strlen(text)));
    free(text);
    return status;
}

static int write_npy(const struct export *e, struct err *err)
{
    cJSON *root = cJSON_CreateObject(), *tables = cJSON_AddArrayToObject(root, "tables");
    cJSON *models = cJSON_AddObjectToObject(root, "models");
    int status = file_os.mkdir(file_os.state, e->options->out);

    if (status)
        err_set(err, status, "out: cannot make %.180s: %s", e->options->out,
                status_text(status));
    for (uint32_t i = 0; i < e->n_tables && !status; i++) {
        cJSON *item = describe(e->arrays[i].table), *names, *model;
        char job[TABLE_SPEC_NAME_MAX];
        int n_job = 0;

        cJSON_AddItemToArray(tables, item);
        names = cJSON_AddArrayToObject(item, "arrays");
        for (uint32_t k = 0; k < e->arrays[i].n_tensors && !status; k++)
            status = write_array(e, &e->arrays[i].tensors[k], names, err);
        model = read_model(&e->arrays[i], &n_job);
        snprintf(job, sizeof job, "%.*s", n_job, e->arrays[i].table->spec.name);
        if (model)
            cJSON_AddItemToObject(models, job, model);
    }
    if (!status)
        status = write_index(e, root, err);
    cJSON_Delete(root);
    return status;
}

/* --- all of it --- */

static int make_arrays(struct export *e, struct err *err) ON_SHARD
{
    enum export_extent extent = e->options->state ? EXPORT_WITH_STATE : EXPORT_WEIGHTS;
    int status = 0;

    e->n_tables = shard_n_tables(e->shard);
    e->arrays = memory_alloc((e->n_tables + 1) * sizeof *e->arrays);
    for (uint32_t i = 0; i < e->n_tables && !status; i++) {
        status = export_init(&e->arrays[i], e->shard, i, extent, err);
        for (uint32_t k = 0; k < e->arrays[i].n_tensors; k++)
            e->n_bytes += tensor_files_array_bytes(&e->arrays[i].tensors[k]);
    }
    return status;
}

/* One array of `a` is called as one of another table; NULL: none. */
static const char *clash(const struct export_arrays *a, const struct export_arrays *b)
{
    for (uint32_t i = 0; i < a->n_tensors; i++)
        for (uint32_t k = 0; k < b->n_tensors; k++)
            if (strcmp(a->tensors[i].name, b->tensors[k].name) == 0)
                return a->tensors[i].name;
    return NULL;
}

/* Each name stands for one array: table X has an array X.weight, and a dense table may be called so. */
static int check_names(const struct export *e, struct err *err)
{
    for (uint32_t i = 0; i < e->n_tables; i++)
        for (uint32_t k = 0; k < i; k++) {
            const char *name = clash(&e->arrays[i], &e->arrays[k]);

            if (name)
                return err_set(err, -EEXIST,
                               "tables %.60s and %.60s both have an array %.60s: export them "
                               "into two files, with --table",
                               e->arrays[k].table->spec.name, e->arrays[i].table->spec.name,
                               name);
        }
    for (uint32_t i = 0; i < e->n_tables && e->options->format == FORMAT_SAFETENSORS; i++)
        if (strcmp(e->arrays[i].tensors[0].name, SAFETENSORS_NO_NAME) == 0)
            return err_set(err, -EINVAL,
                           "a safetensors file has no array " SAFETENSORS_NO_NAME
                           ": export that table with --format npy");
    return 0;
}

static void report(const struct export *e)
{
    cJSON *json;

    if (!e->options->json) {
        printf("%s is written: %u table%s, %u array%s, %" PRIu64 " bytes of numbers\n",
               e->options->out, e->n_tables, NUMBER_PLURAL(e->n_tables), n_tensors(e),
               NUMBER_PLURAL(n_tensors(e)), e->n_bytes);
        return;
    }
    json = cJSON_CreateObject();
    data_dir_add_u64(json, "tables", e->n_tables);
    data_dir_add_u64(json, "arrays", n_tensors(e));
    data_dir_add_u64(json, "bytes", e->n_bytes);
    data_dir_print_json(json);
}

int export_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct export e = { .options = o };
    struct load_cluster_facts facts;
    struct err err = { 0 };
    int status = 0;

    (void)n_words;
    enter_shard();
    if (!o->out[0])
        status = err_set(&err, PS_ESETTING, "out: expected the path to write, --out PATH");
    if (!status && access(o->out, F_OK) == 0)
        status = err_set(&err, -EEXIST,
                         "%.200s is there already: name a new place, or remove it", o->out);
    if (!status)
        status = data_dir_collect(o, words[0], LOAD_CLUSTER_WHOLE, &e.shard, &facts, &err);
    if (!status)
        status = make_arrays(&e, &err);
    if (!status)
        status = check_names(&e, &err);
    if (!status)
        status = o->format == FORMAT_NPY ? write_npy(&e, &err) : write_safetensors(&e, &err);
    if (!status)
        report(&e);
    for (uint32_t i = 0; i < e.n_tables; i++)
        export_deinit(&e.arrays[i]);
    free(e.arrays);
    shard_free(e.shard);
    err.status = status;
    return status ? data_dir_fail(&err) : EXIT_ANSWERED;
}
