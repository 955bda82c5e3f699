/* The ring against a list of whole records, in random runs; what is full; what is left without memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/crc32c.h"
#include "common/hash.h"
#include "common/memory.h"
#include "server/core/optimizer.h"
#include "server/replication/record_ring.h"
#include "tests/support/seed.h"

#define RING_BYTES ((size_t)4 << 20)

static uint64_t keys[1 << 18];
static struct channel_pool buffers;

/* Of a size that its number says: most are small, one in 64 is longer than a chunk. */
static struct wal_record record_of(uint64_t number, struct shard_event *event)
{
    const uint64_t n = number % 64 == 0 ? COUNT_OF(keys) : hash_mix(number) % 4096;

    *event = (struct shard_event){ .type = SHARD_EVENT_ROWS };
    event->rows.table_id = (uint32_t)number;
    event->rows.keys = keys;
    event->rows.n_keys = (uint32_t)(n < COUNT_OF(keys) ? n : COUNT_OF(keys));
    return (struct wal_record){ .number = number, .unix_ms = number, .event = *event };
}

static void append(struct record_ring *r)
{
    struct shard_event event;
    const struct wal_record record = record_of(r->last + 1, &event);

    record_ring_append(r, &record);
}

/* Whole records, those of these numbers, as a block of the log has them. */
static void assert_part(const struct record_ring_part *part, uint64_t number, size_t max_bytes)
{
    size_t at = 0;

    assert_true(part->n_records > 0);
    assert_true(part->n_bytes <= max_bytes || part->n_records == 1);
    for (uint32_t i = 0; i < part->n_records; i++) {
        struct wal_record_storage storage;
        struct wal_record got;
        struct err reason;
        size_t n_bytes;

        assert_null(wal_record_decode(part->records + at, part->n_bytes - at, &storage, &got,
                                      &n_bytes, &reason));
        assert_int_equal(got.number, number + i);
        assert_int_equal(got.event.rows.table_id, (uint32_t)(number + i));
        at += n_bytes;
    }
    assert_int_equal(at, part->n_bytes);
}

/* What is taken is whole, has space before it, and its crc; and cannot be had again. */
static bool takes(struct record_ring *r, uint64_t number, size_t max_bytes)
{
    const size_t held_bytes = r->held_bytes;
    struct bytes taken = { 0 };
    uint32_t crc, n_records = record_ring_take(r, number, max_bytes, &taken, &crc);
    const struct record_ring_part part = { taken.bytes + taken.start, bytes_len(&taken),
                                           n_records };

    if (!n_records) {
        assert_true(record_ring_has(r, number));
        assert_int_equal(r->held_bytes, held_bytes);
        return false;
    }
    assert_part(&part, number, max_bytes);
    assert_int_equal(crc, crc32c_extend(0, part.records, part.n_bytes));
    assert_int_equal(taken.start, RECORD_RING_BEFORE_BYTES);
    assert_true(r->held_bytes <= held_bytes && r->held_bytes >= part.n_bytes);
    assert_false(record_ring_has(r, number));
    assert_false(record_ring_has(r, number + n_records - 1));
    assert_int_equal(record_ring_has(r, number + n_records), number + n_records <= r->last);
    memset(taken.bytes, 0xee, taken.cap_bytes);
    channel_pool_release(&buffers, &taken);
    return true;
}

static void it_has_what_was_appended_in_random_runs(void **state)
{
    uint64_t seed = seed_of_run(16);
    int n_taken = 0;

    (void)state;
    for (int round = 0; round < 20; round++) {
        struct record_ring r;
        uint64_t released = 1000;

        record_ring_init(&r, &buffers, RING_BYTES, released);
        for (int step = 0; step < 3000; step++) {
            const uint64_t what = (seed = hash_mix(seed + 1)) % 8;
            const uint64_t number = r.first + hash_mix(seed) % (r.last - r.first + 2);
            const size_t max_bytes = hash_mix(seed + 2) % (1 << 17);

            r.keeps = what == 7 ? !r.keeps : r.keeps;
            if (what < 4) {
                append(&r);
            } else if (what == 4 && number > 0 && record_ring_has(&r, number)) {
                released = number;
                record_ring_release(&r, number);
                assert_true(r.first <= number + 1);
            } else if (what == 5 && record_ring_has(&r, number)) {
                n_taken += takes(&r, number, max_bytes);
            } else if (record_ring_has(&r, number)) {
                const struct record_ring_part part = record_ring_read(&r, number, max_bytes);

                assert_part(&part, number, max_bytes);
            }
            assert_true(r.held_bytes <= 2 * RING_BYTES + (3 << 20));
            if (!r.keeps && what < 4)
                assert_true(r.held_bytes <= RING_BYTES + (3 << 20));
            assert_true(r.last >= released);
        }
        record_ring_deinit(&r);
    }
    assert_true(n_taken > 0);
    channel_pool_deinit(&buffers);
}

/* As a standby in sync: each is sent as soon as it is there, and is released once it is acknowledged. */
static void one_whose_records_are_taken_counts_them_until_they_are_released(void **state)
{
    struct record_ring r;

    (void)state;
    record_ring_init(&r, &buffers, RING_BYTES, 0);
    r.keeps = true;
    while (!record_ring_is_full(&r)) {
        append(&r);
        assert_true(takes(&r, r.last, 0));
    }
    assert_int_equal(r.first, 1);
    assert_true(r.last > RING_BYTES / sizeof keys);
    record_ring_release(&r, r.last - 1);
    assert_false(record_ring_is_full(&r));
    record_ring_release(&r, r.last);
    assert_int_equal(r.held_bytes, 0);
    append(&r);
    append(&r);
    assert_true(
        takes(&r, r.last - 1, SIZE_MAX)); /* both, as nothing has been taken between them */
    record_ring_deinit(&r);
    channel_pool_deinit(&buffers);
}

static void one_that_keeps_is_full_until_records_are_released(void **state)
{
    struct record_ring r;

    (void)state;
    record_ring_init(&r, &buffers, RING_BYTES, 0);
    r.keeps = true;
    while (!record_ring_is_full(&r))
        append(&r);
    assert_int_equal(r.first, 1);
    append(&r); /* no push asks for it */
    assert_int_equal(r.first, 1);
    record_ring_release(&r, r.last - 1);
    assert_false(record_ring_is_full(&r));
    assert_true(record_ring_has(&r, r.last));
    record_ring_release(&r, r.last);
    assert_false(record_ring_has(&r, r.last));
    append(&r);
    assert_true(record_ring_has(&r, r.last));
    r.keeps = false;
    while (r.first == r.last || record_ring_has(&r, 2))
        append(&r);
    record_ring_deinit(&r);
    channel_pool_deinit(&buffers);
}

#ifdef PS_FAULTS
static void without_memory_it_is_empty_and_goes_on(void **state)
{
    struct record_ring r;

    (void)state;
    record_ring_init(&r, &buffers, RING_BYTES, 0);
    for (int i = 0; i < 500; i++) {
        memory_fail_after(i % 7 == 0 ? 0 : -1);
        append(&r);
        memory_fail_after(-1);
        if (r.first <= r.last) {
            const struct record_ring_part part = record_ring_read(&r, r.last, 0);

            assert_part(&part, r.last, 0);
        }
    }
    assert_int_equal(r.last, 500);
    record_ring_deinit(&r);
    channel_pool_deinit(&buffers);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_has_what_was_appended_in_random_runs),
        cmocka_unit_test(one_whose_records_are_taken_counts_them_until_they_are_released),
        cmocka_unit_test(one_that_keeps_is_full_until_records_are_released),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_it_is_empty_and_goes_on),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
