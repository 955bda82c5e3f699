#include "worker/client/net.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/mailbox.h"
#include "common/mem.h"
#include "worker/client/fleet.h"
#include "worker/client/seek.h"

#define TICK_MS 20u
#define STEP_MS_MAX 500u /* by which the links' time moves at once */
#define SPARE_ORDERS \
    64u /* kept; more do not wait at a time, but for a thread that gets no core */

struct net {
    struct ps_options options; /* its texts are the three copies below */
    char *token, *name, *job;  /* owned */
    struct desk *desk;         /* borrowed */
    struct fleet *fleet;       /* owned; the network thread's */
    uv_thread_t thread;
    uv_loop_t loop;
    uv_timer_t timer;
    uint64_t now_ms, loop_ms; /* the links' time; the loop's at the last tick */
    struct channel_hub hub;
    struct mailbox mailbox;
    struct spares orders; /* that were carried out */
};

enum order_kind {
    ORDER_PUSH,
    ORDER_PULL,
    ORDER_DROP_PULL,
    ORDER_TABLE,
    ORDER_DROP_TABLE,
    ORDER_LEAVE,
    ORDER_STOP
};

struct order {
    struct spare spare; /* while it is with net.orders */
    struct mail mail;
    enum order_kind kind;
    uint64_t epoch, pull_id;
    struct table_request request;
    uint32_t n_parcels, cap_parcels;
    struct parcel *parcels[]; /* owned until a link takes them */
};

static void stop(struct net *net)
{
    fleet_stop(net->fleet);
    uv_close((uv_handle_t *)&net->timer, NULL);
    channel_hub_close(&net->hub);
    mailbox_close(&net->mailbox);
}

static void carry_out(struct net *net, struct order *o)
{
    switch (o->kind) {
    case ORDER_PUSH:
        fleet_push(net->fleet, o->epoch, o->parcels);
        return;
    case ORDER_PULL:
        fleet_pull(net->fleet, o->epoch, o->pull_id, o->parcels);
        return;
    case ORDER_DROP_PULL:
        fleet_drop_pull(net->fleet);
        return;
    case ORDER_TABLE:
        fleet_table(net->fleet, &o->request);
        return;
    case ORDER_DROP_TABLE:
        fleet_drop_table(net->fleet);
        return;
    case ORDER_LEAVE:
        fleet_leave(net->fleet);
        return;
    case ORDER_STOP:
        stop(net);
        return;
    }
}

static void on_order(struct mail *mail, void *owner)
{
    struct order *o = CONTAINER_OF(mail, struct order, mail);
    struct net *net = owner;
    uint32_t i;

    carry_out(net, o);
    for (i = 0; i < o->n_parcels; i++)
        parcel_free(o->parcels[i]);
    if (!spares_give(&net->orders, &o->spare, 0))
        free(o);
}

/* An old one, as it was, or a new one; with room for so many parcels. */
static struct order *take_order(struct net *net, uint32_t n_parcels)
{
    struct spare *spare = spares_take(&net->orders);
    struct order *o = spare ? CONTAINER_OF(spare, struct order, spare) : NULL;

    if (o && o->cap_parcels >= n_parcels)
        return o;
    free(o);
    o = mem_alloc(sizeof *o + n_parcels * sizeof(struct parcel *));
    o->cap_parcels = n_parcels;
    return o;
}

static struct order *order_new(struct net *net, enum order_kind kind,
                               struct parcel *const *parcels, uint32_t n_parcels)
{
    struct order *o = take_order(net, n_parcels);

    o->mail.run = on_order;
    o->kind = kind;
    o->n_parcels = n_parcels;
    if (n_parcels)
        memcpy(o->parcels, parcels, n_parcels * sizeof(struct parcel *));
    return o;
}

static void post(struct net *net, struct order *o)
{
    int status = mailbox_post(&net->mailbox, &o->mail);

    assert(status == 0); /* only net_free() closes the box */
    (void)status;
}

void net_push(struct net *net, uint64_t epoch, struct parcel *const *parcels)
{
    struct order *o = order_new(net, ORDER_PUSH, parcels, net->desk->n_shards);

    o->epoch = epoch;
    post(net, o);
}

void net_pull(struct net *net, uint64_t epoch, uint64_t pull_id, struct parcel *const *parcels)
{
    struct order *o = order_new(net, ORDER_PULL, parcels, net->desk->n_shards);

    o->epoch = epoch;
    o->pull_id = pull_id;
    post(net, o);
}

void net_drop_pull(struct net *net)
{
    post(net, order_new(net, ORDER_DROP_PULL, NULL, 0));
}

void net_table(struct net *net, const struct table_request *request)
{
    struct order *o = order_new(net, ORDER_TABLE, NULL, 0);

    o->request = *request;
    post(net, o);
}

void net_drop_table(struct net *net)
{
    post(net, order_new(net, ORDER_DROP_TABLE, NULL, 0));
}

void net_leave(struct net *net)
{
    post(net, order_new(net, ORDER_LEAVE, NULL, 0));
}

/* While this process is stopped no time passes: no server is given up for answers that were not looked at. For the
 * servers it does, so that they are told at once that the worker lives. */
static void on_tick(uv_timer_t *timer)
{
    struct net *net = CONTAINER_OF(timer, struct net, timer);
    uint64_t loop_ms = uv_now(&net->loop), step_ms = loop_ms - net->loop_ms;

    net->now_ms += step_ms < STEP_MS_MAX ? step_ms : STEP_MS_MAX;
    net->loop_ms = loop_ms;
    if (step_ms > STEP_MS_MAX)
        fleet_beat_soon(net->fleet);
    fleet_tick(net->fleet, net->now_ms);
}

static void run(void *arg)
{
    struct net *net = arg;
    sigset_t all;
    int status;

    /* Signals are the program's, not the library's; and writing to a closed socket is to fail,
     * not to kill. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    uv_run(&net->loop, UV_RUN_DEFAULT);
    status = uv_loop_close(&net->loop);
    assert(status == 0);
    (void)status;
    channel_hub_deinit(&net->hub);
}

static char *copy_text(const char *text)
{
    char *copy = mem_alloc(text ? strlen(text) + 1 : 1);

    return text ? strcpy(copy, text) : copy;
}

static void free_memory(struct net *net)
{
    struct spare *spare;

    fleet_free(net->fleet);
    while ((spare = spares_take(&net->orders)) != NULL)
        free(CONTAINER_OF(spare, struct order, spare));
    spares_deinit(&net->orders);
    free(net->token);
    free(net->name);
    free(net->job);
    free(net);
}

static int start(struct net *net)
{
    int status = uv_loop_init(&net->loop);

    if (status)
        return status;
    status = mailbox_init(&net->mailbox, &net->loop, net);
    if (status) {
        uv_loop_close(&net->loop);
        return status;
    }
    channel_hub_init(&net->hub, &net->loop);
    net->now_ms = net->loop_ms = uv_now(&net->loop);
    uv_timer_init(&net->loop, &net->timer);
    uv_timer_start(&net->timer, on_tick, 0, TICK_MS);
    status = uv_thread_create(&net->thread, run, net);
    if (!status)
        return 0;
    stop(net);
    uv_run(&net->loop, UV_RUN_DEFAULT);
    uv_loop_close(&net->loop);
    channel_hub_deinit(&net->hub);
    mailbox_deinit(&net->mailbox);
    return status;
}

int net_new(const struct ps_options *options, struct desk *desk, struct net **ret,
            struct err *err)
{
    struct address *servers = mem_alloc(SEEK_SERVERS_MAX * sizeof *servers);
    struct net *net = mem_alloc(sizeof *net);
    uint32_t n_servers;
    int status;

    net->options = *options;
    net->options.token = net->token = copy_text(options->token);
    net->options.name = net->name = copy_text(options->name);
    net->options.job = net->job = copy_text(options->job);
    net->desk = desk;
    spares_init(&net->orders, SPARE_ORDERS, 0);
    status = address_list(options->servers ? options->servers : "", SEEK_SERVERS_MAX, servers,
                          &n_servers, err);
    if (!status) {
        net->fleet = fleet_new(&net->hub, &net->options, servers, n_servers, desk);
        status = start(net);
        if (status)
            err_set(err, status, "the network thread cannot start: %s", status_text(status));
    }
    free(servers);
    if (status)
        free_memory(net);
    else
        *ret = net;
    return status;
}

void net_free(struct net *net)
{
    if (!net)
        return;
    post(net, order_new(net, ORDER_STOP, NULL, 0));
    uv_thread_join(&net->thread);
    mailbox_deinit(&net->mailbox);
    free_memory(net);
}

static uint64_t cpu_ns(const struct net *net)
{
    struct timespec spent = { 0 };
    clockid_t clock;

    if (pthread_getcpuclockid(net->thread, &clock) || clock_gettime(clock, &spent))
        return 0;
    return (uint64_t)spent.tv_sec * 1000000000u + (uint64_t)spent.tv_nsec;
}

void net_stats(const struct net *net, struct ps_stats *ret)
{
    fleet_stats(net->fleet, ret);
    ret->net_ns = cpu_ns(net);
}

void net_shard_name(const struct net *net, uint32_t shard, char *dst, size_t n_bytes)
{
    fleet_shard_name(net->fleet, shard, dst, n_bytes);
}
