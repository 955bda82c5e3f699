#include "server/durable/epochs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/log/log_reader.h"
#include "server/store/manifest.h"
#include "server/store/shelf.h"

#define NUMBER_DIGITS 20
#define SHARD_DIGITS 3

/* DATA_DIR/log/EPOCH */
static int epoch_path(const char *data_dir, uint64_t epoch, char ret[static LOG_PATH_MAX],
                      struct err *err)
{
    /* Room for /log/EPOCH/shard-NNNN/NUMBER.psl.unread behind it, so that no later path is cut. */
    if (strlen(data_dir) + 96 > LOG_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "the data directory's path is longer than %u bytes",
                       LOG_PATH_MAX - 96);
    snprintf(ret, LOG_PATH_MAX, "%s/log/%0*" PRIu64, data_dir, NUMBER_DIGITS, epoch);
    return 0;
}

int epochs_log_dir(const char *data_dir, uint64_t epoch, uint32_t shard_index,
                   char ret[static LOG_PATH_MAX], struct err *err)
{
    int status = epoch_path(data_dir, epoch, ret, err);
    size_t len;

    if (status)
        return status;
    len = strlen(ret);
    snprintf(ret + len, LOG_PATH_MAX - len, "/shard-%0*" PRIu32, SHARD_DIGITS, shard_index);
    return 0;
}

int epochs_make(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                struct err *err)
{
    char path[LOG_PATH_MAX], log[LOG_PATH_MAX + 8];
    int status = epoch_path(data_dir, epoch, path, err);

    if (status)
        return status;
    snprintf(log, sizeof log, "%s/log", data_dir);
    status = shelf_make_dir(files, log, data_dir, err);
    return status ? status : shelf_make_dir(files, path, log, err);
}

/* --- what is there --- */

struct numbers {
    uint64_t *items; /* owned */
    size_t n;
    size_t n_digits;    /* of a name, */
    const char *prefix; /* which begins so */
};

static int add_number(void *arg, const char *name)
{
    struct numbers *list = arg;
    const char *digits = name + strlen(list->prefix);
    uint64_t *items;

    if (strncmp(name, list->prefix, strlen(list->prefix)) != 0 ||
        strlen(digits) != list->n_digits || strspn(digits, "0123456789") != list->n_digits)
        return 0;
    items = mem_try_realloc(list->items, (list->n + 1) * sizeof *items);
    if (!items)
        return -ENOMEM;
    list->items = items;
    items[list->n++] = strtoull(digits, NULL, 10);
    return 0;
}

static int list(const struct file_ops *files, const char *path, struct numbers *ret,
                struct err *err)
{
    int status = files->list(files->state, path, add_number, ret);

    if (status == 0 || status == -ENOENT)
        return 0;
    return err_set(err, status, "cannot list: %s: %s", status_text(status), path);
}

static int list_epochs(const struct file_ops *files, const char *data_dir, struct numbers *ret,
                       struct err *err)
{
    char path[LOG_PATH_MAX + 8];

    *ret = (struct numbers){ .n_digits = NUMBER_DIGITS, .prefix = "" };
    snprintf(path, sizeof path, "%.1000s/log", data_dir);
    return list(files, path, ret, err);
}

static int list_shards(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                       struct numbers *ret, struct err *err)
{
    char path[LOG_PATH_MAX];
    int status = epoch_path(data_dir, epoch, path, err);

    *ret = (struct numbers){ .n_digits = SHARD_DIGITS, .prefix = "shard-" };
    return status ? status : list(files, path, ret, err);
}

static int by_number(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return a < b ? -1 : a > b;
}

int epochs_list(const struct file_ops *files, const char *data_dir, struct epochs_list *ret,
                struct err *err)
{
    struct numbers epochs;
    int status = list_epochs(files, data_dir, &epochs, err);

    if (epochs.n)
        qsort(epochs.items, epochs.n, sizeof *epochs.items, by_number);
    *ret = (struct epochs_list){ epochs.items, epochs.n };
    return status;
}

int epochs_n_shards(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                    uint32_t *ret, struct err *err)
{
    struct numbers shards;
    int status = list_shards(files, data_dir, epoch, &shards, err);

    *ret = (uint32_t)shards.n;
    free(shards.items);
    return status;
}

/* Does a log hold a record? */
static int has_record(const struct file_ops *files, const char *dir, bool *ret, struct err *err)
{
    const struct log_record *record = NULL;
    struct log_reader *reader;
    int status = log_reader_open(files, dir, NULL, 1, &reader, err);

    if (status)
        return status;
    status = log_reader_next(reader, &record, err);
    /* Damage says that there was one. */
    *ret = record || log_reader_end(reader)->verdict == LOG_DAMAGED;
    log_reader_free(reader);
    return status;
}

static int epoch_has_record(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                            bool *ret, struct err *err)
{
    char path[LOG_PATH_MAX];
    struct numbers shards;
    int status = list_shards(files, data_dir, epoch, &shards, err);

    *ret = false;
    for (size_t i = 0; i < shards.n && !status && !*ret; i++) {
        status = epochs_log_dir(data_dir, epoch, (uint32_t)shards.items[i], path, err);
        if (!status)
            status = has_record(files, path, ret, err);
    }
    free(shards.items);
    return status;
}

int epochs_newest(const struct file_ops *files, const char *data_dir, uint64_t *ret,
                  struct err *err)
{
    struct numbers epochs;
    int status = list_epochs(files, data_dir, &epochs, err);

    *ret = 0;
    for (size_t i = 0; i < epochs.n && !status; i++) {
        bool holds = false;

        if (epochs.items[i] <= *ret)
            continue;
        status = epoch_has_record(files, data_dir, epochs.items[i], &holds, err);
        if (holds)
            *ret = epochs.items[i];
    }
    free(epochs.items);
    return status;
}

/* --- tidying --- */

struct removal {
    const struct file_ops *files;
    const char *dir;
};

/* Lists go on although a name goes: a file system may show it again, and then there is nothing. */
static int remove_segment(void *arg, const char *name)
{
    const struct removal *r = arg;
    char path[LOG_PATH_MAX + 256];

    if (!strstr(name, ".psl"))
        return 0;
    snprintf(path, sizeof path, "%s/%s", r->dir, name);
    r->files->unlink(r->files->state, path);
    return 0;
}

static void remove_epoch(const struct file_ops *files, const char *data_dir, uint64_t epoch)
{
    char path[LOG_PATH_MAX];
    struct numbers shards;
    struct err err;

    if (list_shards(files, data_dir, epoch, &shards, &err))
        shards.n = 0;
    for (size_t i = 0; i < shards.n; i++) {
        struct removal r = { files, path };

        if (epochs_log_dir(data_dir, epoch, (uint32_t)shards.items[i], path, &err))
            continue;
        files->list(files->state, path, remove_segment, &r);
        files->rmdir(files->state, path);
    }
    free(shards.items);
    if (epoch_path(data_dir, epoch, path, &err) == 0)
        files->rmdir(files->state, path);
}

/* The oldest epoch that a checkpoint is of; a manifest that cannot be read keeps all. */
static uint64_t oldest_kept(const struct file_ops *files, const char *data_dir,
                            uint64_t current)
{
    char path[SHELF_PATH_MAX];
    struct shelf_numbers numbers = { 0 };
    struct manifest *m = mem_try_alloc(sizeof *m);
    uint64_t oldest = m ? current : 0;
    struct err err;

    if (shelf_path(data_dir, path, &err) || shelf_list(files, path, &numbers, &err))
        oldest = 0;
    for (size_t i = 0; i < numbers.n && oldest; i++) {
        int status = shelf_number_path(data_dir, numbers.items[i], path, &err);

        if (!status)
            status = manifest_read(files, path, m, &err);
        if (status && status != -ENOENT)
            oldest = 0;
        else if (!status && m->map_id < oldest)
            oldest = m->map_id;
    }
    free(numbers.items);
    free(m);
    return oldest;
}

void epochs_tidy(const struct file_ops *files, const char *data_dir, uint64_t current)
{
    uint64_t oldest = oldest_kept(files, data_dir, current);
    struct numbers epochs;
    struct err err;

    if (list_epochs(files, data_dir, &epochs, &err))
        epochs.n = 0;
    for (size_t i = 0; i < epochs.n; i++)
        if (epochs.items[i] < oldest)
            remove_epoch(files, data_dir, epochs.items[i]);
    free(epochs.items);
}
