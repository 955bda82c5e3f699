/*
 * Connections as streams of bytes in memory. Either direction keeps its order and takes its time; what an end sends is taken in
 * parts, read in parts, and waits for room; a cut is noticed by either end when it is noticed.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/paths.h"
#include "tests/sim/uv_state.h"

#define FDS_MAX 4096u
#define LATE_US \
    400000u /* the longest that a cut keeps bytes from arriving, or an end from noticing it */

/* One end of a connection, or a listener. */
struct sock {
    struct sock *next, *peer;
    struct process *process;
    struct handle *handle; /* who reads and writes here; NULL: on its way to another loop */
    uint32_t n_fds;
    bool is_listener, is_connecting, dials, is_gone; /* gone: no descriptor is left */
    struct sockaddr_in address; /* a listener's, or who it is connected to */
    struct sock *accepts;       /* a listener: connections that wait */
    uint8_t *in;                /* owned: arrived and not read */
    size_t in_first, in_end, in_cap;
    int end;                       /* behind them: 0: more may come; UV_EOF, UV_ECONNRESET */
    int broken;                    /* what a write returns; 0: it may be tried */
    bool is_shut, is_reset, loses; /* loses: of a reset: nothing arrives any more; ... */
    uint64_t held_until_us;        /* ... or nothing before that */
    uint32_t n_late;               /* segments that were held, and have still to arrive */
    size_t flying, window;         /* bytes on their way to the peer; that it may hold unread */
    uint64_t last_us;              /* when the last of them arrives */
};

struct segment {
    size_t n_bytes;
    int end; /* not 0: this, and no bytes */
    uint8_t bytes[];
};

static struct sock *fds[FDS_MAX];
static uint32_t n_fds;

void net_begin(void)
{
    memset(fds, 0, sizeof fds);
    n_fds = 0;
    paths_begin();
}

/* --- ends --- */

static struct sock *sock_new(struct process *p)
{
    struct sock *s = calloc(1, sizeof *s);

    assert(s);
    *s = (struct sock){ .next = machine.socks, .process = p };
    machine.socks = s;
    s->window = dice_once_in(&machine.dice, 6)
                    ? dice_from(&machine.dice, machine.window_bytes, 64 * machine.window_bytes)
                    : (size_t)256 << 10;
    return s;
}

static int fd_new(struct sock *s)
{
    for (uint32_t i = 0; i < FDS_MAX; i++) {
        uint32_t at = n_fds++ % FDS_MAX;

        if (fds[at] && !fds[at]->is_gone)
            continue;
        fds[at] = s;
        s->n_fds++;
        return SIM_FD_FIRST + (int)at;
    }
    abort();
}

static struct sock *sock_of(int fd)
{
    uint32_t i = (uint32_t)(fd - SIM_FD_FIRST);

    return fd >= SIM_FD_FIRST && i < FDS_MAX ? fds[i] : NULL;
}

static void wake(const struct sock *s)
{
    if (s->handle && !s->process->is_dead)
        loop_wake(s->handle->loop);
}

static uint64_t delay_us(void)
{
    uint32_t most = machine.network_us;

    if (!machine.is_calm && dice_once_in(&machine.dice, 50))
        most *= 10;
    return dice_from(&machine.dice, most / 8, most);
}

static size_t n_unread(const struct sock *s)
{
    return s->in_end - s->in_first;
}

static void put(struct sock *s, const uint8_t *bytes, size_t n_bytes)
{
    if (s->in_first == s->in_end)
        s->in_first = s->in_end = 0;
    if (s->in_end + n_bytes > s->in_cap) {
        s->in_cap = 2 * (s->in_end + n_bytes);
        s->in = realloc(s->in, s->in_cap);
        assert(s->in);
    }
    memcpy(s->in + s->in_end, bytes, n_bytes);
    s->in_end += n_bytes;
}

static void send_end(struct sock *s, int end);

/* 10.0.0.1 is node 0. */
static uint32_t node_at(const struct sock *s)
{
    return (ntohl(s->address.sin_addr.s_addr) & 255) - 1;
}

/* Nothing from this end arrives before; 0: now. */
static uint64_t held_until_us(const struct sock *from)
{
    const struct sock *dialler = from->dials ? from : from->peer;
    uint64_t until_us = paths_held_until_us(process_place(dialler->process), node_at(from),
                                            from->dials ? PATH_TO_NODE : PATH_TO_DIALLER);

    if (from->held_until_us > until_us)
        until_us = from->held_until_us;
    return until_us > machine_now_us() ? until_us : 0;
}

static void arrive_later(struct sock *from, const struct segment *segment, uint64_t until_us);

static void on_arrival(void *owner, uint64_t is_late, void *data)
{
    struct sock *from = owner, *s = from->peer;
    const struct segment *segment = data;
    uint64_t until_us = held_until_us(from);

    /* What arrives at the moment at which others are let go comes behind them. */
    if (!from->loses && (until_us || (from->n_late && !is_late))) {
        from->n_late += !is_late;
        arrive_later(from, segment, until_us);
        return;
    }
    from->n_late -= is_late != 0;
    from->flying -= segment->n_bytes;
    if (from->loses)
        return;
    if (s->is_gone) { /* nobody is there: the sender learns it */
        if (segment->end != UV_ECONNRESET)
            send_end(s, UV_ECONNRESET);
        return;
    }
    if (s->end)
        return;
    if (segment->end)
        s->end = segment->end;
    else
        put(s, segment->bytes, segment->n_bytes);
    if (s->end == UV_ECONNRESET)
        s->broken = UV_EPIPE;
    wake(s);
}

/* All that is held arrives at the same moment, in its order. */
static void arrive_later(struct sock *from, const struct segment *segment, uint64_t until_us)
{
    size_t n_bytes = sizeof *segment + segment->n_bytes;
    struct segment *copy = malloc(n_bytes);

    assert(copy);
    memcpy(copy, segment, n_bytes);
    events_in(&machine.events, until_us ? until_us - machine_now_us() : 0, on_arrival, from,
              true, copy);
}

static void fly(struct sock *s, const uint8_t *bytes, size_t n_bytes, int end)
{
    struct segment *segment = malloc(sizeof *segment + n_bytes);
    uint64_t at_us = machine_now_us() + delay_us();

    assert(segment);
    *segment = (struct segment){ .n_bytes = n_bytes, .end = end };
    if (n_bytes)
        memcpy(segment->bytes, bytes, n_bytes);
    s->last_us = at_us > s->last_us ? at_us : s->last_us;
    s->flying += n_bytes;
    events_in(&machine.events, s->last_us - machine_now_us(), on_arrival, s, 0, segment);
}

static void send_end(struct sock *s, int end)
{
    if (s->peer && !s->loses)
        fly(s, NULL, 0, end);
}

/* How much it takes: 0: there is no room; or an error. */
static ssize_t sock_write(struct sock *s, const uint8_t *bytes, size_t n_bytes)
{
    size_t held;

    if (s->broken || s->is_shut)
        return s->broken ? s->broken : UV_EPIPE;
    held = s->flying + n_unread(s->peer);
    if (s->loses)
        return (ssize_t)n_bytes; /* the kernel will find out later */
    if (held >= s->window)
        return 0;
    if (n_bytes > s->window - held)
        n_bytes = s->window - held;
    if (!machine.is_calm && n_bytes > 1 && dice_once_in(&machine.dice, 8))
        n_bytes = dice_from(&machine.dice, 1, n_bytes - 1);
    fly(s, bytes, n_bytes, 0);
    return (ssize_t)n_bytes;
}

/* The last descriptor is gone. */
static void sock_drop(struct sock *s)
{
    s->is_gone = true;
    s->handle = NULL;
    if (s->is_listener)
        for (struct sock *c = s->accepts; c; c = c->accepts) {
            c->is_gone = true;
            send_end(c, UV_ECONNRESET);
        }
    else if (s->peer && (!s->is_shut || n_unread(s)))
        send_end(s, n_unread(s) ? UV_ECONNRESET : UV_EOF);
    free(s->in);
    s->in = NULL;
    s->in_first = s->in_end = s->in_cap = 0;
}

void socks_of_dead(struct process *p)
{
    for (struct sock *s = machine.socks; s; s = s->next)
        if (s->process == p && !s->is_gone)
            sock_drop(s);
}

/* --- descriptors --- */

int sim_close(int fd)
{
    struct sock *s = sock_of(fd);

    if (!s || s->is_gone)
        return 0;
    fds[fd - SIM_FD_FIRST] = NULL;
    if (--s->n_fds == 0)
        sock_drop(s);
    return 0;
}

int sim_dup(int fd)
{
    struct sock *s = sock_of(fd);

    return s && !s->is_gone ? fd_new(s) : -1;
}

int sim_shutdown(int fd)
{
    struct sock *s = sock_of(fd);

    if (!s || s->is_gone)
        return -1;
    if (!s->is_shut)
        send_end(s, UV_EOF);
    s->is_shut = true;
    if (!s->end)
        s->end = UV_EOF;
    wake(s);
    return 0;
}

int sim_outq(int fd)
{
    const struct sock *s = sock_of(fd);

    return s ? (int)s->flying : 0;
}

/* --- cuts --- */

static void on_noticed(void *owner, uint64_t number, void *data)
{
    struct sock *s = owner;

    (void)number;
    (void)data;
    if (s->is_gone)
        return;
    s->end = s->end ? s->end : UV_ECONNRESET;
    s->broken = UV_EPIPE;
    wake(s);
}

static void reset_sock(struct sock *s, uint64_t least_us, struct dice *dice)
{
    s->is_reset = true;
    events_in(&machine.events, least_us + dice_roll(dice, 20 * (uint64_t)machine.network_us),
              on_noticed, s, 0, NULL);
}

void net_reset_path(const void *from, uint32_t node, struct dice *dice)
{
    for (struct sock *s = machine.socks; s; s = s->next) {
        if (!s->dials || process_place(s->process) != from || !s->peer || s->is_gone ||
            s->is_reset || node_at(s) != node)
            continue;
        s->loses = s->peer->loses = true;
        reset_sock(s, 0, dice);
        reset_sock(s->peer, 0, dice);
    }
}

bool net_reset_one(struct process *p, bool flying, struct dice *dice)
{
    struct sock *found = NULL;
    bool is_late; /* the other end hears of it when all is over on this one */
    uint32_t n = 0;

    for (struct sock *s = machine.socks; s; s = s->next)
        if (s->process == p && s->peer && !s->is_gone && !s->is_reset &&
            (!flying || s->flying > 100) && /* more than a heartbeat */ dice_once_in(dice, ++n))
            found = s;
    if (!found)
        return false;
    is_late = dice_once_in(dice, 2);
    for (int i = 0; i < 2; i++, found = found->peer) {
        found->loses = dice_once_in(dice, 2);
        found->held_until_us = machine_now_us() + dice_roll(dice, LATE_US);
        reset_sock(found, is_late && i ? LATE_US : 0, dice);
    }
    return true;
}

/* --- connections begin --- */

int uv_tcp_init(uv_loop_t *loop, uv_tcp_t *tcp)
{
    (void)handle_new(loop, tcp, UV_TCP);
    tcp->write_queue_size = 0;
    return 0;
}

static void set_sock(struct handle *h, struct sock *s)
{
    h->sock = s;
    h->fd = fd_new(s);
    s->handle = h;
}

int uv_tcp_init_ex(uv_loop_t *loop, uv_tcp_t *tcp, unsigned family)
{
    (void)family;
    uv_tcp_init(loop, tcp);
    set_sock(handle_of(tcp), sock_new(process_current()));
    return 0;
}

int uv_tcp_open(uv_tcp_t *tcp, uv_os_sock_t fd)
{
    struct handle *h = handle_of(tcp);
    struct sock *s = sock_of(fd);

    assert(s && !s->is_gone);
    h->sock = s;
    h->fd = fd;
    s->handle = h;
    return 0;
}

int uv_tcp_bind(uv_tcp_t *tcp, const struct sockaddr *address, unsigned flags)
{
    struct sock *s = sock_new(process_current());

    (void)flags;
    memcpy(&s->address, address, sizeof s->address);
    set_sock(handle_of(tcp), s);
    return 0;
}

int uv_listen(uv_stream_t *stream, int backlog, uv_connection_cb on_connection)
{
    struct handle *h = handle_of(stream);

    (void)backlog;
    h->sock->is_listener = true;
    h->on_connection = on_connection;
    h->listens = h->is_active = true;
    return 0;
}

static struct sock *find_listener(const struct sockaddr_in *address)
{
    for (struct sock *s = machine.socks; s; s = s->next)
        if (s->is_listener && !s->is_gone && !s->process->is_dead &&
            s->address.sin_port == address->sin_port &&
            s->address.sin_addr.s_addr == address->sin_addr.s_addr)
            return s;
    return NULL;
}

static void on_connected(void *owner, uint64_t is_there, void *data)
{
    struct sock *s = owner;
    struct handle *h = s->handle;

    (void)data;
    s->is_connecting = false;
    if (s->is_gone || !h || !h->connect)
        return;
    request_done(h->loop, h->connect, is_there ? 0 : UV_ECONNREFUSED);
    h->connect = NULL;
}

/* The first packet arrives: it is the kernel that answers, also of a process that stands still. */
static void on_knock(void *owner, uint64_t number, void *data)
{
    struct sock *s = owner, *listener = find_listener(&s->address), *c, **at;
    uint64_t there_us =
                 paths_held_until_us(process_place(s->process), node_at(s), PATH_TO_NODE),
             back_us =
                 paths_held_until_us(process_place(s->process), node_at(s), PATH_TO_DIALLER);

    (void)number;
    (void)data;
    if (there_us) { /* it is sent again */
        events_in(&machine.events, there_us - machine_now_us(), on_knock, s, 0, NULL);
        return;
    }
    events_in(&machine.events, delay_us() + (back_us ? back_us - machine_now_us() : 0),
              on_connected, s, listener != NULL, NULL);
    if (!listener)
        return;
    c = sock_new(listener->process);
    c->peer = s;
    s->peer = c;
    c->address = s->address;
    for (at = &listener->accepts; *at; at = &(*at)->accepts)
        ;
    *at = c;
    if (s->is_gone)
        send_end(s, UV_EOF);
    wake(listener);
}

int uv_tcp_connect(uv_connect_t *req, uv_tcp_t *tcp, const struct sockaddr *address,
                   uv_connect_cb on_done)
{
    struct handle *h = handle_of(tcp);
    struct sock *s = h->sock;
    struct request *r = calloc(1, sizeof *r);

    assert(s && r);
    memcpy(&s->address, address, sizeof s->address);
    s->is_connecting = s->dials = true;
    req->handle = (uv_stream_t *)tcp;
    *r = (struct request){ .req = (uv_req_t *)(void *)req,
                           .kind = REQUEST_CONNECT,
                           .on_done.connect = on_done };
    h->connect = r;
    h->loop->n_requests++;
    events_in(&machine.events, delay_us(), on_knock, s, 0, NULL);
    return 0;
}

int uv_accept(uv_stream_t *server, uv_stream_t *client)
{
    struct sock *listener = handle_of(server)->sock, *s = listener->accepts;

    if (!s)
        return UV_EAGAIN;
    listener->accepts = s->accepts;
    s->accepts = NULL;
    set_sock(handle_of(client), s);
    return 0;
}

static int name_of(const struct sock *s, struct sockaddr *name, int *n_bytes)
{
    assert(*n_bytes >= (int)sizeof s->address);
    memcpy(name, &s->address, sizeof s->address);
    *n_bytes = (int)sizeof s->address;
    return 0;
}

int uv_tcp_getsockname(const uv_tcp_t *tcp, struct sockaddr *name, int *n_bytes)
{
    return name_of(handle_of(tcp)->sock, name, n_bytes);
}

int uv_tcp_getpeername(const uv_tcp_t *tcp, struct sockaddr *name, int *n_bytes)
{
    return name_of(handle_of(tcp)->sock, name, n_bytes);
}

int uv_tcp_nodelay(uv_tcp_t *tcp, int enable)
{
    (void)tcp, (void)enable;
    return 0;
}

int uv_tcp_keepalive(uv_tcp_t *tcp, int enable, unsigned delay_s)
{
    (void)tcp, (void)enable, (void)delay_s;
    return 0;
}

int uv_fileno(const uv_handle_t *handle, uv_os_fd_t *fd)
{
    *fd = handle_of(handle)->fd;
    return *fd < 0 ? UV_EBADF : 0;
}

/* --- reading --- */

int uv_read_start(uv_stream_t *stream, uv_alloc_cb on_alloc, uv_read_cb on_read)
{
    struct handle *h = handle_of(stream);

    if (h->is_closing)
        return UV_EINVAL;
    if (h->reads)
        return UV_EALREADY;
    h->reads = h->is_active = true;
    h->on_alloc = on_alloc;
    h->on_read = on_read;
    return 0;
}

int uv_read_stop(uv_stream_t *stream)
{
    handle_of(stream)->reads = handle_of(stream)->is_active = false;
    return 0;
}

static void read_bytes(struct handle *h)
{
    struct sock *s = h->sock;
    uv_stream_t *stream = (uv_stream_t *)h->uv;
    uv_buf_t buffer = { 0 };
    size_t n = n_unread(s);

    h->on_alloc(h->uv, 65536, &buffer);
    if (!buffer.base || !buffer.len) {
        h->on_read(stream, UV_ENOBUFS, &buffer);
        return;
    }
    n = n > buffer.len ? buffer.len : n;
    if (!machine.is_calm && n > 1 && dice_once_in(&machine.dice, 10))
        n = dice_from(&machine.dice, 1, n - 1);
    memcpy(buffer.base, s->in + s->in_first, n);
    s->in_first += n;
    if (s->peer)
        wake(s->peer);
    h->on_read(stream, (ssize_t)n, &buffer);
}

static void read_end(struct handle *h)
{
    uv_buf_t buffer = { 0 };

    h->on_alloc(h->uv, 65536, &buffer);
    if (!buffer.base || !buffer.len) {
        h->on_read((uv_stream_t *)h->uv, UV_ENOBUFS, &buffer);
        return;
    }
    h->reads = h->is_active = false;
    h->on_read((uv_stream_t *)h->uv, h->sock->end, &buffer);
}

/* --- writing --- */

static size_t window_space(const struct sock *s)
{
    size_t held = s->peer ? s->flying + n_unread(s->peer) : 0;

    return held < s->window ? s->window - held : 0;
}

static bool may_write(const struct handle *h)
{
    return h->writes && (h->sock->broken || h->sock->loses || window_space(h->sock) > 0);
}

/* As much as there is room for. */
static void flush(struct handle *h)
{
    uv_stream_t *stream = (uv_stream_t *)h->uv;
    struct request *r;

    while ((r = h->writes) != NULL) {
        ssize_t n = sock_write(h->sock, r->bytes + r->n_done, r->n_bytes - r->n_done);

        if (n == 0)
            return;
        stream->write_queue_size -= n < 0 ? r->n_bytes - r->n_done : (size_t)n;
        r->n_done += n < 0 ? 0 : (size_t)n;
        if (n > 0 && r->n_done < r->n_bytes)
            continue;
        h->writes = r->next;
        request_done(h->loop, r, n < 0 ? (int)n : 0);
    }
    if (h->shutdown) {
        r = h->shutdown;
        h->shutdown = NULL;
        if (!h->sock->is_shut)
            send_end(h->sock, UV_EOF);
        h->sock->is_shut = true;
        request_done(h->loop, r, h->sock->broken ? UV_ENOTCONN : 0);
    }
}

int uv_write(uv_write_t *req, uv_stream_t *stream, const uv_buf_t bufs[], unsigned n,
             uv_write_cb on_done)
{
    struct handle *h = handle_of(stream);
    struct request *r = calloc(1, sizeof *r), **at = &h->writes;
    size_t n_bytes = 0;

    assert(r);
    if (h->fd < 0 || h->is_shut) {
        free(r);
        return h->fd < 0 ? UV_EBADF : UV_EPIPE;
    }
    req->handle = stream;
    *r = (struct request){ .req = (uv_req_t *)(void *)req,
                           .kind = REQUEST_WRITE,
                           .on_done.write = on_done };
    for (unsigned i = 0; i < n; i++)
        r->n_bytes += bufs[i].len;
    r->bytes = malloc(r->n_bytes + 1);
    assert(r->bytes);
    for (unsigned i = 0; i < n; n_bytes += bufs[i++].len)
        memcpy(r->bytes + n_bytes, bufs[i].base, bufs[i].len);
    while (*at)
        at = &(*at)->next;
    *at = r;
    h->loop->n_requests++;
    stream->write_queue_size += n_bytes;
    flush(h);
    return 0;
}

int uv_try_write(uv_stream_t *stream, const uv_buf_t bufs[], unsigned n)
{
    struct handle *h = handle_of(stream);
    size_t done = 0;

    if (h->connect || h->writes || stream->write_queue_size)
        return UV_EAGAIN;
    if (h->fd < 0)
        return UV_EBADF;
    for (unsigned i = 0; i < n; i++) {
        ssize_t part = sock_write(h->sock, (const uint8_t *)bufs[i].base, bufs[i].len);

        if (part < 0)
            return done ? (int)done : (int)part;
        done += (size_t)part;
        if ((size_t)part < bufs[i].len)
            break;
    }
    return done ? (int)done : UV_EAGAIN;
}

int uv_shutdown(uv_shutdown_t *req, uv_stream_t *stream, uv_shutdown_cb on_done)
{
    struct handle *h = handle_of(stream);
    struct request *r;

    if (h->fd < 0 || h->is_shut || h->is_closing || h->connect || h->sock->broken)
        return UV_ENOTCONN;
    r = calloc(1, sizeof *r);
    assert(r);
    req->handle = stream;
    *r = (struct request){ .req = (uv_req_t *)(void *)req,
                           .kind = REQUEST_SHUTDOWN,
                           .on_done.shutdown = on_done };
    h->is_shut = true;
    h->shutdown = r;
    h->loop->n_requests++;
    flush(h);
    return 0;
}

size_t uv_stream_get_write_queue_size(const uv_stream_t *stream)
{
    return stream->write_queue_size;
}

/* --- the loop's side --- */

bool stream_is_ready(const struct handle *h)
{
    const struct sock *s = h->sock;

    if (!s)
        return false;
    if (h->listens)
        return s->accepts != NULL;
    return (h->reads && (n_unread(s) || s->end)) || may_write(h);
}

void stream_poll(struct handle *h)
{
    struct sock *s = h->sock;

    if (!s)
        return;
    while (h->listens && s->accepts && !h->is_closing) {
        const struct sock *first = s->accepts;

        h->on_connection((uv_stream_t *)h->uv, 0);
        if (s->accepts == first)
            return;
    }
    if (h->reads && n_unread(s))
        read_bytes(h);
    else if (h->reads && s->end)
        read_end(h);
    if (!h->is_closing && may_write(h))
        flush(h);
}

void stream_close(struct handle *h)
{
    struct sock *s = h->sock;

    h->reads = h->listens = false;
    if (h->fd < 0)
        return;
    if (s->handle == h)
        s->handle = NULL;
    h->sock = NULL;
    (void)sim_close(h->fd);
    h->fd = -1;
}

void stream_destroy(struct handle *h)
{
    struct request *writes = h->writes, *next;

    ((uv_stream_t *)h->uv)->write_queue_size = 0;
    h->writes = NULL;
    if (h->connect) {
        h->connect->status = UV_ECANCELED;
        request_report(h, h->connect);
    }
    for (; writes; writes = next) {
        next = writes->next;
        writes->status = UV_ECANCELED;
        request_report(h, writes);
    }
    if (h->shutdown) {
        h->shutdown->status = UV_ECANCELED;
        request_report(h, h->shutdown);
    }
    h->connect = h->shutdown = NULL;
}

static struct loop *loop_of_request(const struct request *r)
{
    switch (r->kind) {
    case REQUEST_WORK:
        return loop_of(((uv_work_t *)(void *)r->req)->loop);
    case REQUEST_WRITE:
        return loop_of(((uv_write_t *)(void *)r->req)->handle->loop);
    case REQUEST_CONNECT:
        return loop_of(((uv_connect_t *)(void *)r->req)->handle->loop);
    case REQUEST_SHUTDOWN:
        break;
    }
    return loop_of(((uv_shutdown_t *)(void *)r->req)->handle->loop);
}

void request_report(struct handle *h, struct request *r)
{
    struct request done = *r;

    if (!h && r->kind == REQUEST_CONNECT &&
        handle_of(((uv_connect_t *)(void *)r->req)->handle)->is_closing)
        done.status = UV_ECANCELED;
    loop_of_request(r)->n_requests--;
    free(r->bytes);
    free(r);
    switch (done.kind) {
    case REQUEST_WORK:
        done.on_done.work((uv_work_t *)(void *)done.req, done.status);
        break;
    case REQUEST_WRITE:
        done.on_done.write((uv_write_t *)(void *)done.req, done.status);
        break;
    case REQUEST_CONNECT:
        done.on_done.connect((uv_connect_t *)(void *)done.req, done.status);
        break;
    case REQUEST_SHUTDOWN:
        done.on_done.shutdown((uv_shutdown_t *)(void *)done.req, done.status);
        break;
    }
}

/* --- addresses --- */

int uv_ip4_addr(const char *ip, int port, struct sockaddr_in *ret)
{
    *ret = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    return inet_pton(AF_INET, ip, &ret->sin_addr) == 1 ? 0 : UV_EINVAL;
}

int uv_ip6_addr(const char *ip, int port, struct sockaddr_in6 *ret)
{
    *ret = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
    return inet_pton(AF_INET6, ip, &ret->sin6_addr) == 1 ? 0 : UV_EINVAL;
}

/* There are no names here. */
int uv_getaddrinfo(uv_loop_t *loop, uv_getaddrinfo_t *req, uv_getaddrinfo_cb on_done,
                   const char *node, const char *service, const struct addrinfo *hints)
{
    (void)loop, (void)req, (void)on_done, (void)node, (void)service, (void)hints;
    return UV_EAI_NONAME;
}

void uv_freeaddrinfo(struct addrinfo *found)
{
    (void)found;
}

int uv_cancel(uv_req_t *req)
{
    (void)req;
    return UV_EBUSY;
}

uv_buf_t uv_buf_init(char *base, unsigned len)
{
    return (uv_buf_t){ .base = base, .len = len };
}
