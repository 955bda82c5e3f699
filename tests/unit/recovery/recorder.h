/*
 * What server/shard_wal.c is to a shard on its loop, without a thread or a clock: each event of a shard becomes a
 * record for the test's own sink, mostly a wal_queue.h.
 */
#ifndef TESTS_UNIT_RECOVERY_RECORDER_H
#define TESTS_UNIT_RECOVERY_RECORDER_H

#include <assert.h>

#include "server/core/shard_events.h"
#include "server/wal/wal_record.h"

struct record_sink {
    void *owner; /* borrowed */
    /* Reserves space for one record of an event that reserves; anything but 0: the event waits. */
    int (*reserve)(void *owner, size_t n_bytes);
    /* Copies the record and returns its number: one more than the last one, also if it was dropped. */
    uint64_t (*append)(void *owner, const struct wal_record *record);
};

struct recorder_config {
    struct record_sink sink;
    uint64_t last;                    /* number of the last record that is in the log */
    uint64_t (*unix_ms)(void *clock); /* NULL: 0 */
    void *clock;                      /* borrowed */
};

struct recorder {
    struct shard_events events; /* for shard_set_events() */
    struct recorder_config config;
    uint64_t last;
};

static inline int recorder_reserve(void *owner, const struct shard_event *event)
{
    const struct recorder *r = owner;
    const struct wal_record record = { .event = *event };

    return r->config.sink.reserve(r->config.sink.owner, wal_record_bytes(&record));
}

static inline void recorder_record(void *owner, const struct shard_event *event)
{
    struct recorder *r = owner;
    const struct recorder_config *c = &r->config;
    const struct wal_record record = { .unix_ms = c->unix_ms ? c->unix_ms(c->clock) : 0,
                                       .event = *event };
    uint64_t number = c->sink.append(c->sink.owner, &record);

    assert(number == r->last + 1);
    r->last = number;
}

/* *r must not move while a shard uses it. Nothing to deinitialise. */
static inline void recorder_init(struct recorder *r, const struct recorder_config *config)
{
    *r = (struct recorder){ .events = { r, recorder_reserve, recorder_record },
                            .config = *config,
                            .last = config->last };
}

/* Number of the last event's record. */
static inline uint64_t recorder_last(const struct recorder *r)
{
    return r->last;
}

#endif
