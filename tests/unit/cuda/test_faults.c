/* The k-th call of CUDA or cublasLt fails, for every k: each failure is reported where the contract says, with a sentence, or it has
 * cost nothing; and all is given back. */
#include <errno.h>

#include "tests/support/share.h"
#include "tests/unit/cuda/buffer_sets.h"
#include "tests/unit/model/encoded.h"
#include "tests/unit/model/row_cache_world.h"

enum { STEPS = 3 }; /* called, recorded, run from the record */

struct trial {
    struct compute *c;
    float *host, *device;
    bool reported;
};

static void open_all(struct trial *t, enum device_products products)
{
    struct err err = { 0 };
    const int status = ops->open(
        &(struct device_options){ .n_threads = 1, .products = products }, &t->c, &err);

    t->reported = true;
    if (status) {
        assert_int_equal(status, PS_EDEVICE);
        assert_memory_equal(err.text, "cuda: ", 6);
        t->c = NULL;
        return;
    }
    t->device = ops->memory_alloc_zeroed(t->c, step_bytes());
    t->host = ops->host_alloc(t->c, step_bytes());
    if (t->device && t->host && !step_reserve(ops, t->c))
        t->reported = false;
}

static void close_all(struct trial *t)
{
    if (!t->c)
        return;
    if (t->device)
        ops->memory_free(t->c, t->device, step_bytes());
    if (t->host)
        ops->host_free(t->c, t->host, step_bytes());
    ops->close(t->c);
    assert_int_equal(emu_rt_alive(), 0);
}

/* Not bit for bit: a product that could not be fused is made otherwise. */
static void check(const struct step *got, const struct step *want)
{
    for (int a = 0; a < STEP_N_ARRAYS; a++) {
        const size_t n = step_n_made(want, a);
        double numbers[STEP_N * STEP_LD];

        if (step_arrays[a].role != STEP_OUT || a == STEP_LOSS || a == STEP_DB2)
            continue;
        for (size_t i = 0; i < n; i++)
            numbers[i] = (double)want->at[a][i];
        rig_near(step_arrays[a].name, got->at[a], numbers, n, 1e-2);
    }
}

/* Nothing is under way after a wait, also if that failed: what the host's side holds stays. */
static void check_finished(const struct trial *t)
{
    float *before = memory_alloc(step_bytes());

    memcpy(before, t->host, step_bytes());
    emu_rt_run_all();
    assert_memory_equal(before, t->host, step_bytes());
    free(before);
}

/* Until one step's failure is reported; those before it are right. */
static void run_steps(struct trial *t, uint64_t seed, const struct step *want)
{
    struct buffer_sets s = { .rig = { .c = t->c } };

    s.host[0] = step_in(t->host);
    s.device[0] = step_in(t->device);
    for (uint32_t i = 0; i < STEPS && !t->reported; i++) {
        int status;

        buffer_sets_draw(&s.host[0], seed, i, BUFFER_SETS_SAME_BAGS);
        (void)buffer_sets_start(&s, 0, 1);
        status = ops->wait(t->c, 0);
        t->reported = status != 0;
        check_finished(t);
        if (status) {
            assert_int_equal(status, PS_EDEVICE);
            assert_memory_equal(ops->failure(t->c), "cuda: ", 6);
        } else {
            check(&s.host[0], &want[i]);
        }
    }
}

/* Of one fault: that of a moment, or one after which nothing works. Returns how many k there are. */
static long fail_each(uint64_t seed, enum device_products products, enum emu_rt_fault fault,
                      const struct step *want)
{
    for (long k = share_first();; k += share_step()) {
        struct trial t = { 0 };
        bool failed;

        emu_rt_seed(seed);
        emu_rt_fail(k, fault);
        open_all(&t, products);
        if (!t.reported)
            run_steps(&t, seed, want);
        failed = emu_rt_has_failed();
        emu_rt_fail(-1, fault);
        close_all(&t);
        if (!failed) {
            assert_false(t.reported);
            return k;
        }
        if (fault == EMU_RT_EVER && !t.reported)
            fail_msg("no call reported that all has failed from call %ld on", k);
    }
}

static void each_call_that_fails_is_reported_or_costs_nothing(void **state)
{
    const uint64_t seed = rig_seed();
    struct step *want = buffer_sets_one_by_one(seed, DEVICE_BF16, BUFFER_SETS_SAME_BAGS, STEPS);
    const long n_calls = fail_each(seed, DEVICE_BF16, EMU_RT_ONCE, want);

    (void)state;
    print_message("%ld calls\n", n_calls);
    assert_true(n_calls > 200);
    assert_int_equal(fail_each(seed, DEVICE_BF16, EMU_RT_EVER, want), n_calls);
    buffer_sets_free(want, STEPS);
}

/* A whole model's, memory for encoded gradients and the wait included. */
static void each_call_that_fails_in_a_step_that_encodes_is_reported_too(void **state)
{
    static const struct dlrm_config config = { .batch_max = 8,
                                               .n_numeric = 2,
                                               .n_fields = 2,
                                               .dim = 4,
                                               .wide = true,
                                               .n_top = 1,
                                               .top = { 5 },
                                               .n_threads = 1 };
    bool failed = true;
    long k = 0;

    (void)state;
    for (; failed; k++) {
        struct encoded_run t;
        struct dlrm_step step;
        int status;

        emu_rt_seed(3);
        encoded_open(&t, &device_cuda, &device_cuda, &config, 9);
        step = encoded_prepare(&t, 0, 0);
        emu_rt_fail(k, EMU_RT_ONCE);
        status = dlrm_step(t.m, &step, &t.steps[0].f.loss);
        failed = emu_rt_has_failed();
        emu_rt_fail(-1, EMU_RT_ONCE);
        if (status)
            assert_true(failed && (status == PS_EDEVICE || status == -ENOMEM));
        else if (!failed)
            assert_memory_equal(t.steps[0].bytes, t.steps[0].want, t.steps[0].n_bytes);
        encoded_free_step(&t, &t.steps[0]);
        encoded_close(&t);
        assert_int_equal(emu_rt_alive(), 0);
    }
    print_message("%ld calls\n", k - 1);
    assert_true(k > 40);
}

/* Steps of other buffer sets go on. */
static void a_failure_is_reported_once_and_by_its_buffer_set_alone(void **state)
{
    const uint64_t seed = rig_seed();
    struct step *want = buffer_sets_one_by_one(seed, DEVICE_FP32, BUFFER_SETS_OWN_BAGS, 2);
    struct buffer_sets s;

    (void)state;
    buffer_sets_open(&s, seed, DEVICE_FP32);
    for (uint32_t set = 0; set < 2; set++) {
        buffer_sets_draw(&s.host[set], seed, set, BUFFER_SETS_OWN_BAGS);
        if (set == 0)
            emu_rt_fail(0, EMU_RT_ONCE); /* a copy */
        (void)buffer_sets_start(&s, set, 0);
    }
    assert_int_equal(ops->wait(s.rig.c, 0), PS_EDEVICE);
    assert_non_null(strstr(ops->failure(s.rig.c), "cudaErrorIllegalAddress"));
    assert_int_equal(ops->wait(s.rig.c, 0), 0);
    assert_int_equal(ops->wait(s.rig.c, 1), 0);
    assert_null(step_difference(&s.host[1], &want[1]));
    buffer_sets_close(&s);
    buffer_sets_free(want, 2);
}

/* A record that k calls after the second begin() fails: whether steps are called for ever then. */
static bool is_never_recorded(uint64_t seed, long k)
{
    struct buffer_sets s;
    bool recorded;

    buffer_sets_open(&s, seed, DEVICE_FP32);
    for (int i = 0; i < 4; i++) {
        buffer_sets_draw(&s.host[0], seed, 0, BUFFER_SETS_OWN_BAGS);
        emu_rt_fail(i == 1 ? k : -1, EMU_RT_ONCE);
        recorded = buffer_sets_start(&s, 0, 1);
        assert_true(i > 1 || !recorded);
        (void)ops->wait(s.rig.c, 0);
    }
    emu_rt_fail(-1, EMU_RT_ONCE);
    buffer_sets_close(&s);
    return !recorded;
}

static void a_record_that_failed_is_not_tried_again(void **state)
{
    const uint64_t seed = rig_seed();
    long n_never = 0;

    (void)state;
    for (long k = 0; k < 130; k++)
        n_never += is_never_recorded(seed, k);
    print_message("%ld calls of 130 are a record's\n", n_never);
    assert_true(n_never > 30 && n_never < 100);
}

/* Of steps that were made: how many have row gradients that are further off than any rounding. */
static uint32_t n_far(const struct world *w, const struct world_end *got,
                      const struct world_end *want)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < WORLD_STEPS; i++) {
        double norm = 0, off = 0;

        for (size_t k = 0; k < (size_t)w->steps[i].batch.n_unique * w->config.dim; k++) {
            const double d = (double)got->row_grads[i][k] - (double)want->row_grads[i][k];

            norm += (double)want->row_grads[i][k] * (double)want->row_grads[i][k];
            off += d * d;
        }
        n += !got->status[i] && !(sqrt(off) <= 1e-4 * sqrt(norm));
    }
    return n;
}

/* Not bit for bit: a product that could not be fused is made otherwise. Also the kernel's launch, and a copy of what stays where: what was not told has the right bits, and so has all that
 * begins later. */
static void rows_that_stay_are_right_whatever_call_has_failed(void **state)
{
    const struct world_way copies = { .ops = ops }, keeps = { .ops = ops, .keeps = true };
    const uint64_t seed = rig_seed();
    struct world_end want, got;
    uint32_t n_reported = 0;
    bool failed = true;
    struct world w;

    (void)state;
    world_init(&w, 8, WORLD_KEYS, seed);
    emu_rt_seed(seed);
    assert_true(world_play(&w, &copies, &want));
    /* Each call of the beginning; then steps repeat each other's calls, and some are drawn. */
    for (long k = share_first(); failed;
         k += share_step() * (k < 300 ? 1 : 1 + (long)(hash_mix2(seed, (uint64_t)k) % 9))) {
        emu_rt_seed(seed);
        emu_rt_fail(k, EMU_RT_ONCE);
        if (world_play(&w, &keeps, &got)) {
            assert_int_equal(n_far(&w, &got, &want), 0);
            assert_true(world_n_failed(&got) <= DLRM_BUFFER_SETS);
            n_reported += world_n_failed(&got);
            world_end_free(&got);
        }
        failed = emu_rt_has_failed();
        emu_rt_fail(-1, EMU_RT_ONCE);
        assert_int_equal(emu_rt_alive(), 0);
    }
    assert_true(n_reported > 10 * WORLD_STEPS / share_step());
    world_end_free(&want);
    world_deinit(&w);
}

static void memory_that_there_is_not_is_no_memory(void **state)
{
    struct rig r = rig_open(rig_seed(), DEVICE_TF32);

    (void)state;
    emu_rt_fail(0, EMU_RT_EVER);
    assert_null(ops->memory_alloc(r.c, 100));
    assert_null(ops->memory_alloc_zeroed(r.c, 100));
    assert_null(ops->host_alloc(r.c, 100));
    assert_true(ops->reserve(r.c, 100, 13, 17) < 0);
    emu_rt_fail(-1, EMU_RT_EVER);
    rig_close(&r);
}

static void a_machine_without_a_gpu_is_reported(void **state)
{
    struct compute *c;
    struct err err;

    (void)state;
    emu_rt_seed(1);
    emu_rt_fail(0, EMU_RT_EVER);
    assert_int_equal(
        ops->open(&(struct device_options){ .n_threads = 1, .products = DEVICE_FP32 }, &c,
                  &err),
        PS_EDEVICE);
    assert_string_equal(err.text,
                        "cuda: looking for a GPU: cudaErrorInsufficientDriver: "
                        "CUDA driver version is insufficient for CUDA runtime version");
    emu_rt_fail(-1, EMU_RT_EVER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_that_fails_is_reported_or_costs_nothing),
        cmocka_unit_test(each_call_that_fails_in_a_step_that_encodes_is_reported_too),
        cmocka_unit_test(a_failure_is_reported_once_and_by_its_buffer_set_alone),
        cmocka_unit_test(a_record_that_failed_is_not_tried_again),
        cmocka_unit_test(rows_that_stay_are_right_whatever_call_has_failed),
        cmocka_unit_test(memory_that_there_is_not_is_no_memory),
        cmocka_unit_test(a_machine_without_a_gpu_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
