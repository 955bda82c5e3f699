/*
 * How busy each stage of the step was: what a run says about its bottleneck.
 *
 *     stage     thread            busy while it
 *     read      the feed's        reads, parses, hashes, drops duplicates
 *     fetch     fetch (*)         encodes keys, decodes rows
 *     servers   none              waits for servers: for a pull's answer, or for room for a push
 *     compute   the trainer's     goes forward and backward
 *     deliver   deliver (*)       encodes gradients
 *     network   the library's     frames, sends, receives (CPU time)
 *
 * (*) the trainer's where steps follow one another: pipeline.h. Waiting for a neighbour is not
 * busy; waiting for servers is told apart, as a stage that nobody here works in.
 */
#ifndef WORKER_STAGES_H
#define WORKER_STAGES_H

#include "common/base.h"

enum stage {
    STAGE_READ,
    STAGE_FETCH,
    STAGE_SERVERS,
    STAGE_COMPUTE,
    STAGE_DELIVER,
    STAGE_NETWORK,
    STAGES_N
};

/* Time since some start, or between two moments. */
struct stages {
    uint64_t ns[STAGES_N];
};

/* "read" ... */
const char *stages_name(enum stage stage);

/* now - before; what would be less than nothing is 0. */
struct stages stages_since(const struct stages *now, const struct stages *before);

/* The stage with the most. */
enum stage stages_bottleneck(const struct stages *s);

/* Share of wall_ns, 0 to 1. */
double stages_share(const struct stages *s, enum stage stage, uint64_t wall_ns);

#define STAGES_SENTENCE_BYTES 192u

/* "compute is the bottleneck: busy 93 %; read 12 %, fetch 3 % ..." */
void stages_sentence(const struct stages *s, uint64_t wall_ns, char *dst, size_t n_bytes);

#endif
