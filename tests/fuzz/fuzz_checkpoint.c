/*
 * A checkpoint: u8 shards | the folder of its files (disk.h). One that is found whole can be loaded onto any
 * number of shards; saved by these, and loaded onto others, it is the same.
 */
#include "tests/unit/checkpoint/fixture.h"

#include "server/checkpoint/loader.h"
#include "tests/fuzz/disk.h"

#define DIR DATA_DIR "/checkpoints/00000000000000000007"

static void on_report(void *arg, const char *sentence)
{
    assert(arg == NULL && sentence[0]);
}

/* Onto n new shards, which are the caller's to free in any case. */
static int load(const struct file_ops *files, const struct checkpoint *c, struct shard **shards,
                uint32_t n)
{
    struct loader_config config = { .files = files, .checkpoint = c };
    struct loader_facts facts;
    struct err err = { 0 };
    int status = 0;

    enter_shard();
    fixture_new(shards, n, 0, 0);
    for (uint32_t i = 0; i < n && !status; i++)
        status = loader_reshard(&config, shards[i], &facts, &err);
    assert(!status == !err.text[0]);
    return status;
}

static void check_saved(const struct file_ops *files, struct shard **shards, uint32_t n)
{
    struct shard *again[N_SHARDS_MAX];
    uint32_t n_again = 1 + (n + 1) % 3;

    assert_int_equal(fixture_save(files, shards, n, 1, NULL), 0);
    assert_int_equal(fixture_load(files, again, n_again), 0);
    fixture_assert_equal(shards, n, again, n_again);
    fixture_free(again, n_again);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    uint32_t n = 1 + (uint32_t)harness_number(&in, 1) % 3;
    struct shard *shards[N_SHARDS_MAX];
    struct checkpoint found;
    struct crash_files disk;
    struct err err = { 0 };
    int status;

    crash_files_init(&disk);
    disk_fill(&disk, DIR, &in);
    enter_shard();
    status = checkpoint_find(&disk.ops, DATA_DIR, 0, &found, on_report, NULL, &err);
    if (status) {
        assert(err.text[0]);
        assert(status == PS_ECORRUPT || status == PS_ENOCHECKPOINT);
    } else {
        if (load(&disk.ops, &found, shards, n) == 0)
            check_saved(&disk.ops, shards, n);
        fixture_free(shards, n);
        checkpoint_close(&found);
    }
    assert(crash_files_n_open(&disk) == 0);
    crash_files_deinit(&disk);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    struct shard *shards[N_SHARDS_MAX];
    const uint32_t n_rows[] = { 0, 3, 40 };
    uint32_t n = 1 + i % 3;
    struct crash_files disk;
    struct checkpoint found;
    struct err err;

    if (i >= 3 * COUNT_OF(n_rows))
        return false;
    crash_files_init(&disk);
    enter_shard();
    fixture_new(shards, n, n_rows[i / 3], i);
    for (uint32_t k = 0; k < 7; k++) /* the last is number 7 */
        assert_int_equal(fixture_save(&disk.ops, shards, n, 1, NULL), 0);
    assert_int_equal(checkpoint_find(&disk.ops, DATA_DIR, 0, &found, NULL, NULL, &err), 0);
    assert_string_equal(found.dir, DIR);
    checkpoint_close(&found);
    harness_put_number(out, i, 1);
    disk_dump(&disk, DIR, out);
    fixture_free(shards, n);
    crash_files_deinit(&disk);
    return true;
}
