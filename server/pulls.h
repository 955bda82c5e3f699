/*
 * Pulls: answered, or kept aside until the slower workers have caught up.
 *
 *     asked -> answered                      min clock is far enough
 *           -> parked -> answered            retried when a clock may have moved
 *                     -> PS_EDEADLINE        with a sentence that says for whom it waited
 *                     -> PS_EFENCED          its worker is no longer the one that counts
 *                     -> dropped             its connection closed
 *           -> refused                       a status and a sentence
 *
 * A parked pull holds nothing up: what its connection sends behind it is worked on at once. One
 * that has become ready stays parked while its connection is CONGESTED (channel.h): so a client
 * that reads slowly makes one answer wait for it in memory, and not all of its pulls'.
 *
 * An answer of more than a slice (shard.h) is made a slice at a time, in turn with the others of
 * its kind and with what else the loop has to do: pulls_more(). One that leaves in parts (answer.h) steps
 * aside while its client has much to read: pulls_written(). Meanwhile its connection is held,
 * or, if it was parked, no other parked pull of its connection is answered.
 */
#ifndef SERVER_PULLS_H
#define SERVER_PULLS_H

#include "server/answer.h"

#define PULLS_PARKED_MAX 16u                       /* of one connection */
#define PULLS_PARKED_BYTES_MAX ((size_t)256 << 20) /* of a shard: all connections together */

struct pulls;

struct pulls_config {
    struct shard *shard; /* borrowed */
    uint32_t frame_max_bytes;
    uint64_t park_max_ms;
    size_t parked_bytes_max; /* 0: PULLS_PARKED_BYTES_MAX */
    enum { PULLS_PLAIN, PULLS_COMPRESSED } replies;
    struct report_requests *requests; /* borrowed: the counters of pulls */
};

struct pulls_counts {
    uint64_t parked, parked_total, expired;
};

struct pulls *pulls_new(const struct pulls_config *config);
void pulls_free(struct pulls *p);

/* One pull of `worker` (NULL: a reader). Replies, now or later; whatever is told is counted.
 * Not 0: the connection cannot go on. */
int pulls_ask(struct pulls *p, const struct request *r, struct worker *worker)
    ON_SHARD MUST_CHECK;

/* Says no to a pull that was not even asked. */
int pulls_refuse(struct pulls *p, const struct request *r, int status, const char *sentence)
    ON_SHARD MUST_CHECK;

/* One slice of one of those that take more; the next call goes on with another. */
void pulls_more(struct pulls *p) ON_SHARD;
bool pulls_are_under_way(const struct pulls *p);

/* The connection has written some of what an answer waits for (answer.h): it may go on. */
void pulls_written(struct pulls *p, struct connection *c);

/* Who waits for an answer under way has been heard of: a held connection lets no beat through. But not who has been given
 * some of it and reads none. */
void pulls_renew_leases(struct pulls *p, uint64_t now_ms) ON_SHARD;

/* A clock may have moved: answers what has become ready. */
void pulls_retry(struct pulls *p) ON_SHARD;

/* A few times a second: answers what a congested connection now has room for, tells those whose
 * time is up. `loop_ms`: the clock of the connections' loop. */
void pulls_expire(struct pulls *p, uint64_t loop_ms) ON_SHARD;

/* The connection is gone. */
void pulls_drop(struct pulls *p, struct connection *c) ON_SHARD;

/* The daemon is stopping. */
void pulls_refuse_all(struct pulls *p, int status, const char *sentence) ON_SHARD;

void pulls_count(const struct pulls *p, struct pulls_counts *ret) ON_SHARD;

/* What the newest refusal said. */
const struct err *pulls_last_refusal(const struct pulls *p);

/* The parked ones as the outside sees them, at most n_max; returns how many. */
uint32_t pulls_report(struct pulls *p, uint64_t loop_ms, uint64_t unix_ms,
                      struct report_wait *ret_waits, uint32_t n_max) ON_SHARD;

#endif
