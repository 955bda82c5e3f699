/*
 * What all parts of one schedule share: its plan, time, network, every push, what each shard's log was told,
 * and how a broken promise is told.
 */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include "tests/sim/events.h"
#include "tests/sim/model.h"
#include "tests/sim/net.h"

/* What is known of a shard, whatever process runs it. */
struct shard_book {
    struct history history;
    struct model model;
    uint64_t promised;    /* the greatest record that a reply which was sent relied on */
    uint64_t safe;        /* ... that is on the disk, as the log says; ... */
    uint64_t written;     /* ... or in its files */
    uint64_t saved;       /* all up to here is in a checkpoint that is whole */
    uint64_t due;         /* async: ... that have to be on the disk by now */
    uint64_t troubled_us; /* when its log last failed */
    uint64_t n_seen;      /* records after which the living shard was held to the twin */
    uint64_t
        lost; /* the first record of a gap that no checkpoint has mended; 0: there is none */
};

struct world {
    struct plan plan;
    struct events events;
    struct net net;
    struct ledger ledger;
    struct dice dice;
    struct shard_book books[PLAN_N_SHARDS_MAX];
    bool is_calm;  /* nothing goes wrong any more */
    bool is_told;  /* every step is shown */
    char what[80]; /* the kind of schedule, for who reads of a failure */
};

/* The schedule has broken a promise: says so and how to see it again; the program ends. */
_Noreturn void world_fail(const struct world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);

void world_tell(const struct world *w, const char *fmt, ...) PRINTF_LIKE(2, 3);

static inline uint64_t world_ms(const struct world *w)
{
    return 1000 + w->events.now_us / 1000;
}

#endif
