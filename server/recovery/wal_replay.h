/*
 * Replays a shard's log: records, from the one behind a checkpoint on, become events of shard_replay().
 *
 *     replay_begin                 the caller's, then the rows and the state of a checkpoint, or none
 *     wal_replay_run               from `from` on, to the log's end, to record `through`, or to a sync point
 *     replay_end                   the caller's
 *     wal_thread_start(..., &end)  continues the log behind the last replayed record
 *
 * ROWS come before the push or clock that caused them. If the log ends in between, it ends before them: they
 * have not happened, and the next records take their numbers.
 *
 * Records are untrusted beyond their checksums: an event that cannot have happened to this shard is
 * PS_ECORRUPT with the record's number, file and byte.
 */
#ifndef SERVER_RECOVERY_WAL_REPLAY_H
#define SERVER_RECOVERY_WAL_REPLAY_H

#include "server/core/replay.h"
#include "server/wal/wal_reader.h"

struct wal_replay_facts {
    uint64_t from, last; /* records: the first that was wanted; the last that is in the shard */
    uint64_t n_records, n_pushes, n_bytes; /* replayed */
    uint64_t n_file_bytes;                 /* bytes of the files that were read for it */
    uint64_t unix_ms;                      /* of the last record; 0: none */
    bool covers_sync_point;                /* of sync_job: it is no longer SYNC_POINT_EARLY */
};

struct wal_replay_config {
    const struct file_ops *files;        /* borrowed */
    const char *dir;                     /* of this shard's log; an absent one is empty */
    const struct wal_identity *identity; /* whose it must be, or NULL */
    uint64_t from; /* first record: the checkpoint's `first` + 1; 1: from nothing */
    uint64_t
        needs; /* the checkpoint's `through`, without which its scan is not exact; 0: none */
    uint64_t through; /* stops behind this record; 0: at the end */
    /* Stops behind the event that brings the shard to the state after this clock, and takes from what follows only the
     * keys that got no row of it; NULL: does not. */
    const char *sync_job;
    uint64_t sync_clock;

    /* Called every WAL_REPLAY_STEP records, and more often if these are large; NULL is fine. A status other than 0 ends
     * the replay, which returns it. */
    int (*on_progress)(void *owner, const struct wal_replay_facts *facts);
    void *owner; /* borrowed */
};

#define WAL_REPLAY_STEP 1024u
#define WAL_REPLAY_STEP_BYTES (4u << 20) /* of records */

/*
 * *ret_end is for wal_writer_open(). Also 0 if the log is torn, has a gap or is corrupt: the shard then has
 * all records before it, and the caller checks the verdict (recover_shard.h). A corrupt log is not written to
 * (wal_writer_open()).
 *
 * PS_ECORRUPT (an impossible event; a log that ends before `needs`, so the checkpoint is unusable),
 * PS_ECLUSTER, -ENOMEM, statuses of files or on_progress: the shard is only good for shard_free(). A sync
 * point that the log does not have is no failure: facts->covers_sync_point.
 */
int wal_replay_run(struct shard *s, const struct wal_replay_config *config, uint64_t now_ms,
                   struct wal_replay_facts *ret_facts, struct wal_end *ret_end, struct err *err)
    ON_SHARD MUST_CHECK;

#endif
