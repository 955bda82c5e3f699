/*
 * The way in of a channel: received bytes, and the frames that they make.
 *
 *     channel_in_room -> (read) -> channel_in_commit -> channel_in_look: whole?
 *         -> channel_in_check -> (delivered) -> channel_in_drop -> look again
 *         -> no more that is whole: channel_in_settle
 *
 * A frame is read to where it is delivered from: many small ones with one read, a large one into
 * a buffer of its size. Only the beginning of an unfinished frame moves: a large one's to a buffer
 * where the rest has room; a small one's, from the large buffer of many, to one of its own size
 * while it waits, and back for the next read. Its crc is extended as it comes. A header alone
 * reserves nothing: there is room for twice what has come of the frame, or for as much as the largest
 * frame that the peer has sent.
 */
#ifndef PROTO_CHANNEL_IN_H
#define PROTO_CHANNEL_IN_H

#include <stdbool.h>

#include "proto/channel_hub.h"
#include "proto/frame.h"

struct channel_in {
    struct channel_hub *hub; /* borrowed */
    struct buf buf;          /* owned, from the hub; none while nothing is unfinished */
    size_t next_bytes;       /* length of the frame at the front; 0: not known yet */
    struct frame_crc crc;    /* of that frame, as far as it has come */
    uint32_t last_bytes[2];  /* lengths of the two frames before it */
    uint32_t most_bytes;     /* the largest so far */
};

/* Where the next bytes go. -ENOMEM. */
int channel_in_room(struct channel_in *in, uint8_t **ret_room, size_t *ret_bytes) MUST_CHECK;

/* The first n_bytes of that room now hold data. */
void channel_in_commit(struct channel_in *in, size_t n_bytes);

/* Looks for a frame at the front. *ret_header is set if its header is there. Refuses a wrong one,
 * as frame_decode() does, as soon as the bytes that tell have come. */
int channel_in_look(struct channel_in *in, uint32_t max_bytes, struct frame_header *ret_header)
    MUST_CHECK;

/* Is all there of the frame that was looked at? */
bool channel_in_is_whole(const struct channel_in *in);

/* PS_ECORRUPT unless the sums of the whole frame are right. */
int channel_in_check(struct channel_in *in, const struct frame_header *header) MUST_CHECK;

/* The whole frame at the front is done with. */
void channel_in_drop(struct channel_in *in);

/* All that is left is the beginning of a frame, looked at (`header`: if that has come): it moves to
 * where the rest has room, too, if it must. -ENOMEM; PS_ECORRUPT if a sum that has come is wrong. */
int channel_in_settle(struct channel_in *in, const struct frame_header *header) MUST_CHECK;

/* Drops everything. */
void channel_in_clear(struct channel_in *in);

#endif
