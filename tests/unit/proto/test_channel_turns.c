/* Many channels on one loop: each has its turn, and none starves another. No clocks: what is
 * counted is bytes and iterations. */
#include <arpa/inet.h>
#include <netinet/in.h>

#include "tests/unit/proto/channels.h"

#define FLOOD_BYTES ((size_t)64 << 20)

/* In place of the socket pair: TCP, whose buffers hold megabytes. */
static void open_tcp(struct channels *f, struct channels_loop *on, uv_tcp_t *tcp)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    *f = (struct channels){ .on = on, .channel = malloc(sizeof *f->channel) };
    assert_int_equal(bind(listener, (struct sockaddr *)&address, n), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &n), 0);
    f->peer = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(f->peer, (struct sockaddr *)&address, n), 0);
    assert_int_equal(uv_tcp_init(&on->loop, tcp), 0);
    assert_int_equal(uv_tcp_open(tcp, accept(listener, NULL, NULL)), 0);
    assert_int_equal(channel_start(f->channel, (uv_stream_t *)tcp, &on->channels, FRAME_MAX,
                                   &channels_events, f),
                     0);
    close(listener);
}

/* As much of the endless repetition of `b` as the socket takes, from *at on. */
static void flood(struct channels *f, const struct bytes *b, size_t *at)
{
    ssize_t n;

    do {
        n = send(f->peer, bytes_front(b) + *at, bytes_len(b) - *at, MSG_DONTWAIT);
        if (n > 0)
            *at = (*at + (size_t)n) % bytes_len(b);
    } while (n > 0);
}

/* One channel floods with large frames: how many bytes of it come before another's small one? */
static void a_small_frame_waits_for_no_more_than_a_turn_of_a_flood(void **state)
{
    struct bytes big = channels_big_frame(257000), small = channels_beat(1);
    struct channels other, f;
    uint64_t before, turn;
    uv_tcp_t tcp;
    size_t at = 0;

    (void)state;
    channels_set_up(&other, KEEP);
    open_tcp(&f, other.on, &tcp);
    for (int round = 1; f.channel->bytes_in < FLOOD_BYTES; round++) {
        flood(&f, &big, &at);
        before = f.channel->bytes_in;
        turn = other.on->channels.turn;
        assert_int_equal(write(other.peer, bytes_front(&small), bytes_len(&small)),
                         bytes_len(&small));
        while (other.n_frames < round)
            uv_run(&other.on->loop, UV_RUN_NOWAIT);
        assert_true(other.on->channels.turn - turn <= 2);
        assert_true(f.channel->bytes_in - before <= 2 * (CHANNEL_TURN_BYTES + 257000 + 100));
    }
    assert_true(f.channel->n_turns_ended > 10);
    channels_tear_down(&f);
    channels_tear_down(&other);
    bytes_deinit(&big);
    bytes_deinit(&small);
}

/* The same with thousands of tiny frames, which one read brings. */
static void a_flood_of_tiny_frames_is_delivered_turn_by_turn(void **state)
{
    enum { N = 4000 };
    struct bytes all = { 0 }, small = channels_beat(1);
    struct channels other, f;

    (void)state;
    channels_set_up(&f, KEEP);
    channels_join(&other, &f, KEEP);
    for (uint64_t i = 0; i < N; i++)
        assert_int_equal(message_write_beat(&all, i, &(struct beat){ .clock = i }), 0);
    assert_int_equal(write(f.peer, bytes_front(&all), bytes_len(&all)), bytes_len(&all));
    assert_int_equal(write(other.peer, bytes_front(&small), bytes_len(&small)),
                     bytes_len(&small));
    for (int seen = 0; f.n_frames < N; seen = f.n_frames) {
        uv_run(&f.on->loop, UV_RUN_NOWAIT);
        assert_true(f.n_frames > seen && f.n_frames - seen <= 600);
        assert_int_equal(other.n_frames, 1);
    }
    assert_true(f.last_beat.clock == N - 1);
    channels_tear_down(&other);
    channels_tear_down(&f);
    bytes_deinit(&all);
    bytes_deinit(&small);
}

/* Small requests with large replies use up a turn by what they send. */
static void replies_count_too(void **state)
{
    struct bytes all = { 0 };
    struct channels f;

    (void)state;
    channels_set_up(&f, REPLY_BIG);
    f.big_bytes = 200000;
    for (uint64_t i = 0; i < 12; i++)
        assert_int_equal(message_write_beat(&all, i, &(struct beat){ .clock = i }), 0);
    assert_int_equal(write(f.peer, bytes_front(&all), bytes_len(&all)), bytes_len(&all));
    uv_run(&f.on->loop, UV_RUN_NOWAIT);
    assert_int_equal(f.n_frames, 3);
    uv_run(&f.on->loop, UV_RUN_NOWAIT);
    assert_int_equal(f.n_frames, 6);
    channels_turn(&f);
    assert_int_equal(f.n_frames, 12);
    channels_tear_down(&f);
    bytes_deinit(&all);
}

static void the_loop_does_not_sleep_while_somebody_waits_nor_spin_when_nobody_does(void **state)
{
    struct bytes all = { 0 };
    struct channels f;
    bool waited = false;

    (void)state;
    channels_set_up(&f, KEEP);
    for (uint64_t i = 0; i < 2000; i++)
        assert_int_equal(message_write_beat(&all, i, &(struct beat){ .clock = i }), 0);
    assert_int_equal(write(f.peer, bytes_front(&all), bytes_len(&all)), bytes_len(&all));
    while (f.n_frames < 2000) {
        uv_run(&f.on->loop, UV_RUN_ONCE);
        if (f.n_frames < 2000) {
            assert_int_equal(uv_backend_timeout(&f.on->loop), 0);
            waited = true;
        }
    }
    assert_true(waited);
    uv_run(&f.on->loop, UV_RUN_NOWAIT);
    assert_true(uv_backend_timeout(&f.on->loop) != 0);
    channels_tear_down(&f);
    bytes_deinit(&all);
}

static void one_that_closes_while_it_waits_leaves_the_line(void **state)
{
    struct channels fs[3];
    struct bytes all = { 0 };

    (void)state;
    for (uint64_t i = 0; i < 2000; i++)
        assert_int_equal(message_write_beat(&all, i, &(struct beat){ .clock = i }), 0);
    channels_set_up(&fs[0], KEEP);
    channels_join(&fs[1], &fs[0], KEEP);
    channels_join(&fs[2], &fs[0], KEEP);
    for (int i = 0; i < 3; i++)
        assert_int_equal(write(fs[i].peer, bytes_front(&all), bytes_len(&all)),
                         bytes_len(&all));
    uv_run(&fs[0].on->loop, UV_RUN_NOWAIT);
    assert_int_equal(fs[0].on->channels.line.n, 3);
    channel_close(fs[1].channel);
    assert_int_equal(fs[0].on->channels.line.n, 2);
    while (fs[0].n_frames < 2000 || fs[2].n_frames < 2000)
        uv_run(&fs[0].on->loop, UV_RUN_NOWAIT);
    assert_true(fs[1].n_frames < 2000);
    for (int i = 2; i >= 0; i--)
        channels_tear_down(&fs[i]);
    bytes_deinit(&all);
}

/* However many they are, what they use of an iteration is bounded, and each has its turn. */
static void channels_of_low_priority_share_a_part_of_each_iteration(void **state)
{
    enum { N_LOW = 200, N_FRAMES = 400 };
    static struct channels low[N_LOW];
    struct bytes all = { 0 }, small = channels_beat(1);
    struct channels other;
    int n = 0, before, most = 0;

    (void)state;
    channels_set_up(&other, KEEP);
    for (uint64_t i = 0; i < N_FRAMES; i++)
        assert_int_equal(message_write_beat(&all, i, &(struct beat){ .clock = i }), 0);
    for (int i = 0; i < N_LOW; i++) {
        channels_join(&low[i], &other, KEEP);
        channel_set_low_priority(low[i].channel, true);
        assert_int_equal(write(low[i].peer, bytes_front(&all), bytes_len(&all)),
                         bytes_len(&all));
    }
    for (int round = 1; n < N_LOW * N_FRAMES; round++) {
        assert_int_equal(write(other.peer, bytes_front(&small), bytes_len(&small)),
                         bytes_len(&small));
        before = n;
        uv_run(&other.on->loop, UV_RUN_NOWAIT);
        assert_int_equal(other.n_frames, round);
        n = 0;
        for (int i = 0; i < N_LOW; i++)
            n += low[i].n_frames;
        most = n - before > most ? n - before : most;
    }
    /* A frame counts as 1 KiB; a turn that has begun is had to its end. */
    assert_in_range(most, 100, 2 * 1024);
    for (int i = N_LOW - 1; i >= 0; i--)
        channels_tear_down(&low[i]);
    channels_tear_down(&other);
    bytes_deinit(&all);
    bytes_deinit(&small);
}

/* What one decompresses holds up those of its kind, in later iterations too, and nobody else. */
static void what_is_unpacked_at_low_priority_is_paid_back(void **state)
{
    struct bytes small = channels_beat(1);
    struct channels other, greedy, low;
    int n_turns = 0;

    (void)state;
    channels_set_up(&other, KEEP);
    channels_join(&greedy, &other, KEEP);
    channels_join(&low, &other, KEEP);
    channel_set_low_priority(greedy.channel, true);
    channel_set_low_priority(low.channel, true);
    channel_use_unpacked(greedy.channel, CHANNEL_LOW_SHARED_BYTES);
    assert_int_equal(other.on->channels.unpacked_bytes, CHANNEL_LOW_SHARED_BYTES);
    assert_int_equal(write(low.peer, bytes_front(&small), bytes_len(&small)),
                     bytes_len(&small));
    assert_int_equal(write(other.peer, bytes_front(&small), bytes_len(&small)),
                     bytes_len(&small));
    for (; !low.n_frames; n_turns++) {
        uv_run(&other.on->loop, UV_RUN_NOWAIT);
        assert_int_equal(other.n_frames, 1);
    }
    assert_in_range(n_turns, 7, 11);
    channels_tear_down(&low);
    channels_tear_down(&greedy);
    channels_tear_down(&other);
    bytes_deinit(&small);
}

/* They begin their turns before it is known what their frames cost: the first one ends the turns of the others. */
static void of_many_that_unpack_much_one_is_served_in_an_iteration(void **state)
{
    enum { N_LOW = 64, N_ROUNDS = 3 };
    static struct channels low[N_LOW];
    struct bytes small = channels_beat(1);
    struct channels other;
    int n = 0, before, round = 0;

    (void)state;
    channels_set_up(&other, KEEP);
    for (int i = 0; i < N_LOW; i++) {
        channels_join(&low[i], &other, UNPACK);
        low[i].big_bytes = 256u << 10;
        channel_set_low_priority(low[i].channel, true);
        for (int k = 0; k < N_ROUNDS; k++)
            assert_int_equal(write(low[i].peer, bytes_front(&small), bytes_len(&small)),
                             bytes_len(&small));
    }
    while (n < N_LOW * N_ROUNDS) {
        assert_int_equal(write(other.peer, bytes_front(&small), bytes_len(&small)),
                         bytes_len(&small));
        before = n;
        uv_run(&other.on->loop, UV_RUN_NOWAIT);
        assert_int_equal(other.n_frames, ++round);
        n = 0;
        for (int i = 0; i < N_LOW; i++)
            n += low[i].n_frames;
        assert_in_range(n - before, 0, 1);
        for (int i = 0; i < N_LOW && n > 5 * N_LOW / 2; i++)
            assert_true(low[i].n_frames > 0); /* and no one is left behind */
    }
    assert_true(round < 4 * N_LOW * N_ROUNDS);
    for (int i = N_LOW - 1; i >= 0; i--)
        channels_tear_down(&low[i]);
    channels_tear_down(&other);
    bytes_deinit(&small);
}

static void a_large_buffer_is_freed_in_parts_while_the_loop_goes_round(void **state)
{
    enum { N_MIB = 16 };
    struct channels f;
    struct bytes b;
    int n_turns = 0;

    (void)state;
    channels_set_up(&f, KEEP);
    assert_int_equal(channel_loop_acquire(&f.on->channels, 1u << 20, &b), 0);
    assert_int_equal(channel_loop_grow(&f.on->channels, &b, (size_t)N_MIB << 20), 0);
    memset(b.bytes, 1, b.cap_bytes);
    channel_loop_release(&f.on->channels, &b);
    assert_null(b.bytes);
    while (f.on->channels.freed) {
        assert_int_equal(uv_backend_timeout(&f.on->loop), 0);
        uv_run(&f.on->loop, UV_RUN_NOWAIT);
        n_turns++;
    }
    assert_in_range(n_turns, N_MIB - 2, N_MIB);
    assert_true(uv_backend_timeout(&f.on->loop) != 0);
    /* Another is under way when the loop ends. */
    assert_int_equal(channel_loop_acquire(&f.on->channels, 1u << 20, &b), 0);
    assert_int_equal(channel_loop_grow(&f.on->channels, &b, (size_t)N_MIB << 20), 0);
    channel_loop_release(&f.on->channels, &b);
    channels_tear_down(&f);
}

/* Each write to such a socket pair is a packet of its own, so that writes can be counted. */
static void the_replies_of_one_delivery_go_out_together(void **state)
{
    enum { N = 100 };
    static uint8_t packet[1 << 16];
    struct bytes all = { 0 };
    struct channels f = { 0 };
    size_t n_bytes = 0, at = 0;
    struct beat beat;
    int n_packets = 0;
    ssize_t n;

    (void)state;
    channels_loop_init(&f.own);
    channels_open(&f, &f.own, SOCK_SEQPACKET, REPLY);
    for (uint64_t i = 0; i < N; i++)
        assert_int_equal(message_write_beat(&all, i, &(struct beat){ .clock = i }), 0);
    channels_write(&f, bytes_front(&all), bytes_len(&all));
    assert_int_equal(f.n_frames, N);
    for (; (n = read(f.peer, packet + n_bytes, sizeof packet - n_bytes)) > 0; n_packets++)
        n_bytes += (size_t)n;
    assert_int_equal(n_packets, 1);
    for (int i = 0; i < N; i++) { /* all of them, each whole */
        struct frame_header header;

        assert_int_equal(frame_decode(packet + at, FRAME_MAX, &header), 0);
        assert_int_equal(frame_verify(packet + at, &header), 0);
        assert_int_equal(message_read_beat(&header, packet + at + FRAME_HEADER_BYTES, &beat),
                         0);
        at += FRAME_HEADER_BYTES + header.head_bytes;
    }
    assert_int_equal(at, n_bytes);
    channels_tear_down(&f);
    bytes_deinit(&all);
}

static void what_is_sent_goes_back_to_the_pool(void **state)
{
    struct channels f;
    uint64_t n_made = 0;

    (void)state;
    channels_set_up(&f, KEEP);
    for (int i = 0; i < 20; i++) {
        struct bytes b = { 0 }, made = channels_big_frame(500000);

        assert_int_equal(channel_loop_acquire(&f.on->channels, bytes_len(&made), &b), 0);
        memcpy(bytes_reserve(&b, bytes_len(&made)), bytes_front(&made), bytes_len(&made));
        bytes_commit(&b, bytes_len(&made));
        bytes_deinit(&made);
        assert_int_equal(channel_send(f.channel, &b), 0);
        for (size_t n = 0; n < 500000 + FRAME_HEADER_BYTES;) {
            n += channels_read(&f);
            channels_turn(&f);
        }
        if (i == 2)
            n_made = f.on->channels.pool.n_made;
    }
    assert_true(f.on->channels.pool.n_made == n_made);
    channels_tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_frame_waits_for_no_more_than_a_turn_of_a_flood),
        cmocka_unit_test(a_flood_of_tiny_frames_is_delivered_turn_by_turn),
        cmocka_unit_test(replies_count_too),
        cmocka_unit_test(
            the_loop_does_not_sleep_while_somebody_waits_nor_spin_when_nobody_does),
        cmocka_unit_test(one_that_closes_while_it_waits_leaves_the_line),
        cmocka_unit_test(channels_of_low_priority_share_a_part_of_each_iteration),
        cmocka_unit_test(what_is_unpacked_at_low_priority_is_paid_back),
        cmocka_unit_test(of_many_that_unpack_much_one_is_served_in_an_iteration),
        cmocka_unit_test(a_large_buffer_is_freed_in_parts_while_the_loop_goes_round),
        cmocka_unit_test(the_replies_of_one_delivery_go_out_together),
        cmocka_unit_test(what_is_sent_goes_back_to_the_pool),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
