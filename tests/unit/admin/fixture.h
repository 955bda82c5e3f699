/* A node with two shards (and a third that has not reported yet), as its report. */
#ifndef TESTS_UNIT_ADMIN_FIXTURE_H
#define TESTS_UNIT_ADMIN_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/memory.h"
#include "server/admin/stats.h"

struct fixture {
    struct node_report node;
    const struct shard_report *shards[3];
    struct stats_wait waits[1];
};

void fixture_init(struct fixture *f);
void fixture_deinit(struct fixture *f);

#endif
