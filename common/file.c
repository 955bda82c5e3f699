#include "common/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/status.h"

static int open_fd(const char *path, int flags, int *ret_fd)
{
    int fd;

    do
        fd = open(path, flags | O_CLOEXEC, 0644);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return -errno;
    *ret_fd = fd;
    return 0;
}

/* A file, or a directory, which read() refuses, is ready at once. A FIFO gives no event before its first writer. */
static int await_first_bytes(int fd)
{
    struct pollfd ready = { .fd = fd, .events = POLLIN };
    struct stat found;
    int n;

    if (fstat(fd, &found) < 0)
        return -errno;
    if (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode))
        return 0;
    do
        n = poll(&ready, 1, FILE_PIPE_WAIT_MS);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n == 0 ? PS_ENOTFILE : 0;
}

static int open_ready(const char *path, int flags, bool waits, int *ret_fd)
{
    int fd = -1, status = open_fd(path, flags | O_NONBLOCK, &fd);

    if (status)
        return status;
    if (waits)
        status = await_first_bytes(fd);
    if (!status && fcntl(fd, F_SETFL, flags & (O_APPEND | O_ACCMODE)) < 0)
        status = -errno;
    if (status)
        close(fd);
    else
        *ret_fd = fd;
    return status;
}

static int os_open_read(void *state, const char *path, int *ret_fd)
{
    (void)state;
    return open_ready(path, O_RDONLY, true, ret_fd);
}

static int os_create(void *state, const char *path, int *ret_fd)
{
    (void)state;
    return open_ready(path, O_WRONLY | O_CREAT | O_TRUNC, false, ret_fd);
}

static int64_t os_read(void *state, int fd, void *dst, size_t n_bytes)
{
    ssize_t n;

    (void)state;
    if (n_bytes > SSIZE_MAX)
        n_bytes = SSIZE_MAX;
    do
        n = read(fd, dst, n_bytes);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static int64_t os_skip(void *state, int fd, uint64_t n_bytes)
{
    off_t at = lseek(fd, 0, SEEK_CUR);
    struct stat found;
    uint64_t left;

    (void)state;
    if (at < 0 || fstat(fd, &found) < 0)
        return -errno;
    left = found.st_size > at ? (uint64_t)(found.st_size - at) : 0;
    if (n_bytes > left)
        n_bytes = left;
    return lseek(fd, (off_t)n_bytes, SEEK_CUR) < 0 ? -errno : (int64_t)n_bytes;
}

static int os_write_all(void *state, int fd, const void *src, size_t n_bytes)
{
    const char *at = src;
    ssize_t n;

    (void)state;
    while (n_bytes > 0) {
        n = write(fd, at, n_bytes);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            at += n;
            n_bytes -= (size_t)n;
        }
    }
    return 0;
}

static int os_write_at(void *state, int fd, uint64_t offset, const void *src, size_t n_bytes)
{
    const char *at = src;
    ssize_t n;

    (void)state;
    while (n_bytes > 0) {
        n = pwrite(fd, at, n_bytes, (off_t)offset);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            at += n;
            offset += (uint64_t)n;
            n_bytes -= (size_t)n;
        }
    }
    return 0;
}

static int os_sync(void *state, int fd)
{
    (void)state;
    return fsync(fd) < 0 ? -errno : 0;
}

static void os_write_back(void *state, int fd)
{
    (void)state;
    (void)!sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

static int os_close(void *state, int fd)
{
    (void)state;
    /* On Linux the descriptor is gone after EINTR too: to try again could close another
     * thread's. */
    return close(fd) < 0 && errno != EINTR ? -errno : 0;
}

static int os_rename(void *state, const char *from, const char *to)
{
    (void)state;
    return rename(from, to) < 0 ? -errno : 0;
}

static int os_unlink(void *state, const char *path)
{
    (void)state;
    return unlink(path) < 0 ? -errno : 0;
}

static int os_mkdir(void *state, const char *path)
{
    struct stat found;

    (void)state;
    if (mkdir(path, 0755) == 0)
        return 0;
    if (errno != EEXIST)
        return -errno;
    if (stat(path, &found) < 0)
        return -errno;
    return S_ISDIR(found.st_mode) ? 0 : -ENOTDIR;
}

static int os_rmdir(void *state, const char *path)
{
    (void)state;
    return rmdir(path) < 0 ? -errno : 0;
}

static int os_sync_dir(void *state, const char *path)
{
    int fd = -1, status = open_fd(path, O_RDONLY | O_DIRECTORY, &fd);

    if (status < 0)
        return status;
    status = os_sync(state, fd);
    close(fd);
    return status;
}

static int is_dots(const char *name)
{
    return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

static int os_list(void *state, const char *path, int (*each)(void *arg, const char *name),
                   void *arg)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int status = 0;

    (void)state;
    if (!dir)
        return -errno;
    while (status == 0) {
        errno = 0;
        entry = readdir(dir);
        if (!entry) {
            status = -errno;
            break;
        }
        if (!is_dots(entry->d_name))
            status = each(arg, entry->d_name);
    }
    closedir(dir);
    return status;
}

const struct file_ops file_os = {
    .open_read = os_open_read,
    .create = os_create,
    .read = os_read,
    .write_all = os_write_all,
    .write_at = os_write_at,
    .sync = os_sync,
    .close = os_close,
    .rename = os_rename,
    .unlink = os_unlink,
    .mkdir = os_mkdir,
    .rmdir = os_rmdir,
    .sync_dir = os_sync_dir,
    .list = os_list,
    .write_back = os_write_back,
    .skip = os_skip,
};
