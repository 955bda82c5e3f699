#include <stdio.h>

#include "common/status.h"
#include "tests/unit/proto/messages.h"

static void hello_comes_back(void **state)
{
    struct hello m = { 1,          UINT32_MAX, "worker",  "", MESSAGE_SHARD_LISTENER,
                       UINT64_MAX, "",         UINT32_MAX },
                 got;
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    messages_text(m.token, sizeof m.token);
    messages_text(m.name, sizeof m.name);
    assert_int_equal(message_write_hello(&b, UINT64_MAX, &m), 0);
    f = messages_open(&b);
    assert_int_equal(f.header.type, FRAME_HELLO);
    assert_true(f.header.request_id == UINT64_MAX);
    assert_int_equal(message_read_hello(&f.header, f.head, &got), 0);
    assert_true(got.version_min == 1 && got.version_max == UINT32_MAX);
    assert_true(got.shard == MESSAGE_SHARD_LISTENER && got.map_id == UINT64_MAX);
    assert_true(got.frame_flags == UINT32_MAX);
    assert_string_equal(got.role, m.role);
    assert_string_equal(got.token, m.token);
    assert_string_equal(got.name, m.name);
    messages_close(&f, &b);
}

static void hello_reply_comes_back(void **state)
{
    struct hello_reply *m = messages_hello_reply(), *got = calloc(1, sizeof *got);
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    assert_int_equal(message_write_hello_reply(&b, 1, m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_hello_reply(&f.header, f.head, got), 0);
    for (uint32_t i = 0; i < m->n_nodes; i++)
        assert_string_equal(got->nodes[i], m->nodes[i]);
    assert_string_equal(got->text, m->text);
    assert_true(got->n_nodes == m->n_nodes && got->node == 63 && got->shards_per_node == 16);
    assert_true(got->map_id == m->map_id && got->frame_max_bytes == UINT32_MAX &&
                got->version == 1);
    messages_close(&f, &b);
    free(got);
    free(m);
}

/* Reads back a hello reply that was changed; 0 or the refusal. */
static int hello_reply_status(const struct hello_reply *m)
{
    struct hello_reply *got = calloc(1, sizeof *got);
    struct bytes b = { 0 };
    struct messages_frame f;
    int status;

    assert_int_equal(message_write_hello_reply(&b, 1, m), 0);
    f = messages_open(&b);
    status = message_read_hello_reply(&f.header, f.head, got);
    messages_close(&f, &b);
    free(got);
    return status;
}

static void a_cluster_that_cannot_be_is_refused(void **state)
{
    struct hello_reply *m = messages_hello_reply();

    (void)state;
    assert_int_equal(hello_reply_status(m), 0);
    m->node = 64;
    assert_int_equal(hello_reply_status(m), PS_EPROTO);
    m->node = 0;
    m->shards_per_node = 0;
    assert_int_equal(hello_reply_status(m), PS_EPROTO);
    m->shards_per_node = 17; /* 1088 shards */
    assert_int_equal(hello_reply_status(m), PS_EPROTO);
    m->n_nodes = 0;
    assert_int_equal(hello_reply_status(m), PS_EPROTO);
    m->status = PS_EGREETING; /* a refusal need not say */
    assert_int_equal(hello_reply_status(m), 0);
    m->status = 1;
    assert_int_equal(hello_reply_status(m), PS_EPROTO);
    m->status = INT32_MIN; /* status_text() could not even negate it */
    assert_int_equal(hello_reply_status(m), PS_EPROTO);
    free(m);
}

static void table_and_its_reply_come_back(void **state)
{
    struct table_request m = { .spec = messages_spec(), .must_exist = true }, got;
    struct table_reply r = { 0, "made", UINT32_MAX, messages_spec(), 1 }, got_reply;
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    assert_int_equal(message_write_table(&b, 2, &m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_table(&f.header, f.head, &got), 0);
    assert_true(got.must_exist);
    assert_int_equal(table_spec_same(&m.spec, &got.spec, NULL), 0);
    messages_close(&f, &b);

    assert_int_equal(message_write_table_reply(&b, 2, &r), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_table_reply(&f.header, f.head, &got_reply), 0);
    assert_int_equal(table_spec_same(&r.spec, &got_reply.spec, NULL), 0);
    assert_true(got_reply.table_id == UINT32_MAX && got_reply.status == 0);
    assert_string_equal(got_reply.text, "made");
    messages_close(&f, &b);

    r.status = PS_ESPEC;
    assert_int_equal(message_write_table_reply(&b, 2, &r), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_table_reply(&f.header, f.head, &got_reply), 0);
    assert_int_equal(got_reply.status, PS_ESPEC);
    assert_int_equal(got_reply.spec.dim, 0);
    messages_close(&f, &b);
}

static void enums_out_of_range_are_refused(void **state)
{
    (void)state;
    for (int which = 0; which < 6; which++) {
        struct table_request m = { .spec = messages_spec() }, got;
        struct bytes b = { 0 };
        struct messages_frame f;

        if (which == 0)
            m.spec.kind = (enum table_spec_kind)TABLE_SPEC_KIND_END;
        if (which == 1)
            m.spec.init = (enum table_spec_init)UINT32_MAX;
        if (which == 2)
            m.spec.schedule.decay = TABLE_SPEC_DECAY_END;
        if (which == 3)
            m.spec.mode = TABLE_SPEC_MODE_END;
        if (which == 4)
            m.spec.storage = TABLE_SPEC_STORAGE_END;
        if (which == 5)
            m.spec.limits.victims = (enum table_spec_victims)UINT32_MAX;
        assert_int_equal(message_write_table(&b, 2, &m), 0);
        f = messages_open(&b);
        assert_int_equal(message_read_table(&f.header, f.head, &got), PS_EPROTO);
        messages_close(&f, &b);
    }
}

/* The shard refuses it with a sentence; a client that met one would not know the size of its rows. */
static void the_optimizer_of_a_later_version_is_read_in_a_request_alone(void **state)
{
    struct table_request m = { .spec = messages_spec() }, got;
    struct table_reply reply = { .spec = messages_spec() }, got_reply;
    struct bytes b = { 0 }, more = { 0 };
    struct messages_frame f;

    (void)state;
    m.spec.optim = reply.spec.optim = TABLE_SPEC_OPTIM_END;
    assert_int_equal(message_write_table(&b, 2, &m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_table(&f.header, f.head, &got), 0);
    assert_int_equal(got.spec.optim, TABLE_SPEC_OPTIM_END);
    messages_close(&f, &b);
    assert_int_equal(message_write_table_reply(&more, 2, &reply), 0);
    f = messages_open(&more);
    assert_int_equal(message_read_table_reply(&f.header, f.head, &got_reply), PS_EPROTO);
    messages_close(&f, &more);
}

static void join_and_its_reply_come_back(void **state)
{
    struct join m = {
        "",  UINT32_MAX, 2,  UINT64_MAX, TABLE_SPEC_MODE_SSP, 4, UINT64_MAX - 1, 77,
        "w", true,       63, NULL
    };
    struct join got;
    struct join_reply r = { PS_EJOB,        "",         UINT64_MAX,     5,
                            UINT64_MAX - 9, UINT32_MAX, true,           UINT64_MAX - 2,
                            UINT64_MAX - 3, PS_ENAN,    UINT64_MAX - 5, UINT64_MAX - 4,
                            UINT64_MAX - 6, 62 },
                      got_reply;
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    messages_text(m.job, sizeof m.job);
    messages_text(r.text, sizeof r.text);
    assert_int_equal(message_write_join(&b, 3, &m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_join(&f.header, f.head, &got), 0);
    assert_string_equal(got.job, m.job);
    assert_true(got.rank == UINT32_MAX && got.n_workers == 2 && got.incarnation == UINT64_MAX);
    assert_true(got.mode == TABLE_SPEC_MODE_SSP && got.bound == 4 && got.last_acked == 77);
    assert_true(got.clock == UINT64_MAX - 1 && got.n_backups == 63);
    messages_close(&f, &b);

    m.mode = TABLE_SPEC_MODE_JOB; /* of a table only */
    assert_int_equal(message_write_join(&b, 3, &m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_join(&f.header, f.head, &got), PS_EPROTO);
    messages_close(&f, &b);

    assert_int_equal(message_write_join_reply(&b, 3, &r), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_join_reply(&f.header, f.head, &got_reply), 0);
    assert_true(got_reply.status == PS_EJOB && got_reply.last_applied == UINT64_MAX);
    assert_true(got_reply.clock == 5 && got_reply.min_clock == UINT64_MAX - 9);
    assert_true(got_reply.lease_ms == UINT32_MAX && got_reply.resumed);
    assert_true(got_reply.fenced_below == UINT64_MAX - 2);
    assert_true(got_reply.refused_seq == UINT64_MAX - 3);
    assert_int_equal(got_reply.refused_status, PS_ENAN);
    assert_true(got_reply.lost_first == UINT64_MAX - 5 &&
                got_reply.lost_last == UINT64_MAX - 4);
    assert_true(got_reply.skipped_clocks == UINT64_MAX - 6 && got_reply.n_backups == 62);
    assert_string_equal(got_reply.text, r.text);
    messages_close(&f, &b);

    r.refused_status = 1; /* no status that a reply may tell of */
    assert_int_equal(message_write_join_reply(&b, 3, &r), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_join_reply(&f.header, f.head, &got_reply), PS_EPROTO);
    messages_close(&f, &b);
}

/* All that a training run reports, in as many bytes as the figure in proto/README.md. */
static void a_report_of_learning_comes_back(void **state)
{
    struct beat m = { .clock = 1 << 20,
                      .has_learning = true,
                      .learning = { .samples = 45000000,
                                    .steps = 812,
                                    .loss = 0.45234f,
                                    .samples_per_s = 123456.0f,
                                    .busy = { 1000, 40, 300, 999, 20, 5 },
                                    .n_validations = 3,
                                    .auc = 0.78f,
                                    .logloss = 0.46f,
                                    .has_one_class = true },
                      .job = "",
                      .rank = 0,
                      .incarnation = 0 };
    struct beat plain = { .clock = 1 << 20 }, got;
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    assert_int_equal(message_write_beat(&b, 4, &plain), 0);
    f = messages_open(&b);
    assert_int_equal(f.header.head_bytes, 4); /* of a worker that has nothing new: as ever */
    assert_int_equal(message_read_beat(&f.header, f.head, &got), 0);
    assert_false(got.has_learning);
    messages_close(&f, &b);
    assert_int_equal(message_write_beat(&b, 4, &m), 0);
    f = messages_open(&b);
    assert_in_range(f.header.head_bytes, 1, 64);
    assert_int_equal(message_read_beat(&f.header, f.head, &got), 0);
    assert_true(got.has_learning && got.clock == 1 << 20);
    assert_memory_equal(&got.learning, &m.learning, sizeof m.learning);
    assert_string_equal(got.job, "");
    messages_close(&f, &b);
    snprintf(m.job, sizeof m.job, "ads");
    m.rank = 3;
    m.incarnation = UINT64_MAX;
    m.learning.loss = NAN; /* it is the reader's to refuse */
    assert_int_equal(message_write_beat(&b, 4, &m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_beat(&f.header, f.head, &got), 0);
    assert_true(got.rank == 3 && got.incarnation == UINT64_MAX && isnan(got.learning.loss));
    assert_non_null(learning_report_wrong(&got.learning));
    assert_string_equal(got.job, "ads");
    messages_close(&f, &b);
    m.job[0] = '\n';
    assert_int_equal(message_write_beat(&b, 4, &m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_beat(&f.header, f.head, &got), PS_EPROTO);
    messages_close(&f, &b);
}

static void clocks_and_status_replies_come_back(void **state)
{
    struct status_reply m = { PS_EFENCED, "fenced", UINT64_MAX, { 0 }, { 0 }, 7 }, got;
    struct bytes b = { 0 };
    struct messages_frame f;
    struct beat beat;
    uint64_t clock;

    (void)state;
    assert_int_equal(message_write_beat(&b, 4, &(struct beat){ .clock = UINT64_MAX }), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_beat(&f.header, f.head, &beat), 0);
    assert_true(f.header.type == FRAME_BEAT && beat.clock == UINT64_MAX);
    assert_int_equal(beat.suspects.n, 0);
    messages_close(&f, &b);
    assert_int_equal(message_write_leave(&b, 4, 0), 0);
    f = messages_open(&b);
    assert_int_equal(f.header.head_bytes, 0);
    assert_int_equal(message_read_leave(&f.header, f.head, &clock), 0);
    assert_true(f.header.type == FRAME_LEAVE && clock == 0);
    messages_close(&f, &b);
    for (int leave = 0; leave < 2; leave++) {
        enum frame_type type = leave ? FRAME_LEAVE_REPLY : FRAME_BEAT_REPLY;

        assert_int_equal(message_write_status_reply(&b, type, 4, &m), 0);
        f = messages_open(&b);
        assert_int_equal(f.header.type, type);
        assert_int_equal(message_read_status_reply(&f.header, f.head, &got), 0);
        assert_true(got.status == PS_EFENCED && got.min_clock == UINT64_MAX);
        assert_string_equal(got.text, "fenced");
        messages_close(&f, &b);
    }
}

static void assert_same(const struct suspects *a, const struct suspects *b)
{
    assert_int_equal(a->n, b->n);
    for (uint32_t i = 0; i < a->n; i++) {
        assert_int_equal(a->items[i].rank, b->items[i].rank);
        assert_true(a->items[i].incarnation == b->items[i].incarnation);
        assert_true(a->items[i].clock == b->items[i].clock);
        assert_int_equal(a->items[i].is_agreed, b->items[i].is_agreed);
    }
}

static void as_many_suspects_as_a_message_takes_come_back_and_no_more(void **state)
{
    struct beat beat = { .clock = 7 }, got_beat;
    struct status_reply reply = { .min_clock = 3 }, got_reply;
    struct messages_frame f;
    struct bytes b = { 0 };

    (void)state;
    for (uint32_t n = 0; n <= MESSAGE_SUSPECTS_MAX; n++) {
        beat.suspects.n = n;
        if (n)
            beat.suspects.items[n - 1] =
                (struct suspect){ n, UINT64_MAX - n, UINT64_MAX / n, n % 2 };
        reply.suspects = reply.doubted = beat.suspects;
        assert_int_equal(message_write_beat(&b, 4, &beat), 0);
        f = messages_open(&b);
        assert_int_equal(message_read_beat(&f.header, f.head, &got_beat), 0);
        assert_same(&got_beat.suspects, &beat.suspects);
        messages_close(&f, &b);
        assert_int_equal(message_write_status_reply(&b, FRAME_BEAT_REPLY, 4, &reply), 0);
        f = messages_open(&b);
        assert_int_equal(message_read_status_reply(&f.header, f.head, &got_reply), 0);
        assert_same(&got_reply.suspects, &beat.suspects);
        assert_same(&got_reply.doubted, &beat.suspects);
        messages_close(&f, &b);
    }
    /* One more: as the others, whose bytes stand in the head as they came. */
    assert_int_equal(message_write_beat(&b, 4, &beat), 0);
    f = messages_open(&b);
    {
        uint8_t more[1024];
        struct frame_header h = f.header;

        memcpy(more, f.head, h.head_bytes);
        memcpy(more + h.head_bytes, (const uint8_t[]){ 0x12, 0 }, 2); /* a suspect of zeros */
        h.head_bytes += 2;
        assert_int_equal(message_read_beat(&h, more, &got_beat), PS_EPROTO);
    }
    messages_close(&f, &b);
}

static void admin_and_its_json_come_back(void **state)
{
    struct admin m = { "checkpoint", "now" }, got;
    struct status_reply r = { 0, "", 0, { 0 }, { 0 }, 0 }, got_reply;
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    messages_text(m.argument, sizeof m.argument);
    assert_int_equal(message_write_admin(&b, 5, &m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_admin(&f.header, f.head, &got), 0);
    assert_string_equal(got.command, "checkpoint");
    assert_string_equal(got.argument, m.argument);
    messages_close(&f, &b);
    assert_int_equal(message_write_admin_reply(&b, 5, &r, "{\"a\":1}", 7), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_status_reply(&f.header, f.head, &got_reply), 0);
    assert_int_equal(f.body_bytes, 7);
    assert_memory_equal(f.body, "{\"a\":1}", 7);
    messages_close(&f, &b);
    assert_int_equal(message_write_admin_reply(&b, 5, &r, NULL, 0), 0);
    f = messages_open(&b);
    assert_int_equal(f.body_bytes, 0);
    messages_close(&f, &b);
}

static void sentences_are_cleaned_and_names_are_not(void **state)
{
    struct status_reply m = { 0, "two\nlines\x1b[31m", 0, { 0 }, { 0 }, 0 }, got;
    struct admin bad = { "a\nb", "" }, got_bad;
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    assert_int_equal(message_write_status_reply(&b, FRAME_BEAT_REPLY, 4, &m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_status_reply(&f.header, f.head, &got), 0);
    assert_string_equal(got.text, "two?lines?[31m");
    messages_close(&f, &b);
    assert_int_equal(message_write_admin(&b, 4, &bad), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_admin(&f.header, f.head, &got_bad), PS_EPROTO);
    messages_close(&f, &b);
}

/* The head of an Admin whose command is n bytes long, by hand. */
static void strings_that_do_not_fit_are_refused_and_sentences_are_truncated(void **state)
{
    struct frame_header h = { .type = FRAME_ADMIN };
    struct status_reply reply;
    uint8_t head[600];
    struct admin got;

    (void)state;
    head[0] = 0x0a;
    head[1] = 31;
    memset(head + 2, 'x', 40);
    h.head_bytes = 33;
    assert_int_equal(message_read_admin(&h, head, &got), 0);
    assert_int_equal(strlen(got.command), 31);
    head[1] = 32;
    h.head_bytes = 34;
    assert_int_equal(message_read_admin(&h, head, &got), PS_EPROTO);
    head[0] = 0x12; /* StatusReply.text, 300 bytes */
    head[1] = 0xac;
    head[2] = 0x02;
    memset(head + 3, 'y', 300);
    h.head_bytes = 303;
    assert_int_equal(message_read_status_reply(&h, head, &reply), 0);
    assert_int_equal(strlen(reply.text), MESSAGE_TEXT_MAX - 1);
}

static void several_frames_stand_in_one_buffer(void **state)
{
    struct bytes b = { 0 };
    struct frame_header h;
    struct beat beat;

    (void)state;
    for (uint64_t i = 0; i < 1000; i++)
        assert_int_equal(message_write_beat(&b, i, &(struct beat){ .clock = i * i }), 0);
    for (uint64_t i = 0; i < 1000; i++) {
        assert_int_equal(frame_decode(bytes_front(&b), FRAME_MAX, &h), 0);
        assert_int_equal(frame_verify(bytes_front(&b), &h), 0);
        assert_int_equal(message_read_beat(&h, bytes_front(&b) + FRAME_HEADER_BYTES, &beat), 0);
        assert_true(h.request_id == i && beat.clock == i * i);
        bytes_consume(&b, FRAME_HEADER_BYTES + h.head_bytes + h.body_bytes);
    }
    assert_int_equal(bytes_len(&b), 0);
    bytes_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_comes_back),
        cmocka_unit_test(hello_reply_comes_back),
        cmocka_unit_test(a_cluster_that_cannot_be_is_refused),
        cmocka_unit_test(table_and_its_reply_come_back),
        cmocka_unit_test(enums_out_of_range_are_refused),
        cmocka_unit_test(the_optimizer_of_a_later_version_is_read_in_a_request_alone),
        cmocka_unit_test(join_and_its_reply_come_back),
        cmocka_unit_test(a_report_of_learning_comes_back),
        cmocka_unit_test(clocks_and_status_replies_come_back),
        cmocka_unit_test(as_many_suspects_as_a_message_takes_come_back_and_no_more),
        cmocka_unit_test(admin_and_its_json_come_back),
        cmocka_unit_test(sentences_are_cleaned_and_names_are_not),
        cmocka_unit_test(strings_that_do_not_fit_are_refused_and_sentences_are_truncated),
        cmocka_unit_test(several_frames_stand_in_one_buffer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
