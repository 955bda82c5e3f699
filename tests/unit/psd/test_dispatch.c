/* What a service answers, and whom it lets wait. */
#include "server/requests/membership_handler.h"
#include "serving.h"

#define MANY_KEYS 20000u

static void send_push(struct peer *p, uint64_t seq)
{
    static const float gradient[DIM] = { 1, 2, 3, 4 };
    static const uint64_t key = 7;
    struct push push = {
        .seq = seq, .clock = seq - 1, .n_samples = 1, .tick = true, .n_sections = 1
    };
    struct bytes frame = { 0 };
    uint8_t keys[KEY_CODEC_BYTES_MAX];

    push.sections[0] = (struct section){ .n_keys = 1,
                                         .keys = keys,
                                         .values = (const uint8_t *)gradient,
                                         .value_bytes = sizeof gradient };
    push.sections[0].key_bytes = key_codec_encode(&key, 1, keys);
    assert_int_equal(message_write_push(&frame, 100 + seq, &push, NULL), 0);
    peer_send(p, &frame);
}

static struct push_reply push(struct peer *p, uint64_t seq)
{
    send_push(p, seq);
    return hear_push(p, seq);
}

static void send_pull(struct peer *p, uint64_t clock, uint64_t request_id)
{
    static const uint64_t key = 7;
    struct pull pull = { .clock = clock, .n_sections = 1 };
    struct bytes frame = { 0 };
    uint8_t keys[KEY_CODEC_BYTES_MAX];

    pull.sections[0] = (struct section){ .n_keys = 1, .keys = keys };
    pull.sections[0].key_bytes = key_codec_encode(&key, 1, keys);
    assert_int_equal(message_write_pull(&frame, request_id, &pull, NULL), 0);
    peer_send(p, &frame);
}

static struct dispatch_counts count(struct fixture *f)
{
    struct dispatch_counts counts;

    dispatch_count(f->dispatch, &counts);
    return counts;
}

/* Rank 0 of two, a step ahead, with a table. */
static struct peer worker_ahead(struct fixture *f)
{
    struct peer p = worker_of(f, 0);

    (void)ask_table(&p, "t");
    assert_int_equal(push(&p, 1).status, 0);
    return p;
}

static void park_pull(struct peer *p)
{
    send_pull(p, 1, 60);
    assert_int_equal(beat(p), 0);
}

static void a_pull_that_is_ahead_waits_while_later_requests_pass(void **state)
{
    static const float after[DIM] = { -1, -2, -3, -4 };
    struct pull_reply reply;
    struct fixture f;
    struct peer fast, slow;

    (void)state;
    set_up(&f);
    slow = worker_of(&f, 1);
    fast = worker_ahead(&f);
    park_pull(&fast);
    assert_int_equal(count(&f).pulls.parked, 1);
    assert_int_equal(push(&slow, 1).status, 0);
    reply = hear_pull(&fast, 60);
    assert_int_equal(reply.status, 0);
    assert_int_equal(reply.min_clock, 1);
    assert_memory_equal(reply.sections[0].values, after, sizeof after);
    assert_int_equal(count(&f).pulls.parked, 0);
    assert_int_equal(count(&f).pulls.parked_total, 1);
    peer_close(&fast);
    peer_close(&slow);
    tear_down(&f);
}

static void a_worker_that_leaves_lets_the_others_on(void **state)
{
    struct bytes frame = { 0 };
    struct fixture f;
    struct peer fast, slow;

    (void)state;
    set_up(&f);
    slow = worker_of(&f, 1);
    fast = worker_ahead(&f);
    park_pull(&fast);
    assert_int_equal(message_write_leave(&frame, 4, 0), 0);
    peer_send(&slow, &frame);
    assert_int_equal(hear_pull(&fast, 60).status, 0);
    peer_close(&fast);
    peer_close(&slow);
    tear_down(&f);
}

static void parked_pulls_go_with_their_connection(void **state)
{
    struct fixture f;
    struct peer fast;

    (void)state;
    set_up(&f);
    fast = worker_ahead(&f);
    for (uint64_t i = 0; i < PULL_HANDLER_PARKED_MAX; i++)
        send_pull(&fast, 1, 60 + i);
    assert_int_equal(beat(&fast), 0);
    assert_int_equal(count(&f).pulls.parked, PULL_HANDLER_PARKED_MAX);
    send_pull(&fast, 1, 99);
    assert_true(hear_pull(&fast, 99).status < 0);
    peer_close(&fast);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(count(&f).pulls.parked, 0);
    tear_down(&f);
}

static void a_stopped_service_refuses_waiting_peers(void **state)
{
    struct fixture f;
    struct peer fast;

    (void)state;
    set_up(&f);
    fast = worker_ahead(&f);
    park_pull(&fast);
    dispatch_stop(f.dispatch);
    connection_set_close_all(&f.connections);
    assert_int_equal(hear_pull(&fast, 60).status, PS_ESTOPPING);
    assert_false(peer_receive(&fast));
    peer_close(&fast);
    tear_down(&f);
}

static void a_reader_reads_what_there_is_and_waits_for_nobody(void **state)
{
    struct fixture f;
    struct peer worker, reader;

    (void)state;
    set_up(&f);
    worker = client(&f, "worker");
    reader = client(&f, "reader");
    ask_table(&worker, "t");
    send_pull(&reader, 1000, 60);
    assert_int_equal(hear_pull(&reader, 60).status, 0);
    assert_int_equal(join_job(&reader, 0, 1).status, -EPERM);
    assert_int_equal(push(&reader, 1).status, PS_ENOJOIN);
    peer_close(&worker);
    peer_close(&reader);
    tear_down(&f);
}

static void a_pull_behind_an_unacknowledged_push_does_not_advance_the_clock(void **state)
{
    struct fixture f;
    struct peer p, other, again;

    (void)state;
    set_up(&f);
    p = client(&f, "worker");
    other = client(&f, "worker");
    again = client(&f, "worker");
    assert_int_equal(ask_table(&p, "t"), 0);
    assert_int_equal(join_job(&other, 1, 100).status, 0);
    assert_int_equal(join_job(&p, 0, 100).status, 0);
    send_push(&p, 2); /* the first is missing */
    send_pull(&p, 2, 7);
    assert_true(peer_receive(&p));
    assert_int_equal(join_job(&again, 0, 100).clock, 0);
    assert_int_equal(push(&again, 1).status, 0);
    assert_int_equal(push(&again, 2).status, 0);
    assert_int_equal(join_job(&again, 0, 100).clock, 2);
    peer_close(&p);
    peer_close(&other);
    peer_close(&again);
    tear_down(&f);
}

static void parked_pulls_of_a_suspect_are_refused(void **state)
{
    const struct job *job;
    struct fixture f;
    struct peer fast, slow;

    (void)state;
    set_up(&f);
    slow = worker_of(&f, 1);
    fast = worker_ahead(&f);
    park_pull(&fast);
    job = membership_worker(shard_membership(f.shard), "job", 0)->job;
    assert_int_equal(beat_about(&slow, 0, false).status, 0);
    dispatch_tick(f.dispatch);
    assert_int_equal(hear_pull(&fast, 60).status, PS_EFENCED);
    assert_int_equal(count(&f).pulls.parked, 0);
    assert_int_equal(job->n_fenced, 0); /* it has said nothing since */
    assert_int_equal(beat(&fast), PS_EFENCED);
    assert_int_equal(job->n_fenced, 1);
    peer_close(&fast);
    peer_close(&slow);
    tear_down(&f);
}

static void a_worker_that_another_suspects_is_refused_and_ends_when_all_agree(void **state)
{
    struct fixture f;
    struct peer fast, slow;
    struct status_reply reply;

    (void)state;
    set_up(&f);
    slow = worker_of(&f, 1);
    fast = worker_ahead(&f);
    park_pull(&fast);
    assert_int_equal(beat_about(&fast, 0, true).suspects.n, 0); /* nobody ends itself */
    reply = beat_about(&fast, 1, false);
    assert_int_equal(reply.status, 0);
    assert_int_equal(reply.min_clock, 0); /* it is waited for */
    assert_int_equal(reply.suspects.n, 1);
    assert_int_equal(reply.suspects.items[0].rank, 1);
    assert_true(reply.suspects.items[0].incarnation == 1);
    assert_int_equal(beat(&slow), PS_EFENCED);
    assert_int_equal(beat_about(&fast, 1, true).suspects.n,
                     0);                         /* it has said all that it can */
    assert_int_equal(count(&f).pulls.parked, 1); /* for a lease, as there is no other witness */
    enter_shard();
    membership_worker(shard_membership(f.shard), "job", 1)->last_seen_ms = 0;
    dispatch_tick(f.dispatch);
    assert_int_equal(hear_pull(&fast, 60).status, 0); /* no more */
    peer_close(&fast);
    peer_close(&slow);
    tear_down(&f);
}

static void a_fenced_worker_learns_how_to_rejoin(void **state)
{
    struct join_reply reply;
    struct fixture f;
    struct peer old, new;

    (void)state;
    set_up(&f);
    old = client(&f, "worker");
    new = client(&f, "worker");
    assert_int_equal(ask_table(&old, "t"), 0);
    assert_int_equal(join_job(&old, 0, 100).status, 0);
    assert_int_equal(join_job(&new, 0, 200).status, 0);
    assert_int_equal(push(&old, 1).status, PS_EFENCED);
    assert_int_equal(beat(&old), PS_EFENCED);
    assert_int_equal(shard_counters(f.shard)->pushes_fenced, 1);
    reply = join_job(&old, 0, 150);
    assert_int_equal(reply.status, PS_EFENCED);
    assert_int_equal(reply.fenced_below, 201);
    assert_int_equal(join_job(&old, 0, 201).status, 0);
    peer_close(&old);
    peer_close(&new);
    tear_down(&f);
}

static void a_join_reports_a_refusal_that_was_missed(void **state)
{
    struct join_reply reply;
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = client(&f, "worker"); /* makes no table */
    reply = join_job(&p, 0, 1);
    assert_true(reply.status == 0 && reply.refused_seq == 0 && reply.refused_status == 0);
    assert_int_equal(push(&p, 1).status, PS_ENOTABLE);
    reply = join_job(&p, 0, 1);
    assert_true(reply.status == 0 && reply.resumed);
    assert_int_equal(reply.last_applied, 1);
    assert_int_equal(reply.refused_seq, 1);
    assert_int_equal(reply.refused_status, PS_ENOTABLE);
    peer_close(&p);
    tear_down(&f);
}

#ifdef PS_FAULTS
/* Whichever allocation fails, the client gets an answer or the end of the stream, and the
 * next client is served. */
static void every_allocation_that_fails_is_a_refusal(void **state)
{
    bool is_through = false;

    (void)state;
    for (long k = 0; !is_through; k++) {
        struct fixture f;
        struct peer fast, other;
        bool is_open;

        assert_true(k < 1000);
        set_up(&f);
        fast = client(&f, "worker");
        other = client(&f, "worker");
        ask_table(&fast, "t");
        join_job(&fast, 0, 1);
        join_job(&other, 1, 1);
        send_push(&fast, 1);
        send_pull(&fast, 1, 60);
        memory_fail_after(k);
        uv_run(&f.loop, UV_RUN_NOWAIT);
        uv_run(&f.loop, UV_RUN_NOWAIT);
        is_through =
            f.connections.first && count(&f).pulls.parked == 1 && count(&f).refused == 0;
        memory_fail_after(-1);
        is_open = f.connections.first && f.connections.first->next;
        if (is_open) {
            assert_true(peer_receive(&fast));
            assert_int_equal(fast.header.type, FRAME_PUSH_REPLY);
        }
        push(&other, 1);
        assert_int_equal(beat(&other), 0);
        peer_close(&fast);
        peer_close(&other);
        tear_down(&f);
    }
}
#endif

/* --- compressed bodies --- */

/* A pull of many keys, which compress well, and whose head says that they have key_bytes more or
 * fewer bytes. */
static struct bytes packed_pull(uint32_t table, int64_t key_bytes)
{
    static uint8_t keys[MANY_KEYS];
    struct pull pull = { .n_sections = 1 };
    struct message_zstd zstd = { 0 };
    struct bytes plain = { 0 }, frame = { 0 };
    struct frame_header header;

    memset(keys, 1, sizeof keys); /* 1, 2, 3 ... */
    pull.sections[0] = (struct section){
        .table_id = table, .n_keys = MANY_KEYS, .keys = keys, .key_bytes = sizeof keys
    };
    assert_int_equal(message_write_pull(&frame, 60, &pull, &zstd), 0);
    message_zstd_deinit(&zstd);
    if (!key_bytes)
        return frame;
    /* The compressed body behind another head. */
    assert_int_equal(frame_decode(bytes_front(&frame), UINT32_MAX, &header), 0);
    pull.sections[0].n_keys = (uint32_t)(MANY_KEYS + key_bytes);
    pull.sections[0].key_bytes = pull.sections[0].n_keys;
    pull.sections[0].keys = memory_alloc(MANY_KEYS + 1);
    assert_int_equal(message_write_pull(&plain, 60, &pull, NULL), 0);
    free((void *)(uintptr_t)pull.sections[0].keys);
    plain.end = FRAME_HEADER_BYTES + plain.bytes[6] + ((size_t)plain.bytes[7] << 8);
    header.head_bytes = (uint16_t)(plain.end - FRAME_HEADER_BYTES);
    memcpy(bytes_reserve(&plain, header.body_bytes),
           bytes_front(&frame) + bytes_len(&frame) - header.body_bytes, header.body_bytes);
    bytes_commit(&plain, header.body_bytes);
    frame_encode(plain.bytes, &header);
    bytes_deinit(&frame);
    return plain;
}

static int ask_packed_pull(struct peer *p, uint32_t table, int64_t key_bytes)
{
    struct bytes frame = packed_pull(table, key_bytes);

    peer_send(p, &frame);
    return hear_pull(p, 60).status;
}

static int ask_packed_push(struct peer *p)
{
    static const float gradients[4096];
    struct push push = { .seq = 1, .n_sections = 1 };
    struct message_zstd zstd = { 0 };
    struct bytes frame = { 0 };
    uint8_t keys[4096 / DIM];

    memset(keys, 1, sizeof keys);
    push.sections[0] = (struct section){ .n_keys = sizeof keys,
                                         .keys = keys,
                                         .key_bytes = sizeof keys,
                                         .values = (const uint8_t *)gradients,
                                         .value_bytes = sizeof gradients };
    assert_int_equal(message_write_push(&frame, 101, &push, &zstd), 0);
    message_zstd_deinit(&zstd);
    peer_send(p, &frame);
    return hear_push(p, 1).status;
}

static void a_body_is_unpacked_for_nobody_who_may_not_ask(void **state)
{
    struct fixture f;
    struct peer worker, reader;

    (void)state;
    set_up(&f);
    reader = client(&f, "reader");
    worker = client(&f, "worker");
    ask_table(&worker, "t");
    assert_int_equal(ask_packed_push(&reader), PS_ENOJOIN);
    assert_int_equal(ask_packed_push(&worker), PS_ENOJOIN);
    assert_int_equal(ask_packed_pull(&worker, 0, 0), PS_ENOJOIN);
    assert_int_equal(ask_packed_pull(&reader, 9, 0), PS_ENOTABLE);
    assert_int_equal(ask_packed_pull(&reader, 0, 1), PS_ECOUNT);
    assert_int_equal(ask_packed_pull(&reader, 0, -1), PS_ECOUNT);
    assert_int_equal(f.channels.unpacked_bytes, 0);
    assert_int_equal(ask_packed_pull(&reader, 0, 0), 0);
    assert_int_equal(f.channels.unpacked_bytes, MANY_KEYS);
    assert_int_equal(join_job(&worker, 0, 1).status, 0);
    assert_int_equal(ask_packed_push(&worker), 0);
    assert_int_equal(f.channels.unpacked_bytes, MANY_KEYS + 4096 / DIM + 4096 * 4);
    peer_close(&worker);
    peer_close(&reader);
    tear_down(&f);
}

static void a_peer_that_has_not_joined_has_low_priority(void **state)
{
    struct bytes frame = { 0 };
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = client(&f, "worker");
    assert_true(f.connections.first->channel.turn.is_low);
    assert_int_equal(join_job(&p, 0, 1).status, 0);
    assert_false(f.connections.first->channel.turn.is_low);
    assert_int_equal(message_write_leave(&frame, 4, 0), 0);
    peer_send(&p, &frame);
    assert_true(peer_receive(&p));
    assert_true(f.connections.first->channel.turn.is_low);
    peer_close(&p);
    tear_down(&f);
}

static void a_worker_that_joins_on_one_connection_too_many_loses_its_oldest(void **state)
{
    enum { N = MEMBERSHIP_HANDLER_CONNECTIONS_OF_ONE_MAX };
    struct peer peers[N + 1], other;
    struct fixture f;

    (void)state;
    set_up(&f);
    other = worker_of(&f, 1);
    for (int i = 0; i <= N; i++) {
        peers[i] = client(&f, "worker");
        assert_int_equal(join_job(&peers[i], 0, 1).status, 0);
        if (i == 1)
            assert_int_equal(join_job(&peers[0], 0, 1).status, 0); /* the newest by that */
    }
    assert_false(peer_receive(&peers[1]));
    assert_int_equal(beat(&peers[0]), 0);
    assert_int_equal(beat(&peers[2]), 0);
    assert_int_equal(beat(&peers[N]), 0);
    assert_int_equal(beat(&other), 0);
    for (int i = 0; i <= N; i++)
        peer_close(&peers[i]);
    peer_close(&other);
    tear_down(&f);
}

/* --- memory --- */

/* Replies that the peer does not read, in 1 MiB of memory each. */
static void send_replies(struct connection *c, int n)
{
    static char text[(1 << 20) - 256];
    struct status_reply reply = { 0 };

    for (int i = 0; i < n; i++) {
        struct bytes frame = { 0 };

        assert_int_equal(message_write_admin_reply(&frame, 1, &reply, text, sizeof text), 0);
        c->n_unanswered++; /* as if it had asked */
        assert_int_equal(connection_send(c, &frame), 0);
    }
}

static uint64_t n_greedy(const struct fixture *f)
{
    struct connection_set_counts counts;

    connection_set_count(&f->connections, &counts);
    return counts.greedy;
}

static void the_greediest_goes_when_connections_hold_too_much(void **state)
{
    struct bytes half = { 0 };
    struct fixture f;
    struct peer modest, greedy, sender;

    (void)state;
    set_up(&f);
    modest = client(&f, "reader");
    send_replies(f.connections.first, 4);
    greedy = client(&f, "reader");
    send_replies(f.connections.first, 40);
    sender = client(&f, "reader");
    uv_run(&f.loop, UV_RUN_NOWAIT);
    assert_in_range(f.channels.held_bytes, 40 << 20, 45 << 20);
    f.memory.max_bytes = 48u << 20;
    uv_run(&f.loop, UV_RUN_NOWAIT);
    assert_int_equal(n_greedy(&f), 0);
    f.memory.max_bytes = 16u << 20;
    uv_run(&f.loop, UV_RUN_NOWAIT);
    uv_run(&f.loop, UV_RUN_NOWAIT);
    assert_int_equal(n_greedy(&f), 1);
    assert_in_range(f.channels.held_bytes, 3 << 20, 5 << 20);
    assert_in_range(channel_memory_used(&f.memory), 3 << 20, 5 << 20);
    f.memory.max_bytes = 8u << 20;                   /* what is received counts, too */
    assert_non_null(bytes_reserve(&half, 21 << 20)); /* the sum is of the whole body */
    memset(half.bytes, 0, 21 << 20);
    bytes_commit(&half, 12 << 20);
    frame_encode(half.bytes,
                 &(struct frame_header){ .type = FRAME_PUSH, .body_bytes = 20 << 20 });
    while (n_greedy(&f) == 1) {
        ssize_t n = send(sender.fd, bytes_front(&half), bytes_len(&half), MSG_DONTWAIT);

        if (n > 0)
            bytes_consume(&half, (size_t)n);
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    assert_in_range(f.channels.held_bytes, 3 << 20, 5 << 20);
    bytes_deinit(&half);
    peer_close(&modest);
    peer_close(&greedy);
    peer_close(&sender);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pull_that_is_ahead_waits_while_later_requests_pass),
        cmocka_unit_test(a_worker_that_leaves_lets_the_others_on),
        cmocka_unit_test(parked_pulls_go_with_their_connection),
        cmocka_unit_test(a_stopped_service_refuses_waiting_peers),
        cmocka_unit_test(a_reader_reads_what_there_is_and_waits_for_nobody),
        cmocka_unit_test(a_pull_behind_an_unacknowledged_push_does_not_advance_the_clock),
        cmocka_unit_test(parked_pulls_of_a_suspect_are_refused),
        cmocka_unit_test(a_worker_that_another_suspects_is_refused_and_ends_when_all_agree),
        cmocka_unit_test(a_fenced_worker_learns_how_to_rejoin),
        cmocka_unit_test(a_join_reports_a_refusal_that_was_missed),
        cmocka_unit_test(a_body_is_unpacked_for_nobody_who_may_not_ask),
        cmocka_unit_test(a_peer_that_has_not_joined_has_low_priority),
        cmocka_unit_test(a_worker_that_joins_on_one_connection_too_many_loses_its_oldest),
        cmocka_unit_test(the_greediest_goes_when_connections_hold_too_much),
#ifdef PS_FAULTS
        cmocka_unit_test(every_allocation_that_fails_is_a_refusal),
#endif
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
