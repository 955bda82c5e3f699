/*
 * The redo events of a shard: every change of its state, emitted at the moment and in the order of its effect. A state
 * and the events after it give the shard, bit for bit (replay.h). This is an interface; the write-ahead log implements
 * it (server/shard_wal.h).
 *
 *     event      emitted when                                it holds, beside the request's bytes
 *     PUSH       a push is applied, held for its clock, or   the version; the status of a refusal
 *                refused
 *     TABLE      a table is made                             its number
 *     DROP       a table is dropped (table_admin.h)          its number
 *     SPEC       a table has other settings                  its number, its specification
 *     JOIN       a worker is admitted, also at a reconnect   that no other process held the rank's lease
 *     GONE       a worker left, died, or never came          that its lease or deadline was over
 *     ADVANCE    a pull has moved a worker's clock up
 *     COMBINE    a lock-step clock is complete               when, and which pushes counted
 *     ROWS       rows were removed, left out, or have new    which rows, and for which version
 *                touches
 *     LEARNED    a worker's report counts (learning.h)       the time of day
 *
 * Time, leases, budgets, samples and sketches are not in events; their decisions are. The ROWS of an applied push or a
 * combined clock come before its event, with its version: if that event is missing, they have not happened. A push or
 * clock in slices is emitted when it takes effect, before its rows change (shard.h, shard_push_begin()), so its
 * ROWS (SHARD_ROWS_LEFT) follow later, with its version.
 *
 * Most pushes have no ROWS.
 */
#ifndef SERVER_CORE_SHARD_EVENTS_H
#define SERVER_CORE_SHARD_EVENTS_H

#include <errno.h>
#include <stdbool.h>

#include "common/base.h"
#include "proto/learning.h"
#include "proto/section.h"
#include "proto/table_spec.h"

struct worker;
struct membership_join;

/* Keys of one ROWS event, at most: it needs no reservation. */
#define SHARD_EVENT_ROWS_MAX 128u

enum shard_event_type {
    SHARD_EVENT_PUSH,
    SHARD_EVENT_TABLE,
    SHARD_EVENT_JOIN,
    SHARD_EVENT_GONE,
    SHARD_EVENT_ADVANCE,
    SHARD_EVENT_COMBINE,
    SHARD_EVENT_ROWS,
    SHARD_EVENT_DROP,
    SHARD_EVENT_SPEC,
    SHARD_EVENT_LEARNED,
    SHARD_EVENT_TYPE_END
};

enum shard_rows_op {
    SHARD_ROWS_GONE, /* removed: evicted, idle, expired, rare */
    SHARD_ROWS_LEFT, /* keys that get no row from this version: not admitted, budget, no memory */
    SHARD_ROWS_TOUCHES, /* their touches are now touches[i]: aged, or counted by the rare rule */
    SHARD_ROWS_OP_END
};

/* The worker of an event. Strings are borrowed. */
struct shard_event_worker {
    const char *job;
    uint32_t rank;
    uint64_t incarnation; /* 0: it has never joined */
};

/* All pointers are borrowed for the call. */
struct shard_event {
    enum shard_event_type type;
    /* The shard's version after the event. ROWS have the version of the push or clock that caused them, or the shard's
     * if rows expire. */
    uint64_t version;
    union {
        struct {
            struct shard_event_worker worker;
            const struct push *push; /* whole, also if refused */
            int status;              /* 0: applied, or held; else its refusal */
        } push;
        struct {
            uint32_t id;
            const struct table_spec *spec;
        } table; /* also of SPEC */
        struct {
            uint32_t id;
        } drop;
        struct {
            const struct membership_join *join;
            uint64_t now_ms;
        } join;
        struct {
            struct shard_event_worker worker;
            int state; /* enum worker_state: LEFT, DEAD or LOST */
        } gone;
        struct {
            struct shard_event_worker worker;
            uint64_t clock;
        } advance;
        struct {
            uint64_t run, clock; /* of the job's run (membership.h) */
        } combine;
        struct {
            uint32_t table_id;
            enum shard_rows_op op;
            uint32_t n_keys; /* 1 to SHARD_EVENT_ROWS_MAX */
            const uint64_t *keys;
            const uint8_t *touches; /* of SHARD_ROWS_TOUCHES; else NULL */
        } rows;
        struct {
            struct shard_event_worker worker; /* in any state */
            const struct learning_report *report;
            uint64_t unix_ms;
        } learned;
    };
};

/* True if log space is reserved before the event. The other events cannot be refused. */
static inline bool shard_event_is_asked_for(enum shard_event_type type)
{
    return type == SHARD_EVENT_PUSH || type == SHARD_EVENT_TABLE || type == SHARD_EVENT_JOIN ||
           type == SHARD_EVENT_COMBINE || type == SHARD_EVENT_DROP ||
           type == SHARD_EVENT_SPEC || type == SHARD_EVENT_LEARNED;
}

struct shard_events {
    void *owner; /* borrowed */

    /* Reserves space for a PUSH, TABLE, DROP, SPEC, JOIN, COMBINE or LEARNED; ROWS may come before it. -EAGAIN: the log
     * is full, and its owner reports when it has space again. Any other status counts as -ENOMEM. After a failure the
     * event does not happen; its caller tries again, or for a LEARNED does not. */
    int (*reserve)(void *owner, const struct shard_event *event) MUST_CHECK;

    /* Records an event that has happened. GONE, ADVANCE and ROWS have no reservation, because nothing can prevent them.
     * They are small; an owner without space for one reports a gap in its log. Must not change the shard. */
    void (*record)(void *owner, const struct shard_event *event);
};

/* 0, -EAGAIN or -ENOMEM. events NULL: nothing is reserved or recorded. */
MUST_CHECK static inline int shard_events_reserve(const struct shard_events *events,
                                                  const struct shard_event *event)
{
    int status = events ? events->reserve(events->owner, event) : 0;

    return status == 0 || status == -EAGAIN ? status : -ENOMEM;
}

static inline void shard_events_record(const struct shard_events *events,
                                       const struct shard_event *event)
{
    if (events)
        events->record(events->owner, event);
}

#endif
