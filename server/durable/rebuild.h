/*
 * A shard as it was: the newest restore point of its data directory that is whole, and the push log
 * behind it. Where a restore point is damaged the one before it does as well: its log is longer, and
 * leads to the same state.
 *
 *     DATA_DIR/checkpoints/NUMBER/   checkpoint.h
 *     DATA_DIR/log/EPOCH/shard-III/  the log of each of the node's shards (log_segment.h)
 *
 * An epoch is a stretch of log that every later state comes from without a break. One begins with the
 * node's first start (0), and whenever a node starts from something else than the end of what it
 * had: in another layout, at an older state, with nothing. It is named by the checkpoint that it
 * begins with, which stands in every file of the epoch as identity.map_id. What an older epoch has
 * left stays of use for --at until its checkpoints are gone.
 */
#ifndef SERVER_DURABLE_REBUILD_H
#define SERVER_DURABLE_REBUILD_H

#include "server/durable/recovery.h"
#include "server/store/checkpoint.h"

/* Where to stop. Zeros: at the end. */
struct rebuild_at {
    uint64_t number; /* of a checkpoint: the state when it was complete */
    const char *job; /* the state when this job had finished step `clock`; NULL: none is named */
    uint64_t clock;
};

struct rebuild_config {
    const struct file_ops *files; /* borrowed, like all here */
    const char *data_dir;
    uint32_t shard_index;           /* on its node */
    struct part_identity who;       /* but for its epoch, which is found */
    struct rebuild_at at;
    void (*progress)(void *arg);                       /* shows life; NULL is fine */
    void (*report)(void *arg, const char *sentence);   /* what is damaged, torn, lost; NULL is fine */
    void *arg;
};

struct rebuild_facts {
    uint64_t number; /* of the restore point; 0: from nothing but a log */
    uint32_t n_links;
    uint64_t epoch;
    uint64_t n_bytes, n_records, n_pushes; /* read of files; done again of the log */
    bool is_whole;  /* nothing of the log that is there was left out: it may be gone on with */
    struct log_end end;
};

/* DATA_DIR/log/EPOCH, or, with a shard_index, the directory of its log. */
#define REBUILD_EPOCH UINT32_MAX
int rebuild_log_dir(const char *data_dir, uint64_t epoch, uint32_t shard_index,
                    char ret[static CHECKPOINT_PATH_MAX], struct err *err) MUST_CHECK;

/* The newest epoch that has a log; 0: none. */
int rebuild_newest_epoch(const struct file_ops *files, const char *data_dir, uint64_t *ret,
                         struct err *err) MUST_CHECK;

/* Removes logs of epochs below `oldest`, and what an unfinished start has left of `oldest` on, if any.
 * What cannot be removed stays for the next time. */
void rebuild_remove_epochs(const struct file_ops *files, const char *data_dir, uint64_t oldest);

/*
 * `shard`: new, of config->who. From nothing where there is neither restore point nor log.
 * PS_ECORRUPT: all restore points are damaged, or what is promised is not in the log; PS_ECLUSTER: of
 * another layout; PS_ENOCHECKPOINT: of at; -ENOMEM; what files answer. After a failure the shard is
 * only good for shard_free().
 */
int rebuild_shard(const struct rebuild_config *config, struct shard *shard, uint64_t now_ms,
                  struct rebuild_facts *ret, struct err *err) ON_SHARD MUST_CHECK;

#endif
