/* A event log kept in memory, finished scans, shards made again from both, and whether two shards are the
 * same. */
#ifndef TESTS_UNIT_CORE_EVENTS_FIXTURE_H
#define TESTS_UNIT_CORE_EVENTS_FIXTURE_H

#include "fixture.h"
#include "server/core/bsp.h"
#include "server/core/replay.h"
#include "server/core/shard_internal.h"
#include "server/core/snapshot_scan.h"

#define SCANS_MAX 64u

/* One event; what it points to is its own. */
struct kept_event {
    struct shard_event e;
    char job[TABLE_SPEC_NAME_MAX], name[64];
    struct push *push;
    struct table_spec spec;
    struct membership_join join;
    struct learning_report learned;
    uint64_t keys[SHARD_EVENT_ROWS_MAX];
    uint8_t touches[SHARD_EVENT_ROWS_MAX];
};

struct event_log {
    struct kept_event **events; /* owned */
    size_t n, cap;
    long n_reserves_left; /* then reserve() fails once; -1: never */
    int failure;          /* with this; 0: -ENOMEM */
    struct shard_events sink;
};

uint8_t *copy_bytes(const uint8_t *src, size_t n_bytes);
struct kept_event *keep_event(const struct shard_event *event);
void free_event(struct kept_event *k);
struct event_log *event_log_new(void);
void event_log_free(struct event_log *j);
uint64_t n_of_type(const struct event_log *j, enum shard_event_type type, int op);

/* --- scans --- */

struct kept_slice {
    struct snapshot_scan_slice slice;
    uint8_t *bytes;
};

struct kept_scan {
    struct snapshot_scan *scan; /* NULL: done */
    enum snapshot_scan_mode mode;
    size_t position; /* in the event log, of its first moment */
    struct snapshot_scan_facts facts;
    struct table_spec specs[16]; /* without a name: dropped */
    uint64_t n_pushes[16];
    struct kept_slice *slices;
    size_t n_slices;
};

int try_scan_begin(struct shard *s, enum snapshot_scan_mode mode, size_t position,
                   struct kept_scan *ret);

/* True when it is done. */
bool scan_on(struct shard *s, struct kept_scan *w, size_t dst_bytes);

void scan_end(struct shard *s, struct kept_scan *w, enum snapshot_scan_end how);
void kept_scan_free(struct kept_scan *w);

/* --- made again --- */

int replay_scans(struct shard *s, const struct kept_scan *scans, size_t n_scans,
                 uint64_t now_ms);

/* scans[0 .. n_scans): a full one and its deltas; n_scans 0: from nothing. Events from the last scan's
 * position, to `end`. Always leaves a shard, which is good where 0 is returned. */
int try_restore(const struct shard_config *config, const struct kept_scan *scans,
                size_t n_scans, const struct event_log *j, size_t end, uint64_t now_ms,
                struct shard **ret);

/* --- the same? --- */

void assert_same_row(const struct table_spec *spec, const struct row *a, const struct row *b,
                     uint32_t payload_bytes);
void assert_same_shard(struct shard *a, struct shard *b);

#endif
