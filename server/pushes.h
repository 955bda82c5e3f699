/*
 * Pushes: judged at once, or, when they are large, a slice at a time (shard.h) with their
 * connection held.
 *
 *     asked -> judged
 *           -> under way -> judged     one of a shard
 *           -> waits -> under way      the others that are large, in the order in which they came;
 *                                      all, while the log is full, also one that was
 *                                      under way and had not taken effect
 *           -> dropped                 its connection closed before it was under way: not judged
 */
#ifndef SERVER_PUSHES_H
#define SERVER_PUSHES_H

#include "server/acks.h"
#include "server/core/shard.h"
#include "server/request.h"

struct pushes;

struct pushes_config {
    struct shard *shard;              /* borrowed */
    struct acks *acks;                /* borrowed */
    struct report_requests *requests; /* borrowed: the counters of pushes */
    /* A push has been answered: what was said, and whether a clock may have moved. */
    void (*on_answered)(void *owner, struct connection *c, const struct push_reply *answer,
                        bool ticked);
    void *owner; /* borrowed */
};

struct pushes *pushes_new(const struct pushes_config *config);
void pushes_free(struct pushes *p);

/* Judges the push and replies, now or later. Not 0: the connection cannot go on. */
int pushes_ask(struct pushes *p, const struct request *r) ON_SHARD MUST_CHECK;

/* One slice of the one under way. now_ms: the shard's time. */
void pushes_more(struct pushes *p, uint64_t now_ms) ON_SHARD;
bool pushes_are_under_way(const struct pushes *p);

/* Who waits for its turn has been heard of: a held connection lets no beat through. */
void pushes_renew_leases(struct pushes *p, uint64_t now_ms) ON_SHARD;

/* The connection is gone. What it had under way is judged, as its bytes go. */
void pushes_drop(struct pushes *p, struct connection *c, uint64_t now_ms) ON_SHARD;

/* The daemon is stopping: the one under way is judged, the others are refused. */
void pushes_stop(struct pushes *p, uint64_t now_ms) ON_SHARD;

#endif
