/* A node without network or threads: shards with logs and checkpoints, on a disk in memory. Each event is on the disk
 * when the next one comes. Gradients are 1, sgd steps by 1: a row says how many steps it has seen. */
#ifndef TESTS_UNIT_RECOVERY_NODE_FIXTURE_H
#define TESTS_UNIT_RECOVERY_NODE_FIXTURE_H

#include <errno.h>

#include "server/checkpoint/shard_file_writer.h"
#include "server/recovery/load_cluster.h"
#include "server/recovery/timeline.h"
#include "server/wal/wal_writer.h"
#include "tests/support/crash_files.h"
#include "tests/unit/core/events_fixture.h"
#include "tests/unit/recovery/recorder.h"

#define NODE_DIR "data"

enum { NODE_DIM = 2, NODE_N_KEYS = 40, NODE_N_SHARDS_MAX = 3 };

struct line {
    struct node *node;
    struct shard *shard; /* stays when the node dies: what was there */
    struct wal_queue queue;
    struct wal_writer *writer;
    struct recorder recorder;
};

struct node {
    struct crash_files files;
    uint32_t n_shards;
    uint64_t epoch;
    bool each_apart; /* records, in blocks of their own */
    struct line lines[NODE_N_SHARDS_MAX];
    struct manifest *m; /* owned: of the last checkpoint */
    int n_reported;
    char sentence[256]; /* the last sentence */
};

void node_hear(void *arg, const char *sentence);

/* --- its logs --- */

void line_flush(struct line *l);
void line_open(struct node *n, uint32_t i, const struct wal_end *end);

/* --- what happens --- */

struct worker *node_join_as(struct node *n, uint32_t shard, const char *job,
                            enum table_spec_mode mode, uint32_t rank, uint32_t n_workers,
                            uint64_t incarnation);

/* All workers of a job, at all shards; its table has its name. */
void node_job(struct node *n, const char *job, enum table_spec_mode mode, uint32_t n_workers);

/* A step of one worker, on one shard: all of that shard's keys. */
void node_push(struct node *n, uint32_t shard, const char *job, uint32_t rank, uint64_t clock);

/* A step of all workers, on that shard. */
void node_step(struct node *n, uint32_t shard, const char *job, uint32_t n_workers,
               uint64_t clock);

void node_steps(struct node *n, const char *job, uint32_t n_workers, uint64_t from,
                uint64_t end);

/* --- checkpoints --- */

void node_save(struct node *n, uint32_t keep);

/* --- life --- */

void node_stop_logs(struct node *n);

/* kill -9. What the shards were stays, to be compared with. */
static inline void node_die(struct node *n)
{
    node_stop_logs(n);
}

/* An orderly stop: a last checkpoint, and logs that say that they were closed. */
void node_stop(struct node *n, uint32_t keep);

void node_begin(struct node *n, uint32_t n_shards);
void node_end(struct node *n);

/* --- made again --- */

/* Shard i as the disk has it; NULL where it is refused. */
struct shard *node_rebuild(struct node *n, uint32_t i, const struct recover_shard_at *at,
                           int *ret_status, struct recover_shard_facts *ret_facts,
                           struct err *err);

/* The whole of it as one shard, as tools and another layout take it. */
int node_collect(struct node *n, const char *path, const struct recover_shard_at *at,
                 struct shard **ret, struct err *err);

/* Every row of the job's table has seen so many steps. */
void assert_steps(struct shard *s, const char *job, uint64_t n_steps);

/* The next life: each shard goes on where its log ended. */
void node_start(struct node *n);

/* The file of the log of shard i that record `number` stands in, or would. */
struct crash_inode *node_segment(struct node *n, uint32_t i, uint64_t number);

struct crash_inode *node_part(struct node *n, uint64_t number, uint32_t i);

/* A bit in the middle of the file. */
static inline void node_damage(struct crash_inode *file)
{
    file->bytes[file->n_bytes / 2] ^= 4;
}

#endif
