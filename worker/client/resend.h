/*
 * Pushes from one process of a worker to the next, by way of a spool (spool.h): those that the one
 * before had sent go out again, once, before anything else is asked or pushed; those of this one are
 * kept before they are sent. Without a spool nothing of this happens.
 */
#ifndef WORKER_CLIENT_RESEND_H
#define WORKER_CLIENT_RESEND_H

#include <stdatomic.h>
#include <uv.h>

#include "worker/client/encode.h"
#include "worker/client/net.h"
#include "worker/client/spool.h"

struct resend {
    struct spool *spool; /* borrowed, as all here; NULL: none */
    struct desk *desk;
    struct net *net;
    struct encoder *encoder;
    uv_mutex_t lock; /* whoever comes first, one that pulls or one that pushes, does it */
    _Atomic bool has_found;
    struct err failure;       /* final */
    uint64_t epoch, last_seq; /* of the last push */
};

void resend_init(struct resend *r, struct spool *spool, struct desk *desk, struct net *net,
                 struct encoder *encoder);

/* A zeroed one is fine. */
void resend_deinit(struct resend *r);

/* All tables are known. What was found goes out; when the worker has had to join as somebody new
 * meanwhile it is dropped. PS_ESPEC, from then on: it has a table that this model has not. */
int resend_found(struct resend *r, struct err *err) MUST_CHECK;

/* Numbers the parcels of a push, and keeps it; nothing of one that nobody will take. */
void resend_keep(struct resend *r, const struct desk_identity *id, struct parcel **parcels,
                 uint32_t n_shards);

#endif
