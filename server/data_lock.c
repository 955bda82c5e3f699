#include "server/data_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"

/* The holder's pid, for people. */
static void sign(int fd)
{
    char pid[32];
    int n = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());

    if (ftruncate(fd, 0) == 0 && pwrite(fd, pid, (size_t)n, 0) != n)
        (void)ftruncate(fd, 0);
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
static int make(const char *data_dir, struct err *err)
{
    char parent[1100];
    size_t len = strlen(data_dir);
    bool is_new = mkdir(data_dir, 0777) == 0;
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

int data_lock_take(const char *data_dir, int *ret_fd, struct err *err)
{
    char path[1100];
    int fd, status = make(data_dir, err);

    if (status)
        return status;
    snprintf(path, sizeof path, "%s/LOCK", data_dir);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
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
    *ret_fd = fd;
    return 0;
}
