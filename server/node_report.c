/* What operators, workers and other nodes see of a node: its reports, why it does not serve, the restore's progress. */
#include "common/number.h"
#include "server/node_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "server/service_manager.h"
#include "server/shard_thread.h"

#define PROGRESS_MS 2000u

/* What it came to stays readable. */
static void update_restore(struct node *n) ON_MAIN
{
    struct stats_restore *restore = &n->report.node.restore;

    restore->is_on =
        (n->state == NODE_STARTING && !standby_server_is_waiting(n->standbys, NULL)) ||
        strcmp(n->report.node.standby.state, "loading") == 0;
    restore->since_unix_ms = n->report.node.started_unix_ms;
    restore->n_bytes = atomic_load(&n->progress.n_bytes);
    restore->n_total_bytes = atomic_load(&n->progress.n_total_bytes);
    restore->n_records = atomic_load(&n->progress.n_records);
    if (restore->is_on)
        restore->n_rows = node_stats_n_rows(n->stats);
}

/* PS_ESTOPPING is the one status that clients of every age take as "come again". */
int node_check_serving(void *node, struct err *err)
{
    struct node *n = node;
    char text[STATS_RESTORE_TEXT_MAX];

    enter_main();
    if (n->state == NODE_FOLLOWING)
        return standby_report_refusal(n->standby, n->primary, err);
    /* A standby may end before it has told its clients of its primary. */
    if (n->state != NODE_STARTING && n->state != NODE_SERVING)
        return err_set(err, PS_ESTOPPING, "%s", status_text(PS_ESTOPPING));
    if (standby_server_is_waiting(n->standbys, err))
        return err->status;
    if (n->state == NODE_SERVING)
        return 0;
    stats_restore_text(&n->report.node.restore, clock_unix_ms(), text);
    return err_set(err, PS_ESTOPPING, "psd is not ready yet: %s", text);
}

void node_publish(void *node)
{
    struct node *n = node;
    struct admin_server_inputs in = { .listener = n->listener,
                                      .handshake_ms = n->settings->handshake_timeout_ms,
                                      .watches = n->watches,
                                      .limits = n->limits,
                                      .ready = n->state == NODE_SERVING,
                                      .stopping = n->state > NODE_SERVING };
    struct published_report *published;

    enter_main();
    if (n->state == NODE_FOLLOWING)
        standby_report(n->standby, n->primary, &n->report.node.standby);
    else
        standby_server_report(n->standbys, &n->report.node.standby);
    coordination_report(standby_server_coordination(n->standbys),
                        n->settings->failover_after_ms, &n->report.node.coordination);
    standby_report_groups(&n->report.node.standby, n->report.node.address,
                          n->state == NODE_SERVING, n->groups);
    update_restore(n);
    certificates_report(n->settings->tls, &n->report.node.tls);
    disk_monitor_view(n->disk, &n->report.node.disk);
    admin_server_publish(n->admin, &in, &n->report);
    published = n->events && n->has_served ? shard_thread_report(n->shards[0]) : NULL;
    if (published)
        worker_events_update(n->events, published->report);
    published_report_release(published);
}

/* For who reads the log alone. */
void node_log_progress(struct node *n, uint64_t now_ms)
{
    char text[STATS_RESTORE_TEXT_MAX], waiting[80] = "";
    struct listener_counts counts;
    struct err wait = { 0 };

    if (n->stop_signal_asked || now_ms - n->progress_ms < PROGRESS_MS)
        return;
    n->progress_ms = now_ms;
    if (standby_server_is_waiting(n->standbys, &wait)) { /* which the log has said */
        service_manager_status(wait.text);
        return;
    }
    stats_restore_text(&n->report.node.restore, clock_unix_ms(), text);
    listener_count(n->listener, &counts);
    if (counts.retry_later)
        snprintf(waiting, sizeof waiting,
                 "; workers were refused %" PRIu64 " time%s and asked to retry",
                 counts.retry_later, NUMBER_PLURAL(counts.retry_later));
    log_line_info("%s%s", text, waiting);
    service_manager_status(text);
}

void node_sweep_http(struct node *n, uint64_t now_ms)
{
    struct http_counts counts;

    if (!n->http)
        return;
    http_sweep(n->http, now_ms, &counts);
    n->report.node.http_connections = counts.connections;
    n->report.node.http_evicted = counts.evicted;
}
