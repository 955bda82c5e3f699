/* Pushes whose values are looked at while they come: what is found is what is there, and what is
 * wrong is still refused. */
#include <math.h>

#include "common/hash.h"
#include "proto/codec_catalog.h"
#include "server/requests/push_handler.h"
#include "serving.h"

enum { N_KEYS = 60000, N_RUNS = 300, ROWS_MAX = 40, DIM_MAX = 9 };

/* --- a body in random pieces, against a count of rows --- */

struct body {
    struct push push;
    struct bytes frame; /* owned */
    uint8_t values[5][ROWS_MAX * DIM_MAX * 4];
    uint32_t n_good[5]; /* rows before the first bad one */
};

static void make_section(struct body *b, uint32_t i, uint64_t seed)
{
    static const uint8_t keys[ROWS_MAX] = { 1 };
    struct section *s = &b->push.sections[i];
    uint32_t dim = 1 + (uint32_t)(hash_mix2(seed, 1) % DIM_MAX);
    uint32_t n = (uint32_t)(hash_mix2(seed, 2) % (ROWS_MAX + 1));

    *s = (struct section){ .codec = hash_mix2(seed, 3) % 4 ? CODEC_FP32 : CODEC_INT8,
                           .n_keys = n,
                           .keys = keys,
                           .key_bytes = n,
                           .values = b->values[i] };
    s->value_bytes = n * codec_by_id((uint32_t)s->codec)->row_bytes(dim, 0);
    b->n_good[i] = n;
    for (size_t at = 0; at < s->value_bytes / 4; at++) {
        float value = n && hash_mix2(seed, 100 + at) % 200 == 0 ? NAN : (float)at;

        memcpy(b->values[i] + at * 4, &value, sizeof value);
        if (isnan(value) && at / dim < b->n_good[i])
            b->n_good[i] = (uint32_t)(at / dim);
    }
}

/* The rows of section i that a look at each of n_bytes finds, if the sections of plain floats before
 * it are good and all there. */
static uint32_t rows_found(const struct push *push, const struct body *b, uint32_t i,
                           const uint8_t *body, size_t n_bytes)
{
    uint32_t n_rows = 0;

    for (uint32_t k = 0; k <= i; k++) {
        const struct section *s = &push->sections[k];
        size_t row_bytes = s->n_keys ? s->value_bytes / s->n_keys : 1;

        if (s->codec != CODEC_FP32 || s->n_keys == 0) {
            n_rows = 0;
            continue;
        }
        n_rows = 0;
        while (n_rows < b->n_good[k] &&
               (size_t)(s->values - body) + (n_rows + 1) * row_bytes <= n_bytes)
            n_rows++;
        if (n_rows < s->n_keys && k < i)
            return 0;
    }
    return n_rows;
}

static void random_run(uint64_t seed)
{
    struct body b = { .push.n_sections = 1 + (uint32_t)(seed % 5) };
    struct push scratch, push;
    struct frame_header header;
    const uint8_t *head, *body;
    size_t n_seen = 0;

    for (uint32_t i = 0; i < b.push.n_sections; i++)
        make_section(&b, i, hash_mix2(seed, i));
    assert_int_equal(message_write_push(&b.frame, 1, &b.push, NULL), 0);
    assert_int_equal(frame_decode(bytes_front(&b.frame), UINT32_MAX, &header), 0);
    head = bytes_front(&b.frame) + FRAME_HEADER_BYTES;
    body = head + header.head_bytes;
    for (size_t n = hash_mix2(seed, 7) % 300; n <= header.body_bytes;
         n += 1 + hash_mix2(seed, n) % 400) {
        n_seen = push_handler_precheck(&scratch, &header, head, body, n, n_seen, CODEC_FINITE);
        assert_int_equal(message_read_push(&header, head, body, header.body_bytes, &push), 0);
        push_handler_set_finite(&push, body, n_seen);
        for (uint32_t i = 0; i < push.n_sections; i++)
            assert_int_equal(push.sections[i].n_finite, rows_found(&push, &b, i, body, n));
    }
    bytes_deinit(&b.frame);
}

static void what_is_found_of_random_pieces_is_what_a_count_of_rows_says(void **state)
{
    (void)state;
    print_message("seeds 1 to %d\n", N_RUNS);
    for (uint64_t seed = 1; seed <= N_RUNS; seed++)
        random_run(seed);
}

static void other_frames_are_not_scanned(void **state)
{
    struct body b = { .push.n_sections = 1 };
    struct frame_header header;
    struct push scratch;
    const uint8_t *head;

    (void)state;
    make_section(&b, 0, 4);
    assert_int_equal(message_write_push(&b.frame, 1, &b.push, NULL), 0);
    assert_int_equal(frame_decode(bytes_front(&b.frame), UINT32_MAX, &header), 0);
    head = bytes_front(&b.frame) + FRAME_HEADER_BYTES;
    assert_true(push_handler_precheck(&scratch, &header, head, head + header.head_bytes,
                                      header.body_bytes, 0, CODEC_FINITE) > 0);
    header.flags = FRAME_ZSTD;
    assert_int_equal(push_handler_precheck(&scratch, &header, head, head + header.head_bytes,
                                           header.body_bytes, 0, CODEC_FINITE),
                     0);
    header.flags = 0;
    header.type = FRAME_PULL_REPLY;
    assert_int_equal(push_handler_precheck(&scratch, &header, head, head + header.head_bytes,
                                           header.body_bytes, 0, CODEC_FINITE),
                     0);
    header.type = FRAME_PUSH;
    header.head_bytes--; /* a head that is cut */
    assert_int_equal(push_handler_precheck(&scratch, &header, head, head + header.head_bytes,
                                           header.body_bytes, 0, CODEC_FINITE),
                     0);
    bytes_deinit(&b.frame);
}

/* --- over a connection --- */

static uint64_t keys[N_KEYS];
static uint8_t key_bytes[(size_t)N_KEYS * KEY_CODEC_BYTES_MAX];
static float gradient[N_KEYS * DIM];

static struct push_reply push_all(struct peer *p, uint64_t seq)
{
    struct push push = { .seq = seq, .clock = seq - 1, .n_samples = 1, .n_sections = 1 };
    struct push_reply reply;
    struct bytes frame = { 0 };

    for (uint32_t i = 0; i < N_KEYS; i++)
        keys[i] = i;
    push.sections[0] = (struct section){ .n_keys = N_KEYS,
                                         .keys = key_bytes,
                                         .key_bytes = key_codec_encode(keys, N_KEYS, key_bytes),
                                         .values = (const uint8_t *)gradient,
                                         .value_bytes = sizeof gradient };
    assert_int_equal(message_write_push(&frame, 100 + seq, &push, NULL), 0);
    peer_send(p, &frame);
    assert_true(peer_receive(p));
    assert_int_equal(message_read_push_reply(&p->header, p->head, &reply), 0);
    return reply;
}

static void a_nan_is_found_wherever_in_a_large_push_it_stands(void **state)
{
    static const uint32_t rows[] = { 0, 1, 4000, N_KEYS / 2, N_KEYS - 2, N_KEYS - 1 };
    struct fixture f;
    struct peer p;
    uint64_t seq = 0;

    (void)state;
    set_up(&f);
    p = client(&f, "worker");
    assert_int_equal(ask_table(&p, "t"), 0);
    assert_int_equal(join_job(&p, 0, 1).status, 0);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char key[32];
        struct push_reply reply;

        gradient[rows[i] * DIM + i % DIM] = i % 2 ? NAN : -INFINITY;
        reply = push_all(&p, ++seq);
        gradient[rows[i] * DIM + i % DIM] = 0;
        snprintf(key, sizeof key, "key %u holds NaN", rows[i]);
        assert_int_equal(reply.status, PS_ENAN);
        assert_non_null(strstr(reply.text, key));
        assert_int_equal(push_all(&p, ++seq).status, 0);
    }
    peer_close(&p);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_found_of_random_pieces_is_what_a_count_of_rows_says),
        cmocka_unit_test(other_frames_are_not_scanned),
        cmocka_unit_test(a_nan_is_found_wherever_in_a_large_push_it_stands),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
