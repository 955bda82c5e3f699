/*
 * What the product asks of the system beside libuv, answered here: clocks, files, the lock of a data directory, descriptors,
 * lines for the operator. The linker puts these in the product's place (Makefile, SIM_WRAPS).
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log_line.h"
#include "server/data_dir_lock.h"
#include "tests/sim/node.h"
#include "tests/sim/os.h"
#include "tests/sim/uv_state.h"
#include "tests/sim/wrap.h"

#define UNIX_MS UINT64_C(1700000000000)
#define FD_DISK 65536 /* of an open file: its disk's number times this, and its own */

static struct world *world;

void os_begin(struct world *w)
{
    world = w;
}

/* --- clocks --- */

uint64_t WRAP(clock_unix_ms)(void);
uint64_t WRAP(clock_unix_ms)(void)
{
    return UNIX_MS + machine_ms_of(NULL) -
           (process_current() ? process_current()->behind_ms : 0);
}

/* A turn takes time, so a later look may find the next millisecond, though nothing else has happened. */
uint64_t WRAP(clock_mono_ms)(void);
uint64_t WRAP(clock_mono_ms)(void)
{
    struct process *p = process_current();
    uint64_t ms = machine_ms();

    if (!p)
        return ms;
    ms += hash_mix2(world->plan.seed, p->n_reads++) % 8 == 0;
    p->read_ms = ms > p->read_ms ? ms : p->read_ms;
    return p->read_ms;
}

uint64_t WRAP(clock_mono_ns)(void);
uint64_t WRAP(clock_mono_ns)(void)
{
    return machine_us_of(process_current()) * 1000;
}

/* --- lines for the operator --- */

void WRAP(log_line_write)(enum log_line_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
void WRAP(log_line_write)(enum log_line_level level, const char *fmt, ...)
{
    static const char *const levels[] = { "error", "warn", "info", "debug" };
    struct process *p = process_current();
    char line[600];
    va_list args;

    if (!world->is_traced && level != LOG_LINE_LEVEL_ERROR)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (p && level == LOG_LINE_LEVEL_ERROR)
        snprintf(p->last_error, sizeof p->last_error, "%.390s", line);
    world_trace(world, "%s, %s: %s", p ? p->name : "-", levels[level], line);
}

/* --- files --- */

static uint32_t pace(void)
{
    uint32_t most = world->plan.disk_us;

    return dice_once_in(&machine.dice, 20) && !world->is_calm ? plan_disk_us_max(&world->plan)
                                                              : most;
}

static void spend(uint32_t most)
{
    struct fiber *f = machine.running;
    uint64_t us;

    if (!f)
        return;
    us = dice_roll(&machine.dice, most + 1);
    f->disk_us += us;
    f->disk_until_us = machine_now_us() + us;
    fiber_sleep(us);
}

/* Half of its time an operation takes before it happens, half of it behind; who dies in it is gone. */
static struct disk *resolve(const char *path, bool is_slow)
{
    uint32_t number = (uint32_t)strtoul(path + strlen(OS_DATA_DIR), NULL, 10);
    struct disk *d = cluster_disk(world, number);

    assert(strncmp(path, OS_DATA_DIR, strlen(OS_DATA_DIR)) == 0);
    spend(is_slow ? pace() / 2 : world->plan.disk_us / 32);
    return d;
}

static struct disk *disk_of(int fd)
{
    return cluster_disk(world, (uint32_t)(fd / FD_DISK));
}

static void bury(const struct disk *d)
{
    struct process *p = process_current();

    if (d->dead && p && p->disk == d)
        cluster_died(world, p);
}

static int leave(const struct disk *d, int status, bool is_slow)
{
    bury(d);
    if (is_slow)
        spend(pace() / 2);
    return status;
}

static int file_opened(struct disk *d, int status, int *fd)
{
    if (!status)
        *fd += (int)cluster_number(world, d) * FD_DISK;
    return leave(d, status, false);
}

static int os_open_read(void *state, const char *path, int *ret_fd)
{
    struct disk *d = resolve(path, false);

    (void)state;
    return file_opened(d, d->ops.open_read(d, path, ret_fd), ret_fd);
}

static int os_create(void *state, const char *path, int *ret_fd)
{
    struct disk *d = resolve(path, true);

    (void)state;
    return file_opened(d, d->ops.create(d, path, ret_fd), ret_fd);
}

static int64_t os_read(void *state, int fd, void *dst, size_t n_bytes)
{
    struct disk *d = disk_of(fd);
    int64_t n = d->ops.read(d, fd % FD_DISK, dst, n_bytes);

    (void)state;
    bury(d);
    return n;
}

static int os_write_all(void *state, int fd, const void *src, size_t n_bytes)
{
    struct disk *d = disk_of(fd);

    (void)state;
    spend(pace() / 4);
    return leave(d, d->ops.write_all(d, fd % FD_DISK, src, n_bytes), false);
}

static int os_write_at(void *state, int fd, uint64_t offset, const void *src, size_t n_bytes)
{
    struct disk *d = disk_of(fd);

    (void)state;
    spend(pace() / 4);
    return leave(d, d->ops.write_at(d, fd % FD_DISK, offset, src, n_bytes), false);
}

static int os_sync(void *state, int fd)
{
    struct disk *d = disk_of(fd);

    (void)state;
    spend(pace() / 2);
    return leave(d, d->ops.sync(d, fd % FD_DISK), true);
}

static int os_close(void *state, int fd)
{
    struct disk *d = disk_of(fd);

    (void)state;
    return leave(d, d->ops.close(d, fd % FD_DISK), false);
}

static int os_rename(void *state, const char *from, const char *to)
{
    struct disk *d = resolve(from, true);

    (void)state;
    return leave(d, d->ops.rename(d, from, to), true);
}

static int os_unlink(void *state, const char *path)
{
    struct disk *d = resolve(path, true);

    (void)state;
    return leave(d, d->ops.unlink(d, path), false);
}

static int os_mkdir(void *state, const char *path)
{
    struct disk *d = resolve(path, false);

    (void)state;
    return leave(d, d->ops.mkdir(d, path), false);
}

static int os_rmdir(void *state, const char *path)
{
    struct disk *d = resolve(path, false);

    (void)state;
    return leave(d, d->ops.rmdir(d, path), false);
}

static int os_sync_dir(void *state, const char *path)
{
    struct disk *d = resolve(path, true);

    (void)state;
    return leave(d, d->ops.sync_dir(d, path), true);
}

static int os_list(void *state, const char *path, int (*each)(void *, const char *), void *arg)
{
    struct disk *d = resolve(path, false);

    (void)state;
    return leave(d, d->ops.list(d, path, each, arg), false);
}

/* In the place of common/file.c's, which the linker then does not look for. */
const struct file_ops file_os = { .open_read = os_open_read,
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
                                  .list = os_list };

/* --- the lock of a data directory --- */

int WRAP(data_dir_lock_acquire)(const char *data_dir, struct data_dir_lock *ret,
                                struct err *err);
int WRAP(data_dir_lock_acquire)(const char *data_dir, struct data_dir_lock *ret,
                                struct err *err)
{
    int status = os_mkdir(NULL, data_dir);

    *ret = (struct data_dir_lock){ .data_dir = data_dir, .fd = -1 };
    return status ? err_set(err, status, "data-dir: cannot make %.150s", data_dir) : 0;
}

void WRAP(data_dir_lock_release)(struct data_dir_lock *lock);
void WRAP(data_dir_lock_release)(struct data_dir_lock *lock)
{
    (void)lock;
}

void WRAP(data_dir_lock_abandon)(struct data_dir_lock *lock);
void WRAP(data_dir_lock_abandon)(struct data_dir_lock *lock)
{
    (void)lock;
}

/* --- descriptors --- */

int REAL(close)(int fd);
int WRAP(close)(int fd);
int WRAP(close)(int fd)
{
    return fd >= SIM_FD_FIRST ? sim_close(fd) : REAL(close)(fd);
}

int REAL(fstat)(int fd, struct stat *facts);
int WRAP(fstat)(int fd, struct stat *facts);
int WRAP(fstat)(int fd, struct stat *facts)
{
    if (!machine.running) /* stdio's own */
        return REAL(fstat)(fd, facts);
    *facts = (struct stat){ .st_size = (off_t)disk_size(disk_of(fd), fd % FD_DISK) };
    return 0;
}

ssize_t WRAP(pread)(int fd, void *dst, size_t n_bytes, off_t offset);
ssize_t WRAP(pread)(int fd, void *dst, size_t n_bytes, off_t offset)
{
    struct disk *d = disk_of(fd);
    int64_t n = disk_read_at(d, fd % FD_DISK, (uint64_t)offset, dst, n_bytes);

    bury(d);
    errno = n < 0 ? (int)-n : errno;
    return n < 0 ? -1 : (ssize_t)n;
}

int WRAP(fcntl)(int fd, int command, ...);
int WRAP(fcntl)(int fd, int command, ...)
{
    assert(fd >= SIM_FD_FIRST && command == F_DUPFD_CLOEXEC);
    return sim_dup(fd);
}

int WRAP(ioctl)(int fd, unsigned long request, ...);
int WRAP(ioctl)(int fd, unsigned long request, ...)
{
    va_list args;

    assert(fd >= SIM_FD_FIRST);
    (void)request; /* SIOCOUTQ */
    va_start(args, request);
    *va_arg(args, int *) = sim_outq(fd);
    va_end(args);
    return 0;
}

int WRAP(setsockopt)(int fd, int level, int option, const void *value, socklen_t n_bytes);
int WRAP(setsockopt)(int fd, int level, int option, const void *value, socklen_t n_bytes)
{
    (void)fd, (void)level, (void)option, (void)value, (void)n_bytes;
    return 0;
}

int WRAP(shutdown)(int fd, int how);
int WRAP(shutdown)(int fd, int how)
{
    (void)how;
    return sim_shutdown(fd);
}

/* The threads of a simulated process are no threads of this one. */
int WRAP(pthread_sigmask)(int how, const sigset_t *set, sigset_t *was);
int WRAP(pthread_sigmask)(int how, const sigset_t *set, sigset_t *was)
{
    (void)how, (void)set, (void)was;
    return 0;
}
