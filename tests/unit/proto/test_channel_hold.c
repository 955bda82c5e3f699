/* A frame that its owner keeps, and what goes on around it. */
#include "common/memory.h"
#include "tests/unit/proto/channels.h"

static void send_beats(struct channels *f, uint64_t first, uint64_t n)
{
    struct bytes all = { 0 };

    for (uint64_t i = first; i < first + n; i++)
        assert_int_equal(message_write_beat(&all, i, &(struct beat){ .clock = i }), 0);
    channels_write(f, bytes_front(&all), bytes_len(&all));
    bytes_deinit(&all);
}

static void assert_holds(struct channels *f, uint64_t clock)
{
    struct beat found = { 0 };

    assert_non_null(f->head);
    assert_int_equal(message_read_beat(&f->header, f->head, &found), 0);
    assert_true(found.clock == clock);
}

static void a_held_frame_stands_and_no_other_comes_until_it_is_released(void **state)
{
    struct channels f;

    (void)state;
    channels_set_up(&f, HOLD);
    send_beats(&f, 300, 3);
    for (int i = 1; i <= 3; i++) {
        channels_turn(&f);
        assert_int_equal(f.n_frames, i);
        assert_holds(&f, 299 + (uint64_t)i);
        assert_false(channel_mid_frame(f.channel));
        channels_release(&f);
        assert_int_equal(f.n_frames, i); /* not from inside */
    }
    channels_turn(&f);
    assert_int_equal(f.n_frames, 3);
    assert_null(f.channel->in.buf.bytes);
    send_beats(&f, 400, 1); /* reading has gone on */
    assert_holds(&f, 400);
    channels_release(&f);
    channels_tear_down(&f);
    assert_int_equal(f.why, UV_EOF);
}

static void while_a_frame_is_held_the_peers_bytes_wait_in_the_socket(void **state)
{
    struct bytes b = channels_beat(1);
    struct channels f;
    int n_sent = 1;

    (void)state;
    channels_set_up(&f, HOLD);
    channels_write(&f, bytes_front(&b), bytes_len(&b));
    assert_int_equal(f.n_frames, 1);
    while (send(f.peer, bytes_front(&b), bytes_len(&b), MSG_DONTWAIT) > 0) {
        n_sent++;
        uv_run(&f.on->loop, UV_RUN_NOWAIT);
    }
    assert_int_equal(f.n_frames, 1);
    assert_true(f.channel->bytes_in == bytes_len(&b));
    f.what = KEEP;
    channels_release(&f);
    while (f.n_frames < n_sent)
        uv_run(&f.on->loop, UV_RUN_NOWAIT);
    channels_tear_down(&f);
    bytes_deinit(&b);
}

static void other_channels_do_not_write_over_a_held_frame(void **state)
{
    struct bytes big = channels_big_frame(700000);
    struct channels f, other;

    (void)state;
    channels_set_up(&f, HOLD);
    channels_join(&other, &f, KEEP);
    send_beats(&f, 300, 2);
    for (int i = 0; i < 5; i++) {
        channels_write_all(&other, bytes_front(&big), bytes_len(&big));
        send_beats(&other, 1, 1000);
    }
    while (other.n_frames < 5005)
        channels_turn(&other);
    assert_holds(&f, 300);
    channels_release(&f);
    channels_turn(&f);
    assert_holds(&f, 301);
    channels_release(&f);
    channels_tear_down(&other);
    channels_tear_down(&f);
    bytes_deinit(&big);
}

static void a_large_held_frame_stands_too(void **state)
{
    struct bytes big = channels_big_frame(900000), all = { 0 };
    struct channels f;

    (void)state;
    memcpy(bytes_reserve(&all, 2 * bytes_len(&big)), bytes_front(&big), bytes_len(&big));
    bytes_commit(&all, bytes_len(&big));
    memcpy(bytes_reserve(&all, bytes_len(&big)), bytes_front(&big), bytes_len(&big));
    bytes_commit(&all, bytes_len(&big));
    channels_set_up(&f, HOLD);
    for (size_t at = 0; at < bytes_len(&all) || !f.head; f.what = HOLD) {
        ssize_t n = send(f.peer, bytes_front(&all) + at, bytes_len(&all) - at, MSG_DONTWAIT);

        at += n > 0 ? (size_t)n : 0;
        channels_turn(&f);
        if (!f.head)
            continue;
        assert_memory_equal(f.body, bytes_front(&big) + bytes_len(&big) - 900000, 900000);
        if (f.n_frames == 2)
            break;
        channels_release(&f);
    }
    assert_int_equal(f.n_frames, 2);
    channels_tear_down(&f); /* held to the end */
    bytes_deinit(&big);
    bytes_deinit(&all);
}

static void
a_frame_that_is_held_when_the_channel_closes_stands_until_closed_returns(void **state)
{
    (void)state;
    for (int released = 0; released < 2; released++) {
        struct channels f;

        channels_set_up(&f, HOLD);
        send_beats(&f, 300, 2);
        channel_close(f.channel);
        assert_holds(&f, 300);
        if (released)
            channels_release(&f);
        channels_turn(&f);
        assert_int_equal(f.n_closed, 1);
        assert_int_equal(f.n_frames, 1);
        assert_true(f.last_beat.clock == 300); /* read inside events.closed */
        channels_tear_down(&f);
    }
}

static void a_held_frame_stands_while_the_close_lingers_and_drops_what_comes(void **state)
{
    struct channels f;

    (void)state;
    channels_set_up(&f, HOLD);
    send_beats(&f, 300, 1);
    channels_reply(&f, 3u << 20); /* more than the socket takes */
    channel_close(f.channel);
    send_beats(&f, 1, 1000);
    assert_holds(&f, 300);
    assert_int_equal(f.n_frames, 1);
    channels_tear_down(&f);
    assert_int_equal(f.why, 0);
}

static void may_be_released_by_what_comes_on_another_channel(void **state)
{
    struct channels f, other;

    (void)state;
    channels_set_up(&f, HOLD);
    channels_join(&other, &f, KEEP);
    other.releases = &f;
    send_beats(&f, 300, 2);
    assert_int_equal(f.n_frames, 1);
    send_beats(&other, 1, 1);
    channels_turn(&f);
    assert_int_equal(f.n_frames, 2);
    assert_holds(&f, 301);
    channels_tear_down(&other);
    channels_tear_down(&f);
}

static void held_and_released_in_one_call_is_as_if_never_held(void **state)
{
    struct channels f;

    (void)state;
    channels_set_up(&f, HOLD);
    f.releases = &f;
    send_beats(&f, 300, 5);
    assert_int_equal(f.n_frames, 5);
    assert_null(f.channel->in.buf.bytes);
    channels_tear_down(&f);
}

static void replies_still_go_out_while_a_frame_is_held(void **state)
{
    struct channels f;
    size_t n = 0;

    (void)state;
    channels_set_up(&f, HOLD);
    send_beats(&f, 300, 2);
    for (int i = 0; i < 10; i++)
        channels_reply(&f, 1u << 20); /* CONGESTED, too */
    assert_int_equal(f.channel->state, CHANNEL_CONGESTED);
    while (n < 10 * (FRAME_HEADER_BYTES + (1u << 20))) {
        n += channels_read(&f);
        channels_turn(&f);
    }
    assert_int_equal(f.channel->state, CHANNEL_OPEN);
    assert_int_equal(f.n_frames, 1); /* held, all the while */
    assert_holds(&f, 300);
    channels_release(&f);
    channels_turn(&f);
    assert_holds(&f, 301);
    channels_tear_down(&f);
}

static void released_while_congested_it_goes_on_when_the_peer_has_read(void **state)
{
    struct channels f;
    size_t n = 0;

    (void)state;
    channels_set_up(&f, HOLD);
    send_beats(&f, 300, 2);
    for (int i = 0; i < 10; i++)
        channels_reply(&f, 1u << 20);
    channels_release(&f);
    channels_turn(&f);
    assert_int_equal(f.n_frames, 1);
    while (n < 10 * (FRAME_HEADER_BYTES + (1u << 20))) {
        n += channels_read(&f);
        channels_turn(&f);
    }
    assert_int_equal(f.n_frames, 2);
    assert_holds(&f, 301);
    channels_tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_held_frame_stands_and_no_other_comes_until_it_is_released),
        cmocka_unit_test(while_a_frame_is_held_the_peers_bytes_wait_in_the_socket),
        cmocka_unit_test(other_channels_do_not_write_over_a_held_frame),
        cmocka_unit_test(a_large_held_frame_stands_too),
        cmocka_unit_test(
            a_frame_that_is_held_when_the_channel_closes_stands_until_closed_returns),
        cmocka_unit_test(a_held_frame_stands_while_the_close_lingers_and_drops_what_comes),
        cmocka_unit_test(may_be_released_by_what_comes_on_another_channel),
        cmocka_unit_test(held_and_released_in_one_call_is_as_if_never_held),
        cmocka_unit_test(replies_still_go_out_while_a_frame_is_held),
        cmocka_unit_test(released_while_congested_it_goes_on_when_the_peer_has_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
