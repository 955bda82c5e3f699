/*
 * An operator's query of one row. It goes to a shard, which computes the key's owner, from there to the owner if that
 * is on this node, and returns as JSON.
 *
 *     {"key": TEXT, "table": ..., "node": N, "shard": N, "found": BOOL,
 *      "version": N, "touches": N, "weights": [...], "state": [...], "optimizer": ...,
 *      "pushed_by": {"job": ..., "clock": N, "combined": BOOL, "rank": N, "incarnation": TEXT, "seq": N} | absent}
 *
 * or, for a row of another node, {"key", "table", "node", "shard", "ask": "HOST:PORT"}. Numbers that may be 2^53 or
 * more and are not counts are TEXT.
 */
#ifndef SERVER_ROW_LOOKUP_H
#define SERVER_ROW_LOOKUP_H

#include "server/shard_call.h"

struct row_lookup;

/* err->status 0: json is the answer, borrowed for the call. */
typedef void (*row_lookup_done)(void *arg, const struct err *err, const char *json);

/* argument: "KEY TABLE", KEY being decimal. `done` is called once, later. PS_ESETTING and a sentence; PS_ESTOPPING. */
int row_lookup_start(const struct shard_call_config *config, const char *argument,
                     row_lookup_done done, void *arg, struct row_lookup **ret, struct err *err)
    ON_MAIN MUST_CHECK;

/* `done` is not called any more. */
void row_lookup_cancel(struct row_lookup *q) ON_MAIN;

#endif
