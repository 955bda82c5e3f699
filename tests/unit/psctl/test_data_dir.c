/*
 * Data that psd writes to while psctl reads it: between any two of a reader's operations a checkpoint is finished, the
 * one before removed, and the log cut. What is read is whole all the same, and is the state at the log's end.
 *
 *     record n makes table n          log     1 ... 7 | 8 ... 11 | 12, 13 | 14, 15
 *                                     before  checkpoint 1 behind record 7, whose scan needs record 8
 *                                     then    checkpoint 2 behind record 13, which needs 14, and nothing older
 */
#include <cjson/cJSON.h>

#include "common/memory.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/verify.h"
#include "deploy/psctl/verify_wal.h"
#include "server/recovery/timeline.h"
#include "server/wal/wal_queue.h"
#include "server/wal/wal_segment.h"
#include "server/wal/wal_writer.h"
#include "tests/unit/checkpoint/fixture.h"

#define N_TABLES 15u
#define POINT_1 DATA_DIR "/checkpoints/00000000000000000001"
#define POINT_2 DATA_DIR "/checkpoints/00000000000000000002"

#define POINT_1_LAST 7u
#define POINT_2_LAST 13u

static const uint32_t ends[] = { POINT_1_LAST, 11, POINT_2_LAST, N_TABLES }; /* of segments */

/* When checkpoint 2 is begun: its directory is there without a manifest before psctl looks, or not. */
enum begun { BEGUN_THEN, BEGUN_BEFORE };

/* A disk on which psd goes on before the reader's operation number `at`. */
struct live {
    struct crash_files disk;
    struct file_ops ops;
    struct manifest *next; /* owned: of checkpoint 2, in the making */
    long n_queries, at;
    bool has_happened;
};

static struct table_spec spec_of(uint32_t n)
{
    struct table_spec spec = fixture_spec(0);

    snprintf(spec.name, sizeof spec.name, "t%u", n);
    return spec;
}

/* --- psd's part --- */

/* The file of a scan during which table n_tables + 1 came, too late for it: one record of the log makes it whole. */
static void write_scan(struct live *l, const struct manifest *m, struct shard *s,
                       uint32_t n_tables, struct shard_file_facts *ret)
{
    const struct shard_file_writer_config config = { .files = &l->disk.ops,
                                                     .data_dir = DATA_DIR,
                                                     .number = m->number,
                                                     .identity = { .n_shards = 1 } };
    struct shard_file_writer_buffer *buffer;
    struct shard_file_writer *writer;
    struct err err = { 0 };

    assert_int_equal(shard_file_writer_begin(&config, s, n_tables, &writer, &err), 0);
    while (!shard_file_writer_is_written(writer)) {
        (void)shard_file_writer_fill(writer, s);
        buffer = shard_file_writer_next(writer);
        if (!buffer)
            continue;
        assert_int_equal(shard_file_writer_write(writer, buffer, &err), 0);
        shard_file_writer_recycle(writer, buffer);
    }
    assert_int_equal(shard_file_writer_close(writer, n_tables + 1, ret, &err), 0);
    shard_file_writer_end(writer, s, SNAPSHOT_SCAN_KEPT);
}

static struct manifest *begin_point(struct live *l, uint32_t n_tables)
{
    struct manifest *m = fixture_manifest(0, 1, 1);
    struct shard *s = fixture_shard(0, 1);
    struct err err = { 0 };
    uint32_t id;

    m->map_id = 0;
    for (uint32_t n = 1; n <= n_tables; n++) {
        struct table_spec spec = spec_of(n);

        assert_int_equal(shard_table_open(s, &spec, false, &id, NULL), 0);
    }
    assert_int_equal(checkpoint_next(&l->disk.ops, DATA_DIR, &m->number, &err), 0);
    write_scan(l, m, s, n_tables, &m->files[0]);
    shard_free(s);
    return m;
}

static void commit(struct live *l, struct manifest *m, uint32_t keep)
{
    struct err err = { 0 };
    uint64_t first;
    char dir[WAL_PATH_MAX];

    assert_int_equal(checkpoint_commit(&l->disk.ops, DATA_DIR, m, keep, &first, &err), 0);
    assert_int_equal(timeline_log_dir(DATA_DIR, 0, 0, dir, &err), 0);
    assert_int_equal(wal_segment_truncate(&l->disk.ops, dir, first + 1, &err), 0);
    free(m);
}

static void happen(struct live *l)
{
    struct manifest *m = l->next;

    enter_shard();
    l->has_happened = true;
    l->next = NULL;
    commit(l, m ? m : begin_point(l, POINT_2_LAST), 1);
}

/* One segment, from behind *end on. */
static void write_segment(struct live *l, uint32_t first, uint32_t last)
{
    struct wal_writer_config config = { .files = &l->disk.ops,
                                        .identity = { .n_shards = 1 },
                                        .durability = WAL_FSYNC };
    const struct wal_end end = { .verdict = WAL_CLEAN,
                                 .last = first - 1,
                                 .last_present = first - 1 };
    struct wal_queue queue;
    struct wal_writer *writer;
    struct err err = { 0 };
    char dir[WAL_PATH_MAX];
    uint64_t due;

    assert_int_equal(timeline_log_dir(DATA_DIR, 0, 0, dir, &err), 0);
    snprintf(config.dir, sizeof config.dir, "%.200s", dir);
    if (wal_writer_open(&config, &end, 1, &writer, &err))
        fail_msg("%s", err.text);
    wal_queue_init(&queue,
                   &(struct wal_queue_config){ .durability = WAL_FSYNC, .next_number = first });
    for (uint32_t n = first; n <= last; n++) {
        const struct table_spec spec = spec_of(n);
        const struct wal_record record = {
            .event = { .type = SHARD_EVENT_TABLE, .table = { .id = n - 1, .spec = &spec } }
        };

        assert_int_equal(wal_queue_reserve(&queue, wal_record_bytes(&record)), 0);
        wal_queue_append(&queue, &record, n);
        wal_writer_drain(writer, &queue);
        wal_writer_work(writer, n, 1, &due);
        wal_writer_report(writer, &queue);
    }
    wal_writer_free(writer);
    wal_queue_deinit(&queue);
}

/* --- psctl's part --- */

static void turn(struct live *l)
{
    if (l->n_queries++ == l->at)
        happen(l);
}

static int live_open_read(void *state, const char *path, int *ret_fd)
{
    struct live *l = CONTAINER_OF((struct crash_files *)state, struct live, disk);

    turn(l);
    return l->disk.ops.open_read(state, path, ret_fd);
}

static int live_list(void *state, const char *path, int (*each)(void *arg, const char *name),
                     void *arg)
{
    struct live *l = CONTAINER_OF((struct crash_files *)state, struct live, disk);

    turn(l);
    return l->disk.ops.list(state, path, each, arg);
}

static void set_up(struct live *l, enum begun begun, long at)
{
    struct err err = { 0 };

    *l = (struct live){ .at = -1 };
    crash_files_init(&l->disk);
    l->ops = l->disk.ops;
    l->ops.open_read = live_open_read;
    l->ops.list = live_list;
    enter_shard();
    assert_int_equal(l->ops.mkdir(l->ops.state, DATA_DIR), 0);
    assert_int_equal(timeline_make(&l->disk.ops, DATA_DIR, 0, &err), 0);
    for (uint32_t i = 0; i < COUNT_OF(ends); i++)
        write_segment(l, i ? ends[i - 1] + 1 : 1, ends[i]);
    commit(l, begin_point(l, POINT_1_LAST), 1);
    if (begun == BEGUN_BEFORE)
        l->next = begin_point(l, POINT_2_LAST);
    l->at = at;
}

static void tear_down(struct live *l)
{
    assert_int_equal(crash_files_n_open(&l->disk), 0);
    free(l->next);
    crash_files_deinit(&l->disk);
}

/* `query` at every moment, of either kind, at which psd can go on. */
static void at_any_moment(void (*query)(struct live *l))
{
    struct live l = { .has_happened = true };

    for (int begun = BEGUN_THEN; begun <= BEGUN_BEFORE; begun++) {
        long at = 0;

        do {
            set_up(&l, (enum begun)begun, at++);
            query(&l);
            tear_down(&l);
        } while (l.has_happened);
        assert_true(at > 4);
    }
}

/* --- what is read --- */

static void read_log(struct live *l)
{
    struct verify_wal log;
    struct err err = { 0 };

    if (verify_wal_read(&l->ops, DATA_DIR, 0, 0, &log, &err))
        fail_msg("before query %ld: %s", l->at, err.text);
    assert_false(verify_wal_is_damaged(&log));
    assert_int_equal(log.n_stretches, 1);
    assert_int_equal(verify_wal_last(&log), N_TABLES);
    assert_int_equal(log.n_records, N_TABLES - log.stretches[0].first + 1);
    assert_int_equal(log.n_segments, log.stretches[0].first == POINT_1_LAST + 1 ? 3 : 1);
    verify_wal_free(&log);
}

static void a_log_that_is_truncated_while_it_is_read_is_whole(void **state)
{
    struct live l;

    (void)state;
    for (long at = 0; at < 40; at++) {
        set_up(&l, BEGUN_BEFORE, at);
        read_log(&l);
        tear_down(&l);
    }
}

static void verify(struct live *l)
{
    struct err err = { 0 };
    cJSON *json = NULL, *damage;

    if (verify_path(&l->ops, DATA_DIR, VERIFY_QUIETLY, &json, &err))
        fail_msg("before query %ld: %s", l->at, err.text);
    damage = cJSON_GetObjectItemCaseSensitive(json, "damage");
    if (cJSON_GetArraySize(damage))
        fail_msg("before query %ld: %s", l->at,
                 cJSON_GetStringValue(cJSON_GetArrayItem(damage, 0)));
    cJSON_Delete(json);
}

static void what_psd_does_meanwhile_is_no_damage(void **state)
{
    (void)state;
    at_any_moment(verify);
}

static int collect(struct live *l, const char *path, const struct recover_shard_at *target,
                   uint32_t *ret_n_tables, struct err *err)
{
    const struct load_cluster_config config = {
        .files = &l->ops, .paths = &path, .n_paths = 1, .at = *target
    };
    struct load_cluster_facts facts;
    struct shard *s = NULL;
    int status;

    enter_shard();
    status = retry_scan_load(&config, 1, &s, &facts, err);
    *ret_n_tables = status ? 0 : shard_n_tables(s);
    shard_free(s);
    return status;
}

static void collect_end(struct live *l)
{
    struct err err = { 0 };
    uint32_t n_tables;

    if (collect(l, DATA_DIR, &(struct recover_shard_at){ 0 }, &n_tables, &err))
        fail_msg("before query %ld: %s", l->at, err.text);
    assert_int_equal(n_tables, N_TABLES);
}

static void the_state_at_the_end_is_had_whatever_psd_removes(void **state)
{
    (void)state;
    at_any_moment(collect_end);
}

/* A checkpoint that is named cannot be had once it is gone. */
static void collect_point(struct live *l, const char *path, uint64_t number,
                          const char *gone_before, const char *sentence)
{
    const struct recover_shard_at target = { .number = number };
    struct err err = { 0 };
    uint32_t n_tables;
    int status = collect(l, path, &target, &n_tables, &err);

    assert_true(status == PS_ENOCHECKPOINT || status == 0);
    if (status == 0)
        assert_int_equal(n_tables, POINT_1_LAST + 1);
    else if (!strstr(err.text, sentence) && !strstr(err.text, gone_before))
        fail_msg("before query %ld: %s", l->at, err.text);
}

static void collect_path(struct live *l)
{
    collect_point(l, POINT_1, 0, "neither a checkpoint nor a log is in ",
                  POINT_1 " was removed while it was read");
}

static void collect_number(struct live *l)
{
    collect_point(l, DATA_DIR, 1, "no checkpoint 1 or older in ", "no valid checkpoint 1 in ");
}

static void a_checkpoint_that_goes_while_it_is_read_is_reported(void **state)
{
    (void)state;
    at_any_moment(collect_path);
    at_any_moment(collect_number);
}

static void verify_point(struct live *l)
{
    struct err err = { 0 };
    cJSON *json = NULL;
    int status = verify_path(&l->ops, POINT_1, VERIFY_QUIETLY, &json, &err);

    if (!status)
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "damage")),
                         0);
    else
        assert_int_equal(status, PS_ENOCHECKPOINT);
    cJSON_Delete(json);
}

static void a_checkpoint_that_goes_while_it_is_verified_is_no_damage(void **state)
{
    (void)state;
    at_any_moment(verify_point);
}

/* As one that only deltas need is kept, or as psd dies before it has removed it. */
static void a_checkpoint_whose_log_is_truncated_is_no_restore_point_and_no_damage(void **state)
{
    struct err err = { 0 };
    cJSON *json = NULL, *points, *damage;
    char dir[WAL_PATH_MAX];
    uint32_t n_tables;
    struct live l;

    (void)state;
    set_up(&l, BEGUN_THEN, -1);
    commit(&l, begin_point(&l, POINT_2_LAST), 2);
    assert_int_equal(timeline_log_dir(DATA_DIR, 0, 0, dir, &err), 0);
    assert_int_equal(wal_segment_truncate(&l.disk.ops, dir, POINT_2_LAST + 1, &err), 0);
    assert_int_equal(verify_path(&l.ops, DATA_DIR, VERIFY_QUIETLY, &json, &err), 0);
    damage = cJSON_GetObjectItemCaseSensitive(json, "damage");
    points = cJSON_GetObjectItemCaseSensitive(json, "checkpoints");
    assert_int_equal(cJSON_GetArraySize(damage), 0);
    assert_true(cJSON_HasObjectItem(cJSON_GetArrayItem(points, 0), "log_cut"));
    assert_false(cJSON_HasObjectItem(cJSON_GetArrayItem(points, 1), "log_cut"));
    cJSON_Delete(json);
    assert_int_equal(
        collect(&l, DATA_DIR, &(struct recover_shard_at){ .number = 1 }, &n_tables, &err),
        PS_ECORRUPT);
    /* Were it the newest, psd would not have cut it. */
    assert_int_equal(l.ops.unlink(l.ops.state, POINT_2 "/MANIFEST"), 0);
    assert_int_equal(verify_path(&l.ops, DATA_DIR, VERIFY_QUIETLY, &json, &err), 0);
    damage = cJSON_GetObjectItemCaseSensitive(json, "damage");
    assert_non_null(strstr(cJSON_GetStringValue(cJSON_GetArrayItem(damage, 0)),
                           "restore point 1, shard 0: needs records 8 to 8 of its log, 0 are"));
    cJSON_Delete(json);
    tear_down(&l);
}

/* What promised records cannot be had without is not left out in silence. */
static void a_state_that_a_damaged_log_leads_to_is_refused(void **state)
{
    struct err err = { 0 };
    struct crash_inode *file;
    uint32_t n_tables;
    struct live l;

    (void)state;
    set_up(&l, BEGUN_THEN, -1);
    file = crash_files_at(&l.disk, DATA_DIR
                          "/log/00000000000000000000/shard-000/00000000000000000012.psl");
    for (size_t i = WAL_SEGMENT_HEADER_BYTES; i < file->n_bytes; i += 7) {
        file->bytes[i] ^= 0x10;
        assert_int_equal(
            collect(&l, DATA_DIR, &(struct recover_shard_at){ 0 }, &n_tables, &err),
            PS_ECORRUPT);
        assert_non_null(strstr(err.text, "--at NUMBER"));
        assert_int_equal(
            collect(&l, DATA_DIR, &(struct recover_shard_at){ .number = 1 }, &n_tables, &err),
            0);
        assert_int_equal(n_tables, POINT_1_LAST + 1);
        file->bytes[i] ^= 0x10;
    }
    tear_down(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_log_that_is_truncated_while_it_is_read_is_whole),
        cmocka_unit_test(what_psd_does_meanwhile_is_no_damage),
        cmocka_unit_test(the_state_at_the_end_is_had_whatever_psd_removes),
        cmocka_unit_test(a_checkpoint_that_goes_while_it_is_read_is_reported),
        cmocka_unit_test(a_checkpoint_that_goes_while_it_is_verified_is_no_damage),
        cmocka_unit_test(a_checkpoint_whose_log_is_truncated_is_no_restore_point_and_no_damage),
        cmocka_unit_test(a_state_that_a_damaged_log_leads_to_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
