/*
 * Numbers and names as bytes, little-endian, for what a shard knows beside its rows (roster_bytes.c,
 * shard_held_bytes.c). A writer that runs out of memory, and a reader that runs out of bytes, go on
 * without harm and are asked once, at the end.
 */
#ifndef SERVER_CORE_STATE_BYTES_H
#define SERVER_CORE_STATE_BYTES_H

#include <stdbool.h>
#include <string.h>

#include "common/buf.h"

struct state_writer {
    struct buf *dst; /* borrowed */
    bool no_memory;
};

struct state_reader {
    const uint8_t *at, *end; /* borrowed */
    bool bad;                /* it was asked for more than there is, or what cannot be */
};

static inline void state_put(struct state_writer *w, const void *src, size_t n_bytes)
{
    uint8_t *dst = w->no_memory ? NULL : buf_reserve(w->dst, n_bytes + 1);

    w->no_memory = !dst;
    if (!dst)
        return;
    if (n_bytes)
        memcpy(dst, src, n_bytes);
    buf_commit(w->dst, n_bytes);
}

static inline void state_put_u64(struct state_writer *w, uint64_t value)
{
    uint8_t bytes[8];

    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    state_put(w, bytes, sizeof bytes);
}

static inline void state_put_u32(struct state_writer *w, uint32_t value)
{
    uint8_t bytes[4];

    for (unsigned i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    state_put(w, bytes, sizeof bytes);
}

/* u32 length, the characters. */
static inline void state_put_text(struct state_writer *w, const char *text)
{
    size_t n_chars = strlen(text);

    state_put_u32(w, (uint32_t)n_chars);
    state_put(w, text, n_chars);
}

/* The next n_bytes, borrowed; NULL: there are not so many. */
static inline const uint8_t *state_get(struct state_reader *r, size_t n_bytes)
{
    const uint8_t *at = r->at;

    if (r->bad || n_bytes > (size_t)(r->end - r->at)) {
        r->bad = true;
        return NULL;
    }
    r->at += n_bytes;
    return at;
}

static inline uint64_t state_get_u64(struct state_reader *r)
{
    const uint8_t *bytes = state_get(r, 8);
    uint64_t value = 0;

    for (unsigned i = 0; bytes && i < 8; i++)
        value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

static inline uint32_t state_get_u32(struct state_reader *r)
{
    const uint8_t *bytes = state_get(r, 4);
    uint32_t value = 0;

    for (unsigned i = 0; bytes && i < 4; i++)
        value |= (uint32_t)bytes[i] << 8 * i;
    return value;
}

/* At most `max`, else bad and 0. */
static inline uint32_t state_get_upto(struct state_reader *r, uint32_t max)
{
    uint32_t value = state_get_u32(r);

    r->bad = r->bad || value > max;
    return r->bad ? 0 : value;
}

/* dst: zeroed, of dst_bytes, of which the last stays 0. */
static inline void state_get_text(struct state_reader *r, char *dst, size_t dst_bytes)
{
    uint32_t n_chars = state_get_upto(r, (uint32_t)dst_bytes - 1);
    const uint8_t *chars = state_get(r, n_chars);

    if (chars && n_chars)
        memcpy(dst, chars, n_chars);
    r->bad = r->bad || strlen(dst) != n_chars;
}

#endif
