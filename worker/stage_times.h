/*
 * The busy time of each stage of a step, which shows a run's bottleneck.
 *
 *     stage     thread            busy while it
 *     read      the loader's        reads, parses, hashes, drops duplicates
 *     fetch     fetch (*)         encodes keys, decodes rows
 *     servers   none              waits for servers: for a pull's answer, or for space for a push
 *     compute   the trainer's     goes forward and backward
 *     deliver   deliver (*)       encodes gradients
 *     network   the library's     frames, sends, receives (CPU time; of several threads the mean)
 *
 * (*) the trainer's thread if steps follow one another: pipeline.h. Waiting for another stage is not busy; waiting for
 * servers is a stage of its own, in which this process does not work.
 */
#ifndef WORKER_STAGE_TIMES_H
#define WORKER_STAGE_TIMES_H

#include "common/base.h"

enum stage {
    STAGE_READ,
    STAGE_FETCH,
    STAGE_SERVERS,
    STAGE_COMPUTE,
    STAGE_DELIVER,
    STAGE_NETWORK,
    STAGE_TIMES_N
};

/* Time since some start, or between two moments. */
struct stage_times {
    uint64_t ns[STAGE_TIMES_N];
};

/* "read" ... */
const char *stage_times_name(enum stage stage);

/* now - before; negative differences become 0. */
struct stage_times stage_times_since(const struct stage_times *now,
                                     const struct stage_times *before);

/* The stage with the most. */
enum stage stage_times_bottleneck(const struct stage_times *s);

/* Share of wall_ns, 0 to 1. */
double stage_times_share(const struct stage_times *s, enum stage stage, uint64_t wall_ns);

#define STAGE_TIMES_SENTENCE_BYTES 192u

/* "compute is the bottleneck: busy 93 %; read 12 %, fetch 3 % ..." */
void stage_times_sentence(const struct stage_times *s, uint64_t wall_ns, char *dst,
                          size_t n_bytes);

#endif
