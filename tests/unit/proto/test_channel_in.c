/* How bytes become frames: whatever the pieces, whatever the sizes. */
#include "common/hash.h"
#include "common/memory.h"
#include "tests/unit/proto/channels.h"

/* Appends a frame with n_bytes of body made from `dice`: an odd one's sum stands behind it. */
static void add_frame(struct bytes *all, uint64_t dice, size_t n_bytes)
{
    struct frame_header header = { .type = FRAME_PUSH,
                                   .flags = dice % 2 ? FRAME_SUM_BEHIND : 0,
                                   .request_id = dice,
                                   .head_bytes = (uint16_t)(dice % 7),
                                   .body_bytes = (uint32_t)n_bytes };
    size_t whole = FRAME_HEADER_BYTES + header.head_bytes + n_bytes;
    uint8_t *dst = bytes_reserve(all, whole + FRAME_SUM_BYTES),
            *head = dst + FRAME_HEADER_BYTES;
    struct frame_crc crc = { 0 };

    assert_non_null(dst);
    for (size_t i = 0; i + FRAME_HEADER_BYTES < whole; i++)
        head[i] = (uint8_t)(dice >> i % 57);
    frame_encode(dst, &header);
    frame_crc_extend(&crc, dst, whole);
    frame_put_sum(dst + whole, &crc);
    bytes_commit(all, frame_bytes(&header));
}

static void wait_for(struct channels *f, int n_frames)
{
    while (f->n_frames < n_frames && !f->n_closed)
        uv_run(&f->on->loop, UV_RUN_NOWAIT);
    assert_int_equal(f->n_frames, n_frames);
}

static void delivers_frames_that_are_split_at_any_byte(void **state)
{
    struct bytes all = { 0 };
    struct channels f;
    uint32_t crc = 0;

    (void)state;
    add_frame(&all, 5, 100);
    add_frame(&all, 6, 0);
    add_frame(&all, 7, 60);
    channels_set_up(&f, KEEP);
    for (size_t at = 0; at <= bytes_len(&all); at++) {
        f.body_crc = 0;
        if (at)
            channels_write(&f, bytes_front(&all), at);
        if (at < bytes_len(&all))
            channels_write(&f, bytes_front(&all) + at, bytes_len(&all) - at);
        assert_int_equal(f.n_frames, 3 * (at + 1));
        if (at == 0)
            crc = f.body_crc;
        assert_int_equal(f.body_crc, crc);
        assert_false(channel_mid_frame(f.channel));
        assert_null(f.channel->in.buf.bytes);
    }
    channels_tear_down(&f);
    bytes_deinit(&all);
}

/* Frames of all sizes in pieces of all sizes; what comes out is held against what went in. */
static void random_run(uint64_t seed, enum channels_what what)
{
    struct bytes all = { 0 };
    struct channels f;
    uint32_t crc = 0;
    uint64_t n_bytes = 0, dice = 0;
    int n_frames = 0;

    channels_set_up(&f, what);
    for (; n_bytes < 6u << 20; n_frames++) {
        size_t one, at = bytes_len(&all);

        dice = hash_mix2(seed, (uint64_t)n_frames);
        one = (dice >> 8) % ((size_t)1 << (dice % 20));
        add_frame(&all, dice, one);
        crc = crc32c_extend(crc, bytes_front(&all) + at + FRAME_HEADER_BYTES + dice % 7, one);
        n_bytes += one;
    }
    for (size_t at = 0, n; at < bytes_len(&all); at += n) {
        dice = hash_mix2(dice, at);
        n = 1 + (dice >> 8) % ((size_t)1 << (dice % 18));
        n = n < bytes_len(&all) - at ? n : bytes_len(&all) - at;
        channels_write_all(&f, bytes_front(&all) + at, n);
    }
    wait_for(&f, n_frames);
    assert_true(f.body_bytes == n_bytes && f.n_parts > 0);
    assert_int_equal(f.body_crc, crc);
    assert_true(f.channel->bytes_in == bytes_len(&all));
    assert_true(what != TAKE || f.taken.n > 0);
    channels_check_taken(&f.taken);
    bytes_deinit(&f.taken.buffer);
    channels_tear_down(&f);
    bytes_deinit(&all);
}

static void a_random_stream_in_random_pieces_comes_out_as_it_went_in(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        print_message("seed %llu\n", (unsigned long long)seed);
        random_run(seed, KEEP);
        random_run(seed, TAKE);
    }
}

static void a_changed_byte_of_a_large_frame_is_found_however_it_comes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        size_t n_bytes = (size_t)1 << (8 + seed % 12), at;
        struct bytes all = { 0 };
        struct channels f;

        channels_set_up(&f, KEEP);
        add_frame(&all, seed, 10);
        add_frame(&all, seed, n_bytes);
        at = bytes_len(&all) - 1 - hash_mix2(seed, 1) % n_bytes;
        all.bytes[at] ^= (uint8_t)(1 + seed % 255);
        channels_write(&f, bytes_front(&all), hash_mix2(seed, 2) % 200);
        channels_write_all(&f, bytes_front(&all) + hash_mix2(seed, 2) % 200,
                           bytes_len(&all) - hash_mix2(seed, 2) % 200);
        channels_turn(&f);
        channels_tear_down(&f);
        assert_int_equal(f.n_frames, 1);
        assert_int_equal(f.why, PS_ECORRUPT);
        bytes_deinit(&all);
    }
}

static void a_steady_stream_allocates_nothing(void **state)
{
    static const size_t sizes[] = { 20000, 65000, 257000, 900000, 10 };
    struct bytes all = { 0 };
    struct channels f;
    uint64_t n_made = 0;

    (void)state;
    channels_set_up(&f, KEEP);
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (uint64_t k = 0; k < 4; k++)
            add_frame(&all, k, sizes[i]);
    for (int round = 0; round < 10; round++) {
        channels_write_all(&f, bytes_front(&all), bytes_len(&all));
        wait_for(&f, (round + 1) * 4 * (int)COUNT_OF(sizes));
        if (round == 2)
            n_made = f.on->channels.pool.n_made;
    }
    assert_true(f.on->channels.pool.n_made == n_made);
    channels_tear_down(&f);
    bytes_deinit(&all);
}

/* Room for a frame that the header promises, once that much was sent before: in one piece. */
static void a_peer_that_has_sent_large_frames_gets_a_large_buffer_for_the_next(void **state)
{
    struct bytes all = { 0 };
    struct channels f;

    (void)state;
    add_frame(&all, 1, 900000);
    channels_set_up(&f, KEEP);
    channels_write(&f, bytes_front(&all), 100);
    assert_true(f.channel->in.buf.cap_bytes <= 16u << 10);
    channels_write_all(&f, bytes_front(&all) + 100, bytes_len(&all) - 100);
    wait_for(&f, 1);
    channels_write(&f, bytes_front(&all), 100);
    assert_true(f.channel->in.buf.cap_bytes >= bytes_len(&all));
    channels_tear_down(&f);
    bytes_deinit(&all);
}

/* Each step is a copy, or moves pages: they are few, and there is never space for much more than has come. */
static void the_buffer_of_an_unfinished_frame_doubles(void **state)
{
    struct bytes all = { 0 };
    uint64_t n_made = 0;
    struct channels f;

    (void)state;
    add_frame(&all, 1, 1000000);
    for (int low = 0; low < 2; low++) {
        channels_set_up(&f, KEEP);
        channel_set_low_priority(f.channel, low);
        for (size_t at = 0, n; at < bytes_len(&all) - 1; at += n) {
            n = bytes_len(&all) - 1 - at < 5000 ? bytes_len(&all) - 1 - at : 5000;
            channels_write_all(&f, bytes_front(&all) + at, n);
            while (bytes_len(&f.channel->in.buf) < at + n)
                channels_turn(&f);
            assert_true(f.channel->in.buf.cap_bytes <= (at + n) * 5 / 2 + (17u << 10));
        }
        n_made = f.on->channels.pool.n_made;
        assert_in_range(n_made, 5, 10);
        channels_write(&f, bytes_front(&all) + bytes_len(&all) - 1, 1);
        wait_for(&f, 1);
        channels_tear_down(&f);
    }
    bytes_deinit(&all);
}

static void an_unfinished_frame_is_distinguished_from_an_idle_peer(void **state)
{
    struct bytes all = { 0 };
    struct channels f;

    (void)state;
    add_frame(&all, 1, 1000);
    channels_set_up(&f, KEEP);
    assert_false(channel_mid_frame(f.channel));
    channels_write(&f, bytes_front(&all), 1);
    assert_true(channel_mid_frame(f.channel));
    channels_write(&f, bytes_front(&all) + 1, 1000);
    assert_true(channel_mid_frame(f.channel));
    channels_write(&f, bytes_front(&all) + 1001, bytes_len(&all) - 1001);
    assert_false(channel_mid_frame(f.channel));
    channels_tear_down(&f);
    bytes_deinit(&all);
}

#ifdef PS_FAULTS
static void whichever_allocation_fails_the_channel_closes_and_nothing_leaks(void **state)
{
    struct bytes all = { 0 };
    bool done = false;

    (void)state;
    add_frame(&all, 1, 10);
    add_frame(&all, 2, 700000);
    add_frame(&all, 3, 100000);
    for (long k = 0; !done; k++) {
        struct channels f;
        size_t at = 0;
        ssize_t n;

        channels_set_up(&f, KEEP);
        memory_fail_after(k);
        while (!f.n_closed && f.n_frames < 3) {
            n = send(f.peer, bytes_front(&all) + at, bytes_len(&all) - at,
                     MSG_DONTWAIT | MSG_NOSIGNAL);
            at += n > 0 ? (size_t)n : 0;
            channels_turn(&f);
        }
        memory_fail_after(-1);
        done = f.n_frames == 3;
        channels_tear_down(&f);
        assert_true(done || f.why == UV_ENOBUFS || f.why == -ENOMEM);
        assert_true(!done || k > 2); /* something did fail before */
    }
    bytes_deinit(&all);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delivers_frames_that_are_split_at_any_byte),
        cmocka_unit_test(a_random_stream_in_random_pieces_comes_out_as_it_went_in),
        cmocka_unit_test(a_changed_byte_of_a_large_frame_is_found_however_it_comes),
        cmocka_unit_test(a_steady_stream_allocates_nothing),
        cmocka_unit_test(a_peer_that_has_sent_large_frames_gets_a_large_buffer_for_the_next),
        cmocka_unit_test(the_buffer_of_an_unfinished_frame_doubles),
        cmocka_unit_test(an_unfinished_frame_is_distinguished_from_an_idle_peer),
#ifdef PS_FAULTS
        cmocka_unit_test(whichever_allocation_fails_the_channel_closes_and_nothing_leaks),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
