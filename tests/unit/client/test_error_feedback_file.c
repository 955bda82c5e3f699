/* Residuals as a file: what is read is what was written, or nothing. */
#include "worker/client/error_feedback_file.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/crc32c.h"
#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/crash_files.h"
#include "worker/client/error_feedback.h"
#include "worker/client/push_encoder.h"

#define DIR "state"
#define PATH DIR "/ctr.2.residuals"

static const struct error_feedback_file mine = { .job = "ctr", .rank = 2, .clock = 77 };

static struct push_encoder *make(uint32_t dim)
{
    struct table_spec emb = { .name = "ctr/emb", .kind = TABLE_SPEC_SPARSE, .dim = dim };
    struct table_spec top = {
        .name = "ctr/top", .kind = TABLE_SPEC_DENSE, .dim = 5, .n_floats = 40
    };
    struct push_encoder *e = push_encoder_new(2);

    assert_int_equal(push_encoder_add_table(e, 0, &emb), 0);
    assert_int_equal(push_encoder_add_table(e, 1, &top), 0);
    return e;
}

/* n rows whose order of use is not that of their places. */
static void fill(struct error_feedback *r, uint32_t n, uint64_t seed)
{
    assert_int_equal(error_feedback_reserve(r, n + 1), 0);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < r->dim; j++)
            error_feedback_row(r, hash_mix2(seed, i))[j] =
                hash_unit(hash_mix2(seed ^ 1, i * 64 + j));
    for (uint32_t i = 0; i < n / 3; i++)
        error_feedback_row(r, hash_mix2(seed, i * 2));
    if (n > 4)
        error_feedback_remove(r, hash_mix2(seed, 3));
}

static struct push_encoder *make_full(uint64_t seed, uint32_t n)
{
    struct push_encoder *e = make(3);

    fill(push_encoder_residual(e, 0), n, seed);
    fill(push_encoder_residual(e, 1), n / 2, seed ^ 9);
    return e;
}

/* The same rows in the same order of use. */
static bool same(struct push_encoder *a, struct push_encoder *b)
{
    for (uint32_t t = 0; t < 2; t++) {
        const struct error_feedback *x = push_encoder_residual(a, t),
                                    *y = push_encoder_residual(b, t);
        uint32_t i = x->oldest, j = y->oldest;

        for (; i && j; i = x->newer[i - 1], j = y->newer[j - 1])
            if (x->keys[i - 1] != y->keys[j - 1] ||
                memcmp(x->floats + (i - 1) * x->dim, y->floats + (j - 1) * y->dim,
                       x->dim * sizeof(float)) != 0)
                return false;
        if (i || j || x->n_rows != y->n_rows)
            return false;
    }
    return true;
}

static int read_into(struct crash_files *disk, struct push_encoder *e,
                     struct error_feedback_file *f, struct err *err)
{
    *f = (struct error_feedback_file){ .job = "ctr", .rank = 2 };
    return error_feedback_file_read(&disk->ops, DIR, e, f, err);
}

static void what_is_read_is_what_was_written_in_its_order(void **state)
{
    static const uint32_t sizes[] = { 0, 1, 7, 9000 };
    struct error_feedback_file f = mine;
    struct crash_files disk;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct push_encoder *e = make_full(i, sizes[i]), *got = make(3);

        crash_files_init(&disk);
        assert_int_equal(read_into(&disk, got, &f, &err), -ENOENT);
        f = mine;
        f.is_ended = i % 2;
        assert_int_equal(error_feedback_file_write(&disk.ops, DIR, &f, e, &err), 0);
        crash_files_power_cut(&disk);
        assert_int_equal(read_into(&disk, got, &f, &err), 0);
        assert_true(same(e, got));
        assert_int_equal(f.clock, 77);
        assert_int_equal(f.is_ended, i % 2);
        assert_int_equal(crash_files_n_open(&disk), 0);
        crash_files_deinit(&disk);
        push_encoder_free(e);
        push_encoder_free(got);
    }
}

static void every_flipped_byte_and_every_length_is_found_and_changes_nothing(void **state)
{
    struct push_encoder *e = make_full(5, 12), *none = make(3), *got = make(3);
    struct crash_inode *inode;
    struct error_feedback_file f;
    struct crash_files disk;
    struct err err;
    size_t n_bytes;

    (void)state;
    crash_files_init(&disk);
    assert_int_equal(error_feedback_file_write(&disk.ops, DIR, &mine, e, &err), 0);
    inode = crash_files_at(&disk, PATH);
    n_bytes = inode->n_bytes;
    for (size_t at = 0; at < n_bytes; at++) {
        inode->bytes[at] ^= (uint8_t)(1 << at % 8);
        assert_int_equal(read_into(&disk, got, &f, &err), PS_ECORRUPT);
        assert_non_null(strstr(err.text, PATH));
        inode->bytes[at] ^= (uint8_t)(1 << at % 8);
        inode->n_bytes = at;
        assert_int_equal(read_into(&disk, got, &f, &err), PS_ECORRUPT);
        inode->n_bytes = n_bytes;
        assert_true(same(got, none));
    }
    assert_int_equal(read_into(&disk, got, &f, &err), 0);
    assert_true(same(e, got));
    assert_int_equal(crash_files_n_open(&disk), 0);
    crash_files_deinit(&disk);
    push_encoder_free(e);
    push_encoder_free(none);
    push_encoder_free(got);
}

/* Bytes that pass the checksum, and lie. */
static void lie(struct crash_inode *inode, size_t at, const void *bytes, size_t n)
{
    uint32_t crc;

    memcpy(inode->bytes + at, bytes, n);
    crc = crc32c_extend(0, inode->bytes, inode->n_bytes - 4);
    memcpy(inode->bytes + inode->n_bytes - 4, &crc, 4);
}

static void a_whole_file_that_lies_is_refused(void **state)
{
    static const struct {
        size_t at;
        uint64_t value;
        size_t n;
        int status;
    } lies[] = {
        { 0, 0, 1, PS_ESPEC },                        /* magic */
        { 8, 2, 4, PS_ESPEC },                        /* version */
        { 12, 3, 4, PS_ECORRUPT },                    /* tables: one too many, */
        { 12, 1, 4, PS_ECORRUPT },                    /* and one too few */
        { 24, 1, 4, PS_ESPEC },                       /* rank */
        { 32, 'x', 1, PS_ESPEC },                     /* job */
        { 96, 'x', 1, PS_ESPEC },                     /* table */
        { 96 + 128, 4, 4, PS_ESPEC },                 /* dim */
        { 96 + 136, UINT64_MAX, 8, PS_ECORRUPT },     /* rows */
        { 96 + 136, 1, 8, PS_ESPEC },                 /* fewer rows: a table begins too early */
        { 96 + 144 + 8, 0x7f800000, 4, PS_ECORRUPT }, /* infinity */
    };
    struct push_encoder *e = make_full(5, 12), *got = make(3), *none = make(3);
    struct error_feedback_file f;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(lies); i++) {
        struct crash_files disk;

        crash_files_init(&disk);
        assert_int_equal(error_feedback_file_write(&disk.ops, DIR, &mine, e, &err), 0);
        lie(crash_files_at(&disk, PATH), lies[i].at, &lies[i].value, lies[i].n);
        assert_int_equal(read_into(&disk, got, &f, &err), lies[i].status);
        assert_true(same(got, none));
        crash_files_deinit(&disk);
    }
    push_encoder_free(e);
    push_encoder_free(got);
    push_encoder_free(none);
}

static void a_key_that_stands_twice_is_refused(void **state)
{
    struct push_encoder *e = make_full(5, 12), *got = make(3);
    struct error_feedback_file f;
    struct crash_files disk;
    struct err err;
    uint64_t key;

    (void)state;
    crash_files_init(&disk);
    assert_int_equal(error_feedback_file_write(&disk.ops, DIR, &mine, e, &err), 0);
    memcpy(&key, crash_files_at(&disk, PATH)->bytes + 96 + 144, 8);
    lie(crash_files_at(&disk, PATH), 96 + 144 + 8 + 3 * 4, &key, 8);
    assert_int_equal(read_into(&disk, got, &f, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, "twice"));
    crash_files_deinit(&disk);
    push_encoder_free(e);
    push_encoder_free(got);
}

/* Every operation fails in turn, alone, torn, or as the last before the power goes: the file is
 * the old one or the new one, and the next attempt works. */
static void after_a_fault_at_any_operation_the_file_is_the_old_or_the_new_one(void **state)
{
    struct push_encoder *old = make_full(1, 3000), *next = make_full(2, 3000);

    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        int status = -1;
        long k;

        for (k = 0; status; k++) {
            struct push_encoder *got = make(3);
            struct crash_files disk;
            struct error_feedback_file f;
            struct err err;

            crash_files_init(&disk);
            assert_int_equal(error_feedback_file_write(&disk.ops, DIR, &mine, old, &err), 0);
            crash_files_heal(&disk);
            disk.fail_at = k;
            disk.torn = kind & 1;
            disk.dies = kind & 2;
            status = error_feedback_file_write(&disk.ops, DIR, &mine, next, &err);
            if (kind & 2)
                crash_files_power_cut(&disk);
            else
                crash_files_heal(&disk);
            assert_int_equal(crash_files_n_open(&disk), 0);
            assert_int_equal(read_into(&disk, got, &f, &err), 0);
            assert_true(same(got, next) || (status && same(got, old)));
            assert_int_equal(error_feedback_file_write(&disk.ops, DIR, &mine, next, &err), 0);
            push_encoder_free(got);
            got = make(3);
            assert_int_equal(read_into(&disk, got, &f, &err), 0);
            assert_true(same(got, next));
            push_encoder_free(got);
            crash_files_deinit(&disk);
        }
        assert_true(k > 6);
    }
    push_encoder_free(old);
    push_encoder_free(next);
}

#ifdef PS_FAULTS
static void without_memory_nothing_is_read_and_nothing_changes(void **state)
{
    struct push_encoder *e = make_full(5, 200), *none = make(3);
    struct crash_files disk;
    struct error_feedback_file f;
    struct err err;
    int status = -1;
    long k;

    (void)state;
    crash_files_init(&disk);
    assert_int_equal(error_feedback_file_write(&disk.ops, DIR, &mine, e, &err), 0);
    for (k = 0; status; k++) {
        struct push_encoder *got = make(3);

        memory_fail_after(k);
        status = read_into(&disk, got, &f, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        assert_true(same(got, status ? none : e));
        push_encoder_free(got);
    }
    assert_true(k > 5);
    memory_fail_after(0);
    assert_int_equal(error_feedback_file_write(&disk.ops, DIR, &mine, e, &err), -ENOMEM);
    memory_fail_after(-1);
    crash_files_deinit(&disk);
    push_encoder_free(e);
    push_encoder_free(none);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_read_is_what_was_written_in_its_order),
        cmocka_unit_test(every_flipped_byte_and_every_length_is_found_and_changes_nothing),
        cmocka_unit_test(a_whole_file_that_lies_is_refused),
        cmocka_unit_test(a_key_that_stands_twice_is_refused),
        cmocka_unit_test(after_a_fault_at_any_operation_the_file_is_the_old_or_the_new_one),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_nothing_is_read_and_nothing_changes),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
