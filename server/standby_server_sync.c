/* Is the standby in sync? What sync.h says is done here: gates, TERMS, and the claim with --coord. */
#include "server/standby_server_internal.h"

#include "common/clock.h"
#include "common/log_line.h"

#define CONNECT_MS 10000u
#define ASK_EVERY_MS 2000u
#define ASK_RISING_EVERY_MS 250u
#define COPY_IS_OF_USE_MS 10000u /* in sync for so long */
#define RISING_MS_MAX 40000u     /* longer than a standby takes to seal its shards */

/* --- what is written --- */

static void on_written(void *server)
{
    struct standby_server *s = server;

    enter_main();
    if (s->job.err.status && !s->write_err.status)
        log_line_error("whether the standby is in sync is not written, and replies wait: %s",
                       s->job.err.text);
    s->write_err = s->job.err;
    sync_note_write(&s->sync, s->job.err.status, clock_mono_ms());
    if (s->sync.state != SYNC_IN)
        return;
    s->copies.in_sync_ms = clock_mono_ms();
    s->asked_ms = 0; /* if it is lost soon, it is asked before this psd goes on alone */
    log_line_info("standby %.63s is in sync", s->name);
    standby_server_order(s, SHARD_STANDBY_IN_SYNC);
}

static void on_claimed(void *server, const struct err *err)
{
    struct standby_server *s = server;

    enter_main();
    s->is_claiming = false;
    s->job.err = *err;
    if (!err->status && !s->terms.in_sync)
        standby_server_write_terms(s, on_written);
    else
        on_written(s);
}

/* With --coord TERMS says at least what the claim says: "in sync" is written before it is claimed, "not" behind. */
static void claim_sync(void *server)
{
    struct standby_server *s = server;

    enter_main();
    if (s->job.err.status)
        on_written(s);
    else
        standby_server_claim(s, on_claimed);
}

/* Without --coord TERMS alone. */
static void write_sync(struct standby_server *s, bool in_sync) ON_MAIN
{
    s->terms.in_sync = in_sync;
    s->job.err = (struct err){ 0 };
    if (s->coordination && !in_sync)
        claim_sync(s);
    else
        standby_server_write_terms(s, s->coordination ? claim_sync : on_written);
}

/* --- the tick --- */

/* A standby that never came, or has gone, is not waited for: another one may follow. */
static void check_follower(struct standby_server *s, uint64_t now_ms) ON_MAIN
{
    const struct sync_shard *shards = standby_shards_query(s->shards);
    uint32_t n = 0;

    if (!s->is_followed)
        return;
    for (uint32_t i = 0; i < s->n_shards; i++)
        n += shards[i].is_connected;
    if (n == s->n_shards)
        s->was_connected = true;
    else if (s->sync.state == SYNC_OUT &&
             (s->was_connected ||
              (!s->follower_connection && now_ms > s->followed_ms + CONNECT_MS))) {
        log_line_warn("standby %.63s has gone", s->name);
        s->is_followed = false;
        s->gone_ms = now_ms;
        standby_server_order(s, SHARD_STANDBY_END);
    }
}

static bool is_whole(struct standby_server *s) ON_MAIN
{
    const struct sync_shard *shards = standby_shards_query(s->shards);
    uint32_t n = 0;

    while (n < s->n_shards && shards[n].is_connected)
        n++;
    return n == s->n_shards;
}

/* How long an answer counts: one from before a connection ended says nothing about why it did. */
static uint64_t asks_every_ms(struct standby_server *s) ON_MAIN
{
    if (s->sync.state != SYNC_IN)
        return ASK_EVERY_MS;
    if (s->asked_whole && !is_whole(s))
        return 0;
    return s->rises_ms ? ASK_RISING_EVERY_MS : s->sync.patience_ms / 2;
}

/* A standby that is lost may have been promoted, as where this psd was stopped or cut off: so it is asked before this
 * one goes on alone, and from then on again and again while there is none. */
static bool asks_whether_it_is_promoted(struct standby_server *s, uint64_t now_ms) ON_MAIN
{
    const bool is_in = s->sync.state == SYNC_IN;

    if (s->coordination || !s->terms.peer[0] || s->request.step != FOLLOW_NONE ||
        now_ms < s->asked_ms + asks_every_ms(s))
        return false;
    if (is_in ? !sync_seems_lost(&s->sync, standby_shards_query(s->shards), s->n_shards, now_ms)
              : s->is_followed || s->sync.state != SYNC_OUT)
        return false;
    s->asked_whole = is_whole(s);
    standby_server_ask_peer(s);
    return true;
}

/* It has sealed, and is a primary before long, or asks to follow. */
static bool is_rising(const struct standby_server *s, uint64_t now_ms)
{
    return s->rises_ms && s->sync.state == SYNC_IN && now_ms < s->rises_ms + RISING_MS_MAX;
}

/* Replies would wait for a service that is away, though the primary may go on alone. */
static bool may_join(struct standby_server *s) ON_MAIN
{
    return s->sync.state != SYNC_OUT || !s->coordination ||
           coordination_is_there(s->coordination);
}

static void step_sync(struct standby_server *s, uint64_t now_ms) ON_MAIN
{
    if (standby_server_is_busy(s) || s->is_claiming || asks_whether_it_is_promoted(s, now_ms) ||
        is_rising(s, now_ms))
        return;
    switch (sync_step(&s->sync, standby_shards_query(s->shards), s->n_shards,
                      s->is_followed && s->terms.ack != TERMS_ACK_NO && may_join(s), now_ms)) {
    case SYNC_NOTHING:
        break;
    case SYNC_CLOSE_GATES:
        standby_server_order(s, SHARD_STANDBY_CLOSE_GATE);
        break;
    case SYNC_OPEN_GATES:
        log_line_warn("standby %.63s is out of sync: replies do not wait for it", s->name);
        standby_server_order(s, SHARD_STANDBY_OPEN_GATE);
        break;
    case SYNC_WRITE_YES:
        write_sync(s, true);
        break;
    case SYNC_WRITE_NO:
        write_sync(s, false);
        break;
    }
}

/* One that finds differing rows, or a record that it cannot read, does so before long. */
static void forgive_copies(struct standby_server *s, uint64_t now_ms)
{
    if (s->sync.state == SYNC_IN && now_ms > s->copies.in_sync_ms + COPY_IS_OF_USE_MS)
        s->copies.n = 0;
}

void standby_server_tick_sync(struct standby_server *s, uint64_t now_ms)
{
    forgive_copies(s, now_ms);
    step_sync(s, now_ms);
    check_follower(s, now_ms);
}
