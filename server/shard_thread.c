#include "server/shard_thread.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "server/core/replay.h"
#include "server/prefault.h"
#include "server/shard_stats.h"

#define TICK_MS 50u
#define REPORT_MS 200u

struct client {
    struct mail mail;
    struct connection_socket socket;
    uint64_t request_id;
    struct hello hello;
    struct connection_entry *entry; /* borrowed */
};

struct shard_thread {
    struct shard_thread_config config;
    uv_thread_t thread;
    uv_loop_t loop;
    uv_timer_t timer;
    uv_timer_t log_timer; /* shard_wal's */
    struct channel_loop channels;
    struct mailbox mailbox;
    struct report_publisher publisher;
    struct shard *shard; /* owned, by the thread */
    struct prefault prefault;
    struct reply_queue replies;
    struct shard_wal *wal; /* owned, by the thread; NULL: nothing is logged */
    struct shard_follower
        *follower; /* owned, by the thread; NULL: it has never been a standby's */
    bool follows;  /* it is one now: the shard is being replayed */
    struct shard_checkpoint *checkpoint; /* owned, by the thread */
    struct dispatch *dispatch;           /* owned, by the thread */
    struct connection_set connections;
    struct mail serve, drain, stop;
    enum { SHARD_LOADING, SHARD_OPEN, SHARD_DRAINED } state;
    /* It has served. One that ends before, as a standby or a primary without a term of its own, decides nothing: its
     * log would have records that the other member has not, under the same numbers. */
    bool decides;
    uint64_t reported_ms;
    _Atomic uint64_t alive_ms, log_bytes, checkpoint_bytes;
    _Atomic bool log_has_gap;
    struct shard_stats_minute minute;
    struct shard_stats_steps steps[MEMBERSHIP_N_JOBS_MAX];
};

void shard_thread_publish(struct shard_thread *t)
{
    struct shard_stats_inputs in = { .shard = t->shard,
                                     .dispatch = t->dispatch,
                                     .log = t->wal,
                                     .replies = &t->replies,
                                     .connections = &t->connections,
                                     .loop = &t->loop,
                                     .minute = &t->minute,
                                     .steps = t->steps,
                                     .shard_number = t->config.core.shard,
                                     .lease_ms = t->config.core.lease_ms,
                                     .park_max_ms = t->config.core.park_ms,
                                     .memory_max_bytes = t->config.core.memory_max_bytes,
                                     .follows = t->follows };

    t->reported_ms = clock_mono_ms();
    report_publisher_publish(&t->publisher, shard_stats_make(&in));
}

static void update_alive(struct shard_thread *t) ON_SHARD
{
    uint64_t now_ms = clock_mono_ms();

    atomic_store(&t->alive_ms, now_ms);
    if (now_ms - t->reported_ms >= REPORT_MS)
        shard_thread_publish(t);
}

void shard_thread_progress(void *arg)
{
    struct shard_thread *t = arg;

    enter_shard();
    update_alive(t);
}

static void update_log_counters(struct shard_thread *t) ON_SHARD
{
    char error[200];
    struct stats_log log;

    if (!t->wal)
        return;
    shard_wal_report(t->wal, &log, error);
    fetch_handler_stored(dispatch_fetches(t->dispatch), log.durable, shard_wal_whole(t->wal),
                         log.bytes);
    shard_wal_pin(t->wal, fetch_handler_pin(dispatch_fetches(t->dispatch)));
    atomic_store(&t->log_bytes, log.bytes);
    atomic_store(&t->log_has_gap, log.has_gap && !log.is_failed);
}

static void on_tick(uv_timer_t *timer)
{
    struct shard_thread *t = timer->data;

    enter_shard();
    if (t->follows)
        shard_follower_tick(t->follower);
    if (t->decides)
        dispatch_tick(t->dispatch);
    prefault_tick(&t->prefault);
    atomic_store(&t->checkpoint_bytes, shard_checkpoint_bytes(t->checkpoint));
    connection_set_sweep(&t->connections, uv_now(&t->loop));
    update_log_counters(t);
    update_alive(t);
}

/* --- mail --- */

static void on_client(struct mail *mail, void *owner)
{
    struct client *client = CONTAINER_OF(mail, struct client, mail);
    struct shard_thread *t = owner;
    int status;

    enter_shard();
    if (t->state == SHARD_OPEN) {
        status = connection_set_open(&t->connections, &client->socket, client->request_id,
                                     &client->hello, client->entry);
        if (status)
            log_line_warn("shard %u: the connection of %s was accepted, but not opened: %s",
                          t->config.core.shard, client->hello.name, status_text(status));
    } else {
        connection_socket_close(&client->socket);
        connection_entry_set(client->entry, ENTRY_CLOSED);
    }
    free(client);
}

static void on_serve(struct mail *mail, void *owner)
{
    struct shard_thread *t = owner;

    (void)mail;
    enter_shard();
    if (t->state != SHARD_LOADING)
        return;
    t->state = SHARD_OPEN;
    t->decides = true;
    membership_renew(shard_membership(t->shard), dispatch_now_ms(t->dispatch));
    if (t->config.core.drops_learning)
        membership_drop_learning(shard_membership(t->shard));
    shard_checkpoint_hurry(t->checkpoint, false);
}

static void stop_requests(struct shard_thread *t) ON_SHARD
{
    if (t->decides)
        dispatch_stop(t->dispatch);
    else
        dispatch_give_up(t->dispatch);
}

static void on_drain(struct mail *mail, void *owner)
{
    struct shard_thread *t = owner;

    (void)mail;
    enter_shard();
    t->state = SHARD_DRAINED;
    /* What a standby's jobs have complete is its primary's to combine: a last checkpoint is to be what the log says. */
    if (t->follows)
        shard_follower_stop(t->follower);
    else
        stop_requests(t);
    connection_set_close_all(&t->connections);
    shard_checkpoint_hurry(t->checkpoint, true);
}

static void on_stop(struct mail *mail, void *owner)
{
    struct shard_thread *t = owner;

    enter_shard();
    on_drain(mail, owner);
    if (t->follows) {
        replay_end(t->shard, dispatch_now_ms(t->dispatch));
        stop_requests(t);
    }
    prefault_stop(&t->prefault);
    shard_checkpoint_stop(t->checkpoint);
    uv_close((uv_handle_t *)&t->timer, NULL);
    uv_close((uv_handle_t *)&t->log_timer, NULL);
    channel_loop_close(&t->channels);
    mailbox_close(&t->mailbox);
}

/* --- the thread --- */

static void on_space(void *owner)
{
    struct shard_thread *t = owner;

    enter_shard();
    dispatch_resume(t->dispatch);
}

static void make_shard(struct shard_thread *t) ON_SHARD
{
    struct dispatch_config dispatch = { .loop = &t->loop,
                                        .channels = &t->channels,
                                        .connections = &t->connections,
                                        .shard_number = t->config.core.shard,
                                        .frame_max_bytes = t->config.frame_max_bytes,
                                        .lease_ms = t->config.core.lease_ms,
                                        .park_max_ms = t->config.core.park_ms,
                                        .deltas_max_bytes = t->config.core.deltas_max_bytes,
                                        .tables_max = t->config.core.tables_max,
                                        .compress_replies = t->config.compress_replies,
                                        .groups = t->config.groups,
                                        .on_space = on_space,
                                        .owner = t,
                                        .is_alone = t->config.core.n_shards == 1 };
    struct connection_set_config connections = { .channels = &t->channels,
                                                 .frame_max_bytes = t->config.frame_max_bytes,
                                                 .frame_timeout_ms = t->config.frame_timeout_ms,
                                                 .memory = t->config.client_memory,
                                                 .low_priority = true,
                                                 .welcome = t->config.welcome,
                                                 .groups = t->config.groups,
                                                 .events = &dispatch_events };
    struct shard_checkpoint_config save = { .loop = &t->loop,
                                            .bytes_per_s = t->config.checkpoint_bytes_per_s };

    t->shard = shard_new(&t->config.core);
    save.shard = t->shard;
    prefault_init(&t->prefault, &t->loop, t->shard);
    reply_queue_init(&t->replies);
    t->checkpoint = shard_checkpoint_new(&save);
    shard_checkpoint_hurry(t->checkpoint, true);
    dispatch.shard = t->shard;
    dispatch.replies = &t->replies;
    t->dispatch = dispatch_new(&dispatch);
    connections.owner = t->dispatch;
    connection_set_init(&t->connections, &connections);
}

/* Writes the log's last bytes: no reply is sent after this. */
static void close_log(struct shard_thread *t) ON_SHARD
{
    struct err err = { 0 };

    if (t->wal && shard_wal_close(t->wal, &err))
        log_line_error("shard %u: the write-ahead log was not written to its end: %s",
                       t->config.core.shard, err.text);
    t->wal = NULL;
}

static void thread_main(void *arg)
{
    struct shard_thread *t = arg;
    int status;

    enter_shard();
    make_shard(t);
    shard_thread_publish(t);
    status = uv_timer_start(&t->timer, on_tick, TICK_MS, TICK_MS);
    assert(status == 0);
    uv_run(&t->loop, UV_RUN_DEFAULT);
    shard_thread_publish(t);
    shard_stats_minute_deinit(&t->minute);
    shard_checkpoint_free(t->checkpoint);
    shard_follower_free(t->follower);
    close_log(t);
    dispatch_free(t->dispatch);
    reply_queue_deinit(&t->replies);
    prefault_deinit(&t->prefault);
    shard_free(t->shard);
}

/* Loop, timer and mailbox; leaves nothing behind when it fails. */
static int make_loop(struct shard_thread *t)
{
    int status = uv_loop_init(&t->loop);

    if (status)
        return status;
    status = report_publisher_init(&t->publisher);
    if (status) {
        uv_loop_close(&t->loop);
        return status;
    }
    status = mailbox_init(&t->mailbox, &t->loop, t);
    if (status) {
        report_publisher_deinit(&t->publisher);
        uv_loop_close(&t->loop);
        return status;
    }
    uv_timer_init(&t->loop, &t->timer);
    t->timer.data = t;
    uv_timer_init(&t->loop, &t->log_timer);
    channel_loop_init(&t->channels, &t->loop);
    t->channels.tls = t->config.tls;
    return 0;
}

/* What run() leaves when its loop has ended. */
static void unmake_loop(struct shard_thread *t)
{
    int status = uv_loop_close(&t->loop);

    assert(status == 0);
    channel_loop_deinit(&t->channels);
    mailbox_deinit(&t->mailbox);
    report_publisher_deinit(&t->publisher);
}

int shard_thread_start(const struct shard_thread_config *config,
                       struct shard_thread **ret_thread, struct err *err)
{
    struct shard_thread *t = memory_alloc(sizeof *t);
    int status;

    t->config = *config;
    t->serve.run = on_serve;
    t->drain.run = on_drain;
    t->stop.run = on_stop;
    atomic_store(&t->alive_ms, clock_mono_ms());
    status = make_loop(t);
    if (status) {
        free(t);
        return err_set(err, status, "shard %u: cannot make its loop: %s", config->index,
                       status_text(status));
    }
    status = uv_thread_create(&t->thread, thread_main, t);
    if (status) {
        uv_close((uv_handle_t *)&t->timer, NULL);
        uv_close((uv_handle_t *)&t->log_timer, NULL);
        channel_loop_close(&t->channels);
        mailbox_close(&t->mailbox);
        uv_run(&t->loop, UV_RUN_DEFAULT);
        unmake_loop(t);
        free(t);
        return err_set(err, status, "shard %u: cannot start its thread: %s (ulimit -v and -u)",
                       config->index, status_text(status));
    }
    *ret_thread = t;
    return 0;
}

int shard_thread_receive(struct shard_thread *t, const struct connection_socket *socket,
                         uint64_t request_id, const struct hello *hello,
                         struct connection_entry *entry)
{
    struct client *client = memory_alloc(sizeof *client);
    int status;

    *client = (struct client){ .mail.run = on_client,
                               .socket = *socket,
                               .request_id = request_id,
                               .hello = *hello,
                               .entry = entry };
    status = mailbox_post(&t->mailbox, &client->mail);
    if (status) {
        connection_entry_set(entry, ENTRY_CLOSED);
        free(client);
        return status;
    }
    return 0;
}

int shard_thread_post(struct shard_thread *t, struct mail *mail)
{
    return mailbox_post(&t->mailbox, mail);
}

/* Before shard_thread_stop(), or that itself: its mailbox is open. */
static void post(struct shard_thread *t, struct mail *mail)
{
    int status = mailbox_post(&t->mailbox, mail);

    assert(status == 0);
}

void shard_thread_stop(struct shard_thread *t)
{
    post(t, &t->stop);
}

void shard_thread_join(struct shard_thread *t)
{
    uv_thread_join(&t->thread);
    unmake_loop(t);
    free(t);
}

struct published_report *shard_thread_report(struct shard_thread *t)
{
    return report_publisher_acquire(&t->publisher);
}

uint64_t shard_thread_alive_ms(const struct shard_thread *t)
{
    return atomic_load(&t->alive_ms);
}

uint64_t shard_thread_checkpoint_bytes(const struct shard_thread *t)
{
    return atomic_load(&t->checkpoint_bytes);
}

uint64_t shard_thread_log_bytes(const struct shard_thread *t)
{
    return atomic_load(&t->log_bytes);
}

bool shard_thread_log_has_gap(const struct shard_thread *t)
{
    return atomic_load(&t->log_has_gap);
}

struct shard_checkpoint *shard_thread_checkpoint(struct shard_thread *t)
{
    return t->checkpoint;
}

bool shard_thread_is_open(const struct shard_thread *t)
{
    return t->state == SHARD_OPEN;
}

void shard_thread_tables_changed(struct shard_thread *t)
{
    dispatch_tables_changed(t->dispatch);
    shard_thread_publish(t);
}

int shard_thread_await_log(struct shard_thread *t, uint64_t *record, struct err *err)
{
    if (!t->wal)
        return 0;
    if (!*record) {
        *record = shard_wal_last(t->wal);
        shard_wal_sync(t->wal, *record);
    }
    return shard_wal_await(t->wal, *record, *record, err);
}

uint64_t shard_thread_now_ms(struct shard_thread *t)
{
    return dispatch_now_ms(t->dispatch);
}

/* The standby's log may take records again, or more of it is durable. */
static void on_progress(void *owner)
{
    struct shard_thread *t = owner;

    enter_shard();
    if (t->follows)
        shard_follower_tick(t->follower);
}

static int open_log(struct shard_thread *t, const struct wal_writer_config *config,
                    const struct wal_end *end, bool follows, struct err *err) ON_SHARD
{
    struct shard_wal_config log = { .shard = t->shard,
                                    .replies = &t->replies,
                                    .mailbox = &t->mailbox,
                                    .timer = &t->log_timer,
                                    .writer = config,
                                    .on_space = on_space,
                                    .on_progress = follows ? on_progress : NULL,
                                    .owner = t,
                                    .follows = follows };
    int status = shard_wal_open(&log, end, &t->wal, err);

    if (status)
        return status;
    shard_checkpoint_follow(t->checkpoint, t->wal);
    fetch_handler_log(dispatch_fetches(t->dispatch), config->files, config->dir, end->last);
    return 0;
}

uint64_t shard_thread_standby(struct shard_thread *t, enum shard_thread_standby what,
                              const struct fetch_standby *standby)
{
    struct fetch_handler *f = dispatch_fetches(t->dispatch);
    const uint64_t last = t->wal ? shard_wal_last(t->wal) : 0;

    if (!t->wal)
        return 0;
    switch (what) {
    case SHARD_STANDBY_HOLD:
        fetch_handler_hold(f, standby->keep + 1, standby->pin_bytes_max);
        break;
    case SHARD_STANDBY_BEGIN:
        fetch_handler_begin(f, standby, last);
        shard_wal_ship(t->wal, f);
        break;
    case SHARD_STANDBY_END:
        shard_wal_ship(t->wal, NULL);
        fetch_handler_end(f);
        break;
    case SHARD_STANDBY_CLOSE_GATE:
        fetch_handler_close_gate(f);
        break;
    case SHARD_STANDBY_OPEN_GATE:
        fetch_handler_open_gate(f);
        break;
    case SHARD_STANDBY_IN_SYNC:
        fetch_handler_set_in_sync(f);
        break;
    case SHARD_STANDBY_SEAL:
        fetch_handler_seal(f);
        break;
    case SHARD_STANDBY_PARK:
        fetch_handler_park(f, dispatch_is_still(t->dispatch), standby->needs_disk);
        break;
    case SHARD_STANDBY_UNPARK:
        fetch_handler_unpark(f);
        break;
    case SHARD_STANDBY_HAND_OVER:
        fetch_handler_hand_over(f);
        break;
    }
    shard_wal_pin(t->wal, fetch_handler_pin(f));
    dispatch_standby_moved(t->dispatch);
    return last;
}

const struct fetch_view *shard_thread_fetch_view(const struct shard_thread *t)
{
    return fetch_handler_view(dispatch_fetches(t->dispatch));
}

int shard_thread_open_log(struct shard_thread *t, const struct wal_writer_config *config,
                          const struct wal_end *end, struct err *err)
{
    return open_log(t, config, end, false, err);
}

static uint64_t time_of_shard(void *owner)
{
    struct shard_thread *t = owner;

    enter_shard();
    return dispatch_now_ms(t->dispatch);
}

int shard_thread_open_standby_log(struct shard_thread *t,
                                  const struct wal_writer_config *config,
                                  const struct wal_end *end, uint64_t needs, struct err *err)
{
    struct shard_follower_config follower = { .channels = &t->channels,
                                              .shard = t->shard,
                                              .needs = needs,
                                              .now_ms = time_of_shard,
                                              .owner = t,
                                              .shard_number = t->config.core.shard };
    int status = open_log(t, config, end, true, err);

    if (status)
        return status;
    follower.wal = t->wal;
    t->follower = shard_follower_new(&follower);
    t->follows = true;
    return 0;
}

struct shard_follower *shard_thread_follower(struct shard_thread *t)
{
    return t->follower;
}

void shard_thread_lead(struct shard_thread *t)
{
    shard_follower_stop(t->follower);
    shard_follower_drop(t->follower);
    t->follows = false;
    replay_end(t->shard, dispatch_now_ms(t->dispatch));
    shard_wal_lead(t->wal);
    fetch_handler_lead(dispatch_fetches(t->dispatch), shard_wal_last(t->wal));
    shard_thread_publish(t); /* a node that serves knows whose workers it has taken over */
}

struct shard *shard_thread_shard(struct shard_thread *t)
{
    return t->shard;
}

/* --- all of a node --- */

int shard_threads_start(const struct shard_thread_config *first, uint32_t n,
                        struct shard_thread ***ret, struct err *err)
{
    struct shard_thread **shards = memory_alloc(n * sizeof(struct shard_thread *));
    struct shard_thread_config config = *first;

    for (uint32_t i = 0; i < n; i++) {
        int status;

        config.index = i;
        config.core.shard = first->core.shard + i;
        status = shard_thread_start(&config, &shards[i], err);
        if (status) {
            shard_threads_end(shards, i);
            free(shards);
            return status;
        }
    }
    *ret = shards;
    return 0;
}

void shard_threads_serve(struct shard_thread **shards, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        post(shards[i], &shards[i]->serve);
}

void shard_threads_drain(struct shard_thread **shards, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        post(shards[i], &shards[i]->drain);
}

void shard_threads_end(struct shard_thread **shards, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        shard_thread_stop(shards[i]);
    for (uint32_t i = 0; i < n; i++)
        shard_thread_join(shards[i]);
}
