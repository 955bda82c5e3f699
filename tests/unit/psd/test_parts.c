/* Long answers, which leave while they are being made: they say what they would say in one piece, and
 * hold nobody up. */
#include "serving.h"

#include "server/requests/pull_handler.h"

enum {
    ROW_FLOATS = 64,
    N_KEYS = 40000,  /* 10 MB in fp32, 3 in int8 */
    FEW_KEYS = 7000, /* more than a slice, and less than a long answer */
    UNSENT_MAX =
        1300 << 10 /* of it in memory: the bound of pull_reply.c, a part, and its room */
};

static uint8_t key_bytes[(size_t)2 * N_KEYS * KEY_CODEC_BYTES_MAX];

/* Two tables: 0 fp32, 1 bf16; a reader that understands parts, and one that does not. */
struct party {
    struct fixture f;
    struct peer worker, in_parts, in_one;
};

static void make_table(struct peer *p, const char *name, enum table_spec_storage storage)
{
    struct table_request asked = { .spec = { .dim = ROW_FLOATS,
                                             .init = TABLE_SPEC_INIT_UNIFORM,
                                             .init_scale = 1,
                                             .seed = 5,
                                             .storage = storage,
                                             .params.learning_rate = 1 } };
    struct bytes frame = { 0 };

    snprintf(asked.spec.name, sizeof asked.spec.name, "%s", name);
    assert_int_equal(message_write_table(&frame, 2, &asked), 0);
    peer_send(p, &frame);
    assert_int_equal(hear_table(p).status, 0);
}

static void gather(struct party *all)
{
    set_up(&all->f);
    all->worker = worker_of(&all->f, 0);
    make_table(&all->worker, "plain", TABLE_SPEC_FP32);
    make_table(&all->worker, "half", TABLE_SPEC_BF16);
    all->in_parts = client_of(&all->f, "reader", FRAME_FLAGS_KNOWN);
    all->in_one = client(&all->f, "reader");
}

static void disperse(struct party *all)
{
    peer_close(&all->worker);
    peer_close(&all->in_parts);
    peer_close(&all->in_one);
    tear_down(&all->f);
}

/* Keys from `first` on, three apart, at `at`. */
static struct section section_at(uint32_t table, uint64_t first, uint32_t n_keys,
                                 enum codec_id codec, uint8_t *at)
{
    uint64_t *keys = memory_alloc(n_keys * sizeof *keys);
    struct section s = { .table_id = table, .n_keys = n_keys, .codec = codec, .keys = at };

    for (uint32_t i = 0; i < n_keys; i++)
        keys[i] = first + 3 * (uint64_t)i;
    s.key_bytes = key_codec_encode(keys, n_keys, at);
    free(keys);
    return s;
}

static void send_pull(struct peer *p, uint64_t request_id, const struct pull *pull)
{
    struct bytes frame = { 0 };

    assert_int_equal(message_write_pull(&frame, request_id, pull, NULL), 0);
    peer_send(p, &frame);
}

static void ask(struct peer *p, uint64_t request_id, uint32_t n_keys)
{
    const struct pull pull = {
        .n_sections = 1, .sections = { section_at(0, 1, n_keys, CODEC_FP32, key_bytes) }
    };

    send_pull(p, request_id, &pull);
}

/* Until the first part is in the socket, or with libuv. */
static void wait_until_it_leaves(struct party *all)
{
    const struct connection *c = all->f.connections.first->next; /* the newest comes first */

    assert_true(c->hello.frame_flags != 0);
    while (!c->channel.out.chunks.under_way)
        uv_run(&all->f.loop, UV_RUN_NOWAIT);
}

static void check_same(struct party *all, const struct pull *pull)
{
    struct pull_reply chunks, one;

    send_pull(&all->in_parts, 60, pull);
    send_pull(&all->in_one, 61, pull);
    chunks = hear_pull(&all->in_parts, 60);
    one = hear_pull(&all->in_one, 61);
    assert_int_equal(all->in_parts.header.flags, FRAME_SUM_BEHIND);
    assert_int_equal(all->in_one.header.flags, 0);
    assert_int_equal(all->in_parts.header.body_bytes, all->in_one.header.body_bytes);
    assert_memory_equal(all->in_parts.body, all->in_one.body, all->in_one.header.body_bytes);
    assert_int_equal(chunks.status, 0);
    assert_int_equal(chunks.n_sections, one.n_sections);
    assert_true(chunks.version == one.version);
    for (uint32_t i = 0; i < one.n_sections; i++)
        assert_int_equal(chunks.sections[i].value_bytes, one.sections[i].value_bytes);
}

/* Also where rows are longer on the wire than in memory, and sections end in the middle of a part. */
static void a_long_answer_in_parts_is_the_one_in_one_piece(void **state)
{
    static const enum codec_id codecs[] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_TOPK };
    struct party all;

    (void)state;
    gather(&all);
    for (size_t i = 0; i < COUNT_OF(codecs); i++)
        for (uint32_t table = 0; table < 2; table++) {
            struct pull pull = { .n_sections = 1 };

            pull.sections[0] = section_at(table, i, N_KEYS, codecs[i], key_bytes);
            pull.sections[0].k = codecs[i] == CODEC_TOPK ? ROW_FLOATS : 0;
            check_same(&all, &pull);
        }
    for (uint32_t n = 1; n < N_KEYS; n = 3 * n + 1) {
        struct pull pull = { .n_sections = 4 };

        pull.sections[0] = section_at(0, 9, n, CODEC_INT8, key_bytes);
        pull.sections[1] =
            section_at(1, 7, N_KEYS - n, CODEC_FP32, key_bytes + pull.sections[0].key_bytes);
        pull.sections[2] = (struct section){ .keys = key_bytes };
        pull.sections[3] =
            section_at(0, 2, n, CODEC_FP32,
                       key_bytes + pull.sections[0].key_bytes + pull.sections[1].key_bytes);
        check_same(&all, &pull);
    }
    disperse(&all);
}

static void answers_that_are_not_long_leave_in_one_piece(void **state)
{
    struct pull states = { .n_sections = 1 };
    struct party all;

    (void)state;
    gather(&all);
    ask(&all.in_parts, 60, FEW_KEYS);
    assert_int_equal(hear_pull(&all.in_parts, 60).status, 0);
    assert_int_equal(all.in_parts.header.flags, 0);
    states.sections[0] = section_at(0, 1, N_KEYS, CODEC_FP32, key_bytes);
    states.sections[0].state = true; /* its length is known at its end */
    send_pull(&all.in_parts, 61, &states);
    assert_int_equal(hear_pull(&all.in_parts, 61).status, 0);
    assert_int_equal(all.in_parts.header.flags, 0);
    disperse(&all);
}

/* Of a reader that does not read little is in memory; others are served, and it gets all in the end. */
static void a_reader_that_does_not_read_keeps_no_long_answer_in_memory(void **state)
{
    struct party all;
    const struct connection *c;

    (void)state;
    gather(&all);
    c = all.f.connections.first->next;
    ask(&all.in_parts, 60, N_KEYS);
    ask(&all.in_parts, 61, 1); /* behind it on its own connection: waits */
    wait_until_it_leaves(&all);
    for (int i = 0; i < 200; i++) {
        uv_run(&all.f.loop, UV_RUN_NOWAIT);
        assert_true(channel_unsent_bytes(&c->channel) < UNSENT_MAX);
    }
    assert_true(channel_unsent_bytes(&c->channel) > 0);
    assert_true(c->channel.bytes_out < N_KEYS * ROW_FLOATS * sizeof(float));
    ask(&all.in_one, 62, FEW_KEYS);
    assert_int_equal(hear_pull(&all.in_one, 62).status, 0);
    assert_int_equal(hear_pull(&all.in_parts, 60).status, 0);
    assert_int_equal(hear_pull(&all.in_parts, 61).status, 0);
    disperse(&all);
}

/* After so long a silence. */
static bool lives(struct party *all, uint32_t rank, uint64_t silent_ms)
{
    struct worker *worker = &membership_job(shard_membership(all->f.shard), 0)->workers[rank];

    enter_shard();
    worker->last_seen_ms = dispatch_now_ms(all->f.dispatch) - silent_ms;
    dispatch_tick(all->f.dispatch);
    return worker->state == WORKER_LIVE && !worker->is_suspected;
}

static void run_some(struct party *all)
{
    for (int i = 0; i < 100; i++)
        uv_run(&all->f.loop, UV_RUN_NOWAIT);
}

/* More than one of the kernel's buffers holds: that is how finely it says what has been read. */
static void read_some(struct party *all, struct peer *p)
{
    static char some[200000];

    for (size_t n = 0; n < sizeof some;) {
        ssize_t more;

        run_some(all); /* far more is still to come than it reads: there is something */
        more = read(p->fd, some, sizeof some - n);
        assert_true(more > 0);
        n += (size_t)more;
    }
}

/* A lease is 10 s here. */
static void a_worker_that_reads_nothing_holds_nobody_up_for_longer_than_its_lease(void **state)
{
    struct party all;
    struct peer slow;

    (void)state;
    gather(&all);
    slow = client_of(&all.f, "worker", FRAME_FLAGS_KNOWN);
    assert_int_equal(join_job(&slow, 1, 1).status, 0);
    ask(&slow, 60, N_KEYS);
    while (!all.f.connections.first->channel.out.chunks.under_way)
        uv_run(&all.f.loop, UV_RUN_NOWAIT);
    for (int i = 0; i < 10; i++) { /* as long as it reads anything */
        read_some(&all, &slow);
        assert_true(lives(&all, 1, 10001));
    }
    run_some(&all);
    (void)lives(&all, 1, 0); /* what it has read so far counts */
    assert_true(lives(&all, 1, 10000));
    assert_false(lives(&all, 1, 10001));
    peer_close(&slow);
    disperse(&all);
}

/* At the very end of the keys, so that all values but one could have left. */
static void keys_that_are_wrong_are_refused_before_anything_leaves(void **state)
{
    struct pull pull = { .n_sections = 1 };
    struct pull_reply reply;
    struct party all;

    (void)state;
    gather(&all);
    pull.sections[0] = section_at(0, 1, N_KEYS, CODEC_FP32, key_bytes);
    key_bytes[pull.sections[0].key_bytes - 1] = 0; /* the last one twice */
    send_pull(&all.in_parts, 60, &pull);
    reply = hear_pull(&all.in_parts, 60);
    assert_int_equal(reply.status, PS_EORDER);
    assert_int_equal(reply.n_sections, 0);
    ask(&all.in_parts, 61, N_KEYS);
    assert_int_equal(hear_pull(&all.in_parts, 61).status, 0);
    disperse(&all);
}

static void an_answer_that_leaves_ends_with_its_connection(void **state)
{
    struct party all;

    (void)state;
    gather(&all);
    ask(&all.in_parts, 60, N_KEYS);
    wait_until_it_leaves(&all);
    peer_close(&all.in_parts);
    while (all.f.connections.first->next->next)
        uv_run(&all.f.loop, UV_RUN_ONCE);
    ask(&all.in_one, 62, N_KEYS);
    assert_int_equal(hear_pull(&all.in_one, 62).status, 0);
    all.in_parts = client_of(&all.f, "reader", FRAME_FLAGS_KNOWN);
    ask(&all.in_parts, 63, N_KEYS);
    assert_int_equal(hear_pull(&all.in_parts, 63).status, 0);
    disperse(&all);
}

/* It cannot be refused any more; what has come is no frame. */
static void a_service_that_stops_ends_what_is_leaving(void **state)
{
    struct party all;

    (void)state;
    gather(&all);
    ask(&all.in_parts, 60, N_KEYS);
    wait_until_it_leaves(&all);
    enter_shard();
    dispatch_stop(all.f.dispatch);
    assert_false(peer_receive(&all.in_parts));
    disperse(&all);
}

#ifdef PS_FAULTS
/* Whichever allocation fails: all of it, a refusal, or the end. */
static void every_allocation_that_fails_is_a_refusal_or_the_end(void **state)
{
    bool is_through = false;
    int n_ended = 0;

    (void)state;
    for (long k = 0; !is_through; k++) {
        struct party all;

        assert_true(k < 1000);
        gather(&all);
        ask(&all.in_parts, 60, N_KEYS);
        memory_fail_after(k);
        for (int i = 0; i < 50; i++)
            uv_run(&all.f.loop, UV_RUN_NOWAIT);
        memory_fail_after(-1);
        if (!peer_receive(&all.in_parts)) {
            n_ended++;
        } else {
            struct pull_reply r;

            assert_int_equal(message_read_pull_reply(&all.in_parts.header, all.in_parts.head,
                                                     all.in_parts.body,
                                                     all.in_parts.header.body_bytes, &r),
                             0);
            assert_true(r.status == 0 || r.status == -ENOMEM);
            is_through = r.status == 0;
        }
        ask(&all.in_one, 62, N_KEYS);
        assert_int_equal(hear_pull(&all.in_one, 62).status, 0);
        disperse(&all);
    }
    assert_true(n_ended > 3);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_answer_in_parts_is_the_one_in_one_piece),
        cmocka_unit_test(answers_that_are_not_long_leave_in_one_piece),
        cmocka_unit_test(a_reader_that_does_not_read_keeps_no_long_answer_in_memory),
        cmocka_unit_test(a_worker_that_reads_nothing_holds_nobody_up_for_longer_than_its_lease),
        cmocka_unit_test(keys_that_are_wrong_are_refused_before_anything_leaves),
        cmocka_unit_test(an_answer_that_leaves_ends_with_its_connection),
        cmocka_unit_test(a_service_that_stops_ends_what_is_leaving),
#ifdef PS_FAULTS
        cmocka_unit_test(every_allocation_that_fails_is_a_refusal_or_the_end),
#endif
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
