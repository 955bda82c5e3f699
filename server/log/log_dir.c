#include "server/log/log_dir.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/log/log_segment.h"

#define UNREAD ".unread"

static int tell(struct err *err, int status, const char *what, const char *path)
{
    return err_set(err, status, "the push log: cannot %s: %s: %s", what, status_text(status),
                   path);
}

int log_dir_make(const struct file_ops *files, const char *dir, struct err *err)
{
    int status = files->mkdir(files->state, dir);

    return status ? tell(err, status, "make the directory", dir) : 0;
}

static int sync_one(const struct file_ops *files, const char *dir, struct err *err)
{
    int status = files->sync_dir(files->state, dir);

    return status ? tell(err, status, "sync the directory", dir) : 0;
}

int log_dir_sync_names(const struct file_ops *files, const char *dir, struct err *err)
{
    char parent[LOG_PATH_MAX];
    char *slash;
    int n = snprintf(parent, sizeof parent, "%s", dir), status;

    if (n < 0 || (size_t)n >= sizeof parent)
        return tell(err, -ENAMETOOLONG, "sync the directory", dir);
    status = sync_one(files, dir, err);
    slash = strrchr(parent, '/');
    if (status || !slash || slash == parent)
        return status;
    *slash = '\0';
    return sync_one(files, parent, err);
}

/* --- segments --- */

static int sync_segment(const struct file_ops *files, const char *dir, uint64_t first,
                        struct err *err)
{
    char path[LOG_PATH_MAX];
    int fd, status = log_segment_path(dir, first, path, err);

    if (status)
        return status;
    status = files->open_read(files->state, path, &fd);
    if (status)
        return tell(err, status, "open", path);
    status = files->sync(files->state, fd);
    (void)!files->close(files->state, fd);
    return status ? tell(err, status, "sync", path) : 0;
}

int log_dir_sync(const struct file_ops *files, const char *dir, uint64_t durable, uint64_t last,
                 struct err *err)
{
    struct log_segments all;
    int status = log_segment_list(files, dir, &all, err);

    for (size_t i = 0; i < all.n && !status; i++) {
        bool is_durable = i + 1 < all.n && all.firsts[i + 1] <= durable + 1;

        if (all.firsts[i] <= last && !is_durable && durable < last)
            status = sync_segment(files, dir, all.firsts[i], err);
    }
    free(all.firsts);
    return status;
}

static int set_aside(const struct file_ops *files, const char *dir, uint64_t first,
                     struct err *err)
{
    char path[LOG_PATH_MAX], aside[LOG_PATH_MAX + sizeof UNREAD];
    int status = log_segment_path(dir, first, path, err);

    if (status)
        return status;
    snprintf(aside, sizeof aside, "%s" UNREAD, path);
    status = files->rename(files->state, path, aside);
    return status ? tell(err, status, "set aside", path) : 0;
}

int log_dir_set_aside(const struct file_ops *files, const char *dir, uint64_t first,
                      struct err *err)
{
    struct log_segments all;
    int status = log_segment_list(files, dir, &all, err);

    for (size_t i = all.n; i > 0 && all.firsts[i - 1] >= first && !status; i--)
        status = set_aside(files, dir, all.firsts[i - 1], err);
    free(all.firsts);
    return status;
}

static int remove_segments(const struct file_ops *files, const char *dir, uint64_t number,
                           struct err *err)
{
    struct log_segments all;
    char path[LOG_PATH_MAX];
    int status = log_segment_list(files, dir, &all, err);

    for (size_t i = 0; i + 1 < all.n && all.firsts[i + 1] <= number && !status; i++) {
        status = log_segment_path(dir, all.firsts[i], path, err);
        if (!status && (status = files->unlink(files->state, path)) != 0)
            tell(err, status, "remove", path);
    }
    free(all.firsts);
    return status;
}

/* Those that were set aside, and begin below a record. */
struct unread {
    const struct file_ops *files;
    const char *dir;
    uint64_t number;
};

/* A file that cannot be removed stays for the next time. */
static int remove_unread(void *arg, const char *name)
{
    const struct unread *u = arg;
    const char *end = strstr(name, ".psl" UNREAD);
    char path[LOG_PATH_MAX + 64];

    if (!end || strcmp(end, ".psl" UNREAD) != 0 || strtoull(name, NULL, 10) >= u->number)
        return 0;
    snprintf(path, sizeof path, "%s/%.60s", u->dir, name);
    (void)!u->files->unlink(u->files->state, path);
    return 0;
}

int log_dir_cut(const struct file_ops *files, const char *dir, uint64_t number, struct err *err)
{
    struct unread unread = { files, dir, number };
    int status = remove_segments(files, dir, number, err);

    if (status)
        return status;
    status = files->list(files->state, dir, remove_unread, &unread);
    return status && status != -ENOENT ? tell(err, status, "list", dir) : 0;
}
