/*
 * Writes an array from memory into a file of some format: its description and the source of its bytes, read a chunk at
 * a time, so that no second copy is made. The formats stand below.
 */
#ifndef DEPLOY_PSCTL_TENSOR_FILES_H
#define DEPLOY_PSCTL_TENSOR_FILES_H

#include "common/file.h"
#include "common/status.h"

#define TENSOR_FILES_NAME_MAX 160u /* a table's, and what stands behind it */
#define TENSOR_FILES_N_DIMS_MAX 2u
#define TENSOR_FILES_PATH_MAX 1024u

enum tensor_files_type { TENSOR_FILES_F32, TENSOR_FILES_I64 };

/* Little-endian, the last index runs fastest. */
struct tensor_array {
    char name[TENSOR_FILES_NAME_MAX];
    enum tensor_files_type type;
    uint32_t n_dims; /* 1 or 2 */
    uint64_t dims[TENSOR_FILES_N_DIMS_MAX];

    /* Its bytes: part 0, 1 ... n_parts - 1, one behind the other. `part` writes at most part_bytes to dst,
     * which is aligned to 8, and returns how many. */
    void *owner; /* borrowed */
    uint64_t n_parts;
    size_t part_bytes;
    size_t (*part)(void *owner, uint64_t i, uint8_t *dst);
};

uint64_t tensor_files_array_bytes(const struct tensor_array *t);

/* A file in the making: it stands under PATH.tmp, and gets its name when it is whole and on the disk. */
struct tensor_file {
    const struct file_ops *files; /* borrowed */
    char path[TENSOR_FILES_PATH_MAX];
    int fd;
    uint8_t *buffer; /* owned */
    size_t n_buffered;
    struct err *err; /* borrowed: filled in by whatever fails */
};

/* Replaces what is there, when it is closed. On failure nothing is left open. */
int tensor_files_open(struct tensor_file *f, const struct file_ops *files, const char *path,
                      struct err *err) MUST_CHECK;

int tensor_files_put(struct tensor_file *f, const void *bytes, size_t n_bytes) MUST_CHECK;

/* so_far 0: writes buffered bytes, syncs, and gives the file its name. If so_far is an error, or one of these steps
 * fails, removes the file. Returns so_far or the failure. */
int tensor_files_close(struct tensor_file *f, int so_far) MUST_CHECK;

/*
 * NumPy's file of one array, version 1.0 (NEP 1, "A Simple File Format for NumPy Arrays"):
 *
 *     "\x93NUMPY" | 1 | 0 | u16 length | Python dictionary, blanks, newline | data
 *
 * Little-endian, C order; all before the data is a multiple of 64 bytes.
 */
int tensor_files_write_npy(const struct file_ops *files, const char *path,
                           const struct tensor_array *t, struct err *err) MUST_CHECK;

/*
 * A file of named arrays as PyTorch's users exchange them (huggingface/safetensors, README, "Format"):
 *
 *     u64 length | JSON, blanks up to a multiple of 8 | data of each array, one behind the other
 *
 *     {"__metadata__": {NAME: TEXT ...}, NAME: {"dtype": "F32"|"I64", "shape": [...], "data_offsets": [from, to]} ...}
 *
 * Offsets count from where the data begins. Arrays of 8-byte items come first, so that each is aligned.
 */
#define SAFETENSORS_NO_NAME "__metadata__" /* the metadata: no array may have this name */

struct safetensors_note {
    char name[TENSOR_FILES_NAME_MAX];
    char *text; /* borrowed */
};

/* No two tensors have one name, and none is called SAFETENSORS_NO_NAME. */
int tensor_files_write_safetensors(const struct file_ops *files, const char *path,
                                   const struct tensor_array *tensors, uint32_t n_tensors,
                                   const struct safetensors_note *notes, uint32_t n_notes,
                                   struct err *err) MUST_CHECK;

#endif
