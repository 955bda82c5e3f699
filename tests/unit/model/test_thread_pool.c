/* The threads of an op: every task once, whatever the number of threads, jobs that follow
 * each other at once or after a rest, and what tasks wrote seen by the caller. */
#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/unit/model/fixture.h"
#include "worker/compute/thread_pool.h"

struct job {
    uint32_t n_threads;
    uint32_t *turns; /* of each task; plain, so that TSan sees who writes */
    uint32_t step;
};

static void count(void *job, uint32_t task, uint32_t thread)
{
    struct job *j = job;

    if (thread >= j->n_threads)
        abort();
    j->turns[task] += j->step;
}

/* The letter for its state in /proc/PID/task/TID/stat, which stands behind the name; 0: it has ended. */
static char state_of(const char *tid)
{
    char path[300], line[300] = "";
    const char *name_end;
    FILE *f;

    snprintf(path, sizeof path, "/proc/self/task/%s/stat", tid);
    f = fopen(path, "r");
    if (!f)
        return 0;
    (void)!fread(line, 1, sizeof line - 1, f);
    fclose(f);
    name_end = strrchr(line, ')');
    return name_end && name_end[1] ? name_end[2] : 0;
}

static bool all_others_sleep(void)
{
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *task;
    bool all = true;

    assert_non_null(tasks);
    while (all && (task = readdir(tasks)) != NULL)
        if (task->d_name[0] != '.' && atoi(task->d_name) != (int)gettid())
            all = state_of(task->d_name) == 'S';
    closedir(tasks);
    return all;
}

static void go_on(void) {}

static void let_them_fall_asleep(void)
{
    const uint64_t end_ms = clock_mono_ms() + 120000;

    while (!all_others_sleep()) {
        assert_true(clock_mono_ms() < end_ms);
        sched_yield();
    }
}

static void check_pool(uint32_t n_threads, uint32_t n_jobs, void (*behind_a_job)(void))
{
    struct fixture_rng rng = { n_threads, 0 };
    uint32_t turns[70], want[70] = { 0 };
    struct job job = { .n_threads = n_threads, .turns = turns };
    struct thread_pool *p;

    memset(turns, 0, sizeof turns);
    assert_int_equal(thread_pool_new(n_threads, &p), 0);
    assert_int_equal(thread_pool_n_threads(p), n_threads);
    for (uint32_t i = 0; i < n_jobs; i++) {
        const uint32_t n_tasks = fixture_below(&rng, COUNT_OF(turns) + 1);

        job.step = i + 1;
        thread_pool_run(p, n_tasks, count, &job);
        for (uint32_t k = 0; k < n_tasks; k++)
            want[k] += i + 1;
        assert_memory_equal(turns, want, sizeof turns);
        behind_a_job();
    }
    thread_pool_free(p);
}

static void every_task_runs_once_on_any_number_of_threads(void **state)
{
    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 5; n_threads++)
        check_pool(n_threads, 2000, go_on);
}

static void so_it_does_when_the_threads_have_gone_to_sleep(void **state)
{
    (void)state;
    check_pool(2, 100, let_them_fall_asleep);
    check_pool(3, 50, let_them_fall_asleep);
}

static void a_pool_without_a_job_ends_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct thread_pool *p;

        assert_int_equal(thread_pool_new(4, &p), 0);
        thread_pool_free(p);
    }
    thread_pool_free(NULL);
}

static void sum_square(void *job, uint32_t task, uint32_t thread)
{
    float *x = job;

    (void)thread;
    for (uint32_t i = 0; i < 1000; i++)
        x[task] += (float)(task + i % 3);
}

static void what_tasks_wrote_is_seen_by_the_caller(void **state)
{
    struct thread_pool *p;

    (void)state;
    assert_int_equal(thread_pool_new(2, &p), 0);
    for (int i = 0; i < 300; i++) {
        float x[16] = { 0 };

        thread_pool_run(p, COUNT_OF(x), sum_square, x);
        for (uint32_t k = 0; k < COUNT_OF(x); k++)
            assert_true(x[k] == (float)(1000 * k + 999));
    }
    thread_pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once_on_any_number_of_threads),
        cmocka_unit_test(so_it_does_when_the_threads_have_gone_to_sleep),
        cmocka_unit_test(a_pool_without_a_job_ends_at_once),
        cmocka_unit_test(what_tasks_wrote_is_seen_by_the_caller),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
