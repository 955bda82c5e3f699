/*
 * A row of a file as bytes, parsed: an entry of the shuffle window and of the cache.
 * Little-endian, 8-byte aligned, n_bytes a multiple of 8.
 *
 *     at   all kinds            ROW                      BAGS                     MALFORMED, TOO_LONG
 *      0   u32 n_bytes, of it all
 *      4   u32 kind
 *      8   u64 text_bytes
 *     16                        f32 label                f32 label                u64 number of its line
 *     20                        u32 n_keys (= n_fields)  u32 n_keys               .
 *     24                        f32 numeric[n_numeric]   f32 numeric[n_numeric]   sentence, NUL
 *      .                        f32 labels, from the 2nd f32 labels, from the 2nd (none if TOO_LONG),
 *      .                        0 to a multiple of 8     u32 counts[n_fields]     .
 *      .                        u64 keys[n_keys]         0 to a multiple of 8     0 to a multiple of 8
 *      .                                                 u64 keys[n_keys]
 *
 * ROW: every field has one key, as nearly all have; BAGS: field f has counts[f]. text_bytes: of
 * the file's text, unpacked, before the row's line.
 */
#ifndef WORKER_DATA_PARSED_ROW_H
#define WORKER_DATA_PARSED_ROW_H

#include <stdbool.h>

#include "common/bytes.h"
#include "common/status.h"
#include "worker/data/batch.h"

enum parsed_row_kind {
    PARSED_ROW_ROW,
    PARSED_ROW_BAGS,
    PARSED_ROW_MALFORMED,
    PARSED_ROW_TOO_LONG
};

struct parsed_row {
    uint32_t n_bytes, kind;
    uint64_t text_bytes;
};

/* Appends the one row of `row` as a record. -ENOMEM. */
int parsed_row_put_row(struct bytes *to, const struct batch *row, uint64_t text_bytes)
    MUST_CHECK;

/* Appends a refusal: kind MALFORMED, or TOO_LONG without a sentence (""). -ENOMEM. */
int parsed_row_put_refusal(struct bytes *to, enum parsed_row_kind kind, uint64_t number,
                           const char *sentence, uint64_t text_bytes) MUST_CHECK;

/* Whether n_bytes from here on begin with a record of such rows. n_floats: numbers, and labels behind the first. */
bool parsed_row_is_sound(const void *bytes, size_t n_bytes, uint32_t n_floats,
                         uint32_t n_fields);

/* Adds a ROW or BAGS to the batch, which has space for a sample. -ENOMEM leaves the batch with
 * the samples it had. */
int parsed_row_add(const struct parsed_row *r, struct batch *b) MUST_CHECK;

/* Of a MALFORMED or TOO_LONG one. The sentence is borrowed. */
uint64_t parsed_row_line(const struct parsed_row *r);
const char *parsed_row_sentence(const struct parsed_row *r);

#endif
