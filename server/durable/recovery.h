/*
 * The log of a shard done again: records, from the one behind a checkpoint on, become events of
 * shard_replay().
 *
 *     shard_replay_begin           the caller's, and the rows and the state of a checkpoint, or none
 *     recovery_run                 from `from` on, to the log's end, to record `through`, or to a cut
 *     shard_replay_end             the caller's
 *     log_thread_start(..., &end)  goes on behind it, wherever it stopped
 *
 * Rows are told before the push or clock whose doing they are. Where the log ends in between, it ends
 * before them: they have not happened, and what is written next takes their numbers.
 *
 * Nothing in a record is trusted but that its bytes are what was written: an event that cannot have
 * happened to this shard is PS_ECORRUPT with the record's number, file and byte.
 */
#ifndef SERVER_DURABLE_RECOVERY_H
#define SERVER_DURABLE_RECOVERY_H

#include "server/core/shard_replay.h"
#include "server/log/log_reader.h"

struct recovery_facts {
    uint64_t from, last; /* records: the first that was wanted; the last that is in the shard */
    uint64_t n_records, n_pushes, n_bytes; /* done again */
    uint64_t unix_ms;                      /* of the last record; 0: none */
    bool reached_cut;                      /* of a cut: it is no longer SHARD_CUT_EARLY */
};

struct recovery_config {
    const struct file_ops *files;        /* borrowed */
    const char *dir;                     /* of this shard's log; an absent one is empty */
    const struct log_identity *identity; /* whose it must be, or NULL */
    uint64_t from; /* first record: the checkpoint's `first` + 1; 1: from nothing */
    uint64_t
        needs; /* the checkpoint's `through`, without which its walk is not exact; 0: none */
    uint64_t through; /* stops behind this record; 0: at the end */
    /* Stops behind the event with which the shard has the state after this clock; NULL: does not. */
    const char *cut_job;
    uint64_t cut_clock;

    /* Now and then, every RECOVERY_STEP records; NULL: nobody wants to know. Not 0 ends it, with that
     * status. */
    int (*on_progress)(void *owner, const struct recovery_facts *facts);
    void *owner; /* borrowed */
};

#define RECOVERY_STEP 1024u

/*
 * *ret_end is what log_writer_open() wants. 0 also where the log is torn, has a gap or is damaged: the
 * shard then has what stands before, and whoever wanted all of it has to look at the verdict
 * (rebuild.h); a damaged log is not written to (log_writer_open()).
 *
 * PS_ECORRUPT (an event that cannot be; a log that ends before `needs`: the checkpoint is of no use),
 * PS_ECLUSTER, -ENOMEM, what files or on_progress answer: the shard is only good for shard_free(). A
 * cut that the log does not reach is no failure: facts->reached_cut.
 */
int recovery_run(struct shard *s, const struct recovery_config *config, uint64_t now_ms,
                 struct recovery_facts *ret_facts, struct log_end *ret_end, struct err *err)
    ON_SHARD MUST_CHECK;

#endif
