/*
 * Is the standby where it says that it is? It dials this psd, so nobody else finds out before it is the primary. It is
 * asked at its address while it follows, as workers will: a failure is said, and no switch begins.
 */
#include "server/standby_server_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"

#define ASK_EVERY_MS 10000u
#define RETRY_MS 1000u /* after a failure */

static void on_answer(void *server, const struct err *err, const struct peer_answer *answer)
{
    struct standby_server *s = server;

    (void)answer;
    enter_main();
    s->address.is_known = true;
    s->address.n_failed = err->status ? s->address.n_failed + 1 : 0;
    s->address.next_ms = clock_mono_ms() + (err->status ? RETRY_MS : ASK_EVERY_MS);
    if (err->status && !s->address.why[0])
        log_line_warn("standby %.100s does not answer there, though it says that this is its "
                      "address: workers would not find it (--advertise): %s",
                      s->terms.peer, err->text);
    snprintf(s->address.why, sizeof s->address.why, "%.150s", err->status ? err->text : "");
}

static void drop_answer(struct standby_server *s) ON_MAIN
{
    peer_query_drop(&s->address.query);
    s->address.is_known = false;
    s->address.why[0] = '\0';
    s->address.n_failed = 0;
    s->address.next_ms = 0;
}

void standby_server_tick_address(struct standby_server *s, uint64_t now_ms)
{
    const struct peer_answer nothing = { 0 };
    struct err err = { 0 };

    peer_query_tick(&s->address.query, now_ms);
    if (strcmp(s->address.query.peer, s->terms.peer) != 0 || !s->is_followed)
        drop_answer(s);
    if (!s->is_followed || !s->terms.peer[0] || s->state != SERVER_SERVING ||
        peer_query_is_running(&s->address.query) || now_ms < s->address.next_ms)
        return;
    snprintf(s->address.query.peer, sizeof s->address.query.peer, "%s", s->terms.peer);
    if (peer_query_start(&s->address.query, &s->channels, s->terms.peer, s->config.own_address,
                         s->config.settings->token, s->config.welcome->node, PEER_QUERY_MS,
                         on_answer, s, &err))
        on_answer(s, &err, &nothing);
}

void standby_server_describe_address(const struct standby_server *s, char *dst, size_t n_bytes)
{
    if (s->address.n_failed > 1) /* one may be a machine that is busy */
        snprintf(dst, n_bytes,
                 "standby %.63s does not answer at that address, so workers would not find it "
                 "after a failover: is its --advertise right?",
                 s->terms.peer);
}

int standby_server_check_address(const struct standby_server *s, struct err *err)
{
    if (!s->address.is_known)
        return err_set(err, -EAGAIN, "switch: standby %.100s has just come: try again",
                       s->terms.peer);
    if (s->address.why[0])
        return err_set(
            err, -EHOSTUNREACH,
            "switch: the standby does not answer where it says that it is, so workers "
            "would not find it: %.128s (its --advertise)",
            s->address.why);
    return 0;
}
