/*
 * What a roster is made of, for the files behind roster.h: roster_clocks.c (life, clocks, leases),
 * roster_join.c (joins), roster_bytes.c (as bytes).
 */
#ifndef SERVER_CORE_ROSTER_STATE_H
#define SERVER_CORE_ROSTER_STATE_H

#include <string.h>

#include "server/core/roster.h"
#include "server/core/shard_journal.h"

/* Each array is at least twice the one before, so 1024 workers need no more. */
#define ROSTER_N_RETIRED_MAX 12u

struct roster_entry {
    struct roster *roster; /* borrowed: whose it is */
    struct job job;
    uint32_t workers_cap; /* of job.workers; fences of ranks beyond n_workers stay */
    struct worker
        *retired[ROSTER_N_RETIRED_MAX]; /* owned: became too small; pointers stay good */
    uint32_t n_retired;
};

struct roster {
    uint32_t lease_ms, join_ms;
    struct roster_entry *entries[ROSTER_N_JOBS_MAX]; /* owned */
    uint32_t n_jobs;
    uint64_t n_runs, n_gone, n_joins;
    const struct shard_journal *journal; /* borrowed; NULL: none */
    const uint64_t *version;             /* the shard's, borrowed; with a journal */
};

/* NULL: there is no such job. */
static inline struct roster_entry *roster_state_find(const struct roster *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_jobs; i++)
        if (strcmp(r->entries[i]->job.name, name) == 0)
            return r->entries[i];
    return NULL;
}

/* May nothing more come from this incarnation of a worker that had joined? */
static inline bool roster_state_is_fenced(const struct worker *w, uint64_t incarnation)
{
    bool gone = w->state == WORKER_LEFT || w->state == WORKER_DEAD;

    return incarnation < w->fenced_below || (gone && incarnation == w->incarnation);
}

#endif
