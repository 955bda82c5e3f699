/* A model on both emulated devices of which one fails: a sentence that names it, and the steps after it. */
#include <errno.h>
#include <math.h>

#include "tests/emu/rt.h"
#include "tests/unit/model/fixture.h"
#include "worker/cuda/device_cuda.h"

static const struct dlrm_config small = { .batch_max = 9,
                                          .n_numeric = 3,
                                          .n_fields = 3,
                                          .dim = 8,
                                          .n_top = 1,
                                          .top = { 16 },
                                          .seed = 3,
                                          .n_threads = 1,
                                          .n_devices = 2,
                                          .devices = { 1, 0 } };

static void its_devices_are_used_and_named(void **state)
{
    struct dlrm *m;

    (void)state;
    emu_rt_seed(1);
    assert_int_equal(device_cuda.count(), 2);
    assert_int_equal(dlrm_new_on(&device_cuda, &small, &m, NULL), 0);
    assert_int_equal(emu_rt_used_devices(), 3);
    assert_non_null(
        strstr(dlrm_device(m), "; each batch is divided among 2 devices: cuda:1, cuda:0"));
    dlrm_free(m);
    assert_int_equal(emu_rt_alive(), 0);
}

static void a_device_that_is_not_there_is_named(void **state)
{
    struct dlrm_config config = small;
    struct dlrm *m;
    struct err err;

    (void)state;
    emu_rt_seed(1);
    config.devices[1] = 7;
    assert_int_equal(dlrm_new_on(&device_cuda, &config, &m, &err), PS_EDEVICE);
    assert_string_equal(err.text,
                        "cuda:7 is not there: the driver has 2 devices, cuda:0 to cuda:1");
    assert_int_equal(emu_rt_alive(), 0);
}

/* Each call of a step in turn; the step after it is whole. */
static void each_call_that_fails_is_reported_with_its_device(void **state)
{
    uint32_t n_first = 0, n_second = 0;
    bool failed = true;
    long k = 0;

    (void)state;
    for (; failed; k++) {
        struct fixture_rng rng = { 7, 0 };
        struct fixture f;
        struct dlrm_step step;
        struct err err;
        double loss, want;
        int status;

        emu_rt_seed(3);
        fixture_init_on(&f, &device_cuda, &small, small.batch_max, &rng);
        step = fixture_step_of(&f, 0);
        fixture_must(f.m, dlrm_step(f.m, &step, &want)); /* makes plans of products */
        emu_rt_fail(k, EMU_RT_ONCE);
        status = dlrm_step(f.m, &step, &loss);
        failed = emu_rt_has_failed();
        emu_rt_fail(-1, EMU_RT_ONCE);
        if (status == PS_EDEVICE) {
            assert_true(failed && isnan(loss));
            (void)dlrm_failed(f.m, status, &err);
            assert_non_null(strstr(err.text, ": cuda"));
            n_first += strncmp(err.text, "the model on cuda:1: ", 21) == 0;
            n_second += strncmp(err.text, "the model on cuda:0: ", 21) == 0;
        } else {
            assert_true(status ? failed && status == -ENOMEM : loss == want);
        }
        step.keeps_dense = true;
        fixture_must(f.m, dlrm_step(f.m, &step, &f.loss));
        assert_true(f.loss == want);
        fixture_deinit(&f);
        assert_int_equal(emu_rt_alive(), 0);
    }
    print_message("%ld calls, %u of the first device, %u of the second\n", k - 1, n_first,
                  n_second);
    assert_true(n_first > 30 && n_second > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_devices_are_used_and_named),
        cmocka_unit_test(a_device_that_is_not_there_is_named),
        cmocka_unit_test(each_call_that_fails_is_reported_with_its_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
