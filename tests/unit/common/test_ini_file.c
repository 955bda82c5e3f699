#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/ini_file.h"

#define N_TEXT 20000

/* What ini_file_read() passed on, as "line name=value;" one behind the other. */
struct heard {
    char text[N_TEXT];
    int stop_at_line;
};

static int hear(void *arg, const struct ini_file_entry *entry, struct err *err)
{
    struct heard *heard = arg;
    size_t n = strlen(heard->text);

    snprintf(heard->text + n, sizeof heard->text - n, "%u %s=%s;", entry->line, entry->name,
             entry->value);
    if ((int)entry->line == heard->stop_at_line)
        return err_set(err, -EDOM, "told to stop");
    return 0;
}

static int read_bytes(const char *bytes, size_t n_bytes, struct heard *heard, struct err *err)
{
    char path[] = "/tmp/test_conf.XXXXXX";
    int fd = mkstemp(path), status;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n_bytes), n_bytes);
    close(fd);
    heard->text[0] = '\0';
    status = ini_file_read(path, hear, heard, err);
    unlink(path);
    return status;
}

static void assert_reads(const char *text, const char *expected)
{
    static struct heard heard;
    struct err err = { 0 };

    if (read_bytes(text, strlen(text), &heard, &err) != 0)
        fail_msg("%s", err.text);
    assert_string_equal(heard.text, expected);
}

static void assert_refuses_bytes(const char *bytes, size_t n_bytes, const char *why)
{
    static struct heard heard;
    struct err err = { 0 };

    assert_int_equal(read_bytes(bytes, n_bytes, &heard, &err), PS_ESETTING);
    if (!strstr(err.text, why))
        fail_msg("\"%s\" does not say \"%s\"", err.text, why);
}

static void assert_refuses(const char *text, const char *why)
{
    assert_refuses_bytes(text, strlen(text), why);
}

static int hear_section(void *arg, const struct ini_file_entry *entry, struct err *err)
{
    struct heard *heard = arg;
    size_t n = strlen(heard->text);

    (void)err;
    snprintf(heard->text + n, sizeof heard->text - n, "[%s]%s;", entry->section, entry->name);
    return 0;
}

static void entries_come_with_the_head_above_them(void **state)
{
    static struct heard heard;
    static const char long_head[] =
        "a column with a name of more than fifty bytes, which inih would cut";
    char path[] = "/tmp/test_conf.XXXXXX", text[400], want[400];
    int fd = mkstemp(path), n;
    struct err err = { 0 };

    (void)state;
    n = snprintf(text, sizeof text, "a=1\n[b c]\nd=2\n  [%s]\ne=3\nf=4\n[]\ng=5\n", long_head);
    snprintf(want, sizeof want, "[]a;[b c]d;[%s]e;[%s]f;[]g;", long_head, long_head);
    assert_int_equal(write(fd, text, (size_t)n), n);
    close(fd);
    assert_int_equal(ini_file_read(path, hear_section, &heard, &err), 0);
    assert_string_equal(heard.text, want);
    unlink(path);
}

static void a_head_that_is_too_long_is_refused(void **state)
{
    char text[300] = "[";

    (void)state;
    memset(text + 1, 'x', 128);
    strcpy(text + 129, "]\na=1\n");
    assert_refuses(text, ":1: the head of the section is longer than 127 bytes");
}

static void names_and_values_come_with_their_line(void **state)
{
    (void)state;
    assert_reads("a = 1\n\nb=2\n", "1 a=1;3 b=2;");
    assert_reads("a = 1", "1 a=1;");
    assert_reads("  a\t=  x y  \r\nb =\n", "1 a=x y;2 b=;");
    assert_reads("", "");
    assert_reads("\xef\xbb\xbf"
                 "a = 1\n",
                 "1 a=1;");
}

static void comments_and_heads_are_for_people(void **state)
{
    (void)state;
    assert_reads("# a = 1\n; b = 2\n[head]\nc = 3\n  # d\n[a head of more than fifty letters, "
                 "which is a lot]\ne = 5\n",
                 "4 c=3;7 e=5;");
}

static void an_indented_line_is_an_entry_of_its_own(void **state)
{
    (void)state;
    assert_reads("a = 1\n  b = 2\n\tc = 3\n", "1 a=1;2 b=2;3 c=3;");
}

static void a_value_may_hold_what_starts_a_comment_elsewhere(void **state)
{
    (void)state;
    assert_reads("delimiter = ;\nx = a ; b # c\nurl = http://h:1/?a=b\n",
                 "1 delimiter=;;2 x=a ; b # c;3 url=http://h:1/?a=b;");
}

static void quotes_keep_blanks_and_escapes(void **state)
{
    (void)state;
    assert_reads("a = \"  x \"\n", "1 a=  x ;");
    assert_reads("a = \"\\t\\n\\r\\\"\\\\\\x41\"\n", "1 a=\t\n\r\"\\A;");
    assert_reads("a = \"\"\n", "1 a=;");
    assert_reads("a = it is \"so\"\n", "1 a=it is \"so\";");
}

static void long_values_are_whole(void **state)
{
    static char text[N_TEXT], expected[N_TEXT];
    size_t n;

    (void)state;
    for (n = 190; n <= 3990; n += 19) {
        snprintf(text, sizeof text, "a = %0*d\n", (int)n, 7);
        snprintf(expected, sizeof expected, "1 a=%0*d;", (int)n, 7);
        assert_reads(text, expected);
    }
    snprintf(text, sizeof text, "a = %0*d\n", 3996, 7); /* 4000 bytes */
    snprintf(expected, sizeof expected, "1 a=%0*d;", 3996, 7);
    assert_reads(text, expected);
}

static void a_line_over_the_limit_is_refused_and_not_truncated(void **state)
{
    static char text[N_TEXT];

    (void)state;
    snprintf(text, sizeof text, "b = 1\na = %0*d\n", 3997, 7);
    assert_refuses(text, ":2: the line is longer than 4000 bytes");
    snprintf(text, sizeof text, "a = %0*d", 15000, 7);
    assert_refuses(text, ":1: the line is longer than 4000 bytes");
    snprintf(text, sizeof text, "#%0*d\n", 5000, 7);
    assert_refuses(text, ":1: the line is longer than 4000 bytes");
}

static void lines_that_make_no_sense_are_named(void **state)
{
    static const char nul[] = "a = 1\nb\0c = 2\nd = 3\n";

    (void)state;
    assert_refuses("a = 1\nshards 4\n", ":2: \"shards 4\" is not \"name = value\"");
    assert_refuses("[net\na = 1\n", ":1: \"[net\" is not");
    assert_refuses("= 4\n", ":1: there is no name before the =");
    assert_refuses("a = \"x\n", ":1: the quote is not closed");
    assert_refuses("a = \"x\\\"\n", ":1: the quote is not closed");
    assert_refuses("a = \"x\" y\n", ":1: there is text behind the closing quote");
    assert_refuses("a = \"\\q\"\n", ":1: unknown escape");
    assert_refuses("a = \"\\x0\"\n", ":1: unknown escape");
    assert_refuses("a = \"\\x00\"\n", ":1: unknown escape");
    assert_refuses_bytes(nul, sizeof nul - 1, ":2: the line holds a NUL byte");
}

static void nothing_is_passed_on_after_a_refusal(void **state)
{
    struct heard heard = { .stop_at_line = 2 };
    static const char text[] = "a = 1\nb = 2\nc = 3\n", bad[] = "a = 1\nrubbish\nc = 3\n";
    struct err err = { 0 };

    (void)state;
    assert_int_equal(read_bytes(text, strlen(text), &heard, &err), -EDOM);
    assert_string_equal(err.text, "told to stop");
    assert_string_equal(heard.text, "1 a=1;2 b=2;");
    assert_int_equal(read_bytes(bad, strlen(bad), &heard, &err), PS_ESETTING);
    assert_string_equal(heard.text, "1 a=1;");
}

static void a_file_that_cannot_be_read_is_named(void **state)
{
    struct heard heard = { 0 };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(ini_file_read("/tmp/no/such/psd.conf", hear, &heard, &err), PS_ESETTING);
    assert_string_equal(err.text,
                        "/tmp/no/such/psd.conf: cannot be read: No such file or directory");
    assert_int_equal(ini_file_read("/tmp", hear, &heard, &err), PS_ESETTING);
    assert_string_equal(err.text, "/tmp: cannot be read: Is a directory");
}

static void any_value_that_is_written_reads_back(void **state)
{
    static const char *const values[] = { "",         "plain",       " blanks ", "\t",
                                          ";",        "#",           "\"",       "\"q\"",
                                          "a\"b",     "back\\slash", "a\nb",     "\x01\x7f",
                                          "\xc3\xa9", "a=b:c",       "[x]",      "\\t",
                                          "ends \\",  " \"\\\n" };
    static struct heard heard;
    char expected[100], text[200];
    struct err err;
    FILE *out;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(values); i++) {
        out = fmemopen(text, sizeof text, "w");
        assert_non_null(out);
        ini_file_write(out, "name", values[i]);
        fclose(out);
        snprintf(expected, sizeof expected, "1 name=%s;", values[i]);
        assert_int_equal(read_bytes(text, strlen(text), &heard, &err), 0);
        assert_string_equal(heard.text, expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_values_come_with_their_line),
        cmocka_unit_test(entries_come_with_the_head_above_them),
        cmocka_unit_test(a_head_that_is_too_long_is_refused),
        cmocka_unit_test(comments_and_heads_are_for_people),
        cmocka_unit_test(an_indented_line_is_an_entry_of_its_own),
        cmocka_unit_test(a_value_may_hold_what_starts_a_comment_elsewhere),
        cmocka_unit_test(quotes_keep_blanks_and_escapes),
        cmocka_unit_test(long_values_are_whole),
        cmocka_unit_test(a_line_over_the_limit_is_refused_and_not_truncated),
        cmocka_unit_test(lines_that_make_no_sense_are_named),
        cmocka_unit_test(nothing_is_passed_on_after_a_refusal),
        cmocka_unit_test(a_file_that_cannot_be_read_is_named),
        cmocka_unit_test(any_value_that_is_written_reads_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
