/* The messages between nodes, and of those who watch them: written, read, and refused. */
#include "common/crc32c.h"
#include "common/status.h"
#include "proto/message_replication.h"
#include "tests/unit/proto/messages.h"

static struct groups some_groups(void)
{
    return (struct groups){
        7, 2, { { 65536, true, "10.0.0.1:7070", "10.0.0.2:7070" }, { 3, false, "c:1", "" } }
    };
}

static void assert_groups(const struct groups *got)
{
    struct groups want = some_groups();

    assert_true(got->number == want.number && got->n == want.n);
    for (uint32_t i = 0; i < want.n; i++) {
        assert_true(got->items[i].term == want.items[i].term);
        assert_true(got->items[i].in_sync == want.items[i].in_sync);
        assert_string_equal(got->items[i].primary, want.items[i].primary);
        assert_string_equal(got->items[i].standby, want.items[i].standby);
    }
}

static void groups_come_with_a_hello_reply(void **state)
{
    struct hello_reply *m = messages_hello_reply(), *got = calloc(1, sizeof *got);
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    m->n_nodes = 2;
    m->node = 1;
    m->groups = some_groups();
    assert_int_equal(message_write_hello_reply(&b, 1, m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_hello_reply(&f.header, f.head, got), 0);
    assert_groups(&got->groups);
    messages_close(&f, &b);

    m->groups.n = 1; /* there are two nodes */
    assert_int_equal(message_write_hello_reply(&b, 1, m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_hello_reply(&f.header, f.head, got), PS_EPROTO);
    messages_close(&f, &b);
    free(got);
    free(m);
}

static void watch_comes_back(void **state)
{
    struct watch watch = { 6, 10000 }, got;
    struct watch_reply *reply = calloc(1, sizeof *reply), *again = calloc(1, sizeof *again);
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    assert_int_equal(message_write_watch(&b, 1, &watch), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_watch(&f.header, f.head, &got), 0);
    assert_true(got.above == 6 && got.wait_ms == 10000);
    messages_close(&f, &b);

    reply->groups = some_groups();
    assert_int_equal(message_write_watch_reply(&b, 1, reply), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_watch_reply(&f.header, f.head, again), 0);
    assert_groups(&again->groups);
    messages_close(&f, &b);
    free(reply);
    free(again);
}

static void follow_comes_back(void **state)
{
    static uint8_t terms[3 * 3 * 8];
    struct follow *m = calloc(1, sizeof *m), *got = calloc(1, sizeof *got);
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    *m = (struct follow){ 5, 7,          1,          4096, "lease=10000", "avx2", "a.b:700",
                          2, { 9, 300 }, { 8, 290 }, 3,    terms };
    memset(terms, 0xa5, sizeof terms);
    assert_int_equal(message_write_follow(&b, 1, m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_follow(&f.header, f.head, f.body, f.body_bytes, got), 0);
    assert_true(got->term == 5 && got->history == 7 && got->features == 1 &&
                got->memory_max == 4096);
    assert_string_equal(got->settings, "lease=10000");
    assert_string_equal(got->cpu, "avx2");
    assert_string_equal(got->address, "a.b:700");
    assert_true(got->n_shards == 2 && got->last[0] == 9 && got->last[1] == 300);
    assert_true(got->stored[0] == 8 && got->stored[1] == 290);
    assert_true(got->n_terms == 3 && memcmp(got->terms, terms, sizeof terms) == 0);
    /* A body that is no whole number of terms. */
    assert_int_equal(message_read_follow(&f.header, f.head, f.body, f.body_bytes - 8, got),
                     PS_ECOUNT);
    messages_close(&f, &b);
    free(m);
    free(got);
}

static void follow_reply_comes_back(void **state)
{
    static uint8_t terms[3 * 8];
    struct follow_reply *m = calloc(1, sizeof *m), *got = calloc(1, sizeof *got);
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    *m = (struct follow_reply){ 0,        "", 5,     7,      FOLLOW_GO_ON,       2,
                                { 8, 9 }, 1,  terms, "avx2", FOLLOW_BEGUN_LOSSY, 1500 };
    assert_int_equal(message_write_follow_reply(&b, 1, m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_follow_reply(&f.header, f.head, f.body, f.body_bytes, got),
                     0);
    assert_true(got->term == 5 && got->history == 7 && got->action == FOLLOW_GO_ON);
    assert_true(got->n_shards == 2 && got->keep[0] == 8 && got->keep[1] == 9);
    assert_true(got->n_terms == 1);
    assert_string_equal(got->cpu, "avx2");
    assert_int_equal(got->begun, FOLLOW_BEGUN_LOSSY);
    assert_int_equal(got->patience_ms, 1500);
    messages_close(&f, &b);

    m->begun = FOLLOW_BEGUN_END; /* of a newer psd */
    assert_int_equal(message_write_follow_reply(&b, 1, m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_follow_reply(&f.header, f.head, f.body, f.body_bytes, got),
                     0);
    assert_int_equal(got->begun, FOLLOW_BEGUN_UNKNOWN);
    messages_close(&f, &b);

    m->status = PS_ECLUSTER;
    strcpy(m->text, "no");
    assert_int_equal(message_write_follow_reply(&b, 1, m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_follow_reply(&f.header, f.head, f.body, f.body_bytes, got),
                     0);
    assert_true(got->status == PS_ECLUSTER && got->n_terms == 0);
    assert_string_equal(got->text, "no");
    messages_close(&f, &b);
    free(m);
    free(got);
}

static void file_comes_back(void **state)
{
    struct file_request m = { "00000000000000000007/shard-000.psc", 300, 65536 }, got;
    struct file_reply reply = { 0, "", 1000, (const uint8_t *)"abc", 3 }, again;
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    assert_int_equal(message_write_file(&b, 1, &m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_file(&f.header, f.head, &got), 0);
    assert_string_equal(got.name, m.name);
    assert_true(got.offset == 300 && got.max_bytes == 65536);
    messages_close(&f, &b);

    assert_int_equal(message_write_file_reply(&b, 1, &reply), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_file_reply(&f.header, f.head, f.body, f.body_bytes, &again),
                     0);
    assert_true(again.file_bytes == 1000 && again.n_bytes == 3);
    assert_memory_equal(again.bytes, "abc", 3);
    messages_close(&f, &b);
}

static int fetch_status(const struct fetch *m)
{
    struct bytes b = { 0 };
    struct messages_frame f;
    struct fetch got;
    int status;

    assert_int_equal(message_write_fetch(&b, 1, m), 0);
    f = messages_open(&b);
    status = message_read_fetch(&f.header, f.head, &got);
    if (!status) {
        assert_true(got.term == m->term && got.next == m->next && got.durable == m->durable);
        assert_true(got.applied == m->applied && got.heard_ms == m->heard_ms);
        assert_true(got.wait_ms == m->wait_ms && got.max_bytes == m->max_bytes);
        assert_string_equal(got.differs, m->differs);
    }
    messages_close(&f, &b);
    return status;
}

static void fetch_comes_back(void **state)
{
    (void)state;
    assert_int_equal(
        fetch_status(&(struct fetch){ 5, 400, 300, 200, 77, 1000, 65536, "key 7" }), 0);
    assert_int_equal(fetch_status(&(struct fetch){ .term = 1, .next = 1 }), 0);
    /* Nothing is before record 1; nobody has written or applied what it has not fetched. */
    assert_int_equal(fetch_status(&(struct fetch){ .term = 1 }), PS_EPROTO);
    assert_int_equal(fetch_status(&(struct fetch){ .next = 5, .durable = 5 }), PS_EPROTO);
    assert_int_equal(fetch_status(&(struct fetch){ .next = 5, .applied = 5 }), PS_EPROTO);
}

static int fetch_reply_status(const struct fetch_reply *m)
{
    struct bytes b = { 0 };
    struct messages_frame f;
    struct fetch_reply got;
    int status;

    assert_int_equal(message_write_fetch_reply(&b, 1, m), 0);
    f = messages_open(&b);
    status = message_read_fetch_reply(&f.header, f.head, f.body, f.body_bytes, &got);
    if (!status) {
        assert_true(got.term == m->term && got.first == m->first &&
                    got.n_records == m->n_records);
        assert_true(got.appended == m->appended && got.durable == m->durable &&
                    got.sent_ms == m->sent_ms && got.in_sync == m->in_sync &&
                    got.hands_over == m->hands_over);
        assert_true(got.record_bytes == m->record_bytes);
        assert_true(got.audit_bytes == m->audit_bytes);
        assert_memory_equal(got.audit, m->audit, m->audit_bytes);
    }
    messages_close(&f, &b);
    return status;
}

static void fetch_reply_comes_back(void **state)
{
    const uint8_t *bytes = (const uint8_t *)"12345678";

    (void)state;
    assert_int_equal(fetch_reply_status(&(struct fetch_reply){
                         0, "", 5, 400, 500, 450, 78, true, true, 3, bytes, 8, 2, { 7, 8 } }),
                     0);
    assert_int_equal(fetch_reply_status(&(struct fetch_reply){ .status = PS_EMOVED }), 0);
    /* Records without bytes, and the reverse; more on the disk than there is; numbers beyond the last. */
    assert_int_equal(fetch_reply_status(&(struct fetch_reply){ .first = 1, .n_records = 1 }),
                     PS_ECOUNT);
    assert_int_equal(
        fetch_reply_status(&(struct fetch_reply){ .records = bytes, .record_bytes = 8 }),
        PS_ECOUNT);
    assert_int_equal(fetch_reply_status(&(struct fetch_reply){ .durable = 1 }), PS_EPROTO);
    assert_int_equal(
        fetch_reply_status(&(struct fetch_reply){
            .first = UINT64_MAX, .n_records = 1, .records = bytes, .record_bytes = 8 }),
        PS_EPROTO);
}

/* The same frame, whichever way it is written, with the longest head. */
static void fetch_reply_is_written_around_its_records(void **state)
{
    static uint8_t records[100000];
    struct fetch_reply m = { .status = INT16_MIN,
                             .term = UINT64_MAX,
                             .first = UINT64_MAX,
                             .appended = UINT64_MAX,
                             .durable = UINT64_MAX,
                             .sent_ms = UINT64_MAX,
                             .in_sync = true,
                             .hands_over = true,
                             .n_records = UINT32_MAX,
                             .records = records,
                             .audit_bytes = MESSAGE_AUDIT_MAX };
    struct bytes around = { 0 };

    (void)state;
    memset(m.text, 'x', sizeof m.text - 1);
    memset(m.audit, 7, sizeof m.audit);
    for (size_t i = 0; i < sizeof records; i++)
        records[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t n = 8; n <= sizeof records; n = n * 3 + 8) {
        struct bytes frame = { 0 };

        m.record_bytes = n;
        assert_int_equal(message_write_fetch_reply(&frame, 9, &m), 0);
        bytes_deinit(&around);
        assert_non_null(bytes_reserve(&around, MESSAGE_FETCH_REPLY_MAX + n));
        memcpy(around.bytes + MESSAGE_FETCH_REPLY_MAX, records, n);
        bytes_commit(&around, MESSAGE_FETCH_REPLY_MAX + n);
        around.start = MESSAGE_FETCH_REPLY_MAX;
        assert_int_equal(
            message_write_fetch_reply_around(&around, crc32c_extend(0, records, n), 9, &m), 0);
        assert_int_equal(bytes_len(&around), bytes_len(&frame));
        assert_memory_equal(bytes_front(&around), bytes_front(&frame), bytes_len(&frame));
        bytes_deinit(&frame);
    }
    around.start = 100; /* too little before them */
    assert_int_equal(message_write_fetch_reply_around(&around, 0, 9, &m), PS_ETOOBIG);
    assert_int_equal(around.start, 100);
    bytes_deinit(&around);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_come_with_a_hello_reply),
        cmocka_unit_test(watch_comes_back),
        cmocka_unit_test(follow_comes_back),
        cmocka_unit_test(follow_reply_comes_back),
        cmocka_unit_test(file_comes_back),
        cmocka_unit_test(fetch_comes_back),
        cmocka_unit_test(fetch_reply_comes_back),
        cmocka_unit_test(fetch_reply_is_written_around_its_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
