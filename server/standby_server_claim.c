/* What a primary claims of the coordination service (coordination.h): its term, and whether its standby is in sync. */
#include "server/standby_server_internal.h"

#include <errno.h>
#include <stdio.h>

const struct claim *standby_server_claim_of_another(const struct standby_server *s)
{
    const struct claim *c = s->coordination ? coordination_claim(s->coordination) : NULL;
    const bool is_over = c && s->state == SERVER_SERVING && c->term > terms_last(&s->terms);

    return c && (is_over || !coordination_is_own(s->coordination)) ? c : NULL;
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
    if (!standby_server_claim_of_another(s)) {
        coordination_write(s->coordination, &claim, done, s);
        return;
    }
    err_set(&err, -EEXIST, "the coordination service names another psd as the primary");
    done(s, &err);
}
