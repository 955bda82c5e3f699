/* A push that waits for its lock-step clock: an owned copy of its sections for such tables, checked when it came. */
#ifndef SERVER_CORE_HELD_PUSH_H
#define SERVER_CORE_HELD_PUSH_H

#include "server/core/shard_internal.h"

struct bsp_held {
    struct bsp_held *next; /* owned */
    uint32_t n_users;      /* the queue; a scan that has still to read it (snapshot_scan.h) */
    uint32_t rank;
    uint64_t incarnation, seq, clock;
    uint32_t n_samples;
    bool finished;    /* its worker has ticked past its clock */
    bool counts;      /* scratch, while its clock is combined: it is part of it */
    size_t n_bytes;   /* that it takes, bytes of the sections included */
    size_t cap_bytes; /* of this allocation, which may have held another one before */
    uint32_t n_sections;
    struct section sections[]; /* their bytes stand behind them */
};

#endif
