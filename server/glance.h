/*
 * The values of a large push, looked at while they come: the bytes are then still in the cache, and
 * need not be fetched from memory again to be checked once all are there.
 *
 * Nothing is decided here. A row that is found to be finite is passed over by the check (section.h,
 * n_finite); all others, and all that is wrong, are the check's, when the frame is whole and its crc
 * right. Only plain floats are looked at: the other codecs have far fewer bytes.
 */
#ifndef SERVER_GLANCE_H
#define SERVER_GLANCE_H

#include "proto/message.h"

/* A body of which the first n_bytes have come, and before that n_seen (0 at first) have been looked
 * at; returns the next n_seen, at the end of a row. *scratch is the caller's, and says nothing. */
size_t glance_more(struct push *scratch, const struct frame_header *header, const uint8_t *head,
                   const uint8_t *body, size_t n_bytes, size_t n_seen);

/* Sets n_finite of all sections of a push whose body it is. */
void glance_tell(struct push *push, const uint8_t *body, size_t n_seen);

#endif
