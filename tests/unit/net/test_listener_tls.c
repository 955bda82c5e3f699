/* A listener and a connector on one loop: what each end says of the other, with TLS and without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "proto/channel.h"
#include "proto/connector.h"
#include "server/net/listener.h"
#include "tests/support/seed.h"
#include "tests/support/tls_dir.h"
#include "tests/unit/net/peer.h"

struct fixture {
    struct tls_dir dir;
    uv_loop_t loop;
    struct channel_loop channels;
    struct hello_reply map;
    struct listener_config config;
    struct listener *listener;
    struct connector *connector;
    struct tls_context *server, *client;
    int n_clients, refused; /* the last status of on_refused(); 0: none */
    struct access access;
    bool is_over; /* the client's */
    int why, reply_status;
    char text[200];
};

static int on_client(void *owner, const struct listener_client *client)
{
    struct fixture *f = owner;
    struct connection_socket socket = client->socket;

    f->n_clients++;
    f->access = socket.access;
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
    struct fixture *f = owner;

    (void)peer, (void)sentence;
    f->refused = status;
}

static const struct listener_events events = { .on_client = on_client,
                                               .admit = admit,
                                               .on_refused = on_refused };

static void on_connected(void *owner)
{
    struct fixture *f = owner;
    struct hello hello = { 1, 1, "worker", "", 0, 0, "test", 0 };
    struct bytes frame = { 0 };

    assert_int_equal(message_write_hello(&frame, 1, &hello), 0);
    (void)channel_send(connector_channel(f->connector), &frame);
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct fixture *f = owner;
    struct hello_reply *reply = calloc(1, sizeof *reply);

    (void)body;
    assert_int_equal(message_read_hello_reply(header, head, reply), 0);
    f->reply_status = reply->status;
    snprintf(f->text, sizeof f->text, "%.199s", reply->text);
    free(reply);
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct fixture *f = owner;

    f->is_over = true;
    f->why = why;
}

static const struct connector_events client_events = { on_connected, on_frame, on_closed };

/* With these certificates; NULL: plain. */
static void set_up(struct fixture *f, const char *server)
{
    struct err err;

    *f = (struct fixture){ .map = { .version = 1, .n_nodes = 1, .shards_per_node = 1 } };
    tls_dir_make(&f->dir);
    f->server = server ? tls_dir_context(&f->dir, server, "ca") : NULL;
    assert_int_equal(uv_loop_init(&f->loop), 0);
    channel_loop_init(&f->channels, &f->loop);
    f->config = (struct listener_config){ .loop = &f->loop,
                                          .listen = "127.0.0.1:0",
                                          .tls = f->server,
                                          .token = "",
                                          .handshake_ms = 60000,
                                          .map = &f->map,
                                          .events = &events,
                                          .owner = f };
    assert_int_equal(listener_open(&f->config, &f->listener, &err), 0);
    assert_int_equal(listener_listen(f->listener, &err), 0);
}

static void tear_down(struct fixture *f)
{
    listener_close(f->listener);
    channel_loop_close(&f->channels);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    channel_loop_deinit(&f->channels);
    tls_context_free(f->server);
    tls_context_free(f->client);
    tls_dir_remove(&f->dir);
}

static bool is_over_at_both(const struct fixture *f)
{
    struct listener_counts counts;

    listener_count(f->listener, &counts);
    return f->is_over && !counts.handshakes;
}

/* Until both ends are done with each other. */
static void greet(struct fixture *f, const char *client, const char *ca)
{
    const char *port = strrchr(listener_address(f->listener), ':') + 1;
    struct address address;
    char text[64];

    snprintf(text, sizeof text, "127.0.0.1:%s", port);
    assert_int_equal(address_parse(text, strlen(text), &address, NULL), 0);
    tls_context_free(f->client);
    f->channels.tls = f->client = client ? tls_dir_context(&f->dir, client, ca) : NULL;
    f->is_over = false;
    f->refused = f->reply_status = f->why = 0;
    assert_int_equal(connector_new(&f->channels, &address, &client_events, f, &f->connector),
                     0);
    do
        uv_run(&f->loop, UV_RUN_ONCE);
    while (!is_over_at_both(f));
}

static void each_end_has_a_sentence_for_each_failure(void **state)
{
    static const struct {
        const char *server, *client, *ca;
        int refused; /* at the listener */
        int why;     /* at the client, or the status of the reply */
    } cases[] = {
        { "node", "worker", "ca", 0, 0 },
        { "node", NULL, "", PS_ETLSPLAIN, PS_ETLSPLAIN },
        { NULL, "worker", "ca", PS_ETLSPLAIN, PS_ETLSPLAIN },
        { NULL, NULL, "", 0, 0 },
        { "expired", "worker", "ca", PS_ETLSOWNEXPIRED, PS_ETLSEXPIRED },
        { "node", "expired", "ca", PS_ETLSEXPIRED, PS_ETLSOWNEXPIRED },
        { "node", "worker", "other", PS_ETLSOWNCA, PS_ETLSCA },
        { "node", "stranger", "ca", PS_ETLSCA, PS_ETLSOWNCA },
        { "away", "worker", "ca", PS_ETLSOWNNAME, PS_ETLSNAME },
        { "node", "", "ca", PS_ETLSNONE, PS_ETLSOWNNONE },
        { "node", "operator", "ca", PS_EDENIED, PS_EDENIED },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct fixture f;
        int why;

        set_up(&f, cases[i].server);
        greet(&f, cases[i].client, cases[i].ca);
        why = f.reply_status ? f.reply_status : f.why == UV_EOF ? 0 : f.why;
        if (f.refused != cases[i].refused || why != cases[i].why)
            fail_msg("%s at %s: the listener says: %s; the client: %s",
                     cases[i].client ? cases[i].client : "plain",
                     cases[i].server ? cases[i].server : "plain", status_text(f.refused),
                     status_text(why));
        assert_int_equal(f.n_clients, cases[i].why ? 0 : 1);
        tear_down(&f);
    }
}

/* As a reload leaves it that comes between the handshake and the hello. */
static void without_tokens_a_peer_without_a_certificate_is_nobody(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f, "node");
    tls_context_set_needs_certificate(f.server, false);
    greet(&f, "", "ca");
    assert_int_equal(f.refused, PS_EGREETING);
    assert_int_equal(f.reply_status, PS_EGREETING);
    assert_string_equal(f.text, "no certificate was shown (--tls-cert)");
    assert_int_equal(f.n_clients, 0);
    tear_down(&f);
}

/* Whatever a peer sends, and however it cuts it: the listener goes on. */
static void bytes_of_any_kind_are_survived(void **state)
{
    uint64_t seed = seed_by_the_clock();
    struct fixture f;

    (void)state;
    srand((unsigned)seed);
    set_up(&f, "node");
    for (int i = 0; i < 300; i++) {
        struct sockaddr_in address = { .sin_family = AF_INET,
                                       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        struct peer p = { .fd = socket(AF_INET, SOCK_STREAM, 0), .loop = &f.loop };
        struct tls_context *t = tls_dir_context(&f.dir, "worker", "ca");
        struct tls_session *s;
        struct bytes *said;

        address.sin_port =
            htons((uint16_t)atoi(strrchr(listener_address(f.listener), ':') + 1));
        assert_int_equal(connect(p.fd, (struct sockaddr *)&address, sizeof address), 0);
        assert_int_equal(tls_session_connect(t, "127.0.0.1", &s), 0);
        assert_int_equal(tls_session_handshake(s), -EAGAIN);
        said = tls_session_reply(s); /* a good hello, of which some bytes change */
        for (int k = rand() % 4; k > 0; k--)
            said->bytes[said->start + (size_t)rand() % bytes_len(said)] = (uint8_t)rand();
        peer_send_bytes(&p, bytes_front(said), 1 + (size_t)rand() % bytes_len(said));
        peer_turn(&p);
        peer_close(&p);
        tls_session_free(s);
        tls_context_free(t);
    }
    greet(&f, "worker", "ca");
    assert_int_equal(f.n_clients, 1);
    tear_down(&f);
}

/* Who they are is known, and the certificates that are read again are the next one's. */
static void a_thousand_connections_one_after_the_other(void **state)
{
    struct fixture f;
    uint64_t begun_ms = clock_mono_ms();
    const char *text = getenv("PS_RECONNECTS");
    const int n = text ? atoi(text) : 50;

    (void)state;
    set_up(&f, "node");
    for (int i = 0; i < n; i++)
        greet(&f, "ads", "ca");
    print_message("%d handshakes of both ends: %llu ms\n", n,
                  (unsigned long long)(clock_mono_ms() - begun_ms));
    assert_int_equal(f.n_clients, n);
    assert_string_equal(f.access.job, "ads");
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_end_has_a_sentence_for_each_failure),
        cmocka_unit_test(without_tokens_a_peer_without_a_certificate_is_nobody),
        cmocka_unit_test(bytes_of_any_kind_are_survived),
        cmocka_unit_test(a_thousand_connections_one_after_the_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
