/* Steps through the contract, in buffer sets, under a scheduler that keeps nothing but what it must: as the CPU's; at once as one by
 * one; recorded as called. */
#include <pthread.h>

#include "tests/unit/cuda/buffer_sets.h"

enum { STEPS = 12, SEEDS = 6 };

static double loss_of(const struct step *s)
{
    return *(const double *)(const void *)s->at[STEP_LOSS];
}

/* How far all steps' output `a` is from the CPU's, of its norm. (A norm takes the mean away, so that the gradient of the
 * bias before it is 0 but for rounding: that one is held to the norm of 1.) */
static double distance(const struct step *got, const struct step *cpu, int a)
{
    double norm = a == STEP_DB2, off = 0;

    for (uint32_t i = 0; i < STEPS; i++)
        for (size_t k = 0; k < step_n_made(&got[i], a); k++) {
            const double want = (double)cpu[i].at[a][k];

            norm += want * want;
            off += ((double)got[i].at[a][k] - want) * ((double)got[i].at[a][k] - want);
        }
    return sqrt(off / norm);
}

static void check_against_cpu(const struct step *got, double tolerance)
{
    struct step cpu[STEPS];

    for (uint32_t i = 0; i < STEPS; i++) {
        cpu[i] = buffer_sets_copy(&got[i]);
        step_on_cpu(&cpu[i]);
        if (!(fabs(loss_of(&got[i]) - loss_of(&cpu[i])) <= tolerance * loss_of(&cpu[i])))
            fail_msg("loss is %.9g, want %.9g", loss_of(&got[i]), loss_of(&cpu[i]));
    }
    for (int a = 0; a < STEP_N_ARRAYS; a++)
        if (step_arrays[a].role == STEP_OUT && a != STEP_LOSS &&
            !(distance(got, cpu, a) <= tolerance))
            fail_msg("%s is %.3g off, of %.3g", step_arrays[a].name, distance(got, cpu, a),
                     tolerance);
    for (uint32_t i = 0; i < STEPS; i++)
        free(cpu[i].at[0]);
}

/* fp32 is held to what one op is. The others' rounding, through a whole step, turns a ReLU here and there. */
static void a_step_is_the_cpus_in_each_kind_of_products(void **state)
{
    static const struct {
        enum device_products products;
        double tolerance;
    } kinds[] = { { DEVICE_FP32, 1e-5 }, { DEVICE_TF32, 0.25 }, { DEVICE_BF16, 0.5 } };
    const uint64_t seed = rig_seed();

    (void)state;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        struct step *done =
            buffer_sets_one_by_one(seed, kinds[k].products, BUFFER_SETS_OWN_BAGS, STEPS);

        check_against_cpu(done, kinds[k].tolerance);
        buffer_sets_free(done, STEPS);
    }
}

static void steps_in_flight_end_in_the_bits_of_steps_one_by_one(void **state)
{
    const uint64_t first = rig_seed();

    (void)state;
    for (uint64_t seed = first; seed < first + SEEDS; seed++) {
        const enum device_products products = seed % 3 ? DEVICE_TF32 : DEVICE_BF16;
        struct step *want = buffer_sets_one_by_one(seed, products, BUFFER_SETS_OWN_BAGS, STEPS);
        struct buffer_sets s;

        buffer_sets_open(&s, seed, products);
        assert_int_equal(
            buffer_sets_at_once(&s, seed, seed % 2, BUFFER_SETS_OWN_BAGS, want, STEPS), 0);
        buffer_sets_close(&s);
        buffer_sets_free(want, STEPS);
    }
}

/* Whether of two steps the second one's copies are still to come when the wait for the first one is over. */
static bool is_left_under_way(uint64_t seed)
{
    float blank[STEP_N], *p;
    struct buffer_sets s;
    bool is_left;

    buffer_sets_open(&s, seed, DEVICE_FP32);
    p = s.host[1].at[STEP_P];
    for (uint32_t set = 0; set < 2; set++)
        buffer_sets_draw(&s.host[set], seed, set, BUFFER_SETS_OWN_BAGS);
    memset(blank, 0xff, sizeof blank);
    memcpy(p, blank, sizeof blank);
    for (uint32_t set = 0; set < 2; set++)
        (void)buffer_sets_start(&s, set, 0);
    rig_wait(&s.rig, 0);
    is_left = memcmp(p, blank, sizeof blank) == 0;
    rig_wait(&s.rig, 1);
    assert_memory_not_equal(p, blank, sizeof blank);
    buffer_sets_close(&s);
    return is_left;
}

/* Else no step would ever be under way beside another. */
static void a_wait_is_not_for_the_steps_behind_it(void **state)
{
    const uint64_t seed = rig_seed();
    uint32_t n_left = 0;

    (void)state;
    rig_needs_emulation();
    for (uint64_t i = 0; i < 10; i++)
        n_left += is_left_under_way(seed + i);
    print_message("left under way in %u of 10 orders\n", n_left);
    assert_true(n_left > 0);
}

static uint32_t wrong_without(int stream, uint64_t first)
{
    uint32_t n_wrong = 0;

    for (uint64_t seed = first; seed < first + 4; seed++) {
        struct step *want =
            buffer_sets_one_by_one(seed, DEVICE_FP32, BUFFER_SETS_SAME_BAGS, STEPS);
        struct buffer_sets s;

        buffer_sets_open(&s, seed, DEVICE_FP32);
        emu_rt_ignore_waits(stream);
        n_wrong += buffer_sets_at_once(&s, seed, seed % 2, BUFFER_SETS_SAME_BAGS, want, STEPS);
        emu_rt_run_all(); /* before memory is freed that is still copied to */
        buffer_sets_close(&s);
        buffer_sets_free(want, STEPS);
    }
    return n_wrong;
}

/* The three dependencies are needed: without any of them steps come out wrong. (Bags are the same in all steps, so that halves
 * of two steps are no bags that lead out of the arrays.) */
static void each_dependency_that_is_lost_is_seen(void **state)
{
    enum { HOST = -1, COMPUTE = 1, OUT = 2 };
    const uint64_t seed = rig_seed();

    (void)state;
    rig_needs_emulation();
    assert_true(wrong_without(COMPUTE, seed) > 0);
    assert_true(wrong_without(OUT, seed) > 0);
    assert_true(wrong_without(HOST, seed) > 0);
}

static void three_runs_end_in_the_same_bits(void **state)
{
    const uint64_t seed = rig_seed();
    struct step *first = buffer_sets_one_by_one(seed, DEVICE_TF32, BUFFER_SETS_OWN_BAGS, STEPS);

    (void)state;
    for (int run = 0; run < 2; run++) {
        struct step *again =
            buffer_sets_one_by_one(seed, DEVICE_TF32, BUFFER_SETS_OWN_BAGS, STEPS);

        for (uint32_t i = 0; i < STEPS; i++)
            assert_null(step_difference(&again[i], &first[i]));
        buffer_sets_free(again, STEPS);
    }
    buffer_sets_free(first, STEPS);
}

static bool start_and_wait(struct buffer_sets *s, uint32_t set, uint64_t key)
{
    bool recorded;

    buffer_sets_draw(&s->host[set], 1, key, BUFFER_SETS_OWN_BAGS);
    recorded = buffer_sets_start(s, set, key);
    rig_wait(&s->rig, set);
    return recorded;
}

static void ops_are_called_twice_and_then_recorded(void **state)
{
    struct buffer_sets s;

    (void)state;
    buffer_sets_open(&s, rig_seed(), DEVICE_FP32);
    for (uint32_t set = 0; set < 2; set++) {
        assert_false(start_and_wait(&s, set, 5));
        assert_false(start_and_wait(&s, set, 5));
        assert_true(start_and_wait(&s, set, 5));
        assert_false(start_and_wait(&s, set, 6));
        assert_true(start_and_wait(&s, set, 5));
        for (int i = 0; i < 4; i++)
            assert_false(start_and_wait(&s, set, 0));
    }
    buffer_sets_close(&s);
}

static void the_records_that_were_run_last_are_kept(void **state)
{
    enum { KEPT = 32 };
    struct buffer_sets s;

    (void)state;
    buffer_sets_open(&s, rig_seed(), DEVICE_FP32);
    for (int i = 0; i < 3; i++)
        assert_int_equal(start_and_wait(&s, 0, 1), i == 2);
    for (uint64_t key = 2; key <= KEPT; key++)
        assert_false(start_and_wait(&s, 0, key));
    assert_true(start_and_wait(&s, 0, 1));         /* all fit, and this is the newest */
    assert_false(start_and_wait(&s, 0, KEPT + 1)); /* in the place of 2 */
    assert_true(start_and_wait(&s, 0, 1));
    assert_false(start_and_wait(&s, 0, 2));
    assert_false(start_and_wait(&s, 0, 2)); /* not a first time that was forgotten again */
    assert_true(start_and_wait(&s, 0, 2));
    buffer_sets_close(&s);
}

/* Memory that has moved is in no record. */
static void records_are_made_anew_when_scratch_grows(void **state)
{
    const uint64_t seed = rig_seed();
    struct step *want = buffer_sets_one_by_one(seed, DEVICE_BF16, BUFFER_SETS_OWN_BAGS, STEPS);
    struct buffer_sets s;

    (void)state;
    buffer_sets_open(&s, seed, DEVICE_BF16);
    assert_int_equal(buffer_sets_at_once(&s, seed, 1, BUFFER_SETS_OWN_BAGS, want, STEPS), 0);
    assert_int_equal(ops->reserve(s.rig.c, 1000, 200, 300), 0);
    assert_int_equal(buffer_sets_at_once(&s, seed, 1, BUFFER_SETS_OWN_BAGS, want, STEPS), 0);
    buffer_sets_close(&s);
    buffer_sets_free(want, STEPS);
}

static void *take_pinned_memory(void *arg)
{
    struct rig *r = arg;
    void *memory = ops->host_alloc(r->c, 100);

    if (memory)
        ops->host_free(r->c, memory, 100);
    return memory;
}

/* The threads that pull and read grow what they fill whenever they need to: while a step is recorded, too. */
static void other_threads_get_pinned_memory_while_a_step_is_recorded(void **state)
{
    struct buffer_sets s;
    pthread_t other;
    void *got;

    (void)state;
    buffer_sets_open(&s, rig_seed(), DEVICE_FP32);
    assert_false(start_and_wait(&s, 0, 5));
    assert_false(ops->begin(s.rig.c, 0, 5));
    step_ops(ops, s.rig.c, &s.device[0]);
    assert_int_equal(pthread_create(&other, NULL, take_pinned_memory, &s.rig), 0);
    assert_int_equal(pthread_join(other, &got), 0);
    ops->end(s.rig.c, 0);
    assert_non_null(got);
    rig_wait(&s.rig, 0);
    assert_true(start_and_wait(&s, 0, 5)); /* nor did that spoil the record */
    buffer_sets_close(&s);
}

static void memory_is_zero_and_pinned_memory_too(void **state)
{
    struct rig r = rig_open(rig_seed(), DEVICE_FP32);
    float got[100], *host = ops->host_alloc(r.c, sizeof got);

    (void)state;
    rig_get(&r, got, rig_floats(&r, 100), 100);
    for (int i = 0; i < 100; i++)
        assert_true(got[i] == 0 && host[i] == 0);
    ops->host_free(r.c, host, sizeof got);
    rig_close(&r);
}

static void the_device_says_what_it_is(void **state)
{
    struct rig r;

    (void)state;
    rig_needs_emulation();
    r = rig_open(rig_seed(), DEVICE_TF32);
    assert_string_equal(ops->describe(r.c),
                        "cuda:0: emulated device, 1 GiB, TF32 products by cublasLt 13.1.0");
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_the_cpus_in_each_kind_of_products),
        cmocka_unit_test(steps_in_flight_end_in_the_bits_of_steps_one_by_one),
        cmocka_unit_test(a_wait_is_not_for_the_steps_behind_it),
        cmocka_unit_test(each_dependency_that_is_lost_is_seen),
        cmocka_unit_test(three_runs_end_in_the_same_bits),
        cmocka_unit_test(ops_are_called_twice_and_then_recorded),
        cmocka_unit_test(the_records_that_were_run_last_are_kept),
        cmocka_unit_test(records_are_made_anew_when_scratch_grows),
        cmocka_unit_test(other_threads_get_pinned_memory_while_a_step_is_recorded),
        cmocka_unit_test(memory_is_zero_and_pinned_memory_too),
        cmocka_unit_test(the_device_says_what_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
