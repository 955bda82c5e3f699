#include "server/recovery/recorder.h"

#include <assert.h>

static struct wal_record record_of(const struct recorder *r, const struct shard_event *event)
{
    const struct recorder_config *c = &r->config;

    return (struct wal_record){ .unix_ms = c->unix_ms ? c->unix_ms(c->clock) : 0,
                                .event = *event };
}

static int reserve(void *owner, const struct shard_event *event)
{
    const struct recorder *r = owner;
    const struct wal_record record = { .event = *event };

    return r->config.sink.reserve(r->config.sink.owner, wal_record_bytes(&record));
}

static void record(void *owner, const struct shard_event *event)
{
    struct recorder *r = owner;
    const struct wal_record record = record_of(r, event);
    uint64_t number = r->config.sink.append(r->config.sink.owner, &record);

    assert(number == r->last + 1);
    r->last = number;
}

void recorder_init(struct recorder *r, const struct recorder_config *config)
{
    *r = (struct recorder){ .events = { r, reserve, record },
                            .config = *config,
                            .last = config->last };
}
