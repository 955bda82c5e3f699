#include "tests/sim/desk.h"

#include <assert.h>
#include <stdlib.h>

void desk_answer(struct server *s, struct net_connection *c, struct message *m, int status)
{
    m->is_reply = true;
    m->status = status;
    if (m->type == MESSAGE_PULL || m->type == MESSAGE_BEAT)
        net_answer(&s->world->net, c, m);
    else
        logger_answer(&s->log, c, m);
}

void desk_keep(struct server_waiting **at, struct net_connection *c, const struct message *m)
{
    struct server_waiting *w = malloc(sizeof *w);

    assert(w);
    *w = (struct server_waiting){ .from = c, .message = *m };
    while (*at)
        at = &(*at)->next;
    *at = w;
}

void desk_drop(struct server_waiting **at, const struct net_connection *c)
{
    while (*at) {
        struct server_waiting *w = *at;

        if (c && w->from != c) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        free(w);
    }
}

int desk_find_worker(struct server *s, const struct net_connection *c, struct worker **ret)
{
    enter_shard();
    if (!c->has_joined)
        return PS_ENOJOIN;
    return roster_find(shard_roster(s->core), "job", c->worker, c->incarnation,
                       world_ms(s->world), ret);
}
