#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <uv.h>

#include "common/status.h"

static void our_own_statuses_have_their_listed_text(void **state)
{
    (void)state;
    assert_string_equal(status_text(PS_OK), "ok");
#define X(name, value, text)         \
    assert_int_equal(name, (value)); \
    assert_string_equal(status_text(name), text);
    PS_STATUS_LIST(X)
#undef X
}

static void a_negated_errno_has_libcs_text(void **state)
{
    (void)state;
    assert_string_equal(status_text(-ENOENT), "No such file or directory");
    assert_string_equal(status_text(-ENOSPC), "No space left on device");
    assert_string_equal(status_text(UV_ECONNREFUSED), "Connection refused");
}

static void what_only_libuv_returns_has_libuvs_text(void **state)
{
    (void)state;
    assert_string_equal(status_text(UV_EOF), "end of file");
    assert_string_equal(status_text(UV_EAI_NONAME), "unknown node or service");
    assert_string_equal(status_text(UV_ECHARSET), "invalid Unicode character");
}

static void a_number_that_means_nothing_has_a_text_too(void **state)
{
    static const int numbers[] = { 1,     INT_MAX, INT_MIN, -1000,   -4094,
                                   -5000, -10000,  -10999,  -1000000 };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(numbers); i++) {
        assert_non_null(status_text(numbers[i]));
        assert_true(strlen(status_text(numbers[i])) > 0);
    }
    assert_string_equal(status_text(INT_MIN), "unknown status");
}

static void an_error_takes_one_line(void **state)
{
    struct err err = { 0 };

    (void)state;
    assert_int_equal(err_set(&err, PS_ECORRUPT, "%s: chunk %u", "a.ckpt", 7u), PS_ECORRUPT);
    assert_int_equal(err.status, PS_ECORRUPT);
    assert_string_equal(err.text, "a.ckpt: chunk 7");
    assert_int_equal(err_set(NULL, -EIO, "nobody asked"), -EIO);
}

static void a_long_sentence_is_truncated(void **state)
{
    struct err err = { 0 };
    char text[1000];

    (void)state;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_int_equal(err_set(&err, -EIO, "%s", text), -EIO);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(our_own_statuses_have_their_listed_text),
        cmocka_unit_test(a_negated_errno_has_libcs_text),
        cmocka_unit_test(what_only_libuv_returns_has_libuvs_text),
        cmocka_unit_test(a_number_that_means_nothing_has_a_text_too),
        cmocka_unit_test(an_error_takes_one_line),
        cmocka_unit_test(a_long_sentence_is_truncated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
