/*
 * One shard's thread: a loop, the shard, its connections, and a mailbox through which the main
 * thread gives it work. Everything that this shard owns is touched by this thread alone.
 *
 *     shard_thread_start -> (restore, open_log) -> serve -> receive ... -> drain -> (last checkpoint) -> stop -> join
 *
 * Before it serves nothing changes the shard by itself: what a start finds, and what a log that is not open
 * yet could not record, stays as it is.
 *
 * All functions but those marked are the main thread's.
 */
#ifndef SERVER_SHARD_THREAD_H
#define SERVER_SHARD_THREAD_H

#include "common/mailbox.h"
#include "proto/channel_loop.h"
#include "proto/message.h"
#include "server/admin/stats.h"
#include "server/core/shard.h"
#include "server/net/connection_limits.h"
#include "server/requests/fetch_handler.h"
#include "server/shard_checkpoint.h"
#include "server/shard_follower.h"

struct shard_thread;

struct shard_thread_config {
    struct shard_config core;
    uint32_t index; /* on this node */
    uint32_t frame_max_bytes;
    uint64_t frame_timeout_ms;
    struct tls_context *tls;              /* borrowed: of its own connections; NULL: plain */
    struct channel_memory *client_memory; /* borrowed: all shards' connections' */
    bool compress_replies;
    uint64_t checkpoint_bytes_per_s;   /* shard_checkpoint.h */
    const struct hello_reply *welcome; /* borrowed; filled in before the first connection */
    struct group_view *groups;         /* borrowed; NULL: this node has no standby */
};

int shard_thread_start(const struct shard_thread_config *config,
                       struct shard_thread **ret_thread, struct err *err) ON_MAIN MUST_CHECK;

/* Hands over a socket whose hello is good. Takes the socket when 0 is returned; the entry whatever is returned. */
int shard_thread_receive(struct shard_thread *t, const struct connection_socket *socket,
                         uint64_t request_id, const struct hello *hello,
                         struct connection_entry *entry) ON_MAIN MUST_CHECK;

/* Work for the thread; mail->run gets the shard_thread as its owner. -EPIPE once it stops. Any
 * thread. */
int shard_thread_post(struct shard_thread *t, struct mail *mail) MUST_CHECK;

/* Ends the loop; join waits for it and frees *t. */
void shard_thread_stop(struct shard_thread *t) ON_MAIN;
void shard_thread_join(struct shard_thread *t) ON_MAIN;

/* Its newest report: published_report_release() when read. Any thread. */
struct published_report *shard_thread_report(struct shard_thread *t);

/* The time of the thread's last sign of life, on the monotonic clock. Any thread. */
uint64_t shard_thread_alive_ms(const struct shard_thread *t);

/* Bytes that it has read for checkpoints so far. Any thread. */
uint64_t shard_thread_checkpoint_bytes(const struct shard_thread *t);

/* Of its write-ahead log: bytes written since it was opened, and whether it lacks records (shard_wal.h).
 * Any thread. */
uint64_t shard_thread_log_bytes(const struct shard_thread *t);
bool shard_thread_log_has_gap(const struct shard_thread *t);

/* For mail that is being run. */
struct shard *shard_thread_shard(struct shard_thread *t) ON_SHARD;
struct shard_checkpoint *shard_thread_checkpoint(struct shard_thread *t) ON_SHARD;

/* False before it serves, and from shard_threads_drain() on: nothing may change the shard. */
bool shard_thread_is_open(const struct shard_thread *t) ON_SHARD;

/* dispatch_tables_changed(). */
void shard_thread_tables_changed(struct shard_thread *t) ON_SHARD;

/* 0 if the shard's whole state is on the disk, also without a log; -EAGAIN: not yet; else a status with a sentence.
 * *record: 0 at the first call; unchanged until the result is not -EAGAIN. */
int shard_thread_await_log(struct shard_thread *t, uint64_t *record, struct err *err)
    ON_SHARD MUST_CHECK;

/* What the main thread has the standby's part do (standby_server.h). */
enum shard_thread_standby {
    SHARD_STANDBY_HOLD,  /* the log keeps all that it has from standby->keep + 1 on */
    SHARD_STANDBY_BEGIN, /* the standby may fetch */
    SHARD_STANDBY_END,
    SHARD_STANDBY_CLOSE_GATE,
    SHARD_STANDBY_OPEN_GATE,
    SHARD_STANDBY_IN_SYNC,
    SHARD_STANDBY_SEAL,
    SHARD_STANDBY_PARK, /* a switch (fetch_handler.h) */
    SHARD_STANDBY_UNPARK,
    SHARD_STANDBY_HAND_OVER
};

/* Returns the log's newest record; 0 without a log. standby: for HOLD, BEGIN and PARK. */
uint64_t shard_thread_standby(struct shard_thread *t, enum shard_thread_standby what,
                              const struct fetch_standby *standby) ON_SHARD;

/* How far the standby is. Any thread, once the shard's log is open. */
const struct fetch_view *shard_thread_fetch_view(const struct shard_thread *t);

/* The shard's time (dispatch.h). */
uint64_t shard_thread_now_ms(struct shard_thread *t) ON_SHARD;

/* The shard is as it was: from here on what changes it is logged. */
int shard_thread_open_log(struct shard_thread *t, const struct wal_writer_config *config,
                          const struct wal_end *end, struct err *err) ON_SHARD MUST_CHECK;

/* The same of a standby's: the shard is being replayed, and its log takes records of its primary. `needs`: see
 * server/replication/follower.h. */
int shard_thread_open_standby_log(struct shard_thread *t,
                                  const struct wal_writer_config *config,
                                  const struct wal_end *end, uint64_t needs, struct err *err)
    ON_SHARD MUST_CHECK;

/* From that call on: any thread for shard_follower_see(), else the shard's. NULL before. */
struct shard_follower *shard_thread_follower(struct shard_thread *t);

/* A standby's shard becomes the primary's: from here on what changes it is logged. */
void shard_thread_lead(struct shard_thread *t) ON_SHARD;

/* Posts a report of the shard's state. */
void shard_thread_publish(struct shard_thread *t) ON_SHARD;

/* To be called now and then by mail that takes long (arg: the shard_thread): renews its sign of life and
 * posts a report. */
void shard_thread_progress(void *arg);

/* --- all of a node --- */

/* `first`: of the first shard; the others have the next numbers. *ret: n of them, the caller's to free after
 * shard_threads_end(); none runs after a failure. */
int shard_threads_start(const struct shard_thread_config *first, uint32_t n,
                        struct shard_thread ***ret, struct err *err) ON_MAIN MUST_CHECK;

/* From here on time passes for the shards, leases from their beginning. Before the first connection. */
void shard_threads_serve(struct shard_thread **shards, uint32_t n) ON_MAIN;

/* They refuse parked requests, close all connections, and accept no more. In the order of posting: after earlier posts,
 * and before later ones, nothing changes a shard any more. */
void shard_threads_drain(struct shard_thread **shards, uint32_t n) ON_MAIN;

/* Ends their loops, and waits for all of them. */
void shard_threads_end(struct shard_thread **shards, uint32_t n) ON_MAIN;

#endif
