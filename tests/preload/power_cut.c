/*
 * A library for LD_PRELOAD that notes what a process has synced: after each fsync() the file that PS_SYNCED names has a
 * line more, "DEVICE:INODE END", where END is the end of what was written to it before the call. So a test that has killed
 * the process can cut its files to what a power cut would have left of them. What is written in place, and what a
 * directory has, counts as kept.
 */
#undef _FORTIFY_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int (*next_fsync)(int);
static int list = -1;

static void begin(void)
{
    const char *path = getenv("PS_SYNCED");

    *(void **)&next_fsync = dlsym(RTLD_NEXT, "fsync");
    if (path)
        list = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

EXPORT int fsync(int fd)
{
    struct stat s;
    char line[80];
    int status, n;

    pthread_once(&once, begin);
    if (list < 0 || fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
        return next_fsync(fd);
    status = next_fsync(fd);
    n = snprintf(line, sizeof line, "%lu:%lu %lld\n", (unsigned long)s.st_dev,
                 (unsigned long)s.st_ino, (long long)s.st_size);
    if (status == 0 && write(list, line, (size_t)n) != n)
        abort();
    return status;
}
