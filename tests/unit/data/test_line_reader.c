#include "tests/unit/data/fixture.h"

#include <errno.h>

#include "common/bytes.h"
#include "worker/data/line_reader.h"

/* All lines of a file, each behind its number: "1:first;3:third;". */
static int read_all(const char *path, struct bytes *ret, struct err *err)
{
    struct line_reader_line line;
    struct line_reader *r;
    int status = line_reader_open(path, &r, err);

    *ret = (struct bytes){ 0 };
    if (status)
        return status;
    while ((status = line_reader_next(r, &line, err)) == 0 && line.bytes) {
        uint8_t *space = bytes_reserve(ret, line.len + 40);
        int n = sprintf((char *)space, "%llu:", (unsigned long long)line.number);

        memcpy(space + n, line.bytes, line.len);
        memcpy(space + n + line.len, line.too_long ? "TOO LONG;" : ";", line.too_long ? 9 : 1);
        bytes_commit(ret, (size_t)n + line.len + (line.too_long ? 9 : 1));
    }
    line_reader_close(r);
    return status;
}

static void check_lines(const char *path, const char *expected)
{
    struct err err = { 0 };
    struct bytes lines;

    if (read_all(path, &lines, &err))
        fail_msg("%s", err.text);
    assert_int_equal(bytes_len(&lines), strlen(expected));
    if (bytes_len(&lines))
        assert_memory_equal(bytes_front(&lines), expected, strlen(expected));
    bytes_deinit(&lines);
}

static void lines_end_in_lf_or_crlf_or_with_the_file(void **state)
{
    static const struct {
        const char *text, *lines;
    } cases[] = {
        { "", "" },
        { "\n", "" },
        { "\n\n\r\n\n", "" },
        { "a", "1:a;" },
        { "a\n", "1:a;" },
        { "a\nb", "1:a;2:b;" },
        { "a\r\nb\r\n", "1:a;2:b;" },
        { "a\r\nb\r", "1:a;2:b;" },
        { "a\n\n\nb\n\n", "1:a;4:b;" },
        { "\na\n", "2:a;" },
        { "a\rb\n", "1:a\rb;" },
        { "a\r\r\n", "1:a\r;" },
        { "\t\t\n", "1:\t\t;" },
        { "\xef\xbb\xbf"
          "a\nb\n",
          "1:a;2:b;" },
        { "\xef\xbb\xbf\nb\n", "2:b;" },
        { "a\n\xef\xbb\xbf"
          "b\n",
          "1:a;2:\xef\xbb\xbf"
          "b;" },
    };
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];

    (void)state;
    fixture_folder_new(&folder);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        fixture_write_text(&folder, "log", cases[i].text, path);
        check_lines(path, cases[i].lines);
    }
    fixture_folder_free(&folder);
}

static char *long_text(size_t *ret_len)
{
    char *text = memory_alloc(3000000);
    size_t at = 0;

    for (uint64_t i = 0; at < 2900000; i++) {
        at += (size_t)sprintf(text + at, "%llu", (unsigned long long)hash_mix(i));
        for (uint64_t j = hash_mix(i) % 3000; j; j--)
            text[at++] = (char)('a' + j % 26);
        text[at++] = '\n';
    }
    *ret_len = at;
    return text;
}

static void packed_files_read_as_plain_ones_whatever_their_name(void **state)
{
    struct fixture_folder folder;
    char plain[FIXTURE_PATH_MAX], packed[FIXTURE_PATH_MAX];
    struct bytes want, got;
    size_t len, n_bytes;
    char *text = long_text(&len);
    struct err err;

    (void)state;
    fixture_folder_new(&folder);
    fixture_write(&folder, "log", text, len, plain);
    assert_int_equal(read_all(plain, &want, &err), 0);
    for (int gzip = 0; gzip < 2; gzip++) {
        void *bytes =
            gzip ? fixture_gzip(text, len, &n_bytes) : fixture_zstd(text, len, &n_bytes);

        fixture_write(&folder, gzip ? "log.gz" : "log.dat", bytes, n_bytes, packed);
        assert_int_equal(read_all(packed, &got, &err), 0);
        assert_int_equal(bytes_len(&got), bytes_len(&want));
        assert_memory_equal(bytes_front(&got), bytes_front(&want), bytes_len(&want));
        bytes_deinit(&got);
        free(bytes);
    }
    bytes_deinit(&want);
    free(text);
    fixture_folder_free(&folder);
}

static void frames_and_members_one_after_another_are_one_text(void **state)
{
    static const uint8_t skippable[] = { 0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'x', 'y', 'z' };
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];
    uint8_t file[400];
    size_t n, at;
    void *packed;

    (void)state;
    fixture_folder_new(&folder);
    memcpy(file, skippable, sizeof skippable);
    at = sizeof skippable;
    packed = fixture_zstd("a\nb", 3, &n);
    memcpy(file + at, packed, n);
    at += n;
    free(packed);
    packed = fixture_zstd("", 0, &n);
    memcpy(file + at, packed, n);
    at += n;
    free(packed);
    packed = fixture_zstd("c\nd\n", 4, &n);
    memcpy(file + at, packed, n);
    at += n;
    free(packed);
    fixture_write(&folder, "log.zst", file, at, path);
    check_lines(path, "1:a;2:bc;3:d;");
    packed = fixture_gzip("a\nb", 3, &n);
    memcpy(file, packed, n);
    at = n;
    free(packed);
    packed = fixture_gzip("c\n", 2, &n);
    memcpy(file + at, packed, n);
    at += n;
    free(packed);
    fixture_write(&folder, "log.gz", file, at, path);
    check_lines(path, "1:a;2:bc;");
    fixture_folder_free(&folder);
}

static void a_packed_file_truncated_anywhere_is_an_error(void **state)
{
    static const char text[] = "0\t1\t2\n1\t2\t3\n0\t4\t4\n1\t6\t7\n0\t8\t9\n";
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];
    struct err err;
    struct bytes lines;

    (void)state;
    fixture_folder_new(&folder);
    for (int gzip = 0; gzip < 2; gzip++) {
        size_t n;
        void *packed = gzip ? fixture_gzip(text, sizeof text - 1, &n)
                            : fixture_zstd(text, sizeof text - 1, &n);

        for (size_t length = 0; length <= n; length++) {
            int status;

            fixture_write(&folder, gzip ? "log.gz" : "log.zst", packed, length, path);
            status = read_all(path, &lines, &err);
            assert_int_equal(status, length == n ? 0 : PS_EDATA);
            if (status)
                fixture_assert_says(&err, gzip ? "log.gz: " : "log.zst: ");
            if (length > 4 && length < n)
                fixture_assert_says(&err, "ends too early");
            bytes_deinit(&lines);
        }
        free(packed);
    }
    fixture_folder_free(&folder);
}

/* As data that is wrong, with these words. */
static void assert_refused(const char *path, const char *words)
{
    struct bytes lines;
    struct err err;

    assert_int_equal(read_all(path, &lines, &err), PS_EDATA);
    fixture_assert_says(&err, words);
    bytes_deinit(&lines);
}

static void write_with_garbage(struct fixture_folder *folder, const char *name,
                               const uint8_t *packed, size_t n, char *ret_path)
{
    uint8_t *more = memory_alloc(n + 7);

    memcpy(more, packed, n);
    memcpy(more + n, "garbage", 7);
    fixture_write(folder, name, more, n + 7, ret_path);
    free(more);
}

static void damaged_packed_files_are_errors(void **state)
{
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];
    size_t len, n;
    char *text = long_text(&len);
    uint8_t *packed;

    (void)state;
    fixture_folder_new(&folder);
    packed = fixture_gzip(text, len, &n);
    packed[n / 2] ^= 0x40;
    fixture_write(&folder, "log.gz", packed, n, path);
    assert_refused(path, "log.gz: cannot unpack its gzip data");
    packed[n / 2] ^= 0x40;
    write_with_garbage(&folder, "log.gz", packed, n, path);
    assert_refused(path, "bytes that are not gzip follow");
    free(packed);
    packed = fixture_zstd(text, len, &n);
    write_with_garbage(&folder, "log.zst", packed, n, path);
    assert_refused(path, "log.zst: cannot unpack its zstd data");
    free(packed);
    free(text);
    fixture_folder_free(&folder);
}

static void a_name_that_promises_packing_is_held_to_it(void **state)
{
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];

    (void)state;
    fixture_folder_new(&folder);
    fixture_write_text(&folder, "log.zst", "0\t1\n", path);
    assert_refused(path, "its name says that it is packed, its first bytes do not");
    fixture_write_text(&folder, "log.gz", "", path);
    assert_refused(path, "(it is empty)");
    fixture_folder_free(&folder);
}

static void what_cannot_be_read_is_an_errno_with_the_path(void **state)
{
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];
    struct err err;
    struct bytes lines;

    (void)state;
    fixture_folder_new(&folder);
    fixture_path(&folder, "none", path);
    assert_int_equal(read_all(path, &lines, &err), -ENOENT);
    fixture_assert_says(&err, "none: cannot open: No such file");
    assert_int_equal(read_all(folder.path, &lines, &err), -EISDIR);
    fixture_assert_says(&err, "cannot read: Is a directory");
    fixture_folder_free(&folder);
}

static void a_line_over_the_limit_is_passed_over_as_one(void **state)
{
    static const size_t lens[] = { LINE_READER_LINE_MAX - 2, LINE_READER_LINE_MAX - 1,
                                   LINE_READER_LINE_MAX, LINE_READER_LINE_MAX + 1, 5000000 };
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX], *text = memory_alloc(5000100);
    struct line_reader_line line;
    struct line_reader *r;
    struct err err;

    (void)state;
    fixture_folder_new(&folder);
    for (size_t i = 0; i < COUNT_OF(lens); i++) {
        memcpy(text, "a\n", 2);
        memset(text + 2, 'x', lens[i]);
        memcpy(text + 2 + lens[i], "\nb\n", 3);
        fixture_write(&folder, "log", text, lens[i] + 5, path);
        assert_int_equal(line_reader_open(path, &r, &err), 0);
        assert_int_equal(line_reader_next(r, &line, &err), 0);
        assert_true(line.len == 1 && line.bytes[0] == 'a');
        assert_int_equal(line_reader_next(r, &line, &err), 0);
        assert_int_equal(line.too_long, lens[i] >= LINE_READER_LINE_MAX);
        assert_int_equal(line.len, line.too_long ? 0 : lens[i]);
        assert_int_equal(line.number, 2);
        assert_int_equal(line_reader_next(r, &line, &err), 0);
        assert_true(line.len == 1 && line.bytes[0] == 'b' && line.number == 3);
        assert_int_equal(line_reader_next(r, &line, &err), 0);
        assert_null(line.bytes);
        assert_int_equal(line_reader_next(r, &line, &err), 0);
        assert_null(line.bytes);
        assert_int_equal(line_reader_bytes(r), lens[i] + 5);
        line_reader_close(r);
    }
    memset(text, 'x', 3000000);
    fixture_write(&folder, "log", text, 3000000, path);
    check_lines(path, "1:TOO LONG;");
    free(text);
    fixture_folder_free(&folder);
}

static void a_text_without_lines_ends(void **state)
{
    static const size_t lens[] = { LINE_READER_PASSED_OVER_MAX - 1024,
                                   LINE_READER_PASSED_OVER_MAX + 2 * 1024 * 1024 };
    static const char fills[] = { '\0', 'x', '\n' };
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX], *text = memory_alloc(lens[1] + 4);
    struct line_reader_line line;
    struct line_reader *r;
    struct err err;

    (void)state;
    fixture_folder_new(&folder);
    for (size_t i = 0; i < COUNT_OF(lens) * COUNT_OF(fills); i++) {
        size_t len = lens[i % 2];
        int status;

        memcpy(text, "a\n", 2);
        memset(text + 2, fills[i / 2], len);
        memcpy(text + 2 + len, "\nb", 2);
        fixture_write(&folder, "log", text, len + 4, path);
        assert_int_equal(line_reader_open(path, &r, &err), 0);
        assert_int_equal(line_reader_next(r, &line, &err), 0);
        status = line_reader_next(r, &line, &err);
        assert_int_equal(status, i % 2 ? PS_EDATA : 0);
        if (status && fills[i / 2] != '\n')
            fixture_assert_says(&err,
                                "log:2: more than 16 MiB without a line of at most 1 MiB");
        if (!status)
            assert_int_equal(line.too_long, fills[i / 2] != '\n');
        line_reader_close(r);
    }
    free(text);
    fixture_folder_free(&folder);
}

static void bytes_of_any_value_stay_in_their_line(void **state)
{
    uint64_t seed = fixture_seed(__func__), counter = 0;
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX], text[3000];
    struct err err;

    (void)state;
    fixture_folder_new(&folder);
    for (int round = 0; round < 200; round++) {
        size_t len = fixture_draw(seed, &counter, sizeof text), joined = 0, newlines = 0;
        struct line_reader_line line;
        struct line_reader *r;

        for (size_t i = 0; i < len; i++) {
            text[i] = (char)('a' + fixture_draw(seed, &counter, 100));
            if (fixture_draw(seed, &counter, 10) == 0)
                text[i] = "\n\0\n"[fixture_draw(seed, &counter, 3)];
            newlines += text[i] == '\n';
        }
        fixture_write(&folder, "log", text, len, path);
        assert_int_equal(line_reader_open(path, &r, &err), 0);
        for (;;) {
            assert_int_equal(line_reader_next(r, &line, &err), 0);
            if (!line.bytes)
                break;
            joined += line.len;
        }
        assert_int_equal(joined, len - newlines);
        line_reader_close(r);
    }
    fixture_folder_free(&folder);
}

#ifdef PS_FAULTS
static void every_failed_allocation_is_reported(void **state)
{
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX];
    size_t len;
    char *text = long_text(&len);
    int status = -1;

    (void)state;
    memset(text + 1000, 'x', 900000);
    fixture_folder_new(&folder);
    fixture_write(&folder, "log", text, len, path);
    for (long k = 0; status != 0; k++) {
        struct line_reader_line line = { 0 };
        struct line_reader *r = NULL;
        struct err err;

        memory_fail_after(k);
        status = line_reader_open(path, &r, &err);
        for (; !status; status = line_reader_next(r, &line, &err))
            if (line.number && !line.bytes)
                break;
            else if (line.number > 20)
                break;
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        line_reader_close(r);
    }
    free(text);
    fixture_folder_free(&folder);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_end_in_lf_or_crlf_or_with_the_file),
        cmocka_unit_test(packed_files_read_as_plain_ones_whatever_their_name),
        cmocka_unit_test(frames_and_members_one_after_another_are_one_text),
        cmocka_unit_test(a_packed_file_truncated_anywhere_is_an_error),
        cmocka_unit_test(damaged_packed_files_are_errors),
        cmocka_unit_test(a_name_that_promises_packing_is_held_to_it),
        cmocka_unit_test(what_cannot_be_read_is_an_errno_with_the_path),
        cmocka_unit_test(a_line_over_the_limit_is_passed_over_as_one),
        cmocka_unit_test(a_text_without_lines_ends),
        cmocka_unit_test(bytes_of_any_value_stay_in_their_line),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failed_allocation_is_reported),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
