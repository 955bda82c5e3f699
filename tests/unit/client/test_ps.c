/* The client library against a node that behaves. */
#include "tests/unit/client/fixture.h"
#include "worker/client/ps_admin.h"

static int ask_status(const char *address, uint32_t timeout_ms, char **ret_json,
                      struct err *err)
{
    const struct ps_admin_plan plan = {
        .token = "", .command = "status", .argument = "", .timeout_ms = timeout_ms
    };

    return ps_admin_one(&plan, address, ret_json, err);
}

static void a_job_reads_what_it_has_pushed(void **state)
{
    struct fake_plan plan = { .fault_at = -1 };
    struct ps_stats stats;
    char address[32];
    struct fake *f;
    struct err err;

    (void)state;
    for (plan.n_shards = 1; plan.n_shards <= 5; plan.n_shards += 2) {
        f = fake_start(&plan);
        fake_address(f, address);
        assert_int_equal(run_job(address, &stats, &err), 0);
        fake_stop(f);
        check_applied_once(f);
        assert_int_equal(f->shards[0].n_left, 1);
        assert_int_equal(stats.pulls, N_STEPS);
        assert_int_equal(stats.pushes, N_STEPS);
        assert_int_equal(stats.rows_pushed, N_STEPS * N_KEYS);
        assert_int_equal(stats.reconnects, 0);
        assert_int_equal(stats.rejoins, 0);
        assert_true(stats.bytes_in > 0 && stats.bytes_out > 0);
        fake_free(f);
    }
}

static void a_refused_hello_ends_at_once_with_the_servers_sentence(void **state)
{
    const struct fake_plan plan = { .n_shards = 1,
                                    .fault_at = -1,
                                    .hello_status = PS_EGREETING };

    (void)state;
    assert_not_let_in(&plan, PS_EGREETING, "the fake refuses this hello");
}

static void a_port_of_http_is_reported_at_once(void **state)
{
    const struct fake_plan plan = { .n_shards = 1,
                                    .fault_at = -1,
                                    .bytes = "HTTP/1.1 400 Bad Request\r\n\r\n" };
    struct fake *f;
    char address[32], *json = NULL;
    struct err err;

    (void)state;
    assert_not_let_in(&plan, PS_EHTTP, "it answers HTTP: is this the stats port?");
    f = fake_start(&plan);
    fake_address(f, address);
    assert_int_equal(ask_status(address, 60000, &json, &err), PS_EHTTP);
    fake_stop(f);
    fake_free(f);
}

static void other_bytes_than_frames_are_a_broken_protocol(void **state)
{
    struct fake *f = fake_start(&(struct fake_plan){
        .n_shards = 1, .fault_at = -1, .bytes = "HTCPCP/1.0 418 teapot\r\n\r\n" });
    char address[32], *json = NULL;
    struct err err;

    (void)state;
    fake_address(f, address);
    assert_int_equal(ask_status(address, 60000, &json, &err), PS_EPROTO);
    fake_stop(f);
    fake_free(f);
}

static void a_refused_push_is_reported_once_by_the_next_call(void **state)
{
    struct fake_plan plan = { .n_shards = 1,
                              .fault_at = 1,
                              .fault_type = FRAME_PUSH,
                              .fault = FAKE_REFUSE,
                              .refusal = PS_ENAN };
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    assert_int_equal(push_and_flush(&rig, 0, &err), 0);
    assert_int_equal(push_step(rig.c, rig.table, 1, &err), 0);
    assert_int_equal(ps_flush(rig.c, &err), PS_ENAN);
    assert_non_null(strstr(err.text, "refused push 2 of clock 1: the fake refuses this push"));
    assert_int_equal(ps_flush(rig.c, &err), 0);
    assert_int_equal(push_step(rig.c, rig.table, 2, &err), 0);
    assert_int_equal(ps_leave(rig.c, &err), 0);
    tear_down(&rig);
}

static void a_refused_pull_says_which_shard_and_why(void **state)
{
    struct fake_plan plan = { .n_shards = 2,
                              .fault_at = 0,
                              .fault_type = FRAME_PULL,
                              .fault = FAKE_REFUSE,
                              .refusal = PS_ETOOBIG };
    float rows[N_KEYS * FAKE_DIM];
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    assert_int_equal(pull_rows(rig.c, rig.table, 0, rows, &err), PS_ETOOBIG);
    assert_non_null(strstr(err.text, "refused a pull: the fake refuses this pull"));
    assert_non_null(strstr(err.text, rig.address));
    assert_int_equal(pull_rows(rig.c, rig.table, 0, rows, &err), 0);
    assert_int_equal(ps_pull_wait(rig.c, NULL, &err), -EINVAL);
    tear_down(&rig);
}

static void a_pull_that_is_never_answered_ends_at_its_deadline(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1, .holds_pulls = true };
    struct ps_options options = make_options(NULL);
    float rows[N_KEYS * FAKE_DIM];
    struct rig rig;
    struct err err;

    (void)state;
    options.pull_ms = 20;
    set_up(&rig, &plan, &options);
    assert_int_equal(pull_rows(rig.c, rig.table, 0, rows, &err), PS_EDEADLINE);
    assert_non_null(strstr(err.text, "shard 0 at "));
    assert_non_null(strstr(err.text, "has not answered a pull"));
    assert_int_equal(push_and_flush(&rig, 0, &err), 0);
    tear_down(&rig);
}

static void pushes_wait_for_space_in_the_window(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1 };
    struct ps_options options = make_options(NULL);
    struct rig rig;
    struct err err;
    uint64_t clock;

    (void)state;
    options.window_bytes = 1;
    set_up(&rig, &plan, &options);
    for (clock = 0; clock < 50; clock++)
        assert_int_equal(push_step(rig.c, rig.table, clock, &err), 0);
    assert_int_equal(ps_leave(rig.c, &err), 0);
    halt(&rig);
    assert_int_equal(rig.f->shards[1].n_applied, 50);
    tear_down(&rig);
}

struct waiter {
    struct ps_client *c;
    struct ps_pull *pull;
    int status;
    struct err err;
};

static void *wait_for_pull(void *arg)
{
    struct waiter *w = arg;

    w->status = ps_pull_wait(w->c, w->pull, &w->err);
    return NULL;
}

static void
a_push_does_not_wait_for_a_pull_of_another_thread_which_can_be_cancelled(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1, .holds_pulls = true };
    float rows[N_KEYS * FAKE_DIM];
    struct ps_pull_section pull = { .n_keys = N_KEYS, .keys = keys, .dst = rows };
    struct ps_stats stats;
    struct waiter w;
    pthread_t thread;
    uint64_t clock;
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    pull.table = rig.table;
    assert_int_equal(ps_pull_start(rig.c, 3, &pull, 1, &w.pull, &err), 0);
    w.c = rig.c;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_pull, &w), 0);
    for (clock = 0; clock < 3; clock++) {
        assert_int_equal(push_step(rig.c, rig.table, clock, &err), 0);
        ps_stats(rig.c, &stats);
        assert_int_equal(stats.pushes, clock + 1);
    }
    assert_int_equal(ps_flush(rig.c, &err), 0);
    ps_pull_cancel(rig.c, w.pull);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(w.status, -ECANCELED);
    assert_int_equal(push_step(rig.c, rig.table, 3, &err), 0);
    assert_int_equal(ps_leave(rig.c, &err), 0);
    halt(&rig);
    assert_int_equal(rig.f->shards[0].n_applied, 4);
    assert_int_equal(rig.f->shards[0].unfinished,
                     3); /* of the pull: its three pushes came later */
    tear_down(&rig);
}

static void a_pull_of_nothing_is_answered_by_every_shard(void **state)
{
    struct fake_plan plan = { .n_shards = 3, .fault_at = -1 };
    struct ps_stats stats;
    struct ps_pull *pull;
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    for (uint64_t clock = 0; clock < 3; clock++) {
        assert_int_equal(ps_pull_start(rig.c, clock, NULL, 0, &pull, &err), 0);
        assert_int_equal(ps_pull_wait(rig.c, pull, &err), 0);
    }
    ps_stats(rig.c, &stats);
    assert_int_equal(stats.pulls, 3);
    assert_int_equal(stats.rows_pulled, 0);
    tear_down(&rig);
}

static void a_table_with_another_specification_is_refused_with_the_difference(void **state)
{
    struct fake_plan plan = { .n_shards = 3, .fault_at = -1 };
    struct table_spec spec = make_spec("emb"), found = { .name = "emb" };
    float rows[N_KEYS * FAKE_DIM];
    uint32_t table;
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    spec.dim = 2 * FAKE_DIM;
    assert_int_equal(ps_table(rig.c, &spec, &table, &err), PS_ESPEC);
    assert_string_equal(err.text, "table emb: dim is 4 here, 8 was asked for");
    spec.dim = 0;
    assert_int_equal(ps_table(rig.c, &spec, &table, &err), PS_ESPEC);
    assert_int_equal(ps_table_find(rig.c, &found, &table, &err), 0);
    assert_int_equal(found.dim, FAKE_DIM);
    assert_int_equal(table, 1);
    assert_int_equal(pull_rows(rig.c, table, 0, rows, &err), 0);
    snprintf(found.name, sizeof found.name, "absent");
    assert_int_equal(ps_table_find(rig.c, &found, &table, &err), PS_ENOTABLE);
    assert_string_equal(err.text, "no table absent");
    tear_down(&rig);
}

/* The answers to one that is under way then are nobody's. */
static void behind_a_failure_no_table_is_asked_for(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1 };
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    ps_stop(rig.c, "stopped");
    for (int i = 0; i < 100; i++) {
        struct table_spec spec = make_spec("more");
        uint32_t table;

        spec.name[0] = (char)('a' + i % 20);
        assert_int_equal(ps_table(rig.c, &spec, &table, &err), -ECANCELED);
        assert_string_equal(err.text, "stopped");
        usleep(500);
    }
    tear_down(&rig);
}

static void a_worker_continues_at_the_greatest_clock_of_all_shards(void **state)
{
    struct fake_plan plan = { .n_shards = 3, .fault_at = -1, .join_clock = 9 };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan, NULL);
    assert_int_equal(ps_clock(rig.c), 9);
    tear_down(&rig);
}

static void a_reader_reads_without_joining(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1 };
    struct ps_options options = { .reader = true };
    float rows[N_KEYS * FAKE_DIM];
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, &options);
    assert_int_equal(pull_rows(rig.c, rig.table, 0, rows, &err), 0);
    assert_int_equal(ps_leave(rig.c, &err), 0);
    halt(&rig);
    assert_int_equal(rig.f->shards[0].n_joins, 0);
    tear_down(&rig);
}

#ifdef PS_FAULTS
/* Each allocation of the trainer's thread fails once. Pushes behind the first one have none: what that one took has come
 * back, as its answer comes before the pull's. */
static void a_call_without_memory_is_refused_and_changes_nothing(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1 };
    float rows[N_KEYS * FAKE_DIM];
    struct ps_pull_section pull = { .n_keys = N_KEYS, .keys = keys, .dst = rows };
    struct ps_pull *started;
    struct rig rig;
    struct err err;
    uint64_t clock;
    long k, n_failed = 0;
    int status;

    (void)state;
    set_up(&rig, &plan, NULL);
    pull.table = rig.table;
    for (clock = 0; clock < N_STEPS; clock++) {
        for (k = 0, status = -1; status; k++, n_failed += status != 0) {
            memory_fail_after(k);
            status = push_step(rig.c, rig.table, clock, &err);
            memory_fail_after(-1);
            assert_true(status == 0 || (status == -ENOMEM && clock == 0));
        }
        for (k = 0, status = -1; status; k++, n_failed += status != 0) {
            memory_fail_after(k);
            status = ps_pull_start(rig.c, clock + 1, &pull, 1, &started, &err);
            memory_fail_after(-1);
            assert_true(status == 0 || status == -ENOMEM);
        }
        assert_int_equal(ps_pull_wait(rig.c, started, &err), 0);
    }
    assert_true(n_failed > 5);
    assert_int_equal(ps_leave(rig.c, &err), 0);
    halt(&rig);
    check_applied_once(rig.f);
    tear_down(&rig);
}
#endif

static void an_operator_gets_the_json_text(void **state)
{
    struct fake *f = fake_start(&(struct fake_plan){ .n_shards = 1, .fault_at = -1 });
    struct fake *mute =
        fake_start(&(struct fake_plan){ .n_shards = 1, .fault_at = -1, .mute = true });
    char address[32], *json = NULL;
    struct err err;

    (void)state;
    fake_address(f, address);
    assert_int_equal(ask_status(address, 5000, &json, &err), 0);
    assert_string_equal(json, "{\"fake\":true}");
    free(json);
    fake_stop(f);
    assert_int_equal(ask_status(address, 5000, &json, &err), -ECONNREFUSED);
    assert_int_equal(ask_status("nowhere", 5000, &json, &err), -EINVAL);
    assert_int_equal(
        ps_admin_one(
            &(struct ps_admin_plan){ .token = "",
                                     .command = "a command that is much too long for its field",
                                     .argument = "",
                                     .timeout_ms = 5000 },
            address, &json, &err),
        -EINVAL);
    fake_address(mute, address);
    assert_int_equal(ask_status(address, 50, &json, &err), PS_EDEADLINE);
    assert_non_null(strstr(err.text, "no answer for 50 ms"));
    fake_stop(mute);
    fake_free(mute);
    fake_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_reads_what_it_has_pushed),
        cmocka_unit_test(a_refused_hello_ends_at_once_with_the_servers_sentence),
        cmocka_unit_test(a_port_of_http_is_reported_at_once),
        cmocka_unit_test(other_bytes_than_frames_are_a_broken_protocol),
        cmocka_unit_test(a_refused_push_is_reported_once_by_the_next_call),
        cmocka_unit_test(a_refused_pull_says_which_shard_and_why),
        cmocka_unit_test(a_pull_that_is_never_answered_ends_at_its_deadline),
        cmocka_unit_test(pushes_wait_for_space_in_the_window),
        cmocka_unit_test(
            a_push_does_not_wait_for_a_pull_of_another_thread_which_can_be_cancelled),
        cmocka_unit_test(a_pull_of_nothing_is_answered_by_every_shard),
        cmocka_unit_test(a_table_with_another_specification_is_refused_with_the_difference),
        cmocka_unit_test(behind_a_failure_no_table_is_asked_for),
        cmocka_unit_test(a_worker_continues_at_the_greatest_clock_of_all_shards),
        cmocka_unit_test(a_reader_reads_without_joining),
#ifdef PS_FAULTS
        cmocka_unit_test(a_call_without_memory_is_refused_and_changes_nothing),
#endif
        cmocka_unit_test(an_operator_gets_the_json_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) +
           cmocka_run_group_tests_name("I/O threads", tests, all_have_io_threads, NULL) +
           cmocka_run_group_tests_name("threads that drive", tests, all_drive, NULL);
}
