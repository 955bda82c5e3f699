#include "tests/support/locked_files.h"

#include <assert.h>

static struct locked_files *lock(void *state)
{
    struct locked_files *l = state;
    int status = pthread_mutex_lock(&l->lock);

    assert(status == 0);
    return l;
}

static int unlock(struct locked_files *l, int result)
{
    int status = pthread_mutex_unlock(&l->lock);

    assert(status == 0);
    return result;
}

static int locked_open_read(void *state, const char *path, int *ret_fd)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->open_read(l->files->state, path, ret_fd));
}

static int locked_create(void *state, const char *path, int *ret_fd)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->create(l->files->state, path, ret_fd));
}

static int64_t locked_read(void *state, int fd, void *dst, size_t n_bytes)
{
    struct locked_files *l = lock(state);

    return unlock(l, (int)l->files->read(l->files->state, fd, dst, n_bytes));
}

static int locked_write_all(void *state, int fd, const void *src, size_t n_bytes)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->write_all(l->files->state, fd, src, n_bytes));
}

static int locked_write_at(void *state, int fd, uint64_t offset, const void *src,
                           size_t n_bytes)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->write_at(l->files->state, fd, offset, src, n_bytes));
}

static int locked_sync(void *state, int fd)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->sync(l->files->state, fd));
}

static int locked_close(void *state, int fd)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->close(l->files->state, fd));
}

static int locked_rename(void *state, const char *from, const char *to)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->rename(l->files->state, from, to));
}

static int locked_unlink(void *state, const char *path)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->unlink(l->files->state, path));
}

static int locked_mkdir(void *state, const char *path)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->mkdir(l->files->state, path));
}

static int locked_rmdir(void *state, const char *path)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->rmdir(l->files->state, path));
}

static int locked_sync_dir(void *state, const char *path)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->sync_dir(l->files->state, path));
}

/* Names go while they are listed (directory.h, timeline.h): the lock may be taken again in `each`. */
static int locked_list(void *state, const char *path, int (*each)(void *arg, const char *name),
                       void *arg)
{
    struct locked_files *l = lock(state);

    return unlock(l, l->files->list(l->files->state, path, each, arg));
}

void locked_files_init(struct locked_files *l, const struct file_ops *files)
{
    pthread_mutexattr_t recursive;
    int status = pthread_mutexattr_init(&recursive);

    *l = (struct locked_files){ .files = files,
                                .ops = { .state = l,
                                         .open_read = locked_open_read,
                                         .create = locked_create,
                                         .read = locked_read,
                                         .write_all = locked_write_all,
                                         .write_at = locked_write_at,
                                         .sync = locked_sync,
                                         .close = locked_close,
                                         .rename = locked_rename,
                                         .unlink = locked_unlink,
                                         .mkdir = locked_mkdir,
                                         .rmdir = locked_rmdir,
                                         .sync_dir = locked_sync_dir,
                                         .list = locked_list } };
    assert(status == 0);
    status = pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    assert(status == 0);
    status = pthread_mutex_init(&l->lock, &recursive);
    assert(status == 0);
    pthread_mutexattr_destroy(&recursive);
}

void locked_files_deinit(struct locked_files *l)
{
    pthread_mutex_destroy(&l->lock);
}
