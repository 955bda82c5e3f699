/* Copies what a shard knows about itself into a report (admin/report.h) that others may read at
 * leisure. */
#ifndef SERVER_REPORTER_H
#define SERVER_REPORTER_H

#include "server/net/switchboard.h"
#include "server/service.h"

struct reporter_sources {
    struct shard *shard;
    struct service *service;
    const struct switchboard *switchboard;
    uv_loop_t *loop;
    uint32_t shard_number, lease_ms;
    uint64_t memory_max_bytes;
};

/* The report is the caller's: shard_report_free(). */
struct shard_report *reporter_make(const struct reporter_sources *from) ON_SHARD;

/* Now, on the wall's clock and on the monotonic one. */
uint64_t reporter_unix_ms(void);
uint64_t reporter_mono_ms(void);

#endif
