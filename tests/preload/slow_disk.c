/*
 * A library for LD_PRELOAD that makes the files of a process as slow as a disk of PS_DISK_BYTES_PER_S, which all of them
 * share. As with a real disk, a write only reaches the page cache and returns at once; write-back runs where
 * sync_file_range() begins it; fsync() and fdatasync() begin the rest and wait until the disk has it all, and
 * PS_DISK_SYNC_US (1000) longer. Without PS_DISK_BYTES_PER_S nothing changes.
 *
 * The disk is simulated: the process's data may lie in memory, so that figures do not depend on the machine's disk.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define FILES_MAX 4096
#define NS_PER_S UINT64_C(1000000000)

struct slow_file {
    uint64_t dirty_bytes; /* in the page cache, and write-back has not begun */
    uint64_t done_ns;     /* when the disk has all that it was given of it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct slow_file files[FILES_MAX]; /* by descriptor */
static uint64_t disk_free_ns;             /* when the disk has done all that it was given */
static uint64_t bytes_per_s, sync_ns;     /* 0: as fast as it is */
static ssize_t (*next_write)(int, const void *, size_t);
static int (*next_fsync)(int);
static int (*next_close)(int);

static void begin(void)
{
    const char *rate = getenv("PS_DISK_BYTES_PER_S"), *sync_us = getenv("PS_DISK_SYNC_US");

    bytes_per_s = rate ? strtoull(rate, NULL, 10) : 0;
    sync_ns = (sync_us ? strtoull(sync_us, NULL, 10) : 1000) * 1000;
    *(void **)&next_write = dlsym(RTLD_NEXT, "write");
    *(void **)&next_fsync = dlsym(RTLD_NEXT, "fsync");
    *(void **)&next_close = dlsym(RTLD_NEXT, "close");
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* The descriptor's file, if the disk is slow for it; sockets and pipes are not on a disk. */
static struct slow_file *slow_file(int fd)
{
    struct stat s;

    pthread_once(&once, begin);
    if (!bytes_per_s || fd < 0 || fd >= FILES_MAX || fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
        return NULL;
    return &files[fd];
}

/* The disk is given what is dirty. Under the lock. */
static void write_back(struct slow_file *f)
{
    uint64_t now = now_ns();

    if (!f->dirty_bytes)
        return;
    if (disk_free_ns < now)
        disk_free_ns = now;
    disk_free_ns += f->dirty_bytes * NS_PER_S / bytes_per_s;
    f->done_ns = disk_free_ns;
    f->dirty_bytes = 0;
}

static void sleep_until(uint64_t ns)
{
    struct timespec t = { .tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S) };

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static void wait_for_disk(struct slow_file *f)
{
    uint64_t done_ns, now = now_ns();

    pthread_mutex_lock(&lock);
    write_back(f);
    done_ns = f->done_ns > now ? f->done_ns : now;
    pthread_mutex_unlock(&lock);
    sleep_until(done_ns + sync_ns);
}

EXPORT ssize_t write(int fd, const void *bytes, size_t n_bytes)
{
    struct slow_file *f = slow_file(fd);
    ssize_t n = next_write(fd, bytes, n_bytes);

    if (!f || n <= 0)
        return n;
    pthread_mutex_lock(&lock);
    f->dirty_bytes += (uint64_t)n;
    pthread_mutex_unlock(&lock);
    return n;
}

EXPORT int sync_file_range(int fd, off_t offset, off_t n_bytes, unsigned flags)
{
    struct slow_file *f = slow_file(fd);

    (void)offset;
    (void)n_bytes;
    if (f && (flags & SYNC_FILE_RANGE_WRITE)) {
        pthread_mutex_lock(&lock);
        write_back(f);
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

EXPORT int fsync(int fd)
{
    struct slow_file *f = slow_file(fd);

    if (f)
        wait_for_disk(f);
    return next_fsync(fd);
}

EXPORT int fdatasync(int fd)
{
    return fsync(fd);
}

/* The descriptor is another file's next; what it left dirty is written some time. */
EXPORT int close(int fd)
{
    struct slow_file *f = slow_file(fd);

    if (f) {
        pthread_mutex_lock(&lock);
        f->dirty_bytes = 0;
        pthread_mutex_unlock(&lock);
    }
    return next_close(fd);
}
