/*
 * Where that lies which is owed to the rows of a push section, for somebody who encodes them himself and keeps it
 * himself, in an array of rows: on a device. A residual without floats is the index of that array (residual.h).
 *
 * What goes out, and what is owed after it, is what the encoder makes of the same sections (encode.h):
 *
 *     codec                     rows that go out               what is owed to them
 *     with feedback             the section's                  goes with them; what is lost now is owed then
 *     with feedback, no room    and the oldest, in fp32        goes with them (settle.h)
 *     without                   the section's                  goes with them, if a codec before has left something
 *
 * First owed_prepare(), which may fail and changes nothing that is owed; then owed_take(), which cannot. A row that
 * goes out and is owed nothing more gives its place back: its floats there are zeros once it is encoded.
 */
#ifndef WORKER_CLIENT_OWED_H
#define WORKER_CLIENT_OWED_H

#include "worker/client/ps_types.h"
#include "worker/client/residual.h"
#include "worker/client/settle.h"

/* A section's rows as they go out. Zeroed: none. */
struct owed {
    enum codec_id codec;
    uint32_t k; /* topk's; else 0 */
    size_t row_bytes;
    uint32_t n;
    const uint64_t *keys; /* [n] ascending: the section's, or, if it settles, the settle's */
    const uint32_t
        *from; /* [n] which of the section's rows, or RESIDUAL_NONE; NULL: row i is row i */
    const uint32_t
        *at; /* [n] row of what is owed, or RESIDUAL_NONE; NULL: nothing is owed to any */
    bool settles;
    struct settle settle;
};

void owed_deinit(struct owed *o);

/* Of a section of gradients; its keys stay borrowed as long as o->keys are looked at. -ENOMEM. */
int owed_prepare(struct owed *o, struct residual *index, const struct ps_push_section *section)
    MUST_CHECK;

/* Fills from and at, in `room` for 2 * o->n numbers, which stays the caller's, as long as these are looked at. */
void owed_take(struct owed *o, struct residual *index, const struct ps_push_section *section,
               uint32_t *room);

#endif
