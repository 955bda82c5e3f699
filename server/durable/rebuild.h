/*
 * A shard as it was: the newest restore point of its data directory that is whole, and the push log
 * behind it. Where a restore point is damaged the one before it does as well: its log is longer, and
 * leads to the same state.
 */
#ifndef SERVER_DURABLE_REBUILD_H
#define SERVER_DURABLE_REBUILD_H

#include "server/durable/recovery.h"
#include "server/store/checkpoint.h"

/* Where to stop. Zeros: at the end. */
struct rebuild_at {
    uint64_t number; /* of a checkpoint: the state when it was complete */
    const char
        *job; /* the state when all of this job had finished `clock` steps (1 or more), in lock
                      * step exactly; NULL: none is named */
    uint64_t clock;
};

/* As people type it: NUMBER, JOB:CLOCK, or "" for the end. `job` is where ret->job points to. PS_ESETTING and a
 * sentence. */
int rebuild_at_read(const char *text, char job[static SPEC_NAME_MAX], struct rebuild_at *ret,
                    struct err *err) MUST_CHECK;

struct rebuild_config {
    const struct file_ops *files; /* borrowed, like all here */
    const char *data_dir;
    uint32_t shard_index;     /* on its node */
    struct part_identity who; /* but for its epoch, which is found */
    struct rebuild_at at;
    void (*progress)(void *arg);                     /* shows life; NULL is fine */
    void (*report)(void *arg, const char *sentence); /* what is damaged, torn, lost */
    void *arg;
};

struct rebuild_facts {
    uint64_t number; /* of the restore point; 0: from nothing but a log */
    uint32_t n_links;
    uint64_t epoch;
    uint64_t n_bytes, n_records, n_pushes; /* read of files; done again of the log */
    uint64_t n_log_bytes;                  /* the same */
    struct log_end end;
    /* A job's clock was asked for, and the shard has pushes of later ones, too: rebuild_say_later(). */
    bool has_later;
};

/* Where any shard has later pushes: one sentence on it, to report(arg). */
void rebuild_say_later(const struct rebuild_at *at,
                       void (*report)(void *arg, const char *sentence), void *arg);

/*
 * `shard`: new, of config->who; it may be cleared on the way (shard_clear()). From nothing where there
 * is neither restore point nor log.
 *
 * PS_ECORRUPT: all restore points are damaged; what was promised is not in the log, is damaged there, or
 * was in a damaged restore point alone; PS_ECLUSTER: of
 * another layout; PS_ENOCHECKPOINT: `at` cannot be had; -ENOMEM; what files answer. After a failure the
 * shard is only good for shard_free().
 */
int rebuild_shard(const struct rebuild_config *config, struct shard *shard, uint64_t now_ms,
                  struct rebuild_facts *ret, struct err *err) ON_SHARD MUST_CHECK;

#endif
