/* Starts that are interrupted at any operation of the disk: nothing has happened, or all that its options say. */
#include "common/log_line.h"
#include "tests/support/share.h"
#include "tests/unit/psd/starts.h"

/* KILLED, or without power, in an operation; or that one alone fails. */
enum trouble { KILLED, POWER, FAULT };

/* Under a sanitizer a start takes five times as long: not each of the operations, but others with every change of the
 * sources. Odd: what is done with every other operation is done. */
/* Under ThreadSanitizer a start takes the longest, and has one thread. */
#ifdef __SANITIZE_THREAD__
#define STRIDE (3 * share_step())
#else
#define STRIDE share_step()
#endif

/* File operations of a start that nothing happens to. */
static long n_ops_of(struct node *n, const char *const *options, uint32_t n_shards)
{
    long n_ops;

    make(n, 2);
    crash_files_heal(&n->files);
    must_start(n, n_shards, options);
    n_ops = n->files.n_ops;
    node_end(n);
    return n_ops;
}

/* Was it all that its options say? Else it was nothing: then, and behind it a plain start, or the same once more. */
static bool interrupt(struct node *n, const char *const *options, uint32_t n_shards,
                      uint64_t n_steps, enum trouble trouble, long k)
{
    struct err err;
    bool stands;
    int status;

    make(n, 2);
    crash_files_heal(&n->files);
    n->files.fail_at = k;
    n->files.torn = true;
    n->files.dies = trouble != FAULT;
    status = start_with(n, n_shards, false, &err, options);
    if (trouble == POWER)
        crash_files_power_cut(&n->files);
    crash_files_heal(&n->files);
    stands = newest_epoch(n) != 0;
    assert_true(stands || status);
    assert_holds(n, stands ? n_steps : N_STEPS);
    if (k % 2)
        must_start(n, stands ? n_shards : 2, PLAIN);
    assert_holds(n, stands ? n_steps : N_STEPS);
    must_start(n, n_shards, options);
    assert_holds(n, n_steps);
    node_end(n);
    return stands;
}

static void an_interrupted_start_has_done_nothing_or_all(const char *const *options,
                                                         uint32_t n_shards, uint64_t n_steps,
                                                         enum trouble trouble)
{
    uint64_t n_all = 0, n_nothing = 0;
    struct node n;
    long n_ops = n_ops_of(&n, options, n_shards);

    for (long k = share_first(); k < n_ops; k += (k + 100 < n_ops ? 5 : 1) * STRIDE) {
        bool stands = interrupt(&n, options, n_shards, n_steps, trouble, k);

        n_all += stands;
        n_nothing += !stands;
    }
    print_message("%llu starts had done nothing, %llu all\n", (unsigned long long)n_nothing,
                  (unsigned long long)n_all);
    assert_true((long)n_nothing > 10 / STRIDE && (long)n_all > 3 / STRIDE);
}

static void at_any_operation(void **state)
{
    (void)state;
    an_interrupted_start_has_done_nothing_or_all(START_WITH("at", "2"), 2, 20, KILLED);
    an_interrupted_start_has_done_nothing_or_all(START_WITH("at", "job:12"), 2, 12, POWER);
    an_interrupted_start_has_done_nothing_or_all(START_WITH("at", "2"), 2, 20, FAULT);
}

static void also_of_another_layout(void **state)
{
    (void)state;
    an_interrupted_start_has_done_nothing_or_all(PLAIN, 3, N_STEPS, POWER);
    an_interrupted_start_has_done_nothing_or_all(PLAIN, 3, N_STEPS, FAULT);
}

/* Checkpoint 1, as a process leaves it that dies between the rename of the manifest and its sync. */
static void make_unsynced(struct node *n)
{
    bool is_found = false;

    node_begin(n, 2);
    node_job(n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(n, "job", 1, 0, 10);
    node_save(n, 5);
    node_die(n);
    for (long i = 0; i < n->files.n_names; i++)
        if (strstr(n->files.names[i].path, "/MANIFEST") &&
            !strstr(n->files.names[i].path, ".tmp")) {
            n->files.names[i].durable = -1;
            is_found = true;
        }
    assert_true(is_found);
    crash_files_heal(&n->files);
}

/* Does it start, though operation k fails? Then the checkpoint is safe. */
static bool starts_unsynced(long k, long *ret_n_ops)
{
    struct err err;
    struct node n;
    bool starts;

    make_unsynced(&n);
    n.files.fail_at = k;
    starts = start_with(&n, 2, false, &err, PLAIN) == 0;
    *ret_n_ops = n.files.n_ops;
    if (starts)
        crash_files_power_cut(&n.files);
    crash_files_heal(&n.files);
    assert_true(is_there(&n, 1, ""));
    assert_holds(&n, 10);
    node_end(&n);
    return starts;
}

/* A log that goes on behind a checkpoint may have nothing of what is before it. */
static void a_checkpoint_that_a_start_continues_from_survives_a_power_cut(void **state)
{
    struct node n;
    long n_ops, n_refused = 0, n_any;

    (void)state;
    make_unsynced(&n);
    crash_files_power_cut(&n.files);
    assert_false(is_there(&n, 1, "")); /* it was not safe before */
    node_end(&n);
    assert_true(starts_unsynced(-1, &n_ops));
    for (long k = share_first(); k < n_ops; k += STRIDE)
        n_refused += !starts_unsynced(k, &n_any);
    assert_true(n_refused > 10 / STRIDE);
}

static void one_that_is_to_stop_begins_nothing(void **state)
{
    struct err err;
    struct node n;

    (void)state;
    make(&n, 2);
    assert_int_equal(start_with(&n, 2, true, &err, START_WITH("at", "1")), PS_ESTOPPING);
    assert_non_null(strstr(err.text, "stopped before"));
    assert_int_equal(start_with(&n, 3, true, &err, PLAIN), PS_ESTOPPING); /* another layout */
    assert_non_null(strstr(err.text, "stopped before"));
    assert_int_equal(newest_epoch(&n), 0);
    assert_int_equal(start_with(&n, 2, true, &err, PLAIN),
                     0); /* that one has nothing to do but this */
    assert_holds(&n, N_STEPS);
    node_end(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_any_operation),
        cmocka_unit_test(also_of_another_layout),
        cmocka_unit_test(a_checkpoint_that_a_start_continues_from_survives_a_power_cut),
        cmocka_unit_test(one_that_is_to_stop_begins_nothing),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    assert_int_equal(log_line_set_level("error"), 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
