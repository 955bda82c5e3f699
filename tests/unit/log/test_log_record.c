/* Records and their bytes. */
#include "tests/unit/log/fixture.h"

#define N_SEEDS 300u

static uint8_t *encoded(uint64_t seed, size_t *ret_bytes)
{
    static struct fixture_room room;
    struct log_record r = fixture_record(&room, seed);
    uint8_t *bytes;

    *ret_bytes = log_record_bytes(&r);
    bytes = malloc(*ret_bytes);
    r.number = seed;
    log_record_encode(bytes, &r);
    assert_int_equal(log_record_seal(bytes), *ret_bytes);
    return bytes;
}

static void what_is_encoded_is_decoded(void **state)
{
    static struct log_record_room room;
    uint32_t n_of[SHARD_EVENT_TYPE_END] = { 0 };

    (void)state;
    for (uint64_t seed = 1; seed < N_SEEDS; seed++) {
        struct log_record got;
        struct err reason;
        size_t n_bytes, used;
        uint8_t *bytes = encoded(seed, &n_bytes);

        assert_int_equal(n_bytes % 8, 0);
        assert_null(log_record_decode(bytes, n_bytes, &room, &got, &used, &reason));
        assert_int_equal(used, n_bytes);
        assert_true(fixture_is(&got, seed, seed));
        n_of[got.event.type]++;
        free(bytes);
    }
    for (enum shard_event_type type = 0; type < SHARD_EVENT_TYPE_END; type++) {
        assert_true(n_of[type] > 5);
        assert_string_not_equal(log_record_name(type), "unknown");
    }
    assert_string_equal(log_record_name(SHARD_EVENT_TYPE_END), "unknown");
}

static void every_damaged_byte_and_cut_is_refused(void **state)
{
    static struct log_record_room room;

    (void)state;
    for (uint64_t seed = 1; seed < 40; seed++) {
        struct log_record got;
        struct err reason;
        size_t n_bytes, used;
        uint8_t *bytes = encoded(seed, &n_bytes), *cut;

        for (size_t i = 0; i < n_bytes; i++) {
            bytes[i] ^= (uint8_t)(1u << seed % 8);
            assert_non_null(log_record_decode(bytes, n_bytes, &room, &got, &used, &reason));
            bytes[i] ^= (uint8_t)(1u << seed % 8);
        }
        for (size_t n = 0; n < n_bytes; n++) {
            cut = malloc(n ? n : 1);
            memcpy(cut, bytes, n);
            assert_non_null(log_record_decode(cut, n, &room, &got, &used, &reason));
            free(cut);
        }
        free(bytes);
    }
}

/* With a right checksum, as a writer with a mistake would leave it: any byte may say anything. */
static void a_record_of_nonsense_under_a_right_checksum_is_refused_or_safe(void **state)
{
    static struct log_record_room room;
    uint32_t n_refused = 0, n_taken = 0;

    (void)state;
    for (uint64_t seed = 1; seed < 60; seed++) {
        size_t n_bytes, used;
        uint8_t *bytes = encoded(seed, &n_bytes);

        for (size_t i = 8; i < n_bytes && i < 300; i++)
            for (unsigned m = 0; m < 3; m++) {
                const uint8_t was = bytes[i], to[] = { 0xff, 0, (uint8_t)(was + 1) };
                struct log_record got;
                struct err reason;

                bytes[i] = to[m];
                (void)log_record_seal(bytes);
                if (log_record_decode(bytes, n_bytes, &room, &got, &used, &reason)) {
                    n_refused++;
                } else {
                    n_taken++;
                    assert_int_equal(log_record_bytes(&got), n_bytes);
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
        cmocka_unit_test(every_damaged_byte_and_cut_is_refused),
        cmocka_unit_test(a_record_of_nonsense_under_a_right_checksum_is_refused_or_safe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
