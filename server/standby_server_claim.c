/*
 * What a primary claims of the coordination service (coordination.h): its term, and whether its standby is in sync.
 *
 * A claim can be lost: etcd's keys were deleted, etcd was restored from a copy, or replaced. A primary that serves
 * finds none then, or an older one, and claims again, over just what it has read. Its term was claimed before it
 * served, so a claim of a smaller term is older than its own, and one of a greater term ends it as ever. But the
 * service may have lost a takeover of which this psd has never heard. So it claims only if nobody can have taken over
 * from it:
 *
 *     its standby is not in sync, by its own claim    a standby takes over only by a claim that says "in sync"
 *     all shards of its standby ask for records,      a standby that takes over asks for nothing more before it claims
 *     STANDBY_SERVER_AGREEMENT_MS after the loss was seen
 *     or its standby has asked to follow it then      one that has taken over does not
 *
 * Else it writes nothing, and its replies wait for the standby: it acknowledges nothing alone. A standby takes over by
 * no claim that may be older than what it knew (coordination_is_doubtful()). What is left is a copy of the service from
 * when a standby was in sync which is not any more, or the other way round, while one of both is cut off and has not
 * seen that the service went back, or is down and starts by that copy.
 */
#include "server/standby_server_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "common/clock.h"
#include "common/log_line.h"

/* A claim of a smaller term than the one that is served is from before this psd's own. */
const struct claim *standby_server_claim_of_another(const struct standby_server *s)
{
    const struct claim *c = s->coordination ? coordination_claim(s->coordination) : NULL;
    const bool serves = c && s->state == SERVER_SERVING;

    if (serves && c->term != terms_last(&s->terms))
        return c->term > terms_last(&s->terms) ? c : NULL;
    return c && !coordination_is_own(s->coordination) ? c : NULL;
}

/* It serves, and the service does not have its claim. */
static bool is_lost(const struct standby_server *s) ON_MAIN
{
    const struct claim *c = s->coordination ? coordination_claim(s->coordination) : NULL;

    return s->coordination && s->state == SERVER_SERVING &&
           coordination_is_there(s->coordination) && !standby_server_claim_of_another(s) &&
           (!c || c->term < terms_last(&s->terms) || coordination_is_doubtful(s->coordination));
}

/* Nobody has taken over from this psd. */
static bool is_the_primary(const struct standby_server *s) ON_MAIN
{
    const struct sync_shard *shards = standby_shards_query(s->shards);
    uint32_t n = 0;

    if (s->sync.state == SYNC_OUT || s->sync.state == SYNC_JOINING)
        return true;
    if (!s->claim_lost_ms)
        return false;
    while (n < s->n_shards && shards[n].is_connected &&
           shards[n].heard_ms > s->claim_lost_ms + STANDBY_SERVER_AGREEMENT_MS)
        n++;
    return n == s->n_shards ||
           s->asked_to_follow_ms > s->claim_lost_ms + STANDBY_SERVER_AGREEMENT_MS;
}

bool standby_server_describe_lost_claim(const struct standby_server *s, char *dst,
                                        size_t n_bytes)
{
    if (!is_lost(s) || is_the_primary(s))
        return false;
    snprintf(dst, n_bytes,
             "the coordination service has lost this psd's claim, and standby %.127s may have "
             "taken over: once that one follows, this psd claims again; if it is dead, restart "
             "this psd, then psctl promote --accept-loss here",
             s->terms.peer);
    return true;
}

void standby_server_claim(struct standby_server *s,
                          void (*done)(void *server, const struct err *err))
{
    struct claim claim = { .term = terms_last(&s->terms),
                           .history = s->terms.history,
                           .in_sync = s->terms.in_sync };
    struct err err = { 0 };

    if (s->state == SERVER_SERVING)
        snprintf(claim.standby, sizeof claim.standby, "%s", s->terms.peer);
    s->is_claiming = true;
    if (standby_server_claim_of_another(s))
        err_set(&err, -EEXIST, "the coordination service names another psd as the primary");
    else if (is_lost(s) && !is_the_primary(s))
        err_set(&err, -EEXIST, "the coordination service has lost this psd's claim");
    else {
        coordination_write(s->coordination, &claim, done, s);
        return;
    }
    done(s, &err);
}

static void on_reclaimed(void *server, const struct err *err)
{
    struct standby_server *s = server;

    enter_main();
    s->is_claiming = false;
    if (err->status) /* another claim is there now */
        log_line_warn("coord: this psd does not claim again: %s", err->text);
    else
        log_line_warn("coord: the claim of this psd was lost, and is there again: it is the "
                      "primary, of term %" PRIu64,
                      terms_last(&s->terms));
}

void standby_server_tick_claim(struct standby_server *s, uint64_t now_ms)
{
    if (!is_lost(s)) {
        s->claim_lost_ms = 0;
        return;
    }
    if (!s->claim_lost_ms)
        s->claim_lost_ms = now_ms;
    if (s->is_claiming || standby_server_is_busy(s) || s->request.step > FOLLOW_LEAVING ||
        s->switching.step != SWITCH_NONE || !is_the_primary(s))
        return;
    standby_server_claim(s, on_reclaimed);
}
