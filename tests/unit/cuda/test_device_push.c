/* Whole models on the emulated GPU whose gradients leave encoded: the bytes, and the residuals, of the same steps whose floats
 * the CPU encodes. Both models are the GPU's, so the floats are the same. */
#include "tests/emu/rt.h"
#include "tests/unit/model/encoded.h"
#include "worker/cuda/device_cuda.h"

static uint64_t test_seed(void)
{
    const char *text = getenv("PS_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 10) : 4711;

    print_message("PS_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static void any_step_leaves_as_the_cpu_encodes_its_floats(void **state)
{
    const uint64_t seed = test_seed();
    uint32_t n_checked = 0;

    (void)state;
    for (uint64_t i = 0; i < 12; i++) {
        struct fixture_rng rng = { hash_mix2(seed, i), 0 };
        const struct dlrm_config config = encoded_config(&rng);
        struct encoded_run t;

        if (dlrm_config_check(&config, NULL))
            continue;
        emu_rt_seed(rng.seed);
        encoded_open(&t, &device_cuda, &device_cuda, &config, rng.seed);
        encoded_run(&t, ENCODED_STEPS);
        encoded_close(&t);
        assert_int_equal(emu_rt_alive(), 0);
        n_checked++;
    }
    assert_true(n_checked > 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_step_leaves_as_the_cpu_encodes_its_floats),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
