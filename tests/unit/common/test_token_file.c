#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/token_file.h"

/* A file that is read in pieces, and fails at the k-th operation. */
struct pieces {
    const char *text;
    size_t n_bytes, at, piece;
    int fails_at, n_done, n_open;
};

static int step(struct pieces *p)
{
    return ++p->n_done == p->fails_at ? -EIO : 0;
}

static int open_pieces(void *state, const char *path, int *ret_fd)
{
    struct pieces *p = state;
    int status = step(p);

    (void)path;
    if (status)
        return status;
    p->n_open++;
    *ret_fd = 7;
    return 0;
}

static int64_t read_piece(void *state, int fd, void *dst, size_t n_bytes)
{
    struct pieces *p = state;
    size_t n = p->n_bytes - p->at;
    int status = step(p);

    assert_int_equal(fd, 7);
    if (status)
        return status;
    n = n < p->piece ? n : p->piece;
    n = n < n_bytes ? n : n_bytes;
    memcpy(dst, p->text + p->at, n);
    p->at += n;
    return (int64_t)n;
}

static int close_pieces(void *state, int fd)
{
    (void)fd;
    ((struct pieces *)state)->n_open--;
    return 0;
}

static int read_pieces(struct pieces *p, char token[static TOKEN_FILE_MAX], struct err *err)
{
    const struct file_ops files = {
        .state = p, .open_read = open_pieces, .read = read_piece, .close = close_pieces
    };
    int status = token_file_read(&files, "the file", token, err);

    assert_int_equal(p->n_open, 0);
    return status;
}

static int read_text(const char *text, size_t n_bytes, char token[static TOKEN_FILE_MAX],
                     struct err *err)
{
    struct pieces p = { .text = text, .n_bytes = n_bytes, .piece = 3 };

    return read_pieces(&p, token, err);
}

static void the_one_line_is_the_token(void **state)
{
    char token[TOKEN_FILE_MAX], longest[TOKEN_FILE_MAX - 1 + 2];
    struct err err;

    (void)state;
    assert_int_equal(read_text("open sesame \t\r\n\n", 16, token, &err), 0);
    assert_string_equal(token, "open sesame");
    memset(longest, 'x', sizeof longest);
    memcpy(longest + TOKEN_FILE_MAX - 1, "\r\n", 2);
    assert_int_equal(read_text(longest, sizeof longest, token, &err), 0);
    assert_int_equal(strlen(token), TOKEN_FILE_MAX - 1);
}

static void no_file_is_no_token(void **state)
{
    char token[TOKEN_FILE_MAX] = "x";

    (void)state;
    assert_int_equal(token_file_read(&file_os, "", token, NULL), 0);
    assert_string_equal(token, "");
}

static void what_is_no_token_is_refused(void **state)
{
    static const struct {
        const char *text;
        size_t n_bytes;
        const char *words;
    } cases[] = { { "", 0, "found 0 bytes in the file" },
                  { " \n", 2, "found 0 bytes" },
                  { "a\nb\n", 4, "expected one line of 8 to 127 characters" },
                  { "a\0b", 3, "found 3 bytes" },
                  { "a\0\0", 3, "found 3 bytes" } };
    char token[TOKEN_FILE_MAX], many[1000];
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(read_text(cases[i].text, cases[i].n_bytes, token, &err), PS_ESETTING);
        assert_non_null(strstr(err.text, cases[i].words));
        assert_string_equal(token, "");
    }
    memset(many, 'x', sizeof many);
    for (size_t n = TOKEN_FILE_MAX; n <= sizeof many; n++)
        assert_int_equal(read_text(many, n, token, &err), PS_ESETTING);
    assert_non_null(strstr(err.text, "more than the 127"));
}

static void every_failure_is_reported_and_the_file_closed(void **state)
{
    char token[TOKEN_FILE_MAX];
    struct err err;

    (void)state;
    for (int k = 1; k <= 4; k++) { /* the opening, two pieces, the end */
        struct pieces p = { .text = "secret", .n_bytes = 6, .piece = 3, .fails_at = k };

        assert_int_equal(read_pieces(&p, token, &err), -EIO);
        assert_non_null(strstr(err.text, "token-file: cannot read the file: "));
        assert_string_equal(token, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_one_line_is_the_token),
        cmocka_unit_test(no_file_is_no_token),
        cmocka_unit_test(what_is_no_token_is_refused),
        cmocka_unit_test(every_failure_is_reported_and_the_file_closed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
