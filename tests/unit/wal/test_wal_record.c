/* Records and their bytes. */
#include "tests/unit/wal/fixture.h"

#include "common/crc32c.h"
#include "common/hash.h"

#define N_SEEDS 300u

static uint8_t *encoded(uint64_t seed, size_t *ret_bytes)
{
    static struct fixture_storage storage;
    struct wal_record r = fixture_record(&storage, seed);
    const uint32_t before = (uint32_t)seed;
    uint32_t crc = before;
    uint8_t *bytes;

    *ret_bytes = wal_record_bytes(&r);
    bytes = malloc(*ret_bytes);
    r.number = seed;
    wal_record_encode(bytes, &r);
    assert_int_equal(wal_record_seal(bytes, &crc), *ret_bytes);
    assert_int_equal(crc, crc32c_extend(before, bytes, *ret_bytes));
    return bytes;
}

/* Of every length around that from which a record's own crc is combined into the block's, and of some MiB. */
static void the_crc_of_a_block_is_that_of_all_its_records(void **state)
{
    static const size_t sizes[] = { 1, 16000, 16290, 16301, 16313, 16384, 70003, 3000001 };
    uint8_t *values = calloc(1, 3000001);
    uint32_t crc = 0, expected = 0;

    (void)state;
    for (size_t i = 0; i < 3000001; i++)
        values[i] = (uint8_t)hash_mix(i);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const struct push push = {
            .n_sections = 1, .sections[0] = { .values = values, .value_bytes = sizes[i] }
        };
        const struct wal_record r = {
            .number = i + 1,
            .event = { .type = SHARD_EVENT_PUSH, .push = { .worker.job = "j", .push = &push } }
        };
        size_t n_bytes = wal_record_bytes(&r);
        uint8_t *bytes = malloc(n_bytes);

        wal_record_encode(bytes, &r);
        assert_int_equal(wal_record_seal(bytes, &crc), n_bytes);
        expected = crc32c_extend(expected, bytes, n_bytes);
        assert_int_equal(crc, expected);
        free(bytes);
    }
    free(values);
}

static void what_is_encoded_is_decoded(void **state)
{
    static struct wal_record_storage storage;
    uint32_t n_of[SHARD_EVENT_TYPE_END] = { 0 };

    (void)state;
    for (uint64_t seed = 1; seed < N_SEEDS; seed++) {
        struct wal_record got;
        struct err reason;
        size_t n_bytes, used;
        uint8_t *bytes = encoded(seed, &n_bytes);

        assert_int_equal(n_bytes % 8, 0);
        assert_null(wal_record_decode(bytes, n_bytes, &storage, &got, &used, &reason));
        assert_int_equal(used, n_bytes);
        assert_true(fixture_is(&got, seed, seed));
        n_of[got.event.type]++;
        free(bytes);
    }
    for (enum shard_event_type type = 0; type < SHARD_EVENT_TYPE_END; type++) {
        assert_true(n_of[type] > 5);
        assert_string_not_equal(wal_record_name(type), "unknown");
    }
    assert_string_equal(wal_record_name(SHARD_EVENT_TYPE_END), "unknown");
}

static void every_damaged_byte_and_truncation_is_refused(void **state)
{
    static struct wal_record_storage storage;

    (void)state;
    for (uint64_t seed = 1; seed < 40; seed++) {
        struct wal_record got;
        struct err reason;
        size_t n_bytes, used;
        uint8_t *bytes = encoded(seed, &n_bytes), *truncated;

        for (size_t i = 0; i < n_bytes; i++) {
            bytes[i] ^= (uint8_t)(1u << seed % 8);
            assert_non_null(wal_record_decode(bytes, n_bytes, &storage, &got, &used, &reason));
            bytes[i] ^= (uint8_t)(1u << seed % 8);
        }
        for (size_t n = 0; n < n_bytes; n++) {
            truncated = malloc(n ? n : 1);
            memcpy(truncated, bytes, n);
            assert_non_null(wal_record_decode(truncated, n, &storage, &got, &used, &reason));
            free(truncated);
        }
        free(bytes);
    }
}

/* With a right checksum, as a writer with a mistake would leave it: any byte may say anything. */
static void a_record_of_nonsense_under_a_right_checksum_is_refused_or_safe(void **state)
{
    static struct wal_record_storage storage;
    uint32_t n_refused = 0, n_taken = 0;

    (void)state;
    for (uint64_t seed = 1; seed < 60; seed++) {
        size_t n_bytes, used;
        uint8_t *bytes = encoded(seed, &n_bytes);

        for (size_t i = 8; i < n_bytes && i < 300; i++)
            for (unsigned m = 0; m < 3; m++) {
                const uint8_t was = bytes[i], to[] = { 0xff, 0, (uint8_t)(was + 1) };
                struct wal_record got;
                struct err reason;
                uint32_t crc = 0;

                bytes[i] = to[m];
                (void)wal_record_seal(bytes, &crc);
                if (wal_record_decode(bytes, n_bytes, &storage, &got, &used, &reason)) {
                    n_refused++;
                } else {
                    n_taken++;
                    assert_int_equal(wal_record_bytes(&got), n_bytes);
                }
                bytes[i] = was;
            }
        free(bytes);
    }
    assert_true(n_refused > 1000 && n_taken > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_encoded_is_decoded),
        cmocka_unit_test(the_crc_of_a_block_is_that_of_all_its_records),
        cmocka_unit_test(every_damaged_byte_and_truncation_is_refused),
        cmocka_unit_test(a_record_of_nonsense_under_a_right_checksum_is_refused_or_safe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
