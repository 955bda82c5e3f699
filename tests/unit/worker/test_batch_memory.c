/* Memory of feeds: given back, it is there for the next one. */
#include <pthread.h>

#include "tests/support/far_device.h"
#include "tests/unit/model/fixture.h"
#include "worker/batch_memory.h"

static const struct far_device_plan plan = { .late = true };
static const struct dlrm_config config = { .batch_max = 4, .n_fields = 2, .dim = 2 };

struct rig {
    struct dlrm *model;
    struct batch_memory *m;
    const struct batch_allocator *of;
};

static int set_up(void **state)
{
    struct rig *r = memory_alloc(sizeof *r);
    struct err err = { 0 };

    *state = r;
    if (dlrm_new_on(far_device_ops(&device_cpu, &plan), &config, &r->model, &err))
        fail_msg("%s", err.text);
    r->m = batch_memory_new(r->model);
    r->of = batch_memory_of_batches(r->m);
    return 0;
}

/* The far device ends the test if something is not freed. */
static int tear_down(void **state)
{
    struct rig *r = *state;

    batch_memory_free(r->m);
    dlrm_free(r->model);
    free(r);
    return 0;
}

static uint64_t n_allocs(void)
{
    return far_device_counts().n_host_allocs;
}

static uint8_t *take(const struct rig *r, size_t n_bytes)
{
    uint8_t *block = r->of->alloc(r->of->arg, n_bytes);

    assert_non_null(block);
    memset(block, 0x5a, n_bytes);
    return block;
}

static void give(const struct rig *r, void *block, size_t n_bytes)
{
    r->of->free(r->of->arg, block, n_bytes);
}

static void what_was_given_back_is_given_again(void **state)
{
    static const size_t sizes[] = { 1, 63, 64, 65, 4096, 4097, 1000000 };
    uint8_t *blocks[COUNT_OF(sizes)];
    const struct rig *r = *state;
    uint64_t n_before;

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        blocks[i] = take(r, sizes[i]);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) /* none overlaps another */
        for (size_t k = 0; k < sizes[i]; k += sizes[i] - 1 ? sizes[i] - 1 : 1)
            assert_int_equal(blocks[i][k], 0x5a);
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        give(r, blocks[i], sizes[i]);
    n_before = n_allocs();
    for (size_t i = COUNT_OF(sizes); i-- > 0;)
        blocks[i] = take(r, sizes[i]);
    assert_int_equal(n_allocs(), n_before);
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        give(r, blocks[i], sizes[i]);
}

static void a_block_fits_any_size_up_to_its_power_of_two(void **state)
{
    const struct rig *r = *state;
    uint8_t *block = take(r, 1025);
    uint64_t n_before = n_allocs();

    give(r, block, 1025);
    assert_ptr_equal(take(r, 2048), block);
    give(r, block, 2048);
    assert_int_equal(n_allocs(), n_before);
    block = take(r, 2049);
    assert_int_equal(n_allocs(), n_before + 1);
    give(r, block, 2049);
}

static void batches_come_and_go_without_asking_the_device(void **state)
{
    const struct rig *r = *state;
    uint64_t n_before = 0;

    for (uint32_t epoch = 0; epoch < 4; epoch++) {
        struct batch batches[3];

        for (size_t i = 0; i < COUNT_OF(batches); i++) {
            assert_int_equal(batch_init_in(&batches[i], r->of, 100, 13, 26), 0);
            assert_int_equal(batch_reserve_keys(&batches[i], 9000), 0);
        }
        if (epoch == 0)
            n_before = n_allocs();
        for (size_t i = 0; i < COUNT_OF(batches); i++)
            batch_deinit(&batches[i]);
    }
    assert_int_equal(n_allocs(), n_before);
}

static void memory_that_nobody_has_is_refused(void **state)
{
    const struct rig *r = *state;

    assert_null(r->of->alloc(r->of->arg, SIZE_MAX));
    assert_null(r->of->alloc(r->of->arg, ((size_t)1 << 47) + 1));
}

static void *come_and_go(void *arg)
{
    const struct rig *r = arg;

    for (size_t i = 1; i <= 2000; i++)
        give(r, take(r, 64 + i), 64 + i);
    return NULL;
}

static void threads_share_it(void **state)
{
    pthread_t threads[3];

    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, *state), 0);
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        pthread_join(threads[i], NULL);
}

#ifdef PS_FAULTS
static void no_memory_is_reported_and_pooled_buffers_are_still_used(void **state)
{
    const struct rig *r = *state;
    uint8_t *block = take(r, 500);

    give(r, block, 500);
    memory_fail_after(0);
    assert_ptr_equal(take(r, 400), block);
    assert_null(r->of->alloc(r->of->arg, 400));
    memory_fail_after(-1);
    give(r, block, 400);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_given_back_is_given_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_block_fits_any_size_up_to_its_power_of_two, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(batches_come_and_go_without_asking_the_device, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(memory_that_nobody_has_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(threads_share_it, set_up, tear_down),
#ifdef PS_FAULTS
        cmocka_unit_test_setup_teardown(no_memory_is_reported_and_pooled_buffers_are_still_used,
                                        set_up, tear_down),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
