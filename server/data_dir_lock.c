#include "server/data_dir_lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"
#include "common/log_line.h"

#define PATH_BYTES 1100

/* The holder's pid, for people. */
static void sign(int fd)
{
    char pid[32];
    int n = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());

    if (ftruncate(fd, 0) == 0 && pwrite(fd, pid, (size_t)n, 0) != n)
        (void)!ftruncate(fd, 0);
}

static long read_holder(int fd)
{
    char pid[32] = "";
    long holder = 0;

    if (pread(fd, pid, sizeof pid - 1, 0) > 0)
        (void)sscanf(pid, "%ld", &holder);
    return holder;
}

/* Its name is as durable as what will be in it. One that was there before may stand where this process may not look. */
static int make(const char *data_dir, bool *ret_is_new, struct err *err)
{
    char parent[PATH_BYTES];
    size_t len = strlen(data_dir);
    bool is_new = *ret_is_new = mkdir(data_dir, 0700) == 0;
    int status;

    if (!is_new && errno != EEXIST)
        return err_set(err, -errno, "data-dir: cannot make %.150s: %s", data_dir,
                       strerror(errno));
    while (len > 1 && data_dir[len - 1] == '/')
        len--;
    while (len && data_dir[len - 1] != '/')
        len--;
    snprintf(parent, sizeof parent, "%.*s", len ? (int)len : 1, len ? data_dir : ".");
    status = file_os.sync_dir(file_os.state, parent);
    return status && is_new ? err_set(err, status, "data-dir: cannot sync %.150s: %s", parent,
                                      status_text(status))
                            : 0;
}

static bool is_alone(const char *data_dir)
{
    DIR *dir = opendir(data_dir);
    const struct dirent *entry;
    bool is_alone = dir != NULL;

    while (dir && (entry = readdir(dir)) != NULL)
        is_alone &= entry->d_name[0] == '.' || strcmp(entry->d_name, "LOCK") == 0;
    if (dir)
        closedir(dir);
    return is_alone;
}

static void path_of(const char *data_dir, char ret[static PATH_BYTES])
{
    snprintf(ret, PATH_BYTES, "%s/LOCK", data_dir);
}

int data_dir_lock_acquire(const char *data_dir, struct data_dir_lock *ret, struct err *err)
{
    char path[PATH_BYTES];
    int fd, status;

    *ret = (struct data_dir_lock){ .data_dir = data_dir, .fd = -1 };
    status = make(data_dir, &ret->is_new, err);
    if (status)
        return status;
    path_of(data_dir, path);
    ret->is_emptied = access(path, F_OK) == 0 && is_alone(data_dir);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(err, -errno, "data-dir: cannot write to %.150s: %s", data_dir,
                       strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        status =
            errno == EWOULDBLOCK
                ? err_set(err, -EBUSY, "data-dir: %.150s is in use by the psd with pid %ld",
                          data_dir, read_holder(fd))
                : err_set(err, -errno, "data-dir: cannot lock %.150s: %s", data_dir,
                          strerror(errno));
        close(fd);
        return status;
    }
    sign(fd);
    ret->fd = fd;
    return 0;
}

void data_dir_lock_release(struct data_dir_lock *lock)
{
    if (lock->fd >= 0)
        close(lock->fd);
    lock->fd = -1;
}

void data_dir_lock_abandon(struct data_dir_lock *lock)
{
    char path[PATH_BYTES];

    if (lock->fd >= 0 && lock->is_new && is_alone(lock->data_dir)) {
        path_of(lock->data_dir, path);
        (void)unlink(path);
        (void)rmdir(lock->data_dir);
    }
    data_dir_lock_release(lock);
}

void data_dir_lock_log(const struct data_dir_lock *lock)
{
    if (lock->is_new)
        log_line_info("data-dir: %s was not there: it is made, and psd starts with no tables",
                      lock->data_dir);
    else if (lock->is_emptied)
        log_line_warn(
            "data-dir: %s was a psd's before, and its checkpoints and write-ahead logs are "
            "gone: psd starts with no tables",
            lock->data_dir);
}
