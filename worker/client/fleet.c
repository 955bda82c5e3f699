#include "worker/client/fleet.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/mem.h"
#include "worker/client/fence.h"
#include "worker/client/fleet_config.h"
#include "worker/client/follow.h"
#include "worker/client/link.h"
#include "worker/client/seek.h"

/* Written by the network thread, read by any. */
struct counters {
    _Atomic uint64_t bytes_in, bytes_out, rows_refused, reconnects, resent_pushes, rejoins,
        min_clock, staleness_max, foreign;
};

/* One shard of the cluster. */
struct member {
    struct link *link; /* owned */
    struct address address;
    bool joined; /* in this epoch */
    bool told;   /* of the table under way */
    uint64_t min_clock;
    struct follow follow;
};

struct fleet {
    struct channel_hub *hub;          /* borrowed */
    const struct ps_options *options; /* borrowed */
    struct desk *desk;                /* borrowed */
    struct seek *seek;                /* owned; NULL once the links are made */
    struct member *members; /* owned; good for reading from any thread once the desk is open */
    uint32_t n_shards, n_joined;
    uint64_t now_ms, started_ms, epoch, clock, pull_id;
    struct ps_origin origin; /* its incarnation is the one that counts */
    struct fence fence;
    bool failed;
    struct counters counters;
};

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void notice(void *owner, const char *sentence)
{
    struct fleet *fleet = owner;

    if (fleet->options->on_notice)
        fleet->options->on_notice(fleet->options->notice_arg, sentence);
}

/* Nothing goes on from here; the links are freed at the next tick, as one of them may be the
 * caller. */
static void fail(struct fleet *fleet, int status, const char *sentence)
{
    fleet->failed = true;
    desk_fail(fleet->desk, status, sentence);
}

static uint64_t unix_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void set_clock(struct fleet *fleet, uint64_t clock)
{
    uint32_t i;

    if (clock <= fleet->clock)
        return;
    fleet->clock = clock;
    for (i = 0; i < fleet->n_shards; i++)
        link_set_clock(fleet->members[i].link, clock);
}

/* ---- what links say ---- */

static void on_ready(void *owner, uint32_t shard, const struct join_reply *joined)
{
    struct fleet *fleet = owner;
    struct member *m = &fleet->members[shard];

    set_clock(fleet, joined->clock);
    if (m->joined)
        return;
    m->joined = true;
    if (++fleet->n_joined == fleet->n_shards)
        desk_joined(fleet->desk, fleet->clock);
}

static void on_pushed(void *owner, uint32_t shard, const struct parcel *push,
                      const struct push_reply *reply)
{
    struct fleet *fleet = owner;
    char text[512];

    count(&fleet->counters.rows_refused, reply->rows_refused);
    count(&fleet->counters.foreign,
          follow_pushed(&fleet->members[shard].follow, reply->status ? 0 : push->n_versions,
                        reply->version));
    if (reply->status) {
        snprintf(text, sizeof text,
                 "shard %u at %s refused push %" PRIu64 " of clock %" PRIu64 ": %s", shard,
                 fleet->members[shard].address.text, push->seq, push->clock,
                 reply->text[0] ? reply->text : status_text(reply->status));
        desk_refuse(fleet->desk, reply->status, text);
    }
    desk_ack(fleet->desk, shard, push->seq, buf_len(&push->bytes));
}

/* Copies the answer to where the trainer's thread will read it. */
static void keep_answer(struct desk_answer *a, const struct pull_reply *reply)
{
    size_t n_bytes = 0;
    uint8_t *dst;
    uint32_t i;

    a->reply = *reply;
    for (i = 0; i < reply->n_sections; i++)
        n_bytes += reply->sections[i].value_bytes;
    buf_consume(&a->body, buf_len(&a->body));
    dst = buf_reserve(&a->body, n_bytes);
    if (!dst) {
        a->reply.status = -ENOMEM;
        a->reply.n_sections = 0;
        return;
    }
    for (i = 0; i < reply->n_sections; i++) {
        a->reply.sections[i].values = dst;
        if (reply->sections[i].value_bytes)
            memcpy(dst, reply->sections[i].values, reply->sections[i].value_bytes);
        dst += reply->sections[i].value_bytes;
    }
    buf_commit(&a->body, n_bytes);
}

static void on_pulled(void *owner, uint32_t shard, const struct parcel *pull,
                      const struct pull_reply *reply)
{
    struct fleet *fleet = owner;
    uint64_t ahead = pull->clock > reply->min_clock ? pull->clock - reply->min_clock : 0;

    if (!reply->status && !fleet->options->reader &&
        ahead > atomic_load_explicit(&fleet->counters.staleness_max, memory_order_relaxed))
        atomic_store_explicit(&fleet->counters.staleness_max, ahead, memory_order_relaxed);
    if (!reply->status)
        follow_pulled(&fleet->members[shard].follow, reply->version);
    if (!desk_wants(fleet->desk, fleet->pull_id))
        return;
    keep_answer(&fleet->desk->answers[shard], reply);
    desk_answered(fleet->desk, fleet->pull_id, shard);
}

static void on_told(void *owner, uint32_t shard, uint32_t table,
                    const struct table_reply *reply)
{
    struct fleet *fleet = owner;

    (void)table; /* one is under way at a time */
    if (fleet->members[shard].told)
        return;
    fleet->members[shard].told = true;
    desk_table_told(fleet->desk, reply);
}

static void on_fenced(void *owner, uint32_t shard, uint64_t fenced_below)
{
    struct fleet *fleet = owner;
    uint64_t incarnation = fleet->origin.incarnation;
    uint32_t i, n_fenced = fence_count(&fleet->fence, fleet->now_ms);
    char text[512];

    if (n_fenced > FENCE_N_MAX) {
        snprintf(text, sizeof text,
                 "shard %u at %s declares worker %u of job %s dead again and again: is another "
                 "process running with the same rank?",
                 shard, fleet->members[shard].address.text, fleet->options->rank,
                 fleet->options->job);
        fail(fleet, PS_EFENCED, text);
        return;
    }
    if (fleet->clock < fleet->origin.next_clock)
        fleet->clock = fleet->origin.next_clock;
    fleet->origin = (struct ps_origin){ .incarnation = fence_next(incarnation, fenced_below,
                                                                  unix_ms(), uv_hrtime()) };
    incarnation = fleet->origin.incarnation;
    fleet->epoch = desk_rejoin(fleet->desk, incarnation);
    fleet->n_joined = 0;
    count(&fleet->counters.rejoins, 1);
    snprintf(
        text, sizeof text,
        "shard %u at %s had declared this worker dead: joining again as incarnation %" PRIu64,
        shard, fleet->members[shard].address.text, incarnation);
    notice(fleet, text);
    for (i = 0; i < fleet->n_shards; i++) {
        fleet->members[i].joined = false;
        link_rejoin(fleet->members[i].link, incarnation, fleet->clock,
                    fence_delay_ms(n_fenced));
    }
}

static void on_left(void *owner, uint32_t shard)
{
    struct fleet *fleet = owner;

    (void)shard;
    desk_left(fleet->desk);
}

static void on_min_clock(void *owner, uint32_t shard, uint64_t min_clock)
{
    struct fleet *fleet = owner;
    uint64_t lowest = UINT64_MAX;
    uint32_t i;

    fleet->members[shard].min_clock = min_clock;
    for (i = 0; i < fleet->n_shards; i++)
        if (fleet->members[i].min_clock < lowest)
            lowest = fleet->members[i].min_clock;
    atomic_store_explicit(&fleet->counters.min_clock, lowest, memory_order_relaxed);
}

static void on_traffic(void *owner, uint64_t bytes_in, uint64_t bytes_out)
{
    struct fleet *fleet = owner;

    count(&fleet->counters.bytes_in, bytes_in);
    count(&fleet->counters.bytes_out, bytes_out);
}

static void on_reconnected(void *owner, uint32_t shard, uint64_t n_resent)
{
    struct fleet *fleet = owner;

    (void)shard;
    count(&fleet->counters.reconnects, 1);
    count(&fleet->counters.resent_pushes, n_resent);
}

static void on_failed(void *owner, uint32_t shard, int status, const char *sentence)
{
    (void)shard;
    fail(owner, status, sentence);
}

static const struct link_events link_events = { .ready = on_ready,
                                                .pushed = on_pushed,
                                                .pulled = on_pulled,
                                                .told = on_told,
                                                .fenced = on_fenced,
                                                .left = on_left,
                                                .min_clock = on_min_clock,
                                                .traffic = on_traffic,
                                                .reconnected = on_reconnected,
                                                .notice = notice,
                                                .failed = on_failed };

/* ---- finding the cluster ---- */

/* A worker that comes back to another cluster comes as somebody new: it has pushed nothing here. */
static void check_origin(struct fleet *fleet, uint32_t n_shards, uint64_t map_id)
{
    struct ps_origin *o = &fleet->origin;
    uint64_t clock = o->next_clock;

    if (!o->n_shards || (o->n_shards == n_shards && o->map_id == map_id))
        return;
    notice(fleet,
           "the servers are not those that this worker had pushed to: it joins as somebody "
           "new");
    *o = (struct ps_origin){ .incarnation = unix_ms(), .clock = clock };
    fleet->epoch = desk_rejoin(fleet->desk, o->incarnation);
}

static void make_link(struct fleet *fleet, uint32_t shard, const struct hello_reply *r)
{
    struct link_config config =
        fleet_config_link(fleet->options, &fleet->origin, fleet->now_ms - fleet->started_ms);

    config.shard = shard;
    config.address = fleet->members[shard].address;
    config.hello.shard = shard % r->shards_per_node;
    config.hello.map_id = r->map_id;
    fleet->members[shard].link = link_new(fleet->hub, &config, &link_events, fleet);
}

/* A cluster of one node is reached where it was found, whatever it calls itself. */
static int set_address(struct fleet *fleet, uint32_t shard, const struct address *found,
                       const struct hello_reply *r)
{
    const char *node = r->nodes[shard / r->shards_per_node];

    if (r->n_nodes > 1)
        return address_parse(node, strlen(node), &fleet->members[shard].address, NULL);
    fleet->members[shard].address = *found;
    return 0;
}

static void on_found(void *owner, const struct address *address, const struct hello_reply *r)
{
    struct fleet *fleet = owner;
    uint32_t n_shards = r->n_nodes * r->shards_per_node, i;
    char text[512];

    fleet->members = mem_alloc(n_shards * sizeof *fleet->members);
    for (i = 0; i < n_shards; i++) {
        if (set_address(fleet, i, address, r)) {
            snprintf(text, sizeof text,
                     "psd at %s says that node %u is at \"%s\", which is no HOST:PORT",
                     address->text, i / r->shards_per_node, r->nodes[i / r->shards_per_node]);
            fail(fleet, PS_ECLUSTER, text);
            return;
        }
    }
    desk_set_shards(fleet->desk, n_shards, r->map_id, fleet->origin.incarnation);
    check_origin(fleet, n_shards, r->map_id);
    fleet->clock = fleet->origin.clock;
    for (i = 0; i < n_shards; i++)
        make_link(fleet, i, r);
    fleet->n_shards = n_shards;
}

static void on_not_found(void *owner, int status, const char *sentence)
{
    fail(owner, status, sentence);
}

static const struct seek_events seek_events = { on_found, notice, on_not_found };

struct fleet *fleet_new(struct channel_hub *hub, const struct ps_options *options,
                        const struct address *servers, uint32_t n_servers, struct desk *desk)
{
    struct fleet *fleet = mem_alloc(sizeof *fleet);
    struct hello hello;

    fleet->hub = hub;
    fleet->options = options;
    fleet->desk = desk;
    fleet->origin = options->origin;
    if (!fleet->origin.incarnation)
        fleet->origin.incarnation = unix_ms();
    hello = fleet_config_hello(options);
    fleet->seek =
        seek_new(hub, servers, n_servers, &hello, options->connect_ms, &seek_events, fleet);
    return fleet;
}

void fleet_stop(struct fleet *fleet)
{
    uint32_t i;

    for (i = 0; i < fleet->n_shards; i++)
        link_free(fleet->members[i].link);
    fleet->n_shards = 0;
    seek_free(fleet->seek);
    fleet->seek = NULL;
}

void fleet_free(struct fleet *fleet)
{
    if (!fleet)
        return;
    fleet_stop(fleet);
    free(fleet->members);
    free(fleet);
}

void fleet_beat_soon(struct fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->n_shards; i++)
        link_beat_soon(fleet->members[i].link);
}

void fleet_tick(struct fleet *fleet, uint64_t now_ms)
{
    uint32_t i;

    if (!fleet->started_ms)
        fleet->started_ms = now_ms;
    fleet->now_ms = now_ms;
    if (fleet->seek && fleet->n_shards) {
        seek_free(fleet->seek);
        fleet->seek = NULL;
    }
    if (fleet->seek)
        seek_tick(fleet->seek, now_ms);
    for (i = 0; i < fleet->n_shards && !fleet->failed; i++)
        link_tick(fleet->members[i].link, now_ms);
    if (fleet->failed)
        fleet_stop(fleet);
}

/* The parcels' epoch may end while they are handed out, when a link fails or is fenced: the
 * rest stays the caller's. */
void fleet_push(struct fleet *fleet, uint64_t epoch, struct parcel **parcels)
{
    uint32_t i;

    for (i = 0; i < fleet->n_shards && epoch == fleet->epoch && !fleet->failed; i++) {
        if (i == 0 && parcels[0]->tick)
            set_clock(fleet, parcels[0]->clock + 1);
        link_push(fleet->members[i].link, parcels[i]);
        parcels[i] = NULL;
    }
}

void fleet_pull(struct fleet *fleet, uint64_t epoch, uint64_t pull_id, struct parcel **parcels)
{
    uint32_t i;

    fleet->pull_id = pull_id;
    for (i = 0; i < fleet->n_shards && epoch == fleet->epoch && !fleet->failed; i++) {
        link_pull(fleet->members[i].link, parcels[i]);
        parcels[i] = NULL;
    }
}

void fleet_drop_pull(struct fleet *fleet)
{
    uint32_t i;

    for (i = 0; i < fleet->n_shards; i++)
        link_drop_pull(fleet->members[i].link);
}

void fleet_table(struct fleet *fleet, const struct table_request *request)
{
    uint32_t i;

    for (i = 0; i < fleet->n_shards; i++)
        fleet->members[i].told = false;
    for (i = 0; i < fleet->n_shards; i++)
        link_table(fleet->members[i].link, request);
}

void fleet_drop_table(struct fleet *fleet)
{
    uint32_t i;

    for (i = 0; i < fleet->n_shards; i++)
        link_drop_table(fleet->members[i].link);
}

void fleet_leave(struct fleet *fleet)
{
    uint32_t i;

    for (i = 0; i < fleet->n_shards; i++)
        link_leave(fleet->members[i].link);
}

static uint64_t load(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void fleet_stats(const struct fleet *fleet, struct ps_stats *ret)
{
    const struct counters *c = &fleet->counters;

    ret->bytes_in = load(&c->bytes_in);
    ret->bytes_out = load(&c->bytes_out);
    ret->rows_refused = load(&c->rows_refused);
    ret->reconnects = load(&c->reconnects);
    ret->resent_pushes = load(&c->resent_pushes);
    ret->rejoins = load(&c->rejoins);
    ret->foreign = load(&c->foreign);
    ret->min_clock = load(&c->min_clock);
    ret->staleness_max = load(&c->staleness_max);
}

void fleet_shard_name(const struct fleet *fleet, uint32_t shard, char *dst, size_t n_bytes)
{
    snprintf(dst, n_bytes, "shard %u at %s", shard, fleet->members[shard].address.text);
}
