/* Requests of more than a slice: others are answered meanwhile, and what they change does not
 * depend on it. */
#include <errno.h>

#include "server/core/shard_internal.h"
#include "serving.h"

enum { N_KEYS = 40000 }; /* ten slices and more */

static uint64_t keys[N_KEYS];
static uint8_t key_bytes[(size_t)N_KEYS * KEY_CODEC_BYTES_MAX];
static float gradient[N_KEYS * DIM];
static struct message_zstd zstd;

static struct section section_of(uint32_t n_keys)
{
    for (uint32_t i = 0; i < n_keys; i++)
        keys[i] = i;
    return (struct section){ .n_keys = n_keys,
                             .keys = key_bytes,
                             .key_bytes = key_codec_encode(keys, n_keys, key_bytes) };
}

static void ask_push(struct peer *p, uint64_t seq, uint32_t n_keys, bool compress)
{
    struct push push = {
        .seq = seq, .clock = seq - 1, .n_samples = 1, .tick = true, .n_sections = 1
    };
    struct bytes frame = { 0 };

    for (uint32_t i = 0; i < n_keys * DIM; i++)
        gradient[i] = 1;
    push.sections[0] = section_of(n_keys);
    push.sections[0].values = (const uint8_t *)gradient;
    push.sections[0].value_bytes = n_keys * DIM * sizeof *gradient;
    assert_int_equal(message_write_push(&frame, 100 + seq, &push, compress ? &zstd : NULL), 0);
    peer_send(p, &frame);
}

static void ask_pull(struct peer *p, uint64_t request_id, uint64_t clock, uint32_t n_keys)
{
    struct pull pull = { .clock = clock, .n_sections = 1, .sections = { section_of(n_keys) } };
    struct bytes frame = { 0 };

    assert_int_equal(message_write_pull(&frame, request_id, &pull, NULL), 0);
    peer_send(p, &frame);
}

/* Has anything come for this peer? */
static bool has_heard(const struct peer *p)
{
    uint8_t byte;

    return recv(p->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static void wait_until_held(struct peer *p, const struct fixture *f, uint32_t n_held)
{
    uint32_t n;

    do {
        n = 0;
        peer_turn(p);
        for (const struct connection *c = f->connections.first; c; c = c->next)
            n += c->channel.held;
    } while (n < n_held);
}

/* Two workers in lock step, and a reader. */
struct party {
    struct fixture f;
    struct peer p[2], reader;
};

static void gather(struct party *all)
{
    set_up(&all->f);
    for (uint32_t i = 0; i < 2; i++)
        all->p[i] = worker_of(&all->f, i);
    (void)ask_table(&all->p[0], "t");
    all->reader = client(&all->f, "reader");
}

static void disperse(struct party *all)
{
    for (uint32_t i = 0; i < 2; i++)
        peer_close(&all->p[i]);
    peer_close(&all->reader);
    tear_down(&all->f);
}

static uint64_t n_rows(struct fixture *f)
{
    enter_shard();
    return table_n_rows(shard_table(f->shard, 0)->rows);
}

static void a_small_request_passes_a_large_push(void **state)
{
    struct party all;

    (void)state;
    gather(&all);
    ask_push(&all.p[0], 1, N_KEYS, false);
    wait_until_held(&all.p[0], &all.f, 1);
    ask_pull(&all.reader, 60, 0, 10);
    assert_int_equal(hear_pull(&all.reader, 60).status, 0);
    assert_false(has_heard(&all.p[0]));
    assert_int_equal(all.f.shard->large.push->seq, 1); /* still under way */
    assert_int_equal(hear_push(&all.p[0], 1).status, 0);
    assert_int_equal(n_rows(&all.f), 0); /* lock step: it waits for the other worker */
    ask_push(&all.p[1], 1, 1, false);
    assert_int_equal(hear_push(&all.p[1], 1).status, 0);
    assert_int_equal(n_rows(&all.f), N_KEYS);
    disperse(&all);
}

static void a_small_request_passes_a_large_pull(void **state)
{
    struct pull_reply reply;
    struct fixture f;
    struct peer worker, reader, other;

    (void)state;
    set_up(&f);
    worker = client(&f, "worker");
    reader = client(&f, "reader");
    other = client(&f, "reader");
    ask_table(&worker, "t");
    ask_pull(&reader, 60, 0, N_KEYS);
    ask_pull(&reader, 61, 0, 1); /* behind it on its own connection: waits */
    wait_until_held(&reader, &f, 1);
    ask_pull(&other, 62, 0, 10);
    assert_int_equal(hear_pull(&other, 62).status, 0);
    assert_false(has_heard(&reader));
    reply = hear_pull(&reader, 60);
    assert_int_equal(reply.status, 0);
    assert_int_equal(reply.sections[0].value_bytes, N_KEYS * DIM * sizeof(float));
    assert_int_equal(hear_pull(&reader, 61).status, 0);
    peer_close(&worker);
    peer_close(&reader);
    peer_close(&other);
    tear_down(&f);
}

/* A pull of a reader, whose keys compress well; of the last one comes what is added to the key before it. */
static void ask_packed_pull(struct peer *p, uint32_t n_keys, uint8_t last)
{
    uint8_t *bytes = memory_alloc(n_keys);
    struct pull pull = { .n_sections = 1,
                         .sections = {
                             { .n_keys = n_keys, .keys = bytes, .key_bytes = n_keys } } };
    struct bytes frame = { 0 };

    memset(bytes, 1, n_keys);
    bytes[n_keys - 1] = last;
    assert_int_equal(message_write_pull(&frame, 60, &pull, &zstd), 0);
    assert_true(bytes_len(&frame) < 4096);
    free(bytes);
    peer_send(p, &frame);
}

enum { N_PACKED = 1 << 20 };

/* One iteration of the loop: how much of any body is unpacked in it, and of how many bodies there is memory. */
static void turn_and_check(struct fixture *f)
{
    uint64_t before = f->channels.unpacked_bytes;
    uint32_t n = 0;

    enter_shard();
    uv_run(&f->loop, UV_RUN_NOWAIT);
    assert_true(f->channels.unpacked_bytes - before <= CONNECTION_UNPACK_BYTES + (128u << 10));
    for (struct connection *c = f->connections.first; c; c = c->next) {
        n += c->unpacked.bytes != NULL;
        assert_true(c->channel.held_bytes >= c->unpacked.cap_bytes);
    }
    assert_in_range(n, 0, 1);
}

static void long_keys_of_readers_are_unpacked_in_slices_one_pull_after_the_other(void **state)
{
    enum { N = 4 };
    struct peer worker, p[N];
    struct fixture f;

    (void)state;
    set_up(&f);
    worker = client(&f, "worker");
    (void)ask_table(&worker, "t");
    for (size_t i = 0; i < N; i++) {
        p[i] = client(&f, "reader");
        ask_packed_pull(&p[i], N_PACKED, i == 1 ? 0 : 1);
    }
    while (!has_heard(&p[N - 1]))
        turn_and_check(&f);
    assert_true(f.channels.unpacked_bytes == (uint64_t)N * N_PACKED);
    for (size_t i = 0; i < N; i++) {
        struct pull_reply reply = hear_pull(&p[i], 60);

        assert_int_equal(reply.status, i == 1 ? PS_EORDER : 0);
        if (!reply.status)
            assert_int_equal(reply.sections[0].value_bytes, N_PACKED * DIM * sizeof(float));
    }
    assert_int_equal(join_job(&worker, 0, 1).status, 0);
    ask_packed_pull(&worker, N_PACKED, 1); /* of a worker: at once */
    assert_int_equal(hear_pull(&worker, 60).status, 0);
    for (size_t i = 0; i < N; i++)
        peer_close(&p[i]);
    peer_close(&worker);
    tear_down(&f);
}

/* While they are unpacked, and while they wait for that. */
static void a_reader_that_goes_leaves_the_others_their_turn(void **state)
{
    enum { N = 4 };
    struct peer worker, p[N];
    struct fixture f;

    (void)state;
    set_up(&f);
    worker = client(&f, "worker");
    (void)ask_table(&worker, "t");
    for (size_t i = 0; i < N; i++) {
        p[i] = client(&f, "reader");
        ask_packed_pull(&p[i], N_PACKED, 1);
        wait_until_held(&p[i], &f, (uint32_t)i + 1);
    }
    enter_shard();
    connection_fail(f.connections.first, -ECONNRESET); /* the last one waits */
    for (struct connection *c = f.connections.first; c; c = c->next)
        if (c->unpacked.bytes)
            connection_fail(c, -ECONNRESET);
    for (bool heard = false; !heard;) {
        turn_and_check(&f);
        heard = true;
        for (const struct connection *c = f.connections.first; c; c = c->next)
            heard = heard && !c->channel.held;
    }
    for (size_t i = 0; i < N; i++)
        peer_close(&p[i]);
    peer_close(&worker);
    tear_down(&f);
}

/* The third is compressed: its body is unpacked, and goes with it. */
static void large_pushes_come_one_after_the_other(void **state)
{
    static const float after[DIM] = { -1, -1, -1, -1 };
    struct pull_reply reply;
    struct party all;

    (void)state;
    gather(&all);
    for (uint64_t seq = 1; seq <= 2; seq++) {
        for (size_t i = 0; i < 2; i++)
            ask_push(&all.p[i], seq, N_KEYS, seq == 2 && i == 1);
        wait_until_held(&all.p[0], &all.f, 2);
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(hear_push(&all.p[i], seq).status, 0);
        assert_int_equal(shard_table(all.f.shard, 0)->n_pushes, seq);
    }
    ask_pull(&all.reader, 60, 0, N_KEYS);
    reply = hear_pull(&all.reader, 60);
    assert_int_equal(reply.status, 0);
    for (uint32_t i = 0; i < DIM; i++) {
        float value;

        memcpy(&value, reply.sections[0].values + i * sizeof value, sizeof value);
        assert_true(value == 2 * after[i]);
    }
    disperse(&all);
}

/* Of the pushes of two connections that close one is under way, and committed; the other's is not,
 * and its worker may send it again. */
static void a_push_whose_connection_closes_is_committed_or_changes_nothing(void **state)
{
    struct join_reply joined;
    struct party all;

    (void)state;
    gather(&all);
    for (size_t i = 0; i < 2; i++)
        ask_push(&all.p[i], 1, N_KEYS, false);
    wait_until_held(&all.p[0], &all.f, 2);
    enter_shard();
    connection_set_close_all(&all.f.connections);
    while (all.f.connections.first)
        uv_run(&all.f.loop, UV_RUN_ONCE);
    for (size_t i = 0; i < 2; i++)
        peer_close(&all.p[i]);
    all.p[0] = client(&all.f, "worker");
    joined = join_job(&all.p[0], 0, 1);
    assert_int_equal(joined.status, 0);
    assert_true(joined.resumed);
    assert_int_equal(joined.last_applied, 1);
    all.p[1] = client(&all.f, "worker");
    assert_int_equal(join_job(&all.p[1], 1, 1).last_applied, 0);
    disperse(&all);
}

/* --- beside a large push --- */

static void ask_leave(struct peer *p)
{
    struct bytes frame = { 0 };

    assert_int_equal(message_write_leave(&frame, 4, 0), 0);
    peer_send(p, &frame);
}

static bool is_under_way(const struct party *all)
{
    return all->f.shard->large.push && all->f.shard->large.push->seq == 1 &&
           all->f.shard->large.phase != PUSH_DONE;
}

static void hear_leave(struct peer *p)
{
    assert_true(peer_receive(p));
    assert_int_equal(p->header.type, FRAME_LEAVE_REPLY);
}

/* Each of these once ended the push in one piece. */
static void other_ranks_join_leave_and_are_suspected_between_the_slices(void **state)
{
    struct party all;
    struct peer other;

    (void)state;
    gather(&all);
    other = client(&all.f, "worker");
    ask_push(&all.p[0], 1, N_KEYS, false);
    wait_until_held(&all.p[0], &all.f, 1);
    (void)beat_about(&all.p[1], 1, false); /* of itself: nobody is dead */
    assert_true(is_under_way(&all));
    assert_int_equal(join_job(&other, 5, 1).status, -EINVAL);
    assert_true(is_under_way(&all));
    ask_leave(&all.p[1]);
    hear_leave(&all.p[1]);
    assert_true(is_under_way(&all));
    assert_int_equal(hear_push(&all.p[0], 1).status, 0);
    assert_int_equal(n_rows(&all.f), N_KEYS); /* nobody else is waited for */
    peer_close(&other);
    disperse(&all);
}

/* Its process has opened another connection: what that one hears tells how the push has ended. */
static void a_rank_joins_again_and_leaves_behind_its_own_large_push(void **state)
{
    struct join_reply joined;
    struct party all;
    struct peer again;

    (void)state;
    gather(&all);
    again = client(&all.f, "worker");
    ask_push(&all.p[0], 1, N_KEYS, false);
    wait_until_held(&all.p[0], &all.f, 1);
    send_join(&again, 0, 1);
    wait_until_held(&again, &all.f, 2);
    assert_true(is_under_way(&all));
    ask_pull(&all.reader, 60, 0, 10);
    assert_int_equal(hear_pull(&all.reader, 60).status, 0);
    assert_true(is_under_way(&all));
    joined = hear_join(&again);
    assert_int_equal(joined.status, 0);
    assert_int_equal(joined.last_applied, 1);
    assert_int_equal(hear_push(&all.p[0], 1).status, 0);
    ask_push(&all.p[0], 2, N_KEYS, false);
    wait_until_held(&all.p[0], &all.f, 1);
    ask_leave(&again);
    hear_leave(&again);
    assert_null(all.f.shard->large.push);
    assert_int_equal(hear_push(&all.p[0], 2).status, 0);
    peer_close(&again);
    disperse(&all);
}

/* As pushes do while the log is full, or its disk slow. */
static void a_push_that_waited_for_the_log_passes_a_large_one(void **state)
{
    struct party all;

    (void)state;
    gather(&all);
    ask_push(&all.p[0], 1, N_KEYS, false);
    wait_until_held(&all.p[0], &all.f, 1);
    all.f.replies.is_paced = true;
    ask_push(&all.p[1], 1, 1, false);
    wait_until_held(&all.p[1], &all.f, 2);
    all.f.replies.is_paced = false;
    enter_shard();
    dispatch_resume(all.f.dispatch);
    assert_int_equal(hear_push(&all.p[1], 1).status, 0);
    assert_true(is_under_way(&all));
    assert_int_equal(hear_push(&all.p[0], 1).status, 0);
    assert_int_equal(n_rows(&all.f), N_KEYS);
    disperse(&all);
}

/* And its bytes count until they are not needed. */
static void a_push_goes_on_in_slices_when_its_connection_closes(void **state)
{
    struct connection_set_counts counts;
    struct party all;

    (void)state;
    gather(&all);
    for (int compress = 0; compress < 2; compress++) {
        uint64_t seq = 1 + (uint64_t)compress;

        ask_push(&all.p[0], seq, N_KEYS, compress);
        wait_until_held(&all.p[0], &all.f, 1);
        while (!all.f.shard->large.push) /* a compressed one is unpacked before it begins */
            peer_turn(&all.p[0]);
        peer_close(&all.p[0]);
        enter_shard();
        for (struct connection *c = all.f.connections.first; c; c = c->next)
            if (c->channel.held)
                connection_close(c);
        ask_pull(&all.reader, 60, 0, 10);
        assert_int_equal(hear_pull(&all.reader, 60).status, 0);
        assert_non_null(all.f.shard->large.push);
        connection_set_count(&all.f.connections, &counts);
        assert_true(counts.connections == 2 &&
                    counts.held_bytes > N_KEYS * DIM * sizeof(float));
        all.p[0] = client(&all.f, "worker");
        assert_int_equal(join_job(&all.p[0], 0, 1).last_applied, seq);
        connection_set_count(&all.f.connections, &counts);
        assert_true(counts.held_bytes < 10000);
    }
    disperse(&all);
}

static void a_pull_whose_connection_closes_is_dropped(void **state)
{
    struct fixture f;
    struct peer worker, reader;

    (void)state;
    set_up(&f);
    worker = client(&f, "worker");
    reader = client(&f, "reader");
    ask_table(&worker, "t");
    ask_pull(&reader, 60, 0, N_KEYS);
    wait_until_held(&reader, &f, 1);
    peer_close(&reader);
    while (f.connections.first->next)
        uv_run(&f.loop, UV_RUN_ONCE);
    assert_int_equal(beat(&worker), PS_ENOJOIN); /* others are served */
    peer_close(&worker);
    tear_down(&f);
}

static void a_parked_pull_that_is_ready_is_answered_in_slices(void **state)
{
    struct party all;

    (void)state;
    gather(&all);
    ask_push(&all.p[0], 1, 1, false);
    assert_int_equal(hear_push(&all.p[0], 1).status, 0);
    ask_pull(&all.p[0], 60, 1, N_KEYS);
    ask_pull(&all.p[0], 61, 1, N_KEYS);
    assert_int_equal(beat(&all.p[0]), 0);
    ask_push(&all.p[1], 1, 1, false);
    assert_int_equal(hear_push(&all.p[1], 1).status, 0);
    ask_pull(&all.reader, 62, 0, 1);
    assert_int_equal(hear_pull(&all.reader, 62).status, 0);
    assert_false(has_heard(&all.p[0]));
    assert_int_equal(hear_pull(&all.p[0], 60).min_clock, 1);
    assert_int_equal(hear_pull(&all.p[0], 61).status, 0);
    disperse(&all);
}

static void a_service_that_stops_commits_the_push_under_way(void **state)
{
    struct party all;

    (void)state;
    gather(&all);
    for (size_t i = 0; i < 2; i++)
        ask_push(&all.p[i], 1, N_KEYS, false);
    ask_pull(&all.reader, 60, 0, N_KEYS);
    wait_until_held(&all.p[0], &all.f, 3);
    enter_shard();
    dispatch_stop(all.f.dispatch);
    connection_set_close_all(&all.f.connections);
    assert_int_equal(hear_pull(&all.reader, 60).status, PS_ESTOPPING);
    assert_int_equal(hear_push(&all.p[0], 1).status, 0);
    assert_int_equal(hear_push(&all.p[1], 1).status, PS_ESTOPPING);
    disperse(&all);
}

#ifdef PS_FAULTS
/* Whichever allocation fails, who asked gets an answer or the end of the stream, and others are
 * served. */
static void every_allocation_that_fails_is_a_refusal_or_the_end(void **state)
{
    bool is_through = false;

    (void)state;
    for (long k = 0; !is_through; k++) {
        struct dispatch_counts counts;
        struct party all;

        assert_true(k < 1000);
        gather(&all);
        ask_push(&all.p[0], 1, N_KEYS, true);
        ask_pull(&all.reader, 60, 0, N_KEYS);
        memory_fail_after(k);
        for (uint32_t i = 0; i < 100; i++)
            uv_run(&all.f.loop, UV_RUN_NOWAIT);
        memory_fail_after(-1);
        dispatch_count(all.f.dispatch, &counts);
        is_through = counts.refused == 0 && all.f.connections.first &&
                     all.f.connections.first->next && all.f.connections.first->next->next;
        ask_push(&all.p[1], 1, 1, false);
        if (peer_receive(&all.p[1]))
            assert_int_equal(all.p[1].header.type, FRAME_PUSH_REPLY);
        disperse(&all);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_request_passes_a_large_push),
        cmocka_unit_test(a_small_request_passes_a_large_pull),
        cmocka_unit_test(long_keys_of_readers_are_unpacked_in_slices_one_pull_after_the_other),
        cmocka_unit_test(a_reader_that_goes_leaves_the_others_their_turn),
        cmocka_unit_test(large_pushes_come_one_after_the_other),
        cmocka_unit_test(a_push_whose_connection_closes_is_committed_or_changes_nothing),
        cmocka_unit_test(other_ranks_join_leave_and_are_suspected_between_the_slices),
        cmocka_unit_test(a_rank_joins_again_and_leaves_behind_its_own_large_push),
        cmocka_unit_test(a_push_that_waited_for_the_log_passes_a_large_one),
        cmocka_unit_test(a_push_goes_on_in_slices_when_its_connection_closes),
        cmocka_unit_test(a_pull_whose_connection_closes_is_dropped),
        cmocka_unit_test(a_parked_pull_that_is_ready_is_answered_in_slices),
        cmocka_unit_test(a_service_that_stops_commits_the_push_under_way),
#ifdef PS_FAULTS
        cmocka_unit_test(every_allocation_that_fails_is_a_refusal_or_the_end),
#endif
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
