/*
 * Starts of a node from their first look to the moment at which it would serve, with real shard threads, on the disk of a
 * node_fixture.h.
 */
#ifndef TESTS_UNIT_PSD_STARTS_H
#define TESTS_UNIT_PSD_STARTS_H

#include "server/start.h"

#include "server/checkpoint/directory.h"
#include "server/recovery/timeline.h"
#include "tests/support/locked_files.h"
#include "tests/unit/recovery/node_fixture.h"

enum { N_STEPS = 30 };

/* name, value, name, value ... NULL: as in psd.conf. Its status; the sentence of a failure is in `err`; what it
 * began from, in n->sentence. */
int start_with(struct node *n, uint32_t n_shards, bool is_to_stop, struct err *err,
               const char *const *options);

#define START_WITH(...) ((const char *const[]){ "data-dir", NODE_DIR, __VA_ARGS__, NULL })
#define PLAIN ((const char *const[]){ "data-dir", NODE_DIR, NULL })

/* Up to those records (start_config.keep), to follow a primary from there. */
int start_standby(struct node *n, uint32_t n_shards, const uint64_t *keep, struct err *err);

void must_start(struct node *n, uint32_t n_shards, const char *const *options);
void must_refuse(struct node *n, uint32_t n_shards, const char *const *options, int want,
                 const char *says);

/* What the next start would find. */
void assert_holds(struct node *n, uint64_t n_steps);

bool is_there(struct node *n, uint64_t number, const char *end);
uint64_t newest_epoch(struct node *n);

/* Checkpoint 1 behind 10 steps, 2 behind 20, 3 behind 25, and 30 in all. */
void make(struct node *n, uint32_t n_shards);

/* Somebody trains on, in the epoch that is there. */
void train(struct node *n, uint64_t from, uint64_t end);

#endif
