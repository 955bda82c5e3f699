#include "server/replication/copy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/directory.h"
#include "server/recovery/timeline.h"

#define NUMBER_DIGITS 20u
#define PATH_BYTES (DIRECTORY_PATH_MAX + MESSAGE_FILE_NAME_MAX + 8)

/* --- what was there --- */

/* An older one of that number, which was archived before, makes room. */
static int archive(const struct file_ops *files, const char *data_dir, uint64_t number,
                   struct err *err)
{
    char archived[DIRECTORY_PATH_MAX];
    int status = directory_archived_path(data_dir, number, archived, err);

    if (status)
        return status;
    directory_remove(files, archived);
    return checkpoint_archive(files, data_dir, number, err);
}

static int clear_checkpoints(const struct file_ops *files, const char *data_dir, bool keeps,
                             struct err *err)
{
    struct directory_numbers numbers = { 0 };
    char dir[DIRECTORY_PATH_MAX];
    int status = directory_path(data_dir, dir, err);

    if (!status)
        status = directory_list(files, dir, &numbers, err);
    for (size_t i = 0; i < numbers.n && !status; i++) { /* the newest first */
        status = directory_number_path(data_dir, numbers.items[i], dir, err);
        if (status)
            break;
        if (keeps && !checkpoint_is_unfinished(files, dir))
            status = archive(files, data_dir, numbers.items[i], err);
        else
            directory_remove(files, dir);
    }
    free(numbers.items);
    return status;
}

static int archive_logs(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                        struct err *err)
{
    char dir[WAL_PATH_MAX];
    uint32_t n_shards;
    int status = timeline_n_shards(files, data_dir, epoch, &n_shards, err);

    for (uint32_t i = 0; !status && i < n_shards; i++) {
        status = timeline_log_dir(data_dir, epoch, i, dir, err);
        if (!status)
            status = wal_segment_archive(files, dir, 0, err);
    }
    return status;
}

static int clear_logs(const struct file_ops *files, const char *data_dir, bool keeps,
                      struct err *err)
{
    struct timeline_list timelines = { 0 };
    int status = timeline_list(files, data_dir, &timelines, err);

    for (size_t i = 0; i < timelines.n && !status; i++)
        if (keeps)
            status = archive_logs(files, data_dir, timelines.items[i], err);
        else
            timeline_remove(files, data_dir, timelines.items[i]);
    free(timelines.items);
    return status;
}

/* Names of control files and marks: wal_control.h. */
struct controls {
    char (*items)[32]; /* owned */
    size_t n;
};

static int note_control(void *arg, const char *name)
{
    struct controls *c = arg;
    char(*items)[32];

    if (strncmp(name, "wal-", 4) != 0 || strlen(name) >= sizeof *c->items)
        return 0;
    items = memory_try_realloc(c->items, (c->n + 1) * sizeof *items);
    if (!items)
        return -ENOMEM;
    c->items = items;
    snprintf(items[c->n++], sizeof *items, "%s", name);
    return 0;
}

static int clear_controls(const struct file_ops *files, const char *data_dir, struct err *err)
{
    struct controls controls = { 0 };
    char path[PATH_BYTES];
    int status = files->list(files->state, data_dir, note_control, &controls);

    for (size_t i = 0; i < controls.n && !status; i++) {
        snprintf(path, sizeof path, "%.1000s/%s", data_dir, controls.items[i]);
        status = files->unlink(files->state, path);
    }
    free(controls.items);
    if (!status)
        status = files->sync_dir(files->state, data_dir);
    return status ? err_set(err, status, "cannot clear %.200s for a copy: %s", data_dir,
                            status_text(status))
                  : 0;
}

int copy_prepare(const struct file_ops *files, const char *data_dir, bool keeps,
                 struct err *err)
{
    int status = clear_checkpoints(files, data_dir, keeps, err);

    if (!status)
        status = clear_logs(files, data_dir, keeps, err);
    return status ? status : clear_controls(files, data_dir, err);
}

/* --- the list --- */

void copy_init(struct copy *c, const struct file_ops *files, const char *data_dir)
{
    *c = (struct copy){
        .files = files, .data_dir = data_dir, .fd = -1, .piece_bytes = COPY_PIECE_BYTES
    };
}

void copy_deinit(struct copy *c)
{
    if (c->fd >= 0)
        (void)!c->files->close(c->files->state, c->fd);
    free(c->items);
    *c = (struct copy){ .fd = -1 };
}

/* Behind PREFIX and a number of 20 digits and a slash; NULL: it does not begin so. */
static const char *behind_number(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);

    if (strncmp(name, prefix, n) != 0 || strspn(name + n, "0123456789") != NUMBER_DIGITS ||
        name[n + NUMBER_DIGITS] != '/')
        return NULL;
    return name + n + NUMBER_DIGITS + 1;
}

static bool is_shard_file(const char *name)
{
    size_t n;

    if (strncmp(name, "shard-", 6) != 0)
        return false;
    n = strspn(name + 6, "0123456789");
    return n >= 3 && n <= 4 && strcmp(name + 6 + n, ".psc") == 0;
}

/* A primary's names lead nowhere else. */
static bool is_name(const char *name)
{
    const char *file = behind_number(name, "checkpoints/");

    if (file)
        return strcmp(file, "MANIFEST") == 0 || is_shard_file(file);
    file = behind_number(name, "log/");
    return file && strcmp(file, "BEGINNING") == 0;
}

static bool read_line(const char *line, size_t n_bytes, struct copy_file *ret)
{
    const char *blank = memchr(line, ' ', n_bytes);
    size_t n_digits, n_name;
    char digits[24], *end;

    ret->name[0] = '\0';
    if (!blank)
        return false;
    n_digits = (size_t)(blank - line);
    n_name = n_bytes - n_digits - 1;
    if (n_digits == 0 || n_digits > NUMBER_DIGITS || n_name >= sizeof ret->name)
        return false;
    snprintf(digits, sizeof digits, "%.*s", (int)n_digits, line);
    snprintf(ret->name, sizeof ret->name, "%.*s", (int)n_name, blank + 1);
    errno = 0;
    ret->n_bytes = strtoull(digits, &end, 10);
    return digits[0] != '-' && *end == '\0' && errno == 0 && is_name(ret->name);
}

int copy_list(struct copy *c, const char *text, size_t n_bytes, struct err *err)
{
    size_t at = 0;

    while (at < n_bytes) {
        const char *end = memchr(text + at, '\n', n_bytes - at);
        struct copy_file *items;

        if (!end || c->n == COPY_FILES_MAX)
            return err_set(err, PS_EPROTO, "the primary's list of files makes no sense");
        items = memory_try_realloc(c->items, (c->n + 1) * sizeof *items);
        if (!items)
            return err_set(err, -ENOMEM, "no memory for the primary's list of files");
        c->items = items;
        if (!read_line(text + at, (size_t)(end - text) - at, &items[c->n]))
            return err_set(err, PS_EPROTO,
                           "the primary's list of files has a line that makes no sense: %.100s",
                           items[c->n].name);
        c->n_total_bytes += items[c->n++].n_bytes;
        at = (size_t)(end - text) + 1;
    }
    return 0;
}

bool copy_next(struct copy *c, struct file_request *ret)
{
    const struct copy_file *file = &c->items[c->asked];

    if (c->asked == c->n)
        return false;
    *ret = (struct file_request){ .offset = c->asked_offset, .max_bytes = c->piece_bytes };
    snprintf(ret->name, sizeof ret->name, "%s", file->name);
    c->asked_offset += c->piece_bytes;
    if (c->asked_offset >= file->n_bytes) {
        c->asked++;
        c->asked_offset = 0;
    }
    return true;
}

/* --- one file --- */

static int failed(const struct copy *c, int status, const char *what, struct err *err)
{
    return err_set(err, status, "%s: %s: %.100s/%.100s", what, status_text(status), c->data_dir,
                   c->items[c->at].name);
}

static void path_of(const struct copy *c, const char *end, char ret[static PATH_BYTES])
{
    snprintf(ret, PATH_BYTES, "%.1000s/%s%s", c->data_dir, c->items[c->at].name, end);
}

/* Of the file, and the one above: checkpoints or log. */
static int make_dirs(const struct copy *c, struct err *err)
{
    char dir[PATH_BYTES], parent[PATH_BYTES];
    int status;

    path_of(c, "", dir);
    *strrchr(dir, '/') = '\0';
    snprintf(parent, sizeof parent, "%s", dir);
    *strrchr(parent, '/') = '\0';
    status = directory_make_dir(c->files, parent, c->data_dir, err);
    return status ? status : directory_make_dir(c->files, dir, parent, err);
}

static int open_file(struct copy *c, struct err *err)
{
    char path[PATH_BYTES];
    int status = make_dirs(c, err);

    if (status)
        return status;
    path_of(c, ".tmp", path);
    status = c->files->create(c->files->state, path, &c->fd);
    if (status)
        c->fd = -1;
    return status ? failed(c, status, "cannot create", err) : 0;
}

static int finish_file(struct copy *c, struct err *err)
{
    char path[PATH_BYTES], beside[PATH_BYTES], *slash;
    int fd = c->fd, status = c->files->sync(c->files->state, fd), closed;

    c->fd = -1;
    closed = c->files->close(c->files->state, fd);
    status = status ? status : closed;
    path_of(c, "", path);
    path_of(c, ".tmp", beside);
    if (!status)
        status = c->files->rename(c->files->state, beside, path);
    slash = strrchr(path, '/');
    *slash = '\0';
    if (!status)
        status = c->files->sync_dir(c->files->state, path);
    if (status)
        return failed(c, status, "cannot finish", err);
    c->at++;
    c->offset = 0;
    return 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

int copy_add(struct copy *c, const struct file_reply *reply, struct err *err)
{
    const struct copy_file *file = &c->items[c->at];
    int status = 0;

    if (c->at == c->n || reply->file_bytes != file->n_bytes ||
        reply->n_bytes != least(file->n_bytes - c->offset, c->piece_bytes))
        return err_set(err, PS_EPROTO, "the primary sends something else than was asked for");
    if (c->fd < 0)
        status = open_file(c, err);
    if (status)
        return status;
    status = c->files->write_all(c->files->state, c->fd, reply->bytes, reply->n_bytes);
    if (status)
        return failed(c, status, "cannot write", err);
    if (c->files->write_back)
        c->files->write_back(c->files->state, c->fd);
    c->offset += reply->n_bytes;
    c->n_bytes += reply->n_bytes;
    return c->offset == file->n_bytes ? finish_file(c, err) : 0;
}
