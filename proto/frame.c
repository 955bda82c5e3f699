#include "proto/frame.h"

#include <string.h>

#include "common/crc32c.h"
#include "common/status.h"

#define CRC_AT 20u

static const uint8_t magic[4] = { 'P', 'S', 'D', '1' };

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");

const char *frame_type_name(unsigned type)
{
    switch (type) {
#define X(name, value, text) \
    case name:               \
        return text;
        FRAME_TYPE_LIST(X)
#undef X
    default:
        return "unknown";
    }
}

void frame_open(uint8_t dst[static FRAME_HEADER_BYTES], const struct frame_header *header)
{
    memcpy(dst, magic, sizeof magic);
    dst[4] = (uint8_t)header->type;
    dst[5] = header->flags;
    memcpy(dst + 6, &header->head_bytes, 2);
    memcpy(dst + 8, &header->body_bytes, 4);
    memcpy(dst + 12, &header->request_id, 8);
    memset(dst + CRC_AT, 0, 4);
}

void frame_close(uint8_t dst[static FRAME_HEADER_BYTES], uint32_t crc)
{
    memcpy(dst + CRC_AT, &crc, 4);
}

void frame_encode(uint8_t *frame, const struct frame_header *header)
{
    size_t body_bytes = header->flags & FRAME_SUM_BEHIND ? 0 : header->body_bytes;
    struct frame_crc crc = { 0 };

    frame_open(frame, header);
    frame_crc_extend(&crc, frame, FRAME_HEADER_BYTES + header->head_bytes + body_bytes);
    frame_close(frame, crc.crc);
}

bool frame_magic_fits(const uint8_t *src, size_t n_bytes)
{
    return memcmp(src, magic, n_bytes < sizeof magic ? n_bytes : sizeof magic) == 0;
}

int frame_decode(const uint8_t src[static FRAME_HEADER_BYTES], uint32_t max_bytes,
                 struct frame_header *ret_header)
{
    struct frame_header header = { .type = (enum frame_type)src[4], .flags = src[5] };

    memcpy(&header.head_bytes, src + 6, 2);
    memcpy(&header.body_bytes, src + 8, 4);
    memcpy(&header.request_id, src + 12, 8);
    memcpy(&header.crc, src + CRC_AT, 4);
    if (!frame_magic_fits(src, sizeof magic))
        return PS_EPROTO;
    if (header.type < FRAME_HELLO || header.type >= FRAME_TYPE_END ||
        (header.flags & ~FRAME_FLAGS_KNOWN))
        return PS_EPROTO;
    if ((uint64_t)header.head_bytes + header.body_bytes > max_bytes)
        return PS_ETOOBIG;
    *ret_header = header;
    return 0;
}

void frame_crc_extend(struct frame_crc *s, const uint8_t *src, size_t n_bytes)
{
    if (!s->n_bytes) {
        s->crc = crc32c_extend(0, src, CRC_AT);
        s->n_bytes = FRAME_HEADER_BYTES; /* the crc itself is skipped */
    }
    if (n_bytes > s->n_bytes)
        s->crc = crc32c_extend(s->crc, src + s->n_bytes, n_bytes - s->n_bytes);
    s->n_bytes = n_bytes;
}

void frame_crc_follow(struct frame_crc *s, const uint8_t *body, size_t n_bytes)
{
    s->crc = crc32c_extend(s->crc, body, n_bytes);
    s->n_bytes += n_bytes;
}

void frame_put_sum(uint8_t dst[static FRAME_SUM_BYTES], const struct frame_crc *s)
{
    memcpy(dst, &s->crc, FRAME_SUM_BYTES);
}

int frame_crc_check(struct frame_crc *s, const struct frame_header *header, const uint8_t *src,
                    size_t n_bytes)
{
    const bool sum_behind = header->flags & FRAME_SUM_BEHIND;
    size_t head_end = FRAME_HEADER_BYTES + (size_t)header->head_bytes;
    size_t body_end = head_end + header->body_bytes;

    if (sum_behind && s->n_bytes < head_end && n_bytes >= head_end) {
        frame_crc_extend(s, src, head_end);
        if (s->crc != header->crc) /* lengths that are wrong are not waited for */
            return PS_ECORRUPT;
    }
    frame_crc_extend(s, src, n_bytes < body_end ? n_bytes : body_end);
    if (n_bytes < frame_bytes(header))
        return 0;
    if (sum_behind)
        return memcmp(src + body_end, &s->crc, FRAME_SUM_BYTES) == 0 ? 0 : PS_ECORRUPT;
    return s->crc == header->crc ? 0 : PS_ECORRUPT;
}

int frame_verify(const uint8_t *src, const struct frame_header *header)
{
    struct frame_crc s = { 0 };

    return frame_crc_check(&s, header, src, frame_bytes(header));
}
