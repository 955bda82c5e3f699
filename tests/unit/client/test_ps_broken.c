/* Connections that break, servers that lie, come late, stay away or declare the worker dead. */
#include "tests/unit/client/fixture.h"

/* One fault at the k-th frame, for every k that the job reaches. Returns how many runs
 * ended well. */
static uint32_t fault_everywhere(enum fake_fault fault, uint32_t n_shards, bool may_fail)
{
    struct fake_plan plan = { .n_shards = n_shards, .fault = fault, .seed = 20261120 };
    uint32_t n_well = 0;
    struct ps_stats stats;
    char address[32];
    struct fake *f;
    struct err err;
    bool was_hit = true;
    int status;

    for (plan.fault_at = 0; was_hit; plan.fault_at++) {
        f = fake_start(&plan);
        fake_address(f, address);
        status = run_job(address, &stats, &err);
        fake_stop(f);
        was_hit = f->n_frames > plan.fault_at;
        if (status && !may_fail)
            print_error("fault %d at frame %ld: %s\n", (int)fault, plan.fault_at, err.text);
        if (status)
            assert_true(may_fail && err.text[0]);
        else
            check_applied_once(f);
        n_well += !status;
        fake_free(f);
    }
    return n_well;
}

static void a_push_arrives_once_wherever_the_connection_breaks(void **state)
{
    (void)state;
    fault_everywhere(FAKE_DROP_BEFORE, 2, false);
    fault_everywhere(FAKE_DROP_AFTER, 2, false);
}

static void an_answer_that_comes_twice_counts_once(void **state)
{
    (void)state;
    fault_everywhere(FAKE_REPEAT, 2, false);
}

static void nonsense_from_a_server_is_survived(void **state)
{
    (void)state;
    printf("seed 20261120\n");
    assert_true(fault_everywhere(FAKE_GARBAGE, 2, false) > 10);
    assert_true(fault_everywhere(FAKE_BAD_HEAD, 2, true) > 10);
}

struct late {
    struct fake_plan plan;
    struct fake *fake;
    char sentence[512];
};

static void start_server_on_notice(void *arg, const char *sentence)
{
    struct late *late = arg;

    if (late->fake)
        return;
    snprintf(late->sentence, sizeof late->sentence, "%s", sentence);
    late->fake = fake_start(&late->plan);
}

/* A port where nobody listens, below those that are given to outgoing connections: so nobody is given it meanwhile. */
static int free_port(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int port = 30000 + getpid() % 2000, fd, status;

    do {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        at.sin_port = htons((uint16_t)++port);
        status = bind(fd, (struct sockaddr *)&at, sizeof at);
        close(fd);
    } while (status);
    return port;
}

static void a_client_waits_for_servers_that_come_late(void **state)
{
    struct late late = { .plan = { .n_shards = 2, .fault_at = -1, .port = free_port() } };
    char servers[64], want[64];
    struct ps_options options = make_options(servers);
    struct ps_client *c;
    struct err err;

    (void)state;
    snprintf(want, sizeof want, "waiting for psd at 127.0.0.1:%d: ", late.plan.port);
    snprintf(servers, sizeof servers, "127.0.0.1:%d", late.plan.port);
    options.on_notice = start_server_on_notice;
    options.notice_arg = &late;
    assert_int_equal(ps_open(&options, &c, &err), 0);
    ps_close(c);
    assert_memory_equal(late.sentence, want, strlen(want));
    fake_stop(late.fake);
    fake_free(late.fake);
}

/* A port that refuses whoever comes, and that nobody else can be given meanwhile: bound, not listened on. */
static int take_closed_port(int *ret_port)
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t at_bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &at_bytes), 0);
    *ret_port = ntohs(at.sin_port);
    return fd;
}

static void servers_that_never_come_end_in_a_sentence(void **state)
{
    char servers[64] = "";
    struct ps_options options = make_options(servers);
    struct ps_client *c;
    struct err err;
    int port, fd = take_closed_port(&port);

    (void)state;
    snprintf(servers, sizeof servers, "127.0.0.1:%d,localhost:%d", port, port);
    options.connect_ms = 3000; /* enough to be refused in, however busy the machine */
    assert_int_equal(ps_open(&options, &c, &err), PS_EDEADLINE);
    assert_non_null(strstr(err.text, "no answer for"));
    assert_non_null(strstr(err.text, status_text(-ECONNREFUSED)));
    close(fd);
    options.servers = "nonsense";
    assert_int_equal(ps_open(&options, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "HOST:PORT"));
    options.servers = NULL;
    assert_int_equal(ps_open(&options, &c, &err), -EINVAL);
    options.n_workers = 0;
    assert_int_equal(ps_open(&options, &c, &err), -EINVAL);
}

static void a_worker_declared_dead_joins_anew_and_says_so_until_it_goes_on(void **state)
{
    static const int types[] = { FRAME_PUSH, FRAME_PULL };
    struct fake_plan plan = {
        .n_shards = 3, .fault_at = 4, .fault = FAKE_REFUSE, .refusal = PS_EFENCED
    };
    float rows[N_KEYS * FAKE_DIM];
    struct ps_stats stats;
    uint32_t n_reported, i;
    uint64_t clock;
    struct rig rig;
    struct err err;
    int status;
    size_t t;

    (void)state;
    for (t = 0; t < COUNT_OF(types); t++) {
        plan.fault_type = types[t];
        set_up(&rig, &plan, NULL);
        for (clock = 0, n_reported = 0; clock < 6;) {
            status = pull_rows(rig.c, rig.table, clock, rows, &err);
            if (!status)
                status = push_and_flush(&rig, clock, &err);
            if (status) {
                assert_int_equal(status, PS_EFENCED);
                n_reported++;
                assert_int_equal(ps_flush(rig.c, &err), PS_EFENCED); /* until ... */
                assert_true(ps_resume(rig.c) >= clock);
                clock = ps_clock(rig.c);
            } else {
                clock++;
            }
        }
        assert_int_equal(n_reported, 1);
        ps_stats(rig.c, &stats);
        assert_int_equal(stats.rejoins, 1);
        assert_int_equal(stats.reconnects, 0);
        assert_int_equal(ps_leave(rig.c, &err), 0);
        halt(&rig);
        for (i = 0; i < 3; i++) {
            assert_int_equal(rig.f->shards[i].n_joins, 2);
            assert_int_equal(rig.f->shards[i].clock, 6);
            assert_true(rig.f->shards[i].last_seq < 6); /* the numbers began anew */
        }
        tear_down(&rig);
    }
}

static void a_push_that_was_not_acknowledged_is_sent_again(void **state)
{
    static const int passing[] = { PS_ESEQ, PS_ENOJOIN, PS_ESTOPPING, -ENOMEM };
    struct ps_stats stats;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(passing); i++) {
        struct fake_plan plan = { .n_shards = 2,
                                  .fault_at = 2,
                                  .fault_type = FRAME_PUSH,
                                  .fault = FAKE_REFUSE,
                                  .refusal = passing[i] };
        struct fake *f = fake_start(&plan);
        char address[32];
        struct err err;

        fake_address(f, address);
        assert_int_equal(run_job(address, &stats, &err), PS_OK);
        assert_int_equal(stats.reconnects, 1);
        fake_stop(f);
        check_applied_once(f);
        fake_free(f);
    }
}

/* One that knows nothing takes its port. */
static void replace_node(struct rig *rig, struct fake_plan *plan)
{
    plan->port = rig->f->port;
    fake_stop(rig->f);
    fake_free(rig->f);
    rig->f = fake_start(plan);
}

static void a_shard_that_has_lost_pushes_is_joined_anew(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1 };
    struct ps_stats stats;
    struct rig rig;
    struct err err;
    int status;

    (void)state;
    set_up(&rig, &plan, NULL);
    assert_int_equal(push_and_flush(&rig, 0, &err), 0);
    replace_node(&rig, &plan);
    while ((status = ps_flush(rig.c, &err)) == 0)
        assert_int_equal(push_step(rig.c, rig.table, 1, &err) % PS_EFENCED, 0);
    assert_int_equal(status, PS_EFENCED);
    assert_int_equal(push_and_flush(&rig, ps_resume(rig.c), &err), 0);
    ps_stats(rig.c, &stats);
    assert_int_equal(stats.rejoins, 1);
    tear_down(&rig);
}

/* It has come back from before what the others know, a job that is over: there this worker stands further on. */
static void a_shard_that_comes_back_with_a_greater_clock_is_joined_anew(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1 };
    struct ps_stats stats;
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    assert_int_equal(ps_flush(rig.c, &err), 0);
    plan.join_clock = 5;
    replace_node(&rig, &plan);
    assert_int_equal(push_and_flush(&rig, 0, &err), PS_EFENCED);
    assert_int_equal(ps_resume(rig.c), 5);
    assert_int_equal(push_and_flush(&rig, 5, &err), 0);
    ps_stats(rig.c, &stats);
    assert_int_equal(stats.rejoins, 1);
    assert_int_equal(rig.f->shards[0].n_applied, 1);
    tear_down(&rig);
}

static void a_shard_that_stays_away_ends_every_wait_with_one_sentence(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1 };
    struct ps_options options = make_options(NULL);
    float rows[N_KEYS * FAKE_DIM];
    struct rig rig;
    struct err err, again;

    (void)state;
    options.give_up_ms = 100;
    set_up(&rig, &plan, &options);
    fake_stop(rig.f);
    assert_int_equal(pull_rows(rig.c, rig.table, 0, rows, &err), PS_EDEADLINE);
    assert_non_null(strstr(err.text, "shard 0 at "));
    assert_non_null(strstr(err.text, "has been away for"));
    assert_int_equal(push_step(rig.c, rig.table, 0, &again), PS_EDEADLINE);
    assert_string_equal(again.text, err.text);
    assert_int_equal(ps_leave(rig.c, &again), PS_EDEADLINE);
    tear_down(&rig);
}

static void a_rank_that_is_fenced_for_ever_gives_up(void **state)
{
    const struct fake_plan plan = { .n_shards = 2, .fault_at = -1, .fences_all = true };

    (void)state;
    assert_not_let_in(&plan, PS_EFENCED, "another process running with the same rank");
}

static void a_worker_whose_clock_is_behind_joins_as_the_next_incarnation(void **state)
{
    struct fake_plan plan = { .n_shards = 2,
                              .fault_at = -1,
                              .fenced_below = UINT64_C(1) << 60 };
    struct ps_stats stats;
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    assert_int_equal(push_and_flush(&rig, 0, &err), 0);
    ps_stats(rig.c, &stats);
    assert_int_equal(stats.rejoins, 1);
    halt(&rig);
    assert_true(rig.f->shards[0].incarnation >= plan.fenced_below);
    assert_true(rig.f->shards[1].incarnation == rig.f->shards[0].incarnation);
    tear_down(&rig);
}

/* The other one replaces this one after each push: so some always get through. */
static void two_processes_of_one_rank_do_not_fight_for_ever(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1, .fences_pushed = true };
    uint32_t n_reported = 0;
    struct rig rig;
    struct err err;
    int status;

    (void)state;
    set_up(&rig, &plan, NULL);
    do {
        status = push_and_flush(&rig, ps_resume(rig.c), &err);
        n_reported += status == PS_EFENCED;
        assert_true(n_reported < 20);
    } while (!status || !strstr(err.text, "another process running with the same rank"));
    assert_int_equal(n_reported, 6);
    assert_int_equal(ps_flush(rig.c, &err), PS_EFENCED);
    halt(&rig);
    assert_true(rig.f->shards[0].n_applied >= 5);
    tear_down(&rig);
}

static void a_refusal_whose_answer_was_lost_is_reported_to_the_trainer(void **state)
{
    struct fake_plan plan = { .n_shards = 1,
                              .fault_at = 0,
                              .fault_type = FRAME_PUSH,
                              .fault = FAKE_REFUSE_DROP,
                              .refusal = PS_ENAN };
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    assert_int_equal(push_step(rig.c, rig.table, 0, &err), 0);
    assert_int_equal(ps_flush(rig.c, &err), PS_ENAN);
    assert_non_null(strstr(err.text, "refused push 1 of clock 0: "));
    assert_non_null(strstr(err.text, status_text(PS_ENAN)));
    assert_int_equal(ps_flush(rig.c, &err), 0); /* once */
    tear_down(&rig);
}

static void a_full_server_is_waited_for(void **state)
{
    struct fake_plan plan = {
        .n_shards = 1, .fault_at = -1, .hello_status = -EMFILE, .hello_passes = true
    };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan, NULL); /* refused at the listener, and again at the shard */
    halt(&rig);
    assert_int_equal(rig.f->n_hellos, 4);
    tear_down(&rig);
}

/* Declared dead while a push is being made. */
struct fenced_push {
    struct ps_client *c;
    struct ps_pull *pull;
    bool asks;
    uv_sem_t joins_again;
};

static void on_notice(void *arg, const char *sentence)
{
    struct fenced_push *f = arg;

    if (strstr(sentence, "joining again"))
        uv_sem_post(&f->joins_again);
}

static uint64_t on_push(void *arg, uint32_t shard, const struct request *push)
{
    struct fenced_push *f = arg;
    struct err err;

    (void)shard;
    (void)push;
    if (f->asks) {
        assert_int_equal(ps_pull_start(f->c, 0, NULL, 0, &f->pull, &err), 0);
        uv_sem_wait(&f->joins_again);
    }
    f->asks = false;
    return 1;
}

static void a_worker_goes_on_behind_a_push_that_nobody_got(void **state)
{
    struct fake_plan plan = {
        .n_shards = 1, .fault_type = FRAME_PULL, .fault = FAKE_REFUSE, .refusal = PS_EFENCED
    };
    struct ps_options options = make_options(NULL);
    struct fenced_push f = { .asks = true };
    struct rig rig;
    struct err err;

    (void)state;
    assert_int_equal(uv_sem_init(&f.joins_again, 0), 0);
    options.on_notice = on_notice;
    options.notice_arg = &f;
    set_up(&rig, &plan, &options);
    f.c = rig.c;
    ps_set_tap(rig.c, &(struct ps_tap){ on_push, &f });
    assert_int_equal(push_step(rig.c, rig.table, 0, &err), 0);
    assert_int_equal(ps_flush(rig.c, &err), PS_EFENCED);
    assert_int_equal(ps_resume(rig.c),
                     1); /* else a pull ahead would say that step 0 is finished, before it is */
    assert_int_equal(ps_pull_wait(rig.c, f.pull, &err), PS_EFENCED);
    assert_int_equal(ps_pull_start(rig.c, 2, NULL, 0, &f.pull, &err), 0);
    assert_int_equal(ps_pull_wait(rig.c, f.pull, &err), 0);
    assert_int_equal(push_step(rig.c, rig.table, 1, &err), 0);
    assert_int_equal(ps_flush(rig.c, &err), 0);
    halt(&rig);
    assert_int_equal(rig.f->shards[0].unfinished, 1);
    assert_int_equal(rig.f->shards[0].n_applied, 1);
    tear_down(&rig);
    uv_sem_destroy(&f.joins_again);
}

/* It never pushes steps 1 to 3, so nobody may wait for them: not even a shard that has lost what it had said. */
static void a_worker_that_the_job_has_left_behind_has_no_unfinished_steps(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .job_clock = 4 };
    struct ps_options options = make_options(NULL);
    struct rig rig;
    struct err err;
    struct ps_pull *pull;

    (void)state;
    options.n_workers = 2;
    options.n_backups = 1;
    options.mode = TABLE_SPEC_MODE_BSP;
    set_up(&rig, &plan, &options);
    assert_int_equal(push_and_flush(&rig, 0, &err), 0);
    assert_int_equal(ps_pull_start(rig.c, 4, NULL, 0, &pull, &err), 0);
    assert_int_equal(ps_pull_wait(rig.c, pull, &err), 0);
    halt(&rig);
    assert_int_equal(rig.f->shards[0].unfinished, 0);
    assert_int_equal(rig.f->shards[1].unfinished, 0);
    tear_down(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_push_arrives_once_wherever_the_connection_breaks),
        cmocka_unit_test(an_answer_that_comes_twice_counts_once),
        cmocka_unit_test(nonsense_from_a_server_is_survived),
        cmocka_unit_test(a_client_waits_for_servers_that_come_late),
        cmocka_unit_test(servers_that_never_come_end_in_a_sentence),
        cmocka_unit_test(a_worker_declared_dead_joins_anew_and_says_so_until_it_goes_on),
        cmocka_unit_test(a_push_that_was_not_acknowledged_is_sent_again),
        cmocka_unit_test(a_shard_that_has_lost_pushes_is_joined_anew),
        cmocka_unit_test(a_shard_that_comes_back_with_a_greater_clock_is_joined_anew),
        cmocka_unit_test(a_shard_that_stays_away_ends_every_wait_with_one_sentence),
        cmocka_unit_test(a_rank_that_is_fenced_for_ever_gives_up),
        cmocka_unit_test(a_worker_whose_clock_is_behind_joins_as_the_next_incarnation),
        cmocka_unit_test(two_processes_of_one_rank_do_not_fight_for_ever),
        cmocka_unit_test(a_refusal_whose_answer_was_lost_is_reported_to_the_trainer),
        cmocka_unit_test(a_full_server_is_waited_for),
        cmocka_unit_test(a_worker_goes_on_behind_a_push_that_nobody_got),
        cmocka_unit_test(a_worker_that_the_job_has_left_behind_has_no_unfinished_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) +
           cmocka_run_group_tests_name("threads that drive", tests, all_drive, NULL);
}
