/*
 * Pushes from one process of a worker to the next, through the journal (push_journal.h): those that the one
 * before had sent go out again, once, before anything else is asked or pushed; those of this one are
 * kept before they are sent. Without a journal nothing of this happens.
 */
#ifndef WORKER_CLIENT_PUSH_RESEND_H
#define WORKER_CLIENT_PUSH_RESEND_H

#include <stdatomic.h>
#include <uv.h>

#include "worker/client/network_thread.h"
#include "worker/client/push_encoder.h"
#include "worker/client/push_journal.h"

struct push_resend {
    struct push_journal *journal; /* borrowed, as all here; NULL: none */
    struct client_state *state;
    struct network_thread *net;
    struct push_encoder *encoder;
    uv_mutex_t lock; /* whoever comes first, one that pulls or one that pushes, does it */
    _Atomic bool has_found;
    struct err failure;       /* final */
    uint64_t epoch, last_seq; /* of the last push */
};

void push_resend_init(struct push_resend *r, struct push_journal *journal,
                      struct client_state *state, struct network_thread *net,
                      struct push_encoder *encoder);

/* A zeroed one is fine. */
void push_resend_deinit(struct push_resend *r);

/* All tables are known. What was found goes out; when the worker has had to join as somebody new
 * meanwhile it is dropped. PS_ESPEC, from then on: it has a table that this model has not. */
int push_resend_found(struct push_resend *r, struct err *err) MUST_CHECK;

/* Numbers the requests of a push, and keeps it; nothing of one that nobody will take. There is a journal. */
void push_resend_keep(struct push_resend *r, const struct client_state_identity *id,
                      struct request **requests, uint32_t n_shards);

#endif
