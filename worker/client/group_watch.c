#include "worker/client/group_watch.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/client/discovery.h"
#include "worker/client/watcher.h"

#define SEEK_MS 500u /* for each server that is asked */

/* Of one node. */
struct place {
    struct group known; /* under the greatest term; a standby that was there once stays */
    struct address at;  /* where its shards are */
    struct watcher watchers[2]; /* of primary and standby */
    bool is_away;
};

struct group_watch {
    struct group_watch_config config; /* its pointers to what was copied are not used */
    struct hello hello;
    struct address servers[DISCOVERY_SERVERS_MAX]; /* that are in no list of nodes */
    uint32_t n_servers, n_nodes;
    bool has_begun; /* events are wanted */
    struct watcher seeker;
    uint32_t seek_at; /* of the servers */
    uint64_t seek_ms;
    struct place places[]; /* n_nodes of them */
};

static bool parse(const char *text, struct address *ret)
{
    struct err err;

    return address_parse(text, strlen(text), ret, &err) == 0;
}

/* --- who is watched --- */

static void set_watcher(struct watcher *w, const char *text)
{
    struct address address;

    if (text[0] && parse(text, &address))
        watcher_set(w, &address);
    else
        watcher_stop(w);
}

static void set_watchers(struct place *p)
{
    set_watcher(&p->watchers[0], p->known.primary);
    set_watcher(&p->watchers[1], p->known.standby);
}

/* --- what is known --- */

/* Under the same term only the standby may be another one. */
static void learn_standby(struct place *p, const struct group *said)
{
    if (strcmp(said->primary, p->known.primary) != 0 || !said->standby[0] ||
        strcmp(said->standby, p->known.standby) == 0)
        return;
    memcpy(p->known.standby, said->standby, sizeof p->known.standby);
    set_watchers(p);
}

/* Who was the primary may come back as the standby. */
static void keep_standby(const struct group *was, struct group *now)
{
    const char *kept = strcmp(was->primary, now->primary) == 0 ? was->standby : was->primary;

    if (!now->standby[0])
        snprintf(now->standby, sizeof now->standby, "%s", kept);
}

static void learn_primary(struct group_watch *g, uint32_t node, const struct group *said)
{
    struct place *p = &g->places[node];
    struct group was = p->known;
    struct address from = p->at, to;

    if (!parse(said->primary, &to))
        return;
    p->known = *said;
    keep_standby(&was, &p->known);
    set_watchers(p);
    if (strcmp(was.primary, said->primary) == 0)
        return;
    p->at = to;
    if (g->has_begun)
        g->config.moved(g->config.owner, node, &from, &p->at, said->term);
}

void group_watch_learn(struct group_watch *g, const struct groups *groups)
{
    for (uint32_t i = 0; groups->n == g->n_nodes && i < g->n_nodes; i++) {
        const struct group *said = &groups->items[i];

        if (said->term > g->places[i].known.term)
            learn_primary(g, i, said);
        else if (said->term && said->term == g->places[i].known.term)
            learn_standby(&g->places[i], said);
    }
}

bool group_watch_is_behind(const struct group_watch *g, uint32_t node,
                           const struct groups *groups)
{
    uint64_t term = groups->n == g->n_nodes ? groups->items[node].term : 0;

    return term < g->places[node].known.term;
}

const struct address *group_watch_at(const struct group_watch *g, uint32_t node)
{
    return &g->places[node].at;
}

/* --- servers that are no node --- */

static void add_servers(struct group_watch *g, const struct group_watch_config *config)
{
    for (uint32_t i = 0; i < config->n_servers && i < DISCOVERY_SERVERS_MAX; i++) {
        bool is_node = config->n_servers == 1;

        for (uint32_t j = 0; j < g->n_nodes && !is_node; j++)
            is_node = strcmp(config->servers[i].text, config->reply->nodes[j]) == 0;
        if (!is_node)
            g->servers[g->n_servers++] = config->servers[i];
    }
}

static bool lacks_node(const struct group_watch *g)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->places[i].is_away)
            return true;
    return false;
}

static void tick_seeker(struct group_watch *g, uint64_t now_ms)
{
    if (!g->n_servers || !lacks_node(g)) {
        watcher_stop(&g->seeker);
        g->seek_ms = now_ms;
        return;
    }
    if (now_ms - g->seek_ms >= SEEK_MS) {
        g->seek_ms = now_ms;
        watcher_set(&g->seeker, &g->servers[g->seek_at++ % g->n_servers]);
    }
    watcher_tick(&g->seeker, now_ms);
}

/* --- the owner's calls --- */

void group_watch_set_away(struct group_watch *g, uint32_t node, bool is_away)
{
    struct place *p = &g->places[node];

    p->is_away = is_away;
    for (size_t i = 0; i < COUNT_OF(p->watchers); i++)
        watcher_set_hurry(&p->watchers[i], is_away);
}

void group_watch_tick(struct group_watch *g, uint64_t now_ms)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (size_t k = 0; g->places[i].known.term && k < COUNT_OF(g->places[i].watchers); k++)
            watcher_tick(&g->places[i].watchers[k], now_ms);
    tick_seeker(g, now_ms);
}

bool group_watch_is_quiet(const struct group_watch *g)
{
    if (!g)
        return true;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (size_t k = 0; k < COUNT_OF(g->places[i].watchers); k++)
            if (!watcher_is_quiet(&g->places[i].watchers[k]))
                return false;
    return watcher_is_quiet(&g->seeker);
}

/* --- its life --- */

static void on_groups(void *owner, const struct groups *groups)
{
    group_watch_learn(owner, groups);
}

static int init_places(struct group_watch *g, const struct group_watch_config *config,
                       struct err *err)
{
    const struct watcher_config watcher = { config->channels, &g->hello, on_groups, g };
    const struct hello_reply *r = config->reply;
    int status = 0;

    watcher_init(&g->seeker, &watcher);
    for (uint32_t i = 0; i < g->n_nodes && !status; i++) {
        struct place *p = &g->places[i];

        p->is_away = true;
        memcpy(p->known.primary, r->nodes[i], sizeof p->known.primary);
        for (size_t k = 0; k < COUNT_OF(p->watchers); k++)
            watcher_init(&p->watchers[k], &watcher);
        if (g->n_nodes == 1 && !r->status)
            p->at = *config->found;
        else
            status = address_parse(r->nodes[i], strlen(r->nodes[i]), &p->at, err);
    }
    return status;
}

/* A cluster of one node is reached where it was found, whatever it calls itself; but who has sent a client away may be
 * a standby that its primary does not know. */
static void use_found(struct group_watch *g, const struct group_watch_config *config)
{
    struct place *p = &g->places[config->reply->node];

    if (!config->reply->status && g->n_nodes == 1) {
        p->at = *config->found;
    } else if (config->reply->status && p->known.term && !p->known.standby[0]) {
        memcpy(p->known.standby, config->found->text, sizeof p->known.standby);
        set_watchers(p);
    }
}

int group_watch_new(const struct group_watch_config *config, struct group_watch **ret,
                    struct err *err)
{
    uint32_t n_nodes = config->reply->n_nodes;
    struct group_watch *g = memory_try_alloc(sizeof *g + n_nodes * sizeof(struct place));
    int status;

    if (!g)
        return err_set(err, -ENOMEM, "no memory for the addresses of %u nodes", n_nodes);
    g->config = *config;
    g->hello = *config->hello;
    g->hello.map_id = config->reply->map_id;
    g->n_nodes = n_nodes;
    status = init_places(g, config, err);
    if (status) {
        free(g);
        return status;
    }
    add_servers(g, config);
    group_watch_learn(g, &config->reply->groups);
    if (config->reply->node < n_nodes)
        use_found(g, config);
    g->has_begun = true;
    *ret = g;
    return 0;
}

void group_watch_free(struct group_watch *g)
{
    if (!g)
        return;
    watcher_stop(&g->seeker);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (size_t k = 0; k < COUNT_OF(g->places[i].watchers); k++)
            watcher_stop(&g->places[i].watchers[k]);
    free(g);
}
