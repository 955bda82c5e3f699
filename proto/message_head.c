#include "proto/message_head.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc32c.h"
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

int message_head_prepend(struct bytes *body, uint32_t body_crc, struct frame_header *header,
                         const ProtobufCMessage *head)
{
    const size_t head_bytes = protobuf_c_message_get_packed_size(head),
                 body_bytes = bytes_len(body), before = FRAME_HEADER_BYTES + head_bytes;
    struct frame_crc crc = { 0 };
    uint8_t *frame;

    if (head_bytes > UINT16_MAX || body_bytes > UINT32_MAX || before > body->start)
        return PS_ETOOBIG;
    frame = body->bytes + body->start - before;
    protobuf_c_message_pack(head, frame + FRAME_HEADER_BYTES);
    header->head_bytes = (uint16_t)head_bytes;
    header->body_bytes = (uint32_t)body_bytes;
    frame_open(frame, header);
    frame_crc_extend(&crc, frame, before);
    frame_close(frame, crc32c_combine(crc.crc, body_crc, body_bytes));
    body->start -= before;
    return 0;
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

/* A varint; NULL: it does not end. */
static const uint8_t *get_varint(const uint8_t *at, const uint8_t *end, uint64_t *ret)
{
    *ret = 0;
    for (unsigned shift = 0; at < end && shift < 64; shift += 7) {
        *ret |= (uint64_t)(*at & 0x7f) << shift;
        if (!(*at++ & 0x80))
            return at;
    }
    return NULL;
}

/* Behind a field of wire type `type`; NULL: beyond `end`, or no type that protobuf-c knows. */
static const uint8_t *skip_field(const uint8_t *at, const uint8_t *end, unsigned type,
                                 uint64_t *ret_bytes)
{
    uint64_t ignored;

    *ret_bytes = 0;
    if (type == PROTOBUF_C_WIRE_TYPE_VARINT)
        return get_varint(at, end, &ignored);
    if (type == PROTOBUF_C_WIRE_TYPE_64BIT)
        return end - at >= 8 ? at + 8 : NULL;
    if (type == PROTOBUF_C_WIRE_TYPE_32BIT)
        return end - at >= 4 ? at + 4 : NULL;
    if (type != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED)
        return NULL;
    at = get_varint(at, end, ret_bytes);
    return at && *ret_bytes <= (uint64_t)(end - at) ? at + *ret_bytes : NULL;
}

/* Counts the fields, those of messages in it included, up to one more than a head may have. What is no message, the
 * unpacking refuses. */
static uint32_t count_fields(const ProtobufCMessageDescriptor *descriptor, const uint8_t *at,
                             size_t n_bytes, uint32_t n)
{
    const uint8_t *end = at + n_bytes;

    while (at && at < end && n <= MESSAGE_HEAD_FIELDS_MAX) {
        const ProtobufCFieldDescriptor *field;
        uint64_t key, length;

        at = get_varint(at, end, &key);
        at = at ? skip_field(at, end, key & 7, &length) : NULL;
        n++;
        if (!at || !length || key >> 3 > UINT32_MAX)
            continue;
        field = protobuf_c_message_descriptor_get_field(descriptor, (unsigned)(key >> 3));
        if (field && field->type == PROTOBUF_C_TYPE_MESSAGE)
            n = count_fields(field->descriptor, at - length, length, n);
    }
    return n;
}

static bool has_strings(const ProtobufCMessageDescriptor *descriptor)
{
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];

        if (field->type == PROTOBUF_C_TYPE_STRING ||
            (field->type == PROTOBUF_C_TYPE_MESSAGE && has_strings(field->descriptor)))
            return true;
    }
    return false;
}

/* protobuf-c ends a string at its first NUL: "nul\0x" would be the name of another. */
static bool has_nul(const ProtobufCMessageDescriptor *descriptor, const uint8_t *at,
                    size_t n_bytes)
{
    const uint8_t *end = at + n_bytes;

    while (at && at < end) {
        const ProtobufCFieldDescriptor *field;
        uint64_t key, length;
        const uint8_t *next = get_varint(at, end, &key);

        next = next ? skip_field(next, end, key & 7, &length) : NULL;
        if (!next || key >> 3 > UINT32_MAX)
            return true; /* the unpacking would have refused it */
        at = next;
        if (!length)
            continue;
        field = protobuf_c_message_descriptor_get_field(descriptor, (unsigned)(key >> 3));
        if (!field)
            continue;
        if (field->type == PROTOBUF_C_TYPE_STRING && memchr(at - length, 0, length))
            return true;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE &&
            has_nul(field->descriptor, at - length, length))
            return true;
    }
    return false;
}

int message_head_read(const ProtobufCMessageDescriptor *descriptor,
                      const struct frame_header *header, const uint8_t *head,
                      int (*take)(const void *message, void *ret), void *ret)
{
    struct arena arena;
    ProtobufCAllocator allocator = { arena_alloc, arena_free, &arena };
    ProtobufCMessage *message;
    int status;

    /* A field has two bytes or more. */
    if (header->head_bytes / 2 > MESSAGE_HEAD_FIELDS_MAX &&
        count_fields(descriptor, head, header->head_bytes, 0) > MESSAGE_HEAD_FIELDS_MAX)
        return PS_EPROTO;
    arena.used = 0;
    arena.failed = false;
    message = protobuf_c_message_unpack(descriptor, &allocator, header->head_bytes, head);
    if (!message)
        return arena.failed ? -ENOMEM : PS_EPROTO;
    status = has_strings(descriptor) && has_nul(descriptor, head, header->head_bytes)
                 ? PS_EPROTO
                 : take(message, ret);
    protobuf_c_message_free_unpacked(message, &allocator);
    return status;
}

/* Bytes of the character at `text`, which ends with NUL; 0: it is no UTF-8 (RFC 3629: the shortest form, no surrogate,
 * up to U+10FFFF), or a control character (U+0000 to U+001F, U+007F to U+009F). */
static size_t character_bytes(const char *text)
{
    const uint8_t *c = (const uint8_t *)text;
    size_t n_bytes = c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;

    if (c[0] < 0x80)
        return c[0] >= ' ' && c[0] != 0x7f;
    if (c[0] < 0xc2 || c[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n_bytes; i++) /* a NUL is none of these */
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    if ((c[0] == 0xc2 && c[1] < 0xa0) || (c[0] == 0xe0 && c[1] < 0xa0) ||
        (c[0] == 0xed && c[1] > 0x9f) || (c[0] == 0xf0 && c[1] < 0x90) ||
        (c[0] == 0xf4 && c[1] > 0x8f))
        return 0;
    return n_bytes;
}

int message_head_secret(char *dst, size_t cap, const char *src)
{
    size_t n = strlen(src);

    if (n >= cap)
        return PS_EPROTO;
    memcpy(dst, src, n + 1);
    return 0;
}

int message_head_name(char *dst, size_t cap, const char *src)
{
    size_t n;

    for (size_t i = 0; src[i]; i += n) {
        n = character_bytes(src + i);
        if (!n)
            return PS_EPROTO;
    }
    return message_head_secret(dst, cap, src);
}

void message_head_text(char *dst, size_t cap, const char *src)
{
    size_t done = 0;

    while (*src) {
        size_t n = character_bytes(src);

        if (done + (n ? n : 1) >= cap)
            break;
        if (n)
            memcpy(dst + done, src, n);
        else
            dst[done] = '?';
        done += n ? n : 1;
        src += n ? n : 1;
    }
    dst[done] = 0;
}

int message_head_status(int *dst, int32_t status)
{
    if (status > 0 || status < STATUS_MIN)
        return PS_EPROTO;
    *dst = status;
    return 0;
}
