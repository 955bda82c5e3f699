/* Whatever happens to a primary's shard: a standby that gets its records in pieces, some twice, with a log that is full
 * now and then and with connections that end anywhere, is at each promotion that shard as it was at some record, and
 * its log has the primary's records up to there. */
#include "server/replication/follower.h"

#include "server/replication/audit.h"
#include "tests/support/seed.h"
#include "tests/unit/core/replay_world.h"

static const struct shape small = { .n_keys = 60, .n_large = 50, .limits = true };
static const struct shape large = { .n_keys = 2500, .n_large = 1400, .limits = true };

struct bytes_of {
    uint8_t *bytes; /* owned, aligned */
    size_t n, *starts;
    size_t n_records;
};

struct pair {
    struct world w;
    struct bytes_of sent; /* all records of the primary, so far */
    struct shard *s;      /* the standby's */
    struct follower f;
    size_t n_logged_bytes; /* of the standby's log: the same bytes, as far as it goes */
    uint64_t n_logged;
    bool is_full;
    struct audit_cursor audited;
};

struct counts {
    uint64_t n_records, n_promotions, n_full, n_short, n_held, n_audits, n_rows;
};

/* --- the primary's records --- */

static void add_record(struct bytes_of *b, uint64_t number, const struct shard_event *event)
{
    const struct wal_record record = { .number = number, .unix_ms = number, .event = *event };
    size_t n = wal_record_bytes(&record);
    uint32_t crc = 0;

    b->bytes = realloc(b->bytes, b->n + n);
    b->starts = realloc(b->starts, (b->n_records + 2) * sizeof *b->starts);
    b->starts[b->n_records++] = b->n;
    wal_record_encode(b->bytes + b->n, &record);
    wal_record_seal(b->bytes + b->n, &crc);
    b->n += n;
    b->starts[b->n_records] = b->n;
}

static void ship_all(struct pair *p)
{
    const struct event_log *log = p->w.event_log;

    while (p->sent.n_records < log->n)
        add_record(&p->sent, p->sent.n_records + 1, &log->events[p->sent.n_records]->e);
}

/* --- the standby's log --- */

static int reserve(void *owner, size_t n_bytes)
{
    const struct pair *p = owner;

    assert_true(n_bytes > 0);
    return p->is_full ? -EAGAIN : 0;
}

static uint64_t append(void *owner, const struct wal_record *record)
{
    struct pair *p = owner;
    struct wal_record copy = *record;
    size_t n = wal_record_bytes(record);
    uint8_t *bytes = malloc(n);
    uint32_t crc = 0;

    assert_int_equal(record->number, ++p->n_logged);
    wal_record_encode(bytes, &copy);
    wal_record_seal(bytes, &crc);
    assert_memory_equal(bytes, p->sent.bytes + p->n_logged_bytes, n);
    p->n_logged_bytes += n;
    free(bytes);
    return record->number;
}

static struct follower_log log_of(struct pair *p)
{
    return (struct follower_log){ p, reserve, append };
}

/* --- the two of them --- */

static void begin_pair(struct pair *p, const struct shape *shape, struct dice dice,
                       uint64_t round)
{
    struct follower_log log;

    enter_shard();
    *p = (struct pair){ .w = begin_world_of(dice, shape, round) };
    log = log_of(p);
    p->s = shard_new(&p->w.config);
    replay_begin(p->s);
    follower_init(&p->f, p->s, &log, 0, 0);
}

static void end_pair(struct pair *p)
{
    enter_shard();
    follower_deinit(&p->f);
    shard_free(p->s);
    finish_push(&p->w);
    bsp_finish(p->w.s);
    end_world(&p->w);
    free(p->sent.bytes);
    free(p->sent.starts);
}

/* A reply: from somewhere before what is there, so many records. */
static void fetch(struct pair *p, struct counts *sums)
{
    uint64_t back = roll(&p->w.dice, 4) ? 0 : roll(&p->w.dice, 10);
    uint64_t first = p->f.received + 1 - (back > p->f.received ? p->f.received : back);
    uint64_t n = p->sent.n_records + 1 - first;
    struct err err = { 0 };

    if (n > 1)
        n = 1 + roll(&p->w.dice, n > 200 ? 200 : n);
    if (n > p->sent.n_records + 1 - first)
        n = p->sent.n_records + 1 - first;
    if (!n)
        return;
    if (follower_add(&p->f, first, (uint32_t)n, p->sent.bytes + p->sent.starts[first - 1],
                     p->sent.starts[first - 1 + n] - p->sent.starts[first - 1], &err))
        fail_msg("%s", err.text);
    assert_true(p->f.received >= first + n - 1);
    sums->n_records += n;
}

static void run(struct pair *p, struct counts *sums)
{
    struct err err = { 0 };
    int status;

    enter_shard();
    p->is_full = roll(&p->w.dice, 5) == 0;
    status = follower_run(&p->f, p->w.now_ms, &err);
    if (status && status != -EAGAIN)
        fail_msg("%s", err.text);
    sums->n_full += status == -EAGAIN;
    if (!status)
        assert_int_equal(p->f.replayed, p->f.received);
    sums->n_held += p->f.replayed > p->f.applied;
    assert_int_equal(p->f.applied, p->n_logged);
}

/* What the primary has now, at its newest record; the standby may be far behind that. */
static void audit(struct pair *p, struct counts *sums)
{
    uint8_t bytes[MESSAGE_AUDIT_MAX];
    size_t n;

    enter_shard();
    n = audit_take(p->w.s, p->sent.n_records, &p->audited, bytes);
    if (!n)
        return;
    assert_int_equal(audit_number(bytes, n), p->sent.n_records);
    assert_int_equal(follower_audit(&p->f, bytes, (uint32_t)n), 0);
    sums->n_audits++;
    sums->n_rows += n / AUDIT_ROW_BYTES;
}

/* The standby serves: it is what the primary was at that record. */
static void promote(struct pair *p, struct counts *sums)
{
    struct shard *reference;

    enter_shard();
    sums->n_short += p->f.received > p->f.applied;
    follower_stop(&p->f);
    replay_end(p->s, p->w.now_ms);
    assert_int_equal(try_restore(&p->w.config, NULL, 0, p->w.event_log, p->f.applied,
                                 p->w.now_ms, &reference),
                     0);
    assert_same_shard(reference, p->s);
    shard_free(reference);
    sums->n_promotions++;
}

static void live(const struct shape *shape, struct dice dice, uint64_t round,
                 struct counts *sums)
{
    uint64_t n_steps = 1 + roll(&dice, 300);
    struct pair p;

    begin_pair(&p, shape, dice, round);
    for (uint64_t i = 0; i < n_steps; i++) {
        step(&p.w);
        ship_all(&p);
        if (roll(&p.w.dice, 2))
            audit(&p, sums);
        while (roll(&p.w.dice, 2))
            fetch(&p, sums);
        run(&p, sums);
        if (roll(&p.w.dice, 40) == 0) {
            enter_shard();
            follower_stop(&p.f);
            assert_int_equal(p.f.received, p.f.applied);
        }
    }
    if (roll(&p.w.dice, 2))
        fetch(&p, sums);
    promote(&p, sums);
    end_pair(&p);
}

static void is_the_primary_at_some_record(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    struct counts sums = { 0 };

    (void)state;
    for (uint64_t round = 0; round < 60; round++) {
        struct dice own = { seed + round * 77, 0 };

        live(round % 4 ? &small : &large, own, round, &sums);
    }
    print_message("%llu audits of %llu rows\n", (unsigned long long)sums.n_audits,
                  (unsigned long long)sums.n_rows);
    assert_true(sums.n_audits > 100 && sums.n_rows > 1000);
    print_message("%llu records, %llu promotions, %llu of them before all that was received; "
                  "%llu times full, %llu times rows that waited for their push\n",
                  (unsigned long long)sums.n_records, (unsigned long long)sums.n_promotions,
                  (unsigned long long)sums.n_short, (unsigned long long)sums.n_full,
                  (unsigned long long)sums.n_held);
    assert_true(sums.n_full > 0 && sums.n_held > 0);
}

/* --- what a primary must not send --- */

static void must_refuse(struct pair *p, uint64_t first, uint32_t n_records,
                        const uint8_t *records, size_t n_bytes, const char *says)
{
    struct err err = { 0 };
    uint64_t received = p->f.received;

    assert_int_equal(follower_add(&p->f, first, n_records, records, n_bytes, &err), PS_EPROTO);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" does not say \"%s\"", err.text, says);
    assert_int_equal(p->f.received, received);
}

static void refuses_what_is_no_record(void **state)
{
    struct dice dice = { 7, 0 };
    struct pair p;
    uint8_t *copy;
    size_t n;

    (void)state;
    begin_pair(&p, &small, dice, 1);
    for (int i = 0; i < 20; i++)
        step(&p.w);
    ship_all(&p);
    assert_true(p.sent.n_records > 4);
    n = p.sent.starts[2];
    copy = malloc(n);
    memcpy(copy, p.sent.bytes, n);
    must_refuse(&p, 2, 1, p.sent.bytes + p.sent.starts[1], p.sent.starts[2] - p.sent.starts[1],
                "1 was asked for");
    must_refuse(&p, 0, 2, copy, n, "1 was asked for");
    must_refuse(&p, 1, 1, copy, n, "no records");
    must_refuse(&p, 1, 3, copy, n, "no records");
    must_refuse(&p, 1, 2, copy, n - 8, "no records");
    copy[8] ^= 2; /* its number */
    must_refuse(&p, 1, 2, copy, n, "no records");
    copy[8] ^= 2;
    memset(copy + 4, 0xff, 4); /* its length */
    must_refuse(&p, 1, 2, copy, n, "no records");
    free(copy);
    end_pair(&p);
}

/* What passes the frame's checksum and is wrong all the same is found before it is a row. */
static void refuses_a_damaged_record(void **state)
{
    struct dice dice = { 9, 0 };
    struct counts sums = { 0 };
    struct err err = { 0 };
    struct pair p;
    uint8_t *copy;
    size_t n;

    (void)state;
    begin_pair(&p, &small, dice, 2);
    for (int i = 0; i < 20; i++)
        step(&p.w);
    ship_all(&p);
    n = p.sent.starts[1];
    copy = malloc(n);
    memcpy(copy, p.sent.bytes, n);
    copy[n / 2 > 40 ? n / 2 : 40] ^= 1;
    assert_int_equal(follower_add(&p.f, 1, 1, copy, n, &err), 0);
    enter_shard();
    assert_int_equal(follower_run(&p.f, 0, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, "record 1 of the primary cannot be read"));
    assert_int_equal(p.f.applied, 0);
    follower_stop(&p.f);
    assert_int_equal(follower_add(&p.f, 1, 1, p.sent.bytes, n, &err), 0);
    run(&p, &sums);
    free(copy);
    end_pair(&p);
}

/* What a newer psd writes is not acknowledged, and what comes before it counts. */
static void a_record_of_an_unknown_type_is_not_received(void **state)
{
    enum { UNKNOWN = 3 };
    const uint32_t type = 4711;
    struct dice dice = { 11, 0 };
    struct counts sums = { 0 };
    struct err err = { 0 };
    struct pair p;
    uint8_t *copy;
    uint32_t n;

    (void)state;
    begin_pair(&p, &small, dice, 1);
    for (int i = 0; i < 20; i++)
        step(&p.w);
    ship_all(&p);
    n = (uint32_t)p.sent.n_records;
    assert_true(n > UNKNOWN);
    copy = malloc(p.sent.n);
    memcpy(copy, p.sent.bytes, p.sent.n);
    memcpy(copy + p.sent.starts[UNKNOWN - 1] + 32, &type, sizeof type);
    for (int i = 0; i < 2; i++) { /* the second time nothing is new */
        assert_int_equal(follower_add(&p.f, 1, n, copy, p.sent.n, &err), 0);
        assert_int_equal(p.f.received, UNKNOWN - 1);
        assert_int_equal(p.f.unknown, UNKNOWN);
        assert_int_equal(p.f.unknown_type, type);
        run(&p, &sums);
    }
    assert_int_equal(follower_add(&p.f, UNKNOWN, n - UNKNOWN + 1,
                                  copy + p.sent.starts[UNKNOWN - 1],
                                  p.sent.n - p.sent.starts[UNKNOWN - 1], &err),
                     0);
    assert_int_equal(p.f.received, UNKNOWN - 1);
    assert_int_equal(follower_add(&p.f, 1, n, p.sent.bytes, p.sent.n, &err),
                     0); /* as an upgraded one reads it */
    assert_int_equal(p.f.unknown, 0);
    assert_int_equal(p.f.received, n);
    run(&p, &sums);
    promote(&p, &sums);
    free(copy);
    end_pair(&p);
}

/* --- a row that is not the primary's --- */

static struct row *any_row(struct shard *s, uint64_t at)
{
    for (uint32_t id = 0; id < shard_n_tables(s); id++) {
        struct shard_table *t = shard_table(s, id);
        uint64_t n = t ? table_n_numbers(t->rows) : 0;

        for (uint64_t i = 0; i < n; i++) {
            struct row *row = table_row(t->rows, (at + i) % n);

            if (row && t->payload_bytes)
                return row;
        }
    }
    return NULL;
}

/* The audits that go once through all rows of the primary. True: a difference was found. */
static bool is_found(struct pair *p, char *ret_text)
{
    struct counts sums = { 0 };
    struct err err = { 0 };
    int status = 0;

    for (uint32_t i = 0; i < 200 && !status; i++) {
        audit(p, &sums);
        status = follower_run(&p->f, p->w.now_ms, &err);
    }
    assert_true(status == 0 || status == PS_ECORRUPT);
    assert_int_equal(p->f.differs, status != 0);
    snprintf(ret_text, 256, "%s", err.text);
    return status != 0;
}

static void alter_and_find(uint32_t what, struct dice dice)
{
    static const char *const says[] = { "has other values here", "is of version",
                                        "and this standby does not" };
    char text[256];
    struct row *row;
    struct pair p;

    begin_pair(&p, &small, dice, 3);
    for (uint32_t i = 0; i < 2000 && !any_row(p.w.s, 0); i++)
        step(&p.w);
    enter_shard();
    finish_push(&p.w);
    bsp_finish(p.w.s);
    ship_all(&p);
    if (follower_add(&p.f, 1, (uint32_t)p.sent.n_records, p.sent.bytes, p.sent.n,
                     &(struct err){ 0 }))
        fail();
    if (is_found(&p, text))
        fail_msg("without a difference: %s", text);
    row = any_row(p.s, roll(&dice, 50));
    assert_non_null(row);
    if (what == 0)
        ((uint8_t *)row->floats)[1] ^= 1;
    else if (what == 1)
        row->stamp += UINT64_C(1) << 16;
    else
        row->key ^= UINT64_C(1) << 60; /* found under its key no more */
    assert_true(is_found(&p, text));
    if (!strstr(text, says[what]))
        fail_msg("%s", text);
    if (what == 2)
        row->key ^= UINT64_C(1) << 60;
    follower_stop(&p.f);
    end_pair(&p);
}

static void an_altered_row_is_found(void **state)
{
    const uint64_t seed = seed_by_the_clock();

    (void)state;
    for (uint32_t i = 0; i < 30; i++)
        alter_and_find(i % 3, (struct dice){ seed + i, 0 });
}

static void refuses_what_is_no_audit(void **state)
{
    struct dice dice = { 7, 0 };
    uint8_t bytes[MESSAGE_AUDIT_MAX] = { 1 };
    struct pair p;

    (void)state;
    begin_pair(&p, &small, dice, 1);
    assert_int_equal(follower_audit(&p.f, bytes, 7), PS_EPROTO);
    assert_int_equal(follower_audit(&p.f, bytes, 9), PS_EPROTO);
    assert_int_equal(follower_audit(&p.f, bytes, 8 + AUDIT_ROW_BYTES - 1), PS_EPROTO);
    memset(bytes, 0, 8); /* there is no record 0 */
    assert_int_equal(follower_audit(&p.f, bytes, 8 + AUDIT_ROW_BYTES), PS_EPROTO);
    memset(bytes, 0xff,
           sizeof bytes); /* a record that never comes, of a table that is not there */
    assert_int_equal(follower_audit(&p.f, bytes, sizeof bytes), 0);
    follower_stop(&p.f);
    assert_int_equal(p.f.audit_at, 0);
    end_pair(&p);
}

#ifdef PS_FAULTS
/* Records that there is no memory for are not received: they come again. */
static void goes_on_after_a_lack_of_memory(void **state)
{
    struct dice dice = { 11, 0 };
    struct counts sums = { 0 };
    struct err err = { 0 };
    uint64_t n_refused = 0;
    struct pair p;

    (void)state;
    begin_pair(&p, &small, dice, 4);
    for (int i = 0; i < 200; i++) {
        uint64_t from = p.f.received, first = from + 1;

        step(&p.w);
        ship_all(&p);
        if (p.sent.n_records == from)
            continue;
        memory_fail_after(i % 2);
        if (follower_add(&p.f, first, (uint32_t)(p.sent.n_records - from),
                         p.sent.bytes + p.sent.starts[from], p.sent.n - p.sent.starts[from],
                         &err)) {
            n_refused++;
            assert_int_equal(err.status, -ENOMEM);
            assert_int_equal(p.f.received, from);
        }
        memory_fail_after(-1);
        run(&p, &sums);
    }
    assert_true(n_refused > 0);
    promote(&p, &sums);
    end_pair(&p);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_the_primary_at_some_record),
        cmocka_unit_test(refuses_what_is_no_record),
        cmocka_unit_test(refuses_a_damaged_record),
        cmocka_unit_test(a_record_of_an_unknown_type_is_not_received),
        cmocka_unit_test(an_altered_row_is_found),
        cmocka_unit_test(refuses_what_is_no_audit),
#ifdef PS_FAULTS
        cmocka_unit_test(goes_on_after_a_lack_of_memory),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
