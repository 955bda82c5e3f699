#include "tests/bench/psbench_connect.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

#include "common/memory.h"
#include "proto/channel.h"
#include "proto/connector.h"
#include "tests/bench/psbench_cpu.h"
#include "tests/bench/psbench_handshake.h"
#include "tests/bench/psbench_report.h"
#include "worker/client/discovery.h"

#define TICK_MS 10u
#define CONNECT_MS 10000u
#define HELLO_ID 1u

/* One of those that are open at a time: when its connection has been answered, it opens the next. */
struct lane {
    struct connect_run *run;     /* borrowed */
    struct connector *connector; /* owned; NULL: between two, or done */
    uint32_t shard;              /* of the cluster */
    uint64_t since_ns;
};

struct connect_run {
    const struct psbench_settings *settings;
    struct hello_reply map;
    struct address *nodes; /* owned, map.n_nodes */
    struct hello hello;
    uv_loop_t loop;
    struct channel_loop channels;
    uv_timer_t timer;
    struct discovery *seek; /* owned; NULL once found */
    struct lane *lanes;     /* owned, settings->connections */
    uint32_t n_begun, n_answered;
    struct histogram latency_ns;
    uint64_t start_ns, heard_ms;
    double seconds, server_cpu_seconds, client_cpu_seconds; /* at first: before */
    bool is_over;
    int status;
    struct err *err;
};

static void end(struct connect_run *r, int status, const char *where, const char *sentence)
{
    if (r->is_over)
        return;
    r->is_over = true;
    r->status = status;
    if (status)
        err_set(r->err, status, "%s%s%s", where, where[0] ? ": " : "", sentence);
    for (uint32_t i = 0; r->lanes && i < r->settings->connections; i++)
        connector_drop(r->lanes[i].connector);
    uv_close((uv_handle_t *)&r->timer, NULL);
    uv_stop(&r->loop);
}

static const struct address *node_of(const struct connect_run *r, uint32_t shard)
{
    return &r->nodes[shard / r->map.shards_per_node];
}

static void fail(struct lane *l, int status, const char *sentence)
{
    char where[160];

    snprintf(where, sizeof where, "connection %u, shard %u at %s", l->run->n_answered + 1,
             l->shard, node_of(l->run, l->shard)->text);
    end(l->run, status, where, sentence);
}

static void stop_clock(struct connect_run *r)
{
    const double server = psbench_cpu_of_process(r->settings->server_pid);

    r->seconds = (double)(uv_hrtime() - r->start_ns) / 1e9;
    r->client_cpu_seconds = psbench_cpu_of_thread() - r->client_cpu_seconds;
    r->server_cpu_seconds =
        r->server_cpu_seconds < 0 || server < 0 ? -1 : server - r->server_cpu_seconds;
    end(r, 0, "", "");
}

static void open_next(struct lane *l);

static void on_connected(void *owner)
{
    struct lane *l = owner;
    struct connect_run *r = l->run;
    struct bytes frame = { 0 };
    int status;

    r->hello.shard = l->shard % r->map.shards_per_node;
    r->hello.map_id = r->map.map_id;
    status = message_write_hello(&frame, HELLO_ID, &r->hello);
    if (!status)
        status = channel_send(connector_channel(l->connector), &frame);
    bytes_deinit(&frame);
    if (status)
        fail(l, status, connector_why(status));
}

static int on_frame(void *owner, const struct frame_header *h, const uint8_t *head,
                    const uint8_t *body)
{
    struct lane *l = owner;
    struct connect_run *r = l->run;
    struct hello_reply reply;
    int status =
        h->type == FRAME_HELLO_REPLY ? message_read_hello_reply(h, head, &reply) : PS_EPROTO;

    (void)body;
    if (status)
        return status;
    if (reply.status) {
        fail(l, reply.status, reply.text);
        return 0;
    }
    histogram_record(&r->latency_ns, uv_hrtime() - l->since_ns);
    r->heard_ms = uv_now(&r->loop);
    connector_drop(l->connector);
    l->connector = NULL;
    if (++r->n_answered == r->settings->reconnects)
        stop_clock(r);
    else
        open_next(l);
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct lane *l = owner;

    l->connector = NULL;
    fail(l, why, connector_why(why));
}

static const struct connector_events connector_events = { on_connected, on_frame, on_closed };

static void open_next(struct lane *l)
{
    struct connect_run *r = l->run;
    int status;

    if (r->n_begun == r->settings->reconnects)
        return;
    l->shard = r->n_begun++ % (r->map.n_nodes * r->map.shards_per_node);
    l->since_ns = uv_hrtime();
    status =
        connector_new(&r->channels, node_of(r, l->shard), &connector_events, l, &l->connector);
    if (status)
        fail(l, status, connector_why(status));
}

static int read_nodes(struct connect_run *r, const struct address *found)
{
    int status = 0;

    r->nodes = memory_alloc(r->map.n_nodes * sizeof *r->nodes);
    r->nodes[0] = *found;
    for (uint32_t i = 0; i < r->map.n_nodes && r->map.n_nodes > 1 && !status; i++)
        status = address_parse(r->map.nodes[i], strlen(r->map.nodes[i]), &r->nodes[i], r->err);
    return status;
}

static void on_found(void *owner, const struct address *address, const struct hello_reply *map)
{
    struct connect_run *r = owner;
    const uint32_t n = r->settings->connections;

    r->map = *map;
    if (read_nodes(r, address)) {
        end(r, -EINVAL, address->text, "it names a node that is no HOST:PORT");
        return;
    }
    r->lanes = memory_alloc(n * sizeof *r->lanes);
    r->heard_ms = uv_now(&r->loop);
    r->server_cpu_seconds = psbench_cpu_of_process(r->settings->server_pid);
    r->client_cpu_seconds = psbench_cpu_of_thread();
    r->start_ns = uv_hrtime();
    for (uint32_t i = 0; i < n && !r->is_over; i++) {
        r->lanes[i].run = r;
        open_next(&r->lanes[i]);
    }
}

static void on_notice(void *owner, const char *sentence)
{
    (void)owner;
    fprintf(stderr, "psbench: %s\n", sentence);
}

static void on_not_found(void *owner, int status, const char *sentence)
{
    end(owner, status, "", sentence);
}

static const struct discovery_events discovery_events = { on_found, on_notice, on_not_found };

static void on_tick(uv_timer_t *timer)
{
    struct connect_run *r = CONTAINER_OF(timer, struct connect_run, timer);
    char sentence[96];

    if (!r->lanes) {
        discovery_tick(r->seek, uv_now(&r->loop));
    } else if (uv_now(&r->loop) - r->heard_ms >= r->settings->timeout_ms) {
        snprintf(sentence, sizeof sentence, "no answer for %.3g s",
                 (double)r->settings->timeout_ms / 1e3);
        end(r, PS_EDEADLINE, r->settings->server, sentence);
    }
}

/* ---- report ---- */

static bool knows_server(const struct connect_run *r)
{
    return r->server_cpu_seconds >= 0 && r->settings->server_pid;
}

static double quantile_us(const struct connect_run *r, double q)
{
    return (double)histogram_quantile(&r->latency_ns, q) / 1e3;
}

static void print_cpu(const char *whose, const struct connect_run *r, double seconds)
{
    printf("  %s CPU     %.3f ms a connection, %.0f%% of a core\n", whose,
           1e3 * seconds / r->n_answered, 100 * seconds / r->seconds);
}

static void print(const struct connect_run *r)
{
    const uint32_t n_shards = r->map.n_nodes * r->map.shards_per_node;

    printf("connect, %s, %u connections, %u at a time, to %u shards\n",
           r->settings->tls ? "TLS" : "plain", r->n_answered, r->settings->connections,
           n_shards);
    printf("  connections/s  %.0f\n", r->n_answered / r->seconds);
    printf("  latency us     p50 %.0f  p99 %.0f  p99.9 %.0f  max %.0f\n", quantile_us(r, 0.5),
           quantile_us(r, 0.99), quantile_us(r, 0.999), (double)r->latency_ns.max / 1e3);
    if (knows_server(r))
        print_cpu("server", r, r->server_cpu_seconds);
    print_cpu("client", r, r->client_cpu_seconds);
}

static void put(cJSON *object, const char *name, double value)
{
    cJSON_AddNumberToObject(object, name, round(value * 1e4) / 1e4);
}

static int append_json(const struct connect_run *r, struct err *err)
{
    cJSON *line = cJSON_CreateObject();
    char model[128];

    psbench_cpu_model(model, sizeof model);
    cJSON_AddStringToObject(line, "event", "result");
    cJSON_AddStringToObject(line, "load", "connect");
    put(line, "unix_ms", (double)psbench_handshake_unix_ms());
    cJSON_AddStringToObject(line, "cpu_model", model);
    put(line, "cores", psbench_cpu_count());
    cJSON_AddBoolToObject(line, "tls", r->settings->tls != NULL);
    put(line, "shards", r->map.n_nodes * r->map.shards_per_node);
    put(line, "reconnects", r->n_answered);
    put(line, "connections", r->settings->connections);
    put(line, "seconds", r->seconds);
    put(line, "connections_per_s", r->n_answered / r->seconds);
    put(line, "p50_us", quantile_us(r, 0.5));
    put(line, "p99_us", quantile_us(r, 0.99));
    put(line, "p999_us", quantile_us(r, 0.999));
    put(line, "max_us", (double)r->latency_ns.max / 1e3);
    if (knows_server(r))
        put(line, "server_cpu_ms_per_connection", 1e3 * r->server_cpu_seconds / r->n_answered);
    else
        cJSON_AddNullToObject(line, "server_cpu_ms_per_connection");
    put(line, "client_cpu_ms_per_connection", 1e3 * r->client_cpu_seconds / r->n_answered);
    return psbench_report_append(r->settings->json, line, err);
}

/* ---- a run ---- */

static void start(struct connect_run *r, const struct address *servers, uint32_t n_servers)
{
    psbench_handshake_hello(r->settings, &r->hello);
    channel_loop_init(&r->channels, &r->loop);
    r->channels.tls = r->settings->tls;
    r->seek = memory_need(discovery_new(&r->channels, servers, n_servers, &r->hello, CONNECT_MS,
                                        &discovery_events, r));
    uv_timer_init(&r->loop, &r->timer);
    uv_timer_start(&r->timer, on_tick, 0, TICK_MS);
}

static void clean_up(struct connect_run *r)
{
    discovery_free(r->seek);
    channel_loop_close(&r->channels);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    uv_loop_close(&r->loop);
    channel_loop_deinit(&r->channels);
    free(r->lanes);
    free(r->nodes);
}

int psbench_connect_run(const struct psbench_settings *settings, struct err *err)
{
    struct connect_run *r = memory_alloc(sizeof *r);
    struct address servers[DISCOVERY_SERVERS_MAX];
    uint32_t n_servers;
    int status =
        address_list(settings->server, DISCOVERY_SERVERS_MAX, servers, &n_servers, err);

    signal(SIGPIPE, SIG_IGN);
    if (!status && connector_loop_init(&r->loop))
        status = err_set(err, -ENOMEM, "no event loop");
    if (status) {
        free(r);
        return status;
    }
    r->settings = settings;
    r->err = err;
    start(r, servers, n_servers);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    clean_up(r);
    status = r->status;
    if (!status)
        print(r);
    if (!status && settings->json[0])
        status = append_json(r, err);
    free(r);
    return status;
}
