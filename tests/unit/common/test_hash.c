#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/hash.h"

/* The first outputs of splitmix64 seeded with 1234567, as its author's C code prints them. */
static void mixing_a_counter_gives_splitmix64(void **state)
{
    static const uint64_t expected[] = { UINT64_C(6457827717110365317),
                                         UINT64_C(3203168211198807973),
                                         UINT64_C(9817491932198370423),
                                         UINT64_C(4593380528125082431),
                                         UINT64_C(16408922859458223821) };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(expected); i++)
        assert_true(hash_mix(1234567 + i * UINT64_C(0x9e3779b97f4a7c15)) == expected[i]);
}

static void an_input_bit_changes_half_of_the_output(void **state)
{
    uint64_t i;
    int bit, n_flipped;

    (void)state;
    for (bit = 0; bit < 64; bit++) {
        n_flipped = 0;
        for (i = 0; i < 1000; i++)
            n_flipped += __builtin_popcountll(hash_mix(i) ^ hash_mix(i ^ UINT64_C(1) << bit));
        assert_in_range(n_flipped, 31000, 33000);
    }
}

static void both_arguments_count(void **state)
{
    (void)state;
    assert_true(hash_mix2(1, 2) != hash_mix2(2, 1));
    assert_true(hash_mix2(1, 2) != hash_mix2(1, 3));
    assert_true(hash_mix2(1, 2) == hash_mix2(1, 2));
}

static void units_lie_in_0_to_1_and_are_even(void **state)
{
    double sum = 0;
    uint64_t i;
    float u;

    (void)state;
    for (i = 0; i < 100000; i++) {
        u = hash_unit(hash_mix(i));
        assert_true(u >= 0 && u < 1);
        sum += (double)u;
    }
    assert_true(fabs(sum / 100000 - 0.5) < 0.005);
    assert_true(hash_unit(0) == 0.0f);
    assert_true(hash_unit(UINT64_MAX) < 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixing_a_counter_gives_splitmix64),
        cmocka_unit_test(an_input_bit_changes_half_of_the_output),
        cmocka_unit_test(both_arguments_count),
        cmocka_unit_test(units_lie_in_0_to_1_and_are_even),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
