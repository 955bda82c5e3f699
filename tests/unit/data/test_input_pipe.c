/* What can be read only once: prescans and then one pass have the same text as a file. */
#include "tests/unit/data/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "worker/data/input_pipe.h"
#include "worker/data/line_reader.h"

static const char text[] = "first\nsecond\nthird\n";

/* A FIFO that holds the text, and its only writer. */
static int make_fifo(const struct fixture_folder *f, char path[FIXTURE_PATH_MAX])
{
    int fd;

    fixture_path(f, "fifo", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    return fd;
}

static void read_some(struct input_pipe *p, size_t n_bytes, const char *expected)
{
    char got[64];
    size_t n, n_got = 0;
    struct err err;

    do {
        assert_int_equal(input_pipe_read(p, got + n_got, n_bytes - n_got, &n, &err), 0);
        n_got += n;
    } while (n && n_got < n_bytes);
    assert_int_equal(n_got, strlen(expected));
    assert_memory_equal(got, expected, n_got);
}

static struct input_pipe *begin(struct input_pipes *pipes, const char *path,
                                enum input_pipe_use use)
{
    struct input_pipe *p;
    struct err err;

    assert_int_equal(input_pipes_begin(pipes, path, use, NULL, &p, &err), 0);
    return p;
}

static void a_pass_has_what_prescans_have_read(void **state)
{
    struct input_pipes *pipes = input_pipes_new();
    struct fixture_folder folder;
    struct input_pipe *p;
    char path[FIXTURE_PATH_MAX], *line;
    struct err err;
    int writer;

    (void)state;
    fixture_folder_new(&folder);
    writer = make_fifo(&folder, path);
    assert_int_equal(input_pipes_add(pipes, path, &err), 0);
    assert_false(input_pipes_is_empty(pipes));
    read_some(begin(pipes, path, INPUT_PIPE_PRESCAN), 3, "fir");
    read_some(begin(pipes, path, INPUT_PIPE_PRESCAN), 8, "first\nse");
    close(writer);
    assert_int_equal(line_reader_first_line(pipes, path, &line, &err), 0);
    assert_string_equal(line, "first");
    free(line);
    p = begin(pipes, path, INPUT_PIPE_PASS);
    read_some(p, 2, "fi");
    read_some(p, 60, text + 2);
    read_some(p, 60, "");
    input_pipes_free(pipes);
    fixture_folder_free(&folder);
}

static void a_second_pass_is_refused(void **state)
{
    struct input_pipes *pipes = input_pipes_new();
    struct fixture_folder folder;
    struct input_pipe *p;
    char path[FIXTURE_PATH_MAX];
    struct err err;
    int writer;

    (void)state;
    fixture_folder_new(&folder);
    writer = make_fifo(&folder, path);
    assert_int_equal(input_pipes_add(pipes, path, &err), 0);
    (void)begin(pipes, path, INPUT_PIPE_PASS);
    for (int use = INPUT_PIPE_PRESCAN; use <= INPUT_PIPE_PASS; use++) {
        assert_int_equal(
            input_pipes_begin(pipes, path, (enum input_pipe_use)use, NULL, &p, &err),
            PS_ESETTING);
        assert_non_null(strstr(err.text, "only once"));
    }
    close(writer);
    input_pipes_free(pipes);
    fixture_folder_free(&folder);
}

static void a_pipe_under_two_names_is_refused_and_a_file_is_none(void **state)
{
    struct input_pipes *pipes = input_pipes_new();
    struct fixture_folder folder;
    char path[FIXTURE_PATH_MAX], other[FIXTURE_PATH_MAX], file[FIXTURE_PATH_MAX];
    struct err err;
    int writer;

    (void)state;
    fixture_folder_new(&folder);
    writer = make_fifo(&folder, path);
    fixture_path(&folder, "other", other);
    assert_int_equal(link(path, other), 0);
    fixture_write(&folder, "file", text, sizeof text - 1, file);
    assert_false(input_pipe_is_one(file));
    assert_int_equal(input_pipes_add(pipes, file, &err), 0);
    assert_int_equal(input_pipes_add(pipes, file, &err), 0);
    assert_true(input_pipes_is_empty(pipes));
    assert_null(begin(pipes, file, INPUT_PIPE_PASS));
    assert_null(begin(pipes, file, INPUT_PIPE_PASS));
    assert_null(begin(NULL, path, INPUT_PIPE_PASS));
    assert_int_equal(input_pipes_add(pipes, path, &err), 0);
    assert_int_equal(input_pipes_add(pipes, other, &err), PS_ESETTING);
    assert_non_null(strstr(err.text, "named twice"));
    close(writer);
    input_pipes_free(pipes);
    fixture_folder_free(&folder);
}

/* A stop is no end of the file: what it leaves unfinished is no line. */
static void a_line_that_a_stop_leaves_unfinished_is_dropped(void **state)
{
    struct input_pipes *pipes = input_pipes_new();
    atomic_bool stop = false;
    struct fixture_folder folder;
    struct line_reader_line line;
    struct line_reader *r;
    struct input_pipe *p;
    char path[FIXTURE_PATH_MAX];
    struct err err;
    int writer;

    (void)state;
    fixture_folder_new(&folder);
    writer = make_fifo(&folder, path);
    assert_int_equal(write(writer, "four", 4), 4);
    assert_int_equal(input_pipes_add(pipes, path, &err), 0);
    assert_int_equal(input_pipes_begin(pipes, path, INPUT_PIPE_PASS, &stop, &p, &err), 0);
    assert_int_equal(line_reader_open_pipe(path, p, &r, &err), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(line_reader_next(r, &line, &err), 0);
        assert_non_null(line.bytes);
    }
    assert_false(input_pipe_is_stopped(p));
    stop = true;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(line_reader_next(r, &line, &err), 0);
        assert_null(line.bytes);
    }
    assert_true(input_pipe_is_stopped(p));
    line_reader_close(r);
    close(writer);
    input_pipes_free(pipes);
    fixture_folder_free(&folder);
}

static bool is_true(const void *arg)
{
    return *(const bool *)arg;
}

static void a_stop_ends_a_prescan(void **state)
{
    struct input_pipes *pipes = input_pipes_new();
    struct fixture_folder folder;
    struct line_reader_line line;
    struct line_reader *r;
    char path[FIXTURE_PATH_MAX];
    bool is_stopped = true;
    struct err err;
    int writer;

    (void)state;
    fixture_folder_new(&folder);
    writer = make_fifo(&folder, path);
    assert_int_equal(input_pipes_add(pipes, path, &err), 0);
    input_pipes_set_stop(pipes, is_true, &is_stopped);
    assert_int_equal(line_reader_open_prescan(pipes, path, &r, &err), 0);
    assert_int_equal(line_reader_next(r, &line, &err), 0);
    assert_null(line.bytes);
    line_reader_close(r);
    close(writer);
    input_pipes_free(pipes);
    fixture_folder_free(&folder);
}

static void a_stop_ends_a_wait_for_a_writer_that_never_comes(void **state)
{
    struct input_pipes *pipes = input_pipes_new();
    atomic_bool stop = true;
    struct fixture_folder folder;
    struct input_pipe *p;
    char path[FIXTURE_PATH_MAX], byte;
    struct err err;
    size_t n = 1;

    (void)state;
    fixture_folder_new(&folder);
    fixture_path(&folder, "fifo", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(input_pipes_add(pipes, path, &err), 0);
    assert_int_equal(input_pipes_begin(pipes, path, INPUT_PIPE_PASS, &stop, &p, &err), 0);
    assert_int_equal(input_pipe_read(p, &byte, 1, &n, &err), 0);
    assert_int_equal(n, 0);
    input_pipes_free(pipes);
    fixture_folder_free(&folder);
}

static void a_pipe_that_is_gone_is_named(void **state)
{
    struct input_pipes *pipes = input_pipes_new();
    struct fixture_folder folder;
    struct input_pipe *p;
    char path[FIXTURE_PATH_MAX];
    struct err err;

    (void)state;
    fixture_folder_new(&folder);
    close(make_fifo(&folder, path));
    assert_int_equal(input_pipes_add(pipes, path, &err), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(input_pipes_begin(pipes, path, INPUT_PIPE_PASS, NULL, &p, &err), -ENOENT);
    assert_non_null(strstr(err.text, path));
    input_pipes_free(pipes);
    fixture_folder_free(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pass_has_what_prescans_have_read),
        cmocka_unit_test(a_second_pass_is_refused),
        cmocka_unit_test(a_pipe_under_two_names_is_refused_and_a_file_is_none),
        cmocka_unit_test(a_stop_ends_a_wait_for_a_writer_that_never_comes),
        cmocka_unit_test(a_line_that_a_stop_leaves_unfinished_is_dropped),
        cmocka_unit_test(a_stop_ends_a_prescan),
        cmocka_unit_test(a_pipe_that_is_gone_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
