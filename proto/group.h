/*
 * Replica groups, as nodes and clients tell each other of them: the two psd processes that hold the same shards. One is
 * the primary, which serves them; the other one is its standby.
 */
#ifndef PROTO_GROUP_H
#define PROTO_GROUP_H

#include <stdbool.h>

#include "common/base.h"

#define MESSAGE_NODES_MAX 64u
#define MESSAGE_ADDRESS_MAX 128u /* "host:port" with NUL */

struct group {
    uint64_t term; /* of the primary: who has a greater one is right. 0: not known */
    bool in_sync;  /* the standby has all that the primary acknowledges */
    char primary[MESSAGE_ADDRESS_MAX];
    char standby[MESSAGE_ADDRESS_MAX]; /* "": none */
};

/* One for each node of the cluster, in their order; n 0: nodes have no standbys. */
struct groups {
    uint64_t number; /* grows when one of them changes: of this process alone */
    uint32_t n;
    struct group items[MESSAGE_NODES_MAX];
};

#endif
