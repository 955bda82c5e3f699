#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/file.h"
#include "common/file_text.h"
#include "common/status.h"

#define PATH_MAX_HERE 300

/* A folder of the test's own, empty at its start and gone after it. */
struct folder {
    char path[PATH_MAX_HERE - 64];
    char child[PATH_MAX_HERE];
};

static const char *child(struct folder *f, const char *name)
{
    snprintf(f->child, sizeof f->child, "%s/%s", f->path, name);
    return f->child;
}

static int make_folder(void **state)
{
    static struct folder f;
    const char *tmp = getenv("TMPDIR");

    snprintf(f.path, sizeof f.path, "%.200s/test_file.XXXXXX", tmp ? tmp : "/tmp");
    *state = &f;
    return mkdtemp(f.path) ? 0 : -1;
}

static int remove_folder(void **state)
{
    struct folder *f = *state;

    return file_os.rmdir(NULL, f->path);
}

static void put(struct folder *f, const char *name, const void *bytes, size_t n_bytes)
{
    int fd;

    assert_int_equal(file_os.create(NULL, child(f, name), &fd), 0);
    assert_int_equal(file_os.write_all(NULL, fd, bytes, n_bytes), 0);
    assert_int_equal(file_os.sync(NULL, fd), 0);
    assert_int_equal(file_os.close(NULL, fd), 0);
}

static size_t get(struct folder *f, const char *name, char *dst, size_t n_max)
{
    size_t n = 0;
    int64_t got;
    int fd;

    assert_int_equal(file_os.open_read(NULL, child(f, name), &fd), 0);
    while ((got = file_os.read(NULL, fd, dst + n, n_max - n)) > 0)
        n += (size_t)got;
    assert_int_equal(got, 0);
    assert_int_equal(file_os.close(NULL, fd), 0);
    return n;
}

static void what_is_written_is_read_back(void **state)
{
    static char bytes[300000], back[400000];
    size_t i;

    for (i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 7 + i / 251);
    put(*state, "a", bytes, sizeof bytes);
    assert_int_equal(get(*state, "a", back, sizeof back), sizeof bytes);
    assert_memory_equal(back, bytes, sizeof bytes);
    assert_int_equal(file_os.unlink(NULL, child(*state, "a")), 0);
}

static void creating_empties_what_was_there(void **state)
{
    char back[100];

    put(*state, "a", "a long text", 11);
    put(*state, "a", "new", 3);
    assert_int_equal(get(*state, "a", back, sizeof back), 3);
    assert_int_equal(file_os.unlink(NULL, child(*state, "a")), 0);
}

static void renaming_replaces_the_target(void **state)
{
    char to[PATH_MAX_HERE], back[100];

    put(*state, "b", "old", 3);
    put(*state, "a", "newer", 5);
    strcpy(to, child(*state, "b"));
    assert_int_equal(file_os.rename(NULL, child(*state, "a"), to), 0);
    assert_int_equal(file_os.sync_dir(NULL, ((struct folder *)*state)->path), 0);
    assert_int_equal(get(*state, "b", back, sizeof back), 5);
    assert_int_equal(file_os.unlink(NULL, child(*state, "a")), -ENOENT);
    assert_int_equal(file_os.unlink(NULL, child(*state, "b")), 0);
}

static void a_folder_may_be_made_twice_but_not_over_a_file(void **state)
{
    assert_int_equal(file_os.mkdir(NULL, child(*state, "d")), 0);
    assert_int_equal(file_os.mkdir(NULL, child(*state, "d")), 0);
    assert_int_equal(file_os.rmdir(NULL, child(*state, "d")), 0);
    assert_int_equal(file_os.rmdir(NULL, child(*state, "d")), -ENOENT);
    assert_int_equal(file_os.mkdir(NULL, child(*state, "no/d")), -ENOENT);
    put(*state, "f", "", 0);
    assert_int_equal(file_os.mkdir(NULL, child(*state, "f")), -ENOTDIR);
    assert_int_equal(file_os.unlink(NULL, child(*state, "f")), 0);
}

struct seen {
    unsigned names; /* bit 0: "a", bit 1: "b" ... */
    unsigned n, n_max;
};

static int see(void *arg, const char *name)
{
    struct seen *seen = arg;

    assert_int_equal(strlen(name), 1);
    seen->names |= 1u << (name[0] - 'a');
    return ++seen->n == seen->n_max ? 77 : 0;
}

static void listing_names_every_entry_once_and_stops_on_request(void **state)
{
    struct folder *f = *state;
    struct seen seen = { 0 };

    assert_int_equal(file_os.list(NULL, f->path, see, &seen), 0);
    assert_int_equal(seen.n, 0);
    put(f, "a", "", 0);
    put(f, "b", "", 0);
    assert_int_equal(file_os.mkdir(NULL, child(f, "c")), 0);
    assert_int_equal(file_os.list(NULL, f->path, see, &seen), 0);
    assert_int_equal(seen.n, 3);
    assert_int_equal(seen.names, 7);
    seen = (struct seen){ .n_max = 2 };
    assert_int_equal(file_os.list(NULL, f->path, see, &seen), 77);
    assert_int_equal(seen.n, 2);
    assert_int_equal(file_os.unlink(NULL, child(f, "a")), 0);
    assert_int_equal(file_os.unlink(NULL, child(f, "b")), 0);
    assert_int_equal(file_os.rmdir(NULL, child(f, "c")), 0);
}

static void what_fails_returns_its_errno_and_sets_nothing(void **state)
{
    struct folder *f = *state;
    struct seen seen = { 0 };
    char byte;
    int fd = -7;

    assert_int_equal(file_os.open_read(NULL, child(f, "none"), &fd), -ENOENT);
    assert_int_equal(file_os.create(NULL, child(f, "no/file"), &fd), -ENOENT);
    assert_int_equal(file_os.create(NULL, f->path, &fd), -EISDIR);
    assert_int_equal(fd, -7);
    assert_int_equal(file_os.list(NULL, child(f, "none"), see, &seen), -ENOENT);
    assert_int_equal(file_os.sync_dir(NULL, child(f, "none")), -ENOENT);
    assert_int_equal(file_os.rename(NULL, child(f, "none"), f->path), -ENOENT);
    assert_int_equal(file_os.read(NULL, -1, &byte, 1), -EBADF);
    assert_int_equal(file_os.write_all(NULL, -1, "x", 1), -EBADF);
    assert_int_equal(file_os.sync(NULL, -1), -EBADF);
    assert_int_equal(file_os.close(NULL, -1), -EBADF);
}

static void what_is_no_file_is_never_waited_for_long(void **state)
{
    struct folder *f = *state;
    char byte;
    int fd = -1, writer;

    assert_int_equal(mkfifo(child(f, "fifo"), 0600), 0);
    assert_int_equal(file_os.open_read(NULL, f->child, &fd), PS_ENOTFILE);
    assert_int_equal(fd, -1);
    assert_int_equal(file_os.create(NULL, f->child, &fd), -ENXIO);
    writer = open(f->child, O_RDWR);
    assert_int_equal(write(writer, "x", 1), 1);
    assert_int_equal(file_os.open_read(NULL, f->child, &fd), 0);
    assert_int_equal(file_os.read(NULL, fd, &byte, 1), 1);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0); /* more is waited for */
    close(writer);
    assert_int_equal(file_os.read(NULL, fd, &byte, 1), 0);
    assert_int_equal(file_os.close(NULL, fd), 0);
    assert_int_equal(file_os.unlink(NULL, f->child), 0);
}

static void a_full_disk_is_reported(void **state)
{
    int fd;

    (void)state;
    assert_int_equal(file_os.create(NULL, "/dev/full", &fd), 0);
    assert_int_equal(file_os.write_all(NULL, fd, "x", 1), -ENOSPC);
    assert_int_equal(file_os.close(NULL, fd), 0);
}

static void a_text_is_replaced_whole_and_its_crc_shows_damage(void **state)
{
    struct folder *f = *state;
    char text[64] = "number 7\nname a b\n", copy[64], got[64] = "", *rest = copy;
    const size_t n = file_text_seal(text, strlen(text));
    struct err err = { 0 };

    assert_int_equal(n, strlen(text));
    assert_int_equal(file_text_replace(&file_os, f->path, "text", "old", 3, &err), 0);
    assert_int_equal(file_text_replace(&file_os, f->path, "text", text, n, &err), 0);
    assert_int_equal(get(f, "text", got, sizeof got), n);
    assert_memory_equal(got, text, n);
    assert_int_equal(file_os.unlink(NULL, child(f, "text.tmp")), -ENOENT);
    for (size_t i = 0; i <= n; i++) {
        memcpy(copy, text, n + 1);
        copy[i] ^= 1;
        assert_int_equal(file_text_unseal(copy, n), i == n); /* behind its end it is anything */
    }
    memcpy(copy, text, n + 1);
    assert_false(file_text_unseal(copy, n - 1));
    memcpy(copy, text, n + 1);
    assert_true(file_text_unseal(copy, n));
    assert_null(file_text_line(&rest, "name "));
    assert_string_equal(file_text_line(&rest, "number "), "7");
    assert_string_equal(file_text_line(&rest, "name "), "a b");
    assert_null(file_text_line(&rest, "crc32c "));
    assert_string_equal(rest, "");
    assert_int_equal(file_os.unlink(NULL, child(f, "text")), 0);
    assert_int_equal(file_text_replace(&file_os, child(f, "none"), "text", text, n, &err),
                     -ENOENT);
    assert_non_null(strstr(err.text, "cannot write: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read_back, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(creating_empties_what_was_there, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(renaming_replaces_the_target, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_folder_may_be_made_twice_but_not_over_a_file,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(listing_names_every_entry_once_and_stops_on_request,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(what_fails_returns_its_errno_and_sets_nothing,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(what_is_no_file_is_never_waited_for_long, make_folder,
                                        remove_folder),
        cmocka_unit_test(a_full_disk_is_reported),
        cmocka_unit_test_setup_teardown(a_text_is_replaced_whole_and_its_crc_shows_damage,
                                        make_folder, remove_folder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
