/*
 * A growable run of bytes: append at the end, consume from the front.
 *
 *     0          start             end              cap_bytes
 *     | consumed | unread bytes    | free space     |
 */
#ifndef COMMON_BYTES_H
#define COMMON_BYTES_H

#include "common/base.h"

struct bytes {
    uint8_t *bytes; /* owned; NULL while cap_bytes is 0 */
    size_t start, end, cap_bytes;
};

static inline size_t bytes_len(const struct bytes *b)
{
    return b->end - b->start;
}

static inline const uint8_t *bytes_front(const struct bytes *b)
{
    return b->bytes + b->start;
}

/* Makes space for n_bytes after the end and returns it, or NULL. Moves bytes. */
uint8_t *bytes_reserve(struct bytes *b, size_t n_bytes) MUST_CHECK;

/* The first n_bytes of the reserved space now hold data. */
void bytes_commit(struct bytes *b, size_t n_bytes);

void bytes_consume(struct bytes *b, size_t n_bytes);
void bytes_deinit(struct bytes *b);

#endif
