/*
 * The head of a message: how a protobuf-c struct gets into a frame and out of one. For
 * message*.c alone.
 */
#ifndef PROTO_MESSAGE_HEAD_H
#define PROTO_MESSAGE_HEAD_H

#include <stdbool.h>

#include <protobuf-c/protobuf-c.h>

#include "common/bytes.h"
#include "proto/frame.h"

/*
 * Space behind what is in *out for a frame whose body has body_bytes, which the caller then
 * writes at *ret_body; the head is in its place already. Nothing counts until
 * message_head_seal(). header: type and request_id are the caller's, the lengths are filled in.
 * PS_ETOOBIG or -ENOMEM, *out as it was.
 *
 *     | header | head | body |
 */
int message_head_open(struct bytes *out, const ProtobufCMessage *head, size_t body_bytes,
                      struct frame_header *header, uint8_t **ret_body) MUST_CHECK;

/* Of a head, those of its sections included: unpacking takes time for each. 256 sections have less than half of it. */
#define MESSAGE_HEAD_FIELDS_MAX 4096u

struct message_zstd;

/* The body is written: compresses it where that pays (NULL: does not), writes the header, appends
 * the frame to *out. */
void message_head_seal(struct bytes *out, struct frame_header *header, uint8_t *body,
                       struct message_zstd *zstd);

/* The same around a body that stands in *body alone, behind free bytes, and whose crc32c is known: header and head are
 * written before it, and none of it is read. PS_ETOOBIG, *body as it was, if they do not fit there. */
int message_head_prepend(struct bytes *body, uint32_t body_crc, struct frame_header *header,
                         const ProtobufCMessage *head) MUST_CHECK;

/* A frame without a body. */
int message_head_write(struct bytes *out, enum frame_type type, uint64_t request_id,
                       const ProtobufCMessage *head) MUST_CHECK;

/* Unpacks a head and lets `take` copy from it into ret. PS_EPROTO if it is no such message, has a string with a NUL in
 * it, or too many fields; -ENOMEM; else what `take` returns. */
int message_head_read(const ProtobufCMessageDescriptor *descriptor,
                      const struct frame_header *header, const uint8_t *head,
                      int (*take)(const void *message, void *ret), void *ret) MUST_CHECK;

/* A name: PS_EPROTO unless it fits dst, NUL included, and is UTF-8 without control characters. */
int message_head_name(char *dst, size_t cap, const char *src) MUST_CHECK;

/* A secret, of any bytes: PS_EPROTO unless it fits. */
int message_head_secret(char *dst, size_t cap, const char *src) MUST_CHECK;

/* A sentence: cut to fit behind a whole character, bytes that are no UTF-8 and control characters replaced. */
void message_head_text(char *dst, size_t cap, const char *src);

/* PS_EPROTO for a number that is no status. */
int message_head_status(int *dst, int32_t status) MUST_CHECK;

#endif
