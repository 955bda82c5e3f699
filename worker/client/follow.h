/*
 * Does somebody else push to a shard? Its version counts the pushes that it has applied
 * (server/core), so after one of ours it has grown by what ours was worth, and not by more; after
 * a restart that lost pushes it has grown by less.
 */
#ifndef WORKER_CLIENT_FOLLOW_H
#define WORKER_CLIENT_FOLLOW_H

#include <stdbool.h>

#include "common/base.h"

struct follow {
    uint64_t version; /* after our last push, or at our first pull */
    bool known;
};

/* A pull's answer. */
static inline void follow_pulled(struct follow *f, uint64_t version)
{
    if (!f->known)
        *f = (struct follow){ version, true };
}

/* A push's answer; version 0: it was lost. True: not what one of ours alone would have left. */
static inline bool follow_pushed(struct follow *f, uint64_t n_versions, uint64_t version)
{
    uint64_t expected = f->version + n_versions;
    bool is_foreign = f->known && version && version != expected;

    f->version = version ? version : expected;
    f->known = f->known || version;
    return is_foreign;
}

#endif
