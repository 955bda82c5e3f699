/*
 * A Parquet file: its footer, and so its columns, row groups and where their bytes are.
 *
 *     "PAR1" | row group 0: a chunk for each column, of pages | row group 1 | ... | footer | u32 its size | "PAR1"
 *
 * The footer is kept as it is in the file and its row groups are read from it again when their turn comes, so an open
 * file costs the footer's bytes and 16 more for each row group.
 *
 * A column is a field at the top of the file's schema: a value a row, or a LIST of them. Anything else, such as a
 * STRUCT, is a column as well, that cannot be read.
 *
 * https://parquet.apache.org/docs/file-format/, and parquet.thrift beside it.
 */
#ifndef WORKER_DATA_PARQUET_FILE_H
#define WORKER_DATA_PARQUET_FILE_H

#include <stdbool.h>

#include "common/status.h"
#include "worker/data/parquet_codec.h"

/* How values are stored. */
enum parquet_storage {
    PARQUET_STORAGE_BOOLEAN = 0,
    PARQUET_STORAGE_INT32 = 1,
    PARQUET_STORAGE_INT64 = 2,
    PARQUET_STORAGE_FLOAT = 4,
    PARQUET_STORAGE_DOUBLE = 5,
    PARQUET_STORAGE_BYTES = 6, /* each with its length */
    PARQUET_STORAGE_FIXED = 7  /* all of one length */
};

/* What they mean. */
enum parquet_type {
    PARQUET_INT,
    PARQUET_UINT,
    PARQUET_FLOAT,
    PARQUET_DOUBLE,
    PARQUET_HALF,
    PARQUET_TEXT
};

struct parquet_file_column {
    const char *name; /* owned by the file, NUL-terminated, without control characters */
    char refused[24]; /* "" or what it is that cannot be read: "DECIMAL" */
    enum parquet_storage storage;
    enum parquet_type type;
    uint32_t value_bytes;      /* of PARQUET_STORAGE_FIXED */
    uint32_t def_max, rep_max; /* levels; rep_max 1: a LIST */
    uint32_t leaf;             /* its chunk's number in a row group */
};

/* The bytes of a column in a row group. */
struct parquet_file_chunk {
    uint64_t at, n_bytes;
    uint64_t n_values; /* entries, nulls and empty lists among them */
    enum parquet_codec codec;
};

struct parquet_file;

/* Whether these are the first bytes of a Parquet file. Text may begin with PAR1 as well, but holds no NUL. */
bool parquet_file_begins(const void *bytes, size_t n_bytes);

/* The same of a regular file; false for a pipe, which is not touched. */
bool parquet_file_is_one(const char *path);

/* PS_EDATA for a footer that makes no sense, a negative errno, -ENOMEM. */
int parquet_file_open(const char *path, struct parquet_file **ret, struct err *err) MUST_CHECK;
void parquet_file_close(struct parquet_file *f);

const char *parquet_file_path(const struct parquet_file *f); /* as a sentence may show it */
uint64_t parquet_file_n_rows(const struct parquet_file *f);
uint64_t parquet_file_n_bytes(const struct parquet_file *f);
uint32_t parquet_file_n_columns(const struct parquet_file *f);
const struct parquet_file_column *parquet_file_column(const struct parquet_file *f, uint32_t i);

/* Row groups: rows of one, and those before it. */
uint32_t parquet_file_n_groups(const struct parquet_file *f);
uint64_t parquet_file_group_rows(const struct parquet_file *f, uint32_t group);
uint64_t parquet_file_group_end(const struct parquet_file *f, uint32_t group);

/* The chunks of n columns in a row group, with all that can be checked of them. PS_EDATA. */
int parquet_file_chunks(const struct parquet_file *f, uint32_t group,
                        const struct parquet_file_column *const *columns, uint32_t n,
                        struct parquet_file_chunk *ret, struct err *err) MUST_CHECK;

/* n_bytes from `at` on; PS_EDATA when the file ends before. */
int parquet_file_read(const struct parquet_file *f, uint64_t at, void *dst, size_t n_bytes,
                      struct err *err) MUST_CHECK;

#endif
