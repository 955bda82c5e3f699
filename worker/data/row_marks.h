/*
 * Where the delimiters of a line are: a bit for each of its bytes, 64 bytes a word. It is the
 * one part of reading a row that vectors of bytes serve.
 */
#ifndef WORKER_DATA_ROW_MARKS_H
#define WORKER_DATA_ROW_MARKS_H

#include <stdbool.h>

#include "common/simd.h"

#define ROW_MARKS_LEN_MAX 4096u /* bytes of a line */
#define ROW_MARKS_WORDS (ROW_MARKS_LEN_MAX / 64)

/* Bit i of marks: line[i] == delimiter, 0 from len on to the end of the last word. False when
 * the line holds a NUL byte. len is at most ROW_MARKS_LEN_MAX; no byte behind it is read. */
typedef bool row_marks_fn(const char *line, size_t len, char delimiter, uint64_t *marks);

/* SIMD_PLAIN is the definition. */
row_marks_fn *row_marks(enum simd build);

#endif
