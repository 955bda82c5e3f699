/*
 * A node with a few shards on a thread of its own: enough of psd to talk to, and it
 * misbehaves on request. Tables add what is pushed (4 floats a row, fp32), so a push that is
 * lost or applied twice shows in the sums.
 *
 *     struct fake *f = fake_start(&(struct fake_plan){ .n_shards = 2, .fault_at = 3, ... });
 *     ... clients talk to fake_address(f) ...
 *     fake_stop(f);      the thread has ended: f->shards may be looked at
 *     fake_free(f);
 */
#ifndef TESTS_UNIT_CLIENT_FAKE_SHARD_H
#define TESTS_UNIT_CLIENT_FAKE_SHARD_H

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "proto/channel.h"
#include "proto/codec_catalog.h"
#include "proto/key_codec.h"
#include "proto/message.h"
#include "tests/unit/client/fake_plan.h"

struct fake_row *fake_row(struct fake_shard *s, uint64_t key);

struct fake *fake_start(const struct fake_plan *plan);

void fake_address(const struct fake *f, char dst[static 32]);

void fake_stop(struct fake *f);

void fake_free(struct fake *f);

#endif
