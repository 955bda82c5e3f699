/*
 * Who makes room in one table of a replica: the rows that were not wanted for longest, roughly.
 *
 * A row's version is the turn in which it was last wanted or pushed to (replica_rows.c). A sample of the
 * rows says where the oldest eighth ends; a hand walks the row numbers and takes what is not
 * younger, until it has gone round. So a new row costs a few looks at others, and nothing is kept
 * for each row.
 */
#ifndef WORKER_MIRROR_ROOM_H
#define WORKER_MIRROR_ROOM_H

#include "server/core/table.h"

struct room {
    uint64_t hand,
        hand_left;      /* row numbers: the next one, and how many until it has gone round */
    uint64_t threshold; /* versions up to here go */
    uint64_t n_samples; /* taken so far: the seed of the next */
    uint64_t barren;    /* nobody may go before `keep` is beyond this */
};

/* A row whose version is below `keep`, or NULL when there seems to be none. */
struct row *room_victim(struct room *room, const struct table *t, uint64_t keep);

#endif
