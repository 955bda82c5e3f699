#include "server/recovery/timeline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/crc32c.h"
#include "common/file_text.h"
#include "common/memory.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/directory.h"

#define NUMBER_DIGITS 20
#define SHARD_DIGITS 3

/* DATA_DIR/log/EPOCH */
static int epoch_dir(const char *data_dir, uint64_t epoch, char ret[static WAL_PATH_MAX],
                     struct err *err)
{
    /* Space for /log/EPOCH/shard-NNNN/NUMBER.psl.unread behind it, so that no later path is cut. */
    if (strlen(data_dir) + 96 > WAL_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "the data directory's path is longer than %u bytes",
                       WAL_PATH_MAX - 96);
    snprintf(ret, WAL_PATH_MAX, "%s/log/%0*" PRIu64, data_dir, NUMBER_DIGITS, epoch);
    return 0;
}

int timeline_log_dir(const char *data_dir, uint64_t epoch, uint32_t shard_index,
                     char ret[static WAL_PATH_MAX], struct err *err)
{
    int status = epoch_dir(data_dir, epoch, ret, err);
    size_t len;

    if (status)
        return status;
    len = strlen(ret);
    snprintf(ret + len, WAL_PATH_MAX - len, "/shard-%0*" PRIu32, SHARD_DIGITS, shard_index);
    return 0;
}

int timeline_make(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                  struct err *err)
{
    char path[WAL_PATH_MAX], log[WAL_PATH_MAX + 8];
    int status = epoch_dir(data_dir, epoch, path, err);

    if (status)
        return status;
    snprintf(log, sizeof log, "%s/log", data_dir);
    status = directory_make_dir(files, log, data_dir, err);
    return status ? status : directory_make_dir(files, path, log, err);
}

int timeline_make_logs(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                       uint32_t n_shards, struct err *err)
{
    char path[WAL_PATH_MAX], log[WAL_PATH_MAX];
    int status = epoch_dir(data_dir, epoch, path, err);

    for (uint32_t i = 0; i < n_shards && !status; i++) {
        status = timeline_log_dir(data_dir, epoch, i, log, err);
        if (!status)
            status = directory_make_dir(files, log, path, err);
    }
    return status;
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
    items = memory_try_realloc(list->items, (list->n + 1) * sizeof *items);
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
    char path[WAL_PATH_MAX + 8];

    *ret = (struct numbers){ .n_digits = NUMBER_DIGITS, .prefix = "" };
    snprintf(path, sizeof path, "%.1000s/log", data_dir);
    return list(files, path, ret, err);
}

static int list_shards(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                       struct numbers *ret, struct err *err)
{
    char path[WAL_PATH_MAX];
    int status = epoch_dir(data_dir, epoch, path, err);

    *ret = (struct numbers){ .n_digits = SHARD_DIGITS, .prefix = "shard-" };
    return status ? status : list(files, path, ret, err);
}

static int by_number(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return a < b ? -1 : a > b;
}

int timeline_list(const struct file_ops *files, const char *data_dir, struct timeline_list *ret,
                  struct err *err)
{
    struct numbers timelines;
    int status = list_epochs(files, data_dir, &timelines, err);

    if (timelines.n)
        qsort(timelines.items, timelines.n, sizeof *timelines.items, by_number);
    *ret = (struct timeline_list){ timelines.items, timelines.n };
    return status;
}

int timeline_n_shards(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                      uint32_t *ret, struct err *err)
{
    struct numbers shards;
    int status = list_shards(files, data_dir, epoch, &shards, err);

    *ret = 0;
    for (size_t i = 0; i < shards.n; i++)
        if (shards.items[i] >= *ret)
            *ret = (uint32_t)shards.items[i] + 1;
    free(shards.items);
    return status;
}

/* --- which stand --- */

static int has_segment(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                       bool *ret, struct err *err)
{
    char path[WAL_PATH_MAX];
    struct numbers shards;
    int status = list_shards(files, data_dir, epoch, &shards, err);

    *ret = false;
    for (size_t i = 0; i < shards.n && !status && !*ret; i++) {
        struct wal_segments segments = { 0 };

        status = timeline_log_dir(data_dir, epoch, (uint32_t)shards.items[i], path, err);
        if (!status)
            status = wal_segment_list(files, path, &segments, err);
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

static void note_manifest(void *arg, const struct checkpoint_entry *item)
{
    if (item->manifest && !item->is_archived)
        note_epoch(arg, item->manifest->map_id);
}

int timeline_newest(const struct file_ops *files, const char *data_dir, uint64_t below,
                    uint64_t *ret, struct err *err)
{
    struct greatest g = { .below = below };
    struct numbers timelines;
    int status = list_epochs(files, data_dir, &timelines, err);

    for (size_t i = 0; i < timelines.n && !status; i++) {
        bool holds = false;

        status = has_segment(files, data_dir, timelines.items[i], &holds, err);
        if (holds)
            note_epoch(&g, timelines.items[i]);
    }
    free(timelines.items);
    if (!status)
        status = checkpoint_each(files, data_dir, note_manifest, &g, err);
    *ret = g.number;
    return status;
}

int timeline_check(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                   uint64_t below, struct err *err)
{
    uint64_t newest;
    int status = timeline_newest(files, data_dir, below, &newest, err);

    if (status || newest <= epoch)
        return status;
    return err_set(err, PS_ECORRUPT,
                   "checkpoint %" PRIu64 ", with which a newer log begins, is damaged or gone: "
                   "start with --at intact, or --at NUMBER, "
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
    char path[WAL_PATH_MAX + 256];

    snprintf(path, sizeof path, "%s/%s", r->dir, name);
    r->files->unlink(r->files->state, path);
    return 0;
}

static int remove_segment(void *arg, const char *name)
{
    return strstr(name, ".psl") ? remove_file(arg, name) : 0;
}

static int remove_unread(void *arg, const char *name)
{
    return strstr(name, ".psl.unread") ? remove_file(arg, name) : 0;
}

static int remove_beginning(void *arg, const char *name)
{
    return strncmp(name, "BEGINNING", 9) == 0 ? remove_file(arg, name) : 0;
}

void timeline_remove_unread(const struct file_ops *files, const char *data_dir, uint64_t epoch)
{
    char path[WAL_PATH_MAX];
    struct numbers shards;
    struct err err;

    if (list_shards(files, data_dir, epoch, &shards, &err))
        shards.n = 0;
    for (size_t i = 0; i < shards.n; i++)
        if (!timeline_log_dir(data_dir, epoch, (uint32_t)shards.items[i], path, &err))
            files->list(files->state, path, remove_unread, &(struct removal){ files, path });
    free(shards.items);
}

static void remove_epoch(const struct file_ops *files, const char *data_dir, uint64_t epoch)
{
    char path[WAL_PATH_MAX];
    struct numbers shards;
    struct err err;

    if (list_shards(files, data_dir, epoch, &shards, &err))
        shards.n = 0;
    for (size_t i = 0; i < shards.n; i++) {
        struct removal r = { files, path };

        if (timeline_log_dir(data_dir, epoch, (uint32_t)shards.items[i], path, &err))
            continue;
        files->list(files->state, path, remove_segment, &r);
        files->rmdir(files->state, path);
    }
    free(shards.items);
    if (epoch_dir(data_dir, epoch, path, &err))
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
static void note_holder(void *arg, const struct checkpoint_entry *item)
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

static int mark_path(const char *data_dir, uint64_t epoch, char ret[static WAL_PATH_MAX],
                     struct err *err)
{
    int status = epoch_dir(data_dir, epoch, ret, err);
    size_t len;

    if (status)
        return status;
    len = strlen(ret);
    snprintf(ret + len, WAL_PATH_MAX - len, "/LEFT");
    return 0;
}

static bool is_marked(const struct file_ops *files, const char *data_dir, uint64_t epoch)
{
    char path[WAL_PATH_MAX];
    int fd;

    if (mark_path(data_dir, epoch, path, NULL) || files->open_read(files->state, path, &fd))
        return false;
    (void)!files->close(files->state, fd);
    return true;
}

static int mark(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                struct err *err)
{
    char path[WAL_PATH_MAX], dir[WAL_PATH_MAX];
    int fd, status = mark_path(data_dir, epoch, path, err);

    if (!status)
        status = epoch_dir(data_dir, epoch, dir, err);
    if (status)
        return status;
    status = files->create(files->state, path, &fd);
    if (!status)
        status = files->close(files->state, fd);
    if (!status)
        status = files->sync_dir(files->state, dir);
    return status ? err_set(err, status, "cannot make: %s: %s", status_text(status), path) : 0;
}

void timeline_remove(const struct file_ops *files, const char *data_dir, uint64_t epoch)
{
    char path[WAL_PATH_MAX];

    if (!mark_path(data_dir, epoch, path, NULL))
        (void)files->unlink(files->state, path);
    remove_epoch(files, data_dir, epoch);
}

/* One epoch, if it has a log and no checkpoint. */
static int preserve_one(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                        bool *ret_preserved, struct err *err)
{
    struct holders h = { .epoch = epoch };
    bool holds = false;
    int status = has_segment(files, data_dir, epoch, &holds, err);

    *ret_preserved = false;
    if (status || !holds || is_marked(files, data_dir, epoch))
        return status;
    status = checkpoint_each(files, data_dir, note_holder, &h, err);
    if (status || h.is_one || h.is_unknown)
        return status;
    *ret_preserved = true;
    return mark(files, data_dir, epoch, err);
}

int timeline_preserve(const struct file_ops *files, const char *data_dir, uint64_t current,
                      void (*report)(void *arg, const char *sentence), void *arg,
                      struct err *err)
{
    struct numbers timelines;
    int status = list_epochs(files, data_dir, &timelines, err);

    for (size_t i = 0; i < timelines.n && !status; i++) {
        struct err text;
        bool is_preserved = false;

        if (timelines.items[i] < current)
            status = preserve_one(files, data_dir, timelines.items[i], &is_preserved, err);
        if (status || !is_preserved || !report)
            continue;
        err_set(
            &text, 0,
            "a write-ahead log of which there is no checkpoint is left as it is until psctl "
            "prune: "
            "%.120s/log/%0*" PRIu64,
            data_dir, NUMBER_DIGITS, timelines.items[i]);
        report(arg, text.text);
    }
    free(timelines.items);
    return status;
}

void timeline_remove_unused(const struct file_ops *files, const char *data_dir,
                            uint64_t current)
{
    struct holders h = { .oldest = current };
    struct numbers timelines;
    struct err err;

    if (list_epochs(files, data_dir, &timelines, &err) ||
        checkpoint_each(files, data_dir, note_holder, &h, &err))
        h.oldest = 0;
    for (size_t i = 0; i < timelines.n; i++)
        if (timelines.items[i] < h.oldest && !is_marked(files, data_dir, timelines.items[i]))
            remove_epoch(files, data_dir, timelines.items[i]);
    free(timelines.items);
}

/* --- the file BEGINNING --- */

#define BEGINNING "BEGINNING"
#define HEAD "psd epoch, format 1\nabove "
#define OPTIONS_LINE "told\n"
#define TEXT_MAX (1u << 20) /* what the settings can say is less */
#define PATH_BYTES (WAL_PATH_MAX + 24)

/* To be freed; NULL without memory. */
static char *print(const struct timeline_beginning *b, size_t *ret_bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_bytes);

    if (!out)
        return NULL;
    fprintf(out, HEAD "%" PRIu64 "\n%s%s%*s", b->above, b->has_options ? OPTIONS_LINE : "",
            b->options, (int)FILE_TEXT_TAIL_BYTES, ""); /* room for the last line */
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    *ret_bytes = file_text_seal(text, *ret_bytes - FILE_TEXT_TAIL_BYTES);
    return text;
}

/* False: these bytes are no such text. `text` is changed, and ended with NUL. */
static bool parse(char *text, size_t n_bytes, struct timeline_beginning *ret)
{
    char *behind;

    if (!file_text_unseal(text, n_bytes) || strncmp(text, HEAD, sizeof HEAD - 1) != 0)
        return false;
    ret->above = strtoull(text + sizeof HEAD - 1, &behind, 10);
    if (*behind++ != '\n')
        return false;
    ret->has_options = strncmp(behind, OPTIONS_LINE, sizeof OPTIONS_LINE - 1) == 0;
    ret->options =
        memory_need(strdup(behind + (ret->has_options ? sizeof OPTIONS_LINE - 1 : 0)));
    return true;
}

static int path_of(const char *data_dir, uint64_t epoch, char ret[static PATH_BYTES],
                   struct err *err)
{
    char dir[WAL_PATH_MAX];
    int status = epoch_dir(data_dir, epoch, dir, err);

    if (!status)
        snprintf(ret, PATH_BYTES, "%s/" BEGINNING, dir);
    return status;
}

int timeline_write_beginning(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                             const struct timeline_beginning *b, struct err *err)
{
    char dir[WAL_PATH_MAX], *text;
    size_t n_bytes;
    int status = epoch_dir(data_dir, epoch, dir, err);

    if (status)
        return status;
    text = print(b, &n_bytes);
    if (!text)
        return err_set(err, -ENOMEM, "no memory to write %s/" BEGINNING, dir);
    status = file_text_replace(files, dir, BEGINNING, text, n_bytes, err);
    free(text);
    return status;
}

int timeline_read_beginning(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                            struct timeline_beginning *ret, struct err *err)
{
    char path[PATH_BYTES];
    struct bytes text = { 0 };
    int status = path_of(data_dir, epoch, path, err);

    *ret = (struct timeline_beginning){ .above = epoch };
    if (status)
        return status;
    status = file_text_read(files, path, TEXT_MAX, &text);
    if (!status && !parse((char *)text.bytes + text.start, bytes_len(&text), ret))
        status = PS_ECORRUPT;
    bytes_deinit(&text);
    if (status == PS_ECORRUPT || status == -EIO) /* of a sector: damage like any other */
        return err_set(err, PS_ECORRUPT, "what the log's epoch began with %s: %s",
                       status == -EIO ? "cannot be read: Input/output error" : "is damaged",
                       path);
    if (status && status != -ENOENT)
        return err_set(err, status, "cannot read: %s: %s", status_text(status), path);
    if (!ret->options)
        ret->options = memory_alloc(1);
    return 0;
}

void timeline_beginning_deinit(struct timeline_beginning *b)
{
    free(b->options);
    b->options = NULL;
}
