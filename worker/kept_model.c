#include "worker/kept_model.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/atomic_file.h"

#define FILE_NAME "BEST.json"
#define FILE_BYTES_MAX 4096u

int kept_model_save_tables(struct param_store *s, const char *job, const char *dir,
                           struct err *err)
{
    struct param_store *copy;
    int status;

    if (!s->ops->copy)
        return param_store_local_save(s, dir, err);
    status =
        param_store_local_open(&(struct param_store_local_options){ .job = job }, &copy, err);
    if (status)
        return status;
    status = s->ops->copy(s, copy, err);
    if (!status)
        status = param_store_local_save(copy, dir, err);
    copy->ops->close(copy);
    return status;
}

static int path_of(const char *dir, char ret[PATH_MAX], struct err *err)
{
    return snprintf(ret, PATH_MAX, "%s/" FILE_NAME, dir) < PATH_MAX
               ? 0
               : err_set(err, -ENAMETOOLONG, "--save: %.100s...: the path is too long", dir);
}

/* All digits: a score that is read back has to be the one that later validations are held against. */
static int put(FILE *out, const char *job, const struct kept_model *kept)
{
    cJSON *text = cJSON_CreateString(job);
    char *quoted = cJSON_PrintUnformatted(text);
    int n = fprintf(out, "{\"job\":%s,\"epoch\":%u,\"step\":%llu,\"score\":%.17g,",
                    quoted ? quoted : "null", kept->epoch + 1, (unsigned long long)kept->step,
                    kept->score);

    if (n >= 0 && isfinite(kept->auc)) /* rows of one label have none */
        n = fprintf(out, "\"auc\":%.17g,", kept->auc);
    if (n >= 0)
        n = fprintf(out, "\"logloss\":%.17g}\n", kept->logloss);
    cJSON_free(quoted);
    cJSON_Delete(text);
    return n < 0 ? -errno : 0;
}

int kept_model_write(const char *dir, const char *job, const struct kept_model *kept,
                     struct err *err)
{
    char path[PATH_MAX];
    struct atomic_file out;
    int status = path_of(dir, path, err);

    if (!status)
        status = atomic_file_open(path, &out, err);
    if (status)
        return status;
    status = put(out.stream, job, kept);
    if (status)
        (void)err_set(err, status, "--save: " FILE_NAME " cannot be written: %s",
                      strerror(-status));
    return atomic_file_close(&out, status, err);
}

static bool number(const cJSON *root, const char *name, double *ret)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, name);

    *ret = cJSON_IsNumber(item) ? item->valuedouble : 0;
    return cJSON_IsNumber(item);
}

static bool take(const cJSON *root, const char *job, struct kept_model *ret)
{
    const cJSON *of = cJSON_GetObjectItemCaseSensitive(root, "job");
    double epoch, step;

    if (!cJSON_IsString(of) || strcmp(of->valuestring, job) != 0)
        return false;
    if (!number(root, "epoch", &epoch) || !number(root, "step", &step) ||
        !number(root, "score", &ret->score) || !number(root, "logloss", &ret->logloss) ||
        !(epoch >= 1 && epoch <= UINT32_MAX) || !(step >= 0 && step <= 0x1p53))
        return false;
    if (!number(root, "auc", &ret->auc))
        ret->auc = NAN;
    ret->epoch = (uint32_t)epoch - 1;
    ret->step = (uint64_t)step;
    return true;
}

bool kept_model_read(const char *dir, const char *job, struct kept_model *ret)
{
    char path[PATH_MAX], text[FILE_BYTES_MAX];
    struct err ignored;
    size_t n;
    cJSON *root;
    FILE *in;
    bool is_there;

    if (path_of(dir, path, &ignored))
        return false;
    in = fopen(path, "re");
    if (!in)
        return false;
    n = fread(text, 1, sizeof text - 1, in);
    fclose(in);
    text[n] = '\0';
    root = cJSON_Parse(text);
    is_there = root && take(root, job, ret);
    cJSON_Delete(root);
    return is_there;
}
