/* Copies what a shard knows about itself into a report (admin/report.h) that others may read at
 * leisure. */
#ifndef SERVER_REPORTER_H
#define SERVER_REPORTER_H

#include "server/net/switchboard.h"
#include "server/service.h"
#include "server/shard_log.h"

struct reporter_sources {
    struct shard *shard;
    struct service *service;
    struct shard_log *log; /* NULL: nothing is logged */
    const struct acks *acks;
    const struct switchboard *switchboard;
    uv_loop_t *loop;
    uint32_t shard_number, lease_ms;
    uint64_t memory_max_bytes;
};

/* The report is the caller's: shard_report_free(). */
struct shard_report *reporter_make(const struct reporter_sources *from) ON_SHARD;

#endif
