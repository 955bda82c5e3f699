/*
 * A row of a file as bytes, parsed: what waits in the shuffle window and stands in the cache.
 * Little-endian, 8-byte aligned, n_bytes a multiple of 8.
 *
 *     at   all kinds            ROW                      BAGS                     MALFORMED, TOO_LONG
 *      0   u32 n_bytes, of it all
 *      4   u32 kind
 *      8   u64 text_bytes
 *     16                        f32 label                f32 label                u64 number of its line
 *     20                        u32 n_keys (= n_fields)  u32 n_keys               .
 *     24                        f32 numeric[n_numeric]   f32 numeric[n_numeric]   sentence, NUL
 *      .                        0 to a multiple of 8     u32 counts[n_fields]     (none if TOO_LONG),
 *      .                        u64 keys[n_keys]         0 to a multiple of 8     0 to a multiple of 8
 *      .                                                 u64 keys[n_keys]
 *
 * ROW: every field has one key, as nearly all have; BAGS: field f has counts[f]. text_bytes: of
 * the file's text, unpacked, before the row's line.
 */
#ifndef WORKER_DATA_RECORD_H
#define WORKER_DATA_RECORD_H

#include <stdbool.h>

#include "common/buf.h"
#include "common/status.h"
#include "worker/data/batch.h"

enum record_kind { RECORD_ROW, RECORD_BAGS, RECORD_MALFORMED, RECORD_TOO_LONG };

struct record {
    uint32_t n_bytes, kind;
    uint64_t text_bytes;
};

/* Appends the one row of `row` as a record. -ENOMEM. */
int record_put_row(struct buf *to, const struct batch *row, uint64_t text_bytes) MUST_CHECK;

/* Appends a refusal: kind MALFORMED, or TOO_LONG without a sentence (""). -ENOMEM. */
int record_put_refusal(struct buf *to, enum record_kind kind, uint64_t number,
                       const char *sentence, uint64_t text_bytes) MUST_CHECK;

/* Whether n_bytes from here on begin with a record of such rows. */
bool record_is_sound(const void *bytes, size_t n_bytes, uint32_t n_numeric, uint32_t n_fields);

/* Adds a ROW or BAGS to the batch, which has room for a sample. -ENOMEM leaves the batch with
 * the samples it had. */
int record_add(const struct record *r, struct batch *b) MUST_CHECK;

/* Of a MALFORMED or TOO_LONG one. The sentence is borrowed. */
uint64_t record_line(const struct record *r);
const char *record_sentence(const struct record *r);

#endif
