#include "deploy/psctl/export.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/mem.h"
#include "deploy/psctl/arrays.h"
#include "deploy/psctl/npy.h"
#include "deploy/psctl/offline.h"
#include "deploy/psctl/safetensors.h"

#define INDEX_NAME "tables.json"

struct export
{
    const struct options *options;
    struct shard *shard;   /* owned: everything */
    struct arrays *arrays; /* owned: of each table */
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

    cJSON_AddStringToObject(object, "name", t->spec.name);
    cJSON_AddStringToObject(object, "kind", spec_kind_name(t->spec.kind));
    offline_add_u64(object, "dim", t->spec.dim);
    if (t->spec.kind == SPEC_DENSE)
        offline_add_u64(object, "n_floats", t->spec.n_floats);
    else
        offline_add_u64(object, "rows", table_n_rows(t->rows));
    cJSON_AddStringToObject(object, "optimizer", spec_optim_name(t->spec.optim));
    cJSON_AddStringToObject(object, "storage", spec_storage_name(t->spec.storage));
    offline_add_u64(object, "steps", t->n_pushes);
    return object;
}

/* --- safetensors --- */

static struct safetensors_note *make_notes(const struct export *e)
{
    struct safetensors_note *notes = mem_alloc((e->n_tables + 1) * sizeof *notes);

    for (uint32_t i = 0; i < e->n_tables; i++) {
        cJSON *object = describe(e->arrays[i].table);
        char *text = cJSON_PrintUnformatted(object);

        snprintf(notes[i].name, sizeof notes[i].name, "psd:%s", e->arrays[i].table->spec.name);
        snprintf(notes[i].text, sizeof notes[i].text, "%s", text ? text : "");
        free(text);
        cJSON_Delete(object);
    }
    return notes;
}

static int write_safetensors(const struct export *e, struct err *err)
{
    struct tensor *tensors = mem_alloc((n_tensors(e) + 1) * sizeof *tensors);
    struct safetensors_note *notes = make_notes(e);
    uint32_t n = 0;
    int status;

    for (uint32_t i = 0; i < e->n_tables; i++)
        for (uint32_t k = 0; k < e->arrays[i].n_tensors; k++)
            tensors[n++] = e->arrays[i].tensors[k];
    status = safetensors_write(&file_os, e->options->out, tensors, n, notes, e->n_tables, err);
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

static int write_array(const struct export *e, const struct tensor *t, cJSON *names,
                       struct err *err)
{
    char path[TENSOR_PATH_MAX + 600], name[3 * TENSOR_NAME_MAX + 8];

    escape(t->name, name, sizeof name);
    cJSON_AddItemToArray(names, cJSON_CreateString(name));
    snprintf(path, sizeof path, "%s/%s.npy", e->options->out, name);
    return npy_write(&file_os, path, t, err);
}

static int write_index(const struct export *e, cJSON *root, struct err *err)
{
    char path[TENSOR_PATH_MAX + 600], *text = cJSON_Print(root);
    struct tensor_file f;
    int status;

    snprintf(path, sizeof path, "%s/" INDEX_NAME, e->options->out);
    status = text ? tensor_file_open(&f, &file_os, path, err) : -ENOMEM;
    if (!status)
        status = tensor_file_close(&f, tensor_file_put(&f, text, strlen(text)));
    free(text);
    return status;
}

static int write_npy(const struct export *e, struct err *err)
{
    cJSON *root = cJSON_CreateObject(), *tables = cJSON_AddArrayToObject(root, "tables");
    int status = file_os.mkdir(file_os.state, e->options->out);

    if (status)
        err_set(err, status, "out: cannot make %.180s: %s", e->options->out,
                status_text(status));
    for (uint32_t i = 0; i < e->n_tables && !status; i++) {
        cJSON *item = describe(e->arrays[i].table), *names;

        cJSON_AddItemToArray(tables, item);
        names = cJSON_AddArrayToObject(item, "arrays");
        for (uint32_t k = 0; k < e->arrays[i].n_tensors && !status; k++)
            status = write_array(e, &e->arrays[i].tensors[k], names, err);
    }
    if (!status)
        status = write_index(e, root, err);
    cJSON_Delete(root);
    return status;
}

/* --- all of it --- */

static int make_arrays(struct export *e, struct err *err) ON_SHARD
{
    enum arrays_extent extent = e->options->state ? ARRAYS_WITH_STATE : ARRAYS_WEIGHTS;
    int status = 0;

    e->n_tables = shard_n_tables(e->shard);
    e->arrays = mem_alloc((e->n_tables + 1) * sizeof *e->arrays);
    for (uint32_t i = 0; i < e->n_tables && !status; i++) {
        status = arrays_init(&e->arrays[i], e->shard, i, extent, err);
        for (uint32_t k = 0; k < e->arrays[i].n_tensors; k++)
            e->n_bytes += tensor_bytes(&e->arrays[i].tensors[k]);
    }
    return status;
}

/* One array of `a` is called as one of another table; NULL: none. */
static const char *clash(const struct arrays *a, const struct arrays *b)
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

static void tell(const struct export *e)
{
    cJSON *json;

    if (!e->options->json) {
        printf("%s is written: %u tables, %u arrays, %" PRIu64 " bytes of numbers\n",
               e->options->out, e->n_tables, n_tensors(e), e->n_bytes);
        return;
    }
    json = cJSON_CreateObject();
    offline_add_u64(json, "tables", e->n_tables);
    offline_add_u64(json, "arrays", n_tensors(e));
    offline_add_u64(json, "bytes", e->n_bytes);
    offline_print_json(json);
}

int export_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct export e = { .options = o };
    struct collect_facts facts;
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
        status = offline_collect(o, words[0], COLLECT_WHOLE, &e.shard, &facts, &err);
    if (!status)
        status = make_arrays(&e, &err);
    if (!status)
        status = check_names(&e, &err);
    if (!status)
        status = o->format == FORMAT_NPY ? write_npy(&e, &err) : write_safetensors(&e, &err);
    if (!status)
        tell(&e);
    for (uint32_t i = 0; i < e.n_tables; i++)
        arrays_deinit(&e.arrays[i]);
    free(e.arrays);
    shard_free(e.shard);
    err.status = status;
    return status ? offline_fail(&err) : EXIT_ANSWERED;
}
