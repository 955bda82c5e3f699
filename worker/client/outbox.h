/*
 * What one direction of the client fills before the network thread gets it: for each shard the
 * encoder's bytes, and a parcel for them.
 */
#ifndef WORKER_CLIENT_OUTBOX_H
#define WORKER_CLIENT_OUTBOX_H

#include "worker/client/parcel.h"

/* Zeroed: of no shard. */
struct outbox {
    struct buf *bufs;        /* owned, n_shards */
    struct parcel **parcels; /* owned, n_shards: NULLs between calls */
    uint32_t n_shards;
};

void outbox_init(struct outbox *o, uint32_t n_shards);
void outbox_deinit(struct outbox *o);

/* Empty parcels with room for n_sections. -ENOMEM: none. */
int outbox_make(struct outbox *o, uint32_t n_sections) MUST_CHECK;

/* Frees what was not handed on. */
void outbox_clear(struct outbox *o);

/* The parcels are somebody else's now. */
void outbox_forget(struct outbox *o);

#endif
