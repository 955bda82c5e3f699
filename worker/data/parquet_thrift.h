/*
 * Thrift's compact protocol, as far as Parquet's footer and page headers use it: a cursor over bytes in memory.
 *
 *     while (parquet_thrift_field(t, &f))     fields of a struct, to its end
 *         if (f.id == 3)
 *             x = parquet_thrift_int(t, &f);
 *         else
 *             parquet_thrift_skip(t, &f);
 *
 * An error sticks: `bad` is true from then on, each read returns 0 and each loop ends. No byte from `end` on is read. A
 * count of elements is never larger than the bytes that are left, so that arrays may be sized by it.
 *
 * https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
 */
#ifndef WORKER_DATA_PARQUET_THRIFT_H
#define WORKER_DATA_PARQUET_THRIFT_H

#include <stdbool.h>

#include "common/base.h"

enum parquet_thrift_type {
    PARQUET_THRIFT_TRUE = 1,
    PARQUET_THRIFT_FALSE = 2,
    PARQUET_THRIFT_BYTE = 3,
    PARQUET_THRIFT_I16 = 4,
    PARQUET_THRIFT_I32 = 5,
    PARQUET_THRIFT_I64 = 6,
    PARQUET_THRIFT_DOUBLE = 7,
    PARQUET_THRIFT_BINARY = 8,
    PARQUET_THRIFT_LIST = 9,
    PARQUET_THRIFT_SET = 10,
    PARQUET_THRIFT_MAP = 11,
    PARQUET_THRIFT_STRUCT = 12,
    PARQUET_THRIFT_UUID = 13
};

struct parquet_thrift {
    const uint8_t *at, *end; /* borrowed */
    bool bad;                /* the bytes are not what they are said to be, or too few */
};

struct parquet_thrift_field {
    int32_t id; /* 0 before the first of a struct */
    uint8_t type;
};

/* To the next field of the struct that f has walked so far; false at its end. */
bool parquet_thrift_field(struct parquet_thrift *t, struct parquet_thrift_field *f);

/* The value of a field; `bad` when it is of another type. */
int64_t parquet_thrift_int(struct parquet_thrift *t, const struct parquet_thrift_field *f);
bool parquet_thrift_bool(struct parquet_thrift *t, const struct parquet_thrift_field *f);
const uint8_t *parquet_thrift_binary(struct parquet_thrift *t,
                                     const struct parquet_thrift_field *f, size_t *ret_n_bytes);

/* The number of elements, whose type must be this one; they follow. */
uint32_t parquet_thrift_list(struct parquet_thrift *t, const struct parquet_thrift_field *f,
                             uint8_t type);

/* An element of a list of integers. */
int64_t parquet_thrift_element(struct parquet_thrift *t);

/* Whether the field is a struct: its fields follow. */
bool parquet_thrift_struct(struct parquet_thrift *t, const struct parquet_thrift_field *f);

void parquet_thrift_skip(struct parquet_thrift *t, const struct parquet_thrift_field *f);

#endif
