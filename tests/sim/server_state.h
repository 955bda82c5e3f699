/* What a simulated shard's process is made of, for the files that play it (server.h). */
#ifndef TESTS_SIM_SERVER_STATE_H
#define TESTS_SIM_SERVER_STATE_H

#include "server/core/shard.h"
#include "tests/sim/logger.h"

struct server_line;
struct server_waiting;

struct server {
    struct world *world; /* borrowed, as all here */
    struct shard_book *book;
    struct logger log;
    uint32_t shard;     /* of the cluster */
    uint64_t life;      /* 0: no process is there */
    struct shard *core; /* owned */

    struct server_waiting *parked; /* owned: pulls that wait for clocks, oldest first */
    struct server_line *line;      /* owned: the push in slices, and those behind it */
    struct server_waiting
        *held; /* owned: what a connection sends while its push is in the line */
    struct server_line *asking; /* owned: the push being judged; NULL: to be made */
    struct pull *pull;          /* owned: the one being judged */
};

#endif
