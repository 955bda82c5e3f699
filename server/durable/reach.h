/*
 * Does a shard that was made again from an older restore point have all that the newer ones had?
 *
 * A checkpoint may have closed a gap of the log: what came behind it was acknowledged. If that one cannot be loaded,
 * the one before and the log lead to the gap and no further (server/log/README.md, "What is not in it"). What was
 * acknowledged is not given up without a word: the newer manifests say how far their logs went.
 */
#ifndef SERVER_DURABLE_REACH_H
#define SERVER_DURABLE_REACH_H

#include "server/log/log_reader.h"

struct reach {
    const struct file_ops *files; /* borrowed, like all here */
    const char *data_dir;
    uint64_t number;      /* of the restore point that the shard was made from; 0: none */
    uint64_t epoch;       /* of its log */
    uint32_t shard_index; /* on its node */
};

/* `end`: where the log was left. PS_ECORRUPT, with what a person can do: it ends before a newer checkpoint of this epoch
 * did, or in a gap that one whose manifest is damaged may have closed. Else as manifests_each(). */
int reach_check(const struct reach *reach, const struct log_end *end, struct err *err)
    MUST_CHECK;

#endif
