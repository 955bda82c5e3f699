/*
 * One push or one pull for one shard: its keys and values are encoded, its frame is not. A link
 * keeps it until the shard has answered, and frames it anew on each connection.
 *
 *     encoder fills -> network thread -> shard_link sends, and resends -> answered: to `home`
 *
 * The memory of an answered request is used again by the thread that made it.
 */
#ifndef WORKER_CLIENT_REQUEST_H
#define WORKER_CLIENT_REQUEST_H

#include "common/bytes.h"
#include "common/free_list.h"
#include "common/mailbox.h"
#include "proto/channel_loop.h"
#include "proto/message.h"

struct ps_pull;

struct request {
    struct shared_free_link pooled; /* while it is in `home` */
    struct shared_free_list
        *home;            /* borrowed: where request_free() puts it; NULL: it is freed */
    struct mail mail;     /* of a call's first request: posts them all to the network thread */
    struct request *next; /* of that call, then in a request_queue or pull_queue */
    uint64_t epoch;       /* of the client_state: a request of an older one is dropped */
    struct ps_pull *pull; /* pull: where its answer goes, while its id is pull_id (pull.h) */
    uint64_t pull_id;     /* pull */
    bool is_dropped;      /* pull: sent, and nobody waits for its answer any more */
    uint64_t request_id;  /* of the last time it was sent; 0: never */
    uint64_t seq;         /* push: its number; 0 until request_queue_add() */
    uint64_t clock;
    uint32_t n_samples;   /* push */
    bool tick;            /* push: it ends the step */
    uint64_t unfinished;  /* pull: steps before its clock that are not finished */
    uint64_t n_versions;  /* push: by how much it raises the shard's version */
    uint64_t after_seq;   /* pull: number of the last push that was sent before it */
    uint64_t asked_ms;    /* pull: time of the first attempt */
    uint64_t keep_number; /* pull: named_pulls.h; 0: pushes will not name it */
    uint32_t deadline_ms; /* pull: after asked_ms */
    struct bytes bytes;   /* owned: keys and values; the sections point into it */
    size_t
        most_bytes; /* most that `bytes` has held: pages of its capacity beyond are untouched */
    uint32_t n_sections, cap_sections;
    struct section sections[]; /* table_id: the client's number of the table */
};

/* Empty, with space for n_sections. NULL without memory. */
struct request *request_new(uint32_t n_sections) MUST_CHECK;

/* Into its home, or freed. Any thread. NULL is fine. */
void request_free(struct request *r);

/* The request as a shard reads it. table_ids[i]: the shard's number of the client's table i. The
 * sections borrow the request's bytes; ret's other fields are filled (seq as in the request). */
void request_push(const struct request *r, const uint32_t *table_ids, struct push *ret);
void request_pull(const struct request *r, const uint32_t *table_ids, uint32_t deadline_ms,
                  struct pull *ret);

/* A push's frame, with all of its keys, has at most so many bytes. */
size_t request_push_bytes_max(const struct request *r);

/* Appends its frame, with its request_id, to *ret: a buffer that comes from the loop's pool, also if it fails. The push
 * is `r` as request_push() has filled it, but may lack keys. zstd: NULL: it is not compressed. now_ms: of the link, for
 * what is left of the deadline. */
int request_frame_push(const struct request *r, const struct push *push,
                       struct channel_loop *channels, struct message_zstd *zstd,
                       struct bytes *ret) MUST_CHECK;
int request_frame_pull(const struct request *r, const uint32_t *table_ids, uint64_t now_ms,
                       struct channel_loop *channels, struct message_zstd *zstd,
                       struct bytes *ret) MUST_CHECK;

/* ---- a set: one request for each shard, filled by one ps_push() or ps_pull_start() ----
 *
 * The set has as many requests as were ever under way at one time. Each keeps the capacity of the largest request that
 * it has held. So a step like the one before it allocates nothing. */

/* Zeroed: of no shard. */
struct request_set {
    struct request **requests; /* owned, n_shards: NULLs between calls; NULL before the first */
    uint32_t n_shards;
    struct shared_free_list free_list; /* answered requests: their home */
};

/* max_bytes: of idle requests, beyond those of two calls. */
void request_set_init(struct request_set *s, uint32_t n_shards, size_t max_bytes);

/* All requests have come home. */
void request_set_deinit(struct request_set *s);

/* Fills s->requests with empty requests that have space for n_sections. -ENOMEM: with none. */
int request_set_acquire(struct request_set *s, uint32_t n_sections) MUST_CHECK;

/* Frees the requests: none of them was handed on. */
void request_set_release(struct request_set *s);

/* The requests have another owner now. */
void request_set_reset(struct request_set *s);

/* ---- a queue: pushes that a shard has not acknowledged, in the order of their numbers ----
 *
 *     last_acked | last_acked + 1 ... last_seq |      first = last_acked + 1 unless empty */

struct request_queue {
    struct request *first, *last; /* owned */
    uint64_t last_acked, last_seq;
};

/* Takes ownership of the push, and numbers it unless it has that number already. */
void request_queue_add(struct request_queue *q, struct request *push);

/* Removes the first push, which is the caller's then, and counts it as acknowledged. NULL: the
 * queue is empty. */
struct request *request_queue_ack(struct request_queue *q);

/* Frees all pushes; the next push is number 1. */
void request_queue_clear(struct request_queue *q);

#endif
