#include "worker/data/input_pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/memory.h"

#define WAIT_MS 100 /* for bytes, until the stop flag is looked at again */

struct input_pipe {
    struct input_pipe *next; /* owned */
    dev_t device;            /* with the number: which pipe it is, under any name */
    ino_t number;
    int fd; /* -1: not opened yet */
    enum input_pipe_use use;
    bool passed; /* its pass has begun */
    struct bytes kept;
    size_t n_given;                  /* of what is kept, to the current prescan */
    const atomic_bool *stop;         /* borrowed */
    const struct input_pipes *pipes; /* borrowed: whose it is */
    bool ended_by_stop;              /* a stop has ended a read */
    char path[];
};

struct input_pipes {
    struct input_pipe *first; /* owned */
    bool (*is_stopped)(const void *arg);
    const void *stop_arg; /* borrowed */
};

static bool is_standard_input(const char *path)
{
    return strcmp(path, "-") == 0;
}

const char *input_pipe_name(const char *path)
{
    size_t len = strlen(path);

    if (is_standard_input(path))
        return "standard input";
    return len > INPUT_PIPE_NAME_MAX ? path + len - INPUT_PIPE_NAME_MAX : path;
}

static int stat_input(const char *path, struct stat *ret)
{
    return is_standard_input(path) ? fstat(STDIN_FILENO, ret) : stat(path, ret);
}

bool input_pipe_is_one(const char *path)
{
    struct stat st;

    return is_standard_input(path) ||
           (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode));
}

struct input_pipes *input_pipes_new(void)
{
    return memory_alloc(sizeof(struct input_pipes));
}

static void free_pipe(struct input_pipe *p)
{
    if (p->fd > STDIN_FILENO)
        close(p->fd);
    bytes_deinit(&p->kept);
    free(p);
}

void input_pipes_free(struct input_pipes *pipes)
{
    struct input_pipe *p, *next;

    for (p = pipes ? pipes->first : NULL; p; p = next) {
        next = p->next;
        free_pipe(p);
    }
    free(pipes);
}

void input_pipes_set_stop(struct input_pipes *pipes, bool (*is_stopped)(const void *arg),
                          const void *arg)
{
    pipes->is_stopped = is_stopped;
    pipes->stop_arg = arg;
}

bool input_pipes_is_empty(const struct input_pipes *pipes)
{
    return !pipes || !pipes->first;
}

int input_pipes_add(struct input_pipes *pipes, const char *path, struct err *err)
{
    size_t path_bytes = strlen(path) + 1;
    struct input_pipe *p;
    struct stat st;

    if (!input_pipe_is_one(path))
        return 0;
    if (stat_input(path, &st) != 0)
        return err_set(err, -errno, "%s cannot be read: %s", input_pipe_name(path),
                       strerror(errno));
    for (p = pipes->first; p; p = p->next)
        if (p->device == st.st_dev && p->number == st.st_ino)
            return err_set(err, PS_ESETTING,
                           "%s is named twice, and can be read only once: name a file",
                           input_pipe_name(path));
    p = memory_alloc(sizeof *p + path_bytes);
    p->device = st.st_dev;
    p->number = st.st_ino;
    p->fd = is_standard_input(path) ? STDIN_FILENO : -1;
    p->pipes = pipes;
    memcpy(p->path, path, path_bytes);
    p->next = pipes->first;
    pipes->first = p;
    return 0;
}

static struct input_pipe *find(const struct input_pipes *pipes, const char *path)
{
    for (struct input_pipe *p = pipes ? pipes->first : NULL; p; p = p->next)
        if (strcmp(p->path, path) == 0)
            return p;
    return NULL;
}

int input_pipes_begin(struct input_pipes *pipes, const char *path, enum input_pipe_use use,
                      const atomic_bool *stop, struct input_pipe **ret, struct err *err)
{
    struct input_pipe *p = *ret = find(pipes, path);

    if (!p)
        return 0;
    if (p->passed)
        return err_set(err, PS_ESETTING,
                       "%s can be read only once, and was: what reads its data a second time "
                       "needs a file",
                       input_pipe_name(path));
    /* Without O_NONBLOCK the opening of a FIFO would wait for a writer, deaf to a stop. */
    if (p->fd < 0)
        p->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (p->fd < 0)
        return err_set(err, -errno, "%s: cannot open: %s%s", path, strerror(errno),
                       errno == ENXIO ? " (a socket is read as --data -)" : "");
    p->use = use;
    p->passed = use == INPUT_PIPE_PASS;
    p->n_given = 0;
    p->stop = stop;
    return 0;
}

static bool is_stopped(const struct input_pipe *p)
{
    return (p->stop && atomic_load_explicit(p->stop, memory_order_relaxed)) ||
           (p->use == INPUT_PIPE_PRESCAN && p->pipes->is_stopped &&
            p->pipes->is_stopped(p->pipes->stop_arg));
}

/* A FIFO without a writer so far gives no event, and one whose writers have gone an end. */
static int read_pipe(struct input_pipe *p, void *dst, size_t n_bytes, size_t *ret_n,
                     struct err *err)
{
    struct pollfd ready = { .fd = p->fd, .events = POLLIN };
    ssize_t n = -1;

    *ret_n = 0;
    while (n < 0 && !is_stopped(p)) {
        if (poll(&ready, 1, WAIT_MS) <= 0)
            continue;
        n = read(p->fd, dst, n_bytes);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return err_set(err, -errno, "%s: cannot read: %s", input_pipe_name(p->path),
                           strerror(errno));
    }
    p->ended_by_stop = p->ended_by_stop || n < 0;
    *ret_n = n > 0 ? (size_t)n : 0;
    return 0;
}

bool input_pipe_is_stopped(const struct input_pipe *p)
{
    return p && p->ended_by_stop;
}

/* From the pipe, and into what is kept. */
static int prescan(struct input_pipe *p, void *dst, size_t n_bytes, size_t *ret_n,
                   struct err *err)
{
    uint8_t *space = bytes_reserve(&p->kept, n_bytes);
    int status = space ? read_pipe(p, space, n_bytes, ret_n, err)
                       : err_set(err, -ENOMEM, "%s: no memory for its first rows",
                                 input_pipe_name(p->path));

    if (status)
        return status;
    memcpy(dst, space, *ret_n);
    bytes_commit(&p->kept, *ret_n);
    p->n_given += *ret_n;
    return 0;
}

int input_pipe_read(struct input_pipe *p, void *dst, size_t n_bytes, size_t *ret_n,
                    struct err *err)
{
    size_t n_kept = bytes_len(&p->kept) - p->n_given;

    if (n_kept > 0) {
        *ret_n = n_bytes < n_kept ? n_bytes : n_kept;
        memcpy(dst, bytes_front(&p->kept) + p->n_given, *ret_n);
        if (p->use == INPUT_PIPE_PRESCAN)
            p->n_given += *ret_n;
        else
            bytes_consume(&p->kept, *ret_n);
        return 0;
    }
    if (p->use == INPUT_PIPE_PRESCAN)
        return prescan(p, dst, n_bytes, ret_n, err);
    bytes_deinit(&p->kept);
    p->kept = (struct bytes){ 0 };
    return read_pipe(p, dst, n_bytes, ret_n, err);
}
