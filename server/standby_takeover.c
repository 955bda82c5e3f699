/* A standby that takes over by itself: when its primary is silent, and the claim says that it may (coordination.h). */
#include "server/standby_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "server/standby_role.h"

#define RETRY_MS 500u

static uint64_t patience_ms(const struct standby *s) ON_MAIN
{
    return coordination_patience_ms(s->config.coordination,
                                    s->config.settings->failover_after_ms);
}

/* No process listens where the primary was, or nothing is heard of it. */
static bool is_silent(const struct standby *s, uint64_t now_ms) ON_MAIN
{
    const uint64_t heard_ms = standby_heard_ms(s);

    if (s->state == STANDBY_DIALLING && s->session.is_nobody_there)
        return true;
    return now_ms > (heard_ms > s->woke_ms ? heard_ms : s->woke_ms) + patience_ms(s);
}

/* While this psd stood still it heard nobody: what came meanwhile is read only now. */
static void note_pause(struct standby *s, uint64_t now_ms)
{
    if (now_ms > s->ticked_ms + s->config.settings->failover_after_ms / 2)
        s->woke_ms = now_ms;
    s->ticked_ms = now_ms;
}

/* --- the claim names another primary than the one that is dialled --- */

static void on_turned(struct standby *s)
{
    enter_main();
    if (s->err.status)
        standby_fail(s);
    else
        s->config.events->restart(s->config.node,
                                  "the coordination service names another psd as the primary");
}

static int write_turn(struct standby *s, struct err *err)
{
    int status = standby_role_note_done(s->config.files, s->config.settings, err);

    return status ? status : standby_write_terms(s, err);
}

/* One that was left out of a failover: neither its directory nor --standby knows of that. Its own term, which it has
 * followed in this run, is no other one, whatever its primary calls itself. */
static bool has_to_turn(const struct standby *s) ON_MAIN
{
    const struct claim *c = coordination_claim(s->config.coordination);

    return c && s->state == STANDBY_DIALLING && s->n_failed && !s->is_working &&
           !s->n_outstanding && !coordination_is_own(s->config.coordination) &&
           c->term != s->followed_term && strcmp(c->primary, s->config.primary) != 0 &&
           (!s->terms.history || s->terms.history == c->history);
}

static void turn(struct standby *s) ON_MAIN
{
    const struct claim *c = coordination_claim(s->config.coordination);

    log_line_info("coord: %.100s is the primary, of term %" PRIu64 ", and this psd follows it "
                  "from now on",
                  c->primary, c->term);
    standby_session_drop(&s->session);
    standby_set_state(s, STANDBY_READING);
    s->terms.role = TERMS_STANDBY;
    snprintf(s->terms.peer, sizeof s->terms.peer, "%s", c->primary);
    standby_start_job(s, write_turn, on_turned);
}

void standby_watch_primary(struct standby *s, uint64_t now_ms)
{
    struct err err = { 0 };

    note_pause(s, now_ms);
    if ((s->state != STANDBY_DIALLING && s->state != STANDBY_FOLLOWING) ||
        now_ms < s->take_over_ms || !coordination_is_there(s->config.coordination))
        return;
    if (has_to_turn(s)) {
        turn(s);
        return;
    }
    if (!standby_is_claimed(s) && !(standby_is_named(s) && is_silent(s, now_ms)))
        return;
    s->take_over_ms = now_ms + RETRY_MS;
    log_line_warn("%s is silent, and this standby takes over", s->config.primary);
    if (standby_promote(s, STANDBY_OTHER_IS_DEAD | STANDBY_BY_ITSELF, NULL, NULL, &err))
        log_line_error("%s", err.text);
}

/* Why not, of a claim that does not let it. */
static const char *claim_fault(const struct standby *s) ON_MAIN
{
    const struct claim *c = coordination_claim(s->config.coordination);

    if (!coordination_is_there(s->config.coordination))
        return "the coordination service does not answer";
    if (!c)
        return "nobody has claimed to be the primary (psctl promote)";
    if (coordination_is_doubtful(s->config.coordination))
        return "etcd was restored or replaced, and the primary has claimed nothing since "
               "(psctl "
               "promote --accept-loss)";
    if (!c->in_sync || strcmp(c->standby, s->config.own_address) != 0)
        return "it is not in sync (psctl promote --accept-loss)";
    return "it has not followed it since its own start (psctl promote --accept-loss)";
}

void standby_describe_hindrance(const struct standby *s, char *dst, size_t n_bytes)
{
    const uint64_t now_ms = clock_mono_ms();

    dst[0] = '\0';
    if (!s->config.coordination || s->is_promoting ||
        (s->state != STANDBY_DIALLING && s->state != STANDBY_FOLLOWING) ||
        !is_silent(s, now_ms))
        return;
    if (!s->unable[0] && !s->session.is_nobody_there && now_ms < s->since_ms + patience_ms(s))
        return;
    if (!s->unable[0] && coordination_is_there(s->config.coordination) &&
        (standby_is_named(s) || standby_is_claimed(s)))
        return;
    snprintf(dst, n_bytes, "%s is silent, and this standby does not take over: %s",
             s->config.primary, s->unable[0] ? s->unable : claim_fault(s));
}
