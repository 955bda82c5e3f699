#include "deploy/psctl/tensor.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define BUFFER_BYTES ((size_t)1 << 20)

uint64_t tensor_bytes(const struct tensor *t)
{
    uint64_t n = t->type == TENSOR_I64 ? 8 : 4;

    for (uint32_t i = 0; i < t->n_dims; i++)
        n *= t->dims[i];
    return n;
}

static void temporary_path(const struct tensor_file *f, char ret[static TENSOR_PATH_MAX + 8])
{
    snprintf(ret, TENSOR_PATH_MAX + 8, "%s.tmp", f->path);
}

static int fail(struct tensor_file *f, int status, const char *what)
{
    return err_set(f->err, status, "cannot %s %.180s: %s", what, f->path, status_text(status));
}

int tensor_file_open(struct tensor_file *f, const struct file_ops *files, const char *path,
                     struct err *err)
{
    char temporary[TENSOR_PATH_MAX + 8];
    int status;

    *f = (struct tensor_file){ .files = files, .fd = -1, .err = err };
    if (strlen(path) >= sizeof f->path)
        return err_set(err, -ENAMETOOLONG, "a path of more than %u bytes", TENSOR_PATH_MAX - 1);
    snprintf(f->path, sizeof f->path, "%s", path);
    temporary_path(f, temporary);
    status = files->create(files->state, temporary, &f->fd);
    if (status)
        return fail(f, status, "make");
    f->buffer = mem_alloc(BUFFER_BYTES);
    return 0;
}

static int flush(struct tensor_file *f)
{
    size_t n = f->n_buffered;
    int status;

    f->n_buffered = 0;
    status = n ? f->files->write_all(f->files->state, f->fd, f->buffer, n) : 0;
    return status ? fail(f, status, "write") : 0;
}

int tensor_file_put(struct tensor_file *f, const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;

    while (n_bytes > 0) {
        size_t room = BUFFER_BYTES - f->n_buffered, n = n_bytes < room ? n_bytes : room;
        int status;

        memcpy(f->buffer + f->n_buffered, at, n);
        f->n_buffered += n;
        at += n;
        n_bytes -= n;
        status = f->n_buffered == BUFFER_BYTES ? flush(f) : 0;
        if (status)
            return status;
    }
    return 0;
}

int tensor_file_put_tensor(struct tensor_file *f, const struct tensor *t)
{
    uint8_t *part = mem_try_alloc(t->part_bytes + 1);
    uint64_t n_bytes = 0;
    int status = part ? 0 : fail(f, -ENOMEM, "write");

    for (uint64_t i = 0; i < t->n_parts && !status; i++) {
        size_t n = t->part(t->owner, i, part);

        n_bytes += n;
        status = tensor_file_put(f, part, n);
    }
    assert(status || n_bytes == tensor_bytes(t)); /* whoever made the tensor has counted */
    free(part);
    return status;
}

int tensor_file_close(struct tensor_file *f, int so_far)
{
    const struct file_ops *files = f->files;
    char temporary[TENSOR_PATH_MAX + 8];
    int status = so_far ? so_far : flush(f), closed;

    temporary_path(f, temporary);
    if (!status) {
        status = files->sync(files->state, f->fd);
        status = status ? fail(f, status, "sync") : 0;
    }
    closed = files->close(files->state, f->fd);
    if (!status && closed)
        status = fail(f, closed, "close");
    if (!status) {
        status = files->rename(files->state, temporary, f->path);
        status = status ? fail(f, status, "name") : 0;
    }
    if (status)
        files->unlink(files->state, temporary);
    free(f->buffer);
    f->buffer = NULL;
    return status;
}
