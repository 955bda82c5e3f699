#include "tests/support/slow_disk.h"

#include <assert.h>

static void pass_gate(struct slow_disk *d)
{
    uv_mutex_lock(&d->lock);
    d->n_at_gate++;
    uv_cond_broadcast(&d->changed);
    while (d->is_shut)
        uv_cond_wait(&d->changed, &d->lock);
    d->n_at_gate--;
    uv_mutex_unlock(&d->lock);
}

static int open_read(void *state, const char *path, int *ret_fd)
{
    const struct slow_disk *d = state;

    return d->disk->open_read(d->disk->state, path, ret_fd);
}

static int create(void *state, const char *path, int *ret_fd)
{
    const struct slow_disk *d = state;

    return d->disk->create(d->disk->state, path, ret_fd);
}

static int64_t read_some(void *state, int fd, void *dst, size_t n_bytes)
{
    const struct slow_disk *d = state;

    return d->disk->read(d->disk->state, fd, dst, n_bytes);
}

static int write_all(void *state, int fd, const void *src, size_t n_bytes)
{
    struct slow_disk *d = state;

    pass_gate(d);
    return d->disk->write_all(d->disk->state, fd, src, n_bytes);
}

static int write_at(void *state, int fd, uint64_t offset, const void *src, size_t n_bytes)
{
    struct slow_disk *d = state;

    pass_gate(d);
    return d->disk->write_at(d->disk->state, fd, offset, src, n_bytes);
}

static int sync_file(void *state, int fd)
{
    const struct slow_disk *d = state;

    return d->disk->sync(d->disk->state, fd);
}

static int close_file(void *state, int fd)
{
    const struct slow_disk *d = state;

    return d->disk->close(d->disk->state, fd);
}

static int rename_path(void *state, const char *from, const char *to)
{
    const struct slow_disk *d = state;

    return d->disk->rename(d->disk->state, from, to);
}

static int unlink_path(void *state, const char *path)
{
    const struct slow_disk *d = state;

    return d->disk->unlink(d->disk->state, path);
}

static int make_dir(void *state, const char *path)
{
    const struct slow_disk *d = state;

    return d->disk->mkdir(d->disk->state, path);
}

static int remove_dir(void *state, const char *path)
{
    const struct slow_disk *d = state;

    return d->disk->rmdir(d->disk->state, path);
}

static int sync_dir(void *state, const char *path)
{
    const struct slow_disk *d = state;

    return d->disk->sync_dir(d->disk->state, path);
}

static int list(void *state, const char *path, int (*each)(void *arg, const char *name),
                void *arg)
{
    const struct slow_disk *d = state;

    return d->disk->list(d->disk->state, path, each, arg);
}

void slow_disk_init(struct slow_disk *d, const struct file_ops *disk)
{
    int status;

    *d = (struct slow_disk){ .disk = disk,
                             .ops = { d, open_read, create, read_some, write_all, write_at,
                                      sync_file, close_file, rename_path, unlink_path, make_dir,
                                      remove_dir, sync_dir, list, NULL, NULL } };
    status = uv_mutex_init(&d->lock);
    assert(status == 0);
    status = uv_cond_init(&d->changed);
    assert(status == 0);
}

void slow_disk_deinit(struct slow_disk *d)
{
    uv_cond_destroy(&d->changed);
    uv_mutex_destroy(&d->lock);
}

void slow_disk_shut(struct slow_disk *d)
{
    uv_mutex_lock(&d->lock);
    d->is_shut = true;
    uv_mutex_unlock(&d->lock);
}

void slow_disk_open(struct slow_disk *d)
{
    uv_mutex_lock(&d->lock);
    d->is_shut = false;
    uv_cond_broadcast(&d->changed);
    uv_mutex_unlock(&d->lock);
}

void slow_disk_await(struct slow_disk *d)
{
    uv_mutex_lock(&d->lock);
    while (!d->n_at_gate)
        uv_cond_wait(&d->changed, &d->lock);
    uv_mutex_unlock(&d->lock);
}
