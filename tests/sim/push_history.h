/*
 * Every push that a worker ever made, with its bytes: they stay where they are for as long as the
 * schedule lasts.
 */
#ifndef TESTS_SIM_PUSH_HISTORY_H
#define TESTS_SIM_PUSH_HISTORY_H

#include "proto/section.h"
#include "tests/sim/plan.h"

struct sent_section {
    uint32_t n_keys;
    uint8_t keys[PLAN_N_KEYS_MAX]; /* by their numbers */
    size_t key_bytes;
    uint8_t *encoded; /* owned: key_codec.h */
    float *values;    /* owned: n_keys x dim, or with state x width */
};

struct sent_push {
    struct sent_push *next;
    uint32_t rank, shard;
    uint64_t incarnation, seq, clock;
    enum section_op op; /* of all sections */
    bool tick;
    bool is_acked;         /* its worker has the acknowledgement */
    bool is_reported_lost; /* the shard has told it that this one is lost */
    struct sent_section sections[PLAN_N_TABLES_MAX];
};

struct push_history {
    struct sent_push *first; /* owned: newest first */
    uint64_t n;
};

void push_history_deinit(struct push_history *l);

/* What a rank pushes to a shard for a clock: one push, or, the last of n_parts with the tick, several, each with a part of
 * the keys; or one that assigns. `like`: rank, shard, incarnation, seq, clock, op. */
struct sent_push *push_history_make(struct push_history *l, const struct plan *p,
                                    const struct sent_push *like, uint32_t part,
                                    uint32_t n_parts);

/* NULL: nobody made it. */
struct sent_push *push_history_find(const struct push_history *l, uint32_t shard, uint32_t rank,
                                    uint64_t incarnation, uint64_t seq);

/* As a message brings it. Borrows. */
void push_history_fill(const struct sent_push *sent, const struct plan *p, struct push *ret);

#endif
