/* What verify says of files that are damaged, or that lie. Those of a real psd: tests/system/test_tools.py. */
#include <cjson/cJSON.h>

#include "common/memory.h"
#include "deploy/psctl/verify.h"
#include "deploy/psctl/verify_checkpoint.h"
#include "deploy/psctl/verify_wal.h"
#include "server/recovery/timeline.h"
#include "server/wal/wal_queue.h"
#include "server/wal/wal_writer.h"
#include "tests/unit/checkpoint/fixture.h"

/* How many things are damaged; *ret_first: the first of the sentences, to be freed, or NULL. */
static int damages(struct crash_files *c, const char *path, char **ret_first)
{
    struct err err = { 0 };
    cJSON *json = NULL, *damage;
    const char *text;
    int n;

    *ret_first = NULL;
    if (verify_path(&c->ops, path, VERIFY_QUIETLY, &json, &err))
        fail_msg("%s", err.text);
    damage = cJSON_GetObjectItemCaseSensitive(json, "damage");
    n = cJSON_GetArraySize(damage);
    text = cJSON_GetStringValue(cJSON_GetArrayItem(damage, 0));
    if (text)
        *ret_first = strdup(text);
    cJSON_Delete(json);
    return n;
}

static struct shard *small_shard(uint32_t index, uint32_t n_shards, uint32_t n_sparse)
{
    struct shard *s;

    enter_shard();
    s = fixture_shard(index, n_shards);
    fixture_fill(s, n_sparse, 1);
    return s;
}

/* Checkpoint 1 of one node, whose only shard says that it is number `shard` of n_shards. Takes s. */
static void save_as(struct crash_files *c, struct shard *s, uint32_t shard, uint32_t n_shards)
{
    struct manifest *m = fixture_manifest(shard, n_shards, 1);
    struct err err = { 0 };

    enter_shard();
    m->map_id = 0;
    assert_int_equal(checkpoint_next(&c->ops, DATA_DIR, &m->number, &err), 0);
    assert_int_equal(fixture_write(&c->ops, m, 0, s, &err), 0);
    assert_int_equal(checkpoint_commit(&c->ops, DATA_DIR, m, 1, NULL, &err), 0);
    free(m);
    shard_free(s);
}

static void every_byte_of_a_checkpoint_counts(void **state)
{
    static const char *const names[] = { DATA_DIR
                                         "/checkpoints/00000000000000000001/shard-000.psc",
                                         DATA_DIR
                                         "/checkpoints/00000000000000000001/MANIFEST" };
    struct crash_files c;
    char *first;

    (void)state;
    crash_files_init(&c);
    save_as(&c, small_shard(0, 1, 10), 0, 1);
    assert_int_equal(damages(&c, DATA_DIR, &first), 0);
    for (size_t f = 0; f < COUNT_OF(names); f++) {
        struct crash_inode *file = crash_files_at(&c, names[f]);

        for (size_t i = 0; i < file->n_bytes; i++) {
            file->bytes[i] ^= 0x20;
            assert_int_equal(damages(&c, DATA_DIR, &first), 1);
            assert_non_null(strstr(first, "checkpoint 1: "));
            assert_non_null(strstr(first, "/00000000000000000001"));
            free(first);
            file->bytes[i] ^= 0x20;
        }
    }
    crash_files_deinit(&c);
}

static void a_file_truncated_anywhere_is_damaged(void **state)
{
    struct crash_files c;
    struct crash_inode *file;
    char *first;

    (void)state;
    crash_files_init(&c);
    save_as(&c, small_shard(0, 1, 10), 0, 1);
    file = crash_files_at(&c, DATA_DIR "/checkpoints/00000000000000000001/shard-000.psc");
    for (size_t n = file->n_bytes; file->n_bytes > 0;) {
        file->n_bytes = --n;
        assert_int_equal(damages(&c, DATA_DIR, &first), 1);
        free(first);
    }
    crash_files_deinit(&c);
}

static void a_row_in_another_shards_file_is_reported_with_its_key(void **state)
{
    struct crash_files c;
    char *first;

    (void)state;
    crash_files_init(&c);
    save_as(&c, small_shard(0, 2, 200), 1, 2); /* what shard 0 of 2 keeps */
    assert_int_equal(damages(&c, DATA_DIR, &first), 1);
    assert_non_null(strstr(first, "which belongs to another shard"));
    assert_non_null(strstr(first, "table emb has key "));
    free(first);
    crash_files_deinit(&c);
}

static void an_unfinished_one_and_what_is_not_there_are_no_damage(void **state)
{
    struct crash_files c;
    struct err err = { 0 };
    cJSON *json;
    char *first;

    (void)state;
    crash_files_init(&c);
    assert_int_equal(verify_path(&c.ops, DATA_DIR, VERIFY_QUIETLY, &json, &err),
                     PS_ENOCHECKPOINT);
    save_as(&c, small_shard(0, 1, 10), 0, 1);
    assert_int_equal(
        c.ops.unlink(c.ops.state, DATA_DIR "/checkpoints/00000000000000000001/MANIFEST"), 0);
    assert_int_equal(damages(&c, DATA_DIR, &first), 0);
    crash_files_deinit(&c);
}

/* --- logs --- */

static const struct wal_identity identity = { .n_shards = 1 };

/* n records, each in a block of its own, of which the log goes on where *end says. */
static void write_log(struct crash_files *c, const struct wal_end *end, uint64_t n)
{
    struct wal_writer_config config = {
        .files = &c->ops, .identity = identity, .durability = WAL_FSYNC, .zstd = WAL_ZSTD_OFF
    };
    struct wal_queue queue;
    struct wal_writer *writer;
    char dir[WAL_PATH_MAX];
    struct err err = { 0 };
    uint64_t due;

    assert_int_equal(timeline_make(&c->ops, DATA_DIR, 0, &err), 0);
    assert_int_equal(timeline_log_dir(DATA_DIR, 0, 0, dir, &err), 0);
    snprintf(config.dir, sizeof config.dir, "%.200s", dir);
    if (wal_writer_open(&config, end, 1, &writer, &err))
        fail_msg("%s", err.text);
    wal_queue_init(&queue, &(struct wal_queue_config){ .durability = WAL_FSYNC,
                                                       .next_number = end->last + 1 });
    for (uint64_t i = 0; i < n; i++) {
        const struct wal_record record = {
            .event = { .type = SHARD_EVENT_COMBINE, .version = 1, .combine = { 1, i } }
        };

        assert_int_equal(wal_queue_reserve(&queue, wal_record_bytes(&record)), 0);
        wal_queue_append(&queue, &record, i);
        wal_writer_drain(writer, &queue);
        wal_writer_work(writer, i, 1, &due);
        wal_writer_report(writer, &queue);
    }
    wal_writer_free(writer);
    wal_queue_deinit(&queue);
}

static struct verify_wal read_log(struct crash_files *c)
{
    struct verify_wal log;
    struct err err = { 0 };

    if (verify_wal_read(&c->ops, DATA_DIR, 0, 0, &log, &err))
        fail_msg("%s", err.text);
    return log;
}

/* A data directory with a log of so many records, and nothing else. */
static void begin_log(struct crash_files *c, uint32_t n_records)
{
    crash_files_init(c);
    assert_int_equal(c->ops.mkdir(c->ops.state, DATA_DIR), 0);
    write_log(c, &(struct wal_end){ 0 }, n_records);
}

static void a_log_reports_its_records_and_its_end(void **state)
{
    struct crash_files c;
    struct verify_wal log;
    char *first;

    (void)state;
    begin_log(&c, 7);
    log = read_log(&c);
    assert_int_equal(log.n_records, 7);
    assert_int_equal(log.n_stretches, 1);
    assert_int_equal(verify_wal_last(&log), 7);
    assert_int_equal(verify_wal_covered(&log, 1), 7);
    assert_int_equal(verify_wal_covered(&log, 7), 7);
    assert_int_equal(verify_wal_covered(&log, 8), 7);
    assert_int_equal(verify_wal_covered(&log, 9), 8);
    verify_wal_free(&log);
    assert_int_equal(damages(&c, DATA_DIR, &first), 0);
    crash_files_deinit(&c);
}

static void a_log_whose_beginning_is_gone_needs_a_checkpoint(void **state)
{
    struct crash_files c;
    struct verify_wal log;
    char *first;

    (void)state;
    begin_log(&c, 7);
    log = read_log(&c);
    write_log(&c, &log.end, 4);
    verify_wal_free(&log);
    assert_int_equal(
        c.ops.unlink(c.ops.state,
                     DATA_DIR "/log/00000000000000000000/shard-000/00000000000000000001.psl"),
        0);
    log = read_log(&c);
    assert_int_equal(log.n_records, 4);
    assert_int_equal(log.stretches[0].first, 8);
    assert_int_equal(verify_wal_covered(&log, 1), 0);
    verify_wal_free(&log);
    assert_int_equal(damages(&c, DATA_DIR, &first), 1);
    assert_non_null(strstr(first, "begins with record 8, and there is no checkpoint"));
    free(first);
    crash_files_deinit(&c);
}

static void a_log_with_a_hole_needs_a_checkpoint(void **state)
{
    struct crash_files c;
    struct verify_wal log;
    char *first;

    (void)state;
    begin_log(&c, 7);
    log = read_log(&c);
    log.end.last = 11; /* 8 to 11 were dropped */
    write_log(&c, &log.end, 4);
    verify_wal_free(&log);
    log = read_log(&c);
    assert_int_equal(log.n_stretches, 2);
    assert_int_equal(verify_wal_covered(&log, 1), 7);
    assert_int_equal(verify_wal_last(&log), 15);
    verify_wal_free(&log);
    assert_int_equal(damages(&c, DATA_DIR, &first), 1);
    assert_non_null(strstr(first, "shard 0: between records 7 and 15 the log has a gap, and"));
    free(first);
    crash_files_deinit(&c);
}

static void every_byte_of_a_log_that_was_promised_counts(void **state)
{
    static const char name[] =
        DATA_DIR "/log/00000000000000000000/shard-000/00000000000000000001.psl";
    struct crash_files c;
    struct crash_inode *file;
    uint64_t n_damaged = 0;
    char *first;

    (void)state;
    begin_log(&c, 5);
    file = crash_files_at(&c, name);
    for (size_t i = 0; i < file->n_bytes; i++) {
        struct verify_wal log;
        bool is_damaged;

        file->bytes[i] ^= 0x20;
        log = read_log(&c);
        is_damaged =
            log.end.verdict == WAL_DAMAGED || log.header_text[0]; /* which costs no record */
        assert_true(is_damaged || log.end.verdict == WAL_TORN);
        n_damaged += is_damaged;
        assert_int_equal(damages(&c, DATA_DIR, &first), is_damaged);
        if (first)
            assert_non_null(strstr(first, "00000000000000000001.psl"));
        free(first);
        verify_wal_free(&log);
        file->bytes[i] ^= 0x20;
    }
    assert_true(n_damaged >
                file->n_bytes / 2); /* the last group cannot be told from a torn one */
    crash_files_deinit(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_of_a_checkpoint_counts),
        cmocka_unit_test(a_file_truncated_anywhere_is_damaged),
        cmocka_unit_test(a_row_in_another_shards_file_is_reported_with_its_key),
        cmocka_unit_test(an_unfinished_one_and_what_is_not_there_are_no_damage),
        cmocka_unit_test(a_log_reports_its_records_and_its_end),
        cmocka_unit_test(a_log_whose_beginning_is_gone_needs_a_checkpoint),
        cmocka_unit_test(a_log_with_a_hole_needs_a_checkpoint),
        cmocka_unit_test(every_byte_of_a_log_that_was_promised_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
