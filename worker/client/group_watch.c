/*
 * First the watcher: a connection on which one psd is asked who the primaries are (FRAME_WATCH), and asked once more
 * after each answer. It answers at once, and then when something has changed. A failed attempt is repeated as long as
 * the watcher has an address. Behind it what a client believes, and whom it asks.
 *
 *     state      waits for              leaves it by
 *     OFF        watcher_set()          -> IDLE
 *     IDLE       its next attempt       -> DUE
 *     DUE        the next tick          -> DIALING    (a tick later: cluster_client_is_steady())
 *     DIALING    TCP                    -> HANDSHAKE
 *     HANDSHAKE  HelloReply             -> OPEN
 *     OPEN       the next tick          -> ASKING
 *     ASKING     WatchReply             -> OPEN       the owner learns
 *
 * Any failure leads to IDLE.
 */
#include "worker/client/group_watch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/memory.h"
#include "proto/channel.h"
#include "proto/connector.h"
#include "proto/message_replication.h"
#include "worker/client/discovery.h"

#define STEP_MS 2000u          /* for TCP, for the handshake, and for an answer that is due */
#define PAUSE_MS 50u           /* between two requests, if the first one's answer was no news */
#define N_ATTEMPTS_SOON 6u     /* before it rests */
#define WATCHER_HURRY_MS 500u  /* at most between two attempts, while a shard is away */
#define WATCHER_REST_MS 10000u /* after some attempts in vain, while all shards are there */
#define WATCHER_WAIT_MS 10000u /* for news */
#define SEEK_MS 500u           /* for each server that is asked */

enum watcher_state {
    WATCHER_OFF,
    WATCHER_IDLE,
    WATCHER_DUE,
    WATCHER_DIALING,
    WATCHER_HANDSHAKE,
    WATCHER_OPEN,
    WATCHER_ASKING
};

struct watcher_config {
    struct channel_loop *channels; /* borrowed */
    const struct hello *hello;     /* borrowed: token, name, map_id */
    /* What a psd knows. May call watcher_set() and watcher_stop(). */
    void (*groups)(void *owner, const struct groups *groups);
    void *owner; /* borrowed */
};

/* Drawn at the top. watcher_init(): OFF. */
struct watcher {
    struct watcher_config config;
    struct address address;
    enum watcher_state state;
    struct connector *connector; /* owned; NULL: no connection */
    bool hurries, was_tried;     /* tried: an attempt at this address has ended, well or not */
    uint64_t now_ms, since_ms, next_ms;
    uint64_t request_id, above;
    uint32_t n_attempts; /* since the last answer */
};

/* --- one watcher --- */

static void set_state(struct watcher *w, enum watcher_state state)
{
    w->state = state;
    w->since_ms = w->now_ms;
}

static void drop(struct watcher *w)
{
    connector_drop(w->connector);
    w->connector = NULL;
    w->above = 0; /* numbers are of one process alone */
}

static uint64_t delay_ms(const struct watcher *w)
{
    uint64_t ms = connector_backoff_ms(
        w->n_attempts, hash_mix2(clock_mono_ns(), w->request_id + w->n_attempts));

    if (w->hurries)
        return ms < WATCHER_HURRY_MS ? ms : WATCHER_HURRY_MS;
    return w->n_attempts < N_ATTEMPTS_SOON ? ms : WATCHER_REST_MS;
}

static void fail(struct watcher *w)
{
    drop(w);
    set_state(w, WATCHER_IDLE);
    w->next_ms = w->now_ms + delay_ms(w);
    w->n_attempts++;
    w->was_tried = true;
}

/* Takes the frame. */
static void send_frame(struct watcher *w, int status, struct bytes *frame)
{
    if (!status)
        status = channel_send(connector_channel(w->connector), frame);
    bytes_deinit(frame);
    if (status)
        fail(w);
}

static void on_connected(void *owner)
{
    struct watcher *w = owner;
    struct hello hello = *w->config.hello;
    struct bytes frame = { 0 };

    snprintf(hello.role, sizeof hello.role, "watcher");
    hello.shard = MESSAGE_SHARD_LISTENER;
    set_state(w, WATCHER_HANDSHAKE);
    send_frame(w, message_write_hello(&frame, ++w->request_id, &hello), &frame);
}

static void ask(struct watcher *w)
{
    const struct watch watch = { .above = w->above, .wait_ms = WATCHER_WAIT_MS };
    struct bytes frame = { 0 };

    set_state(w, WATCHER_ASKING);
    send_frame(w, message_write_watch(&frame, ++w->request_id, &watch), &frame);
}

/* The owner may stop the watcher, or send it elsewhere. */
static void receive_groups(struct watcher *w, const struct groups *groups)
{
    uint64_t above = w->above;

    w->n_attempts = 0;
    w->was_tried = true;
    w->above = groups->number;
    w->next_ms = groups->number > above ? w->now_ms : w->now_ms + PAUSE_MS;
    set_state(w, WATCHER_OPEN);
    w->config.groups(w->config.owner, groups);
}

static int receive_hello(struct watcher *w, const struct frame_header *h, const uint8_t *head)
{
    struct hello_reply *r = memory_try_alloc(sizeof *r);
    int status = r ? message_read_hello_reply(h, head, r) : -ENOMEM;

    if (!status && w->state != WATCHER_HANDSHAKE)
        status = PS_EPROTO;
    if (!status)
        status = r->status;
    if (!status) {
        set_state(w, WATCHER_OPEN);
        w->next_ms = w->now_ms;
    }
    free(r);
    return status;
}

static int receive_watch(struct watcher *w, const struct frame_header *h, const uint8_t *head)
{
    struct watch_reply *r = memory_try_alloc(sizeof *r);
    int status = r ? message_read_watch_reply(h, head, r) : -ENOMEM;

    if (!status && (w->state != WATCHER_ASKING || h->request_id != w->request_id))
        status = PS_EPROTO;
    if (!status)
        status = r->status;
    if (!status)
        receive_groups(w, &r->groups);
    free(r);
    return status;
}

static int on_frame(void *owner, const struct frame_header *h, const uint8_t *head,
                    const uint8_t *body)
{
    struct watcher *w = owner;
    int status = PS_EPROTO;

    (void)body;
    if (h->type == FRAME_HELLO_REPLY)
        status = receive_hello(w, h, head);
    else if (h->type == FRAME_WATCH_REPLY)
        status = receive_watch(w, h, head);
    if (status)
        fail(w);
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct watcher *w = owner;

    (void)why;
    w->connector = NULL;
    fail(w);
}

static const struct connector_events connector_events = { on_connected, on_frame, on_closed };

static void dial(struct watcher *w)
{
    set_state(w, WATCHER_DIALING);
    if (connector_new(w->config.channels, &w->address, &connector_events, w, &w->connector))
        fail(w);
}

static void watcher_init(struct watcher *w, const struct watcher_config *config)
{
    *w = (struct watcher){ .config = *config };
}

/* Asks this psd from here on; nothing changes if it does already. */
static void watcher_set(struct watcher *w, const struct address *address)
{
    if (w->state != WATCHER_OFF && strcmp(w->address.text, address->text) == 0)
        return;
    drop(w);
    w->address = *address;
    w->n_attempts = 0;
    w->was_tried = false;
    w->next_ms = 0;
    set_state(w, WATCHER_IDLE);
}

/* No event follows. */
static void watcher_stop(struct watcher *w)
{
    drop(w);
    set_state(w, WATCHER_OFF);
}

/* True: its next attempt is soon, and so are those after it. */
static void watcher_set_hurry(struct watcher *w, bool hurries)
{
    if (hurries && !w->hurries) {
        w->n_attempts = 0;
        w->next_ms = 0;
    }
    w->hurries = hurries;
}

static void watcher_tick(struct watcher *w, uint64_t now_ms)
{
    uint64_t limit_ms = w->state == WATCHER_ASKING ? WATCHER_WAIT_MS + STEP_MS : STEP_MS;

    w->now_ms = now_ms;
    if (w->state == WATCHER_IDLE && now_ms >= w->next_ms)
        set_state(w, WATCHER_DUE);
    else if (w->state == WATCHER_DUE)
        dial(w);
    else if (w->state == WATCHER_OPEN && now_ms >= w->next_ms)
        ask(w);
    else if (w->state > WATCHER_DUE && w->state != WATCHER_OPEN &&
             now_ms - w->since_ms >= limit_ms)
        fail(w);
}

/* False: it makes a connection, or is about to. */
static bool watcher_is_quiet(const struct watcher *w)
{
    return w->state < WATCHER_DUE || w->state > WATCHER_HANDSHAKE;
}

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

bool group_watch_is_sure(const struct group_watch *g, uint32_t node)
{
    for (size_t k = 0; k < COUNT_OF(g->places[node].watchers); k++) {
        const struct watcher *w = &g->places[node].watchers[k];

        if (w->state != WATCHER_OFF && !w->was_tried)
            return false;
    }
    return true;
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

void group_watch_ask(struct group_watch *g, uint32_t node)
{
    struct place *p = &g->places[node];

    if (!p->known.term)
        watcher_set(&p->watchers[0], &p->at);
}

void group_watch_tick(struct group_watch *g, uint64_t now_ms)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (size_t k = 0; k < COUNT_OF(g->places[i].watchers); k++)
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
