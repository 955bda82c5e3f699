#include "worker/state_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/file.h"

int state_lock(const char *dir, const char *job, uint32_t rank, int *ret_fd, struct err *err)
{
    char path[4096];
    int fd, status = file_os.mkdir(file_os.state, dir);

    if (status)
        return err_set(err, status, "--state-dir: %.200s cannot be made: %s", dir,
                       status_text(status));
    if (snprintf(path, sizeof path, "%s/%s.%u.lock", dir, job, rank) >= (int)sizeof path)
        return err_set(err, -ENAMETOOLONG, "--state-dir: %.100s...: the path is too long", dir);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_set(err, -errno, "%.200s cannot be opened: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        status = errno == EWOULDBLOCK ? -EBUSY : -errno;
        close(fd);
        return err_set(err, status,
                       status == -EBUSY
                           ? "--state-dir: another process has %.200s: is job \"%s\", "
                             "rank %u, running already?"
                           : "%.200s of job \"%s\", rank %u, cannot be locked",
                       path, job, rank);
    }
    *ret_fd = fd;
    return 0;
}
