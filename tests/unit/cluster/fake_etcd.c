#include "tests/unit/cluster/fake_etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cluster/etcd_process.h"

struct fake_connection {
    uv_tcp_t tcp;
    struct fake_etcd *f;
    struct fake_connection *next;
    char in[1 << 16];
    size_t n_in;
    uv_timer_t pieces;
    char *left; /* owned */
    size_t n_sent;
};

struct sent {
    uv_write_t write;
    char bytes[];
};

static void on_sent(uv_write_t *write, int status)
{
    (void)status;
    free(write);
}

void fake_etcd_send(struct fake_connection *to, const char *bytes, size_t n_bytes)
{
    struct sent *s = malloc(sizeof *s + n_bytes);
    uv_buf_t buf;

    memcpy(s->bytes, bytes, n_bytes);
    buf = uv_buf_init(s->bytes, (unsigned)n_bytes);
    if (uv_write(&s->write, (uv_stream_t *)&to->tcp, &buf, 1, on_sent))
        free(s);
}

static char *whole(const char *body)
{
    const size_t cap = strlen(body) + 100;
    char *text = malloc(cap);

    snprintf(text, cap, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    return text;
}

void fake_etcd_answer(struct fake_connection *to, const char *body)
{
    char *text = whole(body);

    fake_etcd_send(to, text, strlen(text));
    free(text);
}

static void on_piece(uv_timer_t *timer)
{
    struct fake_connection *to = timer->data;

    fake_etcd_send(to, to->left + to->n_sent, 1);
    if (!to->left[++to->n_sent])
        uv_timer_stop(timer);
}

void fake_etcd_answer_in_pieces(struct fake_connection *to, const char *body)
{
    free(to->left);
    to->left = whole(body);
    to->n_sent = 0;
    uv_tcp_nodelay(&to->tcp, 1);
    uv_timer_start(&to->pieces, on_piece, 1, 1);
}

void fake_etcd_begin(struct fake_connection *to)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";

    fake_etcd_send(to, head, sizeof head - 1);
}

static void on_gone(uv_handle_t *handle)
{
    struct fake_connection *c = CONTAINER_OF(handle, struct fake_connection, tcp);

    free(c->left);
    free(c);
}

static void on_timer_gone(uv_handle_t *handle)
{
    struct fake_connection *c = CONTAINER_OF(handle, struct fake_connection, pieces);

    uv_close((uv_handle_t *)&c->tcp, on_gone);
}

void fake_etcd_close(struct fake_connection *c)
{
    struct fake_connection **at = &c->f->connections;

    if (uv_is_closing((uv_handle_t *)&c->pieces))
        return;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    uv_read_stop((uv_stream_t *)&c->tcp);
    uv_close((uv_handle_t *)&c->pieces, on_timer_gone);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct fake_connection *c = CONTAINER_OF(handle, struct fake_connection, tcp);

    (void)suggested;
    *buf = uv_buf_init(c->in + c->n_in, (unsigned)(sizeof c->in - 1 - c->n_in));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct fake_connection *c = CONTAINER_OF(stream, struct fake_connection, tcp);
    char *body, *length, path[64];

    (void)buf;
    if (n < 0) {
        fake_etcd_close(c);
        return;
    }
    c->n_in += (size_t)n;
    c->in[c->n_in] = '\0';
    body = strstr(c->in, "\r\n\r\n");
    length = strstr(c->in, "Content-Length: ");
    if (!body || !length || strlen(body + 4) < strtoul(length + 16, NULL, 10))
        return;
    assert_int_equal(sscanf(c->in, "POST %63s", path), 1);
    c->n_in = 0;
    c->f->n_requests++;
    c->f->on_request(c->f, c, path, body + 4);
}

static void on_connection(uv_stream_t *server, int status)
{
    struct fake_etcd *f = CONTAINER_OF(server, struct fake_etcd, server);
    struct fake_connection *c = calloc(1, sizeof *c);

    assert_int_equal(status, 0);
    c->f = f;
    c->next = f->connections;
    f->connections = c;
    uv_timer_init(f->loop, &c->pieces);
    c->pieces.data = c;
    uv_tcp_init(f->loop, &c->tcp);
    assert_int_equal(uv_accept(server, (uv_stream_t *)&c->tcp), 0);
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
}

void fake_etcd_start(struct fake_etcd *f, uv_loop_t *loop)
{
    struct sockaddr_in at;
    int n_bytes = sizeof at;

    f->loop = loop;
    uv_ip4_addr("127.0.0.1", 0, &at);
    uv_tcp_init(loop, &f->server);
    assert_int_equal(uv_tcp_bind(&f->server, (struct sockaddr *)&at, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&f->server, 16, on_connection), 0);
    uv_tcp_getsockname(&f->server, (struct sockaddr *)&at, &n_bytes);
    f->port = (at.sin_port & 255) << 8 | at.sin_port >> 8;
}

void fake_etcd_stop(struct fake_etcd *f)
{
    while (f->connections)
        fake_etcd_close(f->connections);
    uv_close((uv_handle_t *)&f->server, NULL);
}
