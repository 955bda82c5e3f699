#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/seed.h"
#include "worker/cache/read_ahead.h"
#include "worker/cache/side_thread.h"

/* Which rows are read ahead (read_ahead.h), held against a look at each key; and the thread that reads them. */

#define KEYS_MAX 40u

struct keys {
    uint64_t at[KEYS_MAX];
    uint32_t n;
};

static struct keys draw(uint64_t seed, uint64_t *n_draws)
{
    struct keys keys = { .n = 0 };
    const uint64_t share = hash_mix2(seed, ++*n_draws) % 4;

    for (uint64_t key = 0; key < KEYS_MAX; key++)
        if (hash_mix2(seed, ++*n_draws) % 4 < share)
            keys.at[keys.n++] = key;
    return keys;
}

static bool has(const struct keys *keys, uint64_t key)
{
    for (uint32_t i = 0; i < keys->n; i++)
        if (keys->at[i] == key)
            return true;
    return false;
}

static struct ps_pull_section section_of(uint32_t table, const struct keys *keys, float *dst)
{
    return (struct ps_pull_section){
        .table = table, .n_keys = keys->n, .keys = keys->at, .dst = dst
    };
}

/* Each key once, ascending, at its row; is_left as it should be. */
static void check_split(const struct keys *next, const struct ps_pull_section *s,
                        const struct keys *current, const struct keys *missing, bool is_left)
{
    uint32_t n = 0;

    for (uint32_t row = 0; row < next->n; row++) {
        const uint64_t key = next->at[row];

        if ((has(current, key) || has(missing, key)) != is_left)
            continue;
        assert_true(n < s->n_keys);
        assert_int_equal(s->keys[n], key);
        assert_int_equal(s->rows ? s->rows[n] : n, row);
        n++;
    }
    assert_int_equal(n, s->n_keys);
}

static void what_no_push_changes_is_read_now_and_all_else_is_left(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    struct read_ahead a = { 0 };
    uint64_t n_draws = 0;
    float dst[2];

    (void)state;
    for (uint32_t run = 0; run < 2000; run++) {
        const struct keys next[2] = { draw(seed, &n_draws), draw(seed, &n_draws) };
        const struct keys current = draw(seed, &n_draws), missing = draw(seed, &n_draws);
        const struct keys none = { .n = 0 };
        const struct ps_pull_section asked[2] = { section_of(3, &next[0], &dst[0]),
                                                  section_of(5, &next[1], &dst[1]) };
        const struct ps_pull_section of_current = section_of(3, &current, NULL);
        const struct ps_pull_section of_missing = section_of(5, &missing, NULL);

        assert_int_equal(read_ahead_begin(&a, asked, 2), 0);
        for (uint32_t i = 0; i < 2; i++) {
            struct ps_pull_section left = asked[i];
            const struct ps_pull_section now =
                read_ahead_split(&a, i, (struct read_ahead_keys){ &of_current, 1 },
                                 (struct read_ahead_keys){ &of_missing, 1 });

            check_split(&next[i], &now, i ? &none : &current, i ? &missing : &none, false);
            assert_int_equal(read_ahead_take(&a, &left), now.n_keys);
            check_split(&next[i], &left, i ? &none : &current, i ? &missing : &none, true);
            assert_ptr_equal(now.dst, asked[i].dst);
            assert_ptr_equal(left.dst, asked[i].dst);
        }
    }
    read_ahead_deinit(&a);
}

static void a_pull_of_anything_else_takes_nothing(void **state)
{
    const struct keys next = { { 1, 2, 3 }, 3 }, same = next;
    struct ps_pull_section asked, others[5];
    struct read_ahead a = { 0 };
    float dst[2];

    (void)state;
    asked = section_of(3, &next, dst);
    assert_int_equal(read_ahead_begin(&a, &asked, 1), 0);
    assert_int_equal(
        read_ahead_split(&a, 0, (struct read_ahead_keys){ 0 }, (struct read_ahead_keys){ 0 })
            .n_keys,
        3);
    for (uint32_t i = 0; i < 5; i++)
        others[i] = asked;
    others[0].table = 4;
    others[1].codec = CODEC_INT8;
    others[2].n_keys = 2;
    others[3].keys = same.at;
    others[4].dst = dst + 1;
    for (uint32_t i = 0; i < 5; i++) {
        const struct ps_pull_section before = others[i];

        assert_int_equal(read_ahead_take(&a, &others[i]), 0);
        assert_memory_equal(&others[i], &before, sizeof before);
    }
    assert_int_equal(read_ahead_take(&a, &asked), 3);
    read_ahead_deinit(&a);
}

static void a_table_of_several_sections_is_left_as_a_whole(void **state)
{
    const struct keys next = { { 1, 2, 3 }, 3 }, first = { { 1 }, 1 }, second = { { 9 }, 1 };
    const struct ps_pull_section current[2] = { section_of(3, &first, NULL),
                                                section_of(3, &second, NULL) };
    struct ps_pull_section asked;
    struct read_ahead a = { 0 };
    float dst;

    (void)state;
    asked = section_of(3, &next, &dst);
    assert_int_equal(read_ahead_begin(&a, &asked, 1), 0);
    assert_int_equal(read_ahead_split(&a, 0, (struct read_ahead_keys){ current, 2 },
                                      (struct read_ahead_keys){ 0 })
                         .n_keys,
                     0);
    assert_int_equal(read_ahead_take(&a, &asked), 0);
    assert_int_equal(asked.n_keys, 3);
    read_ahead_deinit(&a);
}

static void a_push_is_of_a_batch_if_its_keys_are_those_of_its_table(void **state)
{
    const struct keys keys = { { 1, 2, 3, 4 }, 4 }, others = keys;
    const struct ps_pull_section pulled = section_of(3, &keys, NULL);
    const struct read_ahead_keys current = { &pulled, 1 };
    struct ps_push_section push = { .table = 3, .n_keys = 4, .keys = keys.at };

    (void)state;
    assert_true(read_ahead_is_push_of(current, &push));
    push.keys = keys.at + 2;
    push.n_keys = 2;
    assert_true(read_ahead_is_push_of(current, &push));
    push.n_keys = 3;
    assert_false(read_ahead_is_push_of(current, &push));
    push.table = 4;
    push.n_keys = 2;
    assert_false(read_ahead_is_push_of(current, &push));
    push.n_keys = 0;
    assert_true(read_ahead_is_push_of(current, &push));
    push = (struct ps_push_section){ .table = 3, .n_keys = 4, .keys = others.at };
    assert_false(read_ahead_is_push_of(current, &push));
}

#ifdef PS_FAULTS
static void without_memory_there_are_no_sections(void **state)
{
    const struct keys few = { { 1, 2, 3 }, 3 };
    uint64_t many[KEYS_MAX * 4];
    struct ps_pull_section asked;
    struct read_ahead a = { 0 };

    (void)state;
    for (uint32_t i = 0; i < KEYS_MAX * 4; i++)
        many[i] = i;
    asked = section_of(3, &few, NULL);
    assert_int_equal(read_ahead_begin(&a, &asked, 1), 0);
    asked.keys = many;
    asked.n_keys = KEYS_MAX * 4;
    for (long k = 0; k < 2; k++) {
        memory_fail_after(k);
        assert_int_equal(read_ahead_begin(&a, &asked, 1), -ENOMEM);
        memory_fail_after(-1);
        assert_int_equal(read_ahead_take(&a, &asked), 0);
    }
    assert_int_equal(read_ahead_begin(&a, &asked, 1), 0);
    read_ahead_deinit(&a);
}
#endif

/* ---- the thread ---- */

struct job {
    _Atomic bool may_end;
    uint64_t n_runs;
};

static void run(void *arg)
{
    struct job *job = arg;

    while (!job->may_end)
        ;
    job->n_runs++;
}

static void a_job_that_was_asked_for_runs_once(void **state)
{
    struct job job = { .may_end = true };
    struct side_thread thread;

    (void)state;
    assert_int_equal(side_thread_start(&thread, run, &job), 0);
    for (uint64_t i = 1; i < 100; i++) {
        side_thread_ask(&thread);
        side_thread_wait(&thread);
        assert_int_equal(job.n_runs, i);
        side_thread_cancel(&thread);
        side_thread_wait(&thread);
        assert_int_equal(job.n_runs, i);
    }
    side_thread_end(&thread);
}

static void a_job_that_is_cancelled_has_run_or_never_does(void **state)
{
    struct job job = { .may_end = true };
    struct side_thread thread;

    (void)state;
    assert_int_equal(side_thread_start(&thread, run, &job), 0);
    for (int i = 0; i < 200; i++) {
        uint64_t n_runs;

        side_thread_ask(&thread);
        side_thread_cancel(&thread);
        n_runs = job.n_runs;
        side_thread_wait(&thread);
        assert_int_equal(job.n_runs, n_runs);
    }
    side_thread_end(&thread);
}

static void the_end_waits_for_a_job_that_runs(void **state)
{
    struct job job = { 0 };
    struct side_thread thread;

    (void)state;
    assert_int_equal(side_thread_start(&thread, run, &job), 0);
    side_thread_ask(&thread);
    for (bool runs = false; !runs;) {
        pthread_mutex_lock(&thread.lock);
        runs = thread.state == SIDE_THREAD_RUNS;
        pthread_mutex_unlock(&thread.lock);
    }
    job.may_end = true;
    side_thread_end(&thread);
    assert_int_equal(job.n_runs, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_no_push_changes_is_read_now_and_all_else_is_left),
        cmocka_unit_test(a_pull_of_anything_else_takes_nothing),
        cmocka_unit_test(a_table_of_several_sections_is_left_as_a_whole),
        cmocka_unit_test(a_push_is_of_a_batch_if_its_keys_are_those_of_its_table),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_there_are_no_sections),
#endif
        cmocka_unit_test(a_job_that_was_asked_for_runs_once),
        cmocka_unit_test(a_job_that_is_cancelled_has_run_or_never_does),
        cmocka_unit_test(the_end_waits_for_a_job_that_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
