#include "server/checkpoint/manifest.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/crc32c.h"
#include "common/file_text.h"
#include "common/memory.h"

#define FORMAT "psd checkpoint"
#define FORMAT_VERSION 2
#define TEXT_MAX (1u << 20) /* a manifest of 1024 files is a quarter of it */
#define PATH_MAX_BYTES 1100u
#define TAIL_BYTES 23u                 /* "crc32c": "01234567" newline } newline */
#define NUMBER_MAX (UINT64_C(1) << 53) /* what a double holds exactly */

void manifest_file_name(uint32_t shard_index, char ret_name[static MANIFEST_NAME_MAX])
{
    snprintf(ret_name, MANIFEST_NAME_MAX, "shard-%03" PRIu32 ".psc", shard_index);
}

static void tail(char dst[static TAIL_BYTES + 1], const char *text, size_t n_bytes)
{
    snprintf(dst, TAIL_BYTES + 1, "\"crc32c\": \"%08" PRIx32 "\"\n}\n",
             crc32c_extend(0, text, n_bytes));
}

void manifest_note_job(struct manifest *m, const char *name, enum table_spec_mode mode,
                       uint64_t min_clock)
{
    uint32_t i = 0;

    while (i < m->n_jobs && strcmp(m->jobs[i].name, name) != 0)
        i++;
    if (i == MANIFEST_N_JOBS_MAX)
        return;
    if (i == m->n_jobs) {
        m->n_jobs++;
        m->jobs[i] = (struct manifest_job){ .mode = mode, .min_clock = min_clock };
        snprintf(m->jobs[i].name, sizeof m->jobs[i].name, "%s", name);
    }
    if (min_clock < m->jobs[i].min_clock)
        m->jobs[i].min_clock = min_clock;
}

static void print_files(FILE *out, const struct manifest *m)
{
    char name[MANIFEST_NAME_MAX];

    for (uint32_t i = 0; i < m->n_files; i++) {
        const struct shard_file_facts *f = &m->files[i];

        manifest_file_name(i, name);
        fprintf(out,
                "{\"name\": \"%s\", \"bytes\": %" PRIu64 ", \"crc32c\": \"%08" PRIx32
                "\", \"rows\": %" PRIu64 ", \"version\": %" PRIu64 ", \"shard\": %" PRIu32
                ", \"delta\": %s, \"gone\": %" PRIu64 ", \"first\": %" PRIu64
                ", \"through\": %" PRIu64 "}%s\n",
                name, f->n_bytes, f->crc, f->n_rows, f->version, f->shard,
                f->is_delta ? "true" : "false", f->n_gone, f->first, f->through,
                i + 1 < m->n_files ? "," : "");
    }
}

/* A name may hold any printable character. */
static void print_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

static void print_jobs(FILE *out, const struct manifest *m)
{
    for (uint32_t i = 0; i < m->n_jobs; i++) {
        fprintf(out, "{\"name\": ");
        print_text(out, m->jobs[i].name);
        fprintf(out, ", \"mode\": \"%s\", \"min_clock\": %" PRIu64 "}%s\n",
                table_spec_mode_name(m->jobs[i].mode),
                m->jobs[i].min_clock < NUMBER_MAX ? m->jobs[i].min_clock : NUMBER_MAX,
                i + 1 < m->n_jobs ? "," : "");
    }
}

/* The file's text, to be freed; NULL without memory. */
static char *print(const struct manifest *m, size_t *ret_bytes)
{
    char *text = NULL, end[TAIL_BYTES + 1];
    FILE *out = open_memstream(&text, ret_bytes);

    if (!out)
        return NULL;
    fprintf(out,
            "{\n\"format\": \"" FORMAT "\",\n\"format_version\": %d,\n\"number\": %" PRIu64
            ",\n\"node\": %" PRIu32 ",\n\"nodes\": %" PRIu32 ",\n\"shards_per_node\": %" PRIu32
            ",\n\"unix_ms\": %" PRIu64 ",\n\"base\": %" PRIu64 ",\n\"shards\": %" PRIu32
            ",\n\"map_id\": \"%016" PRIx64 "\",\n\"jobs\": [\n",
            FORMAT_VERSION, m->number, m->node, m->n_nodes, m->shards_per_node, m->unix_ms,
            m->base, m->n_shards, m->map_id);
    print_jobs(out, m);
    fprintf(out, "],\n\"files\": [\n");
    print_files(out, m);
    fprintf(out, "],\n");
    fflush(out);
    tail(end, text, *ret_bytes);
    fprintf(out, "%s", end);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

int manifest_write(const struct file_ops *files, const char *dir, const struct manifest *m,
                   struct err *err)
{
    char path[PATH_MAX_BYTES], tmp[PATH_MAX_BYTES + 8], *text;
    size_t n_bytes;
    int status;

    assert(m->n_files > 0 && m->n_files <= MANIFEST_N_FILES_MAX);
    snprintf(path, sizeof path, "%s/MANIFEST", dir);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    text = print(m, &n_bytes);
    if (!text)
        return err_set(err, -ENOMEM, "no memory to write %s", path);
    status = file_text_write(files, tmp, text, n_bytes);
    free(text);
    if (!status) /* the shards' files are named before the manifest is */
        status = files->sync_dir(files->state, dir);
    if (!status)
        status = files->rename(files->state, tmp, path);
    if (!status)
        status = files->sync_dir(files->state, dir);
    return status ? err_set(err, status, "cannot write the manifest: %s: %s",
                            status_text(status), path)
                  : 0;
}

static bool get_number(const cJSON *object, const char *name, uint64_t max, uint64_t *ret)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsNumber(item) ||
        !(item->valuedouble >= 0 && item->valuedouble <= (double)max) ||
        item->valuedouble != (double)(uint64_t)item->valuedouble)
        return false;
    *ret = (uint64_t)item->valuedouble;
    return true;
}

static bool get_u32(const cJSON *object, const char *name, uint32_t *ret)
{
    uint64_t number;

    if (!get_number(object, name, UINT32_MAX, &number))
        return false;
    *ret = (uint32_t)number;
    return true;
}

static bool is_text(const cJSON *object, const char *name, const char *want)
{
    const char *have = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

    return have && strcmp(have, want) == 0;
}

/* A number as n_digits hexadecimal digits. */
static bool get_hex(const cJSON *object, const char *name, size_t n_digits, uint64_t *ret)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

    if (!text || strlen(text) != n_digits || strspn(text, "0123456789abcdef") != n_digits)
        return false;
    *ret = strtoull(text, NULL, 16);
    return true;
}

static bool get_bool(const cJSON *object, const char *name, bool *ret)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    *ret = cJSON_IsTrue(item);
    return cJSON_IsBool(item);
}

static bool get_file(const cJSON *item, uint64_t version, struct shard_file_facts *f)
{
    uint64_t crc;

    if (!get_number(item, "bytes", NUMBER_MAX, &f->n_bytes) ||
        !get_hex(item, "crc32c", 8, &crc) ||
        !get_number(item, "rows", NUMBER_MAX, &f->n_rows) ||
        !get_number(item, "version", NUMBER_MAX, &f->version))
        return false;
    f->crc = (uint32_t)crc;
    return version < 2 ||
           (get_u32(item, "shard", &f->shard) && get_bool(item, "delta", &f->is_delta) &&
            get_number(item, "gone", NUMBER_MAX, &f->n_gone) &&
            get_number(item, "first", NUMBER_MAX, &f->first) &&
            get_number(item, "through", NUMBER_MAX, &f->through));
}

static bool get_files(const cJSON *array, uint64_t version, struct manifest *m)
{
    char name[MANIFEST_NAME_MAX];
    const cJSON *item;

    if (!cJSON_IsArray(array))
        return false;
    cJSON_ArrayForEach(item, array)
    {
        if (m->n_files == MANIFEST_N_FILES_MAX)
            return false;
        manifest_file_name(m->n_files, name);
        if (!is_text(item, "name", name) || !get_file(item, version, &m->files[m->n_files]) ||
            (m->files[m->n_files].is_delta && !m->base))
            return false;
        m->n_files++;
    }
    return m->n_files > 0;
}

static bool get_job(const cJSON *item, struct manifest_job *job)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "name"));

    if (!name || strlen(name) >= sizeof job->name ||
        !get_number(item, "min_clock", NUMBER_MAX, &job->min_clock))
        return false;
    memcpy(job->name, name, strlen(name) + 1);
    for (job->mode = 0; job->mode < TABLE_SPEC_MODE_END; job->mode++)
        if (is_text(item, "mode", table_spec_mode_name(job->mode)))
            return true;
    return false;
}

static bool get_jobs(const cJSON *array, struct manifest *m)
{
    const cJSON *item;

    if (!cJSON_IsArray(array))
        return false;
    cJSON_ArrayForEach(item, array)
    {
        if (m->n_jobs == MANIFEST_N_JOBS_MAX || !get_job(item, &m->jobs[m->n_jobs]))
            return false;
        m->n_jobs++;
    }
    return true;
}

/* What came with version 2. */
static bool get_layout(const cJSON *json, struct manifest *m)
{
    return get_number(json, "base", NUMBER_MAX, &m->base) &&
           (m->base == 0 || m->base < m->number) && get_u32(json, "shards", &m->n_shards) &&
           get_hex(json, "map_id", 16, &m->map_id) &&
           get_jobs(cJSON_GetObjectItemCaseSensitive(json, "jobs"), m);
}

/* What is wrong with the text, or NULL. */
static const char *parse(const char *text, size_t n_bytes, struct manifest *m)
{
    char end[TAIL_BYTES + 1];
    uint64_t version;
    bool good;
    cJSON *json;

    memset(m, 0, sizeof *m);
    if (n_bytes < TAIL_BYTES)
        return "it ends too early";
    tail(end, text, n_bytes - TAIL_BYTES);
    if (memcmp(end, text + n_bytes - TAIL_BYTES, TAIL_BYTES) != 0)
        return "it fails its checksum";
    json = cJSON_ParseWithLength(text, n_bytes);
    if (!json)
        return "it is no JSON, or there is no memory to read it";
    good = is_text(json, "format", FORMAT) &&
           get_number(json, "format_version", FORMAT_VERSION, &version) && version > 0 &&
           get_number(json, "number", NUMBER_MAX, &m->number) &&
           get_u32(json, "node", &m->node) && get_u32(json, "nodes", &m->n_nodes) &&
           get_u32(json, "shards_per_node", &m->shards_per_node) &&
           get_number(json, "unix_ms", NUMBER_MAX, &m->unix_ms) &&
           (version < 2 || get_layout(json, m)) &&
           get_files(cJSON_GetObjectItemCaseSensitive(json, "files"), version, m);
    cJSON_Delete(json);
    return good ? NULL : "a field is missing or out of range";
}

int manifest_read(const struct file_ops *files, const char *dir, struct manifest *ret,
                  struct err *err)
{
    char path[PATH_MAX_BYTES];
    struct bytes text = { 0 };
    const char *reason;
    int status;

    snprintf(path, sizeof path, "%s/MANIFEST", dir);
    status = file_text_read(files, path, TEXT_MAX, &text);
    reason = status ? NULL : parse((const char *)bytes_front(&text), bytes_len(&text), ret);
    bytes_deinit(&text);
    if (status == PS_ECORRUPT)
        return err_set(err, status, "the manifest is longer than any: %s", path);
    if (status)
        return err_set(err, status, "cannot read the manifest: %s: %s", status_text(status),
                       path);
    return reason ? err_set(err, PS_ECORRUPT, "the manifest is damaged, %s: %s", reason, path)
                  : 0;
}
