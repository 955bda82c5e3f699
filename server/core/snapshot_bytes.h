/*
 * Numbers and names as little-endian bytes, for what a shard knows beside its rows (snapshot_meta.h,
 * membership.h). A writer without memory, and a reader at its end, go on without harm and are checked
 * once, at the end.
 */
#ifndef SERVER_CORE_SNAPSHOT_BYTES_H
#define SERVER_CORE_SNAPSHOT_BYTES_H

#include <stdbool.h>
#include <string.h>

#include "common/bytes.h"

struct snapshot_writer {
    struct bytes *dst; /* borrowed */
    bool no_memory;
};

struct snapshot_reader {
    const uint8_t *at, *end; /* borrowed */
    bool bad;                /* it was asked for more than there is, or what cannot be */
};

static inline void snapshot_put(struct snapshot_writer *w, const void *src, size_t n_bytes)
{
    uint8_t *dst = w->no_memory ? NULL : bytes_reserve(w->dst, n_bytes + 1);

    w->no_memory = !dst;
    if (!dst)
        return;
    if (n_bytes)
        memcpy(dst, src, n_bytes);
    bytes_commit(w->dst, n_bytes);
}

static inline void snapshot_put_u64(struct snapshot_writer *w, uint64_t value)
{
    uint8_t bytes[8];

    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    snapshot_put(w, bytes, sizeof bytes);
}

static inline void snapshot_put_u32(struct snapshot_writer *w, uint32_t value)
{
    uint8_t bytes[4];

    for (unsigned i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    snapshot_put(w, bytes, sizeof bytes);
}

/* u32 length, the characters. */
static inline void snapshot_put_text(struct snapshot_writer *w, const char *text)
{
    size_t n_chars = strlen(text);

    snapshot_put_u32(w, (uint32_t)n_chars);
    snapshot_put(w, text, n_chars);
}

/* The next n_bytes, borrowed; NULL: there are not so many. */
static inline const uint8_t *snapshot_get(struct snapshot_reader *r, size_t n_bytes)
{
    const uint8_t *at = r->at;

    if (r->bad || n_bytes > (size_t)(r->end - r->at)) {
        r->bad = true;
        return NULL;
    }
    r->at += n_bytes;
    return at;
}

static inline uint64_t snapshot_get_u64(struct snapshot_reader *r)
{
    const uint8_t *bytes = snapshot_get(r, 8);
    uint64_t value = 0;

    for (unsigned i = 0; bytes && i < 8; i++)
        value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

static inline uint32_t snapshot_get_u32(struct snapshot_reader *r)
{
    const uint8_t *bytes = snapshot_get(r, 4);
    uint32_t value = 0;

    for (unsigned i = 0; bytes && i < 4; i++)
        value |= (uint32_t)bytes[i] << 8 * i;
    return value;
}

/* At most `max`, else bad and 0. */
static inline uint32_t snapshot_get_upto(struct snapshot_reader *r, uint32_t max)
{
    uint32_t value = snapshot_get_u32(r);

    r->bad = r->bad || value > max;
    return r->bad ? 0 : value;
}

/* dst: zeroed, of dst_bytes, of which the last stays 0. */
static inline void snapshot_get_text(struct snapshot_reader *r, char *dst, size_t dst_bytes)
{
    uint32_t n_chars = snapshot_get_upto(r, (uint32_t)dst_bytes - 1);
    const uint8_t *chars = snapshot_get(r, n_chars);

    if (chars && n_chars)
        memcpy(dst, chars, n_chars);
    r->bad = r->bad || strlen(dst) != n_chars;
}

#endif
