/*
 * A shard to which all sorts of things happen (tests/unit/core/replay_world.h), with a recorder, a log and
 * a bad disk. Beside the log every event is kept in memory: event i is record i + 1, and the shard made
 * again from the first n of them is the reference of any recovery up to record n.
 */
#ifndef TESTS_UNIT_RECOVERY_LOGGED_WORLD_H
#define TESTS_UNIT_RECOVERY_LOGGED_WORLD_H

#include "server/core/sync_point.h"
#include "server/recovery/wal_replay.h"
#include "server/wal/wal_writer.h"
#include "tests/support/bad_disk.h"
#include "tests/unit/core/replay_world.h"
#include "tests/unit/recovery/recorder.h"

#define LOG_DIR "log"

struct logged_world {
    struct world w;
    struct bad_disk disk;
    struct wal_queue queue;
    struct wal_writer *writer; /* NULL: it could not be opened */
    struct recorder recorder;
    struct shard_events kept; /* the world's own */
    enum wal_durability durability;
    uint64_t log_ms, promised;
    uint64_t through[SCANS_MAX]; /* of the world's scans: records at their ends */
    size_t n_through;
    uint64_t n_full;   /* of the world's, when that was noted */
    uint64_t n_waited; /* events that had to wait for room */
};

/* --- one event log that tells two --- */

uint64_t sink_append(void *owner, const struct wal_record *record);

/* --- its log --- */

/* Goes on behind what has been read. */
int open_log(struct logged_world *l, const struct wal_end *end);

void close_log(struct logged_world *l);

/* What must be there after a crash now. */
uint64_t promise_of(const struct logged_world *l);

/* Rows whose push is not there have not happened, whatever was promised of them. */
uint64_t promised_events(const struct logged_world *l, uint64_t promised);

void work(struct logged_world *l);
void logged_step(struct logged_world *l);
void logged_steps(struct logged_world *l, uint32_t n);

/* --- life --- */

int begin_logged(struct logged_world *l, struct dice dice, const struct shape *shape,
                 uint64_t round, enum wal_durability durability);
void end_logged(struct logged_world *l);

/* --- made again --- */

/* What is asked for, and what comes of it. */
struct wal_replay {
    size_t n_scans;
    struct wal_replay_config config;
    struct shard *s; /* owned; always there, good where recover() has returned 0 */
    struct wal_replay_facts facts;
    struct wal_end end;
    struct err err;
};

/* From that many scans and the log. */
struct wal_replay recovery_of(struct logged_world *l, size_t n_scans);

int recover(struct logged_world *l, struct wal_replay *r);
void assert_is_reference(struct logged_world *l, struct shard *s, uint64_t last);

/* Scans of which the log has all that they need. */
size_t n_usable_scans(const struct logged_world *l, uint64_t last);

/* The process ends, in the middle of anything; with a power cut of that seed, if it is not -1. */
void die(struct logged_world *l, long power_cut);

/* From all scans that are checkpoints by now, or from nothing; and the run goes on behind what is there. */
void rise(struct logged_world *l, size_t n_scans, struct shard *s, const struct wal_end *end);

#endif
