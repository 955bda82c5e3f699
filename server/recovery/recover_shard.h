/*
 * Recovery of one shard: the newest restore point of its data directory that is whole, then the log behind
 * it. If a restore point is corrupt, psd logs it and recovers from the previous restore point and a longer
 * log.
 */
#ifndef SERVER_RECOVERY_RECOVER_SHARD_H
#define SERVER_RECOVERY_RECOVER_SHARD_H

#include "server/checkpoint/checkpoint.h"
#include "server/recovery/wal_replay.h"

/* The state to recover. Zeros: the end of the log. */
struct recover_shard_at {
    uint64_t number; /* of a checkpoint: the state when it was complete */
    const char
        *job; /* the state when all of this job had finished `clock` steps (1 or more), in lock
                      * step exactly; NULL: none is named */
    uint64_t clock;
    bool
        intact; /* the end of the log, or of its readable part: up to the first damage that is in the way */
};

/* Parses NUMBER, JOB:CLOCK, intact, or "" for the end. ret->job points to `job`. PS_ESETTING and a sentence. */
int recover_shard_at_read(const char *text, char job[static TABLE_SPEC_NAME_MAX],
                          struct recover_shard_at *ret, struct err *err) MUST_CHECK;

/* The progress of a recovery. */
struct recover_shard_progress {
    uint64_t n_bytes;       /* read of a checkpoint's files and of the log */
    uint64_t n_total_bytes; /* all that there is to be read; 0: not known */
    uint64_t n_records;     /* of the log, replayed */
};

struct recover_shard_config {
    const struct file_ops *files; /* borrowed, like all here */
    const char *data_dir;
    uint32_t shard_index;                /* on its node */
    struct shard_file_identity identity; /* but for its epoch, which is found */
    struct recover_shard_at at;
    /* The shard of a standby (server/replication): `at` is zeros, and on success the replay goes on, with the record
     * behind facts->end.last, which the primary has. `keep`: the last record to be recovered; UINT64_MAX: all. */
    bool follows;
    uint64_t keep;
    uint64_t below; /* restore points from this number on are none; 0: all count */
    /* At the beginning of each attempt, now and then, and at the end. Anything but 0 before the end ends the recovery
     * with that status. NULL is fine. */
    int (*progress)(void *arg, const struct recover_shard_progress *progress);
    void (*report)(void *arg, const char *sentence); /* what is damaged, torn, lost */
    void *arg;
};

struct recover_shard_facts {
    uint64_t number; /* of the restore point; 0: from nothing but a log */
    uint32_t n_links;
    uint64_t epoch;
    uint64_t n_bytes, n_records,
        n_pushes;         /* n_bytes: read of files; the others: replayed from the log */
    uint64_t n_log_bytes; /* the same */
    struct wal_end end;
    uint64_t
        needs; /* of a standby: before this record has come its rows are of different moments */
    /* A job's clock was asked for, and the shard has pushes of later ones, too: recover_shard_report_later(). */
    bool has_later;
};

/* Reports one sentence if any shard has later pushes. */
void recover_shard_report_later(const struct recover_shard_at *at,
                                void (*report)(void *arg, const char *sentence), void *arg);

/* PS_ECORRUPT: every checkpoint is damaged, as `damage` says, and no log has what they had. */
int recover_shard_refuse_empty(const struct err *damage, struct err *err) MUST_CHECK;

/*
 * `shard`: new, of config->who; it may be cleared on the way (shard_clear()). Without restore point and log
 * it stays empty.
 *
 * PS_ECORRUPT: all restore points are corrupt, and the log does not begin with record 1; or acknowledged records are
 * missing or corrupt in the log, or were only in a corrupt restore point. With at.intact only the first of these.
 * PS_ECLUSTER: another layout. PS_ENOCHECKPOINT: `at` or `keep` cannot be recovered. -ENOMEM; statuses of the file
 * system. After a failure the shard is only good for shard_free().
 */
int recover_shard_run(const struct recover_shard_config *config, struct shard *shard,
                      uint64_t now_ms, struct recover_shard_facts *ret, struct err *err)
    ON_SHARD MUST_CHECK;

#endif
