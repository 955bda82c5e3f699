#include "worker/client/network_thread.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/mailbox.h"
#include "common/memory.h"
#include "proto/connector.h"
#include "worker/client/cluster_client.h"
#include "worker/client/discovery.h"
#include "worker/client/io_thread.h"

#define TICK_MS 20u
#define STEP_MS_MAX 500u /* by which the links' time moves at once */
#define ABANDON_MS 1000u /* for a farewell after a start that failed */
#define PAUSE_MS 1       /* after which the own thread looks whether callers still drive */
#define ISSUED_BYTES_MAX (64u << 10) /* of a request: more is worth another thread's time */
#define CAME_MIN 2u                  /* one pull to be fetched keeps no caller busy */
#define MS_NS 1000000u

/* What the network's own thread does. */
enum own_thread_state {
    OWN_THREAD_AWAKE,  /* runs the loop, or sleeps at its sockets */
    OWN_THREAD_PAUSED, /* callers have driven: sleeps for PAUSE_MS */
    OWN_THREAD_ASLEEP  /* one of them for longer than that: sleeps until it leaves */
};

struct network_thread {
    struct ps_options options;                /* its texts are the three copies below */
    char *token, *name, *job;                 /* owned */
    struct client_state *state;               /* borrowed */
    struct cluster_client *cluster;           /* owned; the network thread's */
    struct io_thread *io[1 + IO_THREADS_MAX]; /* owned; the first is NULL: the thread below */
    uint32_t n_io;
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

    bool has_turns;
    uv_mutex_t turns; /* of whoever runs the loop, or the box */
    bool is_steady;   /* under it: callers may issue and drive */
    /* As they were when somebody last ran it. */
    _Atomic int next_ms;      /* until it is to be run without an event; -1: never */
    _Atomic uint64_t n_ended; /* channels.n_ended */
    _Atomic bool has_driver;
    uint64_t n_ended_before;   /* n_ended, when the driver began; the driver's */
    _Atomic uint64_t n_drives; /* counts drivers */
    _Atomic enum own_thread_state own_thread;
    int own_thread_fd; /* eventfd: ends the own thread's pause or sleep */
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

/* ---- turns: who runs the loop ---- */

/* It takes over, if it is not awake and nobody drives: a driver that leaves looks for it itself. */
static void wake_own_thread(struct network_thread *net)
{
    if (!atomic_load(&net->has_driver) && atomic_load(&net->own_thread) != OWN_THREAD_AWAKE)
        (void)eventfd_write(net->own_thread_fd, 1);
}

/* Somebody runs the loop soon: the driver, or the own thread. */
static void wake_loop(struct network_thread *net)
{
    mailbox_wake(&net->mailbox);
    wake_own_thread(net);
}

/* A thread that is not ours writes to sockets: no SIGPIPE reaches it, and it is not cancelled in between. A driver's
 * signals are held anyway. */
struct pipe_guard {
    sigset_t before;
    int cancel_state;
    uint64_t n_ended; /* connections, before */
    bool was_pending; /* the caller's own SIGPIPE, which it has blocked */
};

static void guard_pipe(const struct network_thread *net, struct pipe_guard *g)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    g->n_ended = atomic_load(&net->n_ended);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &g->cancel_state);
    pthread_sigmask(SIG_BLOCK, &set, &g->before);
    g->was_pending = signals_have_pipe(&g->before);
}

/* A write that broke has ended its channel, and its SIGPIPE still waits. */
static void drop_pipe(const struct network_thread *net, uint64_t n_ended, bool was_pending)
{
    const struct timespec at_once = { 0 };
    sigset_t set;

    if (was_pending || n_ended == atomic_load(&net->n_ended))
        return;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    while (sigtimedwait(&set, NULL, &at_once) == -1 && errno == EINTR)
        ;
}

static void unguard_pipe(const struct network_thread *net, const struct pipe_guard *g)
{
    drop_pipe(net, g->n_ended, g->was_pending);
    pthread_sigmask(SIG_SETMASK, &g->before, NULL);
    pthread_setcancelstate(g->cancel_state, NULL);
}

/* Under `turns`: what has to follow a run of the box or the loop. */
static void note_state(struct network_thread *net)
{
    net->is_steady = cluster_client_is_steady(net->cluster);
    atomic_store(&net->next_ms, uv_backend_timeout(&net->loop));
    atomic_store(&net->n_ended, net->channels.n_ended);
}

/* Under `turns`: mails, sockets, timers. False: nothing is left to be run. */
static bool run_loop(struct network_thread *net)
{
    bool is_alive;

    mailbox_run(&net->mailbox);
    is_alive = uv_run(&net->loop, UV_RUN_NOWAIT) != 0;
    note_state(net);
    return is_alive;
}

/* Runs the box, unless somebody else has the loop: that one looks into it when it is done. */
static void run_box(struct network_thread *net)
{
    while (mailbox_has_mail(&net->mailbox) && !uv_mutex_trylock(&net->turns)) {
        bool is_steady = net->is_steady;

        if (is_steady) {
            mailbox_run(&net->mailbox);
            note_state(net);
        }
        if (!is_steady || !net->is_steady || atomic_load(&net->next_ms) == 0)
            wake_loop(net);
        uv_mutex_unlock(&net->turns);
        if (!is_steady)
            return;
    }
}

static void end_turn(struct network_thread *net)
{
    uv_mutex_unlock(&net->turns);
    run_box(net);
}

/* ---- the driver ---- */

static bool enter(void *arg)
{
    struct network_thread *net = arg;
    bool is_steady;

    uv_mutex_lock(&net->turns); /* of the own thread, or of an issuer: a few microseconds */
    is_steady = net->is_steady;
    if (is_steady) {
        atomic_store(&net->has_driver, true);
        atomic_fetch_add(&net->n_drives, 1);
        net->n_ended_before = atomic_load(&net->n_ended);
    }
    uv_mutex_unlock(&net->turns);
    run_box(net); /* of an issuer that has found the lock taken */
    return is_steady;
}

/* Until the loop has something to do, and no longer than timeout_ns. signals: NULL: the thread's mask stays. -EINTR. */
static int sleep_at_sockets(const struct network_thread *net, const struct signals *signals,
                            uint64_t timeout_ns)
{
    const int next_ms = atomic_load(&net->next_ms);
    uint64_t next_ns = next_ms < 0 ? UINT64_MAX : (uint64_t)next_ms * MS_NS;
    uint64_t ns = next_ns < timeout_ns ? next_ns : timeout_ns;

    return ns ? signals_sleep(signals, uv_backend_fd(&net->loop), ns) : 0;
}

static int drive(void *arg, const struct signals *signals, uint64_t timeout_ns)
{
    struct network_thread *net = arg;
    bool is_steady;

    if (!mailbox_has_mail(&net->mailbox) && sleep_at_sockets(net, signals, timeout_ns) < 0)
        return -EINTR;
    uv_mutex_lock(&net->turns);
    (void)run_loop(net);
    is_steady = net->is_steady;
    end_turn(net);
    return is_steady ? 0 : -EAGAIN;
}

static void leave(void *arg, const struct signals *signals, bool is_for_long)
{
    struct network_thread *net = arg;

    drop_pipe(net, net->n_ended_before, signals->had_pipe);
    atomic_store(&net->has_driver, false);
    if (is_for_long || atomic_load(&net->own_thread) == OWN_THREAD_ASLEEP)
        wake_own_thread(net);
}

static void wake(void *arg)
{
    mailbox_wake(&((struct network_thread *)arg)->mailbox);
}

/* ---- commands ---- */

static void post(struct network_thread *net, struct mail *mail)
{
    int status = mailbox_post(&net->mailbox, mail);

    assert(status == 0); /* only network_thread_free() closes the box */
    (void)status;
    wake_own_thread(net);
}

/* Runs the box on this thread, behind what was posted before. */
static void issue(struct network_thread *net)
{
    struct pipe_guard guard;

    guard_pipe(net, &guard);
    run_box(net);
    unguard_pipe(net, &guard);
}

/* One mail, with the first request. */
static struct mail *make_mail(struct network_thread *net, uint64_t epoch,
                              struct request **requests, size_t *ret_bytes)
{
    uint32_t i = net->state->n_shards;
    struct request *next = NULL;

    assert(i > 0);
    *ret_bytes = 0;
    while (i-- > 0) {
        *ret_bytes += bytes_len(&requests[i]->bytes);
        requests[i]->epoch = epoch;
        requests[i]->next = next;
        next = requests[i];
        requests[i] = NULL;
    }
    return &next->mail;
}

static void send_requests(struct network_thread *net, struct mail *mail, size_t n_bytes,
                          uint32_t n_came)
{
    int status;

    if (!net->options.drives || n_bytes > ISSUED_BYTES_MAX) {
        post(net, mail);
        return;
    }
    status = mailbox_add(&net->mailbox, mail);
    assert(status == 0);
    (void)status;
    /* The own thread, when it pauses, looks into the box after that, and before it sleeps. So does a new driver. */
    if (n_came < CAME_MIN || atomic_load(&net->own_thread) != OWN_THREAD_PAUSED ||
        atomic_load(&net->has_driver))
        issue(net);
}

void network_thread_push(struct network_thread *net, uint64_t epoch, struct request **requests)
{
    size_t n_bytes;
    struct mail *mail = make_mail(net, epoch, requests, &n_bytes);

    mail->run = on_push;
    send_requests(net, mail, n_bytes, 0);
}

void network_thread_pull(struct network_thread *net, uint64_t epoch, struct request **requests,
                         uint32_t n_came)
{
    size_t n_bytes;
    struct mail *mail = make_mail(net, epoch, requests, &n_bytes);

    mail->run = on_pull;
    send_requests(net, mail, n_bytes, n_came);
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

/* ---- the network's own thread ---- */

static void pause_own_thread(struct network_thread *net, enum own_thread_state state)
{
    struct pollfd fd = { .fd = net->own_thread_fd, .events = POLLIN };
    eventfd_t ignored;
    int n = 0;

    atomic_store(&net->own_thread, state);
    run_box(net);
    /* The driver looks at `own_thread` after it has left: either it sees this one, or this one sees that. */
    if (state == OWN_THREAD_PAUSED || atomic_load(&net->has_driver))
        n = poll(&fd, 1, state == OWN_THREAD_PAUSED ? PAUSE_MS : -1);
    if (n > 0)
        (void)eventfd_read(net->own_thread_fd, &ignored);
}

/* While callers drive, one after the other, there is nothing to do. */
static void wait_for_callers(struct network_thread *net)
{
    uint64_t n_drives = atomic_load(&net->n_drives), n_before = n_drives - 1;

    while (n_drives != n_before || atomic_load(&net->has_driver)) {
        pause_own_thread(net, n_drives != n_before ? OWN_THREAD_PAUSED : OWN_THREAD_ASLEEP);
        n_before = n_drives;
        n_drives = atomic_load(&net->n_drives);
    }
    atomic_store(&net->own_thread, OWN_THREAD_AWAKE);
}

/* Runs the loop as long as anything is left in it. */
static void keep(struct network_thread *net)
{
    uint64_t n_seen = 0;
    bool is_alive = true;

    while (is_alive) {
        uv_mutex_lock(&net->turns);
        if (!atomic_load(&net->has_driver))
            is_alive = run_loop(net);
        end_turn(net);
        if (atomic_load(&net->has_driver) || atomic_load(&net->n_drives) != n_seen) {
            wait_for_callers(net);
            n_seen = atomic_load(&net->n_drives);
        } else if (is_alive) {
            (void)sleep_at_sockets(net, NULL, UINT64_MAX);
        }
    }
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
    if (net->options.drives)
        keep(net);
    else
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
    net->options.drives = options->drives && options->is_interruptible;
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
    if (net->own_thread_fd >= 0)
        close(net->own_thread_fd);
    if (net->has_turns)
        uv_mutex_destroy(&net->turns);
    free(net);
}

/* Threads that drive have sockets of their own to look at, and send by themselves. */
static uint32_t n_threads_wanted(const struct ps_options *options)
{
    const uint32_t n = options->net_threads ? options->net_threads : 1;

    if (options->drives)
        return 1;
    return n < 1 + IO_THREADS_MAX ? n : 1 + IO_THREADS_MAX;
}

static int start_io_threads(struct network_thread *net)
{
    const uint32_t n = n_threads_wanted(&net->options);
    int status = 0;

    for (uint32_t i = 1; i < n && !status; i++)
        status = io_thread_new(&net->mailbox, &net->channels, &net->io[i]);
    return status;
}

/* Once the network thread's mailbox is closed. */
static void free_io_threads(struct network_thread *net)
{
    for (uint32_t i = 1; i < net->n_io; i++)
        io_thread_free(net->io[i]);
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
    net->channels.tls = net->options.tls;
    net->now_ms = net->loop_ms = uv_now(&net->loop);
    uv_timer_init(&net->loop, &net->timer);
    uv_timer_start(&net->timer, on_tick, 0, TICK_MS);
    if (net->options.drives)
        client_state_set_network(
            net->state, &(struct client_state_network){ enter, drive, leave, wake, net });
    status = start_io_threads(net);
    if (!status)
        status = uv_thread_create(&net->thread, thread_main, net);
    if (!status)
        return 0;
    stop(net);
    uv_run(&net->loop, UV_RUN_DEFAULT);
    uv_loop_close(&net->loop);
    free_io_threads(net);
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
    net->n_io = n_threads_wanted(options);
    if (!status) {
        status = address_list(options->servers ? options->servers : "", DISCOVERY_SERVERS_MAX,
                              servers, &n_servers, err);
        if (!status)
            net->cluster = cluster_client_new(&net->channels, options, servers, n_servers,
                                              net->io, net->n_io, state);
    }
    free(servers);
    if (!status && !net->cluster)
        status = -ENOMEM;
    return status == -ENOMEM ? err_set(err, status, "no memory for a network thread") : status;
}

/* -errno, and what libuv says. */
static int make_turns(struct network_thread *net)
{
    int status = uv_mutex_init(&net->turns);

    net->has_turns = !status;
    if (!status)
        net->own_thread_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return !status && net->own_thread_fd < 0 ? -errno : status;
}

/* Zeroed, but for its options and mails. NULL without memory. */
static struct network_thread *make(const struct ps_options *options)
{
    struct network_thread *net = memory_try_alloc(sizeof *net);

    if (!net)
        return NULL;
    net->own_thread_fd = -1;
    net->n_io = 1;
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
        status = make_turns(net);
        if (!status)
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
    free_io_threads(net);
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
    for (uint32_t i = 1; i < net->n_io; i++)
        ret->net_ns += io_thread_cpu_ns(net->io[i]);
}

void network_thread_shard_name(const struct network_thread *net, uint32_t shard, char *dst,
                               size_t n_bytes)
{
    cluster_client_shard_name(net->cluster, shard, dst, n_bytes);
}
