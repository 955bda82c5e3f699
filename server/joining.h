/*
 * A worker joins: admitted by the shard's roster, or not, and its connection speaks for it from then on.
 */
#ifndef SERVER_JOINING_H
#define SERVER_JOINING_H

#include "common/status.h"
#include "server/core/shard.h"
#include "server/request.h"

struct joining {
    struct shard *shard;   /* borrowed */
    uint32_t shard_number; /* of the cluster; for the log */
    uint32_t lease_ms;
};

/* 0 and what to answer; else roster_join()'s refusal, of PS_EFENCED with answer->fenced_below. */
int joining_ask(const struct joining *j, const struct request *r, const struct join *asked,
                struct join_reply *answer, struct err *err) ON_SHARD MUST_CHECK;

#endif
