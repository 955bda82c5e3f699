/*
 * What a shard does with a request: one table from frame type to handler, each of which reads
 * the message, calls the core and replies. Below it nobody knows frames, above it nobody knows
 * tables.
 *
 * The shard's time is the loop's, but stands still while the loop does (a checkpoint, a stopped
 * process): a lease runs only while the shard listens, so that nobody is declared dead for
 * having spoken to a deaf shard.
 */
#ifndef SERVER_SERVICE_H
#define SERVER_SERVICE_H

#include "common/log.h"
#include "server/acks.h"
#include "server/pulls.h"

struct service;

struct service_config {
    struct shard *shard;   /* borrowed */
    uv_loop_t *loop;       /* borrowed */
    struct acks *acks;     /* borrowed */
    uint32_t shard_number; /* of the cluster; for the log */
    uint32_t frame_max_bytes, lease_ms;
    uint64_t park_max_ms;
    uint64_t wait_max_ms; /* of joins and tables, for room in the push log; 0: waiting.h's */
    bool compress_replies;
};

struct service_counts {
    uint64_t refused; /* answered with a status */
    struct pulls_counts pulls;
};

struct service *service_new(const struct service_config *config);
void service_free(struct service *s) ON_SHARD;

/* A switchboard's events; the owner is the service. */
extern const struct connection_events service_events;

/* A few times a second: leases, deadlines. */
void service_tick(struct service *s) ON_SHARD;

/* The log was full, and pushes, joins and tables wait. */
void service_go_on(struct service *s) ON_SHARD;

/* From here on every request is refused with PS_ESTOPPING, and so are the parked pulls and what
 * is under way, but for a push, which is judged. To be called before the loop ends: *s is freed
 * after it. */
void service_stop(struct service *s) ON_SHARD;

/* The shard's time. */
uint64_t service_now_ms(struct service *s) ON_SHARD;

struct pulls *service_pulls(struct service *s) ON_SHARD;

/* FRAME_TYPE_END of them, by type. */
const struct report_requests *service_requests(const struct service *s) ON_SHARD;

void service_count(const struct service *s, struct service_counts *ret) ON_SHARD;

#endif
