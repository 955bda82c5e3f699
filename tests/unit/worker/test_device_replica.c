/* When a device gets the rows of a job's only worker, and when all stays as it is (worker/device_replica.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/far_device.h"
#include "worker/device_replica.h"

static bool refuse(struct param_store *s, uint32_t table, uint32_t n_places)
{
    (void)s, (void)table;
    assert_true(n_places > 0);
    return false;
}

static const struct param_store_ops plain = { 0 }, refuses = { .replicate = refuse };

static struct dlrm *new_model(const struct device_ops *ops)
{
    const struct dlrm_config config = {
        .n_fields = 2, .dim = 4, .batch_max = 8, .n_top = 1, .top = { 1 }
    };
    struct dlrm *model;
    struct err err;

    assert_int_equal(dlrm_new_on(ops, &config, &model, &err), 0);
    return model;
}

/* Nothing has changed: neither in the shape nor on the device. */
static void check_none(const struct device_ops *ops, const struct param_store_ops *store_ops,
                       const struct settings *s, const struct table_spec *spec)
{
    struct step_buffers_shape shape = { .model = new_model(ops), .encodes = true };
    struct param_store store = { .ops = store_ops };
    struct device_replica replica = { 0 };

    device_replica_open(&replica, s, &store, 0, spec, &shape);
    assert_null(replica.model);
    assert_false(shape.places);
    assert_int_equal(shape.n_states, 0);
    assert_false(dlrm_keeps_rows(shape.model));
    dlrm_free(shape.model);
}

static void without_a_reason_to_have_rows_the_device_has_none(void **state)
{
    static const struct far_device_plan plan = { .late = true };
    const struct settings usual = { .device_cache_bytes = 4096, .row_cache_bytes = 4096 },
                          off = { .row_cache_bytes = 4096 },
                          bf16 = { .device_cache_bytes = 4096,
                                   .row_cache_bytes = 4096,
                                   .pull_codec = CODEC_BF16 };
    const struct table_spec spec = { .dim = 4, .optim = TABLE_SPEC_ADAGRAD },
                            ftrl = { .dim = 4, .optim = TABLE_SPEC_FTRL };

    (void)state;
    check_none(far_device_ops(&device_cpu, &plan), &plain, &usual, &spec);
    check_none(far_device_ops(&device_cpu, &plan), &refuses, &off, &spec);
    check_none(far_device_ops(&device_cpu, &plan), &refuses, &bf16, &spec);
    check_none(far_device_ops(&device_cpu, &plan), &refuses, &usual, &ftrl);
    check_none(&device_cpu, &refuses, &usual, &spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_reason_to_have_rows_the_device_has_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
