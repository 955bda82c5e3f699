#include "tests/bench/psbench_run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/mem.h"
#include "tests/bench/psbench_conn.h"
#include "worker/client/seek.h"

#define TICK_MS 10u
#define CONNECT_MS 10000u
#define BEAT_MS 1000u
#define NS_PER_S UINT64_C(1000000000)

enum stage { SEEKING, PREPARING, WARMING, MEASURING, DRAINING, LEAVING, OVER };

struct run {
    const struct psbench_settings *settings;
    struct psbench_counts *counts;
    uv_loop_t loop;
    uv_timer_t timer;
    enum stage stage;
    struct seek *seek;           /* owned; NULL once found */
    struct psbench_pool *pools;  /* owned, n_shards */
    struct psbench_conn **conns; /* owned, n_conns */
    uint32_t n_shards, n_conns, n_waiting;
    bool measuring;
    uint64_t stage_ns, beat_ms;
    double cpu_before;
    int status;
    struct err *err;
};

/* User and system time of the server, in seconds; negative if it cannot be known. */
static double server_cpu(uint32_t pid)
{
    unsigned long user, system;
    char path[64], line[1024], *after;
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    file = pid ? fopen(path, "r") : NULL;
    if (!file)
        return -1;
    n = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[n] = 0;
    after = strrchr(line, ')');
    if (!after || sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                         &user, &system) != 2)
        return -1;
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

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
    r->measuring = false;
    r->status = status;
    if (status)
        err_set(r->err, status, "%s", sentence);
    for (i = 0; i < r->n_conns; i++)
        psbench_conn_drain(r->conns[i]);
    uv_close((uv_handle_t *)&r->timer, NULL);
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

/* A connection is filled, or drained. */
static void on_idle(void *owner)
{
    struct run *r = owner;

    if (--r->n_waiting)
        return;
    if (r->stage == PREPARING) {
        set_stage(r, WARMING);
        for_each(r, psbench_conn_load);
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

static uint64_t unix_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int make_pools(struct run *r, struct err *err)
{
    uint32_t i;
    int status;

    r->pools = mem_alloc(r->n_shards * sizeof *r->pools);
    for (i = 0; i < r->n_shards && i < r->settings->connections; i++) {
        status = psbench_pool_init(&r->pools[i], r->settings, i, r->n_shards, err);
        if (status)
            return status;
    }
    return 0;
}

/* Connection i goes to shard i % n_shards; the i / n_shards-th there. */
static void open_conn(struct run *r, uint32_t i, const struct address *found,
                      const struct hello_reply *m)
{
    uint32_t shard = i % r->n_shards, n = r->settings->connections;
    struct psbench_conn_config config = { .loop = &r->loop,
                                          .settings = r->settings,
                                          .counts = r->counts,
                                          .pool = &r->pools[shard],
                                          .measuring = &r->measuring,
                                          .address = *found,
                                          .shard = shard,
                                          .n_shards = r->n_shards,
                                          .shard_on_node = shard % m->shards_per_node,
                                          .rank = i / r->n_shards,
                                          .n_ranks =
                                              n / r->n_shards + (shard < n % r->n_shards),
                                          .map_id = m->map_id,
                                          .incarnation = unix_ms(),
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
    status = make_pools(r, &err);
    if (status) {
        end(r, status, err.text);
        return;
    }
    r->conns = mem_alloc(n * sizeof(struct psbench_conn *));
    set_stage(r, PREPARING);
    r->n_waiting = n;
    for (i = 0; i < n && r->stage == PREPARING; i++)
        open_conn(r, i, address, m);
}

static const struct seek_events seek_events = { on_found, on_notice, on_not_found };

static void start_measuring(struct run *r)
{
    set_stage(r, MEASURING);
    r->cpu_before = server_cpu(r->settings->server_pid);
    r->measuring = true;
}

static void stop_measuring(struct run *r)
{
    double cpu_after = server_cpu(r->settings->server_pid);

    r->measuring = false;
    r->counts->seconds = (double)(uv_hrtime() - r->stage_ns) / 1e9;
    r->counts->server_cpu_seconds =
        r->cpu_before < 0 || cpu_after < 0 ? -1 : cpu_after - r->cpu_before;
    set_stage(r, DRAINING);
    for_each(r, psbench_conn_drain);
}

static void on_tick(uv_timer_t *timer)
{
    struct run *r = CONTAINER_OF(timer, struct run, timer);
    uint64_t now_ms = uv_now(&r->loop), in_stage_ns = uv_hrtime() - r->stage_ns;

    if (r->stage == SEEKING)
        seek_tick(r->seek, now_ms);
    else if (r->stage == WARMING && in_stage_ns >= r->settings->warmup_seconds * NS_PER_S)
        start_measuring(r);
    else if (r->stage == MEASURING && in_stage_ns >= r->settings->seconds * NS_PER_S)
        stop_measuring(r);
    else if ((r->stage == DRAINING || r->stage == LEAVING) && in_stage_ns >= 10 * NS_PER_S)
        end(r, PS_EDEADLINE, "the last requests are not answered after 10 s");
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
    seek_free(r->seek);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    uv_loop_close(&r->loop);
    for (i = 0; r->pools && i < r->n_shards; i++)
        psbench_pool_deinit(&r->pools[i]);
    free(r->pools);
    free(r->conns);
}

int psbench_run(const struct psbench_settings *settings, struct psbench_counts *counts,
                struct err *err)
{
    struct run r = { .settings = settings, .counts = counts, .err = err };
    struct hello hello = { .version_min = PROTO_VERSION_MIN,
                           .version_max = PROTO_VERSION_MAX,
                           .role = "worker",
                           .name = "psbench" };
    struct address servers[SEEK_SERVERS_MAX];
    uint32_t n_servers;
    int status = address_list(settings->server, SEEK_SERVERS_MAX, servers, &n_servers, err);

    if (status)
        return status;
    signal(SIGPIPE, SIG_IGN);
    status = uv_loop_init(&r.loop);
    if (status)
        return err_set(err, status, "no event loop: %s", status_text(status));
    memcpy(hello.token, settings->token, strnlen(settings->token, sizeof hello.token - 1));
    r.seek = seek_new(&r.loop, servers, n_servers, &hello, CONNECT_MS, &seek_events, &r);
    uv_timer_init(&r.loop, &r.timer);
    uv_timer_start(&r.timer, on_tick, 0, TICK_MS);
    uv_run(&r.loop, UV_RUN_DEFAULT);
    clean_up(&r);
    return r.status;
}
