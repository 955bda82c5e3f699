/*
 * A store that counts instead of learning: every value that is pulled is the number of pushes
 * applied so far, so the rows of step buffers tell what its pull has seen. It takes its time, differently
 * every time (seeded), declares its worker dead or refuses a push where the plan says so, and
 * holds its caller to the contract: one pull and one push at a time, neither twice, no more
 * batches in flight than the permits, PS_EFENCED until resume().
 */
#ifndef TESTS_UNIT_WORKER_FAKE_STORE_H
#define TESTS_UNIT_WORKER_FAKE_STORE_H

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "worker/client/push_encoder.h"
#include "worker/param_store.h"
#include "worker/stop_signal.h"

#define FAKE_NEVER UINT64_MAX
#define FAKE_STEPS_MAX 256u
#define FAKE_TABLES_MAX 64u

struct fake_plan {
    uint64_t seed;
    uint32_t n_permits;
    uint64_t delay_max_us;
    uint64_t fence_pull, fence_push; /* before the n-th of them, from 0; FAKE_NEVER */
    uint64_t fence_flush;            /* likewise; FAKE_NEVER */
    uint32_t
        hold_until_pulling; /* the first pulls wait until so many are under way; 0: none waits */
    uint64_t refuse_push, hold_pull; /* the latter waits for cancel() */
    uint64_t n_missed;         /* clocks that the others have gone on when it joins again */
    uint64_t link_ns_per_byte; /* of pushes, which a flush waits for */
    uint64_t n_between;        /* bytes of other requests that leave with every other push */
    uint64_t stop_after; /* so many pushes: SIGTERM, which fake.stop then knows of; 0: never */
    bool still; /* values do not tell the pushes: they are always the same, and like weights */
    bool encodes; /* pushes as a client does it; else bytes_of is of nothing */
};

/* Nothing goes wrong. */
struct fake_plan fake_plan_of(uint64_t seed, uint32_t n_permits);

struct fake {
    struct param_store store;
    struct push_encoder *encoder; /* owned; applied pushes go through it, to one shard */
    struct request_set set;       /* what it makes of one */
    struct push_encoder_residuals residuals; /* after it */
    struct fake_plan plan;
    const struct stop_signal *stop; /* borrowed; if plan.stop_after */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool pulling, pushing, fenced, cancelled;
    uint32_t n_pulling, most_pulling;      /* of fake_pulls */
    uint64_t n_pulls, n_pushes, n_flushes; /* asked for, also what came to nothing */
    uint64_t bytes_pushed, bytes_between, bytes_waiting;
    uint64_t n_applied, n_fences, n_aheads, n_ahead_keys;
    uint64_t n_missed; /* clocks that it never had: the next push is for n_applied + n_missed */
    uint64_t pull_clock, max_ahead;
    uint32_t dims[FAKE_TABLES_MAX], n_tables;
    const struct ps_pull_section *sections;
    uint32_t n_sections;
    uint64_t keys_of[FAKE_STEPS_MAX];  /* of each applied push: a hash of its rows' keys */
    uint64_t bytes_of[FAKE_STEPS_MAX]; /* likewise of all its bytes, if plan.encodes */
    pthread_t pull_thread;
    bool broken; /* the caller broke the contract; asserted at the end, on the test's thread */
    const char *how;
};

/* The clock of the next push. Under the lock. */
uint64_t fake_now(const struct fake *f);

uint64_t fake_hash(const uint64_t *keys, uint32_t n);

/* fake_pulls: several pulls at a time, too. */
extern const struct param_store_ops fake_overlaps, fake_pulls, fake_serial;

void fake_init(struct fake *f, const struct param_store_ops *ops, const struct fake_plan *plan);

void fake_deinit(struct fake *f);

/* Waits until the pull of this clock has been asked for; false after 2 minutes. */
bool fake_wait_pull(struct fake *f, uint64_t clock);

#endif
