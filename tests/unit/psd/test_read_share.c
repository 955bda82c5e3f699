/* Readers beside training: however much is pushed, a read waits for a bounded part of it; and reads leave pushes theirs.
 * What is counted is rows and iterations. */
#include "server/core/shard_internal.h"
#include "serving.h"

enum {
    N_WORKERS = 8,
    N_PUSHES = 6, /* of each worker, which its socket holds */
    N_KEYS = 1000,
    PUSH_COST = N_KEYS * SHARD_KEY_COST,
    /* Frames of an iteration, and the one that is over it; a slice. The reader's request may just have missed a look. */
    PUSHED_MAX = 2 * (CHANNEL_SHARED_BYTES + PUSH_COST + SHARD_SMALL_SLICE_BYTES)
};

static uint64_t keys[N_KEYS];
static uint8_t key_bytes[(size_t)N_KEYS * KEY_CODEC_BYTES_MAX];
static float gradient[N_KEYS * DIM];

static struct section section_of(uint32_t n_keys)
{
    for (uint32_t i = 0; i < n_keys; i++)
        keys[i] = i;
    return (struct section){ .n_keys = n_keys,
                             .keys = key_bytes,
                             .key_bytes = key_codec_encode(keys, n_keys, key_bytes) };
}

static void ask_push(struct peer *p, uint64_t seq)
{
    struct push push = {
        .seq = seq, .clock = seq - 1, .n_samples = 1, .tick = true, .n_sections = 1
    };
    struct bytes frame = { 0 };

    push.sections[0] = section_of(N_KEYS);
    push.sections[0].values = (const uint8_t *)gradient;
    push.sections[0].value_bytes = sizeof gradient;
    assert_int_equal(message_write_push(&frame, 100 + seq, &push, NULL), 0);
    peer_send(p, &frame);
}

static void ask_pull(struct peer *p, uint64_t request_id, uint32_t n_keys)
{
    struct pull pull = { .n_sections = 1, .sections = { section_of(n_keys) } };
    struct bytes frame = { 0 };

    assert_int_equal(message_write_pull(&frame, request_id, &pull, NULL), 0);
    peer_send(p, &frame);
}

static struct peer async_worker(struct fixture *f, uint32_t rank)
{
    struct join asked = { .job = "many",
                          .rank = rank,
                          .n_workers = N_WORKERS,
                          .incarnation = 1,
                          .mode = TABLE_SPEC_MODE_ASYNC,
                          .name = "client" };
    struct peer p = client(f, "worker");
    struct bytes frame = { 0 };

    assert_int_equal(message_write_join(&frame, 3, &asked), 0);
    peer_send(&p, &frame);
    assert_int_equal(hear_join(&p).status, 0);
    return p;
}

struct party {
    struct fixture f;
    struct peer p[N_WORKERS];
};

static void gather(struct party *all)
{
    set_up(&all->f);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        all->p[i] = async_worker(&all->f, i);
    (void)ask_table(&all->p[0], "t");
}

static void disperse(struct party *all)
{
    for (uint32_t i = 0; i < N_WORKERS; i++)
        peer_close(&all->p[i]);
    tear_down(&all->f);
}

static bool has_heard(const struct peer *p)
{
    uint8_t byte;

    return recv(p->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* All at once, and nobody turns the loop meanwhile. */
static void push_all(struct party *all)
{
    uint64_t turn = all->f.channels.turn;

    for (uint32_t i = 0; i < N_WORKERS; i++)
        for (uint64_t seq = 1; seq <= N_PUSHES; seq++)
            ask_push(&all->p[i], seq);
    assert_int_equal(all->f.channels.turn, turn);
}

static void hear_all(struct party *all)
{
    for (uint32_t i = 0; i < N_WORKERS; i++)
        for (uint64_t seq = 1; seq <= N_PUSHES; seq++)
            assert_int_equal(hear_push(&all->p[i], seq).status, 0);
}

static uint64_t n_pushed(struct party *all)
{
    enter_shard();
    return shard_counters(all->f.shard)->rows_pushed;
}

static void turn(struct party *all)
{
    enter_shard();
    uv_run(&all->f.loop, UV_RUN_NOWAIT);
}

/* The reader's request is the last that comes. */
static void a_read_waits_for_a_bounded_part_of_what_is_pushed(void **state)
{
    const uint64_t n_all = (uint64_t)N_WORKERS * N_PUSHES * N_KEYS;
    struct peer reader;
    struct party all;
    int n_reads = 0;

    (void)state;
    gather(&all);
    reader = client(&all.f, "reader");
    push_all(&all);
    while (n_pushed(&all) < n_all) {
        uint64_t before = n_pushed(&all);

        ask_pull(&reader, 60, 10);
        while (!has_heard(&reader))
            turn(&all);
        assert_int_equal(hear_pull(&reader, 60).status, 0);
        assert_in_range((n_pushed(&all) - before) * SHARD_KEY_COST, 0, PUSHED_MAX);
        n_reads++;
    }
    assert_in_range(n_reads, n_all * SHARD_KEY_COST / PUSHED_MAX, n_all);
    hear_all(&all);
    peer_close(&reader);
    disperse(&all);
}

/* No worker waits until another one has done all that it has to do. */
static void workers_take_turns_in_what_readers_leave_them(void **state)
{
    struct peer reader;
    struct party all;

    (void)state;
    gather(&all);
    reader = client(&all.f, "reader");
    push_all(&all);
    while (n_pushed(&all) < (uint64_t)2 * N_WORKERS * N_KEYS)
        turn(&all);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        assert_int_equal(hear_push(&all.p[i], 1).status, 0);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        for (uint64_t seq = 2; seq <= N_PUSHES; seq++)
            assert_int_equal(hear_push(&all.p[i], seq).status, 0);
    peer_close(&reader);
    disperse(&all);
}

static void without_a_reader_an_iteration_takes_all_that_has_come(void **state)
{
    struct peer reader;
    struct party all;

    (void)state;
    gather(&all);
    reader = client(&all.f, "reader");
    peer_close(&reader); /* one that has gone counts no more */
    while (all.f.channels.n_low)
        turn(&all);
    push_all(&all);
    turn(&all);
    assert_int_equal(n_pushed(&all), (uint64_t)N_WORKERS * N_PUSHES * N_KEYS);
    hear_all(&all);
    disperse(&all);
}

/* When the log has room again, what waited for it does not come all at once; and the next pushes of those that are
 * answered first do not get ahead of the others. */
static void pushes_that_waited_for_the_log_go_on_a_slice_at_a_time(void **state)
{
    const uint64_t slice_max = SHARD_SMALL_SLICE_BYTES + PUSH_COST;
    uint64_t n_before = 0;
    struct peer reader;
    struct party all;

    (void)state;
    gather(&all);
    reader = client(&all.f, "reader");
    all.f.replies.is_full = true;
    push_all(&all);
    for (uint32_t i = 0; i < 20; i++)
        turn(&all);
    assert_int_equal(n_pushed(&all), 0);
    all.f.replies.is_full = false;
    enter_shard();
    dispatch_resume(all.f.dispatch);
    while (n_pushed(&all) < (uint64_t)N_WORKERS * N_KEYS) {
        turn(&all);
        assert_in_range((n_pushed(&all) - n_before) * SHARD_KEY_COST, 1, slice_max);
        n_before = n_pushed(&all);
    }
    for (uint32_t i = 0; i < N_WORKERS; i++)
        assert_int_equal(hear_push(&all.p[i], 1).status, 0);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        for (uint64_t seq = 2; seq <= N_PUSHES; seq++)
            assert_int_equal(hear_push(&all.p[i], seq).status, 0);
    assert_int_equal(n_pushed(&all), (uint64_t)N_WORKERS * N_PUSHES * N_KEYS);
    peer_close(&reader);
    disperse(&all);
}

/* Readers that ask for more than there is leave pushes about half of it. */
static void reads_leave_pushes_their_share(void **state)
{
    enum { N_READERS = 24, N_PULLS = 20 };
    const uint64_t n_all = (uint64_t)N_WORKERS * N_PUSHES * N_KEYS;
    struct peer readers[N_READERS];
    struct party all;
    uint64_t n_pulled;

    (void)state;
    gather(&all);
    for (uint32_t i = 0; i < N_READERS; i++)
        readers[i] = client(&all.f, "reader");
    for (uint32_t i = 0; i < N_READERS; i++)
        for (uint64_t n = 0; n < N_PULLS; n++)
            ask_pull(&readers[i], 60 + n, N_KEYS);
    push_all(&all);
    n_pulled = shard_counters(all.f.shard)->rows_pulled;
    while (n_pushed(&all) < n_all)
        turn(&all);
    n_pulled = shard_counters(all.f.shard)->rows_pulled - n_pulled;
    assert_in_range(n_pulled, n_all / 4, 2 * n_all);
    hear_all(&all);
    for (uint32_t i = 0; i < N_READERS; i++)
        for (uint64_t n = 0; n < N_PULLS; n++)
            assert_int_equal(hear_pull(&readers[i], 60 + n).status, 0);
    for (uint32_t i = 0; i < N_READERS; i++)
        peer_close(&readers[i]);
    disperse(&all);
}

/* A reader's requests are counted with how long they waited; a worker's are not. */
static void the_waits_of_reads_are_counted(void **state)
{
    struct histogram *waits;
    struct peer reader;
    struct party all;
    uint64_t n;

    (void)state;
    gather(&all);
    reader = client(&all.f, "reader");
    waits = &all.f.connections.read_wait_ns;
    n = waits->n;
    ask_push(&all.p[0], 1);
    assert_int_equal(hear_push(&all.p[0], 1).status, 0);
    assert_int_equal(waits->n, n);
    turn(&all);
    ask_pull(&reader, 60, 10);
    /* A look at the sockets as long ago as that: the request may have come just after it. */
    all.f.channels.polled_ns[0] = uv_hrtime() - UINT64_C(5000000000);
    turn(&all);
    assert_int_equal(hear_pull(&reader, 60).status, 0);
    assert_int_equal(waits->n, n + 1);
    assert_true(waits->max >= UINT64_C(5000000000));
    peer_close(&reader);
    disperse(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_waits_for_a_bounded_part_of_what_is_pushed),
        cmocka_unit_test(workers_take_turns_in_what_readers_leave_them),
        cmocka_unit_test(pushes_that_waited_for_the_log_go_on_a_slice_at_a_time),
        cmocka_unit_test(without_a_reader_an_iteration_takes_all_that_has_come),
        cmocka_unit_test(reads_leave_pushes_their_share),
        cmocka_unit_test(the_waits_of_reads_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
