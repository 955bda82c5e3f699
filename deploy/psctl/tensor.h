/*
 * An array on its way from memory into a file of some format: what it is, and where its bytes come from,
 * a part at a time, so that no second copy of it is made. Formats: npy.h, safetensors.h.
 */
#ifndef DEPLOY_PSCTL_TENSOR_H
#define DEPLOY_PSCTL_TENSOR_H

#include "common/file.h"
#include "common/status.h"

#define TENSOR_NAME_MAX 160u /* a table's, and what stands behind it */
#define TENSOR_N_DIMS_MAX 2u
#define TENSOR_PATH_MAX 1024u

enum tensor_type { TENSOR_F32, TENSOR_I64 };

/* Little-endian, the last index runs fastest. */
struct tensor {
    char name[TENSOR_NAME_MAX];
    enum tensor_type type;
    uint32_t n_dims; /* 1 or 2 */
    uint64_t dims[TENSOR_N_DIMS_MAX];

    /* Its bytes: part 0, 1 ... n_parts - 1, one behind the other. `part` writes at most part_bytes to dst,
     * which is aligned to 8, and returns how many. */
    void *owner; /* borrowed */
    uint64_t n_parts;
    size_t part_bytes;
    size_t (*part)(void *owner, uint64_t i, uint8_t *dst);
};

uint64_t tensor_bytes(const struct tensor *t);

/* A file in the making: it stands under PATH.tmp, and gets its name when it is whole and on the disk. */
struct tensor_file {
    const struct file_ops *files; /* borrowed */
    char path[TENSOR_PATH_MAX];
    int fd;
    uint8_t *buffer; /* owned */
    size_t n_buffered;
    struct err *err; /* borrowed: filled in by whatever fails */
};

/* Replaces what is there, when it is closed. On failure nothing is left open. */
int tensor_file_open(struct tensor_file *f, const struct file_ops *files, const char *path,
                     struct err *err) MUST_CHECK;

int tensor_file_put(struct tensor_file *f, const void *bytes, size_t n_bytes) MUST_CHECK;

/* All bytes of a tensor. */
int tensor_file_put_tensor(struct tensor_file *f, const struct tensor *t) MUST_CHECK;

/* `so_far` 0: what is buffered, sync, name. Else, and after a failure: the file goes. Returns so_far or what failed. */
int tensor_file_close(struct tensor_file *f, int so_far) MUST_CHECK;

#endif
