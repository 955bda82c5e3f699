/*
 * What the tests of the client share: a table, rows and pushes whose sums are known, a client open on a fake.
 */
#ifndef TESTS_UNIT_CLIENT_FIXTURE_H
#define TESTS_UNIT_CLIENT_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/placement.h"
#include "tests/unit/client/fake_shard.h"
#include "worker/client/ps.h"

#define N_STEPS 4u
#define N_KEYS 12u

struct table_spec make_spec(const char *name);
struct ps_options make_options(const char *servers);

/* A group's set-up: its clients' threads do the network's work while they wait (ps_options.drives). */
int all_drive(void **state);
/* The same: their connections are of I/O threads (ps_options.net_threads). Before a group that drives. */
int all_have_io_threads(void **state);

static const uint64_t keys[N_KEYS] = { 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, UINT64_MAX };

void values_of_step(uint32_t step, float *values);
int push_step(struct ps_client *c, uint32_t table, uint64_t clock, struct err *err);
int pull_rows(struct ps_client *c, uint32_t table, uint64_t clock, float *dst, struct err *err);

/* A little job: every step reads, checks what it reads, and pushes. */
int run_job(const char *servers, struct ps_stats *stats, struct err *err);

/* Each push applied once on each shard, each row where it belongs, and the sums right. */
void check_applied_once(struct fake *f);

/* A client with one table, open on a fake. */
struct rig {
    struct fake *f;
    struct ps_client *c;
    uint32_t table;
    char address[32];
};

void set_up(struct rig *rig, const struct fake_plan *plan, const struct ps_options *more);
int push_and_flush(struct rig *rig, uint64_t clock, struct err *err);

/* Client and node have ended: its shards may be looked at. */
void halt(struct rig *rig);

void tear_down(struct rig *rig);

/* A node of this plan, and a client that does not get in. */
void assert_not_let_in(const struct fake_plan *plan, int status, const char *words);

#endif
