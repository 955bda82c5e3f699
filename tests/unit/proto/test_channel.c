#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "common/memory.h"
#include "common/status.h"
#include "tests/unit/proto/channels.h"

static void delivers_a_frame_that_comes_one_byte_at_a_time(void **state)
{
    struct bytes b = channels_beat(300);
    struct channels f;

    (void)state;
    channels_set_up(&f, KEEP);
    for (size_t i = 0; i < bytes_len(&b); i++) {
        assert_int_equal(f.n_frames, 0);
        assert_int_equal(channel_mid_frame(f.channel), i > 0);
        channels_write(&f, bytes_front(&b) + i, 1);
    }
    assert_int_equal(f.n_frames, 1);
    assert_true(f.last_beat.clock == 300);
    assert_false(channel_mid_frame(f.channel));
    assert_int_equal(f.channel->bytes_in, bytes_len(&b));
    channels_tear_down(&f);
    assert_int_equal(f.why, UV_EOF);
    bytes_deinit(&b);
}

static void delivers_many_frames_that_come_at_once(void **state)
{
    struct bytes all = { 0 };
    struct channels f;

    (void)state;
    channels_set_up(&f, KEEP);
    for (uint64_t i = 0; i < 5000; i++)
        assert_int_equal(message_write_beat(&all, i, &(struct beat){ .clock = i }), 0);
    channels_write_all(&f, bytes_front(&all), bytes_len(&all));
    while (f.channel->waiter.go)
        channels_turn(&f);
    assert_int_equal(f.n_frames, 5000);
    assert_true(f.last_beat.clock == 4999);
    channels_tear_down(&f);
    bytes_deinit(&all);
}

static void delivers_the_largest_frame_and_keeps_nothing_of_it(void **state)
{
    struct bytes b = channels_big_frame(FRAME_MAX);
    struct channels f;

    (void)state;
    channels_set_up(&f, KEEP);
    channels_write_all(&f, bytes_front(&b), bytes_len(&b));
    assert_int_equal(f.n_frames, 1);
    assert_null(f.channel->in.buf.bytes);
    channels_tear_down(&f);
    bytes_deinit(&b);
}

static void a_header_alone_reserves_no_memory_for_its_body(void **state)
{
    struct bytes b = channels_big_frame(FRAME_MAX);
    struct channels f;

    (void)state;
    channels_set_up(&f, KEEP);
    channels_write(&f, bytes_front(&b), FRAME_HEADER_BYTES);
    channels_write(&f, bytes_front(&b) + FRAME_HEADER_BYTES, 10);
    assert_true(channel_mid_frame(f.channel));
    assert_true(f.channel->in.buf.cap_bytes <= 16u << 10);
    channels_tear_down(&f);
    bytes_deinit(&b);
}

/* Sends a beat with byte `at` changed; the reason for which the channel closed. */
static int why_after_change(size_t at, uint8_t mask)
{
    struct bytes b = channels_beat(300);
    struct channels f;

    channels_set_up(&f, KEEP);
    b.bytes[b.start + at] ^= mask;
    channels_write(&f, bytes_front(&b), bytes_len(&b));
    channels_tear_down(&f);
    assert_int_equal(f.n_frames, 0);
    bytes_deinit(&b);
    return f.why;
}

static void closes_on_a_frame_that_is_wrong(void **state)
{
    (void)state;
    assert_int_equal(why_after_change(0, 1), PS_EPROTO);      /* magic */
    assert_int_equal(why_after_change(4, 0x40), PS_EPROTO);   /* type */
    assert_int_equal(why_after_change(5, 0x80), PS_EPROTO);   /* flags */
    assert_int_equal(why_after_change(11, 0x80), PS_ETOOBIG); /* body_bytes */
    assert_int_equal(why_after_change(12, 1), PS_ECORRUPT);   /* request_id */
    assert_int_equal(why_after_change(20, 1), PS_ECORRUPT);   /* crc */
    assert_int_equal(why_after_change(24, 1), PS_ECORRUPT);   /* head */
}

static void closes_on_http_before_a_whole_header_has_come(void **state)
{
    struct channels f;

    (void)state;
    channels_set_up(&f, KEEP);
    channels_write(&f, "GET / HTTP/1.0\r\n", 16);
    assert_int_equal(f.n_closed, 1);
    assert_int_equal(f.why, PS_EPROTO);
    channels_tear_down(&f);
}

static void closes_for_the_reason_that_the_owner_gives(void **state)
{
    struct bytes b = channels_beat(1);
    struct channels f;

    (void)state;
    channels_set_up(&f, REFUSE);
    channels_write(&f, bytes_front(&b), bytes_len(&b));
    assert_int_equal(f.why, PS_EGREETING);
    channels_tear_down(&f);
    bytes_deinit(&b);
}

static void may_be_closed_by_its_owner_inside_a_frame(void **state)
{
    struct bytes b = { 0 };
    struct channels f;

    (void)state;
    channels_set_up(&f, CLOSE);
    assert_int_equal(message_write_beat(&b, 1, &(struct beat){ .clock = 1 }), 0);
    assert_int_equal(message_write_beat(&b, 2, &(struct beat){ .clock = 2 }), 0);
    channels_write(&f, bytes_front(&b), bytes_len(&b));
    assert_int_equal(f.n_frames, 1);
    channels_tear_down(&f);
    assert_int_equal(f.why, 0);
    bytes_deinit(&b);
}

static void a_reply_is_sent_to_the_peer_before_the_close(void **state)
{
    struct bytes b = channels_beat(1);

    (void)state;
    for (int refuse = 0; refuse < 2; refuse++) {
        struct channels f;

        channels_set_up(&f, refuse ? REPLY_AND_REFUSE : REPLY_AND_CLOSE);
        channels_write(&f, bytes_front(&b), bytes_len(&b));
        channels_write(&f, bytes_front(&b), bytes_len(&b)); /* not waited for, and dropped */
        assert_int_equal(f.n_closed, 0);
        assert_int_equal(channels_read(&f), FRAME_HEADER_BYTES + 2);
        assert_int_equal(f.n_frames, 1);
        channels_tear_down(&f);
        assert_int_equal(f.why, refuse ? PS_EGREETING : 0);
    }
    bytes_deinit(&b);
}

static void a_large_reply_still_leaves_after_the_close(void **state)
{
    struct channels f;
    size_t n = 0;

    (void)state;
    channels_set_up(&f, KEEP);
    channels_reply(&f, 3u << 20);
    channel_close(f.channel);
    channel_close(f.channel);
    channel_fail(f.channel, PS_EPROTO); /* too late for a reason */
    assert_int_equal(f.n_closed, 0);
    while (n < (3u << 20) + FRAME_HEADER_BYTES) {
        n += channels_read(&f);
        channels_turn(&f);
    }
    assert_int_equal(n, (3u << 20) + FRAME_HEADER_BYTES);
    channels_tear_down(&f);
    assert_int_equal(f.why, 0);
}

static void a_peer_that_never_reads_delays_the_close_no_longer_than_the_limit(void **state)
{
    struct channels f;
    uint64_t start, took;

    (void)state;
    channels_set_up(&f, KEEP);
    channels_reply(&f, 8u << 20);
    uv_update_time(&f.on->loop); /* which the limit counts from */
    start = uv_hrtime();
    channel_close(f.channel);
    uv_run(&f.on->loop, UV_RUN_DEFAULT);
    took = (uv_hrtime() - start) / 1000000;
    assert_int_equal(f.n_closed, 1);
    assert_true(took >= CHANNEL_LINGER_MS - 5 && took < CHANNEL_LINGER_MS + 60000);
    channels_tear_down(&f);
}

static void a_close_with_nothing_to_write_waits_for_nobody(void **state)
{
    struct channels f;

    (void)state;
    channels_set_up(&f, KEEP);
    channel_close(f.channel);
    assert_int_equal(f.n_closed, 0); /* never from inside */
    channels_turn(&f);
    assert_int_equal(f.n_closed, 1);
    channels_tear_down(&f);
}

static void send_takes_the_frame_even_when_it_is_closing(void **state)
{
    struct bytes b = channels_beat(1);
    struct channels f;

    (void)state;
    channels_set_up(&f, KEEP);
    channel_close(f.channel);
    assert_int_equal(channel_send(f.channel, &b), UV_ECANCELED);
    assert_null(b.bytes);
    channels_tear_down(&f);
    assert_int_equal(f.why, 0);
}

static void frames_of_a_corked_channel_leave_together(void **state)
{
    struct channels f;

    (void)state;
    channels_set_up(&f, KEEP);
    channel_cork(f.channel);
    for (int i = 0; i < 3; i++)
        channels_reply(&f, 8);
    assert_true(channel_leaving_bytes(f.channel) >= 3 * (FRAME_HEADER_BYTES + 8));
    channel_uncork(f.channel);
    assert_int_equal(channel_leaving_bytes(f.channel), 0);
    assert_true(channels_read(&f) >= 3 * (FRAME_HEADER_BYTES + 8));
    channels_reply(&f, 8); /* at once again */
    channel_uncork(f.channel);
    assert_int_equal(channel_leaving_bytes(f.channel), 0);
    channel_cork(f.channel);
    channels_reply(&f, 8);
    channel_close(f.channel); /* what waits still leaves */
    channel_uncork(f.channel);
    assert_true(channels_read(&f) >= 2 * (FRAME_HEADER_BYTES + 8));
    channels_tear_down(&f);
    assert_int_equal(f.why, 0);
}

static void a_peer_that_hangs_up_is_reported_by_a_failed_write(void **state)
{
    struct channels f;

    (void)state;
    channels_set_up(&f, KEEP);
    channels_reply(&f, 3u << 20); /* less than it stops reading for */
    channels_hang_up(&f);
    channels_tear_down(&f);
    assert_true(f.why == UV_EPIPE || f.why == UV_ECONNRESET || f.why == UV_EOF);
}

static void stops_reading_while_the_peer_reads_no_replies_then_goes_on(void **state)
{
    struct bytes all = { 0 };
    struct channels f;
    int seen;

    (void)state;
    channels_set_up(&f, REPLY_BIG);
    f.big_bytes = (1u << 20) - 256; /* in 1 MiB of memory */
    for (uint64_t i = 0; i < 40; i++)
        assert_int_equal(message_write_beat(&all, i, &(struct beat){ .clock = i }), 0);
    channels_write(&f, bytes_front(&all), bytes_len(&all)); /* one read has them all */
    while (f.channel->state == CHANNEL_OPEN)
        channels_turn(&f);
    seen = f.n_frames;
    assert_true(seen >= 8 && seen < 12); /* 8 MiB of replies, not 40 */
    channels_turn(&f);
    assert_int_equal(f.n_frames, seen);
    for (size_t n = 0; n < 40 * (FRAME_HEADER_BYTES + f.big_bytes);) {
        n += channels_read(&f);
        channels_turn(&f);
    }
    assert_int_equal(f.n_frames, 40);
    assert_int_equal(f.channel->state, CHANNEL_OPEN);
    assert_true(f.channel->bytes_out == 40 * (FRAME_HEADER_BYTES + f.big_bytes));
    channels_tear_down(&f);
    bytes_deinit(&all);
}

/* Two ends of a connection over loopback. */
static void connect_ends(uv_os_sock_t ends[2])
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t at_bytes = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &at_bytes), 0);
    assert_int_equal(connect(ends[1], (struct sockaddr *)&at, sizeof at), 0);
    ends[0] = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    assert_true(ends[0] >= 0);
    assert_int_equal(setsockopt(ends[1], IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)),
                     0);
    close(listener);
}

static bool acknowledges_at_once(int fd)
{
    int at_once = -1;
    socklen_t n_bytes = sizeof at_once;

    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &at_once, &n_bytes), 0);
    return at_once == 1;
}

/* What has come of a frame is acknowledged without the kernel's delay, a whole one with its answer. */
static void the_beginning_of_a_frame_is_acknowledged_at_once(void **state)
{
    struct bytes b = channels_beat(7);
    struct channels f = { 0 };
    uv_os_sock_t ends[2];

    (void)state;
    connect_ends(ends);
    channels_loop_init(&f.own);
    channels_open_on(&f, &f.own, ends, KEEP);
    assert_int_equal(setsockopt(ends[0], IPPROTO_TCP, TCP_QUICKACK, &(int){ 0 }, sizeof(int)),
                     0);
    channels_write(&f, bytes_front(&b), bytes_len(&b));
    assert_int_equal(f.n_frames, 1);
    assert_false(acknowledges_at_once(ends[0]));
    channels_write(&f, bytes_front(&b), bytes_len(&b) - 1);
    assert_true(acknowledges_at_once(ends[0]));
    channels_write(&f, bytes_front(&b) + bytes_len(&b) - 1, 1);
    assert_int_equal(f.n_frames, 2);
    channels_tear_down(&f);
    bytes_deinit(&b);
}

#ifdef PS_FAULTS
static void without_memory_for_what_comes_it_closes(void **state)
{
    struct bytes b = channels_beat(1);
    struct channels f;

    (void)state;
    channels_set_up(&f, KEEP);
    memory_fail_after(0);
    channels_write(&f, bytes_front(&b), bytes_len(&b));
    memory_fail_after(-1);
    assert_int_equal(f.why, UV_ENOBUFS);
    channels_tear_down(&f);
    bytes_deinit(&b);
}

static void without_memory_for_what_is_sent_it_closes(void **state)
{
    struct bytes first = channels_beat(1), second = channels_beat(2);
    struct channels f;

    (void)state;
    channels_set_up(&f, KEEP);
    channel_cork(f.channel);
    memory_fail_after(0);
    assert_int_equal(channel_send(f.channel, &first), -ENOMEM);
    memory_fail_after(-1);
    assert_null(first.bytes);
    assert_int_equal(channel_send(f.channel, &second), UV_ECANCELED); /* none goes without it */
    channels_tear_down(&f);
    assert_int_equal(f.why, -ENOMEM);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delivers_a_frame_that_comes_one_byte_at_a_time),
        cmocka_unit_test(delivers_many_frames_that_come_at_once),
        cmocka_unit_test(delivers_the_largest_frame_and_keeps_nothing_of_it),
        cmocka_unit_test(a_header_alone_reserves_no_memory_for_its_body),
        cmocka_unit_test(closes_on_a_frame_that_is_wrong),
        cmocka_unit_test(closes_on_http_before_a_whole_header_has_come),
        cmocka_unit_test(closes_for_the_reason_that_the_owner_gives),
        cmocka_unit_test(may_be_closed_by_its_owner_inside_a_frame),
        cmocka_unit_test(a_reply_is_sent_to_the_peer_before_the_close),
        cmocka_unit_test(a_large_reply_still_leaves_after_the_close),
        cmocka_unit_test(a_peer_that_never_reads_delays_the_close_no_longer_than_the_limit),
        cmocka_unit_test(a_close_with_nothing_to_write_waits_for_nobody),
        cmocka_unit_test(send_takes_the_frame_even_when_it_is_closing),
        cmocka_unit_test(frames_of_a_corked_channel_leave_together),
        cmocka_unit_test(a_peer_that_hangs_up_is_reported_by_a_failed_write),
        cmocka_unit_test(stops_reading_while_the_peer_reads_no_replies_then_goes_on),
        cmocka_unit_test(the_beginning_of_a_frame_is_acknowledged_at_once),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_for_what_comes_it_closes),
        cmocka_unit_test(without_memory_for_what_is_sent_it_closes),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
