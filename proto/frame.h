/*
 * The envelope around every message, in both directions.
 *
 *     offset  bytes  field        meaning
 *          0      4  magic        "PSD1", so that a wrong port fails at once
 *          4      1  type         enum frame_type
 *          5      1  flags        FRAME_ZSTD: the body is one zstd frame; FRAME_SUM_BEHIND: below
 *          6      2  head_bytes   the protobuf head, 0 .. 65535
 *          8      4  body_bytes   as sent; head + body at most the frame limit
 *         12      8  request_id   chosen by the caller, echoed by the reply
 *         20      4  crc32c       of bytes 0..19, the head and the body, as sent
 *         24      -  head, body
 *
 * With FRAME_SUM_BEHIND the crc32c in the header is of bytes 0..19 and the head, and the crc32c of everything follows
 * the body in 4 more bytes. So the beginning can leave before the end is made.
 *
 * All integers are little-endian. This file handles bytes; message.h handles the meaning of a head.
 */
#ifndef PROTO_FRAME_H
#define PROTO_FRAME_H

#include <stdbool.h>

#include "common/base.h"

#define FRAME_HEADER_BYTES 24u
#define FRAME_MAX_BYTES_DEFAULT (64u << 20) /* head + body */

/* One list gives the number, the name on the stats page, and the direction. A request's reply
 * is the number after it. */
#define FRAME_TYPE_LIST(X)                    \
    X(FRAME_HELLO, 1, "hello")                \
    X(FRAME_HELLO_REPLY, 2, "hello_reply")    \
    X(FRAME_JOIN, 3, "join")                  \
    X(FRAME_JOIN_REPLY, 4, "join_reply")      \
    X(FRAME_TABLE, 5, "table")                \
    X(FRAME_TABLE_REPLY, 6, "table_reply")    \
    X(FRAME_PULL, 7, "pull")                  \
    X(FRAME_PULL_REPLY, 8, "pull_reply")      \
    X(FRAME_PUSH, 9, "push")                  \
    X(FRAME_PUSH_REPLY, 10, "push_reply")     \
    X(FRAME_BEAT, 11, "beat")                 \
    X(FRAME_BEAT_REPLY, 12, "beat_reply")     \
    X(FRAME_LEAVE, 13, "leave")               \
    X(FRAME_LEAVE_REPLY, 14, "leave_reply")   \
    X(FRAME_ADMIN, 15, "admin")               \
    X(FRAME_ADMIN_REPLY, 16, "admin_reply")   \
    X(FRAME_FOLLOW, 17, "follow")             \
    X(FRAME_FOLLOW_REPLY, 18, "follow_reply") \
    X(FRAME_FILE, 19, "file")                 \
    X(FRAME_FILE_REPLY, 20, "file_reply")     \
    X(FRAME_FETCH, 21, "fetch")               \
    X(FRAME_FETCH_REPLY, 22, "fetch_reply")   \
    X(FRAME_WATCH, 23, "watch")               \
    X(FRAME_WATCH_REPLY, 24, "watch_reply")

enum frame_type {
#define X(name, value, text) name = value,
    FRAME_TYPE_LIST(X)
#undef X
        FRAME_TYPE_END
};

enum frame_flag {
    FRAME_ZSTD = 1 << 0,
    FRAME_SUM_BEHIND = 1 << 1, /* only to peers that understand it (README.md) */
    FRAME_FLAGS_KNOWN = FRAME_ZSTD | FRAME_SUM_BEHIND
};

#define FRAME_SUM_BYTES 4u /* behind the body */

struct frame_header {
    enum frame_type type;
    uint8_t flags;
    uint16_t head_bytes;
    uint32_t body_bytes;
    uint64_t request_id;
    uint32_t crc;
};

/* Static storage; "unknown" for what is no type. */
const char *frame_type_name(unsigned type);

/* Writes the header, its crc included, before the head and the body, which are there (the body not with
 * FRAME_SUM_BEHIND). header->crc is ignored. */
void frame_encode(uint8_t *frame, const struct frame_header *header);

/* The same around a body that is still being written: frame_open() writes the header without its crc, so that the crc
 * can be taken piece by piece (frame_crc_extend()), and frame_close() writes the crc. */
void frame_open(uint8_t dst[static FRAME_HEADER_BYTES], const struct frame_header *header);
void frame_close(uint8_t dst[static FRAME_HEADER_BYTES], uint32_t crc);

/* True if these first bytes (any number of them) may begin a frame. So a peer of another protocol is recognised before
 * a whole header has arrived. */
bool frame_magic_fits(const uint8_t *src, size_t n_bytes);

/* Reads one header. PS_EPROTO on a wrong magic or an unknown type or flag, PS_ETOOBIG if head +
 * body pass max_bytes; then *ret_header is untouched. The crc is not checked here. */
int frame_decode(const uint8_t src[static FRAME_HEADER_BYTES], uint32_t max_bytes,
                 struct frame_header *ret_header) MUST_CHECK;

/* Of the whole frame, all that belongs to it included. */
static inline size_t frame_bytes(const struct frame_header *header)
{
    return FRAME_HEADER_BYTES + (size_t)header->head_bytes + header->body_bytes +
           (header->flags & FRAME_SUM_BEHIND ? FRAME_SUM_BYTES : 0);
}

/* PS_ECORRUPT unless the sums of the whole frame at `src` are right. */
int frame_verify(const uint8_t *src, const struct frame_header *header) MUST_CHECK;

/* Piece by piece, while a frame comes or is made: the crc of its first n_bytes. Starts as zeroes. */
struct frame_crc {
    uint32_t crc;
    size_t n_bytes;
};

/* The frame's first n_bytes are at `src` now (at least a header, and no fewer than before). */
void frame_crc_extend(struct frame_crc *s, const uint8_t *src, size_t n_bytes);

/* The same of n_bytes of a body that follow what was summed, wherever they are. */
void frame_crc_follow(struct frame_crc *s, const uint8_t *body, size_t n_bytes);

/* The 4 bytes after the body with FRAME_SUM_BEHIND. */
void frame_put_sum(uint8_t dst[static FRAME_SUM_BYTES], const struct frame_crc *s);

/* Of the frame at `src` n_bytes have come (at least a header, and no fewer than before): extends the
 * crc by what is new. PS_ECORRUPT once a sum that has come is wrong. */
int frame_crc_check(struct frame_crc *s, const struct frame_header *header, const uint8_t *src,
                    size_t n_bytes) MUST_CHECK;

#endif
