/*
 * A scan's place on each shard, and the rows of its last call. It travels as a section of a pull (proto/section.h): the
 * encoder asks and takes here; ps.h has the interface for users, ps_tables.c makes it of this.
 *
 *     cursor ---- ps_pull_start(): scan_ask() ----> answers: scan_take() ----> all decoded: scan_commit()
 *        ^                                             one failed: the cursors stay, the rows are dropped
 *        +------------- asked again ---------------------------+
 */
#ifndef WORKER_CLIENT_SCAN_H
#define WORKER_CLIENT_SCAN_H

#include "common/bytes.h"
#include "worker/client/ps_types.h"

struct ps_client;
struct ps_pull;

/* Where the scan is on one shard. */
struct scan_place {
    uint64_t cursor, next; /* next: behind the slice that has come last */
    uint64_t version;      /* of the first answer; 0: there was none */
    bool is_over, will_be_over;
};

struct ps_scan {
    struct ps_client *client; /* borrowed */
    uint32_t table, n_shards, slice_bytes;
    uint32_t dim, n_state; /* floats of a row */
    bool has_state, is_stale;
    struct scan_place *places; /* owned, n_shards */
    size_t n;                  /* rows of the last call */
    struct bytes keys, weights, state;
    uint64_t steps; /* with state: the table's, the largest of a shard so far */

    /* The pull under way, or NULL; and what it borrows: the scan, and with state a section of no keys, whose answer has
     * the table's step count. */
    struct ps_pull *pull;
    struct ps_pull_section sections[2];
    struct ps_state_sink steps_sink;
};

/* Frees what it owns. */
void scan_deinit(struct ps_scan *scan);

/* True until every shard's slices have been committed. */
bool scan_goes_on(const struct ps_scan *scan);

/* Fills the section for the shard; it asks for nothing where the scan is over. */
void scan_ask(const struct ps_scan *scan, uint32_t shard, struct section *ret);

/* The shard's answer to that. PS_ECOUNT, -ENOMEM, -ESTALE. */
int scan_take(struct ps_scan *scan, uint32_t shard, const uint8_t *values, size_t value_bytes)
    MUST_CHECK;

/* A struct ps_state_sink's take(), of a scan: the step count. PS_ECOUNT. */
int scan_take_steps(void *arg, const struct ps_pull_section *s, uint32_t shard,
                    const uint32_t *numbers, uint32_t n, const uint8_t *values,
                    size_t value_bytes) MUST_CHECK;

/* Before the next call, or after one that failed. */
void scan_drop_rows(struct ps_scan *scan);

/* All shards' slices are there: the next call goes on behind them. */
void scan_commit(struct ps_scan *scan);

#endif
