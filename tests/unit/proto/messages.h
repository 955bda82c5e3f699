/* What the tests of messages share: a frame taken apart, and messages whose
 * every field is in use. */
#ifndef TESTS_UNIT_PROTO_MESSAGES_H
#define TESTS_UNIT_PROTO_MESSAGES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "proto/message.h"
#include "proto/message_zstd.h"

#define FRAME_MAX (1u << 20)

/* A frame taken apart, as a channel would hand it over. */
struct messages_frame {
    struct frame_header header;
    const uint8_t *head, *body; /* borrowed: body from the frame or from scratch */
    size_t body_bytes;
    struct bytes scratch;
};

/* What all tests of a program compress with. */
extern struct message_zstd messages_zstd;

struct messages_frame messages_open(const struct bytes *b);
void messages_close(struct messages_frame *f, struct bytes *b);
void messages_text(char *dst, size_t cap);
struct table_spec messages_spec(void);
struct hello_reply *messages_hello_reply(void);
uint8_t *messages_bytes(size_t n, unsigned n_values);

/* Sections of several codecs over shared random bytes; the bytes belong to the caller. */
void messages_sections(struct section *s, uint32_t n, const uint8_t *bytes, size_t *ret_bytes,
                       bool values);

#endif
