/*
 * In the order of a node's life: start -> restored -> serve -> (tick ...) -> begin_stop -> end; of a standby start ->
 * (rebuild -> restored ->) promoted -> serve.
 *
 * The shards' threads and libuv's pool restore, so that this thread is free meanwhile: it listens from the start on,
 * shows operators how far the restore has come, and tells workers to come again.
 */
#include "server/node.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/address.h"
#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "server/cluster.h"
#include "server/node_internal.h"
#include "server/service_manager.h"
#include "server/shard_thread.h"
#include "server/standby_role.h"
#include "server/start.h"

#define TICK_MS 100u
#define EXTEND_MS 30000u
#define REFUSED_LINES_AT_ONCE 5u
#define REFUSED_LINE_EVERY_MS 200u
#define NODE_EXIT_DEPOSED 3 /* psd.service starts it again, too */

static const int caught_signals[NODE_N_SIGNALS] = { SIGTERM, SIGINT, SIGHUP };

/* --- the end --- */

static void on_handle_closed(uv_handle_t *handle)
{
    (void)handle;
}

/* libuv drops a signal that came behind the loop's last poll, as the handle closes. It counts all the same. */
static void on_signal_closed(uv_handle_t *handle)
{
    const uv_signal_t *closed = (const uv_signal_t *)handle;
    struct node *n = handle->data;
    const size_t i = (size_t)(closed - n->signals);

    enter_main();
    if (caught_signals[i] != SIGHUP && closed->dispatched_signals > n->n_handled[i])
        n->stop_signal_asked = true;
}

static void close_signals(uv_timer_t *timer)
{
    struct node *n = timer->data;

    enter_main();
    for (size_t i = 0; i < COUNT_OF(caught_signals); i++)
        uv_close((uv_handle_t *)&n->signals[i], on_signal_closed);
    uv_close((uv_handle_t *)&n->timer, on_handle_closed);
}

/* The loop polls between two turns of its timers: what it has of signals is told before they are closed. */
static void read_signals(uv_timer_t *timer)
{
    enter_main();
    uv_timer_start(timer, close_signals, 1, 0);
}

/* Nothing is under way any more: threads and handles close, and the loop runs out. A signal that came meanwhile is read
 * first: where psd begins again, it would be lost. */
static void close_all(void *node)
{
    struct node *n = node;

    enter_main();
    node_publish(n);
    disk_monitor_close(n->disk);
    n->disk = NULL;
    http_stop(n->http);
    n->http = NULL;
    http_access_free(n->http_access);
    n->http_access = NULL;
    n->report.node.http_address = "";
    listener_close(n->listener);
    n->listener = NULL;
    admin_server_close(n->admin);
    watch_server_close(n->watches);
    standby_server_close(n->standbys);
    checkpointer_stop(n->checkpointer);
    shard_threads_end(n->shards, n->settings->shards);
    mailbox_close(&n->mailbox);
    uv_timer_start(&n->timer, read_signals, 0, 0);
}

static void end(struct node *n) ON_MAIN
{
    bool has_standby = n->standby && !n->standby_is_over;

    n->state = NODE_ENDING;
    n->standby_is_over = true;
    if (has_standby)
        standby_stop(n->standby, close_all, n);
    else
        close_all(n);
}

static void fail(void *node, const struct err *err)
{
    struct node *n = node;

    enter_main();
    log_line_error("%s", err->text);
    n->exit_status = 1;
    end(n);
}

static void on_last_checkpoint(void *arg, const struct checkpointer_record *record)
{
    struct node *n = arg;

    enter_main();
    if (record->error.status) {
        log_line_error("the last checkpoint failed: %s", record->error.text);
        n->exit_status = 1;
    } else {
        checkpointer_log(record);
    }
    end(n);
}

static void report_restore_ends(void)
{
    log_line_info("stopping: the restore is given up");
    service_manager_stopping("giving up the restore");
}

static void begin_stop(void *node)
{
    struct node *n = node;

    enter_main();
    n->state = NODE_STOPPING;
    log_line_info("stopping");
    service_manager_stopping("writing the last checkpoint");
    node_publish(n);
    listener_close(n->listener);
    n->listener = NULL;
    admin_server_close(n->admin);
    watch_server_close(n->watches);
    standby_server_close(n->standbys);
    shard_threads_drain(n->shards, n->settings->shards);
    if (n->checkpointer)
        checkpointer_request(n->checkpointer, on_last_checkpoint, n);
    else
        end(n);
}

/* What a standby's shards hold is worth a checkpoint if it is what the primary's held. */
static void stop_following(struct node *n) ON_MAIN
{
    struct standby_view view;

    if (n->is_restoring) { /* on_restored() ends it */
        report_restore_ends();
        return;
    }
    standby_see(n->standby, &view);
    if (!view.is_exact) {
        end(n);
        return;
    }
    n->standby_is_over = true;
    standby_stop(n->standby, begin_stop, n);
}

static char *describe_settings(void *arg)
{
    const struct node *n = arg;

    return settings_reload_report(n->reload, n->settings);
}

/* Settings that have changed, to those who have them from us. */
static void reload(struct node *n) ON_MAIN
{
    settings_reload_take(n->reload, n->settings, n->limits);
    if (n->http_access)
        http_access_set(n->http_access, settings_pages_want_role(n->settings),
                        n->settings->token, &n->settings->tokens);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct node *n = handle->data;

    enter_main();
    n->n_handled[handle - n->signals]++;
    if (number == SIGHUP) {
        if (n->reload)
            reload(n);
        return;
    }
    if (n->stop_signal_asked) {
        log_line_warn("a second signal: exiting at once");
        _exit(1);
    }
    n->stop_signal_asked = true;
    if (n->state == NODE_ENDING)
        return;
    if (n->state == NODE_SERVING)
        begin_stop(n); /* else what is under way sees stop_signal_asked */
    else if (n->state == NODE_FOLLOWING)
        stop_following(n);
    else if (standby_server_is_waiting(n->standbys, NULL))
        end(n);
    else if (n->state == NODE_STARTING)
        report_restore_ends(); /* at its threads' next look at stop_signal_asked */
}

/* --- while it serves --- */

static void on_periodic_checkpoint(void *arg, const struct checkpointer_record *record)
{
    (void)arg;
    if (record->error.status)
        log_line_error("checkpoint failed: %s", record->error.text);
    else
        checkpointer_log(record);
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
    service_manager_alive();
}

static void tick_checkpointer(struct node *n, uint64_t now_ms) ON_MAIN
{
    struct stats_disk disk;

    disk_monitor_view(n->disk, &disk);
    n->trigger.space_bytes =
        disk.size_bytes ? disk.free_bytes + disk.log_bytes + disk.checkpoint_bytes : 0;
    checkpointer_tick(n->checkpointer, now_ms);
    if (checkpointer_is_triggered(n->checkpointer, &n->trigger, now_ms))
        checkpointer_request(n->checkpointer, on_periodic_checkpoint, n);
}

/* Its checkpoints are its own: so its log stays short. */
static void tick_standby(struct node *n, uint64_t now_ms) ON_MAIN
{
    struct standby_view view;

    standby_tick(n->standby, now_ms);
    standby_see(n->standby, &view);
    if (view.state == STANDBY_FOLLOWING && view.is_exact)
        tick_checkpointer(n, now_ms);
}

static void on_tick(uv_timer_t *timer)
{
    struct node *n = timer->data;
    uint64_t now_ms = clock_mono_ms();

    enter_main();
    (void)certificates_tick(&n->certificates, n->settings->tls, now_ms);
    node_sweep_http(n, now_ms);
    connection_limits_sweep(n->limits, node_clients_limits_now(n));
    node_publish(n);
    admin_server_sweep(n->admin);
    watch_server_sweep(n->watches);
    if (n->state == NODE_FOLLOWING)
        tick_standby(n, now_ms);
    standby_server_tick(n->standbys);
    feed_watchdog(n, now_ms);
    if (n->state != NODE_SERVING && now_ms - n->extended_ms > EXTEND_MS / 4) {
        n->extended_ms = now_ms;
        service_manager_extend(EXTEND_MS);
    }
    if (n->state == NODE_STARTING && n->checkpointer)
        node_log_progress(n, now_ms);
    if (n->state == NODE_SERVING && n->checkpointer)
        tick_checkpointer(n, now_ms);
}

/* --- the start --- */

static void announce(struct node *n) ON_MAIN
{
    char status[256], restored[40] = "";

    if (!n->standby) /* else all is from the primary before */
        snprintf(restored, sizeof restored, ", %u table%s restored", n->restored.n_tables,
                 NUMBER_PLURAL(n->restored.n_tables));
    snprintf(status, sizeof status, "listening on %s, http %s, %u shard%s%s",
             listener_address(n->listener), n->http ? http_address(n->http) : "off",
             n->settings->shards, NUMBER_PLURAL(n->settings->shards), restored);
    log_line_info("psd ready: %s", status);
    service_manager_ready(status);
    cluster_warn_open(n->settings, listener_address(n->listener));
    cluster_warn_elsewhere(n->settings);
    if (!n->settings->data_dir[0])
        log_line_warn("no data-dir is set: nothing is kept, and all tables are lost when psd "
                      "ends");
}

/* Without a thread for it nothing that a peer asks for is missing. */
static void start_disk_monitor(struct node *n) ON_MAIN
{
    const struct disk_monitor_config config = { .files = &file_os,
                                                .data_dir = n->settings->data_dir,
                                                .scrub_every_ms = n->settings->scrub_every_ms };
    struct err err;

    if (n->settings->data_dir[0] && disk_monitor_start(&config, &n->disk, &err))
        log_line_error("the data directory is not measured and not read again: %s", err.text);
}

/* What the shard's report says before anybody can join was restored. */
static void note_restored_workers(struct node *n) ON_MAIN
{
    struct published_report *published = shard_thread_report(n->shards[0]);

    if (published)
        worker_events_restore(n->events, published->report);
    published_report_release(published);
}

static void begin_trigger(struct node *n)
{
    n->trigger = (struct checkpointer_trigger){ .settings = n->settings,
                                                .since_ms = clock_mono_ms(),
                                                .found_bytes = n->restored.n_log_bytes };
}

/* Once it is known that this psd is the primary. */
static void serve(void *node)
{
    struct node *n = node;

    enter_main();
    note_restored_workers(n);
    shard_threads_serve(n->shards, n->settings->shards);
    n->state = NODE_SERVING;
    n->has_served = true;
    begin_trigger(n);
    if (!n->disk)
        start_disk_monitor(n);
    node_publish(n);
    announce(n);
}

static void on_restored(void *arg, const struct start_result *result)
{
    struct node *n = arg;
    struct err err = { 0 };

    enter_main();
    n->restored = *result;
    n->is_restoring = false;
    if (n->state == NODE_FOLLOWING && n->stop_signal_asked) { /* it may have been given up */
        end(n);
        return;
    }
    if (n->state == NODE_FOLLOWING) {
        begin_trigger(n);
        standby_rebuilt(n->standby, result);
        return;
    }
    if (result->err.status) {
        fail(n, &result->err);
        return;
    }
    if (result->from[0])
        log_line_info("restored %u table%s, %" PRIu64 " row%s from %s, and %" PRIu64
                      " record%s of the write-ahead log",
                      result->n_tables, NUMBER_PLURAL(result->n_tables), result->n_rows,
                      NUMBER_PLURAL(result->n_rows), result->from, result->n_records,
                      NUMBER_PLURAL(result->n_records));
    if (n->stop_signal_asked)
        end(n);
    else if (standby_server_begin(n->standbys, result->epoch, &err))
        fail(n, &err);
}

static bool serves_clients(void *owner)
{
    const struct node *n = owner;
    struct connection_limits_counts counts;

    enter_main();
    connection_limits_count(n->limits, &counts);
    return counts.open > 0;
}

/* Another psd is the primary: nothing that this one does counts any more. The next start follows it; the service
 * manager makes that start where this psd has served. */
static void on_deposed(void *owner, const char *sentence)
{
    struct node *n = owner;
    struct err err = { 0 };
    bool is_expected;

    enter_main();
    /* One that only starts comes back after a failover: workers were not served, and nothing has gone wrong. */
    is_expected = n->state == NODE_STARTING || standby_server_has_handed_over(n->standbys);
    log_line_write(is_expected ? LOG_LINE_LEVEL_INFO : LOG_LINE_LEVEL_ERROR,
                   "this psd is not the primary any more: %s", sentence);
    if (standby_role_follow(&file_os, n->settings, &err))
        log_line_error("%s", err.text);
    n->exit_status = is_expected && !err.status ? NODE_RESTART : NODE_EXIT_DEPOSED;
    if (n->state < NODE_STOPPING)
        end(n);
}

/* --- a standby --- */

static void restore(void *node, const uint64_t *keep)
{
    struct node *n = node;
    const struct start_config config = { .loop = &n->loop,
                                         .mailbox = &n->mailbox,
                                         .checkpointer = n->checkpointer,
                                         .is_to_stop = &n->stop_signal_asked,
                                         .progress = &n->progress,
                                         .files = &file_os,
                                         .settings = n->settings,
                                         .node = n->map.node,
                                         .n_nodes = n->map.n_nodes,
                                         .n_shards = n->settings->shards,
                                         .shards = n->shards,
                                         .follows = keep != NULL,
                                         .keep = keep };

    enter_main();
    n->is_restoring = true;
    start_run(&config, on_restored, n);
}

static void on_restart(void *node, const char *why)
{
    struct node *n = node;

    enter_main();
    log_line_info("starting again: %s", why);
    n->exit_status = NODE_RESTART;
    end(n);
}

static void on_promoted(void *node)
{
    struct node *n = node;
    struct err err = { 0 };

    enter_main();
    group_view_show_map(n->groups, true);
    n->state = NODE_STARTING;
    if (standby_server_begin_promoted(n->standbys, standby_begun_with(n->standby),
                                      standby_is_handed_over(n->standby), &err))
        fail(n, &err);
}

static void on_rises(void *node)
{
    struct node *n = node;

    enter_main();
    group_view_clear_primary(n->groups);
}

static void on_welcomed(void *node)
{
    struct node *n = node;

    enter_main();
    group_view_show_map(n->groups, true);
}

static const struct standby_events standby_events = { .rebuild = restore,
                                                      .restart = on_restart,
                                                      .welcomed = on_welcomed,
                                                      .rises = on_rises,
                                                      .promoted = on_promoted,
                                                      .failed = fail };

static int promote(void *node, const char *argument,
                   void (*done)(void *arg, const struct err *err), void *arg, struct err *err)
{
    struct node *n = node;
    unsigned promises = standby_promises(argument);

    enter_main();
    if (n->state == NODE_FOLLOWING)
        return standby_promote(n->standby, promises, done, arg, err);
    if (standby_server_promote(n->standbys, promises & STANDBY_ACCEPT_LOSS, err))
        return err->status;
    done(arg, err);
    return 0;
}

static int switch_over(void *node,
                       void (*done)(void *arg, const struct err *err, const char *json),
                       void *arg, struct err *err)
{
    struct node *n = node;
    char json[256];

    enter_main();
    if (n->state == NODE_FOLLOWING) { /* psctl goes on there */
        snprintf(json, sizeof json, "{\"ask\":\"%.128s\"}\n", n->primary);
        done(arg, err, json);
        return 0;
    }
    if (n->state != NODE_SERVING)
        return err_set(err, PS_ESTOPPING, "switch: this psd does not serve");
    return standby_server_switch(n->standbys, done, arg, err);
}

static int start_following(struct node *n, struct err *err) ON_MAIN
{
    const struct standby_config config = { .loop = &n->loop,
                                           .mailbox = &n->mailbox,
                                           .files = &file_os,
                                           .settings = n->settings,
                                           .map = &n->map,
                                           .own_address = n->own_address,
                                           .primary = n->primary,
                                           .coordination =
                                               standby_server_coordination(n->standbys),
                                           .shards = n->shards,
                                           .events = &standby_events,
                                           .node = n };
    int status = standby_start(&config, &n->standby, err);

    if (status)
        return status;
    n->state = NODE_FOLLOWING;
    start_disk_monitor(n);
    log_line_info("listening on %s, standby of %s", listener_address(n->listener), n->primary);
    service_manager_ready("a standby");
    return 0;
}

static int start_shards(struct node *n, struct err *err) ON_MAIN
{
    const struct settings *s = n->settings;
    struct shard_thread_config config = { .frame_max_bytes = (uint32_t)s->frame_max_bytes,
                                          .frame_timeout_ms = s->frame_timeout_ms,
                                          .compress_replies = s->compress_replies,
                                          .tls = s->tls,
                                          .checkpoint_bytes_per_s =
                                              s->checkpoint_bytes_per_s / s->shards,
                                          .client_memory = &n->memory,
                                          .welcome = &n->map,
                                          .groups = n->groups };

    n->memory.max_bytes = s->client_memory_bytes;
    n->memory.n_loops = s->shards + 1;
    settings_shard(s, n->map.n_nodes * s->shards, &config.core);
    config.core.shard = n->map.node * s->shards;
    return shard_threads_start(&config, s->shards, &n->shards, err);
}

/* The helpers on the main thread: none of these can fail. */
static void make_helpers(struct node *n) ON_MAIN
{
    const struct settings *s = n->settings;
    struct checkpointer_config checkpointer = { .loop = &n->loop,
                                                .mailbox = &n->mailbox,
                                                .files = &file_os,
                                                .data_dir = s->data_dir,
                                                .identity = { .node = n->map.node,
                                                              .shard = n->map.node * s->shards,
                                                              .n_shards =
                                                                  n->map.n_nodes * s->shards },
                                                .n_nodes = n->map.n_nodes,
                                                .keep = s->keep,
                                                .n_deltas_max = s->checkpoint_deltas,
                                                .n_shards = s->shards,
                                                .shards = n->shards };
    struct admin_server_config admin = { .loop = &n->loop,
                                         .welcome = &n->map,
                                         .frame_timeout_ms = s->frame_timeout_ms,
                                         .client_memory = &n->memory,
                                         .refresh = node_publish,
                                         .check_serving = node_check_serving,
                                         .describe_settings =
                                             n->reload ? describe_settings : NULL,
                                         .promote = promote,
                                         .switch_over = switch_over,
                                         .node = n };
    struct watch_server_config watches = { .loop = &n->loop,
                                           .welcome = &n->map,
                                           .groups = n->groups,
                                           .frame_timeout_ms = s->frame_timeout_ms };
    struct standby_server_config standbys = { .loop = &n->loop,
                                              .settings = s,
                                              .files = &file_os,
                                              .welcome = &n->map,
                                              .has_map = group_view_has_map(n->groups),
                                              .memory = &n->memory,
                                              .own_address = n->own_address,
                                              .serve = serve,
                                              .deposed = on_deposed,
                                              .restart = on_restart,
                                              .changed = node_publish,
                                              .serves_clients = serves_clients,
                                              .owner = n };
    struct connection_limits_config limits = settings_connection_limits(s);

    standbys.shards = (struct shard_call_config){ &n->mailbox, &n->map, n->shards };
    n->standbys = standby_server_new(&standbys);
    n->stats = node_stats_new(n->shards, s->shards);
    n->limits = connection_limits_new(&limits);
    n->events = worker_events_new(NULL, NULL);
    n->checkpointer = s->data_dir[0] ? checkpointer_new(&checkpointer) : NULL;
    if (n->checkpointer)
        checkpointer_find_last(n->checkpointer);
    admin.stats = n->stats;
    admin.checkpointer = n->checkpointer;
    admin.shards = standbys.shards;
    n->admin = admin_server_new(&admin);
    n->watches = watch_server_new(&watches);
    n->report.node = node_stats_first(s, &n->map);
}

static int listen_for_frames(struct node *n, struct err *err) ON_MAIN
{
    const struct settings *s = n->settings;
    struct listener_config listener = { .loop = &n->loop,
                                        .listen = s->listen,
                                        .tls = s->tls,
                                        .token = s->token,
                                        .tokens = &s->tokens,
                                        .handshake_ms = s->handshake_timeout_ms,
                                        .map = &n->map,
                                        .groups = n->groups,
                                        .events = &node_clients_events,
                                        .owner = n };
    int status = listener_open(&listener, &n->listener, err);

    if (!status)
        status = listener_listen(n->listener, err);
    if (status)
        return status;
    cluster_own_address(s, listener_address(n->listener), n->own_address);
    if (!n->has_cluster_file)
        cluster_name_self(s, listener_address(n->listener), &n->map);
    n->report.node.address = n->primary[0] || n->has_cluster_file || s->standby[0]
                                 ? n->own_address
                                 : n->map.nodes[n->map.node];
    return 0;
}

static struct http_access *make_http_access(const struct settings *s)
{
    struct http_access *access = http_access_new(s->tls);

    http_access_set(access, settings_pages_want_role(s), s->token, &s->tokens);
    return access;
}

static int listen_for_http(struct node *n, struct err *err) ON_MAIN
{
    const struct settings *s = n->settings;
    struct http_names names = { .self = n->map.nodes[n->map.node],
                                .hosts = &s->http_hosts,
                                .tls = s->tls };
    int status;

    if (!s->http[0])
        return 0;
    names.access = n->http_access = make_http_access(s);
    status = http_start(s->http, &names, node_stats_with_report, n->stats, &n->http, err);
    if (status)
        return status;
    n->report.node.http_address = http_address(n->http);
    return http_keep_history(n->http, s->shards, err);
}

/* The addresses, before anything is done that would have been in vain without them. */
static int listen_to_all(struct node *n, struct err *err) ON_MAIN
{
    int status = listen_for_frames(n, err);

    return status ? status : listen_for_http(n, err);
}

/* Timer, signals, addresses and pages; then the restore, which goes on by itself. */
static void start(struct node *n) ON_MAIN
{
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
    node_publish(n);
    n->progress_ms = clock_mono_ms();
    status = status ? status : listen_to_all(n, &err);
    if (!status && n->report.node.last_checkpoint_number && !n->primary[0])
        log_line_info("loading %.200s: checkpoint %" PRIu64 " of %" PRIu64
                      " bytes, and the write-ahead log behind it",
                      n->settings->data_dir, n->report.node.last_checkpoint_number,
                      n->report.node.last_checkpoint_bytes);
    if (!status && n->primary[0])
        status = start_following(n, &err);
    if (status)
        fail(n, &err);
    else if (!n->primary[0])
        restore(n, NULL);
}

static void unmake(struct node *n) ON_MAIN
{
    int status = uv_loop_close(&n->loop);

    assert(status == 0);
    mailbox_deinit(&n->mailbox);
    admin_server_free(n->admin);
    watch_server_free(n->watches);
    standby_server_free(n->standbys);
    connection_limits_free(n->limits);
    standby_free(n->standby);
    checkpointer_free(n->checkpointer);
    node_stats_free(n->stats);
    worker_events_free(n->events);
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

int node_run(struct settings *settings, struct settings_reload *reload)
{
    struct node *n = memory_alloc(sizeof *n);
    struct err err = { 0 };
    int status, exit_status = 1;

    n->settings = settings;
    n->reload = reload;
    n->limit = (struct log_line_limit){ .n_at_once = REFUSED_LINES_AT_ONCE,
                                        .every_ms = REFUSED_LINE_EVERY_MS };
    n->lock.fd = -1;
    n->watchdog_ms = service_manager_watchdog_ms();
    status = cluster_map(settings, &n->map, &err);
    n->groups = group_view_new(&n->map);
    if (!n->groups && !status)
        status = err_set(&err, -ENOMEM, "no memory for a lock");
    if (!status && settings->data_dir[0])
        status = data_dir_lock_acquire(settings->data_dir, &n->lock, &err);
    if (!status)
        status = standby_role_read(&file_os, settings, n->primary, &err);
    if (!status)
        status = cluster_map_of_file(settings, &file_os, &n->map, &n->has_cluster_file, &err);
    if (!status && settings->standby[0] && !n->has_cluster_file && !settings->cluster.n)
        group_view_show_map(n->groups, !n->primary[0]);
    if (!status)
        status = make(n, &err);
    if (status) {
        log_line_error("%s", err.text);
    } else {
        data_dir_lock_log(&n->lock);
        make_helpers(n);
        start(n);
        uv_run(&n->loop, UV_RUN_DEFAULT);
        unmake(n);
        exit_status =
            n->stop_signal_asked && n->exit_status == NODE_RESTART ? 0 : n->exit_status;
    }
    if (exit_status == 1)
        data_dir_lock_abandon(&n->lock);
    else
        data_dir_lock_release(&n->lock);
    group_view_free(n->groups);
    free(n);
    return exit_status;
}
