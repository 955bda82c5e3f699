/*
 * A planned switch: this primary hands over to its standby, which is in sync, and is a standby itself from then on.
 *
 *     DRAINING     shards park pushes, unread     all of them: the standby has all, and all replies are out -> SEALING
 *                                                 too long, or the standby is lost -> NONE, and all goes on
 *     SEALING      each shard acknowledges nothing any more, and tells the standby so -> HANDED_OVER
 *     HANDED_OVER  the standby takes over once it has heard so of all shards; it is asked whether it has
 *                                                 yes, or the claim says so -> this psd ends, and follows it
 *                                                 it asks to follow -> it has not: this psd starts again
 *
 * From SEALING on there is no way back in this process: a standby that has heard of it may be the primary. So a psd
 * that is not sure starts again, and what a start does about a standby that was in sync holds
 * (server/replication/README.md). Without --coord it waits for an answer, however long; with it, of this psd's next
 * claim and its standby's one alone is made.
 */
#include "server/standby_server_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"

#define DRAIN_MS_MAX 2000u
#define CHECK_EVERY_MS 1u /* at the shards, while they drain */
#define ASK_SOON_MS 10u   /* the standby, in the first second */
#define ASK_LATER_MS 500u /* and after it */
#define DOUBT_MS 1000u

static uint64_t waited_ms(const struct standby_server *s)
{
    return clock_mono_ms() - s->switching.since_ms;
}

static void go_on(uv_timer_t *timer);

static void go_on_in(struct standby_server *s, uint64_t ms) ON_MAIN
{
    if (!s->is_closed)
        uv_timer_start(&s->switching.timer, go_on, ms, 0);
}

/* --- draining --- */

static int refuse_gone(const struct standby_server *s, struct err *err) ON_MAIN
{
    char since[CLOCK_TEXT_MAX];

    clock_utc_text(standby_server_gone_unix_ms(s), since);
    if (s->is_handed_over && !s->gone_ms && !s->is_followed)
        return err_set(err, -ENODATA,
                       "switch: %.100s has handed over at %s, and restarts as the standby: try "
                       "again in some seconds; if no psd runs there, start it",
                       s->terms.peer, since);
    return err_set(
        err, -ENODATA,
        "switch: standby %.100s is gone since %s: start psd there, and switch once it "
        "is in sync",
        s->terms.peer, since);
}

static int check_ready(const struct standby_server *s, struct err *err) ON_MAIN
{
    if (s->state != SERVER_SERVING || s->switching.step != SWITCH_NONE)
        return err_set(err, -EBUSY, "switch: %s",
                       s->switching.step != SWITCH_NONE ? "one is under way"
                                                        : "this psd is not serving yet");
    if (!s->terms.peer[0])
        return err_set(err, -ENODATA, "switch: this psd has no standby");
    if (s->terms.ack == TERMS_ACK_NO)
        return err_set(err, -ENODATA,
                       "switch: with --standby-ack no a standby is never in sync");
    if (standby_server_gone_unix_ms(s))
        return refuse_gone(s, err);
    if (!s->is_followed || s->sync.state != SYNC_IN || s->sync.ends)
        return err_set(
            err, -ENODATA,
            "switch: standby %.100s is not in sync yet: psctl cluster shows how far it is",
            s->terms.peer);
    if (s->coordination && !coordination_is_there(s->coordination))
        return err_set(err, -ENOTCONN, "switch: the coordination service does not answer");
    return standby_server_check_address(s, err);
}

/* Nothing has happened: pushes go on. */
static void cancel(struct standby_server *s, const char *why) ON_MAIN
{
    struct err err = { 0 };

    err_set(&err, -EAGAIN, "switch: given up, and this psd goes on as the primary: %s", why);
    log_line_warn("%s", err.text);
    s->switching.step = SWITCH_NONE;
    standby_server_order(s, SHARD_STANDBY_UNPARK);
    standby_server_end_switch(s, &err);
}

static bool is_drained(const struct standby_server *s)
{
    for (uint32_t i = 0; i < s->n_shards; i++)
        if (!atomic_load(&standby_shards_view(s->shards, i)->is_drained))
            return false;
    return true;
}

/* The shards have parked pushes, and said how far the standby is. */
static void check_drain(struct standby_server *s) ON_MAIN
{
    if (s->sync.state != SYNC_IN || s->sync.ends || !s->is_followed) {
        cancel(s, "the standby is not in sync any more");
    } else if (is_drained(s) && !standby_server_is_busy(s) && !s->is_claiming) {
        s->switching.step = SWITCH_SEALING;
        standby_server_ask_shards(s, SHARD_STANDBY_HAND_OVER, NULL);
    } else if (waited_ms(s) > DRAIN_MS_MAX) {
        cancel(s, "the standby did not get all that was under way within 2 s");
    } else {
        go_on_in(s, CHECK_EVERY_MS);
    }
}

int standby_server_switch(struct standby_server *s, standby_server_switched *done, void *arg,
                          struct err *err)
{
    int status = check_ready(s, err);

    if (!status && (s->request.step != FOLLOW_NONE || standby_shards_is_busy(s->shards)))
        status = err_set(err, -EBUSY, "switch: a standby begins to follow");
    if (status)
        return status;
    log_line_info("switch: %.100s is to become the primary, and pushes wait", s->terms.peer);
    s->switching.step = SWITCH_DRAINING;
    s->switching.since_ms = clock_mono_ms();
    s->switching.done = done;
    s->switching.arg = arg;
    standby_server_ask_shards(s, SHARD_STANDBY_PARK, NULL);
    return 0;
}

/* --- handed over --- */

static void begin_anew(struct standby_server *s, const char *why) ON_MAIN
{
    struct err err = { 0 };

    err_set(&err, -EIO, "switch: %.100s has not become the primary: %s", s->terms.peer, why);
    log_line_warn("%s", err.text);
    standby_server_end_switch(s, &err);
    s->state = SERVER_DEPOSED;
    s->config.restart(s->config.owner, "the standby has not taken over");
}

static void on_sealed(struct standby_server *s) ON_MAIN
{
    s->switching.step = SWITCH_HANDED_OVER;
    s->state = SERVER_HANDED_OVER;
    s->config.changed(s->config.owner);
    go_on_in(s, ASK_SOON_MS);
}

static void ask(struct standby_server *s) ON_MAIN
{
    const bool is_late = waited_ms(s) > DOUBT_MS;

    if (is_late && s->coordination && !s->is_claiming)
        begin_anew(s, "it does not claim so");
    else if (!standby_server_is_busy(s))
        standby_server_ask_peer(s);
    go_on_in(s, is_late ? ASK_LATER_MS : ASK_SOON_MS);
}

void standby_server_refuse_hand_over(struct standby_server *s)
{
    if (s->state == SERVER_HANDED_OVER)
        begin_anew(s, "it asks to follow this psd again");
}

/* --- steps --- */

static void go_on(uv_timer_t *timer)
{
    struct standby_server *s = timer->data;

    enter_main();
    if (s->is_closed)
        return;
    if (s->switching.step == SWITCH_DRAINING)
        standby_server_ask_shards(s, SHARD_STANDBY_PARK, NULL);
    else if (s->state == SERVER_HANDED_OVER)
        ask(s);
}

void standby_server_go_on_switching(struct standby_server *s)
{
    if (s->switching.step == SWITCH_DRAINING)
        check_drain(s);
    else if (s->switching.step == SWITCH_SEALING)
        on_sealed(s);
}
