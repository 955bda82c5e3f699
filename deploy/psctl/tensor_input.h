/*
 * Arrays of numbers in files, to be read: one safetensors file, one .npy file, or a directory of .npy files, which have
 * the names of their arrays, with %XX for other bytes (export.h). A file's head is read and checked when it is opened.
 * Numbers are read a part at a time: so a file of any size takes little memory, and one that becomes shorter meanwhile
 * is a status.
 */
#ifndef DEPLOY_PSCTL_TENSOR_INPUT_H
#define DEPLOY_PSCTL_TENSOR_INPUT_H

#include <stdbool.h>

#include "common/status.h"
#include "deploy/psctl/tensor_files.h"

#define TENSOR_INPUT_TYPE_MAX 16u
#define TENSOR_INPUT_DIMS_MAX 8u
#define TENSOR_INPUT_ARRAYS_MAX 65536u

/* One array, as its file describes it: of any type and shape. */
struct tensor_input {
    char name[TENSOR_FILES_NAME_MAX];
    char type
        [TENSOR_INPUT_TYPE_MAX]; /* "F32", "I64", "U64" ...; what npy calls otherwise, as it calls it */
    uint32_t n_dims;
    uint64_t dims[TENSOR_INPUT_DIMS_MAX];
    uint64_t offset, n_bytes; /* in its file: all of them are there */
    int fd;                   /* borrowed from the set */
};

/* What a file says of the table `name`: JSON text. */
struct tensor_input_note {
    char name[TENSOR_FILES_NAME_MAX];
    char *text; /* owned */
};

struct tensor_inputs {
    struct tensor_input *items;      /* owned, in order of names */
    struct tensor_input_note *notes; /* owned */
    int *fds;                        /* owned, and open */
    uint32_t n, n_notes, n_fds;
};

/* Opens the file or directory. -errno, PS_EDATA with a sentence: no such file, or not what it should be. */
int tensor_inputs_open(struct tensor_inputs *ret, const char *path, struct err *err) MUST_CHECK;
void tensor_inputs_close(struct tensor_inputs *set);

/* NULL: there is none. */
const struct tensor_input *tensor_inputs_find(const struct tensor_inputs *set,
                                              const char *name);
const char *tensor_inputs_note(const struct tensor_inputs *set, const char *name);

/* Bytes [from, from + n) of the array. PS_EDATA: the file has become shorter. */
int tensor_input_read(const struct tensor_input *t, uint64_t from, void *dst, size_t n,
                      struct err *err) MUST_CHECK;

/* The heads, of bytes from anywhere; file_bytes: of the whole file. PS_EDATA with a sentence.
 * npy: `head` has at least tensor_input_npy_bytes() bytes; 0: these first 12 bytes are no npy file's. */
size_t tensor_input_npy_bytes(const uint8_t start[static 12]);
int tensor_input_read_npy(const uint8_t *head, size_t head_bytes, uint64_t file_bytes,
                          struct tensor_input *ret, struct err *err) MUST_CHECK;
/* safetensors: the JSON text behind the length, ended by a NUL. Adds to the set. */
int tensor_input_read_safetensors(const char *json, uint64_t json_bytes, uint64_t file_bytes,
                                  int fd, struct tensor_inputs *set, struct err *err)
    MUST_CHECK;

#endif
