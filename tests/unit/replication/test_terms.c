/* The file of a node's terms under faults, their bytes on the wire, and what two logs have in common. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/crc32c.h"
#include "common/memory.h"
#include "server/replication/terms.h"
#include "tests/support/crash_files.h"
#include "tests/support/seed.h"

#define DIR "data"
#define PATH DIR "/TERMS"

static struct terms example(uint32_t n_terms)
{
    struct terms t = { .role = TERMS_PRIMARY,
                       .ack = TERMS_ACK_DISK,
                       .in_sync = true,
                       .is_durable = true,
                       .peer = "10.0.0.2:7070" };

    terms_begin_history(&t, 0xfeedULL << 40, 7, 2);
    for (uint64_t i = 1; i <= n_terms; i++)
        terms_begin(&t, i, (uint64_t[]){ i * 10, i * 20 });
    return t;
}

static void assert_same_list(const struct terms *a, const struct terms *b)
{
    assert_int_equal(a->history, b->history);
    assert_int_equal(a->n_shards, b->n_shards);
    assert_int_equal(a->n, b->n);
    for (uint32_t i = 0; i < a->n; i++) {
        assert_int_equal(a->items[i].term, b->items[i].term);
        assert_memory_equal(a->items[i].first, b->items[i].first,
                            a->n_shards * sizeof(uint64_t));
    }
}

static void assert_same(const struct terms *a, const struct terms *b)
{
    assert_same_list(a, b);
    assert_int_equal(a->timeline, b->timeline);
    assert_int_equal(a->role, b->role);
    assert_int_equal(a->ack, b->ack);
    assert_int_equal(a->in_sync, b->in_sync);
    assert_int_equal(a->is_durable, b->is_durable);
    assert_string_equal(a->peer, b->peer);
}

static struct terms read_back(struct crash_files *c, uint32_t n_shards)
{
    struct terms t;
    struct err err;

    if (terms_read(&c->ops, DIR, n_shards, &t, &err))
        fail_msg("%s", err.text);
    return t;
}

static void make_dir(struct crash_files *c)
{
    crash_files_init(c);
    assert_int_equal(c->ops.mkdir(c->ops.state, DIR), 0);
    crash_files_heal(c);
}

static void what_is_written_survives_a_power_cut(void **state)
{
    struct terms t = example(3), back;
    struct crash_files c;
    struct err err;

    (void)state;
    make_dir(&c);
    back = read_back(&c, 2);
    assert_int_equal(back.history, 0);
    assert_int_equal(back.n, 0);
    assert_int_equal(back.n_shards, 2);
    assert_int_equal(terms_write(&c.ops, DIR, &t, &err), 0);
    crash_files_power_cut(&c);
    back = read_back(&c, 2);
    assert_same(&t, &back);
    terms_deinit(&back);
    terms_deinit(&t);
    crash_files_deinit(&c);
}

static void a_fault_at_any_operation_leaves_the_old_or_the_new_file(void **state)
{
    struct terms old = example(2), new = example(3), back;
    bool failed = true;

    (void)state;
    new.in_sync = new.is_durable = false;
    for (int fault = 0; fault < 4; fault++) {
        failed = true;
        for (long k = 0; failed; k++) {
            struct crash_files c;
            struct err err;

            make_dir(&c);
            assert_int_equal(terms_write(&c.ops, DIR, &old, &err), 0);
            crash_files_heal(&c);
            c.fail_at = k;
            c.torn = fault & 1;
            c.dies = fault & 2;
            failed = terms_write(&c.ops, DIR, &new, &err) != 0;
            assert_int_equal(crash_files_n_open(&c), 0);
            crash_files_power_cut(&c);
            back = read_back(&c, 2);
            assert_true(back.n == 2 || back.n == 3);
            if (!failed)
                assert_int_equal(back.n, 3);
            assert_same(&back, back.n == 2 ? &old : &new);
            terms_deinit(&back);
            /* And the next attempt works. */
            assert_int_equal(terms_write(&c.ops, DIR, &new, &err), 0);
            crash_files_deinit(&c);
        }
    }
    terms_deinit(&old);
    terms_deinit(&new);
}

static void a_read_that_fails_says_so_and_leaks_nothing(void **state)
{
    struct terms t = example(2), back;
    int status = -1;

    (void)state;
    for (long k = 0; status; k++) {
        struct crash_files c;
        struct err err;

        make_dir(&c);
        assert_int_equal(terms_write(&c.ops, DIR, &t, &err), 0);
        crash_files_heal(&c);
        c.fail_at = k;
        status = terms_read(&c.ops, DIR, 2, &back, &err);
        assert_int_equal(crash_files_n_open(&c), 0);
        assert_true(c.n_ops > k || !status);
        if (!status)
            assert_same(&t, &back);
        terms_deinit(&back);
        crash_files_deinit(&c);
        if (k > 20)
            break;
    }
    assert_int_equal(status, 0);
    terms_deinit(&t);
}

static void any_changed_or_missing_byte_is_damage(void **state)
{
    struct terms t = example(3), back;
    struct crash_inode *inode;
    struct crash_files c;
    struct err err;
    size_t n_bytes;

    (void)state;
    make_dir(&c);
    assert_int_equal(terms_write(&c.ops, DIR, &t, &err), 0);
    inode = crash_files_at(&c, PATH);
    n_bytes = inode->n_bytes;
    for (size_t i = 0; i < n_bytes; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            inode->bytes[i] ^= (uint8_t)(1u << bit);
            assert_int_equal(terms_read(&c.ops, DIR, 2, &back, &err), PS_ECORRUPT);
            assert_int_equal(back.n, 0);
            inode->bytes[i] ^= (uint8_t)(1u << bit);
        }
    for (inode->n_bytes = 0; inode->n_bytes < n_bytes; inode->n_bytes++)
        assert_int_equal(terms_read(&c.ops, DIR, 2, &back, &err), PS_ECORRUPT);
    back = read_back(&c, 2);
    assert_same(&t, &back);
    terms_deinit(&back);
    terms_deinit(&t);
    crash_files_deinit(&c);
}

/* A file with a good crc around whatever text. */
static int read_text(const char *text, struct terms *ret)
{
    char whole[1000];
    struct crash_files c;
    struct err err;
    int n, fd, status;

    make_dir(&c);
    n = snprintf(whole, sizeof whole, "%scrc32c %08x\n", text,
                 crc32c_extend(0, text, strlen(text)));
    assert_int_equal(c.ops.create(c.ops.state, PATH, &fd), 0);
    assert_int_equal(c.ops.write_all(c.ops.state, fd, whole, (size_t)n), 0);
    assert_int_equal(c.ops.close(c.ops.state, fd), 0);
    status = terms_read(&c.ops, DIR, 1, ret, &err);
    crash_files_deinit(&c);
    return status;
}

/* Of version 1: written by earlier releases. */
#define HEAD                                                                            \
    "psd terms 1\nhistory 00000000000000ff\ntimeline 0\nrole primary\nin-sync no\nack " \
    "got\npeer "                                                                        \
    "-\nshards 1\n"

static void a_file_that_makes_no_sense_is_damage(void **state)
{
    static const char *const bad[] = {
        "",
        "psd terms 2\n",
        "psd terms 3\nhistory 00000000000000ff\ntimeline 0\nrole primary\nin-sync no\nack got\n"
        "durable no\npeer -\nshards 1\n",
        "psd terms 2\nhistory 00000000000000ff\ntimeline 0\nrole primary\nin-sync no\nack got\n"
        "peer -\nshards 1\n",
        "psd terms 2\nhistory 00000000000000ff\ntimeline 0\nrole primary\nin-sync no\nack got\n"
        "durable maybe\npeer -\nshards 1\n",
        "psd terms 1\nhistory 00ff\n",
        HEAD "term 2 1\nterm 1 5\n",
        HEAD "term 1 0\n",
        HEAD "term 1\n",
        HEAD "term 1 1 1\n",
        HEAD "term 1 -1\n",
        HEAD "term 18446744073709551615 1\n",
        HEAD "term 1 1 \n",
        HEAD "what 1\n",
        HEAD "term 1 1",
        "psd terms 1\nhistory 0000000000000000\ntimeline 0\nrole primary\nin-sync no\nack "
        "got\npeer -\nshards 1\nterm 1 1\n",
        "psd terms 1\nhistory 00000000000000ff\ntimeline 0\nrole king\nin-sync no\nack got\n"
        "peer -\nshards 1\n",
        "psd terms 1\nhistory 00000000000000ff\ntimeline 0\nrole primary\nin-sync no\nack got\n"
        "peer -\nshards 99999999\n",
    };
    struct terms t;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (read_text(bad[i], &t) != PS_ECORRUPT)
            fail_msg("taken: %s", bad[i]);
    assert_int_equal(read_text(HEAD "term 1 1\nterm 65536 7\n", &t), 0);
    assert_int_equal(terms_last(&t), 65536);
    assert_string_equal(t.peer, "");
    assert_false(t.is_durable); /* nobody knows */
    terms_deinit(&t);
}

/* Of two copies of one directory. */
static void restarts_begin_different_terms_which_no_promotion_begins(void **state)
{
    const uint64_t step = TERMS_PROMOTION_STEP;
    uint64_t term = step + step / 2 - 1; /* the greatest that a promotion begins */

    (void)state;
    assert_int_equal(terms_restarted(7, 0), 8);
    assert_int_equal(terms_restarted(7, 1), 9);
    assert_int_equal(terms_restarted(7, UINT64_MAX), 7 + TERMS_RESTART_STEP_MAX);
    assert_int_equal(terms_promoted(65536, 0), step);
    assert_int_equal(terms_promoted(65536, UINT64_MAX), step + step / 2 - 1);
    assert_true(terms_is_one_reign(1, step - 1) && !terms_is_one_reign(step - 1, step));
    for (int n = 0; n < 30000; n++) /* starts of one primary */
        term = terms_restarted(term, UINT64_MAX);
    assert_true(terms_is_one_reign(term, step) && term < terms_promoted(step, 0));
}

static void another_layout_has_no_history_but_the_peer(void **state)
{
    struct terms t = example(3), back;
    struct crash_files c;
    struct err err;

    (void)state;
    make_dir(&c);
    assert_int_equal(terms_write(&c.ops, DIR, &t, &err), 0);
    back = read_back(&c, 3);
    assert_int_equal(back.history, 0);
    assert_int_equal(back.n, 0);
    assert_int_equal(back.n_shards, 3);
    assert_true(back.in_sync);
    assert_string_equal(back.peer, t.peer);
    terms_deinit(&back);
    terms_deinit(&t);
    crash_files_deinit(&c);
}

static void the_oldest_terms_are_dropped(void **state)
{
    struct terms t = example(TERMS_KEPT_MAX + 5);

    (void)state;
    assert_int_equal(t.n, TERMS_KEPT_MAX);
    assert_int_equal(t.items[0].term, 6);
    assert_int_equal(terms_last(&t), TERMS_KEPT_MAX + 5);
    terms_deinit(&t);
}

static void the_list_is_sent_as_bytes(void **state)
{
    struct terms t = example(5), back = { .role = TERMS_STANDBY, .peer = "me:1" };
    uint8_t bytes[5 * 3 * 8], damaged[sizeof bytes];

    (void)state;
    assert_int_equal(message_terms_bytes(t.n, t.n_shards), sizeof bytes);
    terms_put(&t, bytes);
    assert_int_equal(terms_take(&back, t.history, bytes, 5, 2), 0);
    assert_same_list(&t, &back);
    assert_string_equal(back.peer, "me:1");

    memcpy(damaged, bytes, sizeof bytes);
    damaged[24] = 1; /* the second term's number is the first one's */
    assert_int_equal(terms_take(&back, 5, damaged, 5, 2), PS_EPROTO);
    memcpy(damaged, bytes, sizeof bytes);
    damaged[8] = 0; /* a first record of number 0 */
    assert_int_equal(terms_take(&back, 5, damaged, 5, 2), PS_EPROTO);
    memcpy(damaged, bytes, sizeof bytes);
    memset(damaged + 96, 0xff, 8); /* no term could follow the last one */
    assert_int_equal(terms_take(&back, 5, damaged, 5, 2), PS_EPROTO);
    assert_int_equal(terms_take(&back, 0, bytes, 5, 2), PS_EPROTO);
    assert_int_equal(terms_take(&back, 5, bytes, MESSAGE_TERMS_MAX + 1, 2), PS_EPROTO);
    assert_int_equal(terms_take(&back, 5, bytes, 5, MESSAGE_NODE_SHARDS_MAX + 1), PS_EPROTO);
#ifdef PS_FAULTS
    for (long k = 0; k < 5; k++) {
        memory_fail_after(k);
        assert_int_equal(terms_take(&back, 5, bytes, 5, 2), -ENOMEM);
        memory_fail_after(-1);
    }
#endif
    assert_same_list(&t, &back); /* untouched by all of these */
    terms_deinit(&back);
    terms_deinit(&t);
}

/* --- what two logs have in common --- */

static void assert_common(const struct terms *a, const struct terms *b, uint64_t a_last,
                          uint64_t b_last, uint64_t want)
{
    uint64_t keep[1];

    assert_true(terms_common(a, b, &a_last, &b_last, keep));
    assert_int_equal(keep[0], want);
    assert_true(terms_common(b, a, &b_last, &a_last, keep));
    assert_int_equal(keep[0], want);
}

static struct terms list_of(const uint64_t (*items)[2], uint32_t n)
{
    struct terms t = { 0 };

    terms_begin_history(&t, 9, 0, 1);
    for (uint32_t i = 0; i < n; i++)
        terms_begin(&t, items[i][0], &items[i][1]);
    return t;
}

static void the_last_common_record_is_the_end_of_the_shorter_log_of_one_term(void **state)
{
    struct terms a = list_of((const uint64_t[][2]){ { 1, 1 }, { 2, 100 } }, 2);
    struct terms b = list_of((const uint64_t[][2]){ { 1, 1 } }, 1);

    (void)state;
    assert_common(&a, &a, 150, 120, 120);
    assert_common(&a, &b, 150, 99, 99);
    assert_common(&a, &b, 150, 50, 50);
    assert_common(&a, &b, 150, 130, 99); /* behind 99 it has what the primary lost */
    terms_deinit(&a);
    terms_deinit(&b);
}

static void terms_that_two_began_apart_are_not_common(void **state)
{
    struct terms a = list_of((const uint64_t[][2]){ { 1, 1 }, { 2, 100 }, { 3, 91 } }, 3);
    struct terms b = list_of((const uint64_t[][2]){ { 1, 1 }, { 2, 80 } }, 2);
    struct terms c = list_of((const uint64_t[][2]){ { 1, 1 }, { 2, 100 } }, 2);

    (void)state;
    assert_common(&a, &b, 200, 200, 79);
    assert_common(&a, &c, 200, 200, 90); /* a lost records of term 2 before it began term 3 */
    terms_deinit(&a);
    terms_deinit(&b);
    terms_deinit(&c);
}

static void another_history_or_layout_has_nothing_in_common(void **state)
{
    struct terms a = example(3), b = example(3), none = { .n_shards = 2 };
    uint64_t last[2] = { 50, 50 }, keep[2] = { 1, 1 };

    (void)state;
    b.history++;
    assert_false(terms_common(&a, &b, last, last, keep));
    assert_int_equal(keep[0] + keep[1], 0);
    assert_false(terms_common(&none, &none, last, last, keep));
    b.history--;
    b.n_shards--;
    assert_false(terms_common(&a, &b, last, last, keep));
    b.n_shards++;
    b.items[0].term = 1000; /* and all others apart, too */
    b.items[1].term = 1001;
    b.items[2].term = 1002;
    assert_false(terms_common(&a, &b, last, last, keep));
    terms_deinit(&a);
    terms_deinit(&b);
}

/* A member as a list of records, each with the random number that its maker gave it: the trivial twin. */
struct member {
    struct terms terms;
    uint64_t records[400], last;
};

static uint64_t reference_common(const struct member *a, const struct member *b)
{
    uint64_t n = 0;

    while (n < a->last && n < b->last && a->records[n + 1] == b->records[n + 1])
        n++;
    return n;
}

static void follow(struct member *standby, const struct member *primary)
{
    uint64_t keep;

    if (!terms_common(&standby->terms, &primary->terms, &standby->last, &primary->last, &keep))
        keep = 0;
    assert_int_equal(keep, reference_common(standby, primary));
    terms_adopt(&standby->terms, &primary->terms);
    memcpy(standby->records, primary->records, sizeof standby->records);
    /* It fetches up to where it likes, but not less than it had and keeps. */
    standby->last = keep + (uint64_t)rand() % (primary->last - keep + 1);
}

/* A primary that restarts, perhaps on a shorter log, or is promoted, begins a term. */
static void begin(struct member *m, uint64_t term)
{
    if (rand() % 3 == 0)
        m->last -= (uint64_t)rand() % (m->last / 4 + 1);
    terms_begin(&m->terms, term, &(uint64_t){ m->last + 1 });
}

static void the_common_record_is_that_of_the_reference_in_random_runs(void **state)
{
    uint64_t n_promotions = 0; /* so far apart that no restart of one gets to another */

    (void)state;
    srand((unsigned)seed_of_run(16));
    for (int round = 0; round < 2000; round++) {
        struct member *members = calloc(2, sizeof *members);
        int primary = 0;

        terms_begin_history(&members[0].terms, 5, 0, 1);
        terms_begin(&members[0].terms, 1, &(uint64_t){ 1 });
        for (int step = 0; step < 25; step++) {
            struct member *p = &members[primary], *s = &members[!primary];

            for (int n = rand() % 12; n > 0 && p->last < 390; n--)
                p->records[++p->last] = 1 + (uint64_t)rand();
            if (rand() % 2)
                follow(s, p);
            if (rand() % 4 == 0) {
                begin(p, terms_restarted(terms_last(&p->terms), (uint64_t)rand()));
            } else if (s->terms.n && rand() % 6 == 0) {
                primary = !primary;
                begin(s, terms_promoted(terms_last(&s->terms), n_promotions += 1 << 22));
            }
        }
        terms_deinit(&members[0].terms);
        terms_deinit(&members[1].terms);
        free(members);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_survives_a_power_cut),
        cmocka_unit_test(a_fault_at_any_operation_leaves_the_old_or_the_new_file),
        cmocka_unit_test(a_read_that_fails_says_so_and_leaks_nothing),
        cmocka_unit_test(any_changed_or_missing_byte_is_damage),
        cmocka_unit_test(a_file_that_makes_no_sense_is_damage),
        cmocka_unit_test(restarts_begin_different_terms_which_no_promotion_begins),
        cmocka_unit_test(another_layout_has_no_history_but_the_peer),
        cmocka_unit_test(the_oldest_terms_are_dropped),
        cmocka_unit_test(the_list_is_sent_as_bytes),
        cmocka_unit_test(the_last_common_record_is_the_end_of_the_shorter_log_of_one_term),
        cmocka_unit_test(terms_that_two_began_apart_are_not_common),
        cmocka_unit_test(another_history_or_layout_has_nothing_in_common),
        cmocka_unit_test(the_common_record_is_that_of_the_reference_in_random_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
