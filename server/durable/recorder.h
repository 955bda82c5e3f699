/*
 * A shard's journal (server/core/shard_journal.h) that writes each event into its push log: as a record,
 * numbered in the order of effect.
 *
 *     shard -> reserve, record -> recorder -> reserve, append -> sink: log_thread.h, log_queue.h
 *
 * No thread, file or clock: the sink and the time of day are the caller's. What checkpoints and replies
 * need to know of the log is one number, recorder_last().
 */
#ifndef SERVER_DURABLE_RECORDER_H
#define SERVER_DURABLE_RECORDER_H

#include "server/core/shard_journal.h"
#include "server/log/log_record.h"

/* Where records go. */
struct record_sink {
    void *owner; /* borrowed */
    /* Room for one record of an event that is asked for; anything but 0: the event waits. */
    int (*reserve)(void *owner, size_t n_bytes);
    /* Copies it and returns its number: one more than the one before, also where it was dropped. */
    uint64_t (*append)(void *owner, const struct log_record *record);
};

struct recorder_config {
    struct record_sink sink;
    uint64_t last; /* number of the last record that is in the log: log_end.last */
    /* The time of day in ms, for people; NULL: 0. */
    uint64_t (*unix_ms)(void *clock);
    void *clock; /* borrowed */
};

struct recorder {
    struct shard_journal journal; /* for shard_listen() */
    struct recorder_config config;
    uint64_t last;
};

/* *r must not move while a shard listens: the journal points to it. Nothing to deinitialise. */
void recorder_init(struct recorder *r, const struct recorder_config *config);

/* Number of the last event's record: what a reply to it waits for, and where a walk begins or ends. */
static inline uint64_t recorder_last(const struct recorder *r)
{
    return r->last;
}

#endif
