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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_push_is_answered_once_its_record_is_safe_and_a_beat_at_once),
        cmocka_unit_test(replies_wait_for_all_that_came_before_and_go_in_order),
        cmocka_unit_test(what_a_join_reply_says_of_earlier_pushes_is_durable_when_it_is_sent),
        cmocka_unit_test(while_the_log_is_full_pushes_wait_and_nobody_dies_of_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
