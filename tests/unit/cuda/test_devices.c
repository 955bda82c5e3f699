/* Several devices: which one is chosen, and that whatever thread calls works on it: its own current device is another one. */
#include <pthread.h>

#include "tests/unit/cuda/buffer_sets.h"

enum { KEYS = 40, STEPS = 4 }; /* called, recorded, run from the record, and again */

static int open_at(uint32_t number, bool wraps, struct compute **ret_c, struct err *err)
{
    return ops->open(&(struct device_options){ .n_threads = 1,
                                               .products = DEVICE_BF16,
                                               .place = { number, wraps } },
                     ret_c, err);
}

static void a_device_is_the_one_of_that_number_or_counted_around(void **state)
{
    static const struct {
        uint32_t number;
        bool wraps;
        const char *want;
    } cases[] = {
        { 0, false, "cuda:0: " }, { 1, false, "cuda:1: " }, { 0, true, "cuda:0: " },
        { 1, true, "cuda:1: " },  { 2, true, "cuda:0: " },  { 4294967295u, true, "cuda:1: " },
    };
    struct compute *c;
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        emu_rt_seed(1);
        assert_int_equal(open_at(cases[i].number, cases[i].wraps, &c, &err), 0);
        assert_memory_equal(ops->describe(c), cases[i].want, strlen(cases[i].want));
        ops->close(c);
    }
}

static void a_device_that_is_not_there_is_refused(void **state)
{
    struct compute *c;
    struct err err;

    (void)state;
    emu_rt_seed(1);
    assert_int_equal(open_at(2, false, &c, &err), PS_EDEVICE);
    assert_string_equal(err.text,
                        "cuda:2 is not there: the driver has 2 devices, cuda:0 to cuda:1");
    assert_int_equal(emu_rt_used_devices(), 0);
}

/* ---- each call by a thread of its own ---- */

struct work {
    uint32_t number;
    struct buffer_sets s;
    float *memory, *host;
    uint64_t n_made; /* steps */
    bool is_recorded;
    struct device_dedup *dedup;
    uint64_t keys[KEYS], unique[KEYS];
    uint32_t starts[KEYS + 1], row_of[KEYS], order[KEYS], order_starts[KEYS + 1], n_unique;
};

static void by_a_thread(struct work *w, void *(*call)(void *))
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, call, w), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void *open_device(void *arg)
{
    struct work *w = arg;
    struct err err;

    assert_int_equal(open_at(w->number, false, &w->s.rig.c, &err), 0);
    return NULL;
}

static void *reserve(void *arg)
{
    assert_int_equal(step_reserve(ops, ((struct work *)arg)->s.rig.c), 0);
    return NULL;
}

static void *alloc_host(void *arg)
{
    struct work *w = arg;

    w->host = ops->host_alloc(w->s.rig.c, step_bytes());
    assert_non_null(w->host);
    w->s.host[0] = step_in(w->host);
    return NULL;
}

static void *alloc_zeroed(void *arg)
{
    struct work *w = arg;

    w->memory = ops->memory_alloc_zeroed(w->s.rig.c, step_bytes());
    assert_non_null(w->memory);
    w->s.device[0] = step_in(w->memory);
    return NULL;
}

static void *alloc_and_free(void *arg)
{
    struct compute *c = ((struct work *)arg)->s.rig.c;
    void *memory = ops->memory_alloc(c, 100);

    assert_non_null(memory);
    ops->memory_free(c, memory, 100);
    return NULL;
}

static void *upload(void *arg)
{
    struct buffer_sets *s = &((struct work *)arg)->s;

    s->device[0].n_rows = s->host[0].n_rows;
    for (int a = 0; a < STEP_N_ARRAYS; a++)
        if (step_arrays[a].role == STEP_IN)
            ops->upload(s->rig.c, 0, s->device[0].at[a], s->host[0].at[a],
                        step_arrays[a].n_floats * sizeof(float));
    return NULL;
}

static void *compute(void *arg)
{
    struct work *w = arg;

    w->is_recorded = ops->begin(w->s.rig.c, 0, 1);
    if (!w->is_recorded)
        step_ops(ops, w->s.rig.c, &w->s.device[0]);
    ops->end(w->s.rig.c, 0);
    return NULL;
}

static void *download(void *arg)
{
    struct buffer_sets *s = &((struct work *)arg)->s;

    for (int a = 0; a < STEP_N_ARRAYS; a++)
        if (step_goes_out(a))
            ops->download(s->rig.c, 0, s->host[0].at[a], s->device[0].at[a],
                          step_arrays[a].n_floats * sizeof(float));
    return NULL;
}

static void *wait(void *arg)
{
    rig_wait(&((struct work *)arg)->s.rig, 0);
    return NULL;
}

static void *dedup_new(void *arg)
{
    struct work *w = arg;
    struct err err;

    assert_int_equal(ops->dedup_new(w->s.rig.c, &w->dedup, &err), 0);
    return NULL;
}

static void *dedup(void *arg)
{
    struct work *w = arg;
    const struct key_dedup k = { .n_keys = KEYS,
                                 .n_bags = KEYS,
                                 .n_fields = 1,
                                 .keys = w->keys,
                                 .starts = w->starts,
                                 .unique = w->unique,
                                 .row_of = w->row_of,
                                 .order = w->order,
                                 .order_starts = w->order_starts };
    struct err err;

    for (uint32_t i = 0; i < KEYS; i++)
        w->keys[i] = i * 7 % 11;
    assert_int_equal(ops->dedup(w->dedup, &k, &w->n_unique, &err), 0);
    assert_int_equal(w->n_unique, 11);
    return NULL;
}

static void *dedup_free(void *arg)
{
    ops->dedup_free(((struct work *)arg)->dedup);
    return NULL;
}

static void *free_memory(void *arg)
{
    struct work *w = arg;

    ops->memory_free(w->s.rig.c, w->memory, step_bytes());
    return NULL;
}

static void *free_host(void *arg)
{
    struct work *w = arg;

    ops->host_free(w->s.rig.c, w->host, step_bytes());
    return NULL;
}

static void *close_device(void *arg)
{
    ops->close(((struct work *)arg)->s.rig.c);
    return NULL;
}

/* Returns the host's side behind each step; the caller's to free. */
static struct step *make_steps(uint64_t seed, uint32_t number)
{
    struct step *done = memory_alloc(STEPS * sizeof *done);
    struct work w = { .number = number };

    emu_rt_seed(seed);
    by_a_thread(&w, open_device);
    by_a_thread(&w, reserve);
    by_a_thread(&w, alloc_zeroed);
    by_a_thread(&w, alloc_and_free);
    by_a_thread(&w, alloc_host);
    for (uint32_t i = 0; i < STEPS; i++) {
        buffer_sets_draw(&w.s.host[0], seed, i, BUFFER_SETS_SAME_BAGS);
        by_a_thread(&w, upload);
        by_a_thread(&w, compute);
        assert_int_equal(w.is_recorded, i > 1);
        by_a_thread(&w, download);
        by_a_thread(&w, wait);
        done[i] = buffer_sets_copy(&w.s.host[0]);
    }
    by_a_thread(&w, dedup_new);
    by_a_thread(&w, dedup);
    by_a_thread(&w, dedup_free);
    by_a_thread(&w, free_memory);
    by_a_thread(&w, free_host);
    by_a_thread(&w, close_device);
    assert_int_equal(emu_rt_alive(), 0);
    assert_int_equal(emu_rt_used_devices(), 1u << number);
    return done;
}

static void whatever_thread_calls_the_second_device_makes_the_bits_of_the_first(void **state)
{
    const uint64_t seed = rig_seed();
    struct step *want = make_steps(seed, 0), *got = make_steps(seed, 1);

    (void)state;
    for (uint32_t i = 0; i < STEPS; i++)
        assert_null(step_difference(&got[i], &want[i]));
    buffer_sets_free(want, STEPS);
    buffer_sets_free(got, STEPS);
}

/* ---- what the emulation finds ---- */

static void what_belongs_to_another_device_is_refused(void **state)
{
    cudaStream_t first, second;
    cudaEvent_t event;
    void *at_first, *at_second;

    (void)state;
    emu_rt_seed(1);
    assert_int_equal(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), 0);
    assert_int_equal(cudaMalloc(&at_first, 64), 0);
    assert_int_equal(emu_rt_used_devices(), 1);
    assert_int_equal(cudaSetDevice(1), 0);
    assert_int_equal(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), 0);
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), 0);
    assert_int_equal(cudaMalloc(&at_second, 64), 0);
    assert_int_equal(emu_rt_used_devices(), 3);

    assert_int_equal(cudaMemsetAsync(at_second, 0, 64, second), 0);
    assert_int_equal(cudaMemsetAsync(at_first, 0, 64, second), cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(at_second, 0, 64, first), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaEventRecord(event, first), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    assert_int_equal(cudaSetDevice(0), 0);
    assert_int_equal(cudaMemsetAsync(at_second, 0, 64, second), cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(at_first, 0, 64, first), 0);

    assert_int_equal(cudaStreamDestroy(first), 0);
    assert_int_equal(cudaStreamDestroy(second), 0);
    assert_int_equal(cudaEventDestroy(event), 0);
    assert_int_equal(cudaFree(at_first), 0);
    assert_int_equal(cudaFree(at_second), 0);
    assert_int_equal(emu_rt_alive(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_is_the_one_of_that_number_or_counted_around),
        cmocka_unit_test(a_device_that_is_not_there_is_refused),
        cmocka_unit_test(whatever_thread_calls_the_second_device_makes_the_bits_of_the_first),
        cmocka_unit_test(what_belongs_to_another_device_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
