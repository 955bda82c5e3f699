/*
 * Bytes at a port that speaks TLS: u8 how | u8 piece | bytes.
 *
 *     how 0      the bytes as they are, to a listener: the handshake of TLS
 *     how 1      through a handshake with a worker's certificate, as what it says: the greeting
 *     how 2      u16 offset | u8 difference ...: changes of what a session has sealed, read in pieces as a channel does
 *
 * A listener lets in nobody who did not greet, is done with each peer, and goes on. What a session reads is a beginning
 * of what was written, and all of it only if nothing has changed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/memory.h"
#include "server/net/listener.h"
#include "tests/fuzz/harness.h"
#include "tests/support/tls_dir.h"

#define TEXT_BYTES 40000u /* three records */

static struct env {
    uv_loop_t loop;
    struct tls_context *server, *client;
    struct hello_reply map;
    struct listener *listener;
    struct sockaddr_in address;
    unsigned n_clients;
} * env;

static int on_client(void *owner, const struct listener_client *client)
{
    struct env *e = owner;
    struct connection_socket socket = client->socket;

    assert(client->socket.access.role == ACCESS_WORKER);
    e->n_clients++;
    connection_socket_close(&socket);
    return 0;
}

static int admit(void *owner, const struct sockaddr_storage *address, struct err *err)
{
    (void)owner, (void)address, (void)err;
    return 0;
}

static void on_refused(void *owner, const char *peer, int status, const char *sentence)
{
    (void)owner, (void)peer;
    assert(status && sentence[0]);
}

static const struct listener_events events = { .on_client = on_client,
                                               .admit = admit,
                                               .on_refused = on_refused };

static void start(struct env *e)
{
    struct listener_config config = { .loop = &e->loop,
                                      .listen = "127.0.0.1:0",
                                      .token = "",
                                      .handshake_ms = 60000,
                                      .map = &e->map,
                                      .events = &events,
                                      .owner = e };
    struct tls_dir dir;
    struct err err;
    int status;

    tls_dir_make(&dir);
    e->server = config.tls = tls_dir_context(&dir, "node", "ca");
    e->client = tls_dir_context(&dir, "worker", "ca");
    tls_dir_remove(&dir);
    e->map = (struct hello_reply){ .version = 1, .n_nodes = 1, .shards_per_node = 1 };
    status = uv_loop_init(&e->loop);
    assert(!status);
    status = listener_open(&config, &e->listener, &err);
    assert(!status);
    status = listener_listen(e->listener, &err);
    assert(!status);
    e->address = (struct sockaddr_in){ .sin_family = AF_INET,
                                       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    e->address.sin_port =
        htons((uint16_t)atoi(strrchr(listener_address(e->listener), ':') + 1));
}

/* ---- a peer of the listener ---- */

static void turn(struct env *e)
{
    for (int i = 0; i < 3; i++)
        uv_run(&e->loop, UV_RUN_NOWAIT);
}

static void send_in_pieces(struct env *e, int fd, const uint8_t *bytes, size_t n_bytes,
                           size_t piece)
{
    while (n_bytes) {
        const size_t n = piece && piece < n_bytes ? piece : n_bytes;

        if (send(fd, bytes, n, MSG_NOSIGNAL) != (ssize_t)n)
            return; /* it has hung up */
        turn(e);
        bytes += n;
        n_bytes -= n;
    }
}

static void send_reply(struct env *e, int fd, struct tls_session *s)
{
    struct bytes *reply = tls_session_reply(s);

    send_in_pieces(e, fd, bytes_front(reply), bytes_len(reply), 0);
    bytes_consume(reply, bytes_len(reply));
}

/* What it has said so far. */
static void hear(int fd, struct tls_session *s, uint8_t buf[static 8192])
{
    const ssize_t n = recv(fd, buf, 8192, MSG_DONTWAIT);

    tls_session_feed(s, buf, n > 0 ? (size_t)n : 0);
}

static void greet(struct env *e, int fd, const uint8_t *bytes, size_t n_bytes, size_t piece)
{
    struct bytes sealed = { 0 };
    struct tls_session *s;
    uint8_t buf[8192];
    int status = tls_session_connect(e->client, "127.0.0.1", &s);

    assert(!status);
    for (status = -EAGAIN; status;) {
        status = tls_session_handshake(s);
        assert(!status || status == -EAGAIN);
        send_reply(e, fd, s);
        turn(e);
        if (status)
            hear(fd, s, buf);
    }
    if (n_bytes && tls_session_write(s, bytes, n_bytes, &sealed) == 0)
        send_in_pieces(e, fd, bytes_front(&sealed), bytes_len(&sealed), piece);
    bytes_deinit(&sealed);
    tls_session_free(s);
}

static void visit(struct env *e, bool is_sealed, const uint8_t *bytes, size_t n_bytes,
                  size_t piece)
{
    const unsigned n_before = e->n_clients;
    struct listener_counts counts;
    int fd = socket(AF_INET, SOCK_STREAM, 0),
        status = connect(fd, (struct sockaddr *)&e->address, sizeof e->address);

    assert(!status);
    turn(e);
    if (is_sealed)
        greet(e, fd, bytes, n_bytes, piece);
    else
        send_in_pieces(e, fd, bytes, n_bytes, piece);
    close(fd);
    do {
        uv_run(&e->loop, UV_RUN_NOWAIT);
        listener_count(e->listener, &counts);
    } while (counts.handshakes);
    assert(e->n_clients == n_before || is_sealed);
}

/* ---- a session alone ---- */

static void shake_hands(struct tls_session *a, struct tls_session *b)
{
    struct tls_session *ends[] = { a, b };
    int status[] = { -EAGAIN, -EAGAIN };

    for (int i = 0; status[0] || status[1]; i = !i) {
        struct bytes *said = tls_session_reply(ends[!i]);

        tls_session_feed(ends[i], bytes_front(said), bytes_len(said));
        status[i] = tls_session_handshake(ends[i]);
        assert(!status[i] || status[i] == -EAGAIN);
        bytes_consume(said, bytes_len(said));
    }
}

/* How much it reads, all of which is what was written. */
static size_t read_all(struct tls_session *s, const uint8_t *text, const struct bytes *sealed,
                       size_t piece)
{
    const uint8_t *at = bytes_front(sealed), *end = at + bytes_len(sealed);
    static uint8_t got[TEXT_BYTES + 1];
    size_t done = 0;
    int status = 0;

    while (at < end && (!status || status == -EAGAIN)) {
        const size_t left = (size_t)(end - at), n = piece && piece < left ? piece : left;

        tls_session_feed(s, at, n);
        do {
            size_t n_read = 0;

            status = tls_session_read(s, got + done, sizeof got - done, &n_read);
            done += n_read;
            assert(done <= TEXT_BYTES && memcmp(got, text, done) == 0);
        } while (!status);
        at += n;
    }
    return done;
}

static void change_sealed(struct env *e, struct harness_bytes *in, size_t piece)
{
    static uint8_t text[TEXT_BYTES];
    struct bytes sealed = { 0 };
    struct tls_session *a, *b;
    bool is_changed = false;
    int status = tls_session_accept(e->server, &a);
    size_t n;

    assert(!status);
    status = tls_session_connect(e->client, "127.0.0.1", &b);
    assert(!status);
    shake_hands(a, b);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)(i * 2654435761u >> 13);
    status = tls_session_write(b, text, sizeof text, &sealed);
    assert(!status);
    while (harness_left(in) >= 3) {
        const size_t offset = harness_number(in, 2) % bytes_len(&sealed);
        const uint8_t difference = (uint8_t)harness_number(in, 1);

        sealed.bytes[sealed.start + offset] ^= difference;
        is_changed = is_changed || difference;
    }
    n = read_all(a, text, &sealed, piece);
    assert(is_changed || n == sizeof text);
    bytes_deinit(&sealed);
    tls_session_free(a);
    tls_session_free(b);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    const unsigned how = (unsigned)harness_number(&in, 1) % 3;
    const size_t piece = 7 * harness_number(&in, 1);
    uint8_t *rest;
    size_t n;

    if (!env) {
        env = memory_alloc(sizeof *env);
        start(env);
    }
    if (how == 2) {
        change_sealed(env, &in, piece);
        return;
    }
    rest = harness_take(&in, harness_left(&in), &n);
    visit(env, how == 1, rest, n, piece);
    free(rest);
}

/* A hello of TLS, one of frames, and nothing changed. */
bool harness_seed(uint32_t i, struct bytes *out)
{
    const struct hello hello = { 1, 1, "worker", "", 0, 0, "fuzz", 0 };
    struct tls_session *s;
    int status = 0;

    harness_put_number(out, i, 1);
    harness_put_number(out, 0, 1);
    if (i == 0) {
        struct tls_dir dir;
        struct tls_context *t;

        tls_dir_make(&dir);
        t = tls_dir_context(&dir, "worker", "ca");
        tls_dir_remove(&dir);
        status = tls_session_connect(t, "127.0.0.1", &s);
        assert(!status);
        (void)!tls_session_handshake(s);
        harness_put(out, bytes_front(tls_session_reply(s)), bytes_len(tls_session_reply(s)));
        tls_session_free(s);
        tls_context_free(t);
    } else if (i == 1) {
        struct bytes frame = { 0 };

        status = message_write_hello(&frame, 1, &hello);
        harness_put(out, bytes_front(&frame), bytes_len(&frame));
        bytes_deinit(&frame);
    } else if (i == 2) {
        harness_put_number(out, 17, 2);
        harness_put_number(out, 0, 1);
    }
    assert(!status);
    return i < 3;
}
