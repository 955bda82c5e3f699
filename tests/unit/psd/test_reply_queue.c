/* Which replies wait for the disk, and in which order they go. */
#include "serving.h"

/* The log has records that are not safe. */
static void lag(struct fixture *f, uint64_t appended)
{
    reply_queue_note(&f->replies, appended);
}

static void acknowledge(struct fixture *f, uint64_t acknowledged)
{
    enter_shard();
    reply_queue_release(&f->replies, acknowledged);
}

static void send_push(struct peer *p, uint64_t seq)
{
    struct push push = { .seq = seq, .clock = seq - 1, .n_samples = 1, .tick = true };
    struct bytes frame = { 0 };

    assert_int_equal(message_write_push(&frame, 100 + seq, &push, NULL), 0);
    peer_send(p, &frame);
}

static void a_push_is_answered_once_its_record_is_safe_and_a_beat_at_once(void **state)
{
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = worker_of(&f, 0);
    lag(&f, 1);
    send_push(&p, 1);
    assert_int_equal(beat(&p), 0); /* the first frame that comes back */
    assert_int_equal(f.replies.n_waiting, 1);
    acknowledge(&f, 1);
    assert_int_equal(hear_push(&p, 1).status, 0);
    assert_int_equal(f.replies.n_waiting, 0);
    peer_close(&p);
    tear_down(&f);
}

static void replies_wait_for_all_that_came_before_and_go_in_order(void **state)
{
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = worker_of(&f, 0);
    lag(&f, 7);
    send_push(&p, 1);
    assert_int_equal(beat(&p), 0);
    lag(&f, 8);
    send_push(&p, 2);
    send_push(&p,
              1); /* sent again: what it is told, "acknowledged before", is a promise, too */
    assert_int_equal(beat(&p), 0);
    assert_int_equal(f.replies.n_waiting, 3);
    acknowledge(&f, 6);
    assert_int_equal(f.replies.n_waiting, 3);
    acknowledge(&f, 7);
    assert_int_equal(hear_push(&p, 1).status, 0);
    assert_int_equal(f.replies.n_waiting, 2);
    acknowledge(&f, 9);
    assert_int_equal(hear_push(&p, 2).status, 0);
    assert_int_equal(hear_push(&p, 1).status, 0);
    peer_close(&p);
    tear_down(&f);
}

static void what_a_join_reply_says_of_earlier_pushes_is_durable_when_it_is_sent(void **state)
{
    struct fixture f;
    struct peer p, again;

    (void)state;
    set_up(&f);
    p = worker_of(&f, 0);
    lag(&f, 1);
    send_push(&p, 1);
    assert_int_equal(beat(&p), 0);
    peer_close(&p);
    again = client(&f, "worker");
    send_join(&again, 0, 1);
    for (int i = 0; i < 20; i++)
        peer_turn(&again);
    assert_int_equal(f.replies.n_waiting, 1); /* the push's went with its connection */
    acknowledge(&f, 1);
    assert_int_equal(hear_join(&again).last_applied, 1);
    peer_close(&again);
    tear_down(&f);
}

/* It sends no beat before it knows that it has joined. */
static void who_waits_for_the_reply_to_its_join_is_not_silent(void **state)
{
    struct fixture f;
    struct worker *worker;
    struct peer p;

    (void)state;
    set_up(&f);
    p = client(&f, "worker");
    lag(&f, 1);
    send_join(&p, 0, 1);
    while (!f.replies.n_waiting)
        peer_turn(&p);
    worker = &membership_job(shard_membership(f.shard), 0)->workers[0];
    while (reply_queue_waited_ms(&f.replies) < 600)
        peer_turn(&p);
    worker->last_seen_ms = 0;
    enter_shard();
    dispatch_tick(f.dispatch);
    assert_true(worker->last_seen_ms > 0);
    acknowledge(&f, 1);
    assert_int_equal(hear_join(&p).status, 0);
    peer_close(&p);
    tear_down(&f);
}

static void while_the_log_is_full_pushes_wait_and_nobody_dies_of_it(void **state)
{
    struct fixture f;
    struct peer p, other;

    (void)state;
    set_up(&f);
    p = worker_of(&f, 0);
    other = worker_of(&f, 1);
    f.replies.is_full = true;
    send_push(&p, 1);
    send_push(&p, 2);
    assert_int_equal(beat(&other), 0);
    enter_shard();
    dispatch_tick(f.dispatch);
    assert_int_equal(shard_counters(f.shard)->pushes, 0);
    f.replies.is_full = false;
    dispatch_resume(f.dispatch);
    assert_int_equal(hear_push(&p, 1).status, 0);
    assert_int_equal(hear_push(&p, 2).status, 0);
    peer_close(&p);
    peer_close(&other);
    tear_down(&f);
}

/* --- memory --- */

static void what_promises_nothing_does_not_wait(void **state)
{
    struct table_request asked = { .spec = { .name = "none", .dim = DIM }, .must_exist = true };
    struct fixture f;
    struct peer reader, p;

    (void)state;
    set_up(&f);
    p = worker_of(&f, 0);
    reader = client(&f, "reader");
    lag(&f, 1);
    for (int i = 0; i < 50; i++) {
        struct bytes frame = { 0 };

        assert_int_equal(message_write_table(&frame, 2, &asked), 0);
        peer_send(&reader, &frame);
        assert_int_equal(hear_table(&reader).status, PS_ENOTABLE);
        send_table(&reader, "made"); /* a reader makes none */
        assert_int_equal(hear_table(&reader).status, -EPERM);
    }
    send_join(&p, 7, 1); /* of two */
    assert_int_not_equal(hear_join(&p).status, 0);
    assert_int_equal(f.replies.n_waiting, 0);
    peer_close(&reader);
    peer_close(&p);
    tear_down(&f);
}

/* The reply to a push, as its handler makes it. Returns by how much the queue grew. */
static uint64_t queue_small(struct fixture *f, size_t *ret_frame_bytes)
{
    static struct stats_requests requests;
    const struct reply_timing timing = { &requests, 0 };
    const struct push_reply reply = { .seq = 1 };
    uint64_t before = f->replies.waiting_bytes;
    struct bytes frame = { 0 };

    enter_shard();
    assert_int_equal(channel_loop_acquire(&f->channels, 1, &frame), 0);
    assert_int_equal(message_write_push_reply(&frame, 1, &reply), 0);
    *ret_frame_bytes = bytes_len(&frame);
    assert_int_equal(reply_queue_send(&f->replies, f->connections.first, &frame, &timing), 0);
    return f->replies.waiting_bytes - before;
}

static void a_reply_keeps_its_buffer_in_a_short_queue_and_not_in_a_long_one(void **state)
{
    enum { N_LONG = 1000, ENTRY_BYTES = 128 };
    uint64_t n_short = 0, buffer_bytes = 4096; /* of the pool, at least */
    size_t frame_bytes;
    struct fixture f;
    struct peer p;

    (void)state;
    assert_int_equal(REPLY_QUEUE_LONG_BYTES, 4 << 20);
    set_up(&f);
    p = worker_of(&f, 0);
    lag(&f, 1);
    for (; f.replies.waiting_bytes < REPLY_QUEUE_LONG_BYTES; n_short++)
        assert_in_range(queue_small(&f, &frame_bytes), buffer_bytes, 2 * buffer_bytes);
    assert_in_range(n_short, 500, 1024);
    for (int i = 0; i < N_LONG; i++)
        assert_in_range(queue_small(&f, &frame_bytes), frame_bytes, frame_bytes + ENTRY_BYTES);
    peer_close(&p);
    tear_down(&f);
}

static void
small_replies_of_a_long_queue_take_little_and_count_for_their_connection(void **state)
{
    enum { N = 4000, REPLY_BYTES = 256 };
    size_t held_bytes;
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = worker_of(&f, 0);
    assert_int_equal(beat(&p), 0);
    held_bytes = f.channels.held_bytes;
    lag(&f, 1);
    send_push(&p, 1);
    for (int i = 1; i < N; i++)
        send_push(&p, 1); /* again and again */
    assert_int_equal(beat(&p), 0);
    assert_int_equal(f.replies.n_waiting, N);
    assert_in_range(f.replies.waiting_bytes, N * 64, REPLY_QUEUE_LONG_BYTES + N * REPLY_BYTES);
    assert_int_equal(f.connections.first->queued_bytes, f.replies.waiting_bytes);
    assert_true(f.channels.held_bytes >= held_bytes + f.replies.waiting_bytes);
    acknowledge(&f, 1);
    assert_int_equal(f.connections.first->queued_bytes, 0);
    assert_int_equal(f.replies.waiting_bytes, 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(hear_push(&p, 1).status, 0);
    peer_close(&p);
    tear_down(&f);
}

/* As if replies of 1 MiB had been made for it. The status of the last one. */
static int queue(struct fixture *f, struct connection *c, int n)
{
    static struct stats_requests requests;
    const struct reply_timing timing = { &requests, 0 };
    int status = 0;

    enter_shard();
    for (int i = 0; i < n && !status; i++) {
        struct bytes frame = { 0 };

        assert_non_null(bytes_reserve(&frame, 1 << 20));
        bytes_commit(&frame, 1 << 20);
        status = reply_queue_send(&f->replies, c, &frame, &timing);
    }
    return status;
}

static void when_all_is_full_the_connection_that_has_most_goes(void **state)
{
    struct connection_set_counts counts;
    struct connection *modest;
    struct fixture f;
    struct peer p, greedy;

    (void)state;
    set_up(&f);
    p = worker_of(&f, 0);
    modest = f.connections.first;
    greedy = client(&f, "worker");
    lag(&f, 1);
    send_push(&p, 1);
    assert_int_equal(beat(&p), 0);
    assert_int_equal(queue(&f, f.connections.first, 60), 0);
    assert_int_equal(queue(&f, modest, 5), 0);
    assert_false(peer_receive(&greedy));
    assert_int_equal(f.replies.n_waiting, 6);
    assert_int_equal(queue(&f, modest, 70), -ENOBUFS); /* now it is that one */
    assert_true(f.replies.waiting_bytes <= REPLY_QUEUE_BYTES_MAX);
    connection_fail(modest, -ENOBUFS); /* as its handler does */
    while (peer_receive(&p))
        continue;
    assert_int_equal(f.replies.waiting_bytes, 0);
    connection_set_count(&f.connections, &counts);
    assert_int_equal(counts.greedy, 2);
    peer_close(&p);
    peer_close(&greedy);
    tear_down(&f);
}

static void replies_that_wait_are_part_of_client_memory(void **state)
{
    struct connection_set_counts counts;
    struct fixture f;
    struct peer modest, greedy;

    (void)state;
    set_up(&f);
    modest = worker_of(&f, 0);
    lag(&f, 1);
    send_push(&modest, 1);
    assert_int_equal(beat(&modest), 0);
    greedy = client(&f, "worker");
    assert_int_equal(queue(&f, f.connections.first, 20), 0);
    f.memory.max_bytes = 16u << 20;
    assert_false(peer_receive(&greedy));
    connection_set_count(&f.connections, &counts);
    assert_int_equal(counts.greedy, 1);
    assert_int_equal(f.replies.n_waiting, 1);
    acknowledge(&f, 1);
    assert_int_equal(hear_push(&modest, 1).status, 0);
    peer_close(&modest);
    peer_close(&greedy);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_push_is_answered_once_its_record_is_safe_and_a_beat_at_once),
        cmocka_unit_test(replies_wait_for_all_that_came_before_and_go_in_order),
        cmocka_unit_test(what_a_join_reply_says_of_earlier_pushes_is_durable_when_it_is_sent),
        cmocka_unit_test(who_waits_for_the_reply_to_its_join_is_not_silent),
        cmocka_unit_test(while_the_log_is_full_pushes_wait_and_nobody_dies_of_it),
        cmocka_unit_test(what_promises_nothing_does_not_wait),
        cmocka_unit_test(a_reply_keeps_its_buffer_in_a_short_queue_and_not_in_a_long_one),
        cmocka_unit_test(
            small_replies_of_a_long_queue_take_little_and_count_for_their_connection),
        cmocka_unit_test(when_all_is_full_the_connection_that_has_most_goes),
        cmocka_unit_test(replies_that_wait_are_part_of_client_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
