/*
 * In the order of a node's life: start -> restored -> serve -> (tick ...) -> begin_stop -> end.
 */
#include "server/node.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/now.h"
#include "server/admin/http.h"
#include "server/census.h"
#include "server/chronicle.h"
#include "server/cluster.h"
#include "server/data_lock.h"
#include "server/desk.h"
#include "server/due.h"
#include "server/facts.h"
#include "server/keeper.h"
#include "server/net/door.h"
#include "server/notify.h"
#include "server/restore.h"
#include "server/shard_thread.h"

#define TICK_MS 100u
#define EXTEND_MS 30000u
#define LOG_LINES_PER_S 5u

static const int caught_signals[] = { SIGTERM, SIGINT, SIGHUP };

struct node {
    const struct settings *settings;
    struct hello_reply map;
    uv_loop_t loop;
    uv_timer_t timer;
    uv_signal_t signals[COUNT_OF(caught_signals)];
    struct mailbox mailbox;
    struct shard_thread **shards; /* owned, settings->shards of them that run */
    struct keeper *keeper;        /* owned; NULL without a data directory */
    struct facts *facts;          /* owned */
    struct chronicle *chronicle;  /* owned */
    struct http *http;            /* owned; NULL: off */
    struct door *door;            /* owned; listens while SERVING; NULL from STOPPING on */
    struct desk *desk;            /* owned */
    struct data_lock lock;        /* not taken: no data directory */
    enum { NODE_STARTING, NODE_SERVING, NODE_STOPPING, NODE_ENDING } state;
    bool stop_asked;
    int exit_status;
    struct census census;
    uint64_t watchdog_ms, fed_ms, extended_ms;
    struct due due;
    struct restore_result restored;
    struct log_limit log;
};

static void publish(void *node)
{
    struct node *n = node;
    struct census_sources from = { .loop = &n->loop,
                                   .door = n->door,
                                   .desk = n->desk,
                                   .keeper = n->keeper,
                                   .greeting_ms = n->settings->greeting_timeout_ms,
                                   .ready = n->state == NODE_SERVING,
                                   .stopping = n->state > NODE_SERVING };
    struct bulletin_sheet *sheet;

    enter_main();
    census_publish(&n->census, &from, n->facts);
    sheet = n->chronicle ? shard_thread_report(n->shards[0]) : NULL;
    if (sheet) {
        chronicle_look(n->chronicle, sheet->report);
        bulletin_return(sheet);
    }
}

/* --- the end --- */

static void on_handle_closed(uv_handle_t *handle)
{
    (void)handle;
}

/* Nothing is under way any more: threads and handles close, and the loop runs out. */
static void end(struct node *n) ON_MAIN
{
    n->state = NODE_ENDING;
    publish(n);
    http_stop(n->http);
    n->http = NULL;
    n->census.report.http_address = "";
    door_close(n->door);
    n->door = NULL;
    desk_close(n->desk);
    for (uint32_t i = 0; i < n->settings->shards; i++)
        shard_thread_stop(n->shards[i]);
    for (uint32_t i = 0; i < n->settings->shards; i++)
        shard_thread_join(n->shards[i]);
    for (size_t i = 0; i < COUNT_OF(caught_signals); i++)
        uv_close((uv_handle_t *)&n->signals[i], on_handle_closed);
    uv_close((uv_handle_t *)&n->timer, on_handle_closed);
    mailbox_close(&n->mailbox);
}

static void fail(struct node *n, const struct err *err) ON_MAIN
{
    log_error("%s", err->text);
    n->exit_status = 1;
    end(n);
}

static void on_last_checkpoint(void *arg, const struct keeper_record *record)
{
    struct node *n = arg;

    enter_main();
    if (record->error.status) {
        log_error("the last checkpoint failed: %s", record->error.text);
        n->exit_status = 1;
    } else {
        keeper_tell(record);
    }
    end(n);
}

static void begin_stop(struct node *n) ON_MAIN
{
    n->state = NODE_STOPPING;
    log_info("stopping");
    notify_stopping("writing the last checkpoint");
    publish(n);
    door_close(n->door);
    n->door = NULL;
    desk_close(n->desk);
    for (uint32_t i = 0; i < n->settings->shards; i++)
        shard_thread_drain(n->shards[i]);
    if (n->keeper)
        keeper_wish(n->keeper, on_last_checkpoint, n);
    else
        end(n);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct node *n = handle->data;

    enter_main();
    if (number == SIGHUP) {
        log_info("SIGHUP: settings are read at the start only; restart to change them");
        return;
    }
    if (n->stop_asked) {
        log_warn("a second signal: exiting at once");
        _exit(1);
    }
    n->stop_asked = true;
    if (n->state == NODE_SERVING)
        begin_stop(n); /* else what is under way sees stop_asked at its end */
}

/* --- while it serves --- */

static void on_periodic_checkpoint(void *arg, const struct keeper_record *record)
{
    (void)arg;
    if (record->error.status)
        log_error("checkpoint failed: %s", record->error.text);
    else
        keeper_tell(record);
}

/* Has every shard shown life within half of the watchdog's time? Then so does the node. */
static void feed_watchdog(struct node *n, uint64_t now_ms)
{
    if (!n->watchdog_ms || now_ms - n->fed_ms < n->watchdog_ms / 4)
        return;
    for (uint32_t i = 0; i < n->settings->shards; i++)
        if (now_ms > shard_thread_alive_ms(n->shards[i]) + n->watchdog_ms / 2)
            return;
    n->fed_ms = now_ms;
    notify_alive();
}

static void keep(struct node *n, uint64_t now_ms) ON_MAIN
{
    keeper_tick(n->keeper, now_ms);
    if (due_now(&n->due, n->keeper, now_ms))
        keeper_wish(n->keeper, on_periodic_checkpoint, n);
}

static void on_tick(uv_timer_t *timer)
{
    struct node *n = timer->data;
    uint64_t now_ms = now_mono_ms();

    enter_main();
    publish(n);
    desk_sweep(n->desk);
    feed_watchdog(n, now_ms);
    if (n->state != NODE_SERVING && now_ms - n->extended_ms > EXTEND_MS / 4) {
        n->extended_ms = now_ms;
        notify_extend(EXTEND_MS);
    }
    if (n->state == NODE_SERVING && n->keeper)
        keep(n, now_ms);
}

/* --- the door's events --- */

static int on_guest(void *owner, int fd, uint64_t request_id, const struct hello *hello)
{
    struct node *n = owner;

    enter_main();
    if (hello->shard != MESSAGE_SHARD_DOOR)
        return shard_thread_receive(n->shards[hello->shard], fd, request_id, hello);
    if (desk_receive(n->desk, fd, request_id, hello))
        log_warn("an operator was let in, and lost");
    return 0;
}

static uint64_t n_inside(void *owner)
{
    struct node *n = owner;
    uint64_t sum = 0;

    enter_main();
    for (uint32_t i = 0; i < n->settings->shards; i++)
        sum += shard_thread_n_connections(n->shards[i]);
    return sum + desk_n_connections(n->desk);
}

static void on_refused(void *owner, const char *peer, int status, const char *sentence)
{
    struct node *n = owner;
    uint64_t n_suppressed;

    if (!log_limit_pass(&n->log, uv_now(&n->loop), LOG_LINES_PER_S, &n_suppressed))
        return;
    log_warn("door: %s turned away: %s", peer, sentence[0] ? sentence : status_text(status));
    if (n_suppressed)
        log_warn("door: so were %" PRIu64 " others before it", n_suppressed);
}

static const struct door_events door_events = { on_guest, n_inside, on_refused };

/* --- the start --- */

static void announce(struct node *n) ON_MAIN
{
    char status[256];

    snprintf(status, sizeof status, "listening on %s, http %s, %u shards, %u tables restored",
             door_address(n->door), n->http ? http_address(n->http) : "off",
             n->settings->shards, n->restored.n_tables);
    log_info("psd ready: %s", status);
    notify_ready(status);
    cluster_warn_open(n->settings, door_address(n->door));
}

static void serve(struct node *n) ON_MAIN
{
    struct err err = { 0 };

    if (door_listen(n->door, &err)) {
        fail(n, &err);
        return;
    }
    for (uint32_t i = 0; i < n->settings->shards; i++)
        shard_thread_serve(n->shards[i]);
    cluster_name_self(n->settings, door_address(n->door), &n->map);
    n->census.report.address = n->map.nodes[n->map.node];
    n->state = NODE_SERVING;
    n->due = (struct due){ .settings = n->settings,
                           .shards = n->shards,
                           .since_ms = now_mono_ms(),
                           .found_bytes = n->restored.n_log_bytes };
    publish(n);
    announce(n);
}

static void on_restored(void *arg, const struct restore_result *result)
{
    struct node *n = arg;

    enter_main();
    n->restored = *result;
    if (result->err.status) {
        fail(n, &result->err);
        return;
    }
    if (result->from[0])
        log_info("restored %u tables, %" PRIu64 " rows from %s, and %" PRIu64
                 " records of the push log",
                 result->n_tables, result->n_rows, result->from, result->n_records);
    if (n->stop_asked)
        end(n);
    else
        serve(n);
}

static int start_shards(struct node *n, struct err *err) ON_MAIN
{
    const struct settings *s = n->settings;
    struct shard_thread_config config = { .frame_max_bytes = (uint32_t)s->frame_max_bytes,
                                          .frame_timeout_ms = s->frame_timeout_ms,
                                          .compress_replies = s->compress_replies,
                                          .save_bytes_per_s =
                                              s->checkpoint_bytes_per_s / s->shards,
                                          .welcome = &n->map };
    uint32_t i;
    int status = 0;

    settings_shard(s, n->map.n_nodes * s->shards, &config.core);
    n->shards = mem_alloc(s->shards * sizeof(struct shard_thread *));
    for (i = 0; i < s->shards && !status; i++) {
        config.index = i;
        config.core.shard = n->map.node * s->shards + i;
        status = shard_thread_start(&config, &n->shards[i], err);
    }
    if (!status)
        return 0;
    for (uint32_t j = 0; j + 1 < i; j++) {
        shard_thread_stop(n->shards[j]);
        shard_thread_join(n->shards[j]);
    }
    free(n->shards);
    return status;
}

/* The helpers on the main thread: none of these can fail. */
static void make_helpers(struct node *n) ON_MAIN
{
    const struct settings *s = n->settings;
    struct keeper_config keeper = { .loop = &n->loop,
                                    .mailbox = &n->mailbox,
                                    .files = &file_os,
                                    .data_dir = s->data_dir,
                                    .identity = { .node = n->map.node,
                                                  .shard = n->map.node * s->shards,
                                                  .n_shards = n->map.n_nodes * s->shards },
                                    .n_nodes = n->map.n_nodes,
                                    .keep = s->keep,
                                    .n_deltas_max = s->checkpoint_deltas,
                                    .n_shards = s->shards,
                                    .shards = n->shards };
    struct desk_config desk = { .loop = &n->loop,
                                .welcome = &n->map,
                                .frame_timeout_ms = s->frame_timeout_ms,
                                .refresh = publish,
                                .node = n };

    n->facts = facts_new(n->shards, s->shards);
    n->chronicle = chronicle_new(NULL, NULL);
    n->keeper = s->data_dir[0] ? keeper_new(&keeper) : NULL;
    desk.facts = n->facts;
    desk.keeper = n->keeper;
    desk.inquiry = (struct inquiry_config){ &n->mailbox, &n->map, n->shards };
    n->desk = desk_new(&desk);
    n->census.report =
        (struct node_report){ .version = PS_VERSION,
                              .address = "",
                              .http_address = s->http,
                              .durability = s->data_dir[0] ? s->durability_name : "off",
                              .node = n->map.node,
                              .n_nodes = n->map.n_nodes,
                              .shards_per_node = s->shards,
                              .started_unix_ms = now_unix_ms(),
                              .pid = (uint64_t)getpid(),
                              .memory_max_bytes = s->memory_max_bytes };
}

/* The addresses, before anything is done that would have been in vain without them. */
static int take_addresses(struct node *n, struct err *err) ON_MAIN
{
    const struct settings *s = n->settings;
    struct door_config door = { .loop = &n->loop,
                                .listen = s->listen,
                                .token = s->token,
                                .greeting_ms = s->greeting_timeout_ms,
                                .connections_max = s->connections_max,
                                .map = &n->map,
                                .events = &door_events,
                                .owner = n };
    int status = door_open(&door, &n->door, err);

    return status || !s->http[0]
               ? status
               : http_start(s->http, facts_with_report, n->facts, &n->http, err);
}

/* Timer, signals, addresses and pages; then the restore, which goes on by itself. */
static void start(struct node *n) ON_MAIN
{
    struct restore_config restore = { .loop = &n->loop,
                                      .mailbox = &n->mailbox,
                                      .keeper = n->keeper,
                                      .is_to_stop = &n->stop_asked,
                                      .files = &file_os,
                                      .settings = n->settings,
                                      .n_nodes = n->map.n_nodes,
                                      .n_shards = n->settings->shards,
                                      .shards = n->shards };
    struct err err = { 0 };
    int status = 0;

    uv_timer_init(&n->loop, &n->timer);
    n->timer.data = n;
    for (size_t i = 0; i < COUNT_OF(caught_signals); i++) {
        uv_signal_init(&n->loop, &n->signals[i]);
        n->signals[i].data = n;
        status =
            status ? status : uv_signal_start(&n->signals[i], on_signal, caught_signals[i]);
    }
    status = status ? status : uv_timer_start(&n->timer, on_tick, TICK_MS, TICK_MS);
    if (status)
        err_set(&err, status, "cannot catch signals: %s", status_text(status));
    publish(n);
    status = status ? status : take_addresses(n, &err);
    if (n->http)
        n->census.report.http_address = http_address(n->http);
    if (status)
        fail(n, &err);
    else
        restore_start(&restore, on_restored, n);
}

static void unmake(struct node *n) ON_MAIN
{
    int status = uv_loop_close(&n->loop);

    assert(status == 0);
    mailbox_deinit(&n->mailbox);
    desk_free(n->desk);
    keeper_free(n->keeper);
    facts_free(n->facts);
    chronicle_free(n->chronicle);
    free(n->shards);
}

/* Loop, mailbox and shards, or nothing. */
static int make(struct node *n, struct err *err) ON_MAIN
{
    int status = uv_loop_init(&n->loop);

    if (status)
        return err_set(err, status, "cannot make a loop: %s", status_text(status));
    status = mailbox_init(&n->mailbox, &n->loop, n);
    if (status) {
        uv_loop_close(&n->loop);
        return err_set(err, status, "cannot make a mailbox: %s", status_text(status));
    }
    status = start_shards(n, err);
    if (!status)
        return 0;
    mailbox_close(&n->mailbox);
    uv_run(&n->loop, UV_RUN_DEFAULT);
    uv_loop_close(&n->loop);
    mailbox_deinit(&n->mailbox);
    return status;
}

int node_run(const struct settings *settings)
{
    struct node *n = mem_alloc(sizeof *n);
    struct err err = { 0 };
    int status, exit_status = 1;

    n->settings = settings;
    n->lock.fd = -1;
    n->watchdog_ms = notify_watchdog_ms();
    status = cluster_map(settings, &n->map, &err);
    if (!status && settings->data_dir[0])
        status = data_lock_take(settings->data_dir, &n->lock, &err);
    if (!status)
        status = make(n, &err);
    if (status) {
        log_error("%s", err.text);
    } else {
        make_helpers(n);
        start(n);
        uv_run(&n->loop, UV_RUN_DEFAULT);
        unmake(n);
        exit_status = n->exit_status;
    }
    if (exit_status)
        data_lock_give_up(&n->lock);
    else
        data_lock_give(&n->lock);
    free(n);
    return exit_status;
}
