/* Frames that leave in parts: what they are at the other end, and what is sent meanwhile. */
#include "common/memory.h"
#include "proto/channel_out.h"
#include "tests/unit/proto/channels.h"

enum { N_PARTS = 5, PART_BYTES = 300000, BODY_BYTES = N_PARTS * PART_BYTES };

/* A frame that is sent in N_PARTS, the header in the first. */
struct chunks {
    struct frame_crc crc;
    uint32_t body_crc;
    int n_sent;
};

static uint8_t byte_at(int part, size_t i)
{
    return (uint8_t)(i * 31 + (size_t)part * 7 + (i >> 11));
}

static struct bytes next_part(struct chunks *p)
{
    const struct frame_header header = { .type = FRAME_PULL_REPLY,
                                         .flags = FRAME_SUM_BEHIND,
                                         .body_bytes = BODY_BYTES,
                                         .request_id = 3 };
    struct bytes b = { 0 };
    uint8_t *dst = bytes_reserve(&b, FRAME_HEADER_BYTES + PART_BYTES + FRAME_SUM_BYTES);

    assert_non_null(dst);
    if (!p->n_sent) {
        frame_encode(dst, &header);
        frame_crc_extend(&p->crc, dst, FRAME_HEADER_BYTES);
        bytes_commit(&b, FRAME_HEADER_BYTES);
        dst += FRAME_HEADER_BYTES;
    }
    for (size_t i = 0; i < PART_BYTES; i++)
        dst[i] = byte_at(p->n_sent, i);
    frame_crc_follow(&p->crc, dst, PART_BYTES);
    p->body_crc = crc32c_extend(p->body_crc, dst, PART_BYTES);
    bytes_commit(&b, PART_BYTES);
    if (++p->n_sent == N_PARTS) {
        frame_put_sum(dst + PART_BYTES, &p->crc);
        bytes_commit(&b, FRAME_SUM_BYTES);
    }
    return b;
}

static int send_next(struct channels *f, struct chunks *p)
{
    struct bytes b = next_part(p);
    int status = p->n_sent == N_PARTS ? channel_send_last_chunk(f->channel, &b)
                                      : channel_send_chunk(f->channel, &b);

    assert_null(b.bytes);
    return status;
}

/* Two channels that face each other. */
struct pair {
    struct channels from, to;
};

static void set_up(struct pair *p)
{
    uv_os_sock_t ends[2];

    *p = (struct pair){ 0 };
    channels_loop_init(&p->from.own);
    assert_int_equal(uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, UV_NONBLOCK_PIPE),
                     0);
    channels_open_on(&p->from, &p->from.own, (uv_os_sock_t[]){ ends[0], -1 }, KEEP);
    channels_open_on(&p->to, &p->from.own, (uv_os_sock_t[]){ ends[1], -1 }, KEEP);
    p->to.channel->frame_max_bytes = 2 * BODY_BYTES;
}

static void tear_down(struct pair *p)
{
    if (p->to.channel)
        channel_close(p->to.channel);
    while (!p->from.n_closed || !p->to.n_closed)
        uv_run(&p->from.own.loop, UV_RUN_ONCE);
    channels_loop_deinit(&p->from.own);
}

static void wait_for(struct pair *p, int n_frames)
{
    while (p->to.n_frames < n_frames && !p->to.n_closed)
        uv_run(&p->from.own.loop, UV_RUN_NOWAIT);
    assert_int_equal(p->to.n_frames, n_frames);
}

static void what_leaves_in_parts_comes_as_one_frame(void **state)
{
    struct chunks chunks = { 0 };
    struct pair p;

    (void)state;
    set_up(&p);
    channels_reply(&p.from, 0);
    while (chunks.n_sent < N_PARTS)
        assert_int_equal(send_next(&p.from, &chunks), 0);
    channels_reply(&p.from, 0);
    wait_for(&p, 3);
    assert_true(p.to.body_bytes == BODY_BYTES);
    assert_int_equal(p.to.body_crc, chunks.body_crc);
    assert_true(p.from.channel->bytes_out == p.to.channel->bytes_in);
    tear_down(&p);
    assert_int_equal(p.to.why, 0);
}

/* Small ones and large ones, after each of the parts. */
static void frames_sent_meanwhile_come_behind_it_in_their_order(void **state)
{
    struct chunks chunks = { 0 };
    struct pair p;

    (void)state;
    set_up(&p);
    for (uint64_t i = 1; chunks.n_sent < N_PARTS; i++) {
        struct bytes beat = channels_beat(i);

        assert_int_equal(send_next(&p.from, &chunks), 0);
        assert_int_equal(channel_send(p.from.channel, &beat), 0);
        if (i % 2)
            channels_reply(&p.from, 5000);
    }
    wait_for(&p, 1);
    assert_true(p.to.body_bytes >=
                BODY_BYTES); /* the first one, as those behind it have less */
    wait_for(&p, 1 + N_PARTS + (N_PARTS + 1) / 2);
    assert_int_equal(p.to.last_beat.clock, N_PARTS);
    assert_int_equal(channel_unsent_bytes(p.from.channel), 0);
    assert_null(p.from.channel->out.chunks.frames);
    tear_down(&p);
    assert_int_equal(p.to.why, 0);
}

static void what_waits_for_the_last_part_counts_as_unsent(void **state)
{
    struct chunks chunks = { 0 };
    struct channels f;
    size_t leaving;

    (void)state;
    channels_set_up(&f, KEEP);
    assert_int_equal(send_next(&f, &chunks), 0);
    leaving = channel_leaving_bytes(f.channel);
    while (f.channel->state == CHANNEL_OPEN)
        channels_reply(&f, 900000);
    assert_int_equal(f.channel->state, CHANNEL_CONGESTED);
    assert_int_equal(channel_leaving_bytes(f.channel), leaving);
    while (channel_leaving_bytes(f.channel)) {
        (void)channels_read(&f);
        channels_turn(&f);
    }
    assert_int_equal(f.channel->state, CHANNEL_CONGESTED); /* it cannot drain before the end */
    while (chunks.n_sent < N_PARTS)
        assert_int_equal(send_next(&f, &chunks), 0);
    while (channel_unsent_bytes(f.channel)) {
        (void)channels_read(&f);
        channels_turn(&f);
    }
    assert_int_equal(f.channel->state, CHANNEL_OPEN);
    channels_tear_down(&f);
}

/* So many bytes in a buffer for cap_bytes. */
static void reply_in(struct channels *f, size_t n_bytes, size_t cap_bytes)
{
    struct bytes frame = n_bytes ? channels_big_frame(n_bytes) : channels_beat(7), b;

    assert_int_equal(channel_loop_acquire(f->channel->channels, cap_bytes, &b), 0);
    memcpy(b.bytes, bytes_front(&frame), bytes_len(&frame));
    bytes_commit(&b, bytes_len(&frame));
    bytes_deinit(&frame);
    assert_int_equal(channel_send(f->channel, &b), 0);
}

static void read_all(struct channels *f)
{
    while (channel_unsent_bytes(f->channel)) {
        (void)channels_read(f);
        channels_turn(f);
    }
    assert_true(f->channel->held_bytes == f->channel->in.buf.cap_bytes);
    assert_true(f->channel->out.held_bytes == 0);
}

static void a_frame_that_stays_moves_from_a_buffer_that_is_far_too_large(void **state)
{
    struct channels f;
    size_t before;

    (void)state;
    channels_set_up(&f, KEEP);
    while (!channel_unsent_bytes(f.channel))
        channels_reply(&f, 100000);
    before = f.channel->held_bytes;
    assert_true(before >= channel_unsent_bytes(f.channel));
    for (int i = 0; i < 20; i++)
        reply_in(&f, 0, 4 << 20);
    for (int i = 0; i < 20; i++)
        reply_in(&f, 5000, 1 << 20);
    assert_int_equal(f.channel->state, CHANNEL_OPEN);
    assert_in_range(f.channel->held_bytes, before + 20 * 5000, before + 20 * 10000 + 40 * 2000);
    read_all(&f);
    channels_tear_down(&f);
}

static void what_is_unsent_counts_as_its_buffers_and_not_as_what_is_in_them(void **state)
{
    struct channels f;
    size_t before;

    (void)state;
    channels_set_up(&f, KEEP);
    while (!channel_unsent_bytes(f.channel))
        reply_in(&f, 100000, 250000);
    before = f.channel->held_bytes;
    for (size_t n = 1; f.channel->state == CHANNEL_OPEN; n++) {
        reply_in(&f, 100000, 250000);
        assert_true(f.channel->held_bytes >= before + n * 250000);
    }
    assert_true(channel_unsent_bytes(f.channel) < 4 << 20);
    assert_true(f.channel->held_bytes < 10 << 20);
    read_all(&f);
    assert_int_equal(f.channel->state, CHANNEL_OPEN);
    channels_tear_down(&f);
}

static void a_channel_may_close_in_the_middle(void **state)
{
    (void)state;
    for (int n = 1; n < N_PARTS; n++) {
        struct chunks chunks = { 0 };
        struct pair p;

        set_up(&p);
        while (chunks.n_sent < n)
            assert_int_equal(send_next(&p.from, &chunks), 0);
        channels_reply(&p.from, 0);
        channel_fail(p.from.channel, PS_ESTOPPING);
        assert_int_equal(send_next(&p.from, &chunks), UV_ECANCELED);
        while (!p.to.n_closed)
            uv_run(&p.from.own.loop, UV_RUN_ONCE);
        assert_int_equal(p.to.n_frames, 0); /* nothing that looks like a frame */
        assert_int_equal(p.to.why, UV_EOF);
        tear_down(&p);
        assert_int_equal(p.from.why, PS_ESTOPPING);
    }
}

/* Of a frame with its sum behind it: the beginning alone. Damaged, it is found before the body comes. */
static void a_damaged_length_is_found_before_the_body(void **state)
{
    struct chunks chunks = { 0 };
    struct bytes b = next_part(&chunks);

    (void)state;
    for (size_t i = 8; i < 10; i++) {
        struct channels f;

        channels_set_up(&f, KEEP);
        f.channel->frame_max_bytes = 2 * BODY_BYTES;
        b.bytes[i] ^= 1;
        channels_write(&f, bytes_front(&b), FRAME_HEADER_BYTES);
        b.bytes[i] ^= 1;
        channels_tear_down(&f);
        assert_int_equal(f.why, PS_ECORRUPT);
    }
    bytes_deinit(&b);
}

#ifdef PS_FAULTS
static void whichever_allocation_fails_what_waits_is_sent_or_the_channel_ends(void **state)
{
    int n_failed = 0;

    (void)state;
    for (int k = 0; k <= 20; k++) {
        struct chunks chunks = { 0 };
        struct channels f;
        int status = 0;

        channels_set_up(&f, KEEP);
        assert_int_equal(send_next(&f, &chunks), 0);
        for (uint64_t i = 0; i < 20 && !status; i++) {
            struct bytes beat = channels_beat(i);

            memory_fail_after(i == (uint64_t)k ? 0 : -1);
            status = channel_send(f.channel, &beat);
            memory_fail_after(-1);
            assert_null(beat.bytes);
        }
        n_failed += status != 0;
        channels_tear_down(&f);
        assert_true((f.why == -ENOMEM) == (status != 0));
    }
    assert_in_range(n_failed, 2, 6); /* each time that the list grew */
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_leaves_in_parts_comes_as_one_frame),
        cmocka_unit_test(frames_sent_meanwhile_come_behind_it_in_their_order),
        cmocka_unit_test(what_waits_for_the_last_part_counts_as_unsent),
        cmocka_unit_test(a_frame_that_stays_moves_from_a_buffer_that_is_far_too_large),
        cmocka_unit_test(what_is_unsent_counts_as_its_buffers_and_not_as_what_is_in_them),
        cmocka_unit_test(a_channel_may_close_in_the_middle),
        cmocka_unit_test(a_damaged_length_is_found_before_the_body),
#ifdef PS_FAULTS
        cmocka_unit_test(whichever_allocation_fails_what_waits_is_sent_or_the_channel_ends),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
