/*
 * One pull: what was asked for, and the shards' answers. A client has as many of these as were ever under way at one
 * time; one that has ended is used again, and all are freed when the client closes. So the network thread may still
 * fill an answer of a pull that has ended meanwhile: the id that it was asked with is no longer the pull's.
 *
 *     state        fields belong to                                       leaves it by
 *     IDLE         the client_state                                       client_state_acquire_pull() -> FILLED
 *     FILLED       the thread that starts it                              client_state_start_pull() -> UNDER WAY
 *     UNDER WAY    an answer: the network thread's until it has arrived;  client_state_begin_wait() -> WAITED FOR
 *                  flags: under the client_state's lock
 *     WAITED FOR   and what has arrived: the thread that waits            client_state_end_pull() -> IDLE
 *                                                                         client_state_pause_wait() -> UNDER WAY
 *
 * No step like the one before it allocates: requests, partition and answers keep their memory.
 */
#ifndef WORKER_CLIENT_PULL_H
#define WORKER_CLIENT_PULL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

#include "proto/message.h"
#include "worker/client/partition.h"
#include "worker/client/ps_types.h"
#include "worker/client/request.h"
#include "worker/client/signals.h"
#include "worker/client/wakeup.h"

#define PULL_NO_SHARD UINT32_MAX

struct pulled_rows;
struct push_encoder;
struct waiter;

/* The values of a section, as they came. */
struct pull_values {
    const uint8_t *bytes;
    size_t n_bytes;
};

/* One shard's answer. */
struct pull_answer {
    bool arrived; /* under the client_state's lock */
    int status;
    bool is_lost;    /* it came, and there was no memory for it */
    bool is_decoded; /* when it came: `body` is not used; decode_status is how that went */
    int decode_status;
    char text[MESSAGE_TEXT_MAX]; /* of a refusal */
    uint64_t min_clock;
    struct pull_values *values; /* owned, of each section; cap_values */
    uint32_t cap_values;
    struct bytes body; /* owned: where they are; a buffer of the network's, or a copy */
};

enum pull_state { PULL_IDLE, PULL_FILLED, PULL_UNDER_WAY, PULL_WAITED_FOR };

struct ps_pull {
    const void *client_state; /* borrowed: whose it is; never changes */
    uint32_t n_shards;

    const struct push_encoder *encoder;     /* borrowed */
    const struct ps_pull_section *sections; /* borrowed until its end */
    uint32_t n_sections;
    struct pulled_rows *pulled; /* borrowed: a section's; NULL: there is none */
    uint64_t clock, deadline_ns,
        min_clock;              /* min_clock: the lowest of the answers that were decoded */
    struct partition partition; /* of its keys */
    struct request_set requests;
    struct pull_answer *answers; /* owned, n_shards */
    bool
        is_driven; /* the thread that waits for it drives the network, and nobody else does: it looks */
    uint32_t n_decoded; /* answers of the first shards, by the thread that waits */
    void *tag;          /* the caller's, for client_state_next_came() */

    /* Under the client_state's lock; the network thread compares the id without it. */
    _Atomic uint64_t id; /* counts pulls; 0: not under way */
    enum pull_state state;
    uint64_t epoch; /* of the client_state when it was started */
    bool is_refused, is_cancelled;
    bool is_taken;      /* client_state_next_came() has handed it out */
    uint32_t n_missing; /* answers that have not arrived */
    uint32_t awaited;   /* the shard that its thread waits for, or PULL_NO_SHARD */
    struct waiter
        *waiter; /* borrowed: that thread, while it sleeps (client_state.c); else NULL */
    struct signals signals;   /* that thread's: held from its first sleep to the wait's end */
    uint64_t waited_since_ns; /* 0: nobody waits */
    struct wakeup changed;    /* for that thread, if its wait is not interruptible */
    struct ps_pull *next_came,
        **link_came; /* in the list of those that came; NULL: not in it */
    struct ps_pull *next,
        **link; /* in the client_state's list of this state; what points to it */
};

/* FILLED, or NULL without memory. */
struct ps_pull *pull_new(const void *client_state, uint32_t n_shards) MUST_CHECK;
/* Once the network thread has ended. */
void pull_free(struct ps_pull *pull);

/* True if nobody waits for the answer to a pull's request. Any thread. */
static inline bool pull_has_ended(const struct request *r)
{
    return r->pull->id != r->pull_id;
}

/* Encodes one request for each shard. -ENOMEM, PS_ECODEC: there are none. */
int pull_encode(struct ps_pull *pull, const struct push_encoder *encoder,
                const struct ps_pull_section *sections, uint32_t n) MUST_CHECK;

/* A shard's answer, for the thread that runs the network: decoded into the sections if it is the thread that waits for
 * this answer; else kept, with its buffer (shard_link_events.pulled) if it has one, or copied: -ENOMEM if there is no
 * memory for that. So the sections are decoded in the order of the shards, by the thread that waits. */
void pull_take_answer(struct ps_pull *pull, uint32_t shard, const struct pull_reply *reply,
                      struct bytes *buffer);

/* Decodes an answer that has arrived, and is none of a refusal, into the sections, unless it is there. */
int pull_decode(struct ps_pull *pull, uint32_t shard) MUST_CHECK;

#endif
