/*
 * A file of a click log, plain or packed. Lines come in their order; those of a plain file are what a
 * search for line ends finds.
 */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "common/status.h"
#include "tests/fuzz/text.h"
#include "worker/data/line_reader.h"
#include "worker/data/parquet_file.h"

#define TEXT_BYTES_MAX (4u << 20) /* a few bytes may unpack to gigabytes */

/* The definition: the next line that is not empty. */
static bool next_plainly(struct harness_bytes *in, const uint8_t **ret, size_t *ret_len,
                         uint64_t *number)
{
    while (harness_left(in)) {
        const uint8_t *lf = memchr(in->at, '\n', harness_left(in));
        const uint8_t *end = lf ? lf : in->end;

        *ret = in->at;
        *ret_len = (size_t)(end - in->at);
        *ret_len -= *ret_len && end[-1] == '\r';
        in->at = lf ? lf + 1 : in->end;
        ++*number;
        if (*ret_len)
            return true;
    }
    return false;
}

static bool is_plain(const uint8_t *bytes, size_t n_bytes)
{
    bool zstd = n_bytes >= 4 && memcmp(bytes, "\x28\xb5\x2f\xfd", 4) == 0;
    bool skip =
        n_bytes >= 4 && (bytes[0] & 0xf0) == 0x50 && memcmp(bytes + 1, "\x2a\x4d\x18", 3) == 0;

    return !zstd && !skip && !(n_bytes >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b);
}

static void check_plain(const struct line_reader_line *line, struct harness_bytes *in,
                        uint64_t *number)
{
    const uint8_t *want = NULL;
    size_t len = 0;
    bool is_there = next_plainly(in, &want, &len, number);

    assert(is_there == (line->bytes != NULL));
    if (!is_there)
        return;
    assert(line->number == *number && line->len == len && !line->too_long);
    assert(memcmp(line->bytes, want, len) == 0);
    memset(line->bytes, '#', len); /* it may be scribbled on */
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    bool plain = is_plain(bytes, n_bytes);
    struct line_reader_line line = { .bytes = NULL };
    uint64_t number = 0, last = 0;
    struct line_reader *r;
    struct err err = { 0 };
    struct text file;
    int status;

    if (n_bytes >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0)
        in.at += 3;
    text_new(&file, bytes, n_bytes);
    status = line_reader_open(file.path, &r, &err);
    if (status) { /* Parquet is no text */
        assert(status == PS_EDATA && err.text[0] && parquet_file_begins(bytes, n_bytes));
        text_free(&file);
        return;
    }
    do {
        status = line_reader_next(r, &line, &err);
        assert(!status == !err.text[0] && !(plain && status));
        if (!status && plain)
            check_plain(&line, &in, &number);
        if (!status && line.bytes)
            assert(line.number > last);
        last = line.number;
    } while (!status && line.bytes && line_reader_bytes(r) < TEXT_BYTES_MAX);
    if (!status && plain)
        assert(line_reader_bytes(r) == n_bytes);
    line_reader_close(r);
    text_free(&file);
}

static void put_gzip(struct bytes *out, const char *text)
{
    z_stream z = { 0 };
    uint8_t packed[1000];
    int rc = deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);

    z.next_in = (Bytef *)(uintptr_t)text;
    z.avail_in = (uInt)strlen(text);
    z.next_out = packed;
    z.avail_out = sizeof packed;
    assert(rc == Z_OK);
    rc = deflate(&z, Z_FINISH);
    assert(rc == Z_STREAM_END);
    harness_put(out, packed, sizeof packed - z.avail_out);
    deflateEnd(&z);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    static const char text[] = "1,2,3\r\n\n4,5,6\n\r\n7,8,9";
    uint8_t packed[1000];
    size_t n;

    if (i >= 6)
        return false;
    if (i == 0)
        harness_put_text(out, text);
    if (i == 1)
        harness_put_text(out, "\xef\xbb\xbf"
                              "a\nb\r\n");
    for (uint32_t k = 0; i > 1 && k < i / 2; k++) {
        n = ZSTD_compress(packed, sizeof packed, text, sizeof text - 1, 1);
        assert(!ZSTD_isError(n));
        if (i % 2)
            put_gzip(out, text);
        else
            harness_put(out, packed, n);
    }
    return true;
}
