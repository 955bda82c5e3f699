/* A node from inside: for node.c, node_report.c and node_clients.c alone. The last two call nothing of the first. */
#ifndef SERVER_NODE_INTERNAL_H
#define SERVER_NODE_INTERNAL_H

#include "server/admin/http.h"
#include "server/admin/http_access.h"
#include "server/admin_server.h"
#include "server/certificates.h"
#include "server/checkpointer.h"
#include "server/data_dir_lock.h"
#include "server/disk_monitor.h"
#include "server/net/connection_limits.h"
#include "server/net/listener.h"
#include "server/node_stats.h"
#include "server/settings_reload.h"
#include "server/standby.h"
#include "server/standby_server.h"
#include "server/watch_server.h"
#include "server/worker_events.h"

#define NODE_N_SIGNALS 3

struct node {
    struct settings *settings;
    struct settings_reload *reload; /* borrowed; NULL: SIGHUP does nothing */
    struct hello_reply map;
    uv_loop_t loop;
    uv_timer_t timer;
    uv_signal_t signals[NODE_N_SIGNALS];
    unsigned n_handled[NODE_N_SIGNALS]; /* of each, by its callback */
    struct mailbox mailbox;
    struct shard_thread **shards;      /* owned, settings->shards of them that run */
    struct checkpointer *checkpointer; /* owned; NULL without a data directory */
    struct node_stats *stats;          /* owned */
    struct worker_events *events;      /* owned */
    struct http *http;                 /* owned; NULL: off */
    struct http_access *http_access;   /* owned; NULL: its pages are for all */
    struct certificates certificates;
    struct listener *listener;        /* owned; listens while SERVING; NULL from STOPPING on */
    struct admin_server *admin;       /* owned */
    struct group_view *groups;        /* owned: which psd is the primary */
    struct watch_server *watches;     /* owned: of those who ask that */
    struct standby_server *standbys;  /* owned */
    struct connection_limits *limits; /* owned */
    struct connection_limits_clock limits_clock;
    struct channel_memory memory; /* of all connections' messages and replies */
    struct disk_monitor *disk;    /* owned; NULL: no data directory, or it does not serve yet */
    struct data_dir_lock lock;    /* not taken: no data directory */
    struct standby *standby;      /* owned; NULL: this psd follows nobody */
    bool standby_is_over;         /* standby_stop() */
    bool is_restoring;            /* start_run() is under way */
    char primary[MESSAGE_ADDRESS_MAX]; /* whom it follows; "": nobody */
    char own_address[MESSAGE_ADDRESS_MAX];
    bool has_cluster_file;
    bool
        has_served; /* its workers come to this psd: before, they are those of checkpoint and log */
    enum { NODE_STARTING, NODE_FOLLOWING, NODE_SERVING, NODE_STOPPING, NODE_ENDING } state;
    _Atomic bool stop_signal_asked; /* shards' threads read it while they restore */
    struct start_progress progress;
    int exit_status;
    struct admin_server_draft report;
    uint64_t watchdog_ms, fed_ms, extended_ms, progress_ms;
    struct checkpointer_trigger trigger;
    struct start_result restored;
    struct log_line_limit limit; /* of refused peers */
};

/* --- node_report.c: what others see of it --- */

/* PS_ESTOPPING and a sentence, or PS_EMOVED: no worker may come. */
int node_check_serving(void *node, struct err *err);

/* Its reports, as they are now. */
void node_publish(void *node);

/* A line of the log now and then, while it restores. */
void node_log_progress(struct node *n, uint64_t now_ms) ON_MAIN;

/* Connections of the page that are over. */
void node_sweep_http(struct node *n, uint64_t now_ms);

/* --- node_clients.c: who comes to the listener --- */

extern const struct listener_events node_clients_events;

uint64_t node_clients_limits_now(struct node *n) ON_MAIN;

#endif
