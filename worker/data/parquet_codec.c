#include "worker/data/parquet_codec.h"

#include <string.h>
#include <zlib.h>
#include <zstd.h>

const char *parquet_codec_refused(int64_t codec)
{
    static const char *const names[] = { "", "", "", "LZO", "BROTLI", "LZ4", "", "LZ4_RAW" };

    return codec >= 0 && codec < (int64_t)COUNT_OF(names) ? names[codec] : "an unknown codec";
}

/*
 * snappy: 3 bytes stand for 64 at most. gzip: deflate's limit is 1032 to 1. zstd: a block, of 4 bytes at least, stands
 * for 128 KiB at most.
 */
uint64_t parquet_codec_unpacked_max(enum parquet_codec codec, size_t n_packed)
{
    const uint64_t n = n_packed;

    switch (codec) {
    case PARQUET_CODEC_SNAPPY:
        return n * 22;
    case PARQUET_CODEC_GZIP:
        return n * 1033;
    case PARQUET_CODEC_ZSTD:
        return n / 4 * 131072;
    case PARQUET_CODEC_NONE:
        break;
    }
    return n;
}

/* ---- snappy ---- */

struct unsnappy {
    const uint8_t *at, *end; /* packed */
    uint8_t *dst, *to, *to_end;
};

static bool read_size(struct unsnappy *u, uint64_t *ret)
{
    *ret = 0;
    for (unsigned shift = 0; shift < 35 && u->at < u->end; shift += 7) {
        uint8_t byte = *u->at++;

        *ret |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

/* Little-endian, of 1 to 4 bytes. */
static bool read_number(struct unsnappy *u, unsigned n_bytes, size_t *ret)
{
    if ((size_t)(u->end - u->at) < n_bytes)
        return false;
    *ret = 0;
    for (unsigned i = 0; i < n_bytes; i++)
        *ret |= (size_t)u->at[i] << (8 * i);
    u->at += n_bytes;
    return true;
}

static bool copy_literal(struct unsnappy *u, uint8_t tag)
{
    size_t n = tag >> 2;

    /* A short one, as nearly all are, by one copy of a fixed size. */
    if (n < 16 && u->end - u->at >= 16 && u->to_end - u->to >= 16) {
        memcpy(u->to, u->at, 16);
    } else {
        if (n >= 60 && !read_number(u, (unsigned)n - 59, &n))
            return false;
        if (n >= (size_t)(u->end - u->at) || n >= (size_t)(u->to_end - u->to))
            return false;
        memcpy(u->to, u->at, n + 1);
    }
    u->at += n + 1;
    u->to += n + 1;
    return true;
}

/* Source and target may overlap: what was just written is then read again. */
static bool copy_back(struct unsnappy *u, size_t offset, size_t n)
{
    const uint8_t *from;

    if (offset == 0 || offset > (size_t)(u->to - u->dst) || n > (size_t)(u->to_end - u->to))
        return false;
    from = u->to - offset;
    if (offset >= 16 && n <= 16 && u->to_end - u->to >= 16) {
        memcpy(u->to, from, 16);
    } else if (offset >= n) {
        memcpy(u->to, from, n);
    } else if (offset >= 8 && (size_t)(u->to_end - u->to) >= n + 8) {
        for (size_t i = 0; i < n; i += 8)
            memcpy(u->to + i, from + i, 8);
    } else {
        for (size_t i = 0; i < n; i++)
            u->to[i] = from[i];
    }
    u->to += n;
    return true;
}

static bool copy_element(struct unsnappy *u)
{
    const uint8_t tag = *u->at++;
    const unsigned kind = tag & 3;
    size_t offset, n = (size_t)(tag >> 2) + 1;

    if (kind == 0)
        return copy_literal(u, tag);
    if (kind == 2 && u->end - u->at >= 2) {
        offset = (size_t)u->at[0] | (size_t)u->at[1] << 8;
        u->at += 2;
    } else if (!read_number(u, kind == 3 ? 4 : kind, &offset)) {
        return false;
    }
    if (kind == 1) {
        offset |= (size_t)(tag >> 5) << 8;
        n = (size_t)(tag >> 2 & 7) + 4;
    }
    return copy_back(u, offset, n);
}

bool parquet_codec_unsnappy(const uint8_t *packed, size_t n_packed, uint8_t *dst,
                            size_t n_bytes)
{
    struct unsnappy u = {
        .at = packed, .end = packed + n_packed, .dst = dst, .to = dst, .to_end = dst + n_bytes
    };
    uint64_t n;

    if (!read_size(&u, &n) || n != n_bytes)
        return false;
    while (u.at < u.end)
        if (!copy_element(&u))
            return false;
    return u.to == u.to_end;
}

/* ---- the others ---- */

/* With gzip's head or zlib's, as some writers have it; members may follow one another. */
static bool unpack_gzip(const uint8_t *packed, size_t n_packed, uint8_t *dst, size_t n_bytes)
{
    z_stream z = { .next_in = (Bytef *)(uintptr_t)packed, /* only read */

                   .avail_in = (uInt)n_packed,
                   .next_out = dst,
                   .avail_out = (uInt)n_bytes };
    int result;

    if (n_packed > UINT32_MAX || n_bytes > UINT32_MAX || inflateInit2(&z, 15 + 32) != Z_OK)
        return false;
    result = inflate(&z, Z_FINISH);
    while (result == Z_STREAM_END && z.avail_in > 0 && inflateReset(&z) == Z_OK)
        result = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return result == Z_STREAM_END && z.avail_out == 0 && z.avail_in == 0;
}

bool parquet_codec_unpack(enum parquet_codec codec, const uint8_t *packed, size_t n_packed,
                          uint8_t *dst, size_t n_bytes)
{
    switch (codec) {
    case PARQUET_CODEC_SNAPPY:
        return parquet_codec_unsnappy(packed, n_packed, dst, n_bytes);
    case PARQUET_CODEC_GZIP:
        return unpack_gzip(packed, n_packed, dst, n_bytes);
    case PARQUET_CODEC_ZSTD:
        return ZSTD_decompress(dst, n_bytes, packed, n_packed) == n_bytes;
    case PARQUET_CODEC_NONE:
        break;
    }
    if (n_packed != n_bytes)
        return false;
    memcpy(dst, packed, n_bytes);
    return true;
}
