/* What a writer notes of its log outside of the log's files. */
#include "server/wal/wal_control.h"
#include "tests/unit/wal/fixture.h"

#define PATH LOG_DIR "/wal-000.control"
#define MARK_PATH PATH ".mark"

static struct wal_writer_config config_of(struct crash_files *c, enum wal_durability durability)
{
    struct wal_writer_config config = fixture_config(&c->ops, durability);

    snprintf(config.control, sizeof config.control, PATH);
    return config;
}

static struct wal_control read_control(struct crash_files *c)
{
    struct wal_control control;

    assert_int_equal(wal_control_read(&c->ops, PATH, &control, NULL), 0);
    return control;
}

static void what_is_written_is_read_and_each_flipped_bit_is_seen(void **state)
{
    static const struct wal_control all[] = { { 0 },
                                              { 7, 153, 190, false, 0, 0 },
                                              { 7, 153, 190, false, 0x0a0b0c0d, 0 },
                                              { UINT64_MAX, UINT64_MAX, UINT64_MAX, true, 0,
                                                0 } };
    struct crash_files c;
    struct wal_control got;
    struct err err;

    (void)state;
    crash_files_init(&c);
    assert_int_equal(c.ops.mkdir(c.ops.state, LOG_DIR), 0);
    assert_int_equal(wal_control_read(&c.ops, PATH, &got, NULL), 0);
    assert_int_equal(got.epoch + got.segment + got.durable, 0);
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        struct crash_inode *file;

        assert_int_equal(wal_control_write(&c.ops, PATH, &all[i], NULL), 0);
        got = read_control(&c);
        assert_int_equal(got.epoch, all[i].epoch);
        assert_int_equal(got.segment, all[i].segment);
        assert_int_equal(got.durable, all[i].durable);
        assert_int_equal(got.is_closed, all[i].is_closed);
        assert_int_equal(got.mark, all[i].mark);
        file = crash_files_at(&c, PATH);
        for (size_t bit = 0; bit < file->n_bytes * 8; bit++) {
            file->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_int_equal(wal_control_read(&c.ops, PATH, &got, &err), PS_ECORRUPT);
            assert_non_null(strstr(err.text, PATH));
            file->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
    c.n_ops = 0; /* a sector that cannot be read */
    c.fail_at = 1;
    assert_int_equal(wal_control_read(&c.ops, PATH, &got, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, "cannot be read: Input/output error"));
    assert_int_equal(got.epoch + got.segment + got.durable, 0);
    crash_files_deinit(&c);
}

/* A log from its first record on, on a disk of its own. */
static void begin_log(struct fixture_log *l, struct crash_files *c,
                      const struct wal_writer_config *config)
{
    struct wal_end end = { 0 };

    crash_files_init(c);
    assert_int_equal(c->ops.mkdir(c->ops.state, LOG_DIR), 0);
    assert_int_equal(fixture_open(l, config, &end), 0);
}

static void end_log(struct fixture_log *l, struct crash_files *c)
{
    fixture_free(l);
    crash_files_deinit(c);
}

static void a_writer_notes_its_newest_segment_and_what_is_durable(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    const struct wal_writer_config config = config_of(&c, WAL_FSYNC);
    struct wal_control got;

    (void)state;
    begin_log(&l, &c, &config);
    got = read_control(&c);
    assert_int_equal(got.epoch, fixture_identity.map_id);
    assert_int_equal(got.segment, 1);
    assert_int_equal(got.durable, 0);
    while (l.queue.next_number <= 5)
        assert_int_equal(fixture_append(&l), 0);
    fixture_work(&l);
    l.now_ms += 1000;
    fixture_work(&l);
    assert_int_equal(read_control(&c).durable, 5);
    wal_queue_begin_segment(&l.queue);
    assert_int_equal(fixture_append(&l), 0);
    fixture_work(&l);
    assert_int_equal(read_control(&c).segment, 6);
    assert_false(read_control(&c).is_closed);
    assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
    assert_int_equal(read_control(&c).durable, 6);
    assert_true(read_control(&c).is_closed);
    end_log(&l, &c);
}

/* No time passes: whoever is killed right behind an acknowledgement has said what was durable. */
static void the_mark_has_what_is_durable_before_it_is_acknowledged(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    const struct wal_writer_config config = config_of(&c, WAL_FSYNC);

    (void)state;
    begin_log(&l, &c, &config);
    while (l.queue.next_number <= 50) {
        assert_int_equal(fixture_append(&l), 0);
        fixture_work(&l);
        assert_int_equal(wal_queue_acknowledged(&l.queue), l.queue.next_number - 1);
        assert_int_equal(read_control(&c).durable, l.queue.next_number - 1);
        if (l.queue.next_number % 20 == 0)
            wal_queue_begin_segment(&l.queue);
    }
    assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
    assert_int_equal(read_control(&c).mark, 0);
    end_log(&l, &c);
}

/* A flipped bit costs one slot: the other one is a sync older. Of another log's beginning, or gone, it says nothing. */
static void count_sentence(void *arg, const char *sentence)
{
    (void)sentence;
    ++*(uint32_t *)arg;
}

static void a_damaged_mark_says_less_and_nothing_wrong(void **state)
{
    struct wal_control control = { 7, 1, 3, false, 0x01020304, 0 };
    struct crash_files c;
    struct crash_inode *file;
    int fd;

    (void)state;
    crash_files_init(&c);
    assert_int_equal(c.ops.mkdir(c.ops.state, LOG_DIR), 0);
    assert_int_equal(wal_control_write(&c.ops, PATH, &control, NULL), 0);
    assert_int_equal(wal_control_mark_create(&c.ops, PATH, &fd), 0);
    assert_int_equal(read_control(&c).durable, 3);
    for (uint32_t i = 0; i < 4; i++) {
        control.durable = 10 + i;
        assert_int_equal(wal_control_mark_write(&c.ops, fd, &control, i), 0);
        assert_int_equal(read_control(&c).durable, 10 + i);
    }
    file = crash_files_at(&c, MARK_PATH);
    for (size_t bit = 0; bit < file->n_bytes * 8; bit++) {
        file->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(read_control(&c).durable, bit / 8 >= 4096 ? 12 : 13);
        file->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (; file->n_bytes > 0; file->n_bytes--)
        assert_int_equal(read_control(&c).durable, file->n_bytes >= 4096 + 32 ? 13
                                                   : file->n_bytes >= 32      ? 12
                                                                              : 3);
    for (uint32_t i = 4; i < 8; i++) { /* of another epoch; of another beginning of the log */
        struct wal_control other = control;

        other.durable = 90;
        other.epoch += i < 6;
        other.mark += i >= 6;
        assert_int_equal(wal_control_mark_write(&c.ops, fd, &other, i), 0);
        assert_int_equal(read_control(&c).durable, 3);
    }
    assert_int_equal(c.ops.close(c.ops.state, fd), 0);
    crash_files_deinit(&c);
}

/* The control file says that there is one; its name was durable before. */
static void a_mark_that_is_gone_is_reported(void **state)
{
    struct wal_control *all;
    struct crash_files c;
    struct fixture_log l;
    const struct wal_writer_config config = config_of(&c, WAL_FSYNC);
    struct wal_control got;
    struct err err = { 0 };
    uint32_t n, n_reported = 0;

    (void)state;
    begin_log(&l, &c, &config);
    assert_int_equal(fixture_append(&l), 0);
    fixture_work(&l);
    got = read_control(&c);
    assert_int_equal(got.durable, 1);
    assert_int_equal(wal_control_check_mark(&got, PATH, &err), 0);
    assert_int_equal(
        wal_control_read_all(&c.ops, LOG_DIR, count_sentence, &n_reported, &all, &n, NULL), 0);
    free(all);
    assert_int_equal(n_reported, 0);
    assert_int_equal(c.ops.unlink(c.ops.state, MARK_PATH), 0);
    got = read_control(&c);
    assert_int_equal(got.segment, 1);
    assert_int_equal(wal_control_check_mark(&got, PATH, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, "gone, so whether acknowledged records behind"));
    assert_non_null(strstr(err.text, MARK_PATH));
    assert_int_equal(
        wal_control_read_all(&c.ops, LOG_DIR, count_sentence, &n_reported, &all, &n, NULL), 0);
    assert_int_equal(n_reported, 1);
    assert_int_equal(n, 1);
    assert_int_equal(all[0].segment, 1);
    free(all);
    assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0); /* which says "closed" */
    got = read_control(&c);
    assert_int_equal(wal_control_check_mark(&got, PATH, &err), 0);
    end_log(&l, &c);
}

/* --at intact, or an older psd: the mark of what was given up is missed by nobody. */
static void a_start_behind_an_older_record_has_no_mark_of_later_ones(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    const struct wal_writer_config config = config_of(&c, WAL_FSYNC);
    struct wal_end end = { .verdict = WAL_STOPPED, .last = 8, .last_present = 8, .durable = 8 };

    (void)state;
    begin_log(&l, &c, &config);
    while (l.queue.next_number <= 30)
        assert_int_equal(fixture_append(&l), 0);
    fixture_work(&l);
    assert_int_equal(read_control(&c).durable, 30);
    fixture_free(&l);
    assert_int_equal(fixture_open(&l, &config, &end), 0);
    assert_int_equal(read_control(&c).durable, 8);
    assert_int_equal(fixture_append(&l), 0);
    fixture_work(&l);
    assert_int_equal(read_control(&c).durable, 9);
    end_log(&l, &c);
}

/* A start that goes on behind an older record gives up segments that were named: nothing is to miss them. */
static void a_writer_that_goes_back_takes_back_what_it_noted(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    const struct wal_writer_config config = config_of(&c, WAL_FSYNC);
    struct wal_end end = { .verdict = WAL_STOPPED, .last = 8, .last_present = 8, .durable = 8 };
    struct wal_control got;

    (void)state;
    crash_files_init(&c);
    assert_int_equal(c.ops.mkdir(c.ops.state, LOG_DIR), 0);
    assert_int_equal(wal_control_write(&c.ops, PATH,
                                       &(struct wal_control){ .epoch = fixture_identity.map_id,
                                                              .segment = 12,
                                                              .durable = 11 },
                                       NULL),
                     0);
    assert_int_equal(
        wal_control_rewind(&c.ops, PATH, fixture_identity.map_id, end.last + 1, NULL), 0);
    got = read_control(&c);
    assert_int_equal(got.segment, 0);
    assert_int_equal(got.durable, 8);
    assert_int_equal(fixture_open(&l, &config, &end), 0);
    assert_int_equal(read_control(&c).segment, 9);
    end_log(&l, &c);
}

/* Where nothing is synced, nothing is noted that a power cut could make a lie. */
static void without_syncs_no_segment_is_named(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    const struct wal_writer_config config = config_of(&c, WAL_NONE);

    (void)state;
    begin_log(&l, &c, &config);
    assert_int_equal(fixture_append(&l), 0);
    fixture_work(&l);
    assert_int_equal(read_control(&c).segment, 0);
    assert_int_equal(read_control(&c).durable, 0);
    wal_writer_sync(l.writer);
    fixture_work(&l);
    l.now_ms += 1000;
    fixture_work(&l);
    assert_int_equal(read_control(&c).segment, 1);
    assert_int_equal(read_control(&c).durable, 1);
    end_log(&l, &c);
}

/* A segment that was synced while it was empty, and had to be begun anew: a power cut may take both the old name and the
 * new one, and nothing is to miss them. */
static void without_syncs_a_segment_that_is_begun_anew_is_not_named(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    const struct wal_writer_config config = config_of(&c, WAL_NONE);

    (void)state;
    begin_log(&l, &c, &config);
    wal_writer_sync(l.writer);
    fixture_work(&l);
    assert_int_equal(fixture_append(&l), 0);
    c.fail_at = c.n_ops;
    fixture_work(&l);
    assert_int_equal(l.queue.progress.state, WAL_WRITER_FAILED);
    crash_files_heal(&c);
    l.now_ms += 1000;
    fixture_work(&l);
    assert_int_equal(l.queue.progress.state, WAL_WRITER_OK);
    assert_int_equal(read_control(&c).segment, 0);
    end_log(&l, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_and_each_flipped_bit_is_seen),
        cmocka_unit_test(a_writer_notes_its_newest_segment_and_what_is_durable),
        cmocka_unit_test(the_mark_has_what_is_durable_before_it_is_acknowledged),
        cmocka_unit_test(a_damaged_mark_says_less_and_nothing_wrong),
        cmocka_unit_test(a_mark_that_is_gone_is_reported),
        cmocka_unit_test(a_start_behind_an_older_record_has_no_mark_of_later_ones),
        cmocka_unit_test(a_writer_that_goes_back_takes_back_what_it_noted),
        cmocka_unit_test(without_syncs_no_segment_is_named),
        cmocka_unit_test(without_syncs_a_segment_that_is_begun_anew_is_not_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
