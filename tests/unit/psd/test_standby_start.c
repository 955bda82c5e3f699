/* What a standby reads before it dials: the last records of its logs, its cluster, and whom it follows. */
#include "common/memory.h"
#include "server/cluster_file.h"
#include "server/replication/log_end.h"
#include "server/replication/terms.h"
#include "server/standby_role.h"
#include "tests/unit/recovery/node_fixture.h"

/* --- the ends of logs --- */

static void assert_ends(struct node *n)
{
    uint64_t epoch = 99, last[NODE_N_SHARDS_MAX];
    struct recover_shard_facts facts;
    struct err err;
    int status;

    enter_shard();
    assert_int_equal(log_end_read(&n->files.ops, NODE_DIR, n->n_shards, &epoch, last, &err), 0);
    assert_int_equal(epoch, n->epoch);
    for (uint32_t i = 0; i < n->n_shards; i++) {
        struct shard *s = node_rebuild(n, i, NULL, &status, &facts, &err);

        assert_int_equal(status, 0);
        assert_int_equal(last[i], facts.end.last);
        shard_free(s);
    }
    assert_int_equal(crash_files_n_open(&n->files), 0);
}

static void reads_the_ends_of_logs(void **state)
{
    struct node n;

    (void)state;
    node_begin(&n, 2);
    n.each_apart = true;
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    for (uint64_t i = 0; i < 5; i++) {
        node_steps(&n, "job", 1, 2 * i, 2 * i + 2);
        if (i % 2)
            node_save(&n, 1);
        node_die(&n);
        assert_ends(&n);
        node_start(&n);
    }
    node_stop(&n, 2);
    assert_ends(&n);
    node_end(&n);
}

static void an_empty_directory_has_no_records(void **state)
{
    struct crash_files disk;
    uint64_t epoch = 1, last[2] = { 1, 1 };
    struct err err;

    (void)state;
    crash_files_init(&disk);
    assert_int_equal(disk.ops.mkdir(disk.ops.state, NODE_DIR), 0);
    assert_int_equal(log_end_read(&disk.ops, NODE_DIR, 2, &epoch, last, &err), 0);
    assert_true(epoch == 0 && last[0] == 0 && last[1] == 0);
    crash_files_deinit(&disk);
}

/* --- the cluster --- */

static const struct hello_reply cluster = { .n_nodes = 2,
                                            .node = 1,
                                            .shards_per_node = 4,
                                            .map_id = 0x0123456789abcdef,
                                            .nodes = { "10.0.0.1:7070", "[::1]:7070" } };

static void assert_cluster(const struct hello_reply *map)
{
    assert_true(map->n_nodes == 2 && map->node == 1 && map->shards_per_node == 4);
    assert_true(map->map_id == cluster.map_id);
    assert_string_equal(map->nodes[1], "[::1]:7070");
}

static void a_cluster_is_written_whole_or_not_at_all(void **state)
{
    struct hello_reply *map = calloc(1, sizeof *map);
    struct crash_files disk;
    struct err err;
    long k = 0, n_ops;

    (void)state;
    do {
        int status;

        crash_files_init(&disk);
        assert_int_equal(disk.ops.mkdir(disk.ops.state, NODE_DIR), 0);
        assert_int_equal(cluster_file_read(&disk.ops, NODE_DIR, map, &err), 0);
        assert_int_equal(map->n_nodes, 0);
        disk.n_ops = 0;
        disk.fail_at = k++;
        disk.torn = disk.dies = true;
        status = cluster_file_write(&disk.ops, NODE_DIR, &cluster, &err);
        n_ops = disk.n_ops;
        crash_files_power_cut(&disk);
        if (!crash_files_is_there(&disk, NODE_DIR))
            assert_int_equal(disk.ops.mkdir(disk.ops.state, NODE_DIR), 0);
        assert_int_equal(cluster_file_read(&disk.ops, NODE_DIR, map, &err), 0);
        if (!status || map->n_nodes)
            assert_cluster(map);
        crash_files_deinit(&disk);
    } while (k <= n_ops);
    free(map);
}

static void a_damaged_cluster_is_refused(void **state)
{
    struct hello_reply *map = calloc(1, sizeof *map);
    struct crash_inode *file;
    struct crash_files disk;
    struct err err;

    (void)state;
    crash_files_init(&disk);
    assert_int_equal(disk.ops.mkdir(disk.ops.state, NODE_DIR), 0);
    assert_int_equal(cluster_file_write(&disk.ops, NODE_DIR, &cluster, &err), 0);
    file = crash_files_at(&disk, NODE_DIR "/CLUSTER");
    for (size_t i = 0; i < file->n_bytes; i++) {
        file->bytes[i] ^= 1;
        assert_int_equal(cluster_file_read(&disk.ops, NODE_DIR, map, &err), PS_ECORRUPT);
        assert_non_null(strstr(err.text, "CLUSTER"));
        file->bytes[i] ^= 1;
    }
    assert_int_equal(cluster_file_read(&disk.ops, NODE_DIR, map, &err), 0);
    crash_files_deinit(&disk);
    free(map);
}

/* --- the role --- */

struct role {
    struct crash_files disk;
    struct settings settings;
};

static void set_up_role(struct role *r)
{
    *r = (struct role){ .settings = { .shards = 1, .data_dir = NODE_DIR } };
    crash_files_init(&r->disk);
    assert_int_equal(r->disk.ops.mkdir(r->disk.ops.state, NODE_DIR), 0);
}

static void write_role(struct role *r, enum terms_role role, const char *peer)
{
    const uint64_t first = 1;
    struct terms t = { .role = role, .n_shards = 1 };
    struct err err;

    terms_begin_history(&t, 77, 0, 1);
    terms_begin(&t, 1, &first);
    snprintf(t.peer, sizeof t.peer, "%s", peer);
    assert_int_equal(terms_write(&r->disk.ops, NODE_DIR, &t, &err), 0);
    terms_deinit(&t);
}

static void assert_follows(struct role *r, const char *option, const char *want)
{
    char primary[MESSAGE_ADDRESS_MAX];
    struct err err;

    snprintf(r->settings.standby, sizeof r->settings.standby, "%s", option);
    assert_int_equal(standby_role_read(&r->disk.ops, &r->settings, primary, &err), 0);
    assert_string_equal(primary, want);
}

static void assert_names_partner(struct role *r, bool want)
{
    struct terms t = { 0 };
    struct err err;
    bool names_partner;

    assert_int_equal(terms_read(&r->disk.ops, NODE_DIR, 1, &t, &err), 0);
    assert_int_equal(
        standby_role_names_partner(&r->disk.ops, &r->settings, &t, &names_partner, &err), 0);
    assert_int_equal(names_partner, want);
    terms_deinit(&t);
}

static void set_option(struct role *r, const char *option)
{
    snprintf(r->settings.standby, sizeof r->settings.standby, "%s", option);
}

static void follows_an_option_that_the_directory_does_not_know(void **state)
{
    struct role r;

    (void)state;
    set_up_role(&r);
    assert_follows(&r, "", "");
    assert_follows(&r, "a:1", "a:1");
    write_role(&r, TERMS_STANDBY, "b:1");
    assert_follows(&r, "", "b:1");
    assert_follows(&r, "b:1", "b:1");
    assert_follows(&r, "a:1", "a:1");
    write_role(&r, TERMS_PRIMARY, "b:1");
    assert_follows(&r, "", "");
    assert_names_partner(&r, false);
    assert_follows(&r, "c:1", "c:1");
    assert_names_partner(&r, false);
    crash_files_deinit(&r.disk);
}

static void whose_primary_it_was_it_asks_who_the_primary_is(void **state)
{
    struct role r;
    struct err err;

    (void)state;
    set_up_role(&r);
    write_role(&r, TERMS_PRIMARY, "b:1");
    assert_follows(&r, "b:1", "");
    assert_names_partner(&r, true);
    assert_int_equal(standby_role_follow(&r.disk.ops, &r.settings, &err), 0);
    assert_follows(&r, "b:1", "b:1");
    assert_follows(&r, "", "b:1");
    assert_names_partner(&r, false);
    crash_files_deinit(&r.disk);
}

static void an_option_is_done_by_a_promotion_and_stays_so(void **state)
{
    struct role r;
    struct err err;

    (void)state;
    set_up_role(&r);
    write_role(&r, TERMS_STANDBY, "a:1");
    set_option(&r, "a:1");
    assert_int_equal(standby_role_note_done(&r.disk.ops, &r.settings, &err), 0);
    assert_follows(&r, "a:1", "a:1"); /* TERMS counts */
    write_role(&r, TERMS_PRIMARY, "a:1");
    assert_follows(&r, "a:1", "");
    assert_names_partner(&r, false);
    assert_follows(&r, "a:2", "a:2");
    write_role(&r, TERMS_STANDBY, "c:1"); /* the pair has gone on without a:1 */
    assert_follows(&r, "a:1", "c:1");
    assert_follows(&r, "a:2", "a:2");
    write_role(&r, TERMS_PRIMARY, "c:1");
    assert_follows(&r, "a:1", "");
    crash_files_deinit(&r.disk);
}

static void a_later_primary_than_the_options_makes_that_done(void **state)
{
    struct role r;
    struct err err;

    (void)state;
    set_up_role(&r);
    write_role(&r, TERMS_PRIMARY, "c:1"); /* it was deposed by that one */
    set_option(&r, "a:1");
    assert_int_equal(standby_role_follow(&r.disk.ops, &r.settings, &err), 0);
    assert_follows(&r, "a:1", "c:1");
    crash_files_deinit(&r.disk);
}

#ifdef PS_FAULTS
/* Files and roles while the k-th allocation fails: -ENOMEM and a sentence, and nothing has changed. True: none failed. */
static bool take_a_role_while_the_kth_allocation_fails(long k)
{
    char primary[MESSAGE_ADDRESS_MAX];
    struct err err = { 0 };
    struct role r;
    int status;

    set_up_role(&r);
    write_role(&r, TERMS_PRIMARY, "b:1");
    snprintf(r.settings.standby, sizeof r.settings.standby, "b:1");
    memory_fail_after(k);
    status = standby_role_note_done(&r.disk.ops, &r.settings, &err);
    if (!status)
        status = standby_role_read(&r.disk.ops, &r.settings, primary, &err);
    if (!status)
        status = standby_role_follow(&r.disk.ops, &r.settings, &err);
    memory_fail_after(-1);
    assert_true(status == 0 || (status == -ENOMEM && err.text[0]));
    assert_int_equal(crash_files_n_open(&r.disk), 0);
    assert_int_equal(standby_role_note_done(&r.disk.ops, &r.settings, &err), 0);
    if (status)
        assert_follows(&r, "b:1", "");
    assert_int_equal(standby_role_follow(&r.disk.ops, &r.settings, &err), 0);
    assert_follows(&r, "", "b:1");
    crash_files_deinit(&r.disk);
    return status == 0;
}

static void a_role_without_memory_stays_as_it_was(void **state)
{
    long k = 0;

    (void)state;
    while (!take_a_role_while_the_kth_allocation_fails(k))
        assert_true(++k < 100);
    assert_true(k > 0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_ends_of_logs),
        cmocka_unit_test(an_empty_directory_has_no_records),
        cmocka_unit_test(a_cluster_is_written_whole_or_not_at_all),
        cmocka_unit_test(a_damaged_cluster_is_refused),
        cmocka_unit_test(follows_an_option_that_the_directory_does_not_know),
        cmocka_unit_test(whose_primary_it_was_it_asks_who_the_primary_is),
        cmocka_unit_test(an_option_is_done_by_a_promotion_and_stays_so),
        cmocka_unit_test(a_later_primary_than_the_options_makes_that_done),
#ifdef PS_FAULTS
        cmocka_unit_test(a_role_without_memory_stays_as_it_was),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
