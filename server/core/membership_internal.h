/* What membership.c and membership_bytes.c share. */
#ifndef SERVER_CORE_MEMBERSHIP_INTERNAL_H
#define SERVER_CORE_MEMBERSHIP_INTERNAL_H

#include "server/core/job.h"

#define RETIRED_MAX 12u /* each is at least twice the one before: enough for 1024 workers */

struct membership_entry {
    struct membership *membership; /* borrowed: whose it is */
    struct job job;
    uint32_t workers_cap; /* of job.workers; fences of ranks beyond n_workers stay */
    struct worker *retired[RETIRED_MAX]; /* owned: became too small; pointers stay good */
    uint32_t n_retired;
};

struct membership {
    uint32_t lease_ms, join_ms;
    struct membership_entry *entries[MEMBERSHIP_N_JOBS_MAX]; /* owned */
    uint32_t n_jobs;
    uint64_t n_runs, n_gone, n_joins;
    bool has_suspects, is_alone, drops_learning;
    const struct shard_events *events; /* borrowed; NULL: none */
    const uint64_t *version;           /* the shard's, borrowed; with a log */
};

#endif
