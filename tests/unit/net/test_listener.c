#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/status.h"
#include "server/net/listener.h"
#include "tests/unit/net/peer.h"

/* A listener on a loop, with the connections it accepted and refused. */
struct fixture {
    uv_loop_t loop;
    struct hello_reply map;
    struct listener_config config;
    struct listener *listener;
    struct group_view *groups;
    int client_fd, client_status; /* client_status: the status of on_client() */
    uint64_t client_request_id;
    bool is_full, is_restoring, all_operators_wait;
    struct hello client;
    uint32_t n_clients, n_refused;
    int last_refusal;
};

static int on_client(void *owner, const struct listener_client *client)
{
    struct fixture *f = owner;

    if (f->client_status)
        return f->client_status;
    f->client_fd = client->socket.fd;
    f->client_request_id = client->request_id;
    f->client = *client->hello;
    assert_int_equal(client->address->ss_family, AF_INET);
    f->n_clients++;
    return 0;
}

static int admit(void *owner, const struct sockaddr_storage *address, struct err *err)
{
    struct fixture *f = owner;

    assert_int_equal(address->ss_family, AF_INET);
    return f->is_full ? err_set(err, -EMFILE, "all of --connections-max") : 0;
}

static int admit_operator(void *owner, struct err *err)
{
    const struct fixture *f = owner;

    return f->all_operators_wait ? err_set(err, -EMFILE, "64 operators wait") : 0;
}

static int check_serving(void *owner, struct err *err)
{
    const struct fixture *f = owner;

    return f->is_restoring ? err_set(err, PS_ESTOPPING, "not ready yet: restoring") : 0;
}

static void on_refused(void *owner, const char *peer, int status, const char *sentence)
{
    struct fixture *f = owner;

    assert_true(peer[0]);
    (void)sentence;
    f->n_refused++;
    f->last_refusal = status;
}

static const struct listener_events events = { .check_serving = check_serving,
                                               .on_client = on_client,
                                               .admit = admit,
                                               .admit_operator = admit_operator,
                                               .on_refused = on_refused };

static const struct hello good_hello = {
    .version_min = 1, .version_max = 1, .role = "worker", .name = "peer"
};

static void set_up(struct fixture *f)
{
    struct err err = { 0 };

    *f = (struct fixture){
        .map = { .version = 1, .n_nodes = 1, .shards_per_node = 2, .map_id = 77 },
        .client_fd = -1
    };
    snprintf(f->map.nodes[0], MESSAGE_ADDRESS_MAX, "here:1");
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->groups = group_view_new(&f->map);
    f->config = (struct listener_config){ .loop = &f->loop,
                                          .listen = "127.0.0.1:0",
                                          .token = "",
                                          .handshake_ms = 60000,
                                          .handshakes_max = 3,
                                          .map = &f->map,
                                          .groups = f->groups,
                                          .events = &events,
                                          .owner = f };
    assert_int_equal(listener_open(&f->config, &f->listener, &err), 0);
    assert_int_equal(listener_listen(f->listener, &err), 0);
}

static void tear_down(struct fixture *f)
{
    if (f->client_fd >= 0)
        close(f->client_fd);
    listener_close(f->listener);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    group_view_free(f->groups);
    assert_int_equal(uv_loop_close(&f->loop), 0);
}

/* From 127.0.0.n_host. */
static struct peer knock_from(struct fixture *f, uint32_t n_host)
{
    struct sockaddr_in own = { .sin_family = AF_INET,
                               .sin_addr.s_addr = htonl((127u << 24) + n_host) },
                       address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct peer p = { .fd = socket(AF_INET, SOCK_STREAM, 0), .loop = &f->loop };

    assert_int_equal(bind(p.fd, (struct sockaddr *)&own, sizeof own), 0);
    address.sin_port = htons((uint16_t)atoi(strrchr(listener_address(f->listener), ':') + 1));
    assert_int_equal(connect(p.fd, (struct sockaddr *)&address, sizeof address), 0);
    return p;
}

static struct peer knock(struct fixture *f)
{
    return knock_from(f, 1);
}

static void say_hello(struct peer *p, const struct hello *hello)
{
    struct bytes frame = { 0 };

    assert_int_equal(message_write_hello(&frame, 42, hello), 0);
    peer_send(p, &frame);
}

/* The reply, then the end. */
static struct hello_reply hear(struct peer *p)
{
    struct hello_reply reply;

    assert_true(peer_receive(p));
    assert_int_equal(p->header.type, FRAME_HELLO_REPLY);
    assert_int_equal(p->header.request_id, 42);
    assert_int_equal(message_read_hello_reply(&p->header, p->head, &reply), 0);
    assert_false(peer_receive(p));
    return reply;
}

/* Says it, and is told this before the end. */
static struct hello_reply ask(struct fixture *f, const struct hello *hello)
{
    struct peer p = knock(f);
    struct hello_reply reply;

    say_hello(&p, hello);
    reply = hear(&p);
    peer_close(&p);
    return reply;
}

/* Sends these bytes, and is told nothing. */
static void assert_hung_up_on(struct fixture *f, const void *bytes, size_t n_bytes)
{
    struct peer p = knock(f);

    peer_send_bytes(&p, bytes, n_bytes);
    assert_false(peer_receive(&p));
    peer_close(&p);
}

/* The same, and not because its time was over. */
static void assert_hung_up_on_at_once(struct fixture *f, const void *bytes, size_t n_bytes)
{
    struct listener_counts counts;

    assert_hung_up_on(f, bytes, n_bytes);
    listener_count(f->listener, &counts);
    assert_int_equal(counts.slow, 0);
}

/* The caller deinits it. */
static struct bytes good_frame(void)
{
    struct bytes frame = { 0 };

    assert_int_equal(message_write_hello(&frame, 42, &good_hello), 0);
    return frame;
}

static struct listener_counts count(struct fixture *f)
{
    struct listener_counts counts;

    listener_count(f->listener, &counts);
    return counts;
}

static void an_accepted_client_is_handed_on_with_its_socket(void **state)
{
    struct fixture f;
    struct peer p;
    char byte = 0;

    (void)state;
    set_up(&f);
    p = knock(&f);
    say_hello(&p, &good_hello);
    while (!f.n_clients)
        peer_turn(&p);
    assert_int_equal(f.client_request_id, 42);
    assert_string_equal(f.client.name, "peer");
    assert_int_equal(write(f.client_fd, "x", 1), 1);
    assert_int_equal(read(p.fd, &byte, 1), 1);
    assert_int_equal(byte, 'x');
    while (count(&f).handshakes)
        peer_turn(&p);
    assert_int_equal(count(&f).accepted, 1);
    assert_int_equal(count(&f).refused, 0);
    peer_close(&p);
    tear_down(&f);
}

static void a_hello_that_comes_one_byte_at_a_time_is_understood(void **state)
{
    struct bytes frame = good_frame();
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = knock(&f);
    for (size_t i = 0; i < bytes_len(&frame); i++) {
        assert_int_equal(f.n_clients, 0);
        peer_send_bytes(&p, bytes_front(&frame) + i, 1);
        peer_turn(&p);
    }
    while (!f.n_clients)
        peer_turn(&p);
    bytes_deinit(&frame);
    peer_close(&p);
    tear_down(&f);
}

static void a_hello_truncated_at_any_byte_is_dropped(void **state)
{
    struct bytes frame = good_frame();
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    for (size_t n = 0; n < bytes_len(&frame); n++) {
        p = knock(&f);
        peer_send_bytes(&p, bytes_front(&frame), n);
        shutdown(p.fd, SHUT_WR);
        assert_false(peer_receive(&p));
        peer_close(&p);
    }
    assert_int_equal(f.n_clients, 0);
    while (count(&f).handshakes)
        uv_run(&f.loop, UV_RUN_ONCE);
    bytes_deinit(&frame);
    tear_down(&f);
}

static void every_reason_to_refuse_has_its_status_and_sentence(void **state)
{
    struct hello_reply map = { .shards_per_node = 2, .map_id = 77, .n_nodes = 1 }, reply;
    struct listener_config config = { .map = &map, .token = "secret" };
    struct access access;
    static const struct {
        struct hello hello;
        int status;
        const char *word;
    } cases[] = {
        { { 1, 1, "worker", "secret", 0, 0, "", 0 }, 0, NULL },
        { { 1, 1, "reader", "secret", 1, 77, "", 0 }, 0, NULL },
        { { 0, 9, "operator", "secret", MESSAGE_SHARD_LISTENER, 0, "", 0 }, 0, NULL },
        { { 1, 1, "worker", "secret", MESSAGE_SHARD_LISTENER, 0, "", 0 }, 0, NULL },
        { { 2, 3, "worker", "secret", 0, 0, "", 0 }, PS_EVERSION, "versions 2 to 3" },
        { { 0, 0, "worker", "secret", 0, 0, "", 0 }, PS_EVERSION, "versions" },
        { { 1, 1, "worker", "", 0, 0, "", 0 }, PS_EGREETING, "none given" },
        { { 1, 1, "worker", "secre", 0, 0, "", 0 }, PS_EGREETING, "token" },
        { { 1, 1, "worker", "secrets", 0, 0, "", 0 }, PS_EGREETING, "token" },
        { { 1, 1, "worker", "Secret", 0, 0, "", 0 }, PS_EGREETING, "token" },
        { { 1, 1, "worker", "secret", 0, 78, "", 0 }, PS_ECLUSTER, "--cluster" },
        { { 1, 1, "worker", "secret", 2, 0, "", 0 }, PS_EGREETING, "found 2" },
        { { 1, 1, "king", "secret", 0, 0, "", 0 }, PS_EGREETING, "king" },
        { { 1, 1, "operator", "secret", 0, 0, "", 0 }, PS_EGREETING, "operator" },
        { { 1, 1, "watcher", "secret", 0, 0, "", 0 }, PS_EGREETING, "watcher" },
        { { 1, 1, "watcher", "", MESSAGE_SHARD_LISTENER, 0, "", 0 }, PS_EGREETING, "none" },
        { { 1, 1, "watcher", "secret", MESSAGE_SHARD_LISTENER, 78, "", 0 },
          PS_ECLUSTER,
          "map" },
        { { 1, 1, "watcher", "secret", MESSAGE_SHARD_LISTENER, 77, "", 0 }, 0, NULL },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(listener_check_hello(&config, &cases[i].hello, NULL, &reply, &access),
                         cases[i].status);
        assert_int_equal(reply.status, cases[i].status);
        if (cases[i].word)
            assert_non_null(strstr(reply.text, cases[i].word));
    }
}

static void a_refusal_is_sent_to_the_client_before_the_end(void **state)
{
    struct hello hello = good_hello;
    struct hello_reply reply;
    struct fixture f;

    (void)state;
    set_up(&f);
    hello.shard = 9;
    reply = ask(&f, &hello);
    assert_int_equal(reply.status, PS_EGREETING);
    assert_non_null(strstr(reply.text, "shard: found 9"));
    assert_int_equal(count(&f).refused, 1);
    assert_int_equal(f.last_refusal, PS_EGREETING);
    tear_down(&f);
}

static void bytes_behind_the_hello_and_other_first_words_are_refused(void **state)
{
    struct bytes frames[2] = { good_frame(), { 0 } };
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    assert_int_equal(message_write_beat(&frames[0], 43, &(struct beat){ .clock = 0 }), 0);
    assert_int_equal(message_write_beat(&frames[1], 42, &(struct beat){ .clock = 0 }), 0);
    for (int i = 0; i < 2; i++) {
        p = knock(&f);
        peer_send(&p, &frames[i]);
        assert_int_equal(hear(&p).status, PS_EGREETING);
        peer_close(&p);
    }
    assert_int_equal(f.n_clients, 0);
    assert_int_equal(count(&f).refused, 2);
    tear_down(&f);
}

static void another_protocol_is_hung_up_on_at_once(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_hung_up_on_at_once(&f, "GET", 3);
    assert_int_equal(count(&f).malformed, 1);
    tear_down(&f);
}

static void a_worker_at_the_listener_receives_the_shard_map_only(void **state)
{
    struct hello hello = good_hello;
    struct hello_reply reply;
    struct fixture f;

    (void)state;
    set_up(&f);
    hello.shard = MESSAGE_SHARD_LISTENER;
    f.is_full = true;
    reply = ask(&f, &hello);
    assert_int_equal(reply.status, 0);
    assert_int_equal(reply.map_id, 77);
    assert_string_equal(reply.nodes[0], "here:1");
    assert_int_equal(f.n_clients, 0);
    tear_down(&f);
}

static void beyond_the_limit_all_but_operators_are_refused(void **state)
{
    struct hello hello = good_hello;
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    f.is_full = true;
    assert_non_null(strstr(ask(&f, &hello).text, "--connections-max"));
    snprintf(hello.role, sizeof hello.role, "operator");
    hello.shard = MESSAGE_SHARD_LISTENER;
    p = knock(&f);
    say_hello(&p, &hello);
    while (!f.n_clients)
        peer_turn(&p);
    peer_close(&p);
    f.all_operators_wait = true;
    assert_int_equal(ask(&f, &hello).status, -EMFILE);
    tear_down(&f);
}

/* Nobody is refused: they come again, and operators are let in at once. */
static void while_it_restores_all_but_operators_are_asked_to_retry(void **state)
{
    const uint32_t shards[] = { 0, MESSAGE_SHARD_LISTENER };
    struct hello hello = good_hello;
    struct hello_reply reply;
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    f.is_restoring = true;
    for (size_t i = 0; i < COUNT_OF(shards); i++) {
        hello.shard = shards[i];
        reply = ask(&f, &hello);
        assert_int_equal(reply.status, PS_ESTOPPING);
        assert_string_equal(reply.text, "not ready yet: restoring");
        assert_int_equal(reply.n_nodes, 0);
    }
    assert_int_equal(count(&f).retry_later, 2);
    assert_int_equal(count(&f).refused + f.n_refused + f.n_clients, 0);
    snprintf(hello.role, sizeof hello.role, "operator");
    p = knock(&f);
    say_hello(&p, &hello);
    while (!f.n_clients)
        peer_turn(&p);
    peer_close(&p);
    f.is_restoring = false;
    hello = good_hello;
    hello.shard = MESSAGE_SHARD_LISTENER;
    assert_int_equal(ask(&f, &hello).n_nodes, 1);
    tear_down(&f);
}

/* Also while it restores: where to go is known before the data is there. */
static void clients_of_another_primary_learn_who_it_is(void **state)
{
    static const char *const roles[] = { "worker", "reader" };
    const uint32_t shards[] = { 0, MESSAGE_SHARD_LISTENER };
    struct group own = { .term = 7, .primary = "there:2", .standby = "here:1" };
    struct hello hello = good_hello;
    struct hello_reply reply;
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    f.is_restoring = true;
    enter_main();
    group_view_set_own(f.groups, GROUP_VIEW_OTHER, &own);
    for (size_t i = 0; i < 4; i++) {
        snprintf(hello.role, sizeof hello.role, "%s", roles[i / 2]);
        hello.shard = shards[i % 2];
        reply = ask(&f, &hello);
        assert_int_equal(reply.status, PS_EMOVED);
        assert_int_equal(reply.n_nodes, 1);
        assert_int_equal(reply.map_id, 77);
        assert_int_equal(reply.groups.items[0].term, 7);
        assert_string_equal(reply.groups.items[0].primary, "there:2");
        assert_non_null(strstr(reply.text, "there:2"));
    }
    assert_int_equal(count(&f).retry_later, 4);
    assert_int_equal(count(&f).refused + f.n_refused + f.n_clients, 0);
    snprintf(hello.role, sizeof hello.role, "watcher");
    hello.shard = MESSAGE_SHARD_LISTENER;
    p = knock(&f);
    say_hello(&p, &hello);
    while (!f.n_clients)
        peer_turn(&p);
    peer_close(&p);
    tear_down(&f);
}

/* Its map has its own address alone: a client that took it would never find the cluster, nor be taken by it. */
static void a_standby_without_a_cluster_gives_no_client_its_map(void **state)
{
    static const char *const roles[] = { "worker", "reader", "watcher" };
    static const uint64_t map_ids[] = { 0, 77, 78 }; /* 77: of the map that is hidden */
    struct hello hello = good_hello;
    struct hello_reply reply;
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_main();
    group_view_show_map(f.groups, false);
    hello.shard = MESSAGE_SHARD_LISTENER;
    for (size_t i = 0; i < 9; i++) {
        snprintf(hello.role, sizeof hello.role, "%s", roles[i / 3]);
        hello.map_id = map_ids[i % 3];
        reply = ask(&f, &hello);
        assert_int_equal(reply.status, PS_ESTOPPING);
        assert_int_equal(reply.n_nodes + reply.map_id + reply.groups.n, 0);
        assert_non_null(strstr(reply.text, "come again"));
    }
    assert_int_equal(count(&f).retry_later, 9);
    assert_int_equal(count(&f).refused + f.n_refused + f.n_clients, 0);
    tear_down(&f);
}

static void the_map_names_the_groups_if_there_are_some(void **state)
{
    struct group own = { .term = 7, .primary = "here:1", .standby = "there:2" };
    struct hello hello = good_hello;
    struct hello_reply reply;
    struct fixture f;

    (void)state;
    set_up(&f);
    hello.shard = MESSAGE_SHARD_LISTENER;
    assert_int_equal(ask(&f, &hello).groups.n, 0);
    enter_main();
    group_view_set_own(f.groups, GROUP_VIEW_PRIMARY, &own);
    reply = ask(&f, &hello);
    assert_int_equal(reply.status, 0);
    assert_int_equal(reply.groups.n, 1);
    assert_string_equal(reply.groups.items[0].standby, "there:2");
    tear_down(&f);
}

static void silent_peers_make_place_for_one_that_says_hello(void **state)
{
    enum { N_SILENT = 8 };
    struct peer silent[N_SILENT], p;
    struct fixture f;

    (void)state;
    set_up(&f);
    for (int i = 0; i < N_SILENT; i++)
        silent[i] = knock(&f);
    p = knock(&f);
    say_hello(&p, &good_hello);
    while (!f.n_clients)
        peer_turn(&p);
    assert_int_equal(count(&f).evicted, N_SILENT - 2);
    for (int i = 0; i < N_SILENT - 2; i++) /* the oldest */
        assert_false(peer_receive(&silent[i]));
    for (int i = 0; i < N_SILENT; i++)
        peer_close(&silent[i]);
    peer_close(&p);
    tear_down(&f);
}

/* An address that knocks again and again cuts off no slow peer of another. */
static void the_oldest_of_the_address_that_has_most_goes(void **state)
{
    enum { N_SILENT = 12 };
    struct bytes frame = good_frame();
    struct peer silent[N_SILENT], slow;
    struct fixture f;

    (void)state;
    set_up(&f);
    slow = knock(&f);
    peer_send_bytes(&slow, bytes_front(&frame), 10);
    for (int i = 0; i < N_SILENT; i++) {
        silent[i] = knock_from(&f, 2);
        while (count(&f).accepted < 2 + (uint64_t)i)
            peer_turn(&slow);
    }
    peer_send_bytes(&slow, bytes_front(&frame) + 10, bytes_len(&frame) - 10);
    for (int i = 0; i < 100 && !f.n_clients; i++)
        peer_turn(&slow);
    assert_int_equal(f.n_clients, 1);
    assert_int_equal(count(&f).evicted, N_SILENT - 2);
    for (int i = 0; i < N_SILENT; i++)
        peer_close(&silent[i]);
    peer_close(&slow);
    bytes_deinit(&frame);
    tear_down(&f);
}

static void a_client_that_the_owner_refuses_is_closed(void **state)
{
    struct bytes frame = good_frame();
    struct fixture f;

    (void)state;
    set_up(&f);
    f.client_status = UV_EPIPE;
    assert_hung_up_on_at_once(&f, bytes_front(&frame), bytes_len(&frame));
    assert_int_equal(count(&f).refused, 1);
    bytes_deinit(&frame);
    tear_down(&f);
}

static void a_silent_peer_is_closed_at_the_deadline(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    listener_close(f.listener);
    f.config.handshake_ms = 1;
    assert_int_equal(listener_open(&f.config, &f.listener, NULL), 0);
    assert_int_equal(listener_listen(f.listener, NULL), 0);
    assert_hung_up_on(&f, "", 0);
    assert_int_equal(count(&f).slow, 1);
    assert_int_equal(f.last_refusal, UV_ETIMEDOUT);
    tear_down(&f);
}

static void a_listener_closed_during_handshakes_frees_all(void **state)
{
    struct fixture f;
    struct peer a, b;

    (void)state;
    set_up(&f);
    a = knock(&f);
    b = knock(&f);
    while (count(&f).handshakes < 2)
        peer_turn(&a);
    tear_down(&f);
    peer_close(&a);
    peer_close(&b);
}

static void a_port_in_use_is_refused_with_a_sentence(void **state)
{
    struct fixture f;
    struct listener_config config;
    struct listener *second;
    struct err err;

    (void)state;
    set_up(&f);
    config = f.config;
    config.listen = listener_address(f.listener);
    assert_int_equal(listener_open(&config, &second, &err), UV_EADDRINUSE);
    assert_non_null(strstr(err.text, config.listen));
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_accepted_client_is_handed_on_with_its_socket),
        cmocka_unit_test(a_hello_that_comes_one_byte_at_a_time_is_understood),
        cmocka_unit_test(a_hello_truncated_at_any_byte_is_dropped),
        cmocka_unit_test(every_reason_to_refuse_has_its_status_and_sentence),
        cmocka_unit_test(a_refusal_is_sent_to_the_client_before_the_end),
        cmocka_unit_test(bytes_behind_the_hello_and_other_first_words_are_refused),
        cmocka_unit_test(another_protocol_is_hung_up_on_at_once),
        cmocka_unit_test(a_worker_at_the_listener_receives_the_shard_map_only),
        cmocka_unit_test(beyond_the_limit_all_but_operators_are_refused),
        cmocka_unit_test(while_it_restores_all_but_operators_are_asked_to_retry),
        cmocka_unit_test(silent_peers_make_place_for_one_that_says_hello),
        cmocka_unit_test(the_oldest_of_the_address_that_has_most_goes),
        cmocka_unit_test(a_client_that_the_owner_refuses_is_closed),
        cmocka_unit_test(clients_of_another_primary_learn_who_it_is),
        cmocka_unit_test(a_standby_without_a_cluster_gives_no_client_its_map),
        cmocka_unit_test(the_map_names_the_groups_if_there_are_some),
        cmocka_unit_test(a_silent_peer_is_closed_at_the_deadline),
        cmocka_unit_test(a_listener_closed_during_handshakes_frees_all),
        cmocka_unit_test(a_port_in_use_is_refused_with_a_sentence),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
