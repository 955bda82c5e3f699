/* What a checkpoint promises when the disk, the power or the memory fails at any point. */
#include <errno.h>

#include "common/crc32c.h"
#include "common/memory.h"
#include "server/core/replay.h"
#include "tests/support/reports.h"
#include "tests/support/share.h"
#include "tests/unit/checkpoint/fixture.h"

#define FIRST_DIR DATA_DIR "/checkpoints/00000000000000000001"

enum fault { FAULT_ERROR, FAULT_TORN, FAULT_DEATH, FAULT_TORN_DEATH, N_FAULTS };

/* Saves `next` over a disk that holds `old`, with a fault at operation k. True if the fault was
 * met. */
static bool save_with_fault(struct crash_files *c, struct shard **old, struct shard **next,
                            uint32_t n_shards, enum fault fault, long k, int *ret_status)
{
    crash_files_init(c);
    assert_int_equal(fixture_save(&c->ops, old, n_shards, 1, NULL), 0);
    crash_files_heal(c);
    c->fail_at = k;
    c->torn = fault == FAULT_TORN || fault == FAULT_TORN_DEATH;
    c->dies = fault == FAULT_DEATH || fault == FAULT_TORN_DEATH;
    *ret_status = fixture_save(&c->ops, next, n_shards, 1, NULL);
    assert_int_equal(crash_files_n_open(c), 0);
    return c->n_ops > k;
}

static void
after_a_fault_at_any_operation_the_newest_is_the_one_before_or_the_new_one(void **state)
{
    struct shard *old[2], *next[2];
    struct crash_files c;
    int status;

    (void)state;
    fixture_new(old, 2, 60, 1);
    fixture_new(next, 2, 70, 2);
    for (enum fault fault = 0; fault < N_FAULTS; fault++) {
        long k = share_first();

        for (; save_with_fault(&c, old, next, 2, fault, k, &status); k += share_step()) {
            if (fault >= FAULT_DEATH)
                crash_files_power_cut(&c);
            else
                crash_files_heal(&c);
            if (status == 0) /* only the removal of the old one failed */
                assert_true(fixture_is_newest(&c, next, 2));
            else
                assert_true(fixture_is_newest(&c, old, 2) || fixture_is_newest(&c, next, 2));
            /* And the next attempt works. */
            assert_int_equal(fixture_save(&c.ops, next, 2, 1, NULL), 0);
            assert_true(fixture_is_newest(&c, next, 2));
            crash_files_deinit(&c);
        }
        assert_int_equal(status, 0);
        assert_true(k > 25);
        crash_files_deinit(&c);
    }
    fixture_free(old, 2);
    fixture_free(next, 2);
}

static void a_committed_checkpoint_survives_a_power_cut(void **state)
{
    struct shard *shards[2];
    struct crash_files c;

    (void)state;
    crash_files_init(&c);
    fixture_new(shards, 2, 60, 1);
    assert_int_equal(fixture_save(&c.ops, shards, 2, 1, NULL), 0);
    crash_files_power_cut(&c);
    assert_true(fixture_is_newest(&c, shards, 2));
    fixture_free(shards, 2);
    crash_files_deinit(&c);
}

static void a_full_disk_gets_its_space_back(void **state)
{
    struct shard *shards[1];
    struct crash_files c;
    struct manifest *m = fixture_manifest(0, 1, 1);
    struct err err;

    (void)state;
    crash_files_init(&c);
    fixture_new(shards, 1, 60, 1);
    assert_int_equal(checkpoint_next(&c.ops, DATA_DIR, &m->number, &err), 0);
    crash_files_heal(&c);
    c.fail_at = 3;
    assert_int_equal(fixture_write(&c.ops, m, 0, shards[0], &err), -EIO);
    free(m);
    assert_non_null(strstr(err.text, "shard-000.psc"));
    assert_false(crash_files_is_there(&c, FIRST_DIR "/shard-000.psc"));
    fixture_free(shards, 1);
    crash_files_deinit(&c);
}

/* Of the first checkpoint, opened and read to its end. */
static int verify(struct crash_files *c, struct err *err)
{
    struct checkpoint opened;
    int status = checkpoint_open(&c->ops, FIRST_DIR, &opened, err);

    if (status)
        return status;
    status = checkpoint_verify(&c->ops, &opened, NULL, NULL, err);
    checkpoint_close(&opened);
    return status;
}

/* The same for who loads, in either way, without having verified. */
static int load(struct crash_files *c, bool whole)
{
    struct shard *shard = fixture_shard(0, 1);
    struct checkpoint opened;
    struct loader_config config = { .files = &c->ops, .checkpoint = &opened };
    struct loader_facts facts;
    struct err err = { 0 };
    int status = checkpoint_open(&c->ops, FIRST_DIR, &opened, &err);

    if (!status) {
        status = whole ? loader_load(&config, 0, shard, 0, &facts, &err)
                       : loader_reshard(&config, shard, &facts, &err);
        if (whole)
            replay_end(shard, 0);
        checkpoint_close(&opened);
    }
    shard_free(shard);
    return status;
}

/* Verifying and loading must refuse the state of the disk, with a sentence
 * that names the file. */
static void assert_refused(struct crash_files *c, const char *name, bool whole)
{
    struct checkpoint found;
    struct reports reports = { 0 };
    struct err err = { 0 };

    assert_int_equal(verify(c, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, name));
    assert_int_equal(load(c, whole), PS_ECORRUPT);
    assert_int_equal(
        checkpoint_find_whole(&c->ops, DATA_DIR, &found, reports_add, &reports, &err),
        PS_ECORRUPT);
    assert_int_equal(reports.n, 1);
    assert_non_null(strstr(reports.last, name));
    assert_int_equal(crash_files_n_open(c), 0);
}

static void damage_every_byte(struct crash_files *c, const char *name)
{
    static const uint8_t masks[] = { 0x01, 0x80 };
    char path[CRASH_PATH_MAX];
    struct crash_inode *file;

    snprintf(path, sizeof path, FIRST_DIR "/%s", name);
    file = crash_files_at(c, path);
    assert_non_null(file);
    for (size_t i = 0; i < file->n_bytes; i++)
        for (size_t m = 0; m < COUNT_OF(masks); m++) {
            file->bytes[i] ^= masks[m];
            assert_refused(c, name, m);
            file->bytes[i] ^= masks[m];
        }
    assert_int_equal(verify(c, NULL), 0);
}

static void truncate_after_every_byte(struct crash_files *c, const char *name)
{
    char path[CRASH_PATH_MAX];
    struct crash_inode *file;
    size_t whole;

    snprintf(path, sizeof path, FIRST_DIR "/%s", name);
    file = crash_files_at(c, path);
    whole = file->n_bytes;
    for (file->n_bytes = 0; file->n_bytes < whole; file->n_bytes++)
        assert_refused(c, name, file->n_bytes % 2);
    file->bytes = realloc(file->bytes, whole + 1);
    file->bytes[whole] = '\n';
    file->n_bytes = whole + 1;
    assert_refused(c, name, true);
    file->n_bytes = whole;
}

static void every_damaged_byte_truncation_and_trailing_byte_is_seen(void **state)
{
    struct shard *shard = fixture_shard(0, 1);
    struct crash_files c;

    (void)state;
    crash_files_init(&c);
    fixture_fill(shard, 5, 1);
    assert_int_equal(fixture_save(&c.ops, &shard, 1, 1, NULL), 0);
    damage_every_byte(&c, "shard-000.psc");
    damage_every_byte(&c, "MANIFEST");
    truncate_after_every_byte(&c, "shard-000.psc");
    truncate_after_every_byte(&c, "MANIFEST");
    shard_free(shard);
    crash_files_deinit(&c);
}

static void a_damaged_or_missing_file_makes_the_one_before_the_newest(void **state)
{
    struct shard *old = fixture_shard(0, 1), *next = fixture_shard(0, 1);
    const char *path = DATA_DIR "/checkpoints/00000000000000000002/shard-000.psc";
    struct checkpoint found;
    struct reports reports = { 0 };
    struct crash_files c;
    struct err err;

    (void)state;
    crash_files_init(&c);
    fixture_fill(old, 5, 1);
    fixture_fill(next, 5, 2);
    assert_int_equal(fixture_save(&c.ops, &old, 1, 2, NULL), 0);
    assert_int_equal(fixture_save(&c.ops, &next, 1, 2, NULL), 0);
    crash_files_at(&c, path)->bytes[100] ^= 4;
    assert_int_equal(
        checkpoint_find_whole(&c.ops, DATA_DIR, &found, reports_add, &reports, &err), 0);
    assert_string_equal(found.dir, FIRST_DIR);
    checkpoint_close(&found);
    assert_int_equal(reports.n, 1);
    assert_non_null(strstr(reports.last, "00000000000000000002/shard-000.psc"));
    assert_int_equal(c.ops.unlink(&c, path), 0);
    assert_int_equal(
        checkpoint_find_whole(&c.ops, DATA_DIR, &found, reports_add, &reports, &err), 0);
    assert_string_equal(found.dir, FIRST_DIR);
    checkpoint_close(&found);
    assert_int_equal(reports.n, 2);
    shard_free(old);
    shard_free(next);
    crash_files_deinit(&c);
}

static void the_file_of_another_shard_or_checkpoint_is_refused(void **state)
{
    struct shard *shards[2];
    struct crash_files c;
    struct err err;

    (void)state;
    crash_files_init(&c);
    fixture_new(shards, 2, 40, 1);
    assert_int_equal(fixture_save(&c.ops, shards, 2, 2, NULL), 0);
    assert_int_equal(fixture_save(&c.ops, shards, 2, 2, NULL), 0);
    assert_int_equal(c.ops.rename(&c,
                                  DATA_DIR "/checkpoints/00000000000000000002/shard-001.psc",
                                  FIRST_DIR "/shard-001.psc"),
                     0);
    assert_int_equal(verify(&c, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, "shard 1 of checkpoint 2"));
    assert_int_equal(c.ops.rename(&c, FIRST_DIR "/shard-001.psc", FIRST_DIR "/shard-000.psc"),
                     0);
    assert_int_equal(verify(&c, &err), PS_ECORRUPT);
    fixture_free(shards, 2);
    crash_files_deinit(&c);
}

#ifdef PS_FAULTS
static void without_memory_at_any_point_nothing_is_lost_or_leaked(void **state)
{
    struct shard *shards[2], *loaded[2];
    struct checkpoint found;
    struct crash_files c;
    struct err err;
    int status = -ENOMEM;

    (void)state;
    crash_files_init(&c);
    fixture_new(shards, 2, 60, 1);
    assert_int_equal(fixture_save(&c.ops, shards, 2, 1, NULL), 0);
    for (long k = 0; status && k < 1000; k++) {
        memory_fail_after(k);
        status = fixture_save(&c.ops, shards, 2, 2, NULL);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        assert_int_equal(crash_files_n_open(&c), 0);
    }
    assert_int_equal(status, 0);
    for (int whole = 0; whole < 2; whole++) {
        status = -ENOMEM;
        for (long k = 0; status && k < 1000; k++) {
            struct loader_config config = { .files = &c.ops, .checkpoint = &found };
            struct loader_facts facts;

            fixture_new(loaded, 1, 0, 0);
            memory_fail_after(k);
            status = checkpoint_find(&c.ops, DATA_DIR, 0, &found, NULL, NULL, &err);
            if (!status)
                status = whole ? checkpoint_verify(&c.ops, &found, NULL, NULL, &err)
                               : loader_reshard(&config, loaded[0], &facts, &err);
            memory_fail_after(-1);
            checkpoint_close(&found);
            assert_true(status == 0 || status == -ENOMEM);
            assert_int_equal(crash_files_n_open(&c), 0);
            if (status == 0 && !whole)
                fixture_assert_equal(shards, 2, loaded, 1);
            fixture_free(loaded, 1);
        }
    }
    assert_int_equal(status, 0);
    fixture_free(shards, 2);
    crash_files_deinit(&c);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            after_a_fault_at_any_operation_the_newest_is_the_one_before_or_the_new_one),
        cmocka_unit_test(a_committed_checkpoint_survives_a_power_cut),
        cmocka_unit_test(a_full_disk_gets_its_space_back),
        cmocka_unit_test(every_damaged_byte_truncation_and_trailing_byte_is_seen),
        cmocka_unit_test(a_damaged_or_missing_file_makes_the_one_before_the_newest),
        cmocka_unit_test(the_file_of_another_shard_or_checkpoint_is_refused),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_at_any_point_nothing_is_lost_or_leaked),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
