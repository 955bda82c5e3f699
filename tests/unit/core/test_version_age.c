/* "Not pushed for so long", against a reference that remembers every note. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/hash.h"
#include "server/core/version_age.h"

#define N_NOTES 20000u

struct reference {
    uint64_t span;
    uint32_t n;
    struct version_age_mark notes[N_NOTES];
};

/* The greatest version that had come a span and `grace` before now. */
static uint64_t reference_version(const struct reference *t, uint64_t now, uint64_t grace)
{
    uint64_t version = 0;

    for (uint32_t i = t->n; i-- > 0;)
        if (t->notes[i].value + t->span + grace <= now) {
            version = t->notes[i].version;
            break;
        }
    return version;
}

static void a_horizon_is_never_early_and_at_most_a_32nd_late(void **state)
{
    const uint64_t seed = 20240601;
    struct reference *t = malloc(sizeof *t);

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 60; round++) {
        struct version_age h = { .span =
                                     1 + hash_mix2(seed, round) % (round < 20 ? 70 : 100000) };
        uint64_t value = round % 3 ? 0 : hash_mix(round) >> 4, version = 0;
        uint64_t stride = 1 + hash_mix2(round, 1) % (h.span / 8 + 2);

        t->span = h.span;
        t->n = 0;
        for (uint32_t i = 0; i < 3000; i++) {
            uint64_t r = hash_mix2(hash_mix2(seed, round), i), got;

            value += r % 50 == 0 ? h.span : r % 3 == 0 ? 0 : r % stride;
            version += (r >> 20) % 4;
            t->notes[t->n++] = (struct version_age_mark){ value, version };
            version_age_note(&h, value, version);
            got = version_age_version(&h, value);
            assert_true(got <= reference_version(t, value, 0));
            assert_true(got >= reference_version(t, value, h.span / 32));
        }
    }
    free(t);
}

static void what_is_older_than_the_first_note_is_not_known(void **state)
{
    struct version_age h = { .span = 100 };

    (void)state;
    assert_int_equal(version_age_version(&h, 1000000), 0);
    version_age_note(&h, 5000,
                     77); /* the first after a restart: 77 pushes came, who knows when */
    assert_int_equal(version_age_version(&h, 5000), 0);
    assert_int_equal(version_age_version(&h, 5099), 0);
    assert_int_equal(version_age_version(&h, 5100), 77);
}

static void a_span_of_0_is_never_over(void **state)
{
    struct version_age h = { .span = 0 };

    (void)state;
    for (uint64_t i = 1; i < 1000; i++) {
        version_age_note(&h, i, i);
        assert_int_equal(version_age_version(&h, i), 0);
    }
}

static void time_without_pushes_makes_no_marks(void **state)
{
    struct version_age h = { .span = 320 };

    (void)state;
    version_age_note(&h, 0, 9);
    for (uint64_t now = 1; now < 100000; now++)
        version_age_note(&h, now, 9);
    assert_int_equal(h.n_marks, 1);
    assert_int_equal(version_age_version(&h, 319), 0);
    assert_int_equal(version_age_version(&h, 320), 9);
}

static void a_span_beyond_all_clocks_is_never_over(void **state)
{
    struct version_age h = { .span = UINT64_MAX };

    (void)state;
    for (uint64_t i = 1; i < 100; i++) {
        version_age_note(&h, i << 55, i);
        assert_int_equal(version_age_version(&h, i << 55), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_horizon_is_never_early_and_at_most_a_32nd_late),
        cmocka_unit_test(what_is_older_than_the_first_note_is_not_known),
        cmocka_unit_test(a_span_of_0_is_never_over),
        cmocka_unit_test(time_without_pushes_makes_no_marks),
        cmocka_unit_test(a_span_beyond_all_clocks_is_never_over),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
