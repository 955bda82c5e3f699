/* A copy of a restore point: what a primary may send, and a disk that fails in any operation. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/checkpoint/directory.h"
#include "server/replication/copy.h"
#include "tests/support/crash_files.h"

#define DIR "data"
#define N20 "00000000000000000005"
#define LIST                                \
    "5 log/" N20 "/BEGINNING\n"             \
    "9 checkpoints/" N20 "/shard-000.psc\n" \
    "0 checkpoints/" N20 "/shard-001.psc\n" \
    "4 checkpoints/" N20 "/MANIFEST\n"

static const char *const contents[] = { "hello", "ninebytes", "", "MANI" };

static void set_up(struct crash_files *disk)
{
    crash_files_init(disk);
    assert_int_equal(disk->ops.mkdir(disk->ops.state, DIR), 0);
}

/* All of it, in pieces of two bytes. */
static int copy_all(struct crash_files *disk, struct err *err)
{
    struct file_request asked;
    struct copy c;
    int status;

    copy_init(&c, &disk->ops, DIR);
    c.piece_bytes = 2;
    status = copy_list(&c, LIST, strlen(LIST), err);
    while (!status && copy_next(&c, &asked)) {
        const char *text = contents[c.at];
        size_t n = strlen(text) - asked.offset;
        struct file_reply reply = { .file_bytes = strlen(text),
                                    .bytes = (const uint8_t *)text + asked.offset,
                                    .n_bytes = n > 2 ? 2 : n };

        assert_true(asked.max_bytes >= 2);
        status = copy_add(&c, &reply, err);
    }
    copy_deinit(&c);
    return status;
}

static void assert_is(struct crash_files *disk, const char *path, const char *text)
{
    const struct crash_inode *file = crash_files_at(disk, path);

    assert_non_null(file);
    assert_int_equal(file->n_bytes, strlen(text));
    assert_memory_equal(file->bytes, text, strlen(text));
}

static void assert_whole(struct crash_files *disk)
{
    assert_is(disk, DIR "/log/" N20 "/BEGINNING", contents[0]);
    assert_is(disk, DIR "/checkpoints/" N20 "/shard-000.psc", contents[1]);
    assert_is(disk, DIR "/checkpoints/" N20 "/shard-001.psc", contents[2]);
    assert_is(disk, DIR "/checkpoints/" N20 "/MANIFEST", contents[3]);
}

static void copies_in_pieces_and_durably(void **state)
{
    struct crash_files disk;
    struct err err = { 0 };

    (void)state;
    set_up(&disk);
    assert_int_equal(copy_all(&disk, &err), 0);
    assert_int_equal(crash_files_n_open(&disk), 0);
    assert_whole(&disk);
    crash_files_power_cut(&disk);
    assert_whole(&disk);
    crash_files_deinit(&disk);
}

/* Whatever operation fails or is the process's last: no manifest without its files, and the next copy is whole. */
static void a_failure_anywhere_leaves_no_restore_point_that_is_not_whole(void **state)
{
    long n_ops;

    (void)state;
    for (int how = 0; how < 3; how++) {
        long k = 0;

        do {
            struct crash_files disk;
            struct err err = { 0 };
            int status;

            set_up(&disk);
            disk.n_ops = 0;
            disk.fail_at = k++;
            disk.torn = how > 0;
            disk.dies = how > 1;
            status = copy_all(&disk, &err);
            n_ops = disk.n_ops;
            if (status)
                assert_true(err.text[0] != '\0');
            if (!disk.dead)
                assert_int_equal(crash_files_n_open(&disk), 0);
            if (how == 2)
                crash_files_power_cut(&disk);
            crash_files_heal(&disk);
            if (crash_files_is_there(&disk, DIR "/checkpoints/" N20 "/MANIFEST"))
                assert_whole(&disk);
            if (!crash_files_is_there(&disk, DIR))
                assert_int_equal(disk.ops.mkdir(disk.ops.state, DIR), 0);
            assert_int_equal(copy_prepare(&disk.ops, DIR, false, &err), 0);
            assert_false(crash_files_is_there(&disk, DIR "/checkpoints/" N20 "/MANIFEST"));
            assert_false(crash_files_is_there(&disk, DIR "/checkpoints/" N20 "/shard-000.psc"));
            assert_int_equal(copy_all(&disk, &err), 0);
            assert_whole(&disk);
            crash_files_deinit(&disk);
        } while (k <= n_ops);
    }
}

static void archives_what_is_not_a_copy(void **state)
{
    static const char *const files[] = { DIR "/wal-000.control", DIR "/wal-000.control.mark",
                                         DIR "/log/00000000000000000000/shard-000/"
                                             "00000000000000000001.psl" };
    struct crash_files disk;
    struct err err = { 0 };
    int fd;

    (void)state;
    set_up(&disk);
    assert_int_equal(copy_all(&disk, &err), 0);
    assert_int_equal(disk.ops.mkdir(disk.ops.state, DIR "/log/00000000000000000000"), 0);
    assert_int_equal(disk.ops.mkdir(disk.ops.state, DIR "/log/00000000000000000000/shard-000"),
                     0);
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        assert_int_equal(disk.ops.create(disk.ops.state, files[i], &fd), 0);
        assert_int_equal(disk.ops.close(disk.ops.state, fd), 0);
    }
    assert_int_equal(copy_prepare(&disk.ops, DIR, true, &err), 0);
    assert_is(&disk, DIR "/checkpoints/" N20 ".aside/MANIFEST", contents[3]);
    assert_false(crash_files_is_there(&disk, files[0]));
    assert_false(crash_files_is_there(&disk, files[1]));
    assert_true(crash_files_is_there(&disk, DIR "/log/00000000000000000000/shard-000/"
                                                "00000000000000000001.psl.unread"));
    assert_int_equal(copy_all(&disk, &err), 0);
    assert_whole(&disk);
    assert_int_equal(copy_prepare(&disk.ops, DIR, true, &err),
                     0); /* the same number once more */
    assert_is(&disk, DIR "/checkpoints/" N20 ".aside/MANIFEST", contents[3]);
    assert_false(crash_files_is_there(&disk, DIR "/checkpoints/" N20 "/MANIFEST"));
    crash_files_deinit(&disk);
}

static void refuses_names_that_lead_elsewhere(void **state)
{
    static const char *const lists[] = {
        "5 ../passwd\n",
        "5 /etc/passwd\n",
        "5 checkpoints/../TERMS\n",
        "5 checkpoints/" N20 "/../TERMS\n",
        "5 checkpoints/" N20 "/shard-000.psc/../../x\n",
        "5 checkpoints/" N20 "/shard-.psc\n",
        "5 checkpoints/" N20 "/shard-00000.psc\n",
        "5 checkpoints/5/MANIFEST\n",
        "5 checkpoints/" N20 "\n",
        "5 log/" N20 "/shard-000.psc\n",
        "5 log/" N20 "/LEFT\n",
        "5 TERMS\n",
        "x checkpoints/" N20 "/MANIFEST\n",
        "-5 checkpoints/" N20 "/MANIFEST\n",
        "99999999999999999999 checkpoints/" N20 "/MANIFEST\n",
        " checkpoints/" N20 "/MANIFEST\n",
        "5 checkpoints/" N20 "/MANIFEST",
        "5\n",
        "\n",
    };
    struct crash_files disk;

    (void)state;
    set_up(&disk);
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        struct err err = { 0 };
        struct copy c;

        copy_init(&c, &disk.ops, DIR);
        if (copy_list(&c, lists[i], strlen(lists[i]), &err) != PS_EPROTO)
            fail_msg("it takes %s", lists[i]);
        assert_true(err.text[0] != '\0');
        copy_deinit(&c);
    }
    crash_files_deinit(&disk);
}

static void refuses_what_was_not_asked_for(void **state)
{
    static const struct file_reply replies[] = {
        { .file_bytes = 4, .bytes = (const uint8_t *)"hell", .n_bytes = 4 },
        { .file_bytes = 5, .bytes = (const uint8_t *)"hello!", .n_bytes = 6 },
        { .file_bytes = 5, .bytes = (const uint8_t *)"", .n_bytes = 0 },
    };
    struct crash_files disk;

    (void)state;
    set_up(&disk);
    for (size_t i = 0; i < COUNT_OF(replies); i++) {
        struct err err = { 0 };
        struct copy c;

        copy_init(&c, &disk.ops, DIR);
        assert_int_equal(copy_list(&c, LIST, strlen(LIST), &err), 0);
        assert_int_equal(copy_add(&c, &replies[i], &err), PS_EPROTO);
        assert_non_null(strstr(err.text, "something else"));
        copy_deinit(&c);
    }
    crash_files_deinit(&disk);
}

/* Asked again as soon as a timer of whole milliseconds has run, sometimes late; then as slowly as it likes. */
static void a_primary_that_serves_paces_its_pieces(void **state)
{
    struct copy_pace pace = { 0 };
    const uint64_t began_ns = 5000000123;
    uint64_t now_ns = began_ns, n_bytes = 0;

    (void)state;
    for (int i = 0; i < 3000; i++) {
        uint64_t wait_ms;

        while ((wait_ms = copy_pace_wait_ms(&pace, now_ns, COPY_PIECE_BYTES)) > 0) {
            assert_true(wait_ms <= 4); /* a piece's */
            now_ns += wait_ms * 1000000 + (i % 7 == 0 ? 300000 : 0);
        }
        n_bytes += COPY_PIECE_BYTES;
        now_ns += 200000; /* the read, and the next question */
    }
    assert_in_range(n_bytes * 1000000 / (now_ns - began_ns), COPY_BYTES_PER_MS * 98 / 100,
                    COPY_BYTES_PER_MS * 101 / 100);
    for (int i = 0; i < 10; i++) {
        now_ns += 5000000;
        assert_int_equal(copy_pace_wait_ms(&pace, now_ns, COPY_PIECE_BYTES), 0);
    }
    assert_int_equal(copy_pace_wait_ms(&pace, now_ns, COPY_PIECE_BYTES),
                     3); /* nothing is saved up */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_in_pieces_and_durably),
        cmocka_unit_test(a_failure_anywhere_leaves_no_restore_point_that_is_not_whole),
        cmocka_unit_test(archives_what_is_not_a_copy),
        cmocka_unit_test(refuses_names_that_lead_elsewhere),
        cmocka_unit_test(refuses_what_was_not_asked_for),
        cmocka_unit_test(a_primary_that_serves_paces_its_pieces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
