/*
 * A shard's records for its standby: FETCH, a long poll, and what replies wait for because of it.
 *
 *     fetch_handler_append()     each record as it is logged, while a standby follows
 *     fetch_handler_receive()    acknowledges what came before it, and asks for more: answered from the ring
 *                                (record_ring.h), else from the log's segments (a job of libuv's pool), else once there
 *                                is more, or its time is over
 *
 * The main thread (standby_server.h) says whom it answers, and closes and opens the gate (gate.h). It reads how far the
 * standby is in struct fetch_view, at any time.
 *
 * One connection fetches, and has at most FETCH_HANDLER_WAITING_MAX fetches under way. No record is sent twice on it:
 * a second fetch, by which the standby tells what it has or asks for more, goes on where the first one's answer ended.
 * If there are no records, it lets the first one be answered without any. When the connection ends, the standby has to
 * follow anew (FOLLOW at the listener) before another one may fetch.
 *
 * Pushes are slowed down for a standby that is not in sync and does not catch up (server/replication/catch_up.h).
 */
#ifndef SERVER_REQUESTS_FETCH_HANDLER_H
#define SERVER_REQUESTS_FETCH_HANDLER_H

#include <stdatomic.h>

#include "server/replication/gate.h"
#include "server/requests/request_context.h"
#include "server/wal/wal_record.h"
#include "server/wal/wal_segment.h"

#define FETCH_HANDLER_WAITING_MAX 2u
#define FETCH_HANDLER_WAIT_MS_MAX 60000u
#define FETCH_HANDLER_BYTES_DEFAULT (1u << 20)

/* A standby takes over at the earliest 600 ms (the least --failover-after) after it has received a word of its primary.
 * So a primary counts from when it sent the newest word that was answered, and stops answering pulls before that. */
#define FETCH_HANDLER_ALONE_MS 500u

struct fetch_handler;

/* Written by the shard's thread; read by any. Times are clock_mono_ms(). */
struct fetch_view {
    _Atomic uint64_t appended, received, durable, applied;    /* records */
    _Atomic uint64_t held, closed_at, heard_ms, caught_up_ms; /* gate.h */
    _Atomic uint64_t sent_ms; /* of the newest reply that the standby has, as it says */
    _Atomic uint64_t
        alone_until_ms; /* from then on pulls wait (reply_queue.h); 0: no standby yet, or sealed */
    _Atomic uint64_t greater_term; /* that a fetch named; 0: none did */
    _Atomic uint64_t
        doubted; /* cannot be read now, and is read again before it is lost; 0: none */
    _Atomic uint64_t lost_through; /* the log does not have these records; 0: it has all */
    _Atomic uint64_t
        n_differences; /* so often the standby has found a row that is not this shard's */
    _Atomic uint64_t dropped_ms; /* since then the log keeps nothing for it; 0: it does */
    _Atomic bool is_connected, is_closed;
    _Atomic bool is_drained; /* as fetch_handler_park() found it */
};

/* How long the standby has been silent, if pulls wait for it; 0: they do not. */
uint64_t fetch_handler_silent_ms(const struct fetch_view *view, uint64_t now_ms);

struct fetch_handler_config {
    struct request_context *context; /* borrowed */
    void (*on_space)(void *owner);   /* the ring was full, and takes pushes again */
    void *owner;                     /* borrowed */
    size_t ring_bytes;               /* 0: record_ring.h's */
};

struct fetch_handler *fetch_handler_new(const struct fetch_handler_config *config);

/* No job of it is under way: the loop has ended. NULL is fine. */
void fetch_handler_free(struct fetch_handler *f) ON_SHARD;

/* The loop is to end: what waits is refused with PS_ESTOPPING, and its handles close. */
void fetch_handler_stop(struct fetch_handler *f) ON_SHARD;

/* The log is open, and ends with record `last`. files, dir: borrowed, copied. */
void fetch_handler_log(struct fetch_handler *f, const struct file_ops *files, const char *dir,
                       uint64_t last) ON_SHARD;

/* The log ends with this record now: it was a standby's until a moment ago. */
void fetch_handler_lead(struct fetch_handler *f, uint64_t last) ON_SHARD;

const struct fetch_view *fetch_handler_view(const struct fetch_handler *f);

/* --- for the log --- */

/* True if no push may come: the standby has not acknowledged what fills the ring, or a switch has begun. */
bool fetch_handler_is_full(const struct fetch_handler *f) ON_SHARD;

/* The same, with the wait's name and reason. */
bool fetch_handler_describe_full(const struct fetch_handler *f, struct stats_wait *ret)
    ON_SHARD;

/* So long after now_ms the next push may come; 0: at once. A standby that pushes outrun catches up meanwhile. */
uint64_t fetch_handler_wait_ms(const struct fetch_handler *f, uint64_t now_ms) ON_SHARD;

/* Are pushes slowed down because of it? By how much, and how many records it is behind. */
bool fetch_handler_slows(const struct fetch_handler *f, uint64_t *ret_behind,
                         uint64_t *ret_records_per_s) ON_SHARD;

/* From fetch_handler_begin() to fetch_handler_end(). */
void fetch_handler_append(struct fetch_handler *f, const struct wal_record *record) ON_SHARD;

/* The log's writer has come up to `written`; stored_bytes: since it was opened. For the replies of fetches: up to
 * `whole` the disk has all records, and a restart finds them. */
void fetch_handler_stored(struct fetch_handler *f, uint64_t written, uint64_t whole,
                          uint64_t stored_bytes) ON_SHARD;

/* The first record that the log has to keep; UINT64_MAX: none. */
uint64_t fetch_handler_pin(const struct fetch_handler *f) ON_SHARD;

/* --- orders of the main thread --- */

/* Who fetches, from now on: the standby of that name, that has all up to `keep`. */
struct fetch_standby {
    uint64_t term, keep;
    enum terms_ack ack;
    char name[64]; /* of its hello */
    uint64_t pin_bytes_max;
    bool needs_disk; /* of a switch */
    bool takes_over; /* by itself, if it hears nothing of this psd: with --coord */
};

/* The log keeps records from this one on, until the standby has written them or too many come behind. */
void fetch_handler_hold(struct fetch_handler *f, uint64_t number, uint64_t bytes_max) ON_SHARD;
void fetch_handler_begin(struct fetch_handler *f, const struct fetch_standby *standby,
                         uint64_t last) ON_SHARD; /* last: the log's newest record */
void fetch_handler_end(struct fetch_handler *f) ON_SHARD;
void fetch_handler_close_gate(struct fetch_handler *f) ON_SHARD;
void fetch_handler_open_gate(struct fetch_handler *f) ON_SHARD;

/* TERMS says on the disk that the standby is in sync: so its replies say. Until the gate opens. */
void fetch_handler_set_in_sync(struct fetch_handler *f) ON_SHARD;

/* Another psd is the primary: no reply goes out any more that waits for the standby. */
void fetch_handler_seal(struct fetch_handler *f) ON_SHARD;

/* --- a switch: the standby is to become the primary --- */

/* No event goes into the log until fetch_handler_unpark(): pushes wait, unread. May be called again and again; view's
 * is_drained is true once nothing is left to be done: the standby has all, with `needs_disk` on its disk, and all
 * replies are out. is_still: the shard is not in the midst of a push. */
void fetch_handler_park(struct fetch_handler *f, bool is_still, bool needs_disk) ON_SHARD;
void fetch_handler_unpark(struct fetch_handler *f) ON_SHARD;

/* Seals, and tells the standby so with its next reply. Parked, for good. */
void fetch_handler_hand_over(struct fetch_handler *f) ON_SHARD;

/* --- requests --- */

int fetch_handler_receive(struct fetch_handler *f, struct request *r) ON_SHARD MUST_CHECK;
void fetch_handler_drop(struct fetch_handler *f, const struct connection *c) ON_SHARD;

/* A few times a second. */
void fetch_handler_tick(struct fetch_handler *f) ON_SHARD;

/* True once if pulls that waited for a GONE (reply_queue_shows_gone()) may be tried again. */
bool fetch_handler_has_moved(struct fetch_handler *f) ON_SHARD;

#endif
