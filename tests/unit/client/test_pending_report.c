/* What a worker reports, on its way to several nodes. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/memory.h"
#include "worker/client/pending_report.h"

static struct learning_report report_of(uint64_t samples, uint32_t steps, float loss)
{
    return (struct learning_report){ .samples = samples, .steps = steps, .loss = loss };
}

static void each_node_gets_the_newest_report_once(void **state)
{
    struct pending_report *o = pending_report_new("ads", 3);
    struct learning_report r = report_of(10, 1, 1);
    struct beat beat = { 0 };

    (void)state;
    assert_non_null(o);
    pending_report_put(o, &r); /* before there is anybody to send it */
    assert_int_equal(pending_report_open(o, 2), 0);
    assert_false(pending_report_has(o, 0));
    r = report_of(20, 2, 0.5f);
    pending_report_put(o, &r);
    assert_true(pending_report_has(o, 0) && pending_report_has(o, 1));
    assert_false(pending_report_has(o, 2) || pending_report_has(o, UINT32_MAX));
    pending_report_take(o, UINT32_MAX, 7, &beat);
    assert_false(beat.has_learning);
    pending_report_take(o, 0, 7, &beat);
    assert_true(beat.has_learning && beat.learning.samples == 20 && !beat.job[0]);
    assert_false(pending_report_has(o, 0));
    assert_true(pending_report_has(o, 1));
    pending_report_answered(o, 0);
    pending_report_wait(o, 1); /* the other one has not */
    pending_report_take(o, 1, 7, &beat);
    pending_report_answered(o, 1);
    pending_report_wait(o, 600000);
    assert_int_equal(pending_report_open(o, 1), 0); /* the reader's */
    pending_report_put(o, &r);
    pending_report_take(o, 0, 0, &beat);
    assert_string_equal(beat.job, "ads");
    assert_true(beat.rank == 3 && beat.incarnation == 7);
    pending_report_free(o);
}

static void what_was_overtaken_is_in_the_next_one(void **state)
{
    struct pending_report *o = pending_report_new("ads", 0);
    struct learning_report r = report_of(10, 1, 1);
    struct beat beat = { 0 };

    (void)state;
    assert_int_equal(pending_report_open(o, 1), 0);
    pending_report_put(o, &r);
    r = report_of(40, 3, 2);
    pending_report_put(o, &r);
    r = (struct learning_report){ .samples = 40, .n_validations = 1, .auc = 0.75f };
    pending_report_put(o, &r);
    pending_report_take(o, 0, 1, &beat);
    assert_true(beat.learning.samples == 40 && beat.learning.steps == 4);
    assert_true(fabsf(beat.learning.loss - 1.75f) < 1e-6f && beat.learning.auc == 0.75f);
    r = report_of(50, 1, 3);
    pending_report_put(o, &r); /* what was sent is not in it again */
    pending_report_take(o, 0, 1, &beat);
    assert_true(beat.learning.steps == 1 && beat.learning.loss == 3);
    pending_report_free(o);
}

static void a_client_that_reports_nothing_has_nothing_to_send(void **state)
{
    struct beat beat = { 0 };

    (void)state;
    assert_int_equal(pending_report_open(NULL, 3), 0);
    assert_false(pending_report_has(NULL, 0));
    pending_report_take(NULL, 0, 1, &beat);
    pending_report_answered(NULL, 0);
    assert_false(beat.has_learning);
    pending_report_free(NULL);
}

#ifdef PS_FAULTS
static void without_memory_nothing_is_reported(void **state)
{
    struct pending_report *o;

    (void)state;
    memory_fail_after(0);
    o = pending_report_new("ads", 0);
    memory_fail_after(-1);
    assert_null(o);
    o = pending_report_new("ads", 0);
    memory_fail_after(0);
    assert_int_equal(pending_report_open(o, 4), -ENOMEM);
    memory_fail_after(-1);
    assert_false(pending_report_has(o, 0));
    pending_report_free(o);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_node_gets_the_newest_report_once),
        cmocka_unit_test(what_was_overtaken_is_in_the_next_one),
        cmocka_unit_test(a_client_that_reports_nothing_has_nothing_to_send),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_nothing_is_reported),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
