#include "server/admin_server.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "server/admin/render.h"
#include "server/table_command.h"

#define COMMAND_BYTES_MAX 4096u /* head + body of a command */
#define FULL_SHOWN_MS 60000u    /* after a refusal */
#define LINES_AT_ONCE 3u
#define LINE_EVERY_MS 60000u

/* A connection that waits for a checkpoint, or for a row. */
struct waiter {
    struct waiter *next;
    struct admin_server *server;
    struct connection *connection; /* borrowed; on_closed() comes before it goes */
    uint64_t request_id;
    struct row_lookup *row_lookup;   /* borrowed, or NULL */
    struct table_command *on_tables; /* borrowed, or NULL; neither: it is for a checkpoint, */
    bool is_promotion, is_switch;    /* or this */
};

struct admin_server {
    struct admin_server_config config;
    struct channel_loop channels;
    struct connection_set connections;
    struct waiter *waiters; /* owned */
    uint64_t n_requests, n_refused, n_evicted;
    struct log_line_limit limit;
};

/* A report on its way to JSON. */
struct rendering {
    const char *what, *argument;
    char *json; /* owned by whoever asked */
};

static void render(void *arg, const struct node_report *report)
{
    struct rendering *rendering = arg;

    rendering->json = strcmp(rendering->what, "curve") == 0
                          ? render_curve(report, rendering->argument)
                          : render_json(report, rendering->what);
}

static int answer(struct connection *c, uint64_t request_id, const char *json)
{
    struct status_reply reply = { 0 };
    struct bytes frame = { 0 };
    int status = message_write_admin_reply(&frame, request_id, &reply, json, strlen(json));

    return status ? status : connection_send(c, &frame);
}

static int refuse(struct admin_server *d, struct connection *c, uint64_t request_id, int reason,
                  const char *sentence)
{
    struct status_reply reply = { .status = reason };
    struct bytes frame = { 0 };
    int status;

    d->n_refused++;
    snprintf(reply.text, sizeof reply.text, "%s", sentence);
    status = message_write_admin_reply(&frame, request_id, &reply, NULL, 0);
    return status ? status : connection_send(c, &frame);
}

/* --- waiting connections --- */

static void drop_waiter(struct admin_server *d, struct waiter **at) ON_MAIN
{
    struct waiter *waiter = *at;

    *at = waiter->next;
    if (waiter->row_lookup)
        row_lookup_cancel(waiter->row_lookup);
    else if (waiter->on_tables)
        table_command_cancel(waiter->on_tables);
    else if (d->config.checkpointer)
        checkpointer_cancel(d->config.checkpointer, waiter);
    free(waiter);
}

/* Sends the reply, and frees the waiter. */
static void answer_waiter(struct waiter *waiter, const struct err *err, const char *json)
    ON_MAIN
{
    struct waiter **at = &waiter->server->waiters;
    struct admin_server *d = waiter->server;
    struct connection *c = waiter->connection;
    uint64_t request_id = waiter->request_id;
    int status;

    while (*at != waiter)
        at = &(*at)->next;
    *at = waiter->next;
    free(waiter);
    status = err->status ? refuse(d, c, request_id, err->status, err->text)
                         : answer(c, request_id, json);
    if (status)
        connection_fail(c, status);
}

static const struct waiter *find_waiter(const struct admin_server *d,
                                        const struct connection *c)
{
    const struct waiter *waiter = d->waiters;

    while (waiter && waiter->connection != c)
        waiter = waiter->next;
    return waiter;
}

static struct waiter *add_waiter(struct admin_server *d, struct connection *c,
                                 uint64_t request_id)
{
    struct waiter *waiter = memory_alloc(sizeof *waiter);

    *waiter = (struct waiter){
        .next = d->waiters, .server = d, .connection = c, .request_id = request_id
    };
    d->waiters = waiter;
    return waiter;
}

static int refuse_second(struct admin_server *d, struct connection *c, uint64_t request_id)
{
    return refuse(d, c, request_id, -EBUSY, "this connection waits for an answer already");
}

/* --- checkpoint --- */

static void on_checkpoint(void *arg, const struct checkpointer_record *record)
{
    char json[240];

    enter_main();
    snprintf(json, sizeof json,
             "{\"number\":%" PRIu64 ",\"base\":%" PRIu64 ",\"rows\":%" PRIu64
             ",\"bytes\":%" PRIu64 ",\"ms\":%" PRIu64 "}",
             record->number, record->base, record->n_rows, record->n_bytes, record->took_ms);
    answer_waiter(arg, &record->error, json);
}

static int request_checkpoint(struct admin_server *d, struct connection *c, uint64_t request_id)
    ON_MAIN
{
    if (!d->config.checkpointer)
        return refuse(d, c, request_id, -EINVAL,
                      "checkpoint: this node has no --data-dir to write to");
    if (find_waiter(d, c))
        return refuse_second(d, c, request_id);
    checkpointer_request(d->config.checkpointer, on_checkpoint, add_waiter(d, c, request_id));
    return 0;
}

/* --- row --- */

static void on_row(void *arg, const struct err *err, const char *json)
{
    enter_main();
    answer_waiter(arg, err, json);
}

static int query_row(struct admin_server *d, struct connection *c, uint64_t request_id,
                     const char *argument) ON_MAIN
{
    struct waiter *waiter;
    struct err err = { 0 };

    if (find_waiter(d, c))
        return refuse_second(d, c, request_id);
    waiter = add_waiter(d, c, request_id);
    if (row_lookup_start(&d->config.shards, argument, on_row, waiter, &waiter->row_lookup,
                         &err) == 0)
        return 0;
    d->waiters = waiter->next;
    free(waiter);
    return refuse(d, c, request_id, err.status, err.text);
}

/* --- tables --- */

static void on_tables(void *arg, const struct err *err, const char *json)
{
    enter_main();
    answer_waiter(arg, err, json);
}

static int command_tables(struct admin_server *d, struct connection *c, uint64_t request_id,
                          const struct admin *asked) ON_MAIN
{
    enum table_command_kind kind = table_command_kind(asked->command);
    struct waiter *waiter;
    struct err err = { 0 };

    if (find_waiter(d, c))
        return refuse_second(d, c, request_id);
    waiter = add_waiter(d, c, request_id);
    if (table_command_start(&d->config.shards, kind, asked->argument, on_tables, waiter,
                            &waiter->on_tables, &err) == 0)
        return 0;
    d->waiters = waiter->next;
    free(waiter);
    return refuse(d, c, request_id, err.status, err.text);
}

/* A command that ends frees its waiter. */
static void tick_tables(struct admin_server *d) ON_MAIN
{
    struct waiter *waiter = d->waiters, *next;

    for (; waiter; waiter = next) {
        next = waiter->next;
        if (waiter->on_tables)
            table_command_tick(waiter->on_tables);
    }
}

/* --- promotion --- */

static void on_promotion(void *arg, const struct err *err)
{
    struct admin_server *d = arg;
    struct waiter *waiter = d->waiters, *next;

    enter_main();
    for (; waiter; waiter = next) {
        next = waiter->next;
        if (waiter->is_promotion)
            answer_waiter(waiter, err, "{\"role\":\"primary\"}\n");
    }
}

static void on_switch(void *arg, const struct err *err, const char *json)
{
    const struct err none = { 0 };
    struct admin_server *d = arg;
    struct waiter *waiter = d->waiters, *next;

    enter_main();
    for (; waiter; waiter = next) {
        next = waiter->next;
        if (waiter->is_switch)
            answer_waiter(waiter, err ? err : &none, json);
    }
}

static int switch_over(struct admin_server *d, struct connection *c, uint64_t request_id)
    ON_MAIN
{
    struct err err = { 0 };

    if (find_waiter(d, c))
        return refuse_second(d, c, request_id);
    if (!d->config.switch_over)
        return refuse(d, c, request_id, -EINVAL, "switch: this psd has no standby");
    for (const struct waiter *w = d->waiters; w; w = w->next)
        if (w->is_switch)
            return refuse(d, c, request_id, -EBUSY, "switch: one is under way");
    add_waiter(d, c, request_id)->is_switch = true;
    if (d->config.switch_over(d->config.node, on_switch, d, &err))
        on_switch(d, &err, NULL);
    return 0;
}

static int promote(struct admin_server *d, struct connection *c, uint64_t request_id,
                   const char *argument) ON_MAIN
{
    struct waiter *waiter;
    struct err err = { 0 };

    if (find_waiter(d, c))
        return refuse_second(d, c, request_id);
    if (!d->config.promote)
        return refuse(d, c, request_id, -EINVAL, "promote: this psd follows nobody");
    waiter = add_waiter(d, c, request_id);
    waiter->is_promotion = true;
    if (d->config.promote(d->config.node, argument, on_promotion, d, &err))
        answer_waiter(waiter, &err, ""); /* others wait for one that is under way */
    return 0;
}

/* --- the connections' events --- */

static int show(struct admin_server *d, struct connection *c, uint64_t request_id,
                const struct admin *asked)
{
    struct rendering rendering = { .what = asked->command, .argument = asked->argument };
    char sentence[200];
    int status;

    d->config.refresh(d->config.node);
    node_stats_with_report(d->config.stats, render, &rendering);
    if (!rendering.json) {
        snprintf(sentence, sizeof sentence,
                 "command: found \"%s\", expected status, tables, workers, why, stats, "
                 "config, curve, checkpoint, row, drop, set, promote or switch",
                 asked->command);
        return refuse(d, c, request_id, -EINVAL, sentence);
    }
    status = answer(c, request_id, rendering.json);
    free(rendering.json);
    return status;
}

static int show_settings(struct admin_server *d, struct connection *c, uint64_t request_id)
{
    char *json;
    int status;

    if (!d->config.describe_settings)
        return refuse(d, c, request_id, -EINVAL, "config: this psd does not know its settings");
    json = d->config.describe_settings(d->config.node);
    status = answer(c, request_id, json);
    free(json);
    return status;
}

/* What an unfinished state must not answer. */
static bool needs_all_data(const char *command)
{
    return strcmp(command, "checkpoint") == 0 || strcmp(command, "row") == 0 ||
           strcmp(command, "workers") == 0 || table_command_kind(command) != TABLE_COMMAND_END;
}

/* A command that is not in a list here is one that changes something. Reports are for all roles, but for the settings,
 * which name files of the machine. */
int admin_server_check_access(const struct access *a, const char *command, struct err *err)
{
    static const char *const reports[] = { "status", "tables", "workers",
                                           "why",    "stats",  "curve" };
    const bool queries = strcmp(command, "row") == 0 || strcmp(command, "config") == 0;
    const char *check = strstr(command, "-check"); /* the first half of drop and set */
    const int n_name = check && check - command < 40 ? (int)(check - command) : 40;
    bool may = access_may_change(a) || (queries && access_may_query_rows(a));

    for (size_t i = 0; i < COUNT_OF(reports) && !may; i++)
        may = strcmp(command, reports[i]) == 0;
    return may ? 0
               : err_set(err, PS_EDENIED, "%.*s: role %s may not do it", n_name, command,
                         access_role_name(a->role));
}

static int check_serving(const struct admin_server *d, struct err *err)
{
    return d->config.check_serving ? d->config.check_serving(d->config.node, err) : 0;
}

static int on_request(void *owner, struct request *r)
{
    struct admin_server *d = owner;
    struct connection *c = r->connection;
    uint64_t request_id = r->header->request_id;
    struct err err = { 0 };
    struct admin asked;
    int status;

    enter_main();
    if (r->header->type != FRAME_ADMIN)
        return PS_EPROTO;
    d->n_requests++;
    status = message_read_admin(r->header, r->head, &asked);
    if (status)
        return refuse(d, c, request_id, status, status_text(status));
    if (admin_server_check_access(&c->access, asked.command, &err))
        return refuse(d, c, request_id, err.status, err.text);
    if (needs_all_data(asked.command) && check_serving(d, &err))
        return refuse(d, c, request_id, err.status, err.text);
    if (strcmp(asked.command, "checkpoint") == 0)
        return request_checkpoint(d, c, request_id);
    if (strcmp(asked.command, "row") == 0)
        return query_row(d, c, request_id, asked.argument);
    if (table_command_kind(asked.command) != TABLE_COMMAND_END)
        return command_tables(d, c, request_id, &asked);
    if (strcmp(asked.command, "config") == 0)
        return show_settings(d, c, request_id);
    if (strcmp(asked.command, "promote") == 0)
        return promote(d, c, request_id, asked.argument);
    if (strcmp(asked.command, "switch") == 0)
        return switch_over(d, c, request_id);
    return show(d, c, request_id, &asked);
}

static void on_closed(void *owner, struct connection *c, int why)
{
    struct admin_server *d = owner;
    struct waiter **at = &d->waiters;

    (void)why;
    enter_main();
    while (*at) {
        if ((*at)->connection == c)
            drop_waiter(d, at);
        else
            at = &(*at)->next;
    }
}

static const struct connection_events admin_server_events = { .on_request = on_request,
                                                              .on_closed = on_closed };

/* --- for the node --- */

struct admin_server *admin_server_new(const struct admin_server_config *config)
{
    struct admin_server *d = memory_alloc(sizeof *d);
    struct connection_set_config connections = { .channels = &d->channels,
                                                 .frame_max_bytes = COMMAND_BYTES_MAX,
                                                 .frame_timeout_ms = config->frame_timeout_ms,
                                                 .memory = config->client_memory,
                                                 .welcome = config->welcome,
                                                 .events = &admin_server_events,
                                                 .owner = d };

    d->config = *config;
    d->limit = (struct log_line_limit){ .n_at_once = LINES_AT_ONCE, .every_ms = LINE_EVERY_MS };
    channel_loop_init(&d->channels, config->loop);
    connection_set_init(&d->connections, &connections);
    return d;
}

void admin_server_free(struct admin_server *d)
{
    if (d)
        channel_loop_deinit(&d->channels);
    free(d);
}

/* Those that are not being closed. */
static uint32_t n_operators(const struct admin_server *d)
{
    uint32_t n = 0;

    for (const struct connection *c = d->connections.first; c; c = c->next)
        n += c->channel.state != CHANNEL_CLOSING;
    return n;
}

/* The oldest that waits for no answer, or NULL. */
static struct connection *find_oldest(const struct admin_server *d)
{
    struct connection *oldest = NULL;

    for (struct connection *c = d->connections.first; c; c = c->next)
        if (c->channel.state != CHANNEL_CLOSING && !find_waiter(d, c))
            oldest = c;
    return oldest;
}

static void evict_oldest(struct admin_server *d)
{
    struct connection *oldest = find_oldest(d);
    char more[64];

    if (!oldest)
        return;
    d->n_evicted++;
    if (log_line_limit_pass(&d->limit, "evicted", 0, uv_now(d->config.loop), more))
        log_line_warn("the connection of operator %s (%s) is closed for a new one: %u are the "
                      "most%s",
                      oldest->peer, oldest->hello.name, ADMIN_SERVER_CONNECTIONS_MAX, more);
    connection_close(oldest);
}

int admin_server_admit(const struct admin_server *d, struct err *err)
{
    if (n_operators(d) < ADMIN_SERVER_CONNECTIONS_MAX || find_oldest(d))
        return 0;
    return err_set(err, -EMFILE, "%u operators are connected, and each waits for an answer",
                   ADMIN_SERVER_CONNECTIONS_MAX);
}

int admin_server_receive(struct admin_server *d, const struct connection_socket *socket,
                         uint64_t request_id, const struct hello *hello)
{
    if (n_operators(d) >= ADMIN_SERVER_CONNECTIONS_MAX)
        evict_oldest(d);
    return connection_set_open(&d->connections, socket, request_id, hello, NULL);
}

void admin_server_sweep(struct admin_server *d)
{
    connection_set_sweep(&d->connections, uv_now(d->config.loop));
    tick_tables(d);
}

void admin_server_close(struct admin_server *d)
{
    while (d->waiters) {
        if (refuse(d, d->waiters->connection, d->waiters->request_id, PS_ESTOPPING,
                   status_text(PS_ESTOPPING)))
            log_line_debug("an operator left before the answer");
        drop_waiter(d, &d->waiters);
    }
    connection_set_close_all(&d->connections);
    channel_loop_close(&d->channels);
}

uint64_t admin_server_n_connections(const struct admin_server *d)
{
    struct connection_set_counts counts;

    connection_set_count(&d->connections, &counts);
    return counts.connections;
}

/* --- the node's report --- */

/* For add_handshake(). */
struct handshake_list {
    struct admin_server_draft *draft;
    uint64_t loop_ms, handshake_ms;
};

/* One more wait, or NULL. */
static struct stats_wait *add_wait(struct admin_server_draft *draft, uint64_t since_unix_ms)
{
    struct stats_wait *wait;

    if (draft->node.n_waits == NODE_STATS_N_WAITS_MAX)
        return NULL;
    wait = &draft->waits[draft->node.n_waits++];
    *wait = (struct stats_wait){ .since_unix_ms = since_unix_ms };
    return wait;
}

static void add_handshake(void *arg, const char *peer, uint64_t since_ms)
{
    struct handshake_list *list = arg;
    uint64_t waited_ms = list->loop_ms - since_ms;
    struct stats_wait *wait = add_wait(list->draft, clock_unix_ms() - waited_ms);

    if (!wait)
        return;
    wait->until_unix_ms = wait->since_unix_ms + list->handshake_ms;
    snprintf(wait->what, sizeof wait->what, "greeting");
    snprintf(wait->who, sizeof wait->who, "%.90s", peer);
    snprintf(wait->why, sizeof wait->why, "it has connected and not said hello");
}

/* An address whose connections have not asked for anything, or not for long. */
static void add_idle(void *arg, const struct connection_limits_address *a)
{
    struct handshake_list *list = arg;
    uint64_t waited_ms = list->loop_ms - a->idle_since_ms;
    struct stats_wait *wait = add_wait(list->draft, clock_unix_ms() - waited_ms);

    if (!wait)
        return;
    wait->until_unix_ms = wait->since_unix_ms + (a->idle_until_ms - a->idle_since_ms);
    snprintf(wait->what, sizeof wait->what, "idle connection");
    snprintf(wait->who, sizeof wait->who, "%.90s", a->text);
    snprintf(wait->why, sizeof wait->why,
             "of its %llu connection%s %llu %s not joined a job, and asked for nothing",
             (unsigned long long)a->n_open, NUMBER_PLURAL(a->n_open),
             (unsigned long long)a->n_idle, a->n_idle == 1 ? "has" : "have");
}

/* Connections were refused a moment ago. */
static void add_full(const struct connection_limits *limits, struct handshake_list *list)
    ON_MAIN
{
    uint64_t refused_ms = connection_limits_refused_ms(limits);
    struct connection_limits_counts counts;
    struct stats_wait *wait;

    if (!refused_ms || list->loop_ms - refused_ms > FULL_SHOWN_MS)
        return;
    wait = add_wait(list->draft, clock_unix_ms() - (list->loop_ms - refused_ms));
    if (!wait)
        return;
    connection_limits_count(limits, &counts);
    wait->until_unix_ms = wait->since_unix_ms + FULL_SHOWN_MS;
    snprintf(wait->what, sizeof wait->what, "connection refused");
    snprintf(wait->who, sizeof wait->who, "%llu peer%s since the start",
             (unsigned long long)counts.refused, NUMBER_PLURAL(counts.refused));
    snprintf(wait->why, sizeof wait->why,
             "connections: %llu are open, %llu of them have not joined (--connections-max, "
             "--connections-per-address)",
             (unsigned long long)counts.open, (unsigned long long)counts.unjoined);
}

static void add_restore(struct admin_server_draft *draft)
{
    const struct stats_restore *restore = &draft->node.restore;
    struct stats_wait *wait = restore->is_on ? add_wait(draft, restore->since_unix_ms) : NULL;
    char text[STATS_RESTORE_TEXT_MAX];

    if (!wait)
        return;
    stats_restore_text(restore, clock_unix_ms(), text);
    snprintf(wait->what, sizeof wait->what, "restore");
    snprintf(wait->who, sizeof wait->who, "this node");
    snprintf(wait->why, sizeof wait->why, "%s", text);
}

/* The primary of the last run that may not know all that it promised; a standby that is away for too long. */
static void add_standby(struct admin_server_draft *draft)
{
    const struct stats_standby *standby = &draft->node.standby;
    const char *why = standby->wait[0]           ? standby->wait
                      : standby->refusal[0]      ? standby->refusal
                      : standby->dropped_unix_ms ? standby->note
                                                 : "";
    const uint64_t since_unix_ms =
        why == standby->note ? standby->dropped_unix_ms : standby->wait_since_unix_ms;
    struct stats_wait *wait = why[0] ? add_wait(draft, since_unix_ms) : NULL;

    if (!wait)
        return;
    snprintf(wait->what, sizeof wait->what, "standby");
    snprintf(wait->who, sizeof wait->who, "%.90s", standby->peer[0] ? standby->peer : "none");
    snprintf(wait->why, sizeof wait->why, "%s", why);
}

static void add_patience(struct admin_server_draft *draft)
{
    const struct stats_coordination *c = &draft->node.coordination;
    struct stats_wait *wait =
        c->patience_ms > c->failover_after_ms ? add_wait(draft, c->takeover_unix_ms) : NULL;

    if (!wait)
        return;
    snprintf(wait->what, sizeof wait->what, "failover");
    snprintf(wait->who, sizeof wait->who, "the standby");
    snprintf(wait->why, sizeof wait->why,
             "%u failovers in ten minutes: it waits %llu ms for a silent primary, not %llu: do "
             "machines stand still?",
             c->n_takeovers, (unsigned long long)c->patience_ms,
             (unsigned long long)c->failover_after_ms);
}

static void add_coordination(struct admin_server_draft *draft)
{
    const struct stats_coordination *c = &draft->node.coordination;
    struct stats_wait *wait = c->is_away ? add_wait(draft, c->away_unix_ms) : NULL;

    if (!wait)
        return;
    snprintf(wait->what, sizeof wait->what, "coordination");
    snprintf(wait->who, sizeof wait->who, "%.90s", c->service);
    snprintf(wait->why, sizeof wait->why, "it does not answer, so no standby takes over: %s",
             c->error);
}

static void add_checkpoint(const struct admin_server *d, const struct admin_server_inputs *in,
                           struct admin_server_draft *draft) ON_MAIN
{
    const struct checkpointer_record *record = checkpointer_record(d->config.checkpointer);
    struct stats_wait *wait;

    draft->node.checkpoints_done = record->n_done;
    draft->node.checkpoints_failed = record->n_failed;
    draft->node.last_checkpoint_number = record->number;
    draft->node.last_checkpoint_unix_ms = record->unix_ms;
    draft->node.last_checkpoint_bytes = record->n_bytes;
    draft->node.last_checkpoint_rows = record->n_rows;
    draft->node.last_checkpoint_took_ms = record->took_ms;
    draft->node.checkpoint_every_ms = record->every_ms;
    draft->node.log_max_bytes = record->log_max_bytes;
    snprintf(draft->node.last_checkpoint_error, sizeof draft->node.last_checkpoint_error,
             "%.199s", record->error.status ? record->error.text : "");
    draft->node.checkpoint_number = record->busy_number;
    draft->node.checkpoint_since_unix_ms = record->busy_since_unix_ms;
    draft->node.checkpoint_until_unix_ms = record->until_unix_ms;
    wait = record->busy_since_unix_ms ? add_wait(draft, record->busy_since_unix_ms) : NULL;
    if (!wait)
        return;
    snprintf(wait->what, sizeof wait->what, "checkpoint");
    snprintf(wait->who, sizeof wait->who, "this node");
    snprintf(wait->why, sizeof wait->why, "its shards write their files");
    if (!in->stopping) /* the last one is waited for to its end */
        wait->until_unix_ms = record->until_unix_ms;
}

static void count_net(const struct admin_server *d, const struct admin_server_inputs *in,
                      struct stats_net *net) ON_MAIN
{
    struct connection_set_counts operators;
    struct watch_server_counts watches;
    struct connection_limits_counts limits;
    struct listener_counts listener;

    connection_set_count(&d->connections, &operators);
    watch_server_count(in->watches, &watches);
    connection_limits_count(in->limits, &limits);
    net->refused_requests = d->n_refused;
    net->refused_connections = limits.refused;
    net->unjoined_connections = limits.unjoined;
    if (!in->listener)
        return;
    listener_count(in->listener, &listener);
    net->connections = listener.handshakes + operators.connections + watches.net.connections;
    net->connections_total = listener.accepted;
    net->bytes_in = listener.bytes_in + operators.bytes_in + watches.net.bytes_in;
    net->bytes_out = listener.bytes_out + operators.bytes_out + watches.net.bytes_out;
    net->malformed_frames = listener.malformed + operators.malformed + watches.net.malformed;
    net->refused_handshakes = listener.refused;
    net->slow_peers = listener.slow + operators.slow + watches.net.slow;
    net->evicted_peers = listener.evicted + d->n_evicted + watches.n_evicted;
    net->greedy_peers = operators.greedy + watches.net.greedy;
    net->held_bytes = operators.held_bytes + watches.net.held_bytes;
}

void admin_server_publish(const struct admin_server *d, const struct admin_server_inputs *in,
                          struct admin_server_draft *draft)
{
    struct handshake_list list = { .draft = draft,
                                   .loop_ms = uv_now(d->config.loop),
                                   .handshake_ms = in->handshake_ms };

    draft->node.n_waits = 0;
    draft->node.waits = draft->waits;
    draft->node.ready = in->ready;
    draft->node.stopping = in->stopping;
    draft->node.admin_requests = d->n_requests;
    add_restore(draft);
    add_standby(draft);
    add_coordination(draft);
    add_patience(draft);
    if (d->config.checkpointer)
        add_checkpoint(d, in, draft);
    add_full(in->limits, &list);
    connection_limits_each(in->limits, list.loop_ms, add_idle, &list);
    if (in->listener)
        listener_each_handshake(in->listener, add_handshake, &list);
    count_net(d, in, &draft->node.listener);
    node_stats_publish(d->config.stats, &draft->node);
}
