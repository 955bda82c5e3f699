#include "server/data_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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

int data_lock_take(const char *data_dir, int *ret_fd, struct err *err)
{
    char path[1100];
    int fd, status;

    if (mkdir(data_dir, 0777) && errno != EEXIST)
        return err_set(err, -errno, "data-dir: cannot make %.150s: %s", data_dir,
                       strerror(errno));
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
