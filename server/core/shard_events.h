/*
 * What a shard tells of itself: every event that changes it, at the moment at which it takes effect
 * and in the order of effect, so that the state at one moment and the events behind it are the
 * shard, bit for bit (replay.h). An interface: whoever keeps events stands behind it.
 *
 *     event      told                                        what it says that bytes do not
 *     PUSH       a push is judged: applied, held for its     its version; refused: why
 *                clock, or refused
 *     TABLE      a table is made                             its number
 *     JOIN       a worker is admitted, also a reconnect      nobody else's lease stood against it
 *     GONE       it left, died, or never came                that time was up
 *     REACH      a pull has moved its clock up
 *     COMBINE    a clock of lock step is complete            when; which pushes counted
 *     ROWS       rows went; got none; are counted anew       who, and for which version
 *
 * Time, leases, budgets, samples and sketches decide events and are not in them: what they have
 * decided is. What an applied push or a combined clock has done beside its rows comes before it, as
 * ROWS with its version: without the push, that has not happened. Only of a push in slices, which is
 * told when it takes effect, before its rows have changed (shard.h, shard_push_begin()), it comes
 * later, too, when it happens: ROWS_LEFT with the version of that push.
 *
 * Most pushes have no ROWS at all.
 */
#ifndef SERVER_CORE_SHARD_EVENTS_H
#define SERVER_CORE_SHARD_EVENTS_H

#include <errno.h>
#include <stdbool.h>

#include "common/base.h"
#include "proto/section.h"
#include "proto/table_spec.h"

struct worker;
struct membership_join;

/* Of one ROWS event, at most: so that there is room for it without asking. */
#define SHARD_EVENT_ROWS_MAX 128u

enum shard_event_type {
    SHARD_EVENT_PUSH,
    SHARD_EVENT_TABLE,
    SHARD_EVENT_JOIN,
    SHARD_EVENT_GONE,
    SHARD_EVENT_REACH,
    SHARD_EVENT_COMBINE,
    SHARD_EVENT_ROWS,
    SHARD_EVENT_TYPE_END
};

enum shard_rows_op {
    SHARD_ROWS_GONE, /* removed: to make room, idle, expired, rare */
    SHARD_ROWS_LEFT, /* keys that get no row from this version: not admitted, no place, no memory */
    SHARD_ROWS_TOUCHES, /* their touches are now touches[i]: aged, or looked at by the rare rule */
    SHARD_ROWS_OP_END
};

/* Who. Strings are borrowed. */
struct shard_event_worker {
    const char *job;
    uint32_t rank;
    uint64_t incarnation; /* 0 where it has never come */
};

/* All pointers are borrowed for the call. */
struct shard_event {
    enum shard_event_type type;
    /* The shard's, behind the event; of ROWS: that of the push or clock whose doing it is, or the
     * shard's where rows go by themselves. */
    uint64_t version;
    union {
        struct {
            struct shard_event_worker worker;
            const struct push *push; /* whole, also where it was refused */
            int status;              /* 0: applied, or held; else its refusal */
        } push;
        struct {
            uint32_t id;
            const struct table_spec *spec;
        } table;
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
        } reach;
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
    };
};

/* True if room is reserved before the event happens. The other events cannot be refused. */
static inline bool shard_event_is_asked_for(enum shard_event_type type)
{
    return type == SHARD_EVENT_PUSH || type == SHARD_EVENT_TABLE || type == SHARD_EVENT_JOIN ||
           type == SHARD_EVENT_COMBINE;
}

struct shard_events {
    void *owner; /* borrowed */

    /* Room for this event, which may happen now: before a PUSH, TABLE, JOIN or COMBINE. ROWS may come
     * before it. -EAGAIN: the log is full, and its owner says when it takes events again;
     * anything else but 0 is taken for -ENOMEM. Either way the event does not happen, and is tried again by
     * whoever wanted it. */
    int (*reserve)(void *owner, const struct shard_event *event) MUST_CHECK;

    /* It has happened. GONE, REACH and ROWS come without having been asked for, as nothing can keep
     * them from happening: they are small, and an owner without room for one reports that its log has
     * a gap. Calls nothing of the shard that changes it. */
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
