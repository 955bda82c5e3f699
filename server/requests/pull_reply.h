/*
 * One pull and its reply. The reply is made in the buffer that goes to the socket, at once or a slice at a time
 * (shard.h).
 *
 *     pull_reply_begin -> pull_reply_more ... -> sent, or refused
 *
 * A long reply is sent in chunks, if its client understands that: each slice as soon as it is made, while it is in the
 * cache, in one frame whose sum stands at its end. Once a chunk was sent the reply cannot become a refusal, so the
 * keys are checked before. Meanwhile nothing else is sent on its connection, and no slice is made while much of the
 * earlier ones is unwritten.
 *
 *     pull_reply_begin -> pull_reply_more ... : keys -> pull_reply_more, [PULL_REPLY_WAITS] ... : chunks -> sent
 */
#ifndef SERVER_REQUESTS_PULL_REPLY_H
#define SERVER_REQUESTS_PULL_REPLY_H

#include "server/requests/request_context.h"

/* The values that all pulls of a shard share. */
struct pull_context {
    struct request_context *request; /* borrowed */
    struct err last_refusal;
    struct delta_memory deltas; /* of the rows that clients have */
    struct pending_pull *pool;  /* owned: answered, for the next ones */
    uint32_t n_pooled;
};

enum pull_reply_state {
    PULL_REPLY_WHOLE,   /* it is sent when all of it is made */
    PULL_REPLY_KEYS,    /* it will be sent in chunks: its keys are being read */
    PULL_REPLY_SENDING, /* the next chunk can be made */
    PULL_REPLY_WAITS    /* for its client to read those before: pull_reply_can_go_on() */
};

struct pending_pull {
    struct pending_pull *next;
    enum pull_reply_state state;
    struct connection *connection; /* borrowed; pull_handler_drop() comes before it goes */
    uint64_t request_id, start_ns;
    uint64_t since_ms, until_ms; /* parked, by the loop's clock */
    uint64_t counted_ms;         /* up to then its job has this wait in its parked_ms */
    uint64_t job_run;            /* of the worker's job, when the reply was begun */
    struct worker *worker;       /* borrowed from the membership; NULL: a reader */
    bool runs;                   /* in slices, and counts with what its connection holds */
    bool holds;                  /* its connection, from its beginning until it is answered */
    bool kept;                   /* its keys: pulled_keys.h */
    struct bytes body;           /* owned: the keys, if the request's body is not held */
    struct bytes out;            /* owned: the reply being made, or its next chunk */
    struct bytes known;          /* owned: u64, its keys, if it is sent in chunks */
    size_t chunk_bytes;          /* of values in a chunk, at most */
    struct frame_crc crc;        /* of the reply, as far as it is made */
    struct pull pull;
    struct shard_pull_op reading;
};

/* A new one, or a pooled one. NULL if there is no memory. */
struct pending_pull *pull_reply_acquire(struct pull_context *x) MUST_CHECK;

/* Pools it with its memory, if that is not much, or frees it. */
void pull_reply_recycle(struct pull_context *x, struct pending_pull *a);

/* Also while its reply is made. */
void pull_reply_free(struct pending_pull *a);

/* Frees the pooled ones. */
void pull_reply_deinit_context(struct pull_context *x);

/* Begins to read the rows of a->pull. Not 0: why it is refused; nothing is to be undone. */
int pull_reply_begin(struct pull_context *x, struct pending_pull *a, struct err *err)
    ON_SHARD MUST_CHECK;

/* One slice more, and at the end the reply. *ret_done: it has been answered, or refused. Not 0:
 * the connection cannot go on. Not for one that PULL_REPLY_WAITS. */
int pull_reply_more(struct pull_context *x, struct pending_pull *a, bool *ret_done)
    ON_SHARD MUST_CHECK;

/* Some of the chunks before have been written: true if that is enough. */
bool pull_reply_can_go_on(struct pending_pull *a);

/* True if a chunk was sent: it can neither be refused nor dropped without its connection. */
bool pull_reply_is_partly_sent(const struct pending_pull *a);

/* Sends a refusal instead; releases the connection. Not 0: as above. */
int pull_reply_refuse(struct pull_context *x, struct pending_pull *a, int refusal,
                      const char *sentence) ON_SHARD MUST_CHECK;

#endif
