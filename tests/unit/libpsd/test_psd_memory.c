/*
 * A program of a stranger whose memory is out, for one allocation after the other: the k-th of all that libpsd makes,
 * on whatever thread. The process lives, a call that finds none says so and has done nothing, a connection that finds
 * none is made again, and each push arrives once.
 */
#include <limits.h>
#include <unistd.h>

#include "common/memory.h"
#include "proto/frame.h"
#include "tests/unit/client/fixture.h"
#include "worker/libpsd/psd.h"

#define SPEC "dim=4 optimizer=sgd lr=0.1 init=zero"
#define TRIES_MAX 40

#ifdef PS_FAULTS

/* What one run of a little job has met. */
struct run {
    char url[64];
    psd *c;
    uint32_t table;
    uint64_t keys[N_KEYS];
    float rows[N_KEYS * FAKE_DIM], want[N_KEYS * FAKE_DIM];
    long n_refused; /* calls that found no memory */
};

/* True: the call is to be made again, as it has found no memory. */
static bool found_none(struct run *r, int64_t result, const char *call)
{
    if (result >= 0)
        return false;
    if (result != -ENOMEM || !psd_error()[0])
        fail_msg("%s: %lld, %s", call, (long long)result, psd_error());
    r->n_refused++;
    return true;
}

/* Until it finds memory. */
#define AGAIN(r, result, call)                                          \
    do {                                                                \
        int tries_ = 0;                                                 \
                                                                        \
        while (found_none(r, (result) = (call), #call))                 \
            if (++tries_ == TRIES_MAX)                                  \
                fail_msg("%s finds no memory %d times", #call, tries_); \
    } while (0)

static int64_t open_and_ask(struct run *r)
{
    char why[PSD_WHY_MAX] = "";
    int status = psd_open(&r->c, r->url, "give-up=30s", why);

    if (status)
        assert_true(why[0]);
    return status;
}

static psd_rows section_of(struct run *r)
{
    return (psd_rows){ .size = sizeof(psd_rows),
                       .table = r->table,
                       .n = N_KEYS,
                       .keys = r->keys,
                       .rows = r->rows };
}

/* A pull whose answer finds no memory has ended. */
static int64_t pull_and_wait(struct run *r, uint32_t step)
{
    psd_rows rows = section_of(r);
    psd_op op = 0;
    int status = psd_pull(r->c, step, &rows, 1, &op);

    return status ? status : psd_wait(r->c, op, 30000);
}

static void do_step(struct run *r, uint32_t step)
{
    psd_rows rows = section_of(r);
    int64_t result;

    AGAIN(r, result, pull_and_wait(r, step));
    assert_memory_equal(r->rows, r->want, sizeof r->rows);
    values_of_step(step, r->rows);
    for (uint32_t i = 0; i < N_KEYS * FAKE_DIM; i++)
        r->want[i] += r->rows[i];
    AGAIN(r, result, psd_push(r->c, step, 8, PSD_TICK, &rows, 1));
}

/* Each function that waits for servers. */
static void do_job(struct run *r)
{
    uint64_t ids[3] = { 9, 2, 9 }, unique[3], numbers[1];
    int64_t result;

    memcpy(r->keys, keys, sizeof keys);
    AGAIN(r, result, open_and_ask(r));
    AGAIN(r, result, psd_table(r->c, "other", SPEC));
    AGAIN(r, result, psd_table(r->c, "emb", SPEC));
    r->table = (uint32_t)result;
    assert_int_equal(r->table, 1);
    AGAIN(r, result, psd_unique(r->c, ids, 3, unique, NULL));
    assert_int_equal(result, 2);
    for (uint32_t step = 0; step < N_STEPS; step++)
        do_step(r, step);
    AGAIN(r, result, psd_flush(r->c, 30000));
    AGAIN(r, result, psd_checkpoint(r->c, numbers, 1, 30000));
    assert_int_equal(numbers[0], 7);
    AGAIN(r, result, psd_leave(r->c, 30000));
}

/* n_fail allocations from the k-th on fail. Returns how many did. */
static long fail_at(const struct fake_plan *plan, long k, long n_fail, long *ret_refused)
{
    struct run r = { 0 };
    struct fake *f = fake_start(plan);
    char address[32];
    long n_failed;

    fake_address(f, address);
    snprintf(r.url, sizeof r.url, "psd://%s/j", address);
    memory_fail_anywhere(k, n_fail);
    do_job(&r);
    n_failed = memory_n_failed_anywhere();
    memory_fail_anywhere(-1, 0);
    assert_int_equal(psd_close(r.c), 0);
    fake_stop(f);
    check_applied_once(f);
    fake_free(f);
    *ret_refused += r.n_refused;
    return n_failed;
}

static void fail_everywhere(const struct fake_plan *plan, long n_fail, long stride)
{
    long n_refused = 0, k = 0;

    while (fail_at(plan, k, n_fail, &n_refused))
        k += stride;
    printf("%ld allocations, %ld calls found no memory\n", k, n_refused);
    assert_true(k > 50);
    assert_true(n_refused > 10);
    assert_true(n_refused < k * n_fail); /* the others were a connection's */
}

#define ADMIN "{\"number\":7}"

static void each_allocation_of_each_thread_may_fail(void **state)
{
    (void)state;
    fail_everywhere(&(struct fake_plan){ .n_shards = 2, .fault_at = -1, .admin = ADMIN }, 1, 1);
}

static void several_may_fail_while_a_connection_breaks(void **state)
{
    (void)state;
    fail_everywhere(&(struct fake_plan){ .n_shards = 2,
                                         .fault = FAKE_DROP_AFTER,
                                         .fault_at = 3,
                                         .fault_type = FRAME_PUSH,
                                         .admin = ADMIN },
                    3, 4);
}

/* As long as there is no memory the network thread cannot connect. What was pushed before is not lost. */
static void a_drought_is_survived(void **state)
{
    struct fake *f = fake_start(&(struct fake_plan){
        .n_shards = 2, .fault = FAKE_DROP_BEFORE, .fault_at = 2, .fault_type = FRAME_PUSH });
    struct run r = { 0 };
    psd_rows rows;
    psd_stats stats = { .size = sizeof stats };
    char address[32];

    (void)state;
    fake_address(f, address);
    snprintf(r.url, sizeof r.url, "psd://%s/j", address);
    memcpy(r.keys, keys, sizeof keys);
    assert_int_equal(open_and_ask(&r), 0);
    r.table = (uint32_t)psd_table(r.c, "emb", SPEC);
    rows = section_of(&r);
    for (uint32_t step = 0; step < N_STEPS; step++) {
        psd_op op;

        values_of_step(step, r.rows);
        assert_int_equal(psd_push(r.c, step, 8, PSD_TICK, &rows, 1), 0);
        if (step != 1)
            continue;
        memory_fail_anywhere(0, LONG_MAX); /* its frames may have left */
        while (!memory_n_failed_anywhere())
            usleep(1000);
        usleep(300000);
        assert_int_equal(psd_pull(r.c, 2, &rows, 1, &op), -ENOMEM);
        memory_fail_anywhere(-1, 0);
    }
    assert_int_equal(psd_flush(r.c, 30000), 0);
    assert_int_equal(psd_get_stats(r.c, &stats), 0);
    assert_true(stats.reconnects > 0);
    assert_int_equal(psd_leave(r.c, 30000), 0);
    assert_int_equal(psd_close(r.c), 0);
    fake_stop(f);
    check_applied_once(f);
    fake_free(f);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef PS_FAULTS
        cmocka_unit_test(each_allocation_of_each_thread_may_fail),
        cmocka_unit_test(several_may_fail_while_a_connection_breaks),
        cmocka_unit_test(a_drought_is_survived),
#endif
        { 0 }
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
