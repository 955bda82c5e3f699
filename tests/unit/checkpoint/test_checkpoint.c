/* What a checkpoint promises when nothing fails: what was saved is loaded, onto any number of
 * shards. */
#include <errno.h>
#include <unistd.h>

#include "server/core/restore.h"
#include "tests/unit/checkpoint/fixture.h"

static void what_was_saved_is_loaded_bit_for_bit(void **state)
{
    struct crash_files c;
    struct shard *shards[2], *loaded[2];

    (void)state;
    crash_files_init(&c);
    fixture_new(shards, 2, 500, 1);
    assert_int_equal(fixture_save(&c.ops, shards, 2, 2, NULL), 0);
    assert_int_equal(fixture_load(&c.ops, loaded, 2), 0);
    fixture_assert_equal(shards, 2, loaded, 2);
    assert_int_equal(shard_version(loaded[1]), 91);
    assert_int_equal(crash_files_n_open(&c), 0);
    fixture_free(shards, 2);
    fixture_free(loaded, 2);
    crash_files_deinit(&c);
}

static void rows_move_to_the_shards_that_own_them_from_4_to_3_to_5_to_4(void **state)
{
    static const uint32_t n_shards[] = { 4, 3, 5, 4 };
    struct crash_files c;
    struct shard *first[4], *now[N_SHARDS_MAX];
    uint64_t n_rows = 0;

    (void)state;
    crash_files_init(&c);
    fixture_new(first, 4, 3000, 7);
    assert_int_equal(fixture_save(&c.ops, first, 4, 1, NULL), 0);
    for (size_t i = 1; i < COUNT_OF(n_shards); i++) {
        assert_int_equal(fixture_load(&c.ops, now, n_shards[i]), 0);
        fixture_assert_equal(first, 4, now, n_shards[i]);
        for (uint32_t s = 0; s < n_shards[i]; s++) {
            const struct shard_table *t = shard_table(now[s], 0);

            for (uint64_t r = 0; r < table_n_rows(t->rows); r++)
                assert_int_equal(placement_shard(table_row(t->rows, r)->key,
                                                 table_spec_salt(&t->spec), n_shards[i]),
                                 s);
        }
        assert_int_equal(fixture_save(&c.ops, now, n_shards[i], 1, NULL), 0);
        fixture_free(now, n_shards[i]);
    }
    for (uint32_t s = 0; s < 4; s++)
        n_rows += table_n_rows(shard_table(first[s], 0)->rows);
    assert_int_equal(n_rows, 3000);
    fixture_free(first, 4);
    crash_files_deinit(&c);
}

/* Node 0 of 2 holds the cluster's shards 0 and 1, node 1 its shards 2 and 3; each has a data
 * directory of its own. */
static void two_nodes_checkpoints_load_onto_one_shard_one_after_another(void **state)
{
    struct crash_files c[2];
    struct shard *shards[4], *all;
    struct checkpoint found;
    struct loader_facts facts;
    struct err err;

    (void)state;
    fixture_new(shards, 4, 800, 3);
    all = fixture_shard(0, 1);
    for (uint32_t node = 0; node < 2; node++) {
        const struct file_ops *files = &c[node].ops;
        struct manifest *m = fixture_manifest(node, 2, 2), *read;

        crash_files_init(&c[node]);
        assert_int_equal(checkpoint_next(files, DATA_DIR, &m->number, &err), 0);
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(fixture_write(files, m, i, shards[node * 2 + i], &err), 0);
        assert_int_equal(checkpoint_commit(files, DATA_DIR, m, 1, NULL, &err), 0);
        assert_int_equal(checkpoint_find(files, DATA_DIR, 0, &found, NULL, NULL, &err), 0);
        read = found.links;
        assert_true(read->number == m->number && read->node == node && read->n_nodes == 2);
        assert_true(read->shards_per_node == 2 && read->unix_ms == m->unix_ms);
        assert_true(read->n_shards == 4 && read->map_id == m->map_id);
        assert_memory_equal(read->files, m->files, 2 * sizeof m->files[0]);
        assert_int_equal(
            loader_reshard(&(struct loader_config){ .files = files, .checkpoint = &found }, all,
                           &facts, &err),
            0);
        checkpoint_close(&found);
        crash_files_deinit(&c[node]);
        free(m);
    }
    fixture_assert_equal(shards, 4, &all, 1);
    shard_free(all);
    fixture_free(shards, 4);
}

static void a_table_without_rows_and_a_shard_without_tables_are_saved_too(void **state)
{
    struct crash_files c;
    struct shard *empty = fixture_shard(0, 1), *loaded;
    struct table_spec spec = fixture_spec(0);
    uint32_t id;

    (void)state;
    crash_files_init(&c);
    assert_int_equal(fixture_save(&c.ops, &empty, 1, 2, NULL), 0);
    assert_int_equal(fixture_load(&c.ops, &loaded, 1), 0);
    assert_int_equal(shard_n_tables(loaded), 0);
    shard_free(loaded);
    assert_int_equal(shard_table_open(empty, &spec, false, &id, NULL), 0);
    assert_int_equal(fixture_save(&c.ops, &empty, 1, 2, NULL), 0);
    assert_int_equal(fixture_load(&c.ops, &loaded, 1), 0);
    assert_int_equal(shard_n_tables(loaded), 1);
    assert_int_equal(table_n_rows(shard_table(loaded, 0)->rows), 0);
    shard_free(loaded);
    shard_free(empty);
    crash_files_deinit(&c);
}

/* More than one chunk, and a row that is wider than a chunk is meant to be. */
static void rows_of_every_width_fit(void **state)
{
    static const uint32_t dims[] = { 1, 64, 1024, TABLE_SPEC_DIM_MAX };
    float *floats = calloc(4 * TABLE_SPEC_DIM_MAX, sizeof *floats);

    (void)state;
    for (size_t d = 0; d < COUNT_OF(dims); d++) {
        struct crash_files c;
        struct shard *shard = fixture_shard(0, 1), *loaded;
        struct table_spec spec = fixture_spec(0);
        uint32_t id, n_rows = dims[d] > 2000 ? 3 : 3000;

        crash_files_init(&c);
        spec.dim = dims[d];
        assert_int_equal(shard_table_open(shard, &spec, false, &id, NULL), 0);
        for (uint32_t i = 0; i < n_rows; i++) {
            floats[0] = (float)i;
            floats[shard_table(shard, id)->payload_bytes / 4 - 1] = -(float)i;
            assert_int_equal(restore_row(shard, id, i, row_stamp(i, 0, 0), floats), 0);
        }
        restore_counts(shard, id, 1, n_rows);
        assert_int_equal(fixture_save(&c.ops, &shard, 1, 1, NULL), 0);
        assert_int_equal(fixture_load(&c.ops, &loaded, 1), 0);
        fixture_assert_equal(&shard, 1, &loaded, 1);
        shard_free(shard);
        shard_free(loaded);
        crash_files_deinit(&c);
    }
    free(floats);
}

static int count_loading(void *arg)
{
    ++*(int *)arg;
    return 0;
}

static void count_progress(void *arg)
{
    ++*(int *)arg;
}

static void progress_is_reported_between_slices_of_saving_and_chunks_of_loading(void **state)
{
    struct crash_files c;
    struct shard *shard = fixture_shard(0, 1), *loaded = fixture_shard(0, 1);
    struct manifest *m = fixture_manifest(0, 1, 1);
    struct shard_file_writer_config config;
    struct checkpoint found;
    struct loader_facts facts;
    int n_saving = 0, n_loading = 0;
    struct err err;

    (void)state;
    crash_files_init(&c);
    fixture_fill(shard, 40000, 1); /* 76 bytes each: 3 buffers, and each other table's rows */
    assert_int_equal(checkpoint_next(&c.ops, DATA_DIR, &m->number, &err), 0);
    config = fixture_config(&c.ops, m, 0);
    assert_int_equal(shard_file_writer_save(&config, shard, 0, count_progress, &n_saving,
                                            &m->files[0], &err),
                     0);
    assert_int_equal(checkpoint_commit(&c.ops, DATA_DIR, m, 1, NULL, &err), 0);
    assert_int_equal(checkpoint_find(&c.ops, DATA_DIR, 0, &found, NULL, NULL, &err), 0);
    assert_int_equal(loader_reshard(&(struct loader_config){ .files = &c.ops,
                                                             .checkpoint = &found,
                                                             .progress = count_loading,
                                                             .arg = &n_loading },
                                    loaded, &facts, &err),
                     0);
    assert_in_range(n_saving, 40000 * 76 / SNAPSHOT_SCAN_BYTES, 25);
    assert_int_equal(n_loading, 1 + 3 + 2); /* state, and the tables' rows */
    assert_int_equal(m->files[0].n_rows, 40408);
    assert_int_equal(facts.n_rows, 40408);
    checkpoint_close(&found);
    shard_free(shard);
    shard_free(loaded);
    crash_files_deinit(&c);
    free(m);
}

/* A disk that keeps nothing, and measures what stands unsynced. */
struct meter {
    struct file_ops ops;
    uint64_t n_unsynced, n_most;
    int n_syncs, n_syncs_in_a_row, n_most_in_a_row;
};

static int meter_create(void *state, const char *path, int *ret_fd)
{
    (void)state;
    (void)path;
    *ret_fd = 3;
    return 0;
}

static int meter_write_all(void *state, int fd, const void *src, size_t n_bytes)
{
    struct meter *m = state;

    (void)fd;
    (void)src;
    m->n_unsynced += n_bytes;
    if (m->n_unsynced > m->n_most)
        m->n_most = m->n_unsynced;
    return 0;
}

static int meter_sync(void *state, int fd)
{
    struct meter *m = state;

    (void)fd;
    m->n_unsynced = 0;
    m->n_syncs++;
    if (++m->n_syncs_in_a_row > m->n_most_in_a_row)
        m->n_most_in_a_row = m->n_syncs_in_a_row;
    return 0;
}

static int meter_close(void *state, int fd)
{
    (void)state;
    (void)fd;
    return 0;
}

static void on_meter_progress(void *arg)
{
    struct meter *m = arg;

    m->n_syncs_in_a_row = 0;
}

static void no_sync_has_much_to_do_and_life_is_shown_between_them(void **state)
{
    struct meter m = { .ops = { .state = &m,
                                .create = meter_create,
                                .write_all = meter_write_all,
                                .sync = meter_sync,
                                .close = meter_close } };
    struct shard *shard = fixture_shard(0, 1);
    struct table_spec spec = fixture_spec(0);
    static const float floats[3 * 4096];
    struct shard_file_writer_config config = {
        .files = &m.ops, .data_dir = "d", .number = 1, .identity = { .n_shards = 1 }
    };
    struct shard_file_facts facts;
    struct err err;
    uint32_t id;

    (void)state;
    spec.dim = 4096; /* with adam's state 48 KiB a row: 160 MiB in all */
    assert_int_equal(shard_table_open(shard, &spec, false, &id, NULL), 0);
    for (uint64_t key = 0; key < 3400; key++)
        assert_int_equal(restore_row(shard, id, key, 0, floats), 0);
    assert_int_equal(
        shard_file_writer_save(&config, shard, 0, on_meter_progress, &m, &facts, &err), 0);
    assert_int_equal(m.n_syncs, 3);
    assert_int_equal(m.n_most_in_a_row, 1);
    assert_true(m.n_most <= (UINT64_C(64) << 20) + (2u << 20));
    assert_true(facts.n_bytes > UINT64_C(128) << 20);
    shard_free(shard);
}

static void the_newest_n_are_kept_and_unfinished_ones_before_them_go(void **state)
{
    struct crash_files c;
    struct shard *shard = fixture_shard(0, 1);
    struct manifest *m = fixture_manifest(0, 1, 1);
    uint64_t number;
    struct err err;

    (void)state;
    crash_files_init(&c);
    fixture_fill(shard, 10, 1);
    assert_int_equal(fixture_save(&c.ops, &shard, 1, 3, NULL), 0); /* 1 */
    assert_int_equal(fixture_save(&c.ops, &shard, 1, 3, NULL), 0); /* 2 */
    assert_int_equal(checkpoint_next(&c.ops, DATA_DIR, &m->number, &err), 0);
    assert_int_equal(m->number, 3);
    assert_int_equal(fixture_write(&c.ops, m, 0, shard, &err), 0);
    assert_int_equal(fixture_save(&c.ops, &shard, 1, 2, &number), 0);
    assert_int_equal(number, 4);
    assert_false(crash_files_is_there(&c, DATA_DIR "/checkpoints/00000000000000000001"));
    assert_true(
        crash_files_is_there(&c, DATA_DIR "/checkpoints/00000000000000000002/MANIFEST"));
    assert_false(crash_files_is_there(&c, DATA_DIR "/checkpoints/00000000000000000003"));
    assert_true(
        crash_files_is_there(&c, DATA_DIR "/checkpoints/00000000000000000004/MANIFEST"));
    shard_free(shard);
    free(m);
    crash_files_deinit(&c);
}

static void a_number_is_never_given_twice_and_strange_names_are_left_alone(void **state)
{
    static const char *const strange[] = { "1", "000000000000000000xx", "99999999999999999999",
                                           "00009007199254740992", "lost+found" };
    struct crash_files c;
    char path[CHECKPOINT_PATH_MAX];
    struct checkpoint found;
    uint64_t number;
    struct err err;

    (void)state;
    crash_files_init(&c);
    assert_int_equal(checkpoint_next(&c.ops, DATA_DIR, &number, &err), 0);
    assert_int_equal(number, 1);
    for (size_t i = 0; i < COUNT_OF(strange); i++) {
        snprintf(path, sizeof path, DATA_DIR "/checkpoints/%s", strange[i]);
        assert_int_equal(c.ops.mkdir(&c, path), 0);
    }
    assert_int_equal(checkpoint_next(&c.ops, DATA_DIR, &number, &err), 0);
    assert_int_equal(number, 2);
    assert_int_equal(checkpoint_find(&c.ops, DATA_DIR, 0, &found, NULL, NULL, &err),
                     PS_ENOCHECKPOINT);
    crash_files_deinit(&c);
}

static void no_directory_is_no_checkpoint_and_a_path_too_long_is_refused(void **state)
{
    struct crash_files c;
    char path[CHECKPOINT_PATH_MAX];
    struct checkpoint found;
    struct err err;

    (void)state;
    crash_files_init(&c);
    assert_int_equal(checkpoint_find(&c.ops, "absent", 0, &found, NULL, NULL, &err),
                     PS_ENOCHECKPOINT);
    assert_non_null(strstr(err.text, "absent"));
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = '\0';
    assert_int_equal(checkpoint_find(&c.ops, path, 0, &found, NULL, NULL, &err), -ENAMETOOLONG);
    assert_int_equal(checkpoint_open(&c.ops, path, &found, &err), -ENAMETOOLONG);
    assert_int_equal(checkpoint_next(&c.ops, path, &(uint64_t){ 0 }, &err), -ENAMETOOLONG);
    crash_files_deinit(&c);
}

static void a_shard_that_has_another_table_of_that_name_refuses_to_load(void **state)
{
    struct crash_files c;
    struct shard *shard = fixture_shard(0, 1), *other = fixture_shard(0, 1);
    struct table_spec spec = fixture_spec(0);
    struct err err;
    uint32_t id;

    (void)state;
    crash_files_init(&c);
    fixture_fill(shard, 3, 1);
    assert_int_equal(fixture_save(&c.ops, &shard, 1, 1, NULL), 0);
    spec.dim = 6;
    assert_int_equal(shard_table_open(other, &spec, false, &id, &err), 0);
    assert_int_equal(fixture_load_shard(&c.ops, other, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, "emb"));
    shard_free(shard);
    shard_free(other);
    crash_files_deinit(&c);
}

static void a_memory_budget_that_is_too_small_says_so_when_loading(void **state)
{
    struct crash_files c;
    struct shard *shard = fixture_shard(0, 1), *small;
    struct err err;

    (void)state;
    crash_files_init(&c);
    fixture_fill(shard, 200000, 1);
    small = shard_new(&(struct shard_config){ .n_shards = 1,
                                              .memory_max_bytes = 2 << 20,
                                              .lease_ms = 1,
                                              .join_ms = 1,
                                              .park_ms = 1 });
    assert_int_equal(fixture_save(&c.ops, &shard, 1, 1, NULL), 0);
    assert_int_equal(fixture_load_shard(&c.ops, small, &err), PS_EBUDGET);
    assert_non_null(strstr(err.text, "emb"));
    shard_free(shard);
    shard_free(small);
    crash_files_deinit(&c);
}

/* Each shard's share of a table's limit holds whole slabs of rows only, so fewer of them on more shards. */
static void the_rows_of_a_full_table_fit_onto_any_number_of_shards(void **state)
{
    struct table_spec spec = fixture_spec(0);
    const uint64_t rows_max = 10000;
    struct shard *shard = fixture_shard(0, 1), *shards[N_SHARDS_MAX];
    float payload[64] = { 0 };
    struct crash_files c;
    struct err err;
    uint64_t n = 0;
    uint32_t id;

    (void)state;
    crash_files_init(&c);
    spec.limits.max_bytes = 100000;
    assert_int_equal(shard_table_open(shard, &spec, false, &id, &err), 0);
    while (n < rows_max &&
           restore_row(shard, id, hash_mix(n), row_stamp(1, 1, 0), payload) == 0 &&
           shard_table(shard, id)->bytes_max > table_bytes(shard_table(shard, id)->rows))
        n++;
    assert_in_range(n, 1, rows_max - 1);
    restore_version(shard, 1);
    n = table_n_rows(shard_table(shard, id)->rows);
    assert_int_equal(fixture_save(&c.ops, &shard, 1, 1, NULL), 0);
    for (uint32_t n_shards = 1; n_shards <= N_SHARDS_MAX; n_shards++) {
        uint64_t n_loaded = 0;

        assert_int_equal(fixture_load(&c.ops, shards, n_shards), 0);
        for (uint32_t i = 0; i < n_shards; i++)
            n_loaded += table_n_rows(shard_table(shards[i], 0)->rows);
        assert_int_equal(n_loaded, n);
        fixture_free(shards, n_shards);
    }
    shard_free(shard);
    crash_files_deinit(&c);
}

/* Made before new tables had ranges of their own. */
static void a_table_that_would_not_be_made_today_moves_to_other_shards_too(void **state)
{
    struct shard *shard = fixture_shard(0, 1), *shards[N_SHARDS_MAX];
    struct table_spec spec = fixture_spec(0);
    struct crash_files c;
    struct err err;
    uint32_t id;

    (void)state;
    crash_files_init(&c);
    spec.params.learning_rate = 3e38f;
    assert_int_equal(shard_table_open(shard, &spec, false, &id, &err), PS_ESPEC);
    assert_int_equal(shard_table_restore(shard, &spec, &id, &err), 0);
    assert_int_equal(fixture_save(&c.ops, &shard, 1, 1, NULL), 0);
    assert_int_equal(fixture_load(&c.ops, shards, 3), 0);
    fixture_assert_equal(&shard, 1, shards, 3);
    fixture_free(shards, 3);
    shard_free(shard);
    crash_files_deinit(&c);
}

static void it_works_on_a_real_disk(void **state)
{
    char data_dir[] = "/tmp/psd-test-XXXXXX", dir[CHECKPOINT_PATH_MAX], command[64];
    struct shard *shard = fixture_shard(0, 1), *loaded = fixture_shard(0, 1);
    struct manifest *m = fixture_manifest(0, 1, 1);
    struct shard_file_writer_config config;
    struct checkpoint found;
    struct loader_facts facts;
    struct err err;

    (void)state;
    assert_non_null(mkdtemp(data_dir));
    fixture_fill(shard, 20000, 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(checkpoint_next(&file_os, data_dir, &m->number, &err), 0);
        config = fixture_config(&file_os, m, 0);
        config.data_dir = data_dir;
        assert_int_equal(
            shard_file_writer_save(&config, shard, 0, NULL, NULL, &m->files[0], &err), 0);
        assert_int_equal(checkpoint_commit(&file_os, data_dir, m, 2, NULL, &err), 0);
    }
    assert_int_equal(m->number, 4);
    free(m);
    assert_int_equal(checkpoint_find(&file_os, data_dir, 0, &found, NULL, NULL, &err), 0);
    assert_int_equal(
        loader_reshard(&(struct loader_config){ .files = &file_os, .checkpoint = &found },
                       loaded, &facts, &err),
        0);
    checkpoint_close(&found);
    fixture_assert_equal(&shard, 1, &loaded, 1);
    snprintf(dir, sizeof dir, "%s/checkpoints/00000000000000000002", data_dir);
    assert_int_not_equal(access(dir, F_OK), 0);
    snprintf(dir, sizeof dir, "%s/checkpoints/00000000000000000003", data_dir);
    assert_int_equal(access(dir, F_OK), 0);
    snprintf(command, sizeof command, "rm -r %s", data_dir);
    assert_int_equal(system(command), 0);
    shard_free(shard);
    shard_free(loaded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_saved_is_loaded_bit_for_bit),
        cmocka_unit_test(rows_move_to_the_shards_that_own_them_from_4_to_3_to_5_to_4),
        cmocka_unit_test(two_nodes_checkpoints_load_onto_one_shard_one_after_another),
        cmocka_unit_test(a_table_without_rows_and_a_shard_without_tables_are_saved_too),
        cmocka_unit_test(rows_of_every_width_fit),
        cmocka_unit_test(progress_is_reported_between_slices_of_saving_and_chunks_of_loading),
        cmocka_unit_test(no_sync_has_much_to_do_and_life_is_shown_between_them),
        cmocka_unit_test(the_newest_n_are_kept_and_unfinished_ones_before_them_go),
        cmocka_unit_test(a_number_is_never_given_twice_and_strange_names_are_left_alone),
        cmocka_unit_test(no_directory_is_no_checkpoint_and_a_path_too_long_is_refused),
        cmocka_unit_test(a_shard_that_has_another_table_of_that_name_refuses_to_load),
        cmocka_unit_test(a_memory_budget_that_is_too_small_says_so_when_loading),
        cmocka_unit_test(the_rows_of_a_full_table_fit_onto_any_number_of_shards),
        cmocka_unit_test(a_table_that_would_not_be_made_today_moves_to_other_shards_too),
        cmocka_unit_test(it_works_on_a_real_disk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
