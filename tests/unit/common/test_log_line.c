#include <errno.h>
#include <inttypes.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log_line.h"

/* stderr, on its way to a file that the test reads. */
struct captured {
    FILE *file;
    int saved_fd;
    char text[8192];
};

static void capture(struct captured *c)
{
    c->file = tmpfile();
    assert_non_null(c->file);
    c->saved_fd = dup(STDERR_FILENO);
    assert_true(dup2(fileno(c->file), STDERR_FILENO) >= 0);
}

static void release(struct captured *c)
{
    size_t n;

    assert_true(dup2(c->saved_fd, STDERR_FILENO) >= 0);
    close(c->saved_fd);
    rewind(c->file);
    n = fread(c->text, 1, sizeof c->text - 1, c->file);
    c->text[n] = '\0';
    fclose(c->file);
}

static void assert_matches(const char *text, const char *pattern)
{
    regex_t regex;

    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&regex, text, 0, NULL, 0) != 0)
        fail_msg("\"%s\" does not match %s", text, pattern);
    regfree(&regex);
}

static void a_line_has_time_level_and_sentence(void **state)
{
    struct captured c;

    (void)state;
    capture(&c);
    log_line_warn("shard %d is %s", 3, "slow");
    release(&c);
    assert_matches(
        c.text, "^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z warn  shard 3 is slow\n$");
}

static void levels_above_the_chosen_one_are_not_written(void **state)
{
    struct captured c;

    (void)state;
    capture(&c);
    log_line_debug("not by default");
    assert_int_equal(log_line_set_level("error"), 0);
    log_line_warn("not now");
    log_line_error("but this");
    assert_int_equal(log_line_set_level("debug"), 0);
    log_line_debug("and that");
    release(&c);
    assert_int_equal(log_line_set_level("info"), 0);
    assert_null(strstr(c.text, "not"));
    assert_matches(c.text, "error but this\n.*debug and that\n$");
}

static void an_unknown_level_is_refused_and_changes_nothing(void **state)
{
    struct captured c;

    (void)state;
    assert_int_equal(log_line_set_level("verbose"), -EINVAL);
    assert_int_equal(log_line_set_level(""), -EINVAL);
    capture(&c);
    log_line_info("still here");
    log_line_debug("still not");
    release(&c);
    assert_matches(c.text, "info  still here\n$");
}

static void under_journald_a_line_has_its_prefix(void **state)
{
    struct captured c;
    struct stat found;
    char stream[64];

    (void)state;
    capture(&c);
    assert_int_equal(fstat(STDERR_FILENO, &found), 0);
    snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)found.st_dev,
             (uintmax_t)found.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_line_error("full");
    log_line_info("fine");
    setenv("JOURNAL_STREAM", "1:1", 1); /* somebody else's: stderr was redirected */
    log_line_info("elsewhere");
    unsetenv("JOURNAL_STREAM");
    release(&c);
    assert_matches(c.text, "^<3>full\n<6>fine\n20[^\n]* info  elsewhere\n$");
}

static void what_a_peer_sends_cannot_fake_a_second_line(void **state)
{
    struct captured c;

    (void)state;
    capture(&c);
    log_line_info("hello from %s", "x\n2024-01-01 error all is lost\x1b[2J");
    release(&c);
    assert_ptr_equal(strchr(c.text, '\n'), c.text + strlen(c.text) - 1);
    assert_null(strchr(c.text, 0x1b));
}

static void a_long_line_is_truncated_and_says_so(void **state)
{
    struct captured c;
    char text[5000];

    (void)state;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    capture(&c);
    log_line_info("%s", text);
    release(&c);
    assert_matches(c.text, "xxx\\.\\.\\.\n$");
    assert_in_range(strlen(c.text), 2000, 2048);
}

static void errno_survives_a_line(void **state)
{
    struct captured c;

    (void)state;
    capture(&c);
    errno = ENOSPC;
    log_line_info("one line");
    assert_int_equal(errno, ENOSPC);
    release(&c);
}

enum { AT_ONCE = 3 };

static void a_few_at_once_and_then_one_a_minute_that_counts(void **state)
{
    struct log_line_limit limit = { .n_at_once = AT_ONCE, .every_ms = 60000 };
    char more[64] = "";
    uint32_t n = 0;

    (void)state;
    for (uint64_t ms = 1; ms <= 10 * 60000; ms += 100)
        n += log_line_limit_pass(&limit, "push", -1, ms, more);
    assert_int_equal(n, AT_ONCE + 9);
    assert_string_equal(more, " (and 599 lines like it)");
}

static void another_kind_has_lines_of_its_own(void **state)
{
    struct log_line_limit limit = { .n_at_once = AT_ONCE, .every_ms = 60000 };
    char more[64];

    (void)state;
    for (int i = 0; i < 10; i++)
        (void)log_line_limit_pass(&limit, "push", -1, 1, more);
    assert_false(log_line_limit_pass(&limit, "push", -1, 1, more));
    assert_true(log_line_limit_pass(&limit, "push", -2, 1, more));
    assert_true(log_line_limit_pass(&limit, "join", -1, 1, more));
    assert_string_equal(more, "");
}

static void more_kinds_than_entries_drop_the_oldest(void **state)
{
    struct log_line_limit limit = { .n_at_once = AT_ONCE, .every_ms = 60000 };
    char more[64];

    (void)state;
    for (int i = 0; i < 5; i++)
        (void)log_line_limit_pass(&limit, "push", 0, 1, more);
    for (int i = 1; i <= (int)LOG_LINE_LIMIT_KINDS; i++)
        assert_true(log_line_limit_pass(&limit, "push", -i, 1, more));
    assert_true(log_line_limit_pass(&limit, "push", 0, 1, more));
}

static void what_is_quiet_for_long_may_say_a_few_at_once_again(void **state)
{
    struct log_line_limit limit = { .n_at_once = AT_ONCE, .every_ms = 60000 };
    char more[64];

    (void)state;
    for (int i = 0; i < 10; i++)
        (void)log_line_limit_pass(&limit, "push", -1, 1, more);
    for (uint32_t i = 0; i < AT_ONCE; i++)
        assert_true(log_line_limit_pass(&limit, "push", -1, 3600000, more));
    assert_false(log_line_limit_pass(&limit, "push", -1, 3600000, more));
}

static void a_limit_of_5_every_200_ms_lets_5_through_at_once_and_5_in_a_second(void **state)
{
    struct log_line_limit limit = { .n_at_once = 5, .every_ms = 200 };
    char more[64];
    uint32_t n = 0;

    (void)state;
    for (int i = 0; i < 100; i++)
        n += log_line_limit_pass(&limit, "refused", 0, 5000, more);
    assert_int_equal(n, 5);
    for (uint64_t ms = 5000; ms <= 6000; ms++)
        n += log_line_limit_pass(&limit, "refused", 0, ms, more);
    assert_int_equal(n, 10);
}

static void a_limit_of_0_lets_nothing_through(void **state)
{
    struct log_line_limit limit = { .every_ms = 1000 };
    char more[64];

    (void)state;
    assert_false(log_line_limit_pass(&limit, "line", 0, 10, more));
    assert_false(log_line_limit_pass(&limit, "line", 0, 10000, more));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_level_and_sentence),
        cmocka_unit_test(levels_above_the_chosen_one_are_not_written),
        cmocka_unit_test(an_unknown_level_is_refused_and_changes_nothing),
        cmocka_unit_test(under_journald_a_line_has_its_prefix),
        cmocka_unit_test(what_a_peer_sends_cannot_fake_a_second_line),
        cmocka_unit_test(a_long_line_is_truncated_and_says_so),
        cmocka_unit_test(errno_survives_a_line),
        cmocka_unit_test(a_few_at_once_and_then_one_a_minute_that_counts),
        cmocka_unit_test(another_kind_has_lines_of_its_own),
        cmocka_unit_test(more_kinds_than_entries_drop_the_oldest),
        cmocka_unit_test(what_is_quiet_for_long_may_say_a_few_at_once_again),
        cmocka_unit_test(a_limit_of_5_every_200_ms_lets_5_through_at_once_and_5_in_a_second),
        cmocka_unit_test(a_limit_of_0_lets_nothing_through),
    };

    unsetenv("JOURNAL_STREAM");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
