#include "tests/bench/psbench_run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "tests/bench/psbench_conn.h"
#include "tests/bench/psbench_cpu.h"
#include "tests/bench/psbench_handshake.h"
#include "worker/client/discovery.h"

#define TICK_MS 10u
#define CONNECT_MS 10000u
#define BEAT_MS 1000u
#define DRAIN_S 10

enum stage { SEEKING, PREPARING, WARMING, MEASURING, DRAINING, LEAVING, OVER };

struct run {
    const struct psbench_settings *settings;
    struct psbench_settings each; /* of the connections: whether they fill */
    struct psbench_counts *counts;
    struct psbench_pools *pools;
    uv_loop_t loop;
    struct channel_loop channels;
    uv_timer_t timer;
    /* While it is active, the loop does not sleep. Open loop: what is due is looked for all the
     * time, as a timer knows milliseconds only. Closed loop: the server does not pay for waking
     * us with its answers. */
    uv_idle_t spin;
    enum stage stage;
    struct discovery *seek;      /* owned; NULL once found */
    struct psbench_conn **conns; /* owned, n_conns */
    uint32_t n_shards, n_conns, n_waiting;
    struct psbench_window window;
    uint64_t stage_ns, beat_ms, tick_ms;
    double server_cpu_before, client_cpu_before;
    int status;
    struct err *err;
};

static void set_stage(struct run *r, enum stage stage)
{
    r->stage = stage;
    r->stage_ns = uv_hrtime();
    r->n_waiting = r->n_conns;
}

static void end(struct run *r, int status, const char *sentence)
{
    uint32_t i;

    if (r->stage == OVER)
        return;
    set_stage(r, OVER);
    r->status = status;
    if (status)
        err_set(r->err, status, "%s", sentence);
    for (i = 0; i < r->n_conns; i++)
        psbench_conn_drain(r->conns[i]);
    uv_close((uv_handle_t *)&r->timer, NULL);
    uv_close((uv_handle_t *)&r->spin, NULL);
    uv_stop(&r->loop); /* connections are freed outside of their own events */
}

static void on_failed(void *owner, const char *sentence)
{
    end(owner, -EIO, sentence);
}

static void on_notice(void *owner, const char *sentence)
{
    (void)owner;
    fprintf(stderr, "psbench: %s\n", sentence);
}

static void on_not_found(void *owner, int status, const char *sentence)
{
    end(owner, status, sentence);
}

static void for_each(struct run *r, void (*act)(struct psbench_conn *))
{
    uint32_t i;

    for (i = 0; i < r->n_conns && r->stage != OVER; i++)
        act(r->conns[i]);
}

static void start_measuring(struct run *r)
{
    r->server_cpu_before = psbench_cpu_of_process(r->counts->server_pid);
    r->client_cpu_before = psbench_cpu_of_thread();
    set_stage(r, MEASURING);
    r->window.start_ns = r->stage_ns;
}

static void stop_measuring(struct run *r)
{
    double server_cpu = psbench_cpu_of_process(r->counts->server_pid);
    struct psbench_counts *c = r->counts;

    r->window.end_ns = uv_hrtime();
    c->seconds += (double)(r->window.end_ns - r->window.start_ns) / 1e9;
    c->client_cpu_seconds += psbench_cpu_of_thread() - r->client_cpu_before;
    if (r->server_cpu_before < 0 || server_cpu < 0)
        c->server_cpu_seconds = -1;
    else
        c->server_cpu_seconds += server_cpu - r->server_cpu_before;
    set_stage(r, DRAINING);
    uv_idle_stop(&r->spin);
}

static void on_spin(uv_idle_t *spin)
{
    struct run *r = CONTAINER_OF(spin, struct run, spin);

    if (r->settings->rate > 0) /* in the closed loop, answers bring the requests */
        for_each(r, psbench_conn_turn);
}

static void start_load(struct run *r)
{
    if (r->settings->load == PSBENCH_GROW)
        start_measuring(r);
    else
        set_stage(r, WARMING);
    r->counts->spins = r->settings->spin || r->settings->rate > 0;
    if (r->counts->spins)
        uv_idle_start(&r->spin, on_spin);
    for_each(r, psbench_conn_load);
}

/* A connection is filled, or drained. */
static void on_idle(void *owner)
{
    struct run *r = owner;

    if (--r->n_waiting)
        return;
    if (r->stage == MEASURING) /* grow: all is sent */
        stop_measuring(r);
    if (r->stage == PREPARING) {
        start_load(r);
    } else if (r->stage == DRAINING) {
        set_stage(r, LEAVING);
        for_each(r, psbench_conn_leave);
    }
}

static void on_gone(void *owner)
{
    struct run *r = owner;

    if (!--r->n_waiting)
        end(r, 0, "");
}

/* Connection i goes to shard i % n_shards; the i / n_shards-th there. */
static void open_conn(struct run *r, uint32_t i, const struct address *found,
                      const struct hello_reply *m)
{
    uint32_t shard = i % r->n_shards, n = r->settings->connections;
    struct psbench_conn_config config = { .channels = &r->channels,
                                          .settings = &r->each,
                                          .counts = r->counts,
                                          .pool = &r->pools->items[shard],
                                          .window = &r->window,
                                          .address = *found,
                                          .number = i,
                                          .n_conns = n,
                                          .shard = shard,
                                          .n_shards = r->n_shards,
                                          .shard_on_node = shard % m->shards_per_node,
                                          .rank = i / r->n_shards,
                                          .n_ranks =
                                              n / r->n_shards + (shard < n % r->n_shards),
                                          .map_id = m->map_id,
                                          .incarnation = psbench_handshake_unix_ms(),
                                          .idle = on_idle,
                                          .gone = on_gone,
                                          .failed = on_failed,
                                          .owner = r };
    const char *node = m->nodes[shard / m->shards_per_node];

    if (m->n_nodes > 1 && address_parse(node, strlen(node), &config.address, r->err))
        end(r, -EINVAL, "the server names a node that is no HOST:PORT");
    else
        r->conns[r->n_conns++] = psbench_conn_new(&config);
}

static void on_found(void *owner, const struct address *address, const struct hello_reply *m)
{
    struct run *r = owner;
    uint32_t n = r->settings->connections, i;
    struct err err = { 0 };
    int status;

    r->n_shards = r->counts->n_shards = m->n_nodes * m->shards_per_node;
    r->each.no_fill |= r->pools->items != NULL;
    status = psbench_pools_init(r->pools, r->settings, r->n_shards, &err);
    if (status) {
        end(r, status, err.text);
        return;
    }
    r->conns = memory_alloc(n * sizeof(struct psbench_conn *));
    set_stage(r, PREPARING);
    r->n_waiting = n;
    for (i = 0; i < n && r->stage == PREPARING; i++)
        open_conn(r, i, address, m);
}

static const struct discovery_events discovery_events = { on_found, on_notice, on_not_found };

static bool is_over(const struct run *r, float seconds)
{
    return (double)(uv_hrtime() - r->stage_ns) >= (double)seconds * 1e9;
}

static void on_tick(uv_timer_t *timer)
{
    struct run *r = CONTAINER_OF(timer, struct run, timer);
    uint64_t now_ms = uv_now(&r->loop);

    if (r->stage == SEEKING) {
        discovery_tick(r->seek, now_ms);
    } else if (r->stage == WARMING && is_over(r, r->settings->warmup_seconds)) {
        start_measuring(r);
    } else if (r->stage == MEASURING && r->settings->load != PSBENCH_GROW &&
               is_over(r, r->settings->seconds)) {
        stop_measuring(r);
        for_each(r, psbench_conn_drain);
    } else if ((r->stage == DRAINING || r->stage == LEAVING) && is_over(r, DRAIN_S)) {
        end(r, PS_EDEADLINE, "the last requests are not answered after 10 s");
    }
    for (uint32_t i = 0; i < r->n_conns && r->stage < DRAINING; i++)
        psbench_conn_wait(r->conns[i], r->tick_ms);
    if (r->settings->pause_us && (r->stage == WARMING || r->stage == MEASURING))
        for_each(r, psbench_conn_turn);
    if (r->stage != OVER && now_ms - r->beat_ms >= BEAT_MS) {
        r->beat_ms = now_ms;
        for_each(r, psbench_conn_beat);
    }
}

static void clean_up(struct run *r)
{
    uint32_t i;

    for (i = 0; i < r->n_conns; i++)
        psbench_conn_free(r->conns[i]);
    discovery_free(r->seek);
    channel_loop_close(&r->channels);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    uv_loop_close(&r->loop);
    channel_loop_deinit(&r->channels);
    free(r->conns);
}

int psbench_run(const struct psbench_settings *settings, struct psbench_pools *pools,
                struct psbench_counts *counts, struct err *err)
{
    struct run r = {
        .settings = settings, .each = *settings, .counts = counts, .pools = pools, .err = err
    };
    struct address servers[DISCOVERY_SERVERS_MAX];
    struct hello hello;
    uint32_t n_servers;
    int status =
        address_list(settings->server, DISCOVERY_SERVERS_MAX, servers, &n_servers, err);

    if (status)
        return status;
    signal(SIGPIPE, SIG_IGN);
    status = uv_loop_init(&r.loop);
    if (status)
        return err_set(err, status, "no event loop: %s", status_text(status));
    psbench_handshake_hello(settings, &hello);
    channel_loop_init(&r.channels, &r.loop);
    r.channels.tls = settings->tls;
    r.seek = memory_need(discovery_new(&r.channels, servers, n_servers, &hello, CONNECT_MS,
                                       &discovery_events, &r));
    uv_idle_init(&r.loop, &r.spin);
    uv_timer_init(&r.loop, &r.timer);
    r.tick_ms = settings->pause_us ? 1 : TICK_MS;
    uv_timer_start(&r.timer, on_tick, 0, r.tick_ms);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    clean_up(&r);
    return r.status;
}
