/*
 * The encodings of values in a Parquet page, some values at a time, in the order of the page. Nothing is read behind a
 * page's end, and what a page claims to hold is not believed: each read says whether the bytes were there.
 *
 *     rle       runs of one number, or numbers of `width` bits each: levels, numbers of dictionary entries, booleans
 *     decoder   values: plain, plain lists of bits, delta (integers, lengths, prefixes), bytes split by place
 *
 * https://parquet.apache.org/docs/file-format/data-pages/encodings/
 */
#ifndef WORKER_DATA_PARQUET_DECODER_H
#define WORKER_DATA_PARQUET_DECODER_H

#include <stdbool.h>

#include "common/bytes.h"
#include "worker/data/line_parser.h"
#include "worker/data/parquet_file.h"

enum parquet_encoding {
    PARQUET_ENCODING_PLAIN = 0,
    PARQUET_ENCODING_PLAIN_DICTIONARY = 2,
    PARQUET_ENCODING_RLE = 3,
    PARQUET_ENCODING_DELTA_INTEGERS = 5,
    PARQUET_ENCODING_DELTA_LENGTHS = 6,
    PARQUET_ENCODING_DELTA_PREFIXES = 7,
    PARQUET_ENCODING_RLE_DICTIONARY = 8,
    PARQUET_ENCODING_BYTE_SPLIT = 9
};

/* ---- rle ---- */

struct parquet_rle {
    const uint8_t *at, *end; /* borrowed; behind the run at hand */
    uint32_t width;          /* bits, at most 32 */
    uint64_t n_run;          /* values left of the run at hand */
    const uint8_t *bits;     /* NULL: they are all `value` */
    uint64_t bit_at;
    uint32_t value;
};

void parquet_rle_init(struct parquet_rle *r, const uint8_t *at, const uint8_t *end,
                      uint32_t width);

/* The next n; false when there are fewer. */
bool parquet_rle_read(struct parquet_rle *r, uint32_t *dst, size_t n) MUST_CHECK;
bool parquet_rle_skip(struct parquet_rle *r, uint64_t n) MUST_CHECK;

/* True if the next n are all `value`, as one run says; they are then passed. */
bool parquet_rle_take_run(struct parquet_rle *r, uint32_t value, uint64_t n);

/* ---- values ---- */

#define PARQUET_VALUES_MAX 1024u /* that are decoded at once */

/* The member that `type` says holds n values. Texts are borrowed until the decoder is used again or its page goes. */
struct parquet_values {
    uint32_t n;
    union {
        int64_t *integers; /* PARQUET_INT, PARQUET_UINT: the bits of a uint64_t */
        double *reals;
        struct line_parser_span *texts;
    };
};

struct parquet_delta {
    const uint8_t *at,
        *end; /* borrowed; behind the block's heads, then behind the miniblock at hand */
    uint64_t block_values;
    uint32_t n_minis, mini;
    uint64_t n_left; /* values, with the one at hand */
    uint64_t n_mini_left;
    const uint8_t *widths, *bits;
    uint64_t bit_at;
    uint32_t width;
    int64_t min_delta, value;
};

struct parquet_decoder {
    const struct parquet_file_column *column; /* borrowed */
    enum parquet_encoding encoding;
    const uint8_t *at, *end;       /* borrowed */
    struct parquet_rle rle;        /* booleans */
    struct parquet_delta integers; /* or lengths */
    struct parquet_delta prefixes;
    uint64_t n_split,
        split_at; /* values whose bytes are split by their place, and those that were read */
    struct bytes last;  /* owned; the value before, of which a prefix is taken */
    struct bytes texts; /* owned; of the values handed out, if they do not stand in the page */
};

/* Whether values of the column can come in this encoding. */
bool parquet_decoder_knows(const struct parquet_file_column *column, int64_t encoding);

/* Begins a page's values, n_values at most (nulls are not among them). False: they are damaged. */
bool parquet_decoder_begin(struct parquet_decoder *d, const struct parquet_file_column *column,
                           enum parquet_encoding encoding, const uint8_t *at,
                           const uint8_t *end, uint64_t n_values) MUST_CHECK;

/* The next n_max, at most PARQUET_VALUES_MAX, or fewer, but one at least, if they are long. PS_EDATA: damaged, or no
 * more are there; -ENOMEM. */
int parquet_decoder_read(struct parquet_decoder *d, uint32_t n_max, struct parquet_values *to)
    MUST_CHECK;

/* Of a plain value that is no boolean: its bytes at least. */
uint32_t parquet_decoder_value_bytes_min(const struct parquet_file_column *column);

void parquet_decoder_deinit(struct parquet_decoder *d);

#endif
