#include "worker/client/network_thread.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/mailbox.h"
#include "common/memory.h"
#include "worker/client/cluster_client.h"
#include "worker/client/connector.h"
#include "worker/client/discovery.h"

#define TICK_MS 20u
#define STEP_MS_MAX 500u /* by which the links' time moves at once */
#define ABANDON_MS 1000u /* for a farewell after a start that failed */

struct network_thread {
    struct ps_options options;      /* its texts are the three copies below */
    char *token, *name, *job;       /* owned */
    struct client_state *state;     /* borrowed */
    struct cluster_client *cluster; /* owned; the network thread's */
    uv_thread_t thread;
    uv_loop_t loop;
    uv_timer_t timer;
    uint64_t now_ms, loop_ms; /* the links' time; the loop's at the last tick */
    uint64_t
        stop_by_ms; /* 0: not stopping; then, or once all links have left, the thread ends */
    struct channel_loop channels;
    struct mailbox mailbox;
    /* Commands that need no memory, as each is posted once at a time. */
    struct mail drop_table, leave, stop, drop_ended_pulls;
    _Atomic bool is_drop_posted; /* drop_ended_pulls */
};

struct table_command {
    struct mail mail;
    struct table_request request;
};

static void stop(struct network_thread *net)
{
    cluster_client_stop(net->cluster);
    uv_close((uv_handle_t *)&net->timer, NULL);
    channel_loop_close(&net->channels);
    mailbox_close(&net->mailbox);
}

static void on_table(struct mail *mail, void *owner)
{
    struct network_thread *net = owner;
    struct table_command *c = CONTAINER_OF(mail, struct table_command, mail);

    cluster_client_table(net->cluster, &c->request);
    free(c);
}

static void on_drop_table(struct mail *mail, void *owner)
{
    struct network_thread *net = owner;

    (void)mail;
    cluster_client_drop_table(net->cluster);
}

static void on_leave(struct mail *mail, void *owner)
{
    struct network_thread *net = owner;

    (void)mail;
    cluster_client_leave(net->cluster);
}

static void on_stop(struct mail *mail, void *owner)
{
    struct network_thread *net = owner;

    (void)mail;
    if (cluster_client_abandon(net->cluster))
        net->stop_by_ms = net->now_ms + ABANDON_MS;
    else
        stop(net);
}

/* A pull that ends from here on posts anew; one whose requests are still behind this mail is dropped there. */
static void on_drop_ended_pulls(struct mail *mail, void *owner)
{
    struct network_thread *net = owner;

    (void)mail;
    atomic_store(&net->is_drop_posted, false);
    cluster_client_drop_ended_pulls(net->cluster);
}

static void on_push(struct mail *mail, void *owner)
{
    struct network_thread *net = owner;

    cluster_client_push(net->cluster, CONTAINER_OF(mail, struct request, mail));
}

static void on_pull(struct mail *mail, void *owner)
{
    struct network_thread *net = owner;

    cluster_client_pull(net->cluster, CONTAINER_OF(mail, struct request, mail));
}

static void begin_mails(void *owner)
{
    cluster_client_cork(((struct network_thread *)owner)->cluster);
}

static void end_mails(void *owner)
{
    cluster_client_uncork(((struct network_thread *)owner)->cluster);
}

static void post(struct network_thread *net, struct mail *mail)
{
    int status = mailbox_post(&net->mailbox, mail);

    assert(status == 0); /* only network_thread_free() closes the box */
    (void)status;
}

static void post_requests(struct network_thread *net, uint64_t epoch, struct request **requests,
                          void (*run)(struct mail *mail, void *owner))
{
    uint32_t i = net->state->n_shards;
    struct request *next = NULL;

    assert(i > 0);
    while (i-- > 0) {
        requests[i]->epoch = epoch;
        requests[i]->next = next;
        next = requests[i];
        requests[i] = NULL;
    }
    next->mail.run = run;
    post(net, &next->mail);
}

void network_thread_push(struct network_thread *net, uint64_t epoch, struct request **requests)
{
    post_requests(net, epoch, requests, on_push);
}

void network_thread_pull(struct network_thread *net, uint64_t epoch, struct request **requests)
{
    post_requests(net, epoch, requests, on_pull);
}

void network_thread_drop_ended_pulls(struct network_thread *net)
{
    if (!atomic_exchange(&net->is_drop_posted, true))
        post(net, &net->drop_ended_pulls);
}

int network_thread_table(struct network_thread *net, const struct table_request *request)
{
    struct table_command *c = memory_try_alloc(sizeof *c);

    if (!c)
        return -ENOMEM;
    c->mail.run = on_table;
    c->request = *request;
    post(net, &c->mail);
    return 0;
}

/* The one before was run before the last table was answered. */
void network_thread_drop_table(struct network_thread *net)
{
    post(net, &net->drop_table);
}

void network_thread_leave(struct network_thread *net)
{
    post(net, &net->leave);
}

/* The links' time stands still while this process is stopped: no server is given up for answers that this process
 * did not read. For the servers time goes on, so a heartbeat follows at once. */
static void on_tick(uv_timer_t *timer)
{
    struct network_thread *net = CONTAINER_OF(timer, struct network_thread, timer);
    uint64_t loop_ms = uv_now(&net->loop), step_ms = loop_ms - net->loop_ms;

    net->now_ms += step_ms < STEP_MS_MAX ? step_ms : STEP_MS_MAX;
    net->loop_ms = loop_ms;
    if (step_ms > STEP_MS_MAX)
        cluster_client_beat_soon(net->cluster);
    if (!net->stop_by_ms)
        cluster_client_tick(net->cluster, net->now_ms);
    else if (cluster_client_has_left(net->cluster) || net->now_ms >= net->stop_by_ms)
        stop(net);
}

static void thread_main(void *arg)
{
    struct network_thread *net = arg;
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
    channel_loop_deinit(&net->channels);
}

/* NULL without memory. */
static char *copy_text(const char *text)
{
    char *copy = memory_try_alloc(text ? strlen(text) + 1 : 1);

    return copy && text ? strcpy(copy, text) : copy;
}

static int copy_options(struct network_thread *net, const struct ps_options *options)
{
    net->options = *options;
    net->options.token = net->token = copy_text(options->token);
    net->options.name = net->name = copy_text(options->name);
    net->options.job = net->job = copy_text(options->job);
    return net->token && net->name && net->job ? 0 : -ENOMEM;
}

static void free_memory(struct network_thread *net)
{
    cluster_client_free(net->cluster);
    free(net->token);
    free(net->name);
    free(net->job);
    free(net);
}

static int start(struct network_thread *net)
{
    int status = connector_loop_init(&net->loop);

    if (status)
        return status;
    status = mailbox_init(&net->mailbox, &net->loop, net);
    if (status) {
        uv_loop_close(&net->loop);
        return status;
    }
    mailbox_set_batch(&net->mailbox, begin_mails, end_mails);
    channel_loop_init(&net->channels, &net->loop);
    net->now_ms = net->loop_ms = uv_now(&net->loop);
    uv_timer_init(&net->loop, &net->timer);
    uv_timer_start(&net->timer, on_tick, 0, TICK_MS);
    status = uv_thread_create(&net->thread, thread_main, net);
    if (!status)
        return 0;
    stop(net);
    uv_run(&net->loop, UV_RUN_DEFAULT);
    uv_loop_close(&net->loop);
    channel_loop_deinit(&net->channels);
    mailbox_deinit(&net->mailbox);
    return status;
}

/* All but the thread. */
static int make_cluster(struct network_thread *net, struct client_state *state, struct err *err)
{
    const struct ps_options *options = &net->options;
    struct address *servers = memory_try_alloc(DISCOVERY_SERVERS_MAX * sizeof *servers);
    uint32_t n_servers;
    int status = servers ? 0 : -ENOMEM;

    net->state = state;
    if (!status) {
        status = address_list(options->servers ? options->servers : "", DISCOVERY_SERVERS_MAX,
                              servers, &n_servers, err);
        if (!status)
            net->cluster =
                cluster_client_new(&net->channels, options, servers, n_servers, state);
    }
    free(servers);
    if (!status && !net->cluster)
        status = -ENOMEM;
    return status == -ENOMEM ? err_set(err, status, "no memory for a network thread") : status;
}

/* Zeroed, but for its options and mails. NULL without memory. */
static struct network_thread *make(const struct ps_options *options)
{
    struct network_thread *net = memory_try_alloc(sizeof *net);

    if (!net)
        return NULL;
    net->drop_table.run = on_drop_table;
    net->leave.run = on_leave;
    net->stop.run = on_stop;
    net->drop_ended_pulls.run = on_drop_ended_pulls;
    if (!copy_options(net, options))
        return net;
    free_memory(net);
    return NULL;
}

int network_thread_new(const struct ps_options *options, struct client_state *state,
                       struct network_thread **ret, struct err *err)
{
    struct network_thread *net = make(options);
    int status;

    if (!net)
        return err_set(err, -ENOMEM, "no memory for a network thread");
    status = make_cluster(net, state, err);
    if (!status) {
        status = start(net);
        if (status)
            err_set(err, status, "the network thread cannot start: %s", status_text(status));
    }
    if (status)
        free_memory(net);
    else
        *ret = net;
    return status;
}

void network_thread_free(struct network_thread *net)
{
    if (!net)
        return;
    post(net, &net->stop);
    uv_thread_join(&net->thread);
    mailbox_deinit(&net->mailbox);
    free_memory(net);
}

static uint64_t cpu_ns(const struct network_thread *net)
{
    struct timespec spent = { 0 };
    clockid_t clock;

    if (pthread_getcpuclockid(net->thread, &clock) || clock_gettime(clock, &spent))
        return 0;
    return (uint64_t)spent.tv_sec * 1000000000u + (uint64_t)spent.tv_nsec;
}

void network_thread_stats(const struct network_thread *net, struct ps_stats *ret)
{
    cluster_client_stats(net->cluster, ret);
    ret->net_ns = cpu_ns(net);
}

void network_thread_shard_name(const struct network_thread *net, uint32_t shard, char *dst,
                               size_t n_bytes)
{
    cluster_client_shard_name(net->cluster, shard, dst, n_bytes);
}
