/*
 * Starts of a node from their first look to the moment at which it would serve, with real shard threads and a disk in
 * memory: what they are told is done once, and where they are interrupted nothing has happened.
 */
#include "server/restore.h"

#include "common/log.h"
#include "server/durable/beginning.h"
#include "server/store/shelf.h"
#include "tests/support/locked_files.h"
#include "tests/unit/durable/node_fixture.h"

enum { N_STEPS = 30 };

/* A psd that is started, and stopped before it serves anybody. */
struct start {
    struct node *node; /* whose disk */
    struct locked_files files;
    struct settings settings;
    uint32_t n_shards;
    uv_loop_t loop;
    uv_timer_t timer; /* keeps the loop going, as the node's does */
    struct mailbox mailbox;
    struct shard_thread *shards[NODE_N_SHARDS_MAX];
    struct keeper *keeper;
    struct hello_reply welcome;
    bool is_to_stop, is_done;
    struct restore_result result;
};

static void on_timer(uv_timer_t *timer)
{
    (void)timer;
}

static void set_up(struct start *s) ON_MAIN
{
    struct shard_thread_config config = { .core = { .n_shards = s->n_shards,
                                                    .lease_ms = 10000,
                                                    .join_ms = 10000,
                                                    .park_ms = 10000 },
                                          .frame_max_bytes = 1 << 20,
                                          .frame_timeout_ms = 10000,
                                          .save_bytes_per_s = 1, /* nothing would get written */
                                          .welcome = &s->welcome };
    struct keeper_config keeper = { .loop = &s->loop,
                                    .mailbox = &s->mailbox,
                                    .files = &s->files.ops,
                                    .data_dir = s->settings.data_dir,
                                    .identity = { .n_shards = s->n_shards },
                                    .n_nodes = 1,
                                    .keep = 2,
                                    .n_shards = s->n_shards,
                                    .shards = s->shards };
    struct err err;

    s->welcome = (struct hello_reply){ .version = 1, .n_nodes = 1, .nodes = { "here:1" } };
    locked_files_init(&s->files, &s->node->files.ops);
    assert_int_equal(uv_loop_init(&s->loop), 0);
    assert_int_equal(uv_timer_init(&s->loop, &s->timer), 0);
    assert_int_equal(uv_timer_start(&s->timer, on_timer, 1, 1), 0);
    assert_int_equal(mailbox_init(&s->mailbox, &s->loop, s), 0);
    for (uint32_t i = 0; i < s->n_shards; i++) {
        config.index = config.core.shard = i;
        assert_int_equal(shard_thread_start(&config, &s->shards[i], &err), 0);
    }
    s->keeper = keeper_new(&keeper);
}

static void tear_down(struct start *s) ON_MAIN
{
    for (uint32_t i = 0; i < s->n_shards; i++)
        shard_thread_stop(s->shards[i]);
    for (uint32_t i = 0; i < s->n_shards; i++)
        shard_thread_join(s->shards[i]);
    uv_close((uv_handle_t *)&s->timer, NULL);
    mailbox_close(&s->mailbox);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&s->loop), 0);
    mailbox_deinit(&s->mailbox);
    keeper_free(s->keeper);
    locked_files_deinit(&s->files);
    assert_int_equal(crash_files_n_open(&s->node->files), 0);
}

static void on_restored(void *arg, const struct restore_result *result)
{
    struct start *s = arg;

    s->result = *result;
    s->is_done = true;
}

/* name, value, name, value ... NULL: as in psd.conf. Its status; the sentence of a failure is in `err`. */
static int start_with(struct node *n, uint32_t n_shards, bool is_to_stop, struct err *err,
                      const char *const *told)
{
    struct start s = { .node = n, .n_shards = n_shards, .is_to_stop = is_to_stop };
    struct restore_config config = { .loop = &s.loop,
                                     .mailbox = &s.mailbox,
                                     .is_to_stop = &s.is_to_stop,
                                     .files = &s.files.ops,
                                     .settings = &s.settings,
                                     .n_nodes = 1,
                                     .n_shards = n_shards,
                                     .shards = s.shards };

    enter_main();
    for (size_t i = 0; told[i]; i += 2)
        assert_int_equal(settings_set(&settings_psd, &s.settings, told[i], told[i + 1], err),
                         0);
    assert_int_equal(settings_set(&settings_psd, &s.settings, "listen", "127.0.0.1:0", err), 0);
    assert_int_equal(settings_set(&settings_psd, &s.settings, "durability", "fsync", err), 0);
    s.settings.shards = n_shards;
    if (settings_complete(&s.settings, err) != 0)
        fail_msg("%s", err->text);
    set_up(&s);
    config.keeper = s.keeper;
    restore_start(&config, on_restored, &s);
    while (!s.is_done)
        uv_run(&s.loop, UV_RUN_ONCE);
    tear_down(&s);
    settings_free(&settings_psd, &s.settings);
    *err = s.result.err;
    return s.result.err.status;
}

#define TOLD(...) ((const char *const[]){ "data-dir", NODE_DIR, __VA_ARGS__, NULL })
#define PLAIN ((const char *const[]){ "data-dir", NODE_DIR, NULL })

static void must_start(struct node *n, uint32_t n_shards, const char *const *told)
{
    struct err err;

    if (start_with(n, n_shards, false, &err, told) != 0)
        fail_msg("%s", err.text);
}

static void must_refuse(struct node *n, uint32_t n_shards, const char *const *told, int want,
                        const char *says)
{
    struct err err;

    assert_int_equal(start_with(n, n_shards, false, &err, told), want);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
}

/* What the next start would find. */
static void assert_holds(struct node *n, uint64_t n_steps)
{
    struct shard *one;
    struct err err;

    if (node_collect(n, NODE_DIR, NULL, &one, &err) != 0)
        fail_msg("%s", err.text);
    assert_steps(one, "job", n_steps);
    shard_free(one);
}

static bool is_there(struct node *n, uint64_t number, const char *end)
{
    char path[CRASH_PATH_MAX];

    snprintf(path, sizeof path, NODE_DIR "/checkpoints/%020llu%s/MANIFEST",
             (unsigned long long)number, end);
    return crash_files_is_there(&n->files, path);
}

static uint64_t newest_epoch(struct node *n)
{
    uint64_t epoch;

    assert_int_equal(epochs_newest(&n->files.ops, NODE_DIR, 0, &epoch, NULL), 0);
    return epoch;
}

/* Checkpoint 1 behind 10 steps, 2 behind 20, 3 behind 25, and 30 in all. */
static void make(struct node *n, uint32_t n_shards)
{
    node_begin(n, n_shards);
    node_job(n, "job", SPEC_MODE_ASYNC, 1);
    node_steps(n, "job", 1, 0, 10);
    node_save(n, 5);
    node_steps(n, "job", 1, 10, 20);
    node_save(n, 5);
    node_steps(n, "job", 1, 20, 25);
    node_save(n, 5);
    node_steps(n, "job", 1, 25, N_STEPS);
    node_die(n);
}

/* Somebody trains on, in the epoch that is there. */
static void train(struct node *n, uint64_t from, uint64_t end)
{
    n->epoch = newest_epoch(n);
    node_start(n);
    node_steps(n, "job", 1, from, end);
    node_die(n);
}

/* --- told once --- */

static void what_is_told_is_done_once_and_again_when_it_was_not_told_in_between(void **state)
{
    static const char *const at[] = { "data-dir", NODE_DIR, "at", "2", NULL };
    struct node n;

    (void)state;
    make(&n, 2);
    must_start(&n, 2, at);
    assert_holds(&n, 20);
    assert_int_equal(newest_epoch(&n), 4);
    train(&n, 20, 23);
    assert_holds(&n, 23);
    for (int i = 0; i < 2; i++)
        must_start(&n, 2, at); /* by whoever restarts it */
    assert_holds(&n, 23);
    assert_int_equal(newest_epoch(&n), 4);
    must_start(&n, 2, TOLD("at", "job:21")); /* something else */
    assert_holds(&n, 21);
    must_start(&n, 2, PLAIN);
    must_start(&n, 2, TOLD("at", "job:21"));
    assert_holds(&n, 21);
    assert_true(newest_epoch(&n) > 5);
    node_end(&n);
}

static void a_crash_behind_no_restore_does_not_begin_with_nothing_again(void **state)
{
    static const char *const told[] = { "data-dir", NODE_DIR, "no-restore", "yes", NULL };
    struct node n;
    struct shard *s;

    (void)state;
    make(&n, 1);
    must_start(&n, 1, told);
    n.epoch = newest_epoch(&n);
    node_start(&n);
    node_job(&n, "job", SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 3);
    node_die(&n);
    must_start(&n, 1, told);
    assert_holds(&n, 3);
    s = n.lines[0].shard;
    assert_non_null(s);
    node_end(&n);
}

static void nor_does_one_behind_restore_from_elsewhere(void **state)
{
    static const char *const told[] = { "data-dir", "own", "restore", NODE_DIR, NULL };
    struct node n;

    (void)state;
    make(&n, 2);
    assert_int_equal(n.files.ops.mkdir(n.files.ops.state, "own"), 0);
    must_start(&n, 1, told);
    train(&n, N_STEPS, N_STEPS + 5); /* goes on elsewhere: not ours any more */
    must_start(&n, 1, told);
    {
        struct shard *one;
        struct err err;

        assert_int_equal(node_collect(&n, "own", NULL, &one, &err), 0);
        assert_steps(one, "job", N_STEPS);
        shard_free(one);
    }
    node_end(&n);
}

/* The layout changes while the configuration still tells it. */
static void what_was_done_stays_done_in_another_layout(void **state)
{
    static const char *const at[] = { "data-dir", NODE_DIR, "at", "2", NULL };
    struct node n;

    (void)state;
    make(&n, 2);
    must_start(&n, 2, at);
    train(&n, 20, 23);
    for (uint32_t n_shards = 3; n_shards > 0; n_shards--) {
        must_start(&n, n_shards, at);
        must_start(&n, n_shards, at);
        assert_holds(&n, 23);
    }
    node_end(&n);
}

static void where_it_cannot_be_known_whether_it_was_done_it_is_refused(void **state)
{
    struct node n;

    (void)state;
    make(&n, 1);
    must_start(&n, 1, TOLD("at", "2"));
    node_damage(crash_files_at(&n.files, NODE_DIR "/log/00000000000000000004/BEGINNING"));
    must_refuse(&n, 1, TOLD("at", "2"), PS_ECORRUPT, "BEGINNING");
    must_start(&n, 1, PLAIN);
    assert_holds(&n, 20);
    node_end(&n);
}

/* --- set aside --- */

static void a_start_from_an_older_checkpoint_sets_the_newer_ones_aside(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2);
    must_start(&n, 2, TOLD("at", "1"));
    assert_holds(&n, 10);
    assert_true(is_there(&n, 1, "") && is_there(&n, 4, ""));
    assert_true(is_there(&n, 2, ".aside") && is_there(&n, 3, ".aside"));
    assert_false(is_there(&n, 2, "") || is_there(&n, 3, ""));
    n.epoch = 4;
    node_start(&n);
    for (int i = 0; i < 4; i++)
        node_save(&n, 2); /* they take no places of those that are kept, */
    node_die(&n);
    epochs_tidy(&n.files.ops, NODE_DIR, 4);
    assert_true(is_there(&n, 7, "") && is_there(&n, 8, "") && !is_there(&n, 1, ""));
    assert_true(is_there(&n, 2, ".aside") && is_there(&n, 3, ".aside"));
    /* and have their log: with its names back, it is what it was. */
    assert_int_equal(n.files.ops.rename(n.files.ops.state,
                                        NODE_DIR "/checkpoints/00000000000000000003.aside",
                                        NODE_DIR "/checkpoints/00000000000000000003"),
                     0);
    must_start(&n, 2, TOLD("at", "3"));
    assert_holds(&n, 25);
    node_end(&n);
}

static void a_start_with_nothing_sets_all_of_them_aside_and_leaves_a_log_alone(void **state)
{
    struct node n;

    (void)state;
    make(&n, 1);
    must_start(&n, 1, TOLD("no-restore", "yes"));
    for (uint64_t number = 1; number <= 3; number++)
        assert_true(is_there(&n, number, ".aside"));
    node_end(&n);
    node_begin(&n, 1); /* never a checkpoint */
    node_job(&n, "job", SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 5);
    node_die(&n);
    must_start(&n, 1, TOLD("no-restore", "yes"));
    assert_true(crash_files_is_there(&n.files, NODE_DIR "/log/00000000000000000000/LEFT"));
    epochs_tidy(&n.files.ops, NODE_DIR, 1);
    assert_non_null(crash_files_at(
        &n.files, NODE_DIR "/log/00000000000000000000/shard-000/00000000000000000001.psl"));
    node_end(&n);
}

/* --keep 2 with a damaged one would be one. */
static void a_checkpoint_that_is_found_damaged_is_set_aside(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2);
    node_damage(node_part(&n, 3, 1));
    must_start(&n, 2, PLAIN);
    assert_holds(&n, N_STEPS);
    assert_true(is_there(&n, 3, ".aside") && is_there(&n, 2, "") && is_there(&n, 1, ""));
    node_end(&n);
}

static void another_layout_sets_nothing_aside(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2);
    must_start(&n, 1, PLAIN);
    assert_holds(&n, N_STEPS);
    for (uint64_t number = 1; number <= 4; number++)
        assert_true(is_there(&n, number, ""));
    node_end(&n);
}

/* --- one history --- */

/* A checkpoint of a new epoch in which nothing has happened yet: half of it is damaged. */
static void all_shards_are_of_one_epoch(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2);
    must_start(&n, 2, TOLD("at", "2"));
    node_damage(node_part(&n, 4, 0));
    must_refuse(&n, 2, PLAIN, PS_ECORRUPT, "checkpoint 4");
    must_refuse(&n, 2, TOLD("at", "job:24"), PS_ECORRUPT, "checkpoint 4");
    must_start(&n, 2, TOLD("at", "1"));
    assert_holds(&n, 10);
    node_end(&n);
}

static void a_damaged_checkpoint_that_says_all_does_not_stop_a_change_of_layout(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2);
    node_start(&n);
    node_stop(&n, 5);
    node_damage(node_part(&n, 4, 1));
    must_start(&n, 3, PLAIN);
    assert_holds(&n, N_STEPS);
    node_end(&n);
}

/* --- interrupted --- */

static void an_interrupted_start_has_done_nothing_or_all(struct node *n,
                                                         const char *const *told,
                                                         uint32_t n_shards, uint64_t n_steps,
                                                         bool power)
{
    uint64_t n_old = 0, n_new = 0;
    int status = -EIO;
    long n_ops;

    make(n, 2);
    crash_files_heal(&n->files);
    must_start(n, n_shards, told);
    n_ops = n->files.n_ops;
    node_end(n);
    for (long k = 0; status; k += k + 100 < n_ops ? 5 : 1) {
        bool stands;
        struct err err;

        make(n, 2);
        crash_files_heal(&n->files);
        n->files.fail_at = k;
        n->files.dies = n->files.torn = true;
        status = start_with(n, n_shards, false, &err, told);
        if (power)
            crash_files_power_cut(&n->files);
        crash_files_heal(&n->files);
        stands = newest_epoch(n) != 0;
        assert_true(stands || status);
        assert_holds(n, stands ? n_steps : N_STEPS);
        if (k % 2)
            must_start(n, stands ? n_shards : 2, PLAIN);
        assert_holds(n, stands ? n_steps : N_STEPS);
        must_start(n, n_shards, told);
        assert_holds(n, n_steps);
        n_new += stands;
        n_old += !stands;
        node_end(n);
    }
    print_message("%llu starts had done nothing, %llu all\n", (unsigned long long)n_old,
                  (unsigned long long)n_new);
    assert_true(n_old > 10 && n_new > 3);
}

static void at_any_operation(void **state)
{
    struct node n;

    (void)state;
    an_interrupted_start_has_done_nothing_or_all(&n, TOLD("at", "2"), 2, 20, false);
    an_interrupted_start_has_done_nothing_or_all(&n, TOLD("at", "job:12"), 2, 12, true);
}

static void also_of_another_layout(void **state)
{
    struct node n;

    (void)state;
    an_interrupted_start_has_done_nothing_or_all(&n, PLAIN, 3, N_STEPS, true);
}

static void one_that_is_to_stop_begins_nothing(void **state)
{
    struct err err;
    struct node n;

    (void)state;
    make(&n, 2);
    assert_int_equal(start_with(&n, 2, true, &err, TOLD("at", "1")), 0);
    assert_int_equal(newest_epoch(&n), 0);
    assert_holds(&n, N_STEPS);
    node_end(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_told_is_done_once_and_again_when_it_was_not_told_in_between),
        cmocka_unit_test(a_crash_behind_no_restore_does_not_begin_with_nothing_again),
        cmocka_unit_test(nor_does_one_behind_restore_from_elsewhere),
        cmocka_unit_test(what_was_done_stays_done_in_another_layout),
        cmocka_unit_test(where_it_cannot_be_known_whether_it_was_done_it_is_refused),
        cmocka_unit_test(a_start_from_an_older_checkpoint_sets_the_newer_ones_aside),
        cmocka_unit_test(a_start_with_nothing_sets_all_of_them_aside_and_leaves_a_log_alone),
        cmocka_unit_test(a_checkpoint_that_is_found_damaged_is_set_aside),
        cmocka_unit_test(another_layout_sets_nothing_aside),
        cmocka_unit_test(all_shards_are_of_one_epoch),
        cmocka_unit_test(a_damaged_checkpoint_that_says_all_does_not_stop_a_change_of_layout),
        cmocka_unit_test(at_any_operation),
        cmocka_unit_test(also_of_another_layout),
        cmocka_unit_test(one_that_is_to_stop_begins_nothing),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    assert_int_equal(log_set_level("error"), 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
