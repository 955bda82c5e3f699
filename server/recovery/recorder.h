/*
 * Recorder: writes each event of a shard (server/core/shard_events.h) into its log as a record, numbered in
 * the order of effect.
 *
 *     shard -> reserve, record -> recorder -> reserve, append -> sink: wal_thread.h, wal_queue.h
 *
 * It has no thread, file or clock: the sink and the time of day are the caller's. Checkpoints and replies
 * need one number of the log, recorder_last().
 */
#ifndef SERVER_RECOVERY_RECORDER_H
#define SERVER_RECOVERY_RECORDER_H

#include "server/core/shard_events.h"
#include "server/wal/wal_record.h"

/* Receives records. */
struct record_sink {
    void *owner; /* borrowed */
    /* Reserves space for one record of an event that reserves; anything but 0: the event waits. */
    int (*reserve)(void *owner, size_t n_bytes);
    /* Copies the record and returns its number: one more than the last one, also if it was dropped. */
    uint64_t (*append)(void *owner, const struct wal_record *record);
};

struct recorder_config {
    struct record_sink sink;
    uint64_t last; /* number of the last record that is in the log: wal_end.last */
    /* The time of day in ms, for people; NULL: 0. */
    uint64_t (*unix_ms)(void *clock);
    void *clock; /* borrowed */
};

struct recorder {
    struct shard_events events; /* for shard_set_events() */
    struct recorder_config config;
    uint64_t last;
};

/* *r must not move while a shard uses it: the shard's events point to it. Nothing to deinitialise. */
void recorder_init(struct recorder *r, const struct recorder_config *config);

/* Number of the last event's record: its reply waits for this number, and a scan begins or ends at it. */
static inline uint64_t recorder_last(const struct recorder *r)
{
    return r->last;
}

#endif
