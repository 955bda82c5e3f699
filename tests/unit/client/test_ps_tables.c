/* Whole tables through the client: what is refused before it is sent, and answers to scans that make no sense. That scans
 * and assignments are right is the simulation's matter (tests/sim), and that of tests/system/test_whole_tables.py. */
#include "tests/unit/client/fixture.h"

#include <math.h>

#include "worker/client/scan.h"

static void refuse_assign(const struct rig *rig, uint64_t second_key, float value, int status,
                          const char *words)
{
    const uint64_t row_keys[] = { 5, second_key };
    const float rows[2 * FAKE_DIM] = { [FAKE_DIM + 1] = value };
    struct err err = { 0 };

    assert_int_equal(ps_assign(rig->c, rig->table, row_keys, 2, rows, NULL, 0, &err), status);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void rows_that_cannot_be_are_refused_before_they_are_sent(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1, .seed = 52000001 };
    struct ps_stats stats;
    struct rig rig;
    struct err err = { 0 };

    (void)state;
    set_up(&rig, &plan, NULL);
    refuse_assign(&rig, 9, NAN, PS_ENAN, "the row of key 9 has NaN");
    refuse_assign(&rig, 9, -INFINITY, PS_ENAN, "the row of key 9 has NaN or infinity");
    refuse_assign(&rig, 5, 0, -EINVAL, "key 5 follows 5");
    refuse_assign(&rig, 4, 0, -EINVAL, "key 4 follows 5");
    assert_int_equal(ps_assign(rig.c, rig.table + 1, NULL, 0, NULL, NULL, 0, &err), -EINVAL);
    assert_int_equal(ps_assign(rig.c, rig.table, NULL, 3, NULL, NULL, 0, &err), -EINVAL);
    assert_int_equal(ps_assign(rig.c, rig.table, NULL, 0, NULL, NULL, 0, &err), 0);
    ps_stats(rig.c, &stats);
    assert_int_equal(stats.pushes, 0);
    tear_down(&rig);
}

static void an_older_psd_is_not_sent_what_it_does_not_know(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1, .seed = 52000002 };
    const uint64_t key = 5;
    const float row[FAKE_DIM] = { 1, 2, 3, 4 };
    float dst[FAKE_DIM];
    uint8_t present;
    struct ps_pull_section section = {
        .n_keys = 1, .keys = &key, .dst = dst, .present = &present
    };
    struct ps_scan_rows rows;
    struct ps_scan *scan;
    struct ps_pull *pull;
    struct rig rig;
    struct err err = { 0 };

    (void)state;
    set_up(&rig, &plan, NULL);
    section.table = rig.table;
    assert_int_equal(ps_assign(rig.c, rig.table, &key, 1, row, row, 0, &err), PS_EVERSION);
    assert_non_null(strstr(err.text, "older version"));
    assert_int_equal(ps_pull_start(rig.c, 0, &section, 1, &pull, &err), PS_EVERSION);
    assert_int_equal(ps_scan_start(rig.c, rig.table, NULL, &scan, &err), 0);
    assert_int_equal(ps_scan_next(scan, &rows, &err), PS_EVERSION);
    assert_true(ps_scan_goes_on(scan));
    ps_scan_free(scan);
    assert_int_equal(ps_assign(rig.c, rig.table, &key, 1, row, NULL, 0, &err),
                     0); /* it knows that */
    assert_int_equal(ps_flush(rig.c, &err), 0);
    tear_down(&rig);
}

/* An answer of n rows, of keys first_key and on. */
static size_t make_answer(uint8_t *dst, uint64_t version, uint64_t next, uint32_t n,
                          uint32_t flags, uint64_t first_key)
{
    const float row[FAKE_DIM] = { 1, 2, 3, 4 };

    memcpy(dst, &version, 8);
    memcpy(dst + 8, &next, 8);
    memcpy(dst + 16, &n, 4);
    memcpy(dst + 20, &flags, 4);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t key = first_key + i;

        memcpy(dst + SECTION_SCAN_HEAD_BYTES + i * 8, &key, 8);
        memcpy(dst + SECTION_SCAN_HEAD_BYTES + n * 8 + i * sizeof row, row, sizeof row);
    }
    return SECTION_SCAN_HEAD_BYTES + n * (8 + sizeof row);
}

static void answers_to_a_scan_that_make_no_sense_are_refused(void **state)
{
    struct fake_plan plan = { .n_shards = 2,
                              .fault_at = -1,
                              .seed = 52000003,
                              .features = MESSAGE_FEATURE_WHOLE_TABLES };
    uint8_t bytes[500];
    struct section asked = { 0 };
    struct ps_scan *scan;
    struct rig rig;
    struct err err = { 0 };
    size_t n;

    (void)state;
    set_up(&rig, &plan, NULL);
    assert_int_equal(ps_scan_start(rig.c, rig.table, NULL, &scan, &err), 0);
    scan_ask(scan, 0, &asked);
    assert_true(asked.scan_bytes > 0 && asked.cursor == 0 && !asked.state);
    n = make_answer(bytes, 7, 100, 3, 0, 1);
    for (size_t k = 0; k < n; k++)
        assert_int_equal(scan_take(scan, 0, bytes, k), PS_ECOUNT);
    assert_int_equal(scan_take(scan, 0, bytes, n + 1), PS_ECOUNT);
    n = make_answer(bytes, 7, 0, 3, 0, 1); /* it does not come forward */
    assert_int_equal(scan_take(scan, 0, bytes, n), PS_ECOUNT);
    n = make_answer(bytes, 7, 0, 3, SECTION_SCAN_END, 1);
#ifdef PS_FAULTS
    for (long k = 0; k < 2; k++) { /* what was reserved stays */
        memory_fail_after(k);
        assert_int_equal(scan_take(scan, 0, bytes, n), -ENOMEM);
    }
    memory_fail_after(-1);
#endif
    assert_int_equal(scan_take(scan, 0, bytes, n), 0);
    assert_int_equal(ps_scan_version(scan, 0), 7);
    assert_int_equal(ps_scan_version(scan, 1), 0);
    assert_int_equal(ps_scan_version(scan, 2), 0);
    n = make_answer(bytes, 6, 200, 0, 0, 1);
    assert_int_equal(scan_take(scan, 0, bytes, n), -ESTALE);
    assert_int_equal(ps_scan_next(scan, &(struct ps_scan_rows){ 0 }, &err), -ESTALE);
    assert_non_null(strstr(err.text, "scan again"));
    ps_scan_free(scan);
    ps_scan_free(NULL);
    tear_down(&rig);
}

/* The fake answers a scan as a pull of no keys. */
static void a_scan_that_failed_can_be_asked_again(void **state)
{
    struct fake_plan plan = { .n_shards = 2,
                              .fault_at = -1,
                              .seed = 52000004,
                              .features = MESSAGE_FEATURE_WHOLE_TABLES };
    struct ps_scan_rows rows = { .n = 9 };
    struct ps_scan *scan;
    struct rig rig;
    struct err err = { 0 };

    (void)state;
    set_up(&rig, &plan, NULL);
    assert_int_equal(ps_scan_start(rig.c, rig.table + 1, NULL, &scan, &err), -EINVAL);
    assert_int_equal(ps_scan_start(rig.c, rig.table, &(struct ps_scan_options){ .state = true },
                                   &scan, &err),
                     0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(ps_scan_next(scan, &rows, &err), PS_ECOUNT);
        assert_int_equal(rows.n, 0);
        assert_true(ps_scan_goes_on(scan));
    }
    ps_scan_free(scan);
    tear_down(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_cannot_be_are_refused_before_they_are_sent),
        cmocka_unit_test(an_older_psd_is_not_sent_what_it_does_not_know),
        cmocka_unit_test(answers_to_a_scan_that_make_no_sense_are_refused),
        cmocka_unit_test(a_scan_that_failed_can_be_asked_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
