/* The primary's side of a standby, as operators and refused workers see it. */
#include "server/standby_server_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"

#define FOLLOW_SLOW_MS 500u  /* a FOLLOW that waits longer is told, */
#define COPY_SLOW_MS 5000u   /* and a standby that copies, and asks for nothing */
#define ASKS_WITHIN_MS 5000u /* a standby that lives, and does not follow, asks more often */

static const char *named_primary(const struct standby_server *s) ON_MAIN
{
    const struct claim *c = coordination_claim(s->coordination);

    return c ? c->primary : "another psd";
}

/* How long the standby has been silent, if that makes pulls wait; 0: it does not. */
static uint64_t pulls_wait_ms(const struct standby_server *s) ON_MAIN
{
    const uint64_t now_ms = clock_mono_ms();
    uint64_t longest_ms = 0;

    for (uint32_t i = 0; i < s->n_shards && s->state != SERVER_OFF; i++) {
        const uint64_t silent_ms =
            fetch_handler_silent_ms(standby_shards_view(s->shards, i), now_ms);

        longest_ms = silent_ms > longest_ms ? silent_ms : longest_ms;
    }
    return longest_ms;
}

/* Since when the log of a shard keeps nothing for the standby, which was too long away; 0: all do. */
static uint64_t dropped_ms(const struct standby_server *s) ON_MAIN
{
    uint64_t first_ms = 0;

    for (uint32_t i = 0; i < s->n_shards; i++) {
        const uint64_t ms = atomic_load(&standby_shards_view(s->shards, i)->dropped_ms);

        if (ms && (!first_ms || ms < first_ms))
            first_ms = ms;
    }
    return first_ms;
}

static void describe_dropped(const struct standby_server *s, struct stats_standby *ret) ON_MAIN
{
    const uint64_t since_ms = dropped_ms(s);
    uint64_t ago_ms;

    if (!since_ms || !s->terms.peer[0])
        return;
    ago_ms = clock_mono_ms() - since_ms;
    ret->dropped_unix_ms = clock_unix_ms() - ago_ms;
    snprintf(ret->note, sizeof ret->note,
             "the log keeps no more for the standby, which is more than --standby-log-max "
             "behind: it has to copy again");
}

static void describe_copy(const struct standby_server *s, struct stats_standby *ret) ON_MAIN
{
    const uint64_t silent_ms = standby_copy_silent_ms(s->copy, clock_mono_ms());

    if (silent_ms >= COPY_SLOW_MS)
        snprintf(
            ret->note, sizeof ret->note,
            "standby %.63s has asked for nothing for %u s in the middle of its copy: after "
            "%u s it is given up",
            standby_copy_of(s->copy)->hello.name, (unsigned)(silent_ms / 1000),
            STANDBY_COPY_SILENCE_MS / 1000);
}

void standby_server_describe_doubt(const struct standby_server *s, char *dst, size_t n_bytes)
{
    const struct claim *c = s->is_foreign ? coordination_claim(s->coordination) : NULL;

    if (!s->is_foreign && !s->terms.peer[0])
        snprintf(dst, n_bytes, "it is not known yet who is the primary");
    else if (s->is_older && !s->is_foreign)
        snprintf(dst, n_bytes,
                 "its data directory is an older copy: standby %.127s has newer data, and "
                 "serves it once it is promoted there",
                 s->terms.peer);
    else if (!s->is_foreign)
        snprintf(dst, n_bytes, "standby %.127s may %s", s->terms.peer,
                 s->log_has_all ? "be the primary by now" : "have more than this node's log");
    else if (!c || !c->standby[0])
        snprintf(dst, n_bytes,
                 "its data directory has not the group's data, and there is no standby");
    else
        snprintf(dst, n_bytes,
                 "its data directory has not the group's data, %s standby %.127s%s",
                 c->in_sync ? "which" : "and", c->standby,
                 c->in_sync ? " has" : " may not have all of it");
}

void standby_server_describe_awaited(const struct standby_server *s, char *dst, size_t n_bytes)
{
    const struct claim *c = s->is_foreign ? coordination_claim(s->coordination) : NULL;
    const char *until = !s->is_foreign && s->is_older      ? " until then"
                        : !s->is_foreign                   ? " until it follows"
                        : c && c->standby[0] && c->in_sync ? " until that is the primary"
                                                           : "";
    char doubt[DOUBT_MAX];

    standby_server_describe_doubt(s, doubt, sizeof doubt);
    snprintf(dst, n_bytes, "%s: workers are refused%s", doubt, until);
}

static bool is_rising(const struct standby_server *s)
{
    return s->rises_ms && s->state == SERVER_SERVING && s->sync.state == SYNC_IN;
}

static bool follow_waits(const struct standby_server *s)
{
    return s->request.step == FOLLOW_LEAVING && s->state == SERVER_SERVING &&
           clock_mono_ms() > s->request.since_ms + FOLLOW_SLOW_MS;
}

static uint64_t waited_ms(const struct standby_server *s, uint64_t silent_ms) ON_MAIN
{
    const uint64_t since_ms = s->switching.step != SWITCH_NONE ? s->switching.since_ms
                              : is_rising(s)                   ? s->rises_ms
                              : follow_waits(s)                ? s->request.since_ms
                                                               : s->since_ms;

    return silent_ms ? silent_ms : clock_mono_ms() - since_ms;
}

static void describe_wait(const struct standby_server *s, struct stats_standby *ret) ON_MAIN
{
    const uint64_t silent_ms = pulls_wait_ms(s);
    char wait[COORDINATION_WAIT_MAX];

    ret->wait_since_unix_ms = clock_unix_ms() - waited_ms(s, silent_ms);
    if (standby_server_describe_lost_claim(s, ret->wait, sizeof ret->wait))
        return;
    if (s->write_err.status)
        snprintf(ret->wait, sizeof ret->wait, "TERMS cannot be written: %s", s->write_err.text);
    else if (s->coordination && coordination_is_waiting(s->coordination, wait) &&
             s->state == SERVER_SERVING)
        snprintf(ret->wait, sizeof ret->wait,
                 "replies wait until the coordination service has noted whether standby %.127s "
                 "is in sync%s",
                 s->terms.peer, silent_ms ? "; pulls wait, too" : "");
    else if (silent_ms)
        snprintf(ret->wait, sizeof ret->wait,
                 "standby %.127s does not answer, and may be the primary by now: pulls wait",
                 s->terms.peer);
    else if (s->coordination && coordination_is_waiting(s->coordination, wait))
        snprintf(ret->wait, sizeof ret->wait, "%s", wait);
    else if (s->has_other_data)
        snprintf(ret->wait, sizeof ret->wait,
                 "%.127s is the primary there, and the data here is not of its cluster: is the "
                 "name behind --coord's slash right?",
                 named_primary(s));
    else if (s->state == SERVER_HANDED_OVER)
        snprintf(ret->wait, sizeof ret->wait,
                 "switch: %.127s is to become the primary, and has not said that it is",
                 s->terms.peer);
    else if (s->switching.step != SWITCH_NONE)
        snprintf(ret->wait, sizeof ret->wait,
                 "switch: pushes wait until standby %.127s has all that is acknowledged",
                 s->terms.peer);
    else if (s->state == SERVER_AWAITED)
        standby_server_describe_awaited(s, ret->wait, sizeof ret->wait);
    else if (is_rising(s))
        snprintf(
            ret->wait, sizeof ret->wait,
            "standby %.127s is becoming the primary: replies wait until it is, or says that "
            "it is not",
            s->terms.peer);
    else if (follow_waits(s))
        snprintf(ret->wait, sizeof ret->wait,
                 "%.127s asks to follow, and waits until standby %.127s is out of sync",
                 s->request.asked.address, s->terms.peer);
}

bool standby_server_is_waiting(const struct standby_server *s, struct err *ret)
{
    char wait[COORDINATION_WAIT_MAX], doubt[DOUBT_MAX];

    if (s->state == SERVER_HANDED_OVER) {
        err_set(ret, PS_ESTOPPING,
                "psd hands over to %.100s, which has not said that it is the primary",
                s->terms.peer);
        return true;
    }
    if (s->state != SERVER_ASKING && s->state != SERVER_AWAITED && s->state != SERVER_BEGINNING)
        return false;
    if (s->coordination && coordination_is_waiting(s->coordination, wait))
        err_set(ret, PS_ESTOPPING, "psd is not ready yet: %s", wait);
    else if (s->has_other_data)
        err_set(
            ret, PS_ESTOPPING,
            "psd is not ready yet: %.127s is the primary there, and the data here is not of "
            "its cluster: is the name behind --coord's slash right?",
            named_primary(s));
    else if (s->state == SERVER_BEGINNING || s->write_err.status)
        err_set(ret, PS_ESTOPPING,
                "psd is not ready yet: its new term goes to the disk%s%.160s",
                s->write_err.status ? ": " : "", s->write_err.text);
    else {
        standby_server_describe_doubt(s, doubt, sizeof doubt);
        err_set(ret, PS_ESTOPPING,
                "psd is not ready yet: %s; psctl promote --accept-loss serves at once", doubt);
    }
    return true;
}

static const char *state_name(const struct standby_server *s)
{
    if (s->state == SERVER_ASKING || s->state == SERVER_AWAITED)
        return "awaits its standby";
    if (s->state == SERVER_BEGINNING)
        return "begins a term";
    if (s->state == SERVER_DEPOSED)
        return "deposed";
    if (s->switching.step != SWITCH_NONE)
        return "hands over";
    if (standby_copy_of(s->copy))
        return "standby copies";
    if (!s->is_followed)
        return "no standby";
    return s->sync.state == SYNC_OUT ? "standby follows" : sync_state_name(s->sync.state);
}

/* The last word of the shard's standby that has been silent for longest, if that is too long, or its connection has
 * ended; 0: all are heard. */
static uint64_t silent_since_ms(const struct standby_server *s, uint64_t now_ms) ON_MAIN
{
    const struct sync_shard *shards = standby_shards_query(s->shards);
    uint64_t first_ms = 0;

    for (uint32_t i = 0; i < s->n_shards; i++) {
        const uint64_t heard_ms =
            shards[i].heard_ms > s->followed_ms ? shards[i].heard_ms : s->followed_ms;

        const bool is_lost = s->was_connected && !shards[i].is_connected;

        if ((is_lost || now_ms > heard_ms + s->sync.patience_ms) &&
            (!first_ms || heard_ms < first_ms))
            first_ms = heard_ms;
    }
    return first_ms;
}

uint64_t standby_server_gone_unix_ms(const struct standby_server *s)
{
    const uint64_t now_ms = clock_mono_ms();
    uint64_t gone_ms, ago_ms, gone_unix_ms;

    if (!s->terms.peer[0] || s->state != SERVER_SERVING || standby_copy_of(s->copy))
        return 0;
    if (!s->is_followed && s->asked_to_follow_ms > s->gone_ms &&
        now_ms < s->asked_to_follow_ms + ASKS_WITHIN_MS)
        return 0;
    gone_ms = s->is_followed ? silent_since_ms(s, now_ms)
              : s->gone_ms   ? s->gone_ms
                             : s->since_ms;
    ago_ms = now_ms - gone_ms;
    gone_unix_ms = clock_unix_ms() - ago_ms;
    return gone_ms ? gone_unix_ms : 0;
}

/* With --standby-ack no a standby is never in sync: that it follows is all that can be asked for. */
static bool is_missing(const struct standby_server *s) ON_MAIN
{
    if (s->terms.ack == TERMS_ACK_NO)
        return s->terms.peer[0] && !s->is_followed;
    return s->terms.peer[0] && s->sync.state != SYNC_IN;
}

/* While another one follows, only one that has the data which this psd lacks is worth a word. */
static bool shows_refused(const struct standby_server *s) ON_MAIN
{
    return s->refused.why[0] && (s->refused.has_the_data || !s->is_followed) &&
           clock_mono_ms() <= s->refused.asked_ms + STANDBY_SERVER_REFUSED_FOR_MS;
}

static void describe_refused(const struct standby_server *s, struct stats_standby *ret) ON_MAIN
{
    const size_t n = strlen(ret->wait);
    uint64_t ago_ms;

    if (!shows_refused(s))
        return;
    ret->is_on = ret->is_missing = true;
    if (s->refused.has_the_data)
        snprintf(ret->refusal, sizeof ret->refusal, "%s", s->refused.why);
    else
        snprintf(ret->refusal, sizeof ret->refusal, "standby %.127s is refused: %s",
                 s->refused.address, s->refused.why);
    if (!ret->peer[0]) {
        snprintf(ret->peer, sizeof ret->peer, "%s", s->refused.address);
        ret->peer_is_refused = true;
    }
    if (s->state == SERVER_AWAITED && n)
        snprintf(ret->wait + n, sizeof ret->wait - n, "; %s", ret->refusal);
    if (n)
        return;
    ago_ms = clock_mono_ms() - s->refused.since_ms;
    ret->wait_since_unix_ms = clock_unix_ms() - ago_ms;
}

void standby_server_report(const struct standby_server *s, struct stats_standby *ret)
{
    *ret = (struct stats_standby){ .is_on = s->terms.history != 0,
                                   .term = terms_last(&s->terms),
                                   .in_sync = s->sync.state == SYNC_IN,
                                   .is_rising = s->state == SERVER_HANDED_OVER,
                                   .is_missing = is_missing(s),
                                   .gone_unix_ms = standby_server_gone_unix_ms(s) };
    describe_wait(s, ret);
    snprintf(ret->role, sizeof ret->role, "primary");
    snprintf(ret->state, sizeof ret->state, "%s", state_name(s));
    snprintf(ret->peer, sizeof ret->peer, "%s", s->terms.peer);
    snprintf(ret->note, sizeof ret->note, "%s", s->note);
    describe_refused(s, ret);
    if (s->state != SERVER_OFF) {
        ret->n_differences = standby_shards_differences(s->shards);
        describe_dropped(s, ret);
        describe_copy(s, ret);
        standby_server_describe_address(s, ret->note, sizeof ret->note);
    }
    if (s->is_followed)
        standby_shards_lag(s->shards, &ret->lag_records, &ret->lag_ms);
}
