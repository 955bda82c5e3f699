#include "proto/message_head.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/status.h"
#include "proto/message_zstd.h"

#define STATUS_MIN (-20000)
#define ARENA_BYTES (24u << 10)

/* Where protobuf-c unpacks to: memory on the stack, so that an honest head costs no allocation;
 * the heap, with what a head of 64 KiB can make of it at most, when that is full. */
struct arena {
    size_t used;
    bool failed;
    _Alignas(16) uint8_t bytes[ARENA_BYTES];
};

static void *arena_alloc(void *state, size_t n_bytes)
{
    struct arena *a = state;
    size_t rounded = (n_bytes + 15) & ~(size_t)15;
    void *block;

    if (rounded <= ARENA_BYTES - a->used) {
        a->used += rounded;
        return a->bytes + a->used - rounded;
    }
    block = memory_try_alloc(n_bytes);
    a->failed = a->failed || !block;
    return block;
}

static void arena_free(void *state, void *block)
{
    struct arena *a = state;
    uint8_t *at = block;

    if (at < a->bytes || at >= a->bytes + ARENA_BYTES)
        free(block);
}

int message_head_open(struct bytes *out, const ProtobufCMessage *head, size_t body_bytes,
                      struct frame_header *header, uint8_t **ret_body)
{
    size_t head_bytes = protobuf_c_message_get_packed_size(head);
    uint8_t *frame;

    if (head_bytes > UINT16_MAX || body_bytes > UINT32_MAX)
        return PS_ETOOBIG;
    frame = bytes_reserve(out, FRAME_HEADER_BYTES + head_bytes + body_bytes);
    if (!frame)
        return -ENOMEM;
    protobuf_c_message_pack(head, frame + FRAME_HEADER_BYTES);
    header->head_bytes = (uint16_t)head_bytes;
    header->body_bytes = (uint32_t)body_bytes;
    *ret_body = frame + FRAME_HEADER_BYTES + head_bytes;
    return 0;
}

void message_head_seal(struct bytes *out, struct frame_header *header, uint8_t *body,
                       struct message_zstd *zstd)
{
    uint8_t *head = body - header->head_bytes;
    size_t body_bytes = header->body_bytes;

    if (zstd) {
        body_bytes = message_zstd_compress(zstd, body, body_bytes);
        if (body_bytes < header->body_bytes)
            header->flags |= FRAME_ZSTD;
        header->body_bytes = (uint32_t)body_bytes;
    }
    frame_encode(head - FRAME_HEADER_BYTES, header);
    bytes_commit(out, FRAME_HEADER_BYTES + header->head_bytes + body_bytes);
}

int message_head_write(struct bytes *out, enum frame_type type, uint64_t request_id,
                       const ProtobufCMessage *head)
{
    struct frame_header header = { .type = type, .request_id = request_id };
    uint8_t *body;
    int status = message_head_open(out, head, 0, &header, &body);

    if (!status)
        message_head_seal(out, &header, body, NULL);
    return status;
}

int message_head_read(const ProtobufCMessageDescriptor *descriptor,
                      const struct frame_header *header, const uint8_t *head,
                      int (*take)(const void *message, void *ret), void *ret)
{
    struct arena arena;
    ProtobufCAllocator allocator = { arena_alloc, arena_free, &arena };
    ProtobufCMessage *message;
    int status;

    arena.used = 0;
    arena.failed = false;
    message = protobuf_c_message_unpack(descriptor, &allocator, header->head_bytes, head);
    if (!message)
        return arena.failed ? -ENOMEM : PS_EPROTO;
    status = take(message, ret);
    protobuf_c_message_free_unpacked(message, &allocator);
    return status;
}

int message_head_name(char *dst, size_t cap, const char *src)
{
    size_t n = strlen(src);

    if (n >= cap)
        return PS_EPROTO;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)src[i] < ' ' || src[i] == 0x7f)
            return PS_EPROTO;
    memcpy(dst, src, n + 1);
    return 0;
}

void message_head_text(char *dst, size_t cap, const char *src)
{
    size_t n = 0;

    for (; src[n] && n < cap - 1; n++)
        dst[n] = (unsigned char)src[n] < ' ' || src[n] == 0x7f ? '?' : src[n];
    dst[n] = 0;
}

int message_head_status(int *dst, int32_t status)
{
    if (status > 0 || status < STATUS_MIN)
        return PS_EPROTO;
    *dst = status;
    return 0;
}
