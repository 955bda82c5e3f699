#include "tests/bench/psbench_wire.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/memory.h"
#include "tests/bench/psbench_bare.h"
#include "tests/bench/psbench_cpu.h"

#define WARMUP_MS 100u

/* The thread that answers. */
struct server {
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_async_t stop;
    uv_idle_t idle;
    struct bare *ends; /* owned, `connections` */
    uint32_t n_ends;
    const struct psbench_wire_config *config;
    const uint8_t *bytes; /* borrowed: what answers are made of */
    uv_buf_t buffer;
    double busy;
    int status;
};

/* The caller's thread. */
struct client {
    uv_loop_t loop;
    uv_timer_t timer;
    uv_idle_t idle;
    struct bare *ends;      /* owned */
    uv_connect_t *connects; /* owned */
    const struct psbench_wire_config *config;
    const uint8_t *bytes;
    double pulls_due;
    bool measuring, over;
    uint64_t n_requests, start_ns, end_ns;
    double cpu;
    int status;
};

/* While there is one of these, the loop does not sleep. */
static void on_idle(uv_idle_t *idle)
{
    (void)idle;
}

static void idle_start(uv_loop_t *loop, uv_idle_t *idle, bool spins)
{
    uv_idle_init(loop, idle);
    if (spins)
        uv_idle_start(idle, on_idle);
}

static void on_request(struct bare *b, uint32_t answer_bytes)
{
    struct server *s = b->owner;

    bare_send(b, answer_bytes, 0, s->bytes);
}

static void on_server_ended(struct bare *b, int why)
{
    (void)b;
    (void)why; /* the asking end knows */
}

static void on_stop(uv_async_t *stop)
{
    struct server *s = CONTAINER_OF(stop, struct server, stop);
    uint32_t i;

    for (i = 0; i < s->n_ends; i++)
        bare_close(&s->ends[i], 0);
    uv_close((uv_handle_t *)&s->listener, NULL);
    uv_close((uv_handle_t *)&s->stop, NULL);
    uv_close((uv_handle_t *)&s->idle, NULL);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct server *s = CONTAINER_OF(listener, struct server, listener);
    struct bare *b = &s->ends[s->n_ends];

    if (status || s->n_ends == s->config->connections)
        return;
    *b = (struct bare){
        .buffer = s->buffer, .message = on_request, .ended = on_server_ended, .owner = s
    };
    uv_tcp_init(&s->loop, &b->tcp);
    b->tcp.data = b;
    s->n_ends++;
    status = uv_accept(listener, (uv_stream_t *)&b->tcp);
    if (!status)
        status = bare_start(b);
    if (status)
        bare_close(b, status);
}

static void *serve(void *server)
{
    struct server *s = server;
    uint64_t start_ns = uv_hrtime();

    if (psbench_cpu_pin(s->config->server_cpu, NULL))
        s->status = -EINVAL;
    uv_run(&s->loop, UV_RUN_DEFAULT);
    s->busy = psbench_cpu_of_thread() * 1e9 / (double)(uv_hrtime() - start_ns);
    return NULL;
}

static int server_listen(struct server *s, struct sockaddr_in *ret)
{
    int n_bytes = sizeof *ret, status;

    uv_async_init(&s->loop, &s->stop, on_stop);
    idle_start(&s->loop, &s->idle, s->config->spins);
    uv_tcp_init(&s->loop, &s->listener);
    uv_ip4_addr("127.0.0.1", 0, ret);
    status = uv_tcp_bind(&s->listener, (const struct sockaddr *)ret, 0);
    if (!status)
        status = uv_listen((uv_stream_t *)&s->listener, 4096, on_connection);
    if (!status)
        status = uv_tcp_getsockname(&s->listener, (struct sockaddr *)ret, &n_bytes);
    return status;
}

static void ask(struct client *c, struct bare *b)
{
    const struct psbench_wire_config *cfg = c->config;
    enum psbench_kind kind = PSBENCH_IS_PUSH;

    c->pulls_due += (double)cfg->pull_share;
    if (c->pulls_due >= 1) {
        c->pulls_due--;
        kind = PSBENCH_IS_PULL;
    }
    bare_send(b, cfg->request_bytes[kind], cfg->answer_bytes[kind], c->bytes);
}

static void on_answer(struct bare *b, uint32_t answer_bytes)
{
    struct client *c = b->owner;

    (void)answer_bytes;
    c->n_requests += c->measuring;
    if (!c->over)
        ask(c, b);
}

static void stop(struct client *c, int why)
{
    uint32_t i;

    if (c->over)
        return;
    c->over = true;
    c->status = why;
    uv_close((uv_handle_t *)&c->timer, NULL);
    uv_close((uv_handle_t *)&c->idle, NULL);
    for (i = 0; i < c->config->connections; i++)
        bare_close(&c->ends[i], 0);
}

static void on_client_ended(struct bare *b, int why)
{
    stop(b->owner, why ? why : UV_EOF);
}

static void on_timer(uv_timer_t *timer)
{
    struct client *c = CONTAINER_OF(timer, struct client, timer);

    if (!c->measuring) {
        c->measuring = true;
        c->start_ns = uv_hrtime();
        c->cpu = psbench_cpu_of_thread();
        uv_timer_start(timer, on_timer, (uint64_t)((double)c->config->seconds * 1e3), 0);
        return;
    }
    c->measuring = false;
    c->end_ns = uv_hrtime();
    c->cpu = psbench_cpu_of_thread() - c->cpu;
    stop(c, 0);
}

static void on_connected(uv_connect_t *connect, int status)
{
    struct bare *b = CONTAINER_OF(connect->handle, struct bare, tcp);
    struct client *c = b->owner;
    uint32_t i;

    if (!status && !c->over)
        status = bare_start(b);
    if (status)
        stop(c, status);
    for (i = 0; i < c->config->depth && !c->over; i++)
        ask(c, b);
}

static void client_start(struct client *c, const struct sockaddr_in *address, uv_buf_t buffer)
{
    uint32_t i;

    uv_timer_init(&c->loop, &c->timer);
    uv_timer_start(&c->timer, on_timer, WARMUP_MS, 0);
    idle_start(&c->loop, &c->idle, c->config->spins);
    for (i = 0; i < c->config->connections; i++) {
        struct bare *b = &c->ends[i];

        *b = (struct bare){
            .buffer = buffer, .message = on_answer, .ended = on_client_ended, .owner = c
        };
        uv_tcp_init(&c->loop, &b->tcp);
        b->tcp.data = b;
    }
    for (i = 0; i < c->config->connections && !c->over; i++)
        if (uv_tcp_connect(&c->connects[i], &c->ends[i].tcp, (const struct sockaddr *)address,
                           on_connected))
            stop(c, UV_ECONNREFUSED);
}

/* The longest message: what all are cut from. */
static uint32_t longest(const struct psbench_wire_config *cfg)
{
    uint32_t n = PSBENCH_WIRE_BYTES_MIN, kind;

    for (kind = 0; kind < PSBENCH_KIND_END; kind++) {
        n = cfg->request_bytes[kind] > n ? cfg->request_bytes[kind] : n;
        n = cfg->answer_bytes[kind] > n ? cfg->answer_bytes[kind] : n;
    }
    return n;
}

static int run_both(struct server *s, struct client *c, uv_buf_t client_buffer)
{
    struct sockaddr_in address;
    pthread_t thread;
    int status = server_listen(s, &address);

    if (!status && pthread_create(&thread, NULL, serve, s))
        status = -EAGAIN;
    if (status) {
        on_stop(&s->stop);
        uv_run(&s->loop, UV_RUN_DEFAULT);
        return status;
    }
    client_start(c, &address, client_buffer);
    uv_run(&c->loop, UV_RUN_DEFAULT);
    uv_async_send(&s->stop);
    pthread_join(thread, NULL);
    return c->status ? c->status : s->status;
}

int psbench_wire_run(const struct psbench_wire_config *cfg, struct psbench_wire_result *ret,
                     struct err *err)
{
    uint8_t *bytes = memory_alloc(longest(cfg)),
            *buffers = memory_alloc(2 * (size_t)cfg->read_bytes);
    struct server s = { .config = cfg,
                        .bytes = bytes,
                        .buffer = uv_buf_init((char *)buffers, cfg->read_bytes),
                        .ends = memory_alloc(cfg->connections * sizeof *s.ends) };
    struct client c = { .config = cfg,
                        .bytes = bytes,
                        .ends = memory_alloc(cfg->connections * sizeof *c.ends),
                        .connects = memory_alloc(cfg->connections * sizeof *c.connects) };
    int status;

    uv_loop_init(&s.loop);
    uv_loop_init(&c.loop);
    status = run_both(&s, &c, uv_buf_init((char *)buffers + cfg->read_bytes, cfg->read_bytes));
    uv_loop_close(&s.loop);
    uv_loop_close(&c.loop);
    if (!status) {
        double seconds = (double)(c.end_ns - c.start_ns) / 1e9;

        *ret = (struct psbench_wire_result){ .requests_per_s = (double)c.n_requests / seconds,
                                             .server_busy = s.busy,
                                             .client_busy = c.cpu / seconds };
    }
    free(s.ends);
    free(c.ends);
    free(c.connects);
    free(bytes);
    free(buffers);
    return status ? err_set(err, status, "limits: bare sockets: %s", status_text(status)) : 0;
}
