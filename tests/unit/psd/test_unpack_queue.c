/* Long compressed bodies: unpacked in slices and in turn, with what they do the same as if they had come plain. */
#include <zstd.h>

#include "common/status.h"
#include "server/core/shard_internal.h"
#include "serving.h"

enum { N_KEYS = 60000, N_WORKERS = 4 }; /* with its values 1 MiB: four slices and more */

#define AN_ITERATION \
    (CONNECTION_UNPACK_BYTES + (128u << 10)) /* of a line, as zstd's blocks are */

static uint64_t keys[N_KEYS];
static uint8_t key_bytes[(size_t)N_KEYS * KEY_CODEC_BYTES_MAX];
static float values[N_KEYS * DIM];
static struct message_zstd zstd;

/* --- frames --- */

static struct push push_of(uint64_t seq, uint32_t table_id, uint32_t n_keys)
{
    struct push push = {
        .seq = seq, .clock = seq - 1, .n_samples = 1, .tick = true, .n_sections = 1
    };

    for (uint32_t i = 0; i < n_keys; i++)
        keys[i] = i;
    push.sections[0] = (struct section){
        .table_id = table_id,
        .n_keys = n_keys,
        .keys = key_bytes,
        .key_bytes = key_codec_encode(keys, n_keys, key_bytes),
        .values = (const uint8_t *)values,
        .value_bytes = n_keys * DIM * sizeof *values,
    };
    return push;
}

/* Of so many levels: the fewer, the shorter it gets. */
static void draw_values(uint32_t seed, uint32_t n_levels)
{
    for (uint32_t i = 0; i < N_KEYS * DIM; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 16) / 65536.0f;
        if (n_levels)
            values[i] = (float)((seed >> 16) % n_levels) + 1;
    }
}

static void ask_push(struct peer *p, uint64_t seq, uint32_t table_id, uint32_t n_keys)
{
    struct push push = push_of(seq, table_id, n_keys);
    struct bytes frame = { 0 };

    assert_int_equal(message_write_push(&frame, 100 + seq, &push, &zstd), 0);
    peer_send(p, &frame);
}

/* The same with its body replaced: `packed` takes the place of what zstd made of it. */
static void ask_push_of(struct peer *p, uint64_t seq, const uint8_t *packed, size_t n_bytes)
{
    struct push push = push_of(seq, 0, N_KEYS);
    struct frame_header header;
    struct bytes plain = { 0 }, frame = { 0 };
    size_t before;

    assert_int_equal(message_write_push(&plain, 100 + seq, &push, NULL), 0);
    assert_int_equal(frame_decode(bytes_front(&plain), UINT32_MAX, &header), 0);
    before = FRAME_HEADER_BYTES + (size_t)header.head_bytes;
    memcpy(bytes_reserve(&frame, before + n_bytes), bytes_front(&plain), before);
    memcpy(frame.bytes + before, packed, n_bytes);
    bytes_commit(&frame, before + n_bytes);
    header.flags = FRAME_ZSTD;
    header.body_bytes = (uint32_t)n_bytes;
    frame_encode(frame.bytes, &header);
    bytes_deinit(&plain);
    peer_send(p, &frame);
}

static void ask_pull(struct peer *p, uint64_t request_id, uint32_t table_id, uint64_t clock,
                     uint32_t n_keys)
{
    struct push push = push_of(1, table_id, n_keys);
    struct pull pull = { .clock = clock, .n_sections = 1, .sections = { push.sections[0] } };
    struct bytes frame = { 0 };

    pull.sections[0].values = NULL;
    pull.sections[0].value_bytes = 0;
    assert_int_equal(message_write_pull(&frame, request_id, &pull, NULL), 0);
    peer_send(p, &frame);
}

/* --- a job --- */

/* A worker of a job whose workers do not wait for each other. */
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
    struct peer p[N_WORKERS], reader;
    uint32_t table_id;
};

static void gather(struct party *all)
{
    set_up(&all->f);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        all->p[i] = async_worker(&all->f, i);
    all->table_id = ask_table(&all->p[0], "t");
    all->reader = client(&all->f, "reader");
    draw_values(1, 2);
}

static void disperse(struct party *all)
{
    for (uint32_t i = 0; i < N_WORKERS; i++)
        peer_close(&all->p[i]);
    peer_close(&all->reader);
    tear_down(&all->f);
}

static bool has_heard(const struct peer *p)
{
    uint8_t byte;

    return recv(p->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static uint32_t count_unpacked(const struct fixture *f)
{
    uint32_t n = 0;

    for (const struct connection *c = f->connections.first; c; c = c->next) {
        n += c->unpacked.bytes != NULL;
        assert_true(c->channel.held_bytes >= c->unpacked.cap_bytes);
    }
    return n;
}

/* One iteration of the loop: how much of any body is unpacked in it, and for how many bodies there is memory. */
static void turn_and_check(struct fixture *f)
{
    uint64_t before = f->channels.unpacked_bytes;

    enter_shard();
    uv_run(&f->loop, UV_RUN_NOWAIT);
    assert_true(f->channels.unpacked_bytes - before <= AN_ITERATION);
    assert_in_range(count_unpacked(f), 0, 1);
}

static uint32_t count_held(const struct fixture *f)
{
    uint32_t n = 0;

    for (const struct connection *c = f->connections.first; c; c = c->next)
        n += c->channel.held;
    return n;
}

static void turn_until_held(struct fixture *f, uint32_t n_held)
{
    while (count_held(f) < n_held)
        turn_and_check(f);
}

/* All push, the first one first: it has its turn, and the others wait. */
static void ask_all(struct party *all)
{
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        ask_push(&all->p[i], 1, all->table_id, N_KEYS);
        turn_until_held(&all->f, 1);
    }
    turn_until_held(&all->f, N_WORKERS);
}

static struct connection *find_connection(struct fixture *f, uint32_t rank)
{
    struct connection *c = f->connections.first;

    while (c && !(c->worker.joined && c->worker.rank == rank))
        c = c->next;
    return c;
}

/* --- turns --- */

static void pushes_are_unpacked_in_slices_one_after_the_other(void **state)
{
    struct stats_wait waits[2];
    struct party all;
    uint32_t n;

    (void)state;
    gather(&all);
    ask_all(&all);
    enter_shard();
    n = unpack_queue_report(dispatch_bodies(all.f.dispatch), 1000000, waits, 2);
    assert_int_equal(n, 1);
    assert_string_equal(waits[0].what, "compressed body");
    assert_string_equal(waits[0].who, "3 pushes to shard 0");
    assert_string_equal(waits[0].why,
                        "shard 0 decompresses one long body after the other; now that of job "
                        "many, worker 0");
    assert_int_equal(waits[0].until_unix_ms, 0);
    ask_pull(&all.reader, 60, all.table_id, 0, 10); /* others are served meanwhile */
    while (!has_heard(&all.reader))
        turn_and_check(&all.f);
    assert_int_equal(hear_pull(&all.reader, 60).status, 0);
    assert_false(has_heard(&all.p[0]));
    while (!has_heard(&all.p[N_WORKERS - 1]))
        turn_and_check(&all.f);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        assert_int_equal(hear_push(&all.p[i], 1).status, 0);
    assert_int_equal(shard_table(all.f.shard, all.table_id)->n_pushes, N_WORKERS);
    assert_int_equal(unpack_queue_report(dispatch_bodies(all.f.dispatch), 1000000, waits, 2),
                     0);
    disperse(&all);
}

/* As they are from a worker, up to a slice: but not of all workers in one iteration. */
static void short_bodies_of_many_are_no_way_around_a_slice(void **state)
{
    enum { N_SHORT = 24000 }; /* 400 KiB */
    struct party all;
    uint64_t most = 0;

    (void)state;
    gather(&all);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        for (uint64_t seq = 1; seq <= 4; seq++)
            ask_push(&all.p[i], seq, all.table_id, N_SHORT);
    for (bool heard = false; !heard;) {
        uint64_t before = all.f.channels.unpacked_bytes;

        enter_shard();
        uv_run(&all.f.loop, UV_RUN_NOWAIT);
        if (most < all.f.channels.unpacked_bytes - before)
            most = all.f.channels.unpacked_bytes - before;
        heard = shard_table(all.f.shard, all.table_id)->n_pushes == 4 * N_WORKERS;
    }
    assert_true(most > CONNECTION_UNPACK_BYTES); /* at once, as they come */
    assert_true(most < CHANNEL_UNPACK_SHARED_BYTES + CONNECTION_UNPACK_JOINED_BYTES);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        for (uint64_t seq = 1; seq <= 4; seq++)
            assert_int_equal(hear_push(&all.p[i], seq).status, 0);
    disperse(&all);
}

/* A push, a pull of a worker and one of a reader do not wait for each other. */
static void pushes_pulls_and_readers_have_a_line_each(void **state)
{
    uint8_t *ones = memory_alloc(1 << 20);
    struct pull pull = { .n_sections = 1,
                         .sections = {
                             { .n_keys = 1 << 20, .keys = ones, .key_bytes = 1 << 20 } } };
    struct bytes frame = { 0 };
    struct party all;
    uint32_t n_most = 0;

    (void)state;
    gather(&all);
    memset(ones, 1, 1 << 20);
    pull.sections[0].table_id = all.table_id;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(message_write_pull(&frame, 60, &pull, &zstd), 0);
        peer_send(i ? &all.p[1] : &all.reader, &frame);
    }
    ask_push(&all.p[0], 1, all.table_id, N_KEYS);
    while (!has_heard(&all.p[0]) || !has_heard(&all.p[1]) || !has_heard(&all.reader)) {
        uint64_t before = all.f.channels.unpacked_bytes;

        enter_shard();
        uv_run(&all.f.loop, UV_RUN_NOWAIT);
        assert_true(all.f.channels.unpacked_bytes - before <= AN_ITERATION);
        if (n_most < count_unpacked(&all.f))
            n_most = count_unpacked(&all.f);
    }
    assert_int_equal(n_most, 3);
    assert_int_equal(hear_push(&all.p[0], 1).status, 0);
    assert_int_equal(hear_pull(&all.p[1], 60).status, 0);
    assert_int_equal(hear_pull(&all.reader, 60).status, 0);
    free(ones);
    disperse(&all);
}

/* --- what they do --- */

static void assert_same_rows(struct party *all, uint32_t a, uint32_t b, uint32_t n_keys)
{
    size_t n_bytes = (size_t)n_keys * DIM * sizeof(float);
    uint8_t *of_a = memory_alloc(n_bytes);
    struct pull_reply reply;

    ask_pull(&all->reader, 60, a, 0, n_keys);
    reply = hear_pull(&all->reader, 60);
    assert_int_equal(reply.sections[0].value_bytes, n_bytes);
    memcpy(of_a, reply.sections[0].values, n_bytes);
    ask_pull(&all->reader, 61, b, 0, n_keys);
    reply = hear_pull(&all->reader, 61);
    assert_memory_equal(reply.sections[0].values, of_a, n_bytes);
    free(of_a);
}

static void rows_are_those_of_plain_pushes(void **state)
{
    struct party all;
    uint32_t plain;

    (void)state;
    gather(&all);
    plain = ask_table(&all.p[1], "plain");
    for (uint64_t seq = 1; seq <= 12; seq++) {
        uint32_t n_keys = N_KEYS - (uint32_t)seq * 4321;
        struct push push;
        struct bytes frame = { 0 };

        draw_values((uint32_t)seq, (uint32_t)(seq % 3) * 7);
        ask_push(&all.p[0], seq, all.table_id, n_keys);
        push = push_of(seq, plain, n_keys);
        assert_int_equal(message_write_push(&frame, 100 + seq, &push, NULL), 0);
        peer_send(&all.p[1], &frame);
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(hear_push(&all.p[i], seq).status, 0);
    }
    assert_same_rows(&all, all.table_id, plain, N_KEYS - 4321);
    disperse(&all);
}

static void a_repeated_push_is_not_applied_again(void **state)
{
    struct push_reply reply;
    struct party all;

    (void)state;
    gather(&all);
    for (uint32_t i = 0; i < 2; i++) {
        ask_push(&all.p[0], 1, all.table_id, N_KEYS);
        reply = hear_push(&all.p[0], 1);
        assert_int_equal(reply.status, 0);
        assert_int_equal(reply.repeated, i);
    }
    ask_push(&all.p[0], 7, all.table_id, N_KEYS);
    assert_int_equal(hear_push(&all.p[0], 7).status, PS_ESEQ);
    assert_int_equal(shard_table(all.f.shard, all.table_id)->n_pushes, 1);
    disperse(&all);
}

/* A worker's pull whose keys are unpacked in slices is parked like any other. */
static void a_pull_that_has_to_wait_is_parked(void **state)
{
    enum { N = 600000 };
    uint8_t *ones = memory_alloc(N);
    struct pull pull = { .clock = 1,
                         .n_sections = 1,
                         .sections = { { .n_keys = N, .keys = ones, .key_bytes = N } } };
    struct bytes frame = { 0 };
    struct peer p[2];
    struct fixture f;

    (void)state;
    set_up(&f);
    for (uint32_t i = 0; i < 2; i++)
        p[i] = worker_of(&f, i); /* in lock step */
    (void)ask_table(&p[0], "t");
    memset(ones, 1, N);
    ask_push(&p[0], 1, 0, 1);
    assert_int_equal(hear_push(&p[0], 1).status, 0);
    assert_int_equal(message_write_pull(&frame, 60, &pull, &zstd), 0);
    peer_send(&p[0], &frame);
    assert_int_equal(beat(&p[0]), 0); /* it is parked, and its connection is read again */
    assert_int_equal(count_unpacked(&f), 0);
    assert_false(has_heard(&p[0]));
    ask_push(&p[1], 1, 0, 1);
    assert_int_equal(hear_push(&p[1], 1).status, 0);
    assert_int_equal(hear_pull(&p[0], 60).status, 0);
    free(ones);
    for (uint32_t i = 0; i < 2; i++)
        peer_close(&p[i]);
    tear_down(&f);
}

/* --- what is refused --- */

/* An end that is missing, a byte behind it, another frame behind it: as for a body that is unpacked at once. */
static void damaged_bodies_are_refused(void **state)
{
    const struct push push = push_of(1, 0, N_KEYS);
    const struct section *s = &push.sections[0];
    size_t n_bytes = s->key_bytes + s->value_bytes, space = ZSTD_compressBound(n_bytes), n;
    uint8_t *plain = memory_alloc(n_bytes), *packed = memory_alloc(2 * space);
    struct party all;

    (void)state;
    gather(&all);
    memcpy(plain, s->keys, s->key_bytes);
    memcpy(plain + s->key_bytes, values, s->value_bytes);
    n = ZSTD_compress(packed, space, plain, n_bytes, 1);
    (void)ZSTD_compress(packed + n, space, plain, 4, 1);
    for (int wrong = 0; wrong < 3; wrong++) {
        const size_t sent[] = { n - 1, n + 1,
                                n + ZSTD_findFrameCompressedSize(packed + n, space) };
        struct push_reply reply;

        ask_push_of(&all.p[0], 1, packed, sent[wrong]);
        while (!has_heard(&all.p[0]))
            turn_and_check(&all.f);
        reply = hear_push(&all.p[0], 1);
        assert_int_equal(reply.status, PS_ECORRUPT);
        assert_string_equal(reply.text, status_text(PS_ECORRUPT));
        assert_int_equal(count_unpacked(&all.f), 0);
    }
    ask_push_of(&all.p[0], 1, packed, n);
    assert_int_equal(hear_push(&all.p[0], 1).status, 0);
    free(plain);
    free(packed);
    disperse(&all);
}

/* What it states is what the head says, and more than it holds. */
static void a_body_that_holds_less_than_it_states_is_refused(void **state)
{
    struct push_reply reply;
    struct push push;
    struct party all;
    size_t n_bytes;
    uint8_t body[64 * 4 + 9] = { 0x28, 0xb5, 0x2f, 0xfd, 0x80, 0x60 };
    size_t n = 10;

    (void)state;
    gather(&all);
    push = push_of(1, all.table_id, N_KEYS);
    n_bytes = push.sections[0].key_bytes + push.sections[0].value_bytes;
    for (int i = 0; i < 4; i++)
        body[6 + i] = (uint8_t)(n_bytes >> 8 * i);
    for (int i = 0; i < 4;
         i++) { /* blocks of 128 KiB of one byte; the last one says that it is */
        body[n++] = (uint8_t)(1 << 1 | (i == 3));
        body[n++] = 0;
        body[n++] = 1 << 20 >> 16;
        body[n++] = 0;
    }
    ask_push_of(&all.p[0], 1, body, n);
    reply = hear_push(&all.p[0], 1);
    assert_int_equal(reply.status, PS_ECORRUPT);
    assert_string_equal(reply.text, status_text(PS_ECORRUPT));
    ask_push(&all.p[0], 1, all.table_id, N_KEYS); /* its number is not used up */
    reply = hear_push(&all.p[0], 1);
    assert_int_equal(reply.status, 0);
    assert_false(reply.repeated);
    disperse(&all);
}

static void a_service_that_stops_refuses_those_that_wait(void **state)
{
    struct party all;

    (void)state;
    gather(&all);
    peer_close(&all.reader); /* with it, each of the long frames has an iteration of its own */
    ask_all(&all);
    enter_shard();
    dispatch_stop(all.f.dispatch);
    connection_set_close_all(&all.f.connections);
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        struct push_reply reply = hear_push(&all.p[i], 1);

        assert_int_equal(reply.status, PS_ESTOPPING);
        assert_string_equal(reply.text, status_text(PS_ESTOPPING));
    }
    all.reader = client(&all.f, "reader");
    disperse(&all);
}

/* --- connections that end --- */

/* The one that is being unpacked, one that waits, and, at the end, the one whose push runs. */
static void one_that_goes_leaves_the_others_their_turn(void **state)
{
    struct party all;

    (void)state;
    gather(&all);
    ask_all(&all);
    enter_shard();
    assert_non_null(find_connection(&all.f, 0)->unpacked.bytes);
    connection_fail(find_connection(&all.f, 0), -ECONNRESET);
    connection_fail(find_connection(&all.f, 2), -ECONNRESET);
    while (!all.f.shard->large.push)
        turn_and_check(&all.f);
    connection_fail(find_connection(&all.f, 1), -ECONNRESET); /* its push ends all the same */
    while (!has_heard(&all.p[3]))
        turn_and_check(&all.f);
    assert_int_equal(hear_push(&all.p[3], 1).status, 0);
    assert_int_equal(shard_table(all.f.shard, all.table_id)->n_pushes, 2);
    disperse(&all);
}

/* --- memory --- */

/* Another one holds most of it: so long nothing is unpacked, and then it is, at the other's cost. */
static void a_body_waits_for_space_but_not_for_ever(void **state)
{
    struct connection *hoarder;
    struct stats_wait wait;
    struct party all;
    uint64_t since_ms;

    (void)state;
    gather(&all);
    enter_shard();
    hoarder = find_connection(&all.f, 3);
    all.f.memory.max_bytes = 4u << 20;
    connection_set_queued_bytes(hoarder, (4u << 20) - (300u << 10));
    ask_push(&all.p[0], 1, all.table_id, N_KEYS);
    turn_until_held(&all.f, 1);
    since_ms = uv_now(&all.f.loop);
    for (uint32_t i = 0; i < 20; i++)
        turn_and_check(&all.f);
    assert_int_equal(all.f.channels.unpacked_bytes, 0);
    assert_int_equal(unpack_queue_report(dispatch_bodies(all.f.dispatch), 1000000, &wait, 1),
                     1);
    assert_string_equal(wait.who, "1 pushes to shard 0");
    assert_non_null(strstr(wait.why, "no space in --client-memory: "));
    assert_in_range(wait.until_unix_ms, 1000001, 1000000 + UNPACK_QUEUE_SPACE_MS);
    connection_set_queued_bytes(hoarder, 0); /* some comes free */
    enter_shard();
    dispatch_tick(all.f.dispatch);
    while (!has_heard(&all.p[0]))
        turn_and_check(&all.f);
    assert_int_equal(hear_push(&all.p[0], 1).status, 0);
    assert_true(uv_now(&all.f.loop) - since_ms < UNPACK_QUEUE_SPACE_MS);
    connection_set_queued_bytes(hoarder, (4u << 20) - (300u << 10)); /* and now none does */
    ask_push(&all.p[0], 2, all.table_id, N_KEYS);
    turn_until_held(&all.f, 1);
    since_ms = uv_now(&all.f.loop);
    while (!has_heard(&all.p[0])) {
        turn_and_check(&all.f);
        dispatch_tick(all.f.dispatch);
        (void)poll(NULL, 0, 10);
    }
    assert_true(uv_now(&all.f.loop) - since_ms >= UNPACK_QUEUE_SPACE_MS);
    assert_int_equal(hear_push(&all.p[0], 2).status, 0);
    assert_int_equal(all.f.connections.closed.greedy, 1);
    assert_null(find_connection(&all.f, 3));
    disperse(&all);
}

/* If it is those that wait who hold it, to wait is in vain. And the one that is unpacked is not closed for it. */
static void those_that_wait_for_space_make_it(void **state)
{
    struct party all;
    uint64_t since_ms;

    (void)state;
    gather(&all);
    draw_values(1, 0); /* hardly compressible */
    since_ms = uv_now(&all.f.loop);
    all.f.memory.max_bytes = 3u << 19; /* a frame, but not its body */
    ask_push(&all.p[0], 1, all.table_id, N_KEYS);
    assert_int_equal(hear_push(&all.p[0], 1).status, 0);
    assert_true(uv_now(&all.f.loop) - since_ms < UNPACK_QUEUE_SPACE_MS);
    assert_int_equal(all.f.connections.closed.greedy, 0);
    all.f.memory.max_bytes = UINT64_MAX;
    for (uint32_t i = 0; i < N_WORKERS; i++)
        ask_push(&all.p[i], i ? 1 : 2, all.table_id, N_KEYS);
    while (count_held(&all.f) < N_WORKERS)
        turn_and_check(&all.f);
    all.f.memory.max_bytes = all.f.channels.held_bytes / 2;
    while (!has_heard(&all.p[0]))
        turn_and_check(&all.f);
    assert_int_equal(hear_push(&all.p[0], 2).status, 0); /* though it held most */
    assert_int_equal(all.f.connections.closed.greedy, N_WORKERS - 1);
    disperse(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pushes_are_unpacked_in_slices_one_after_the_other),
        cmocka_unit_test(short_bodies_of_many_are_no_way_around_a_slice),
        cmocka_unit_test(pushes_pulls_and_readers_have_a_line_each),
        cmocka_unit_test(rows_are_those_of_plain_pushes),
        cmocka_unit_test(a_repeated_push_is_not_applied_again),
        cmocka_unit_test(a_pull_that_has_to_wait_is_parked),
        cmocka_unit_test(damaged_bodies_are_refused),
        cmocka_unit_test(a_body_that_holds_less_than_it_states_is_refused),
        cmocka_unit_test(a_service_that_stops_refuses_those_that_wait),
        cmocka_unit_test(one_that_goes_leaves_the_others_their_turn),
        cmocka_unit_test(a_body_waits_for_space_but_not_for_ever),
        cmocka_unit_test(those_that_wait_for_space_make_it),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
