/* Chains of deltas: what they weigh, which are kept, and what happens where a link is damaged or not there. */
#include "server/checkpoint/loader.h"
#include "tests/support/reports.h"
#include "tests/support/share.h"
#include "tests/unit/recovery/save_fixture.h"

#define DIR(n) DATA_DIR "/checkpoints/0000000000000000000" n
#define FILE_OF(n) DIR(n) "/shard-000.psc"

/* 1 full <- 2 <- 3, each with other rows; the shard is as in 3. */
static void make_chain(struct bed *b)
{
    bed_init(b);
    for (uint64_t i = 0; i < 4; i++)
        bed_push(b, i * N_KEYS, N_KEYS);
    assert_int_equal(bed_save(b, 0, 9), 1);
    bed_push(b, 0, 200);
    assert_int_equal(bed_save(b, 1, 9), 2);
    bed_push(b, 100, 150);
    bed_push(b, 90000, 50);
    assert_int_equal(bed_save(b, 2, 9), 3);
}

static void a_chain_is_loaded_as_what_the_shard_is(void **state)
{
    struct bed b;

    (void)state;
    make_chain(&b);
    assert_int_equal(b.m->files[0].n_rows, 200);
    bed_assert_newest(&b, 3);
    crash_files_power_cut(&b.c);
    bed_assert_newest(&b, 3);
    bed_deinit(&b);
}

static void a_delta_of_1_percent_weighs_less_than_a_50th(void **state)
{
    struct bed b;
    uint64_t full_bytes;

    (void)state;
    bed_init(&b);
    for (uint64_t i = 0; i < 4; i++)
        bed_push(&b, i * N_KEYS, N_KEYS);
    bed_save(&b, 0, 9);
    full_bytes = b.m->files[0].n_bytes;
    bed_push(&b, 3000, 4 * N_KEYS / 100);
    bed_save(&b, 1, 9);
    assert_int_equal(b.m->files[0].n_rows, 4 * N_KEYS / 100);
    assert_true(b.m->files[0].n_bytes * 50 < full_bytes);
    bed_deinit(&b);
}

/* Finds below everything, loads, and where that finds damage goes on below: as a node does. */
static uint64_t newest_that_loads(struct bed *b, struct reports *reports)
{
    struct checkpoint found;
    struct loader_facts facts;
    struct shard *again;
    struct err err = { 0 };
    uint64_t number = 0;
    int status = PS_ECORRUPT;

    while (status) {
        if (checkpoint_find(&b->c.ops, DATA_DIR, number, &found, reports_add, reports, &err) !=
            0)
            return 0;
        number = found.links[0].number;
        status = bed_load(b, &found, &again, &facts, &err);
        assert_true(status == 0 || checkpoint_is_damage(status));
        if (status)
            reports_add(reports, err.text);
        enter_shard();
        shard_free(again);
        checkpoint_close(&found);
    }
    return number;
}

static void where_a_link_is_damaged_the_restore_point_before_it_counts(void **state)
{
    static const struct {
        const char *path;
        uint64_t want;
        int n_reported;
    } cases[] = {
        { FILE_OF("3"), 2, 1 },         { FILE_OF("2"), 1, 2 },
        { FILE_OF("1"), 0, 3 },         { DIR("3") "/MANIFEST", 2, 1 },
        { DIR("2") "/MANIFEST", 1, 2 }, { DIR("1") "/MANIFEST", 0, 3 },
    };
    struct bed b;

    (void)state;
    make_chain(&b);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct crash_inode *file = crash_files_at(&b.c, cases[i].path);
        size_t at = file->n_bytes - 150; /* in the midst of the last rows; of a number */

        for (int missing = 0; missing < 2; missing++) {
            struct reports reports = { 0 };
            char away[200];

            snprintf(away, sizeof away, "%s.away", cases[i].path);
            if (missing)
                assert_int_equal(b.c.ops.rename(&b.c, cases[i].path, away), 0);
            else
                file->bytes[at] ^= 1;
            assert_int_equal(newest_that_loads(&b, &reports), cases[i].want);
            /* A checkpoint whose own manifest is not there is none, and no damage. */
            assert_int_equal(reports.n, cases[i].n_reported - (missing && i >= 3));
            if (missing)
                assert_int_equal(b.c.ops.rename(&b.c, away, cases[i].path), 0);
            else
                file->bytes[at] ^= 1;
        }
    }
    bed_assert_newest(&b, 3);
    bed_deinit(&b);
}

/* Each delta is one to a file of that version, which its manifest and header say, too. */
static void a_delta_on_another_file_than_its_own_is_refused(void **state)
{
    struct bed b, other;
    struct checkpoint found;
    struct err err;

    (void)state;
    make_chain(&b);
    bed_init(&other);
    bed_push(&other, 0, 10);
    bed_push(&other, 0, 10);
    assert_int_equal(bed_save(&other, 0, 9), 1);
    for (int i = 0; i < 2; i++) {
        const char *path = i ? DIR("1") "/MANIFEST" : FILE_OF("1");
        struct crash_inode *to = crash_files_at(&b.c, path),
                           *from = crash_files_at(&other.c, path);

        to->bytes = realloc(to->bytes, from->n_bytes);
        memcpy(to->bytes, from->bytes, from->n_bytes);
        to->n_bytes = from->n_bytes;
    }
    assert_int_equal(checkpoint_open(&b.c.ops, DIR("1"), &found, &err), 0);
    checkpoint_close(&found);
    assert_int_equal(checkpoint_open(&b.c.ops, DIR("2"), &found, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, "a delta to another file"));
    assert_non_null(strstr(err.text, FILE_OF("2")));
    bed_deinit(&other);
    bed_deinit(&b);
}

static bool is_there(struct bed *b, uint64_t number)
{
    char path[CHECKPOINT_FILE_PATH_MAX];

    assert_int_equal(checkpoint_file_path(DATA_DIR, number, 0, path, NULL), 0);
    return crash_files_is_there(&b->c, path);
}

/* The `first` of checkpoint n is n here. */
static void what_kept_restore_points_need_is_kept_and_they_say_how_much_log(void **state)
{
    struct bed b;

    (void)state;
    make_chain(&b);                          /* 1 <- 2 <- 3 */
    assert_int_equal(bed_save(&b, 3, 2), 4); /* 4 and 3 are kept, and need 2 and 1 */
    assert_int_equal(b.firsts[0], 3);
    for (uint64_t i = 1; i <= 4; i++)
        assert_true(is_there(&b, i));
    assert_int_equal(bed_save(&b, 0, 2), 5); /* 5 is full; 4 still needs all */
    assert_int_equal(b.firsts[0], 4);
    assert_true(is_there(&b, 1));
    assert_int_equal(bed_save(&b, 5, 2), 6);
    assert_int_equal(b.firsts[0], 5);
    for (uint64_t i = 1; i <= 4; i++)
        assert_false(is_there(&b, i));
    assert_true(is_there(&b, 5) && is_there(&b, 6));
    bed_assert_newest(&b, 6);
    bed_deinit(&b);
}

static void a_restore_point_that_lacks_a_link_is_not_counted_among_those_kept(void **state)
{
    struct bed b;

    (void)state;
    make_chain(&b);
    assert_int_equal(bed_save(&b, 0, 9), 4);
    assert_int_equal(bed_save(&b, 4, 9), 5);
    assert_int_equal(b.c.ops.unlink(&b.c, DIR("4") "/MANIFEST"), 0);
    assert_int_equal(bed_save(&b, 0, 2), 6); /* 5 is on 4: so 3 is kept, on 2 and 1 */
    assert_true(is_there(&b, 1) && is_there(&b, 2) && is_there(&b, 3) && is_there(&b, 6));
    assert_false(is_there(&b, 5));
    assert_int_equal(b.firsts[0], 3);
    bed_deinit(&b);
}

static void an_archived_checkpoint_does_not_count_and_its_number_is_not_reused(void **state)
{
    struct bed b;
    struct err err;

    (void)state;
    make_chain(&b);
    crash_files_heal(&b.c);
    b.c.fail_at = 1; /* the directory's sync */
    assert_int_equal(checkpoint_archive(&b.c.ops, DATA_DIR, 3, &err), -EIO);
    crash_files_power_cut(&b.c);
    bed_assert_newest(&b, 3);
    assert_int_equal(checkpoint_archive(&b.c.ops, DATA_DIR, 3, &err), 0);
    crash_files_power_cut(&b.c);
    assert_int_equal(newest_that_loads(&b, &(struct reports){ 0 }), 2);
    assert_true(crash_files_is_there(&b.c, DIR("3") ".aside/MANIFEST"));
    assert_int_equal(bed_save(&b, 0, 9), 4);
    assert_true(crash_files_is_there(&b.c, DIR("3") ".aside/MANIFEST"));
    assert_int_equal(checkpoint_archive(&b.c.ops, DATA_DIR, 3, &err), -ENOENT);
    assert_non_null(strstr(err.text, "cannot archive"));
    bed_deinit(&b);
}

/* However many come after it: or nobody could go back to it. */
static void an_archived_checkpoint_keeps_its_chain(void **state)
{
    struct checkpoint found;
    struct loader_facts facts;
    struct shard *was, *again;
    struct bed b;
    struct err err;

    (void)state;
    make_chain(&b); /* 1 <- 2 <- 3 */
    assert_int_equal(checkpoint_open(&b.c.ops, DIR("3"), &found, &err), 0);
    assert_int_equal(bed_load(&b, &found, &was, &facts, &err), 0);
    checkpoint_close(&found);
    assert_int_equal(checkpoint_archive(&b.c.ops, DATA_DIR, 3, &err), 0);
    for (uint64_t i = 4; i < 7; i++)
        assert_int_equal(bed_save(&b, 0, 1), i);
    assert_false(is_there(&b, 4) || is_there(&b, 5));
    assert_int_equal(checkpoint_open(&b.c.ops, DIR("3") ".aside", &found, &err), 0);
    assert_int_equal(bed_load(&b, &found, &again, &facts, &err), 0);
    assert_same_shard(was, again);
    checkpoint_close(&found);
    /* A person has removed it. */
    assert_int_equal(b.c.ops.unlink(&b.c, DIR("3") ".aside/MANIFEST"), 0);
    assert_int_equal(bed_save(&b, 0, 1), 7);
    assert_false(is_there(&b, 1) || is_there(&b, 2) || is_there(&b, 6));
    enter_shard();
    shard_free(was);
    shard_free(again);
    bed_deinit(&b);
}

static void only_the_shard_that_wrote_it_in_that_layout_takes_a_file_whole(void **state)
{
    struct shard_file_identity others[] = { identity, identity, identity, identity };
    struct bed b;
    struct checkpoint found;
    struct err err;

    (void)state;
    make_chain(&b);
    others[0].node = 1;
    others[1].shard = 1;
    others[2].n_shards = 2;
    others[3].map_id = 78;
    assert_int_equal(checkpoint_find(&b.c.ops, DATA_DIR, 0, &found, NULL, NULL, &err), 0);
    assert_true(checkpoint_is_of(&found, 0, &identity));
    for (size_t i = 0; i < COUNT_OF(others); i++)
        assert_false(checkpoint_is_of(&found, 0, &others[i]));
    assert_false(checkpoint_is_of(&found, 1, &identity));
    checkpoint_close(&found);
    bed_deinit(&b);
}

/* Rows alone, resharded to three shards: together they have what the one had. */
static void a_chain_is_resharded_to_any_number_of_shards(void **state)
{
    struct bed b;
    struct checkpoint found;
    struct loader_facts facts;
    struct err err;
    uint64_t n_rows = 0;

    (void)state;
    make_chain(&b);
    assert_int_equal(checkpoint_find(&b.c.ops, DATA_DIR, 0, &found, NULL, NULL, &err), 0);
    enter_shard();
    for (uint32_t i = 0; i < 3; i++) {
        struct shard *s = make_shard(i, 3, 0);
        const struct shard_table *t;

        assert_int_equal(
            loader_reshard(&(struct loader_config){ .files = &b.c.ops, .checkpoint = &found },
                           s, &facts, &err),
            0);
        t = shard_table(s, 0);
        assert_int_equal(t->n_pushes, shard_table(b.s, b.table)->n_pushes);
        assert_int_equal(shard_version(s), shard_version(b.s));
        for (uint64_t k = 0; k < table_n_rows(t->rows); k++) {
            const struct row *row = table_row(t->rows, k);

            assert_same_row(&t->spec, row, find_row(b.s, b.table, row->key), t->payload_bytes);
        }
        n_rows += table_n_rows(t->rows);
        shard_free(s);
    }
    assert_int_equal(n_rows, table_n_rows(shard_table(b.s, b.table)->rows));
    checkpoint_close(&found);
    bed_deinit(&b);
}

/* An error, a torn write, a death at any operation of the next delta: the restore point before, or the new
 * one, is whole, and the next attempt works. */
static void a_fault_at_any_operation_harms_no_restore_point(void **state)
{
    (void)state;
    for (int fault = 0; fault < 4; fault++) {
        bool was_hit = true;
        long k = share_first();

        for (; was_hit; k += share_step()) {
            struct bed b;
            struct reports reports = { 0 };
            struct err err = { 0 };
            uint64_t number;
            int status;

            bed_init(&b);
            bed_push(&b, 0, 60);
            bed_save(&b, 0, 1);
            bed_push(&b, 0, 20);
            bed_save(&b, 1, 1);
            crash_files_heal(&b.c);
            b.c.fail_at = k;
            b.c.torn = fault & 1;
            b.c.dies = fault & 2;
            status = bed_try_save(&b, 2, 1, &err);
            was_hit = b.c.n_ops > k;
            assert_int_equal(crash_files_n_open(&b.c), 0);
            if (fault & 2)
                crash_files_power_cut(&b.c);
            else
                crash_files_heal(&b.c);
            number = newest_that_loads(&b, &reports);
            assert_true(number == 3 || (status && number == 2));
            assert_int_equal(reports.n, 0);
            bed_save(&b, 0, 1);
            bed_assert_newest(&b, b.m->number);
            bed_deinit(&b);
        }
        assert_true(k > 15);
    }
}

static void a_chain_is_not_followed_for_ever(void **state)
{
    struct bed b;
    struct err err;

    (void)state;
    bed_init(&b);
    bed_push(&b, 0, 5);
    bed_save(&b, 0, 1);
    for (uint64_t i = 1; i < CHECKPOINT_CHAIN_MAX; i++)
        bed_save(&b, i, 1);
    bed_assert_newest(&b, CHECKPOINT_CHAIN_MAX);
    /* One more is a delta that nobody could load: it is refused when it is committed, and nothing goes. */
    assert_int_equal(bed_try_save(&b, CHECKPOINT_CHAIN_MAX, 1, &err), -EINVAL);
    bed_assert_newest(&b, CHECKPOINT_CHAIN_MAX);
    bed_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_is_loaded_as_what_the_shard_is),
        cmocka_unit_test(a_delta_of_1_percent_weighs_less_than_a_50th),
        cmocka_unit_test(where_a_link_is_damaged_the_restore_point_before_it_counts),
        cmocka_unit_test(a_delta_on_another_file_than_its_own_is_refused),
        cmocka_unit_test(what_kept_restore_points_need_is_kept_and_they_say_how_much_log),
        cmocka_unit_test(a_restore_point_that_lacks_a_link_is_not_counted_among_those_kept),
        cmocka_unit_test(an_archived_checkpoint_does_not_count_and_its_number_is_not_reused),
        cmocka_unit_test(an_archived_checkpoint_keeps_its_chain),
        cmocka_unit_test(only_the_shard_that_wrote_it_in_that_layout_takes_a_file_whole),
        cmocka_unit_test(a_chain_is_resharded_to_any_number_of_shards),
        cmocka_unit_test(a_fault_at_any_operation_harms_no_restore_point),
        cmocka_unit_test(a_chain_is_not_followed_for_ever),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
