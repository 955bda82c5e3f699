/*
 * What one direction of the client fills before the network thread gets it: for each shard the
 * encoder's bytes, and a parcel for them. The network thread gives parcels back, with their memory, when
 * they are done with, so that a step that is like those before it allocates nothing: there are as many as were
 * under way at a time, each as large as the largest that it has held.
 */
#ifndef WORKER_CLIENT_OUTBOX_H
#define WORKER_CLIENT_OUTBOX_H

#include "worker/client/parcel.h"

/* Zeroed: of no shard. */
struct outbox {
    struct buf *bufs;        /* owned, n_shards */
    struct parcel **parcels; /* owned, n_shards: NULLs between calls */
    uint32_t n_shards;
    struct spares spares; /* parcels that have come back */
};

/* max_bytes: of parcels that lie idle, beyond those of two calls. */
void outbox_init(struct outbox *o, uint32_t n_shards, size_t max_bytes);

/* Once no parcel is anywhere else any more. */
void outbox_deinit(struct outbox *o);

/* Empty parcels with room for n_sections. -ENOMEM: none. */
int outbox_make(struct outbox *o, uint32_t n_sections) MUST_CHECK;

/* Takes back what was not handed on. */
void outbox_clear(struct outbox *o);

/* The parcels are somebody else's now. */
void outbox_forget(struct outbox *o);

#endif
