/* The far device tells its user's mistakes: each is made in a process of its own, which must not survive it. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/far_device.h"
#include "tests/unit/model/fixture.h"

static const struct far_device_plan plan = { .late = true, .replays = true };
static const struct far_device_plan again = { .late = true, .replays = false };

struct bench {
    const struct device_ops *ops;
    struct compute *c;
    float *x, *y, *host; /* two of the device, one of the host: N floats */
};

enum { N = 4 };

static struct bench bench_new(const struct far_device_plan *p)
{
    struct bench b = { .ops = far_device_ops(&device_cpu, p),
                       .host = memory_alloc(N * sizeof(float)) };

    assert_int_equal(b.ops->open(&(struct device_options){ .n_threads = 1 }, &b.c, NULL), 0);
    b.x = b.ops->memory_alloc(b.c, N * sizeof(float));
    b.y = b.ops->memory_alloc_zeroed(b.c, N * sizeof(float));
    return b;
}

static void bench_free(struct bench *b)
{
    b->ops->memory_free(b->c, b->x, N * sizeof(float));
    b->ops->memory_free(b->c, b->y, N * sizeof(float));
    b->ops->close(b->c);
    free(b->host);
}

/* y += 2 x in buffer set 0, x being what the host has. */
static void step(struct bench *b, uint64_t key, float factor)
{
    b->ops->upload(b->c, 0, b->x, b->host, N * sizeof(float));
    if (!b->ops->begin(b->c, 0, key))
        b->ops->axpy(b->c, N, factor, b->x, b->y);
    b->ops->end(b->c, 0);
}

static void fetch_y(struct bench *b, float *host)
{
    b->ops->download(b->c, 0, host, b->y, N * sizeof(float));
    assert_int_equal(b->ops->wait(b->c, 0), 0);
}

static void a_step_is_made_recorded_and_replayed(void **state)
{
    struct bench b = bench_new(&plan);
    float sum[N], want = 0;

    (void)state;
    for (uint32_t i = 1; i <= 3; i++) {
        for (uint32_t k = 0; k < N; k++)
            b.host[k] = (float)i;
        want += 2 * (float)i;
        step(&b, 7, 2);
        fetch_y(&b, sum);
        for (uint32_t k = 0; k < N; k++)
            assert_true(sum[k] == want);
    }
    assert_int_equal(far_device_counts().n_replays, 2);
    bench_free(&b);
}

static void host_reads_the_device(void)
{
    struct bench b = bench_new(&plan);

    b.host[0] = b.x[0];
}

static void op_is_given_the_hosts_memory(void)
{
    struct bench b = bench_new(&plan);

    (void)b.ops->begin(b.c, 0, 0);
    b.ops->axpy(b.c, N, 1, b.host, b.y);
    b.ops->end(b.c, 0);
    (void)b.ops->wait(b.c, 0);
}

static void op_uses_what_was_freed(void)
{
    struct bench b = bench_new(&plan);

    step(&b, 0, 1);
    b.ops->memory_free(b.c, b.x, N * sizeof(float));
    (void)b.ops->wait(b.c, 0);
}

static void copy_is_too_long(void)
{
    struct bench b = bench_new(&plan);
    float more[2 * N] = { 0 };

    b.ops->upload(b.c, 0, b.x, more, sizeof more);
    (void)b.ops->begin(b.c, 0, 0);
}

static void host_changes_what_is_being_copied(void)
{
    struct bench b = bench_new(&plan);

    step(&b, 0, 1);
    b.host[1] = 5;
    (void)b.ops->wait(b.c, 0);
}

static void same_key_has_other_arguments(void)
{
    struct bench b = bench_new(&again);

    step(&b, 7, 2);
    (void)b.ops->wait(b.c, 0);
    step(&b, 7, 3);
}

static void replayed_step_is_called(void)
{
    struct bench b = bench_new(&plan);

    step(&b, 7, 2);
    (void)b.ops->wait(b.c, 0);
    (void)b.ops->begin(b.c, 0, 7);
    b.ops->axpy(b.c, N, 2, b.x, b.y);
}

static void op_is_outside_of_a_step(void)
{
    struct bench b = bench_new(&plan);

    b.ops->axpy(b.c, N, 1, b.x, b.y);
}

static void set_begins_twice(void)
{
    struct bench b = bench_new(&plan);

    step(&b, 0, 1);
    step(&b, 0, 1);
}

/* Two rows of N floats, of which one may stay. */
static void upload_rows(struct bench *b, const float *host, uint32_t first, uint32_t second)
{
    uint32_t *how = b->ops->memory_alloc(b->c, 2 * sizeof *how);
    float *rows = b->ops->memory_alloc(b->c, 2 * N * sizeof *rows);
    const uint32_t hows[] = { first, second };

    b->ops->upload(b->c, 0, how, hows, sizeof hows);
    b->ops->upload_rows(
        b->c, 0,
        &(struct row_upload){
            .n = 2, .dim = N, .host = host, .how = how, .rows = rows, .kept = b->x });
    (void)b->ops->begin(b->c, 0, 0);
}

static void rows_are_not_pinned(void)
{
    struct bench b = bench_new(&plan);
    const float mine[2 * N] = { 0 };

    upload_rows(&b, mine, DEVICE_ROW_NEW, DEVICE_ROW_NEW);
}

static void two_rows_have_one_place(void)
{
    struct bench b = bench_new(&plan);

    upload_rows(&b, b.ops->host_alloc(b.c, 2 * N * sizeof(float)), 0, 0 | DEVICE_ROW_KEPT);
}

static void a_row_has_a_place_beyond_the_memory(void)
{
    struct bench b = bench_new(&plan);

    upload_rows(&b, b.ops->host_alloc(b.c, 2 * N * sizeof(float)), 0, 1);
}

static void memory_is_left(void)
{
    struct bench b = bench_new(&plan);

    b.ops->memory_free(b.c, b.x, N * sizeof(float));
    b.ops->close(b.c);
}

static const struct mistake {
    void (*make)(void);
    const char *words; /* NULL: it dies of the fault itself */
} mistakes[] = {
    { host_reads_the_device, NULL },
    { op_is_given_the_hosts_memory, "is no memory of mine\n" },
    { op_uses_what_was_freed, "it was freed, or is too short" },
    { copy_is_too_long, "it was freed, or is too short" },
    { host_changes_what_is_being_copied, "the host's side has changed before the wait" },
    { same_key_has_other_arguments, "op 0 of key 7 is another than it was" },
    { replayed_step_is_called, "an op of a step that is replayed" },
    { op_is_outside_of_a_step, "an op outside of begin and end" },
    { set_begins_twice, "a copy into buffer set 0, whose step has begun" },
    { rows_are_not_pinned, "in memory that I did not give" },
    { two_rows_have_one_place, "row 1 has a place beyond the memory, or another row's" },
    { a_row_has_a_place_beyond_the_memory, "row 1 has a place beyond the memory" },
    { memory_is_left, "16 bytes were not freed" },
};

/* What a process that makes this mistake says on stderr; it must not end well. */
static void last_words(const struct mistake *m, char *words, size_t n_bytes)
{
    int ends[2], status;
    ssize_t n, at = 0;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (!child) {
        (void)dup2(ends[1], STDERR_FILENO);
        (void)signal(SIGSEGV,
                     SIG_DFL); /* cmocka's would end the test, and go on with the next */
        (void)signal(SIGABRT, SIG_DFL);
        m->make();
        _exit(0);
    }
    close(ends[1]);
    while ((n = read(ends[0], words + at, n_bytes - 1 - (size_t)at)) > 0)
        at += n;
    words[at] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
}

static void mistakes_are_reported(void **state)
{
    char words[8192];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(mistakes); i++) {
        last_words(&mistakes[i], words, sizeof words);
        if (mistakes[i].words && !strstr(words, mistakes[i].words))
            fail_msg("mistake %zu: expected \"%s\" in \"%s\"", i, mistakes[i].words, words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_made_recorded_and_replayed),
        cmocka_unit_test(mistakes_are_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
