/* Reads one shard's write-ahead log from its first record to its last: its content, and whether it is complete. */
#ifndef DEPLOY_PSCTL_VERIFY_WAL_H
#define DEPLOY_PSCTL_VERIFY_WAL_H

#include <stdbool.h>

#include "server/wal/wal_reader.h"

/* Records without a hole between them. */
struct verify_wal_stretch {
    uint64_t first, last; /* last: first - 1 where there is none */
};

struct verify_wal {
    uint64_t epoch;
    uint32_t shard_index; /* on its node */
    uint32_t n_segments;
    uint64_t newest_segment; /* the number of its first record; 0: there is none */
    uint64_t n_records, n_pushes;
    /* Ascending. More than one where records were dropped (WAL_GAP), which a checkpoint behind makes good. */
    struct verify_wal_stretch *stretches; /* owned */
    uint32_t n_stretches;
    struct wal_end end; /* of the last stretch; its verdict is not WAL_GAP */
    char header_text
        [256]; /* a sentence of a segment whose header alone is damaged; "": there is none */
};

/* Returns 0 also for an empty or damaged log. psd may write and truncate the log meanwhile: then the log is read again
 * from its new beginning. With a sentence: errors of files; -EBUSY: the log was truncated during every attempt. */
int verify_wal_read(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                    uint32_t shard_index, struct verify_wal *ret, struct err *err) MUST_CHECK;

/* Something in it that was promised cannot be read. */
bool verify_wal_is_damaged(const struct verify_wal *log);

/* The last record that is there without a hole from record `from` on; from - 1: not even that one. */
uint64_t verify_wal_covered(const struct verify_wal *log, uint64_t from);

/* Of all stretches; 0: the log is empty. */
uint64_t verify_wal_last(const struct verify_wal *log);

/* A zeroed one is fine. */
void verify_wal_free(struct verify_wal *log);

#endif
