/* Who gets room in the queue, who waits, what is lost, and what is synced when somebody asks for it. */
#include <errno.h>

#include "common/memory.h"
#include "tests/support/bad_disk.h"
#include "tests/unit/wal/fixture.h"

static struct wal_record asked(struct fixture_storage *storage, size_t value_bytes)
{
    static const uint8_t values[1 << 20];

    storage->push = (struct push){ .seq = 1, .n_sections = 1 };
    storage->push.sections[0] =
        (struct section){ .values = values, .value_bytes = value_bytes };
    return (struct wal_record){ .event = { .type = SHARD_EVENT_PUSH,
                                           .push = { { "j", 0, 1 }, &storage->push, 0 } } };
}

static struct wal_record unasked(struct fixture_storage *storage)
{
    return (struct wal_record){ .event = { .type = SHARD_EVENT_ROWS,
                                           .rows = { .op = SHARD_ROWS_GONE,
                                                     .n_keys = SHARD_EVENT_ROWS_MAX,
                                                     .keys = storage->keys } } };
}

static void start(struct fixture_log *l, struct bad_disk *d, enum wal_durability durability)
{
    const struct wal_writer_config config = fixture_config(&d->ops, durability);

    bad_disk_init(d);
    assert_int_equal(fixture_reopen(l, &config), 0);
}

static void stop(struct fixture_log *l, struct bad_disk *d)
{
    fixture_free(l);
    assert_int_equal(crash_files_n_open(&d->files), 0);
    crash_files_deinit(&d->files);
}

static void append(struct fixture_log *l, const struct wal_record *r)
{
    (void)wal_queue_append(&l->queue, r, l->now_ms);
}

/* Any number of rows between the reserve and the push, and the writer takes what is there meanwhile. */
static void what_was_reserved_is_kept_for_whoever_did(void **state)
{
    static struct fixture_storage storage;
    struct fixture_log l;
    struct bad_disk d;

    (void)state;
    start(&l, &d, WAL_FSYNC);
    for (uint32_t i = 0; i < 30; i++) {
        struct wal_record push = asked(&storage, i * 500), rows = unasked(&storage);

        assert_int_equal(wal_queue_reserve(&l.queue, wal_record_bytes(&push)), 0);
        for (uint32_t k = 0; k < i; k++) {
            append(&l, &rows);
            if (k % 4 == 3)
                fixture_work(&l);
        }
        append(&l, &push);
        fixture_work(&l);
    }
    assert_int_equal(l.queue.n_dropped, 0);
    assert_int_equal(wal_queue_acknowledged(&l.queue), l.queue.next_number - 1);
    assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
    stop(&l, &d);
}

static void while_full_reserved_records_wait_and_others_are_kept_up_to_a_limit(void **state)
{
    static struct fixture_storage storage;
    const struct wal_record push = asked(&storage, 500), rows = unasked(&storage);
    struct fixture_log l;
    struct bad_disk d;
    uint64_t lost;

    (void)state;
    start(&l, &d, WAL_FSYNC);
    while (wal_queue_reserve(&l.queue, wal_record_bytes(&push)) == 0)
        append(&l, &push);
    assert_int_equal(l.queue.state, WAL_QUEUE_FULL);
    assert_int_equal(wal_queue_reserve(&l.queue, wal_record_bytes(&push)), -EAGAIN);
    while (l.queue.n_dropped == 0) {
        append(&l, &rows);
        assert_true(l.queue.held_bytes < 2 * l.queue.max_bytes + 30000);
    }
    assert_true(l.queue.held_bytes >= 2 * l.queue.max_bytes);
    lost = l.queue.next_number - 1;
    assert_int_equal(l.queue.lost_first, lost);
    fixture_work(&l);
    assert_int_equal(l.queue.state, WAL_QUEUE_OPEN);
    assert_int_equal(wal_queue_reserve(&l.queue, wal_record_bytes(&push)), 0);
    append(&l, &push);
    fixture_work(&l);
    assert_int_equal(l.queue.progress.durable, lost + 1);
    assert_int_equal(wal_queue_acknowledged(&l.queue), lost - 1);
    wal_queue_close_gap(&l.queue,
                        lost - 1); /* a checkpoint from before the gap mends nothing */
    assert_int_equal(wal_queue_acknowledged(&l.queue), lost - 1);
    wal_queue_close_gap(&l.queue, lost);
    assert_int_equal(wal_queue_acknowledged(&l.queue), lost + 1);
    stop(&l, &d);
}

/* Of a queue that is full, with so many operations of the disk that succeed before one fails. How much is left? */
static size_t left_when_full_and_failing(enum wal_durability durability, long k,
                                         bool *ret_was_hit)
{
    static struct fixture_storage storage;
    const struct wal_record push = asked(&storage, 500);
    struct wal_writer_config config;
    struct fixture_log l;
    struct bad_disk d;
    size_t held_bytes;

    bad_disk_init(&d);
    config = fixture_config(&d.ops, durability);
    config.zstd = WAL_ZSTD_OFF; /* so that it takes several segments */
    assert_int_equal(fixture_reopen(&l, &config), 0);
    while (wal_queue_reserve(&l.queue, wal_record_bytes(&push)) == 0)
        append(&l, &push);
    assert_int_equal(l.queue.state, WAL_QUEUE_FULL);
    d.files.fail_at = d.files.n_ops + k;
    l.now_ms += 5000; /* a sync is due */
    fixture_work(&l);
    *ret_was_hit = d.files.n_ops > d.files.fail_at;
    held_bytes = l.queue.held_bytes;
    assert_true(held_bytes <= l.queue.max_bytes + l.queue.block_bytes);
    if (durability == WAL_FSYNC && held_bytes > l.queue.max_bytes / 2)
        assert_int_equal(wal_queue_reserve(&l.queue, 100), -EAGAIN);
    else
        assert_int_equal(wal_queue_reserve(&l.queue, 100), 0);
    if (held_bytes < l.queue.max_bytes)
        assert_int_not_equal(l.queue.state, WAL_QUEUE_DROPS); /* there is room */
    stop(&l, &d);
    return held_bytes;
}

/* Wherever the disk begins to fail, unless replies wait for it: it may never work again. */
static void nobody_waits_for_a_disk_that_fails(void **state)
{
    (void)state;
    for (enum wal_durability durability = WAL_NONE; durability <= WAL_FSYNC; durability++) {
        uint32_t n_between = 0;
        bool was_hit = true;

        for (long k = 0; was_hit; k++) {
            size_t held_bytes = left_when_full_and_failing(durability, k, &was_hit);

            n_between += held_bytes > 20000 && held_bytes < 40000;
        }
        assert_true(n_between > 2);
    }
}

/* The last ones of all: nobody waits for them for ever. */
static void what_was_dropped_at_the_end_is_not_waited_for(void **state)
{
    static struct fixture_storage storage;
    const struct wal_record push = asked(&storage, 500);
    struct fixture_log l;
    struct bad_disk d;
    uint64_t last;

    (void)state;
    start(&l, &d, WAL_ASYNC);
    d.full = true;
    while (l.queue.n_dropped < 3) {
        assert_int_equal(wal_queue_reserve(&l.queue, wal_record_bytes(&push)), 0);
        append(&l, &push);
        l.now_ms += 100;
        fixture_work(&l);
    }
    last = l.queue.next_number - 1;
    d.full = false;
    wal_writer_sync(l.writer);
    l.now_ms += 5000;
    fixture_work(&l);
    assert_int_equal(l.queue.progress.durable, last);
    assert_int_equal(l.queue.lost_first, last - 2);
    assert_int_equal(l.queue.lost_last, last);
    stop(&l, &d);
}

static void a_sync_that_is_asked_for_is_done_whatever_the_durability(void **state)
{
    (void)state;
    for (enum wal_durability durability = WAL_NONE; durability <= WAL_FSYNC; durability++) {
        struct fixture_log l;
        struct bad_disk d;
        struct wal_end end = { 0 };
        uint64_t through;

        start(&l, &d, durability);
        for (uint32_t i = 0; i < 30; i++) {
            assert_int_equal(fixture_append(&l), 0);
            fixture_work(&l);
        }
        through = l.queue.next_number - 1;
        assert_true(durability == WAL_FSYNC || l.queue.progress.durable < through);
        wal_writer_sync(l.writer);
        fixture_work(&l);
        assert_int_equal(l.queue.progress.durable, through);
        assert_true(l.due_ms == UINT64_MAX);
        for (uint32_t i = 0; i < 20; i++) {
            assert_int_equal(fixture_append(&l), 0);
            fixture_work(&l);
        }
        assert_true(durability != WAL_NONE || l.queue.progress.durable == through);
        fixture_free(&l);
        bad_disk_power_cut(&d, 0, false);
        assert_int_equal(fixture_read(&d.ops, 1, &end), 0);
        assert_true(end.verdict == WAL_TORN || end.verdict == WAL_CLEAN);
        assert_true(end.last >= through);
        crash_files_deinit(&d.files);
    }
}

/* True if operation k was carried out. */
static bool asked_sync_fails_at(long k)
{
    struct fixture_log l;
    struct bad_disk d;
    struct wal_end end = { 0 };
    uint64_t through;
    bool was_hit;

    start(&l, &d, WAL_NONE);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(fixture_append(&l), 0);
        fixture_work(&l);
    }
    through = l.queue.next_number - 1;
    d.files.fail_at = d.files.n_ops + k;
    wal_writer_sync(l.writer);
    fixture_work(&l);
    was_hit = d.files.n_ops > d.files.fail_at;
    if (l.queue.progress.state == WAL_WRITER_FAILED) {
        assert_int_equal(l.queue.lost_last, through);
        assert_int_equal(l.queue.progress.durable, 0);
        assert_true(l.queue.progress.err.text[0] != '\0');
    }
    for (uint32_t i = 0; i < 40; i++) {
        l.now_ms += 100;
        assert_int_equal(fixture_append(&l), 0);
        fixture_work(&l);
    }
    assert_int_equal(l.queue.progress.state, WAL_WRITER_OK);
    wal_writer_sync(l.writer);
    fixture_work(&l);
    assert_int_equal(l.queue.progress.durable, through + 40);
    assert_true(l.queue.lost_last == 0 || l.queue.lost_last == through);
    fixture_free(&l);
    bad_disk_power_cut(&d, 0, false);
    assert_int_equal(fixture_read(&d.ops, through + 1, &end), 0);
    assert_int_equal(end.last, through + 40);
    /* From before the doubt: what is there, and no word of damage. */
    assert_int_equal(fixture_read(&d.ops, 1, &end), 0);
    assert_int_not_equal(end.verdict, WAL_DAMAGED);
    crash_files_deinit(&d.files);
    return was_hit;
}

static void under_none_a_failed_sync_leaves_a_gap_and_what_comes_next_is_safe(void **state)
{
    long k = 0;

    (void)state;
    while (asked_sync_fails_at(k))
        k++;
    assert_true(k > 8);
}

static void a_reader_that_is_stopped_leaves_a_log_that_goes_on_there(void **state)
{
    (void)state;
    for (uint64_t last = 20; last < 120; last += 3) {
        struct wal_writer_config config;
        const struct wal_record *record;
        struct fixture_log l;
        struct bad_disk d;
        struct wal_reader *r;
        struct wal_end end = { 0 };
        struct err err;

        start(&l, &d, WAL_FSYNC);
        config = fixture_config(&d.ops, WAL_FSYNC);
        for (uint32_t i = 0; i < 130; i++) {
            assert_int_equal(fixture_append(&l), 0);
            fixture_work(&l);
        }
        fixture_free(&l);
        assert_int_equal(wal_reader_open(&d.ops, LOG_DIR, NULL, 1, &r, &err), 0);
        do
            assert_int_equal(wal_reader_next(r, &record, &err), 0);
        while (record->number < last + last % 2);
        wal_reader_stop(r, last);
        end = *wal_reader_end(r);
        wal_reader_free(r);
        assert_int_equal(end.verdict, WAL_STOPPED);
        assert_int_equal(end.last, last);
        assert_int_equal(fixture_open(&l, &config, &end), 0);
        for (uint32_t i = 0; i < 10; i++)
            assert_int_equal(fixture_append(&l), 0);
        fixture_work(&l);
        fixture_free(&l);
        bad_disk_power_cut(&d, 0, false);
        assert_int_equal(fixture_read(&d.ops, 1, &end), 0);
        assert_int_equal(end.verdict, WAL_CLEAN);
        assert_int_equal(end.last, last + 10);
        crash_files_deinit(&d.files);
    }
}

#ifdef PS_FAULTS
static void without_memory_reserved_records_wait_and_the_first_other_is_kept(void **state)
{
    static struct fixture_storage storage;
    const struct wal_record push = asked(&storage, 500), rows = unasked(&storage);
    struct fixture_log l;
    struct bad_disk d;
    uint64_t n_kept = 0;

    (void)state;
    start(&l, &d, WAL_FSYNC);
    assert_int_equal(wal_queue_reserve(&l.queue, wal_record_bytes(&push)), 0);
    memory_fail_after(0);
    assert_int_equal(wal_queue_reserve(&l.queue, 100000), -ENOMEM);
    for (; l.queue.n_dropped == 0; n_kept++)
        append(&l, &rows);
    assert_true(n_kept > 8);
    append(&l, &push); /* it had asked before */
    assert_int_equal(wal_queue_reserve(&l.queue, 10), -ENOMEM);
    memory_fail_after(-1);
    assert_int_equal(wal_queue_reserve(&l.queue, wal_record_bytes(&push)), 0);
    assert_int_equal(l.queue.n_dropped, 1);
    fixture_work(&l);
    assert_int_equal(wal_queue_acknowledged(&l.queue), l.queue.lost_first - 1);
    stop(&l, &d);
}
#endif

/* A log whose queue is as in real life, with n records of half a MiB in it. */
static void start_large(struct fixture_log *l, struct crash_files *c,
                        enum wal_durability durability, uint32_t n)
{
    static struct fixture_storage storage;
    const struct wal_record push = asked(&storage, 500000);
    struct wal_writer_config config = fixture_config(&c->ops, durability);

    crash_files_init(c);
    config.zstd = WAL_ZSTD_OFF;
    config.segment_bytes = 0;
    assert_int_equal(fixture_reopen(l, &config), 0);
    wal_queue_deinit(&l->queue);
    wal_queue_init(&l->queue,
                   &(struct wal_queue_config){ .durability = durability, .next_number = 1 });
    while (n--) {
        assert_int_equal(wal_queue_reserve(&l->queue, wal_record_bytes(&push)), 0);
        append(l, &push);
    }
}

/* However much waits, a sync is of a portion, and its memory is given back before the rest is written. */
static void what_waits_is_synced_a_portion_at_a_time(void **state)
{
    static const enum wal_durability durabilities[] = { WAL_ASYNC, WAL_FSYNC };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(durabilities); i++) {
        struct fixture_log l;
        struct crash_files c;
        size_t held_bytes;

        start_large(&l, &c, durabilities[i], 60);
        held_bytes = l.queue.held_bytes;
        wal_writer_sync(l.writer);
        fixture_work(&l);
        assert_in_range(l.queue.progress.durable, 4, 20);
        assert_true(l.queue.held_bytes < held_bytes);
        assert_int_equal(l.due_ms, 0); /* there is a rest */
        while (l.due_ms == 0)
            fixture_work(&l);
        assert_int_equal(l.queue.progress.durable, 60);
        assert_int_equal(l.queue.held_bytes, 0);
        assert_in_range(wal_writer_progress(l.writer)->n_syncs, 4, 40);
        assert_true(l.queue.pace.bytes_per_s > 0);
        assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
        fixture_free(&l);
        crash_files_deinit(&c);
    }
}

static void a_log_that_is_closed_is_written_to_its_end(void **state)
{
    struct fixture_log l;
    struct crash_files c;

    (void)state;
    start_large(&l, &c, WAL_ASYNC, 60);
    fixture_work(&l);
    assert_true(l.queue.progress.durable < 60);
    assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
    assert_int_equal(wal_writer_progress(l.writer)->durable, 60);
    fixture_free(&l);
    crash_files_deinit(&c);
}

enum { POOL_BLOCK = 1000, POOL_MAX = 40 * POOL_BLOCK };

/* Appends pushes of about value_bytes until the blocks that hold records take n_bytes, and the disk takes all of them.
 * Returns how many blocks were too many. */
static uint32_t hold_and_write(struct wal_queue *q, size_t value_bytes, size_t n_bytes,
                               uint64_t now_ms)
{
    static struct fixture_storage storage;
    const struct wal_progress progress = { .state = WAL_WRITER_OK };
    struct wal_block *surplus;
    uint32_t n_surplus = 0;

    for (uint32_t i = 0; i == 0 || q->held_bytes < n_bytes; i++) {
        const struct wal_record push = asked(&storage, value_bytes + i % 10 * 8);

        assert_int_equal(wal_queue_reserve(q, wal_record_bytes(&push)), 0);
        (void)wal_queue_append(q, &push, now_ms);
        assert_true(q->held_bytes + q->pool_bytes <= q->max_bytes);
    }
    surplus = wal_queue_recycle(q, wal_queue_drain(q), &progress);
    for (const struct wal_block *b = surplus; b; b = b->next)
        n_surplus++;
    wal_block_free(surplus);
    return n_surplus;
}

/* While pushes come faster than the disk takes them, and need much: all blocks are used again, though pushes differ a
 * little in length, and also once they are longer than before. What is held and kept is no more than may wait. Half
 * stays when pushes need no more than that. */
static void blocks_are_used_again_while_they_are_needed(void **state)
{
    struct wal_queue q;
    uint64_t now_ms = 5000;

    (void)state;
    wal_queue_init(&q, &(struct wal_queue_config){ .next_number = 1,
                                                   .block_bytes = POOL_BLOCK,
                                                   .max_bytes = POOL_MAX });
    for (size_t value_bytes = 500; value_bytes < 2000; value_bytes += 600) {
        uint32_t n_surplus = 0;

        for (uint32_t round = 0; round < 5; round++)
            (void)hold_and_write(&q, value_bytes, POOL_MAX - 4000, now_ms);
        for (uint32_t round = 0; round < 50; round++, now_ms += 100) {
            n_surplus += hold_and_write(&q, value_bytes, POOL_MAX - 4000, now_ms);
            assert_true(q.pool_bytes > POOL_MAX / 2);
        }
        assert_in_range(n_surplus, 0, 4); /* of the 4000 that were not needed */
    }
    for (uint32_t round = 0; round < 4; round++, now_ms += 2000)
        (void)hold_and_write(&q, 500, 1, now_ms);
    assert_in_range(q.pool_bytes, POOL_MAX / 2 - 3000, POOL_MAX / 2);
    wal_queue_deinit(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_reserved_is_kept_for_whoever_did),
        cmocka_unit_test(while_full_reserved_records_wait_and_others_are_kept_up_to_a_limit),
        cmocka_unit_test(nobody_waits_for_a_disk_that_fails),
        cmocka_unit_test(what_was_dropped_at_the_end_is_not_waited_for),
        cmocka_unit_test(a_sync_that_is_asked_for_is_done_whatever_the_durability),
        cmocka_unit_test(under_none_a_failed_sync_leaves_a_gap_and_what_comes_next_is_safe),
        cmocka_unit_test(what_waits_is_synced_a_portion_at_a_time),
        cmocka_unit_test(blocks_are_used_again_while_they_are_needed),
        cmocka_unit_test(a_log_that_is_closed_is_written_to_its_end),
        cmocka_unit_test(a_reader_that_is_stopped_leaves_a_log_that_goes_on_there),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_reserved_records_wait_and_the_first_other_is_kept),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
