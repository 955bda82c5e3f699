#include "worker/data/parquet_decoder.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

/* A value that repeats the one before it costs a file nothing, and us its bytes. */
#define TEXT_MAX (1024u * 1024u)
#define TEXTS_MAX (4u * TEXT_MAX) /* of the values handed out at once */

static bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *ret)
{
    *ret = 0;
    for (unsigned shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;

        *ret |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

static uint64_t load(const uint8_t *at, size_t n_bytes)
{
    uint64_t x = 0;

    memcpy(&x, at, n_bytes);
    return x;
}

/* ---- rle ---- */

void parquet_rle_init(struct parquet_rle *r, const uint8_t *at, const uint8_t *end,
                      uint32_t width)
{
    assert(width <= 32);
    *r = (struct parquet_rle){ .at = at, .end = end, .width = width };
}

/* Some writers cut the last run short; what is there is taken. */
static void begin_bits(struct parquet_rle *r, uint64_t n_groups)
{
    const uint64_t n_there = (uint64_t)(r->end - r->at);

    r->bits = r->at;
    r->bit_at = 0;
    if (r->width > 0 && n_groups > n_there / r->width) {
        r->n_run = n_there * 8 / r->width;
        r->at = r->end;
    } else {
        r->n_run = n_groups * 8;
        r->at += n_groups * r->width;
    }
}

/* To the next run that is not empty; false at the end. */
static bool begin_run(struct parquet_rle *r)
{
    const uint32_t n_bytes = (r->width + 7) / 8;
    uint64_t head;

    while (r->n_run == 0) {
        if (!read_varint(&r->at, r->end, &head) || head >> 1 > UINT32_MAX)
            return false;
        if (head & 1) {
            begin_bits(r, head >> 1);
            continue;
        }
        if ((size_t)(r->end - r->at) < n_bytes)
            return false;
        r->bits = NULL;
        r->value = (uint32_t)load(r->at, n_bytes);
        r->at += n_bytes;
        r->n_run = head >> 1;
        if (r->width < 32 && r->value >> r->width)
            return false;
    }
    return true;
}

/* Bits from bit_at on, as many as there are words of 8 bytes behind them, then the last ones byte by byte. */
static void unpack_bits(const struct parquet_rle *r, uint32_t *dst, size_t n)
{
    const uint32_t mask = r->width < 32 ? (UINT32_C(1) << r->width) - 1 : UINT32_MAX,
                   width = r->width;
    const size_t n_bytes = (size_t)(r->end - r->bits);
    uint64_t bit_at = r->bit_at;
    size_t i = 0;

    if (n_bytes >= 8) {
        const uint64_t last =
            (n_bytes - 8) * 8 + 7; /* a word that begins at this bit is whole */
        const uint32_t n_word =
            width ? 57 / width : 57; /* numbers in a word, wherever in a byte it begins */

        while (i + n_word <= n && bit_at <= last) {
            uint64_t word = load(r->bits + bit_at / 8, 8) >> (bit_at % 8);

            for (uint32_t k = 0; k < n_word; k++, word >>= width)
                dst[i + k] = (uint32_t)word & mask;
            i += n_word;
            bit_at += (uint64_t)n_word * width;
        }
        for (; i < n && bit_at <= last; i++, bit_at += width)
            dst[i] = (uint32_t)(load(r->bits + bit_at / 8, 8) >> (bit_at % 8)) & mask;
    }
    for (; i < n; i++, bit_at += width) {
        size_t at = (size_t)(bit_at / 8), n_there = n_bytes > at ? n_bytes - at : 0;

        dst[i] =
            (uint32_t)(load(r->bits + at, n_there < 8 ? n_there : 8) >> (bit_at % 8)) & mask;
    }
}

bool parquet_rle_read(struct parquet_rle *r, uint32_t *dst, size_t n)
{
    while (n > 0) {
        size_t k;

        if (!begin_run(r))
            return false;
        k = r->n_run < n ? (size_t)r->n_run : n;
        if (r->bits) {
            unpack_bits(r, dst, k);
            r->bit_at += k * r->width;
        } else {
            for (size_t i = 0; i < k; i++)
                dst[i] = r->value;
        }
        r->n_run -= k;
        dst += k;
        n -= k;
    }
    return true;
}

bool parquet_rle_skip(struct parquet_rle *r, uint64_t n)
{
    while (n > 0) {
        uint64_t k;

        if (!begin_run(r))
            return false;
        k = r->n_run < n ? r->n_run : n;
        r->bit_at += k * r->width;
        r->n_run -= k;
        n -= k;
    }
    return true;
}

bool parquet_rle_take_run(struct parquet_rle *r, uint32_t value, uint64_t n)
{
    if (!begin_run(r) || r->bits || r->value != value || r->n_run < n)
        return false;
    r->n_run -= n;
    return true;
}

/* ---- delta: blocks of miniblocks, each of numbers of so many bits ---- */

static int64_t zigzag(uint64_t x)
{
    return (int64_t)(x >> 1 ^ (0 - (x & 1)));
}

static bool delta_begin(struct parquet_delta *d, const uint8_t *at, const uint8_t *end)
{
    uint64_t n_minis, first;

    *d = (struct parquet_delta){ .at = at, .end = end };
    if (!read_varint(&d->at, end, &d->block_values) || !read_varint(&d->at, end, &n_minis) ||
        !read_varint(&d->at, end, &d->n_left) || !read_varint(&d->at, end, &first))
        return false;
    if (n_minis == 0 || n_minis > 65536 || d->block_values > UINT32_MAX ||
        d->block_values < n_minis || d->block_values % (n_minis * 8) || d->n_left > UINT32_MAX)
        return false;
    d->n_minis = d->mini = (uint32_t)n_minis;
    d->value = zigzag(first);
    return true;
}

static bool delta_begin_block(struct parquet_delta *d)
{
    uint64_t min_delta;

    if (!read_varint(&d->at, d->end, &min_delta) || (size_t)(d->end - d->at) < d->n_minis)
        return false;
    d->min_delta = zigzag(min_delta);
    d->widths = d->at;
    d->at += d->n_minis;
    d->mini = 0;
    return true;
}

/* The last miniblock may be cut short where the values end. */
static bool delta_begin_mini(struct parquet_delta *d)
{
    uint64_t n_bytes;

    if (d->mini == d->n_minis && !delta_begin_block(d))
        return false;
    d->width = d->widths[d->mini++];
    d->n_mini_left = d->block_values / d->n_minis;
    n_bytes = d->n_mini_left / 8 * d->width;
    if (d->width > 64)
        return false;
    if (n_bytes > (uint64_t)(d->end - d->at)) {
        if (d->n_left > d->n_mini_left ||
            (uint64_t)(d->end - d->at) < (d->n_left * d->width + 7) / 8)
            return false;
        n_bytes = (uint64_t)(d->end - d->at);
    }
    d->bits = d->at;
    d->bit_at = 0;
    d->at += n_bytes;
    return true;
}

/* `width` bits from bit_at on. */
static uint64_t delta_bits(const struct parquet_delta *d)
{
    const uint8_t *at = d->bits + d->bit_at / 8;
    const size_t n_there = (size_t)(d->end - at);
    const unsigned shift = d->bit_at % 8;
    uint64_t x = load(at, n_there < 8 ? n_there : 8) >> shift;

    if (shift + d->width > 64)
        x |= (uint64_t)at[8] << (64 - shift);
    return d->width < 64 ? x & ((UINT64_C(1) << d->width) - 1) : x;
}

/* The value at hand, and on to the next one. */
static bool delta_next(struct parquet_delta *d, int64_t *ret)
{
    if (d->n_left == 0)
        return false;
    *ret = d->value;
    if (--d->n_left == 0)
        return true;
    if (d->n_mini_left == 0 && !delta_begin_mini(d))
        return false;
    /* Wraps, as the format has it. */
    d->value =
        (int64_t)((uint64_t)d->value + (uint64_t)d->min_delta + (d->width ? delta_bits(d) : 0));
    d->bit_at += d->width;
    d->n_mini_left--;
    return true;
}

/* Where the bytes behind these values begin: a walk over the heads alone. */
static bool delta_end(const struct parquet_delta *from, const uint8_t **ret)
{
    struct parquet_delta d = *from;

    /* The first value stands in the head. */
    for (d.n_left -= d.n_left > 0; d.n_left > 0;) {
        if (!delta_begin_mini(&d))
            return false;
        d.n_left -= d.n_mini_left < d.n_left ? d.n_mini_left : d.n_left;
    }
    /* The widths of a block's unused miniblocks stand there, without miniblocks. */
    *ret = d.at;
    return true;
}

/* ---- values ---- */

bool parquet_decoder_knows(const struct parquet_file_column *column, int64_t encoding)
{
    const enum parquet_storage s = column->storage;

    switch (encoding) {
    case PARQUET_ENCODING_PLAIN:
        return true;
    case PARQUET_ENCODING_RLE:
        return s == PARQUET_STORAGE_BOOLEAN;
    case PARQUET_ENCODING_DELTA_INTEGERS:
        return s == PARQUET_STORAGE_INT32 || s == PARQUET_STORAGE_INT64;
    case PARQUET_ENCODING_DELTA_LENGTHS:
        return s == PARQUET_STORAGE_BYTES;
    case PARQUET_ENCODING_DELTA_PREFIXES:
        return s == PARQUET_STORAGE_BYTES ||
               (s == PARQUET_STORAGE_FIXED && column->type == PARQUET_TEXT);
    case PARQUET_ENCODING_BYTE_SPLIT:
        return s != PARQUET_STORAGE_BOOLEAN && s != PARQUET_STORAGE_BYTES &&
               column->type != PARQUET_TEXT;
    default:
        return false;
    }
}

static uint32_t value_bytes(const struct parquet_file_column *c)
{
    switch (c->storage) {
    case PARQUET_STORAGE_INT32:
    case PARQUET_STORAGE_FLOAT:
        return 4;
    case PARQUET_STORAGE_INT64:
    case PARQUET_STORAGE_DOUBLE:
        return 8;
    case PARQUET_STORAGE_FIXED:
        return c->value_bytes;
    case PARQUET_STORAGE_BOOLEAN:
    case PARQUET_STORAGE_BYTES:
        break;
    }
    return 0;
}

uint32_t parquet_decoder_value_bytes_min(const struct parquet_file_column *column)
{
    return column->storage == PARQUET_STORAGE_BYTES ? 4 : value_bytes(column);
}

static bool begin_delta_texts(struct parquet_decoder *d)
{
    if (d->encoding == PARQUET_ENCODING_DELTA_PREFIXES) {
        if (!delta_begin(&d->prefixes, d->at, d->end) || !delta_end(&d->prefixes, &d->at))
            return false;
        bytes_consume(&d->last, bytes_len(&d->last));
    }
    return delta_begin(&d->integers, d->at, d->end) && delta_end(&d->integers, &d->at);
}

bool parquet_decoder_begin(struct parquet_decoder *d, const struct parquet_file_column *column,
                           enum parquet_encoding encoding, const uint8_t *at,
                           const uint8_t *end, uint64_t n_values)
{
    assert(parquet_decoder_knows(column, encoding));
    d->column = column;
    d->encoding = encoding;
    d->at = at;
    d->end = end;
    switch (encoding) {
    case PARQUET_ENCODING_RLE:
        if (end - at < 4)
            return n_values == 0;
        /* The length in front is not needed: the values are all there is. */
        parquet_rle_init(&d->rle, at + 4, end, 1);
        return true;
    case PARQUET_ENCODING_DELTA_INTEGERS:
        return n_values == 0 || delta_begin(&d->integers, at, end);
    case PARQUET_ENCODING_DELTA_LENGTHS:
    case PARQUET_ENCODING_DELTA_PREFIXES:
        return n_values == 0 || begin_delta_texts(d);
    case PARQUET_ENCODING_BYTE_SPLIT:
        d->n_split = (uint64_t)(end - at) / value_bytes(column);
        d->split_at = 0;
        return (uint64_t)(end - at) % value_bytes(column) == 0;
    default:
        if (column->storage == PARQUET_STORAGE_BOOLEAN) {
            parquet_rle_init(&d->rle, end, end, 1);
            d->rle.bits = at;
            d->rle.n_run = (uint64_t)(end - at) * 8;
        }
        return true;
    }
}

void parquet_decoder_deinit(struct parquet_decoder *d)
{
    bytes_deinit(&d->last);
    bytes_deinit(&d->texts);
}

static double half_value(uint16_t h)
{
    const int exponent = h >> 10 & 31;
    const double fraction = (double)(h & 1023) / 1024;
    double x;

    if (exponent == 31)
        x = h & 1023 ? (double)NAN : (double)INFINITY;
    else
        x = exponent ? ldexp(1 + fraction, exponent - 15) : ldexp(fraction, -14);
    return h & 0x8000 ? -x : x;
}

/* Value i is the one whose bytes are `bits`. */
static void put(const struct parquet_file_column *c, uint64_t bits, struct parquet_values *to,
                uint32_t i)
{
    uint32_t low = (uint32_t)bits;
    float f;

    switch (c->type) {
    case PARQUET_INT:
        to->integers[i] = c->storage == PARQUET_STORAGE_INT32 ? (int32_t)low : (int64_t)bits;
        break;
    case PARQUET_UINT:
        to->integers[i] = c->storage == PARQUET_STORAGE_INT32 ? (int64_t)low : (int64_t)bits;
        break;
    case PARQUET_FLOAT:
        memcpy(&f, &low, sizeof f);
        to->reals[i] = (double)f;
        break;
    case PARQUET_DOUBLE:
        memcpy(&to->reals[i], &bits, sizeof bits);
        break;
    case PARQUET_HALF:
        to->reals[i] = half_value((uint16_t)low);
        break;
    case PARQUET_TEXT:
        break;
    }
}

static int read_fixed(struct parquet_decoder *d, uint32_t n, struct parquet_values *to)
{
    const uint32_t n_bytes = value_bytes(d->column);

    if ((uint64_t)(d->end - d->at) < (uint64_t)n * n_bytes)
        return PS_EDATA;
    for (uint32_t i = 0; i < n; i++, d->at += n_bytes) {
        if (d->column->type == PARQUET_TEXT)
            to->texts[i] = (struct line_parser_span){ (char *)(uintptr_t)d->at, n_bytes };
        else if (n_bytes == 8)
            put(d->column, load(d->at, 8), to, i);
        else
            put(d->column, load(d->at, n_bytes), to, i);
    }
    return 0;
}

static int read_texts(struct parquet_decoder *d, uint32_t n, struct parquet_values *to)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t len;

        if (d->end - d->at < 4)
            return PS_EDATA;
        len = load(d->at, 4);
        d->at += 4;
        if (len > (uint64_t)(d->end - d->at))
            return PS_EDATA;
        to->texts[i] = (struct line_parser_span){ (char *)(uintptr_t)d->at, (size_t)len };
        d->at += len;
    }
    return 0;
}

static int read_booleans(struct parquet_decoder *d, uint32_t n, struct parquet_values *to)
{
    uint32_t bits[PARQUET_VALUES_MAX];

    if (!parquet_rle_read(&d->rle, bits, n))
        return PS_EDATA;
    for (uint32_t i = 0; i < n; i++)
        to->integers[i] = bits[i];
    return 0;
}

static int read_deltas(struct parquet_decoder *d, uint32_t n, struct parquet_values *to)
{
    int64_t x;

    for (uint32_t i = 0; i < n; i++) {
        if (!delta_next(&d->integers, &x))
            return PS_EDATA;
        put(d->column, (uint64_t)x, to, i);
    }
    return 0;
}

/* Byte b of all values, then byte b + 1 of all. */
static int read_split(struct parquet_decoder *d, uint32_t n, struct parquet_values *to)
{
    const uint32_t n_bytes = value_bytes(d->column);

    if (n > d->n_split - d->split_at)
        return PS_EDATA;
    for (uint32_t i = 0; i < n; i++, d->split_at++) {
        uint64_t bits = 0;

        for (uint32_t b = 0; b < n_bytes; b++)
            bits |= (uint64_t)d->at[b * d->n_split + d->split_at] << (8 * b);
        put(d->column, bits, to, i);
    }
    return 0;
}

static int read_delta_lengths(struct parquet_decoder *d, uint32_t n, struct parquet_values *to)
{
    int64_t len;

    for (uint32_t i = 0; i < n; i++) {
        if (!delta_next(&d->integers, &len) || len < 0 || len > d->end - d->at)
            return PS_EDATA;
        to->texts[i] = (struct line_parser_span){ (char *)(uintptr_t)d->at, (size_t)len };
        d->at += len;
    }
    return 0;
}

/* What of the value before stays, and what comes behind it: a new value at the texts' end. */
static int add_prefixed(struct parquet_decoder *d, size_t *ret_len)
{
    int64_t n_kept, n_more;
    size_t len;
    uint8_t *to;

    if (!delta_next(&d->prefixes, &n_kept) || !delta_next(&d->integers, &n_more) ||
        n_kept < 0 || n_more < 0 || (uint64_t)n_kept > bytes_len(&d->last) ||
        n_more > d->end - d->at || n_kept + n_more > TEXT_MAX)
        return PS_EDATA;
    len = (size_t)(n_kept + n_more);
    if (d->column->storage == PARQUET_STORAGE_FIXED && len != d->column->value_bytes)
        return PS_EDATA;
    d->last.end = d->last.start + (size_t)n_kept;
    to = bytes_reserve(&d->last, (size_t)n_more + 1);
    if (!to)
        return -ENOMEM;
    memcpy(to, d->at, (size_t)n_more);
    bytes_commit(&d->last, (size_t)n_more);
    d->at += n_more;
    to = bytes_reserve(&d->texts, len + 1);
    if (!to)
        return -ENOMEM;
    memcpy(to, bytes_front(&d->last), len);
    bytes_commit(&d->texts, len);
    *ret_len = len;
    return 0;
}

static int read_prefixed(struct parquet_decoder *d, uint32_t n_max, struct parquet_values *to)
{
    char *at;
    int status;

    bytes_consume(&d->texts, bytes_len(&d->texts));
    for (to->n = 0; to->n < n_max && bytes_len(&d->texts) < TEXTS_MAX; to->n++) {
        status = add_prefixed(d, &to->texts[to->n].len);
        if (status)
            return status;
    }
    at = (char *)d->texts.bytes + d->texts.start;
    for (uint32_t i = 0; i < to->n; i++) {
        to->texts[i].at = at;
        at += to->texts[i].len;
    }
    return 0;
}

int parquet_decoder_read(struct parquet_decoder *d, uint32_t n_max, struct parquet_values *to)
{
    assert(n_max > 0 && n_max <= PARQUET_VALUES_MAX);
    to->n = n_max;
    switch (d->encoding) {
    case PARQUET_ENCODING_RLE:
        return read_booleans(d, n_max, to);
    case PARQUET_ENCODING_DELTA_INTEGERS:
        return read_deltas(d, n_max, to);
    case PARQUET_ENCODING_DELTA_LENGTHS:
        return read_delta_lengths(d, n_max, to);
    case PARQUET_ENCODING_DELTA_PREFIXES:
        return read_prefixed(d, n_max, to);
    case PARQUET_ENCODING_BYTE_SPLIT:
        return read_split(d, n_max, to);
    default:
        break;
    }
    if (d->column->storage == PARQUET_STORAGE_BOOLEAN)
        return read_booleans(d, n_max, to);
    if (d->column->storage == PARQUET_STORAGE_BYTES)
        return read_texts(d, n_max, to);
    return read_fixed(d, n_max, to);
}
