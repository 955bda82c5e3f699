/*
 * The state that all handlers of one shard share: the shard, the reply queue, their counters, and the limit of their
 * log lines. dispatch.h owns it. Handlers know this struct, and not each other.
 */
#ifndef SERVER_REQUESTS_REQUEST_CONTEXT_H
#define SERVER_REQUESTS_REQUEST_CONTEXT_H

#include "common/log_line.h"
#include "server/core/shard.h"
#include "server/requests/reply_queue.h"

struct request_context {
    struct shard *shard;             /* borrowed */
    uv_loop_t *loop;                 /* borrowed */
    struct channel_loop *channels;   /* borrowed */
    struct reply_queue *replies;     /* borrowed */
    const struct group_view *groups; /* borrowed; NULL: this node is the primary */
    uint32_t shard_number;           /* of the cluster; for the log */
    uint32_t frame_max_bytes, lease_ms;
    bool compress_replies;
    bool
        is_alone; /* the cluster has no other shard: there is nobody to agree with on suspects */
    bool
        clock_moved; /* by a push, or a worker that came or went, perhaps: parked pulls are to be tried again */
    struct stats_requests *requests; /* owned, FRAME_TYPE_END: counters, by frame type */
    struct log_line_limit limit;     /* for request_context_log() */
};

/* The members that the caller knows are set, the others 0. */
void request_context_init(struct request_context *x);
void request_context_deinit(struct request_context *x);

/* The worker that speaks on the connection; its lease is renewed. PS_ENOJOIN, or what membership_find() returns. */
int request_context_find_worker(struct request_context *x, const struct connection *c,
                                uint64_t now_ms, struct worker **ret_worker)
    ON_SHARD MUST_CHECK;

/* The same, or NULL, for a request that has waited: the worker has sent nothing, so its lease stays as it is. NULL also
 * if it is suspected. */
struct worker *request_context_waiting_worker(struct request_context *x,
                                              const struct connection *c) ON_SHARD;

/* psd keeps the peer waiting: its worker, and the one whose JOIN waits, have a new lease. */
void request_context_hear_waiting(struct request_context *x, const struct connection *c,
                                  uint64_t now_ms) ON_SHARD;

/* Sends *out, the reply to *r that says `result`, once all that it may promise is safe; takes it. `sentence`: for the
 * log. write_status: what writing the reply returned. Not 0: the connection cannot go on. */
int request_context_reply(struct request_context *x, const struct request *r, int result,
                          const char *sentence, struct bytes *out, int write_status)
    ON_SHARD MUST_CHECK;

/* PS_EDENIED: the connection's role does not allow it to use `what` of that name. */
int request_context_deny(const struct connection *c, const char *what, const char *name,
                         struct err *err);

/* A line in the log about a request or a peer, unless there were too many like it. `what`: static. `sentence`: NULL or
 * "" for the status's own. */
void request_context_log(struct request_context *x, const struct connection *c,
                         const char *what, int status, const char *sentence) ON_SHARD;

#endif
