#include "deploy/psctl/tensor_files.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define BUFFER_BYTES ((size_t)1 << 20)

uint64_t tensor_files_array_bytes(const struct tensor_array *t)
{
    uint64_t n = t->type == TENSOR_FILES_I64 ? 8 : 4;

    for (uint32_t i = 0; i < t->n_dims; i++)
        n *= t->dims[i];
    return n;
}

static void temporary_path(const struct tensor_file *f,
                           char ret[static TENSOR_FILES_PATH_MAX + 8])
{
    snprintf(ret, TENSOR_FILES_PATH_MAX + 8, "%s.tmp", f->path);
}

static int fail(struct tensor_file *f, int status, const char *what)
{
    return err_set(f->err, status, "cannot %s %.180s: %s", what, f->path, status_text(status));
}

int tensor_files_open(struct tensor_file *f, const struct file_ops *files, const char *path,
                      struct err *err)
{
    char temporary[TENSOR_FILES_PATH_MAX + 8];
    int status;

    *f = (struct tensor_file){ .files = files, .fd = -1, .err = err };
    if (strlen(path) >= sizeof f->path)
        return err_set(err, -ENAMETOOLONG, "a path of more than %u bytes",
                       TENSOR_FILES_PATH_MAX - 1);
    snprintf(f->path, sizeof f->path, "%s", path);
    temporary_path(f, temporary);
    status = files->create(files->state, temporary, &f->fd);
    if (status)
        return fail(f, status, "make");
    f->buffer = memory_alloc(BUFFER_BYTES);
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

int tensor_files_put(struct tensor_file *f, const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;

    while (n_bytes > 0) {
        size_t space = BUFFER_BYTES - f->n_buffered, n = n_bytes < space ? n_bytes : space;
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

/* All bytes of a tensor. */
static int tensor_files_file_put_tensor(struct tensor_file *f, const struct tensor_array *t)
{
    uint8_t *part = memory_try_alloc(t->part_bytes + 1);
    uint64_t n_bytes = 0;
    int status = part ? 0 : fail(f, -ENOMEM, "write");

    for (uint64_t i = 0; i < t->n_parts && !status; i++) {
        size_t n = t->part(t->owner, i, part);

        n_bytes += n;
        status = tensor_files_put(f, part, n);
    }
    assert(status ||
           n_bytes == tensor_files_array_bytes(t)); /* whoever made the tensor has counted */
    free(part);
    return status;
}

int tensor_files_close(struct tensor_file *f, int so_far)
{
    const struct file_ops *files = f->files;
    char temporary[TENSOR_FILES_PATH_MAX + 8];
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

#define MAGIC_BYTES 10u /* with version and length */
#define ALIGNMENT 64u
#define HEAD_BYTES \
    (MAGIC_BYTES + 246u) /* a multiple of ALIGNMENT, and space for any dictionary of ours */

static void encode_head(char dst[static HEAD_BYTES], const struct tensor_array *t)
{
    static const char magic[8] = { '\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0 };
    const size_t n = HEAD_BYTES - MAGIC_BYTES;
    char text[HEAD_BYTES], shape[64];
    int len;

    if (t->n_dims == 1)
        snprintf(shape, sizeof shape, "(%" PRIu64 ",)", t->dims[0]);
    else
        snprintf(shape, sizeof shape, "(%" PRIu64 ", %" PRIu64 ")", t->dims[0], t->dims[1]);
    len = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                   t->type == TENSOR_FILES_I64 ? "<i8" : "<f4", shape);
    memset(dst, ' ', HEAD_BYTES);
    memcpy(dst, magic, sizeof magic);
    dst[8] = (char)(n & 0xff);
    dst[9] = (char)(n >> 8);
    memcpy(dst + MAGIC_BYTES, text, (size_t)len);
    dst[HEAD_BYTES - 1] = '\n';
}

int tensor_files_write_npy(const struct file_ops *files, const char *path,
                           const struct tensor_array *t, struct err *err)
{
    char head[HEAD_BYTES];
    struct tensor_file f;
    int status = tensor_files_open(&f, files, path, err);

    if (status)
        return status;
    encode_head(head, t);
    status = tensor_files_put(&f, head, sizeof head);
    if (!status)
        status = tensor_files_file_put_tensor(&f, t);
    return tensor_files_close(&f, status);
}

#define ALIGNMENT_SAFETENSORS 8u

static const char *type_name(enum tensor_files_type type)
{
    return type == TENSOR_FILES_I64 ? "I64" : "F32";
}

static cJSON *numbers(const uint64_t *items, uint32_t n)
{
    cJSON *array = cJSON_CreateArray();

    /* Exact: no file has 2^53 bytes. */
    for (uint32_t i = 0; i < n; i++)
        cJSON_AddItemToArray(array, cJSON_CreateNumber((double)items[i]));
    return array;
}

static void add_tensors(cJSON *root, const struct tensor_array *tensors, uint32_t n,
                        enum tensor_files_type type, uint64_t *offset)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t span[2] = { *offset };
        cJSON *item;

        if (tensors[i].type != type)
            continue;
        span[1] = *offset += tensor_files_array_bytes(&tensors[i]);
        item = cJSON_AddObjectToObject(root, tensors[i].name);
        cJSON_AddStringToObject(item, "dtype", type_name(type));
        cJSON_AddItemToObject(item, "shape", numbers(tensors[i].dims, tensors[i].n_dims));
        cJSON_AddItemToObject(item, "data_offsets", numbers(span, 2));
    }
}

/* The JSON, padded; NULL: no memory. */
static char *make_head(const struct tensor_array *tensors, uint32_t n_tensors,
                       const struct safetensors_note *notes, uint32_t n_notes,
                       size_t *ret_bytes)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *metadata = cJSON_AddObjectToObject(root, SAFETENSORS_NO_NAME);
    uint64_t offset = 0;
    char *text, *padded = NULL;

    cJSON_AddStringToObject(metadata, "format", "pt");
    for (uint32_t i = 0; i < n_notes; i++)
        cJSON_AddStringToObject(metadata, notes[i].name, notes[i].text);
    add_tensors(root, tensors, n_tensors, TENSOR_FILES_I64, &offset);
    add_tensors(root, tensors, n_tensors, TENSOR_FILES_F32, &offset);
    text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    if (text) {
        *ret_bytes = (strlen(text) + ALIGNMENT_SAFETENSORS - 1) / ALIGNMENT_SAFETENSORS *
                     ALIGNMENT_SAFETENSORS;
        padded = memory_alloc(*ret_bytes + 1);
        memset(padded, ' ', *ret_bytes);
        memcpy(padded, text, strlen(text));
    }
    free(text);
    return padded;
}

static int put_all(struct tensor_file *f, const struct tensor_array *tensors, uint32_t n,
                   enum tensor_files_type type)
{
    int status = 0;

    for (uint32_t i = 0; i < n && !status; i++)
        if (tensors[i].type == type)
            status = tensor_files_file_put_tensor(f, &tensors[i]);
    return status;
}

int tensor_files_write_safetensors(const struct file_ops *files, const char *path,
                                   const struct tensor_array *tensors, uint32_t n_tensors,
                                   const struct safetensors_note *notes, uint32_t n_notes,
                                   struct err *err)
{
    struct tensor_file f;
    size_t n_bytes = 0;
    char *head = make_head(tensors, n_tensors, notes, n_notes, &n_bytes);
    const uint64_t length = n_bytes;
    int status =
        head ? tensor_files_open(&f, files, path, err) : err_set(err, -ENOMEM, "no memory");

    if (status) {
        free(head);
        return status;
    }
    status = tensor_files_put(&f, &length, sizeof length);
    if (!status)
        status = tensor_files_put(&f, head, n_bytes);
    if (!status)
        status = put_all(&f, tensors, n_tensors, TENSOR_FILES_I64);
    if (!status)
        status = put_all(&f, tensors, n_tensors, TENSOR_FILES_F32);
    free(head);
    return tensor_files_close(&f, status);
}
