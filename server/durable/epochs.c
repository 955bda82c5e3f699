#include "server/durable/epochs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/durable/manifests.h"
#include "server/store/shelf.h"

#define NUMBER_DIGITS 20
#define SHARD_DIGITS 3

int epochs_dir(const char *data_dir, uint64_t epoch, char ret[static LOG_PATH_MAX],
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
    int status = epochs_dir(data_dir, epoch, ret, err);
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
    int status = epochs_dir(data_dir, epoch, path, err);

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
    int status = epochs_dir(data_dir, epoch, path, err);

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

/* --- which stand --- */

static int has_segment(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                       bool *ret, struct err *err)
{
    char path[LOG_PATH_MAX];
    struct numbers shards;
    int status = list_shards(files, data_dir, epoch, &shards, err);

    *ret = false;
    for (size_t i = 0; i < shards.n && !status && !*ret; i++) {
        struct log_segments segments = { 0 };

        status = epochs_log_dir(data_dir, epoch, (uint32_t)shards.items[i], path, err);
        if (!status)
            status = log_segment_list(files, path, &segments, err);
        *ret = segments.n > 0;
        free(segments.firsts);
    }
    free(shards.items);
    return status;
}

/* The greatest below `below` so far. */
struct greatest {
    uint64_t below, number;
};

static void note_epoch(struct greatest *g, uint64_t epoch)
{
    if (epoch > g->number && (!g->below || epoch < g->below))
        g->number = epoch;
}

static void note_manifest(void *arg, const struct manifests_item *item)
{
    if (item->manifest && !item->is_aside)
        note_epoch(arg, item->manifest->map_id);
}

int epochs_newest(const struct file_ops *files, const char *data_dir, uint64_t below,
                  uint64_t *ret, struct err *err)
{
    struct greatest g = { .below = below };
    struct numbers epochs;
    int status = list_epochs(files, data_dir, &epochs, err);

    for (size_t i = 0; i < epochs.n && !status; i++) {
        bool holds = false;

        status = has_segment(files, data_dir, epochs.items[i], &holds, err);
        if (holds)
            note_epoch(&g, epochs.items[i]);
    }
    free(epochs.items);
    if (!status)
        status = manifests_each(files, data_dir, note_manifest, &g, err);
    *ret = g.number;
    return status;
}

int epochs_check(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                 uint64_t below, struct err *err)
{
    uint64_t newest;
    int status = epochs_newest(files, data_dir, below, &newest, err);

    if (status || newest <= epoch)
        return status;
    return err_set(
        err, PS_ECORRUPT,
        "checkpoint %" PRIu64
        ", with which a newer log begins, is damaged or gone: start with --at NUMBER "
        "from an older one, without what came behind it",
        newest);
}

/* --- tidying --- */

struct removal {
    const struct file_ops *files;
    const char *dir;
};

/* Lists go on although a name goes: a file system may show it again, and then there is nothing. */
static int remove_file(const struct removal *r, const char *name)
{
    char path[LOG_PATH_MAX + 256];

    snprintf(path, sizeof path, "%s/%s", r->dir, name);
    r->files->unlink(r->files->state, path);
    return 0;
}

static int remove_segment(void *arg, const char *name)
{
    return strstr(name, ".psl") ? remove_file(arg, name) : 0;
}

static int remove_beginning(void *arg, const char *name)
{
    return strncmp(name, "BEGINNING", 9) == 0 ? remove_file(arg, name) : 0;
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
    if (epochs_dir(data_dir, epoch, path, &err))
        return;
    files->list(files->state, path, remove_beginning, &(struct removal){ files, path });
    files->rmdir(files->state, path);
}

/* Of which epochs there are checkpoints. */
struct holders {
    uint64_t oldest; /* of all; `current` where none is older */
    uint64_t epoch;  /* is it one of them? */
    bool is_one, is_unknown;
};

/* A manifest that cannot be read may be of any. */
static void note_holder(void *arg, const struct manifests_item *item)
{
    struct holders *h = arg;

    if (!item->manifest) {
        h->oldest = 0;
        h->is_unknown = true;
        return;
    }
    if (item->manifest->map_id < h->oldest)
        h->oldest = item->manifest->map_id;
    h->is_one = h->is_one || item->manifest->map_id == h->epoch;
}

static int mark_path(const char *data_dir, uint64_t epoch, char ret[static LOG_PATH_MAX],
                     struct err *err)
{
    int status = epochs_dir(data_dir, epoch, ret, err);
    size_t len;

    if (status)
        return status;
    len = strlen(ret);
    snprintf(ret + len, LOG_PATH_MAX - len, "/LEFT");
    return 0;
}

static bool is_marked(const struct file_ops *files, const char *data_dir, uint64_t epoch)
{
    char path[LOG_PATH_MAX];
    int fd;

    if (mark_path(data_dir, epoch, path, NULL) || files->open_read(files->state, path, &fd))
        return false;
    (void)!files->close(files->state, fd);
    return true;
}

static int mark(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                struct err *err)
{
    char path[LOG_PATH_MAX], dir[LOG_PATH_MAX];
    int fd, status = mark_path(data_dir, epoch, path, err);

    if (!status)
        status = epochs_dir(data_dir, epoch, dir, err);
    if (status)
        return status;
    status = files->create(files->state, path, &fd);
    if (!status)
        status = files->close(files->state, fd);
    if (!status)
        status = files->sync_dir(files->state, dir);
    return status ? err_set(err, status, "cannot make: %s: %s", status_text(status), path) : 0;
}

/* One epoch, if it has a log and no checkpoint. */
static int leave(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                 bool *ret_left, struct err *err)
{
    struct holders h = { .epoch = epoch };
    bool holds = false;
    int status = has_segment(files, data_dir, epoch, &holds, err);

    *ret_left = false;
    if (status || !holds || is_marked(files, data_dir, epoch))
        return status;
    status = manifests_each(files, data_dir, note_holder, &h, err);
    if (status || h.is_one || h.is_unknown)
        return status;
    *ret_left = true;
    return mark(files, data_dir, epoch, err);
}

int epochs_leave(const struct file_ops *files, const char *data_dir, uint64_t current,
                 void (*report)(void *arg, const char *sentence), void *arg, struct err *err)
{
    struct numbers epochs;
    int status = list_epochs(files, data_dir, &epochs, err);

    for (size_t i = 0; i < epochs.n && !status; i++) {
        struct err text;
        bool is_left = false;

        if (epochs.items[i] < current)
            status = leave(files, data_dir, epochs.items[i], &is_left, err);
        if (status || !is_left || !report)
            continue;
        err_set(
            &text, 0,
            "a push log of which there is no checkpoint is left as it is, and never removed: "
            "%.120s/log/%0*" PRIu64,
            data_dir, NUMBER_DIGITS, epochs.items[i]);
        report(arg, text.text);
    }
    free(epochs.items);
    return status;
}

void epochs_tidy(const struct file_ops *files, const char *data_dir, uint64_t current)
{
    struct holders h = { .oldest = current };
    struct numbers epochs;
    struct err err;

    if (list_epochs(files, data_dir, &epochs, &err) ||
        manifests_each(files, data_dir, note_holder, &h, &err))
        h.oldest = 0;
    for (size_t i = 0; i < epochs.n; i++)
        if (epochs.items[i] < h.oldest && !is_marked(files, data_dir, epochs.items[i]))
            remove_epoch(files, data_dir, epochs.items[i]);
    free(epochs.items);
}
