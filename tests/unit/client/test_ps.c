#include "worker/client/ps.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/route.h"
#include "tests/unit/client/fake_shard.h"

#define N_STEPS 4u
#define N_KEYS 12u

static struct table_spec make_spec(const char *name)
{
    struct table_spec spec = { .kind = SPEC_SPARSE,
                               .dim = FAKE_DIM,
                               .params = spec_optim_defaults(SPEC_SGD) };

    snprintf(spec.name, sizeof spec.name, "%s", name);
    return spec;
}

static struct ps_options make_options(const char *servers)
{
    return (struct ps_options){
        .servers = servers, .name = "test", .job = "j", .n_workers = 1, .mode = SPEC_MODE_ASYNC
    };
}

static const uint64_t keys[N_KEYS] = { 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, UINT64_MAX };

static void values_of_step(uint32_t step, float *values)
{
    uint32_t i;

    for (i = 0; i < N_KEYS * FAKE_DIM; i++)
        values[i] = (float)(step * 1000 + i + 1);
}

static int push_step(struct ps_client *c, uint32_t table, uint64_t clock, struct err *err)
{
    float values[N_KEYS * FAKE_DIM];
    struct ps_push_section push = {
        .table = table, .n_keys = N_KEYS, .keys = keys, .values = values
    };

    values_of_step((uint32_t)clock, values);
    return ps_push(c, clock, 8, true, &push, 1, err);
}

static int pull_rows(struct ps_client *c, uint32_t table, uint64_t clock, float *dst,
                     struct err *err)
{
    struct ps_pull_section pull = {
        .table = table, .n_keys = N_KEYS, .keys = keys, .dst = dst
    };
    int status = ps_pull_start(c, clock, &pull, 1, err);

    return status ? status : ps_pull_wait(c, err);
}

/* A little job: every step reads, checks what it reads, and pushes. */
static int run_job(const char *servers, struct ps_stats *stats, struct err *err)
{
    struct ps_options options = make_options(servers);
    const struct table_spec other = make_spec("other"), spec = make_spec("emb");
    float rows[N_KEYS * FAKE_DIM], want[N_KEYS * FAKE_DIM] = { 0 }, values[N_KEYS * FAKE_DIM];
    struct ps_client *c;
    uint32_t table = 0, step, i;
    int status = ps_open(&options, &c, err);

    if (status)
        return status;
    status = ps_table(c, &other, &table, err);
    if (!status)
        status = ps_table(c, &spec, &table, err);
    for (step = 0; step < N_STEPS && !status; step++) {
        status = pull_rows(c, table, step, rows, err);
        if (!status)
            assert_memory_equal(rows, want, sizeof want);
        values_of_step(step, values);
        for (i = 0; i < N_KEYS * FAKE_DIM; i++)
            want[i] += values[i];
        if (!status)
            status = push_step(c, table, step, err);
    }
    if (!status)
        status = ps_leave(c, err);
    ps_stats(c, stats);
    ps_close(c);
    return status;
}

/* Each push applied once on each shard, each row where it belongs, and the sums right. */
static void check_applied_once(struct fake *f)
{
    float want[N_KEYS * FAKE_DIM] = { 0 }, values[N_KEYS * FAKE_DIM];
    uint32_t step, i;

    for (step = 0; step < N_STEPS; step++) {
        values_of_step(step, values);
        for (i = 0; i < N_KEYS * FAKE_DIM; i++)
            want[i] += values[i];
    }
    for (i = 0; i < f->plan.n_shards; i++) {
        assert_int_equal(f->shards[i].n_applied, N_STEPS);
        assert_int_equal(f->shards[i].n_repeated, 0);
        assert_int_equal(f->shards[i].clock, N_STEPS);
    }
    for (i = 0; i < N_KEYS; i++)
        assert_memory_equal(
            fake_row(&f->shards[route_shard(keys[i], 0, f->plan.n_shards)], keys[i])->values,
            want + i * FAKE_DIM, FAKE_DIM * sizeof(float));
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
    bool reached = true;
    int status;

    for (plan.fault_at = 0; reached; plan.fault_at++) {
        f = fake_start(&plan);
        fake_address(f, address);
        status = run_job(address, &stats, &err);
        fake_stop(f);
        reached = f->n_frames > plan.fault_at;
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

/* A port where nobody listens. */
static int free_port(void)
{
    struct fake *f = fake_start(&(struct fake_plan){ .n_shards = 1 });
    int port = f->port;

    fake_stop(f);
    fake_free(f);
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

static void servers_that_never_come_end_in_a_sentence(void **state)
{
    char servers[64];
    struct ps_options options = make_options(servers);
    struct ps_client *c;
    struct err err;
    int port = free_port();

    (void)state;
    snprintf(servers, sizeof servers, "127.0.0.1:%d,localhost:%d", port, port);
    options.connect_ms = 100;
    assert_int_equal(ps_open(&options, &c, &err), PS_EDEADLINE);
    assert_non_null(strstr(err.text, "no answer for"));
    assert_non_null(strstr(err.text, status_text(-ECONNREFUSED)));
    options.servers = "nonsense";
    assert_int_equal(ps_open(&options, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "HOST:PORT"));
    options.servers = NULL;
    assert_int_equal(ps_open(&options, &c, &err), -EINVAL);
    options.n_workers = 0;
    assert_int_equal(ps_open(&options, &c, &err), -EINVAL);
}

static void a_refused_greeting_ends_at_once_with_the_servers_sentence(void **state)
{
    struct fake *f = fake_start(
        &(struct fake_plan){ .n_shards = 1, .fault_at = -1, .hello_status = PS_EGREETING });
    char address[32];
    struct ps_options options = make_options(address);
    struct ps_client *c;
    struct err err;

    (void)state;
    fake_address(f, address);
    assert_int_equal(ps_open(&options, &c, &err), PS_EGREETING);
    assert_non_null(strstr(err.text, "the fake refuses this greeting"));
    fake_stop(f);
    fake_free(f);
}

/* A client with one table, open on a fake. */
struct rig {
    struct fake *f;
    struct ps_client *c;
    uint32_t table;
    char address[32];
};

static void set_up(struct rig *rig, const struct fake_plan *plan, const struct ps_options *more)
{
    const struct table_spec spec = make_spec("emb");
    struct ps_options options = make_options(rig->address);
    struct err err;

    rig->f = fake_start(plan);
    fake_address(rig->f, rig->address);
    if (more)
        options = *more;
    options.servers = rig->address;
    if (ps_open(&options, &rig->c, &err) || ps_table(rig->c, &spec, &rig->table, &err))
        fail_msg("%s", err.text);
}

static void tear_down(struct rig *rig)
{
    ps_close(rig->c);
    fake_stop(rig->f);
    fake_free(rig->f);
}

static void a_worker_declared_dead_joins_anew_and_says_so_once(void **state)
{
    static const int types[] = { FRAME_PUSH, FRAME_PULL };
    struct fake_plan plan = {
        .n_shards = 3, .fault_at = 4, .fault = FAKE_REFUSE, .refusal = PS_EFENCED
    };
    float rows[N_KEYS * FAKE_DIM];
    struct ps_stats stats;
    uint32_t n_told, i;
    uint64_t clock;
    struct rig rig;
    struct err err;
    int status;
    size_t t;

    (void)state;
    for (t = 0; t < COUNT_OF(types); t++) {
        plan.fault_type = types[t];
        set_up(&rig, &plan, NULL);
        for (clock = 0, n_told = 0; clock < 6;) {
            status = pull_rows(rig.c, rig.table, clock, rows, &err);
            if (!status)
                status = push_step(rig.c, rig.table, clock, &err);
            if (!status)
                status = ps_flush(rig.c, &err);
            if (status) {
                assert_int_equal(status, PS_EFENCED);
                n_told++;
                assert_true(ps_clock(rig.c) >= clock);
                clock = ps_clock(rig.c);
            } else {
                clock++;
            }
        }
        assert_int_equal(n_told, 1);
        ps_stats(rig.c, &stats);
        assert_int_equal(stats.rejoins, 1);
        assert_int_equal(stats.reconnects, 0);
        assert_int_equal(ps_leave(rig.c, &err), 0);
        ps_close(rig.c);
        fake_stop(rig.f);
        for (i = 0; i < 3; i++) {
            assert_int_equal(rig.f->shards[i].n_joins, 2);
            assert_int_equal(rig.f->shards[i].clock, 6);
            assert_true(rig.f->shards[i].last_seq < 6); /* the numbers began anew */
        }
        fake_free(rig.f);
    }
}

static void a_refused_push_is_told_once_by_the_next_call(void **state)
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
    assert_int_equal(push_step(rig.c, rig.table, 0, &err), 0);
    assert_int_equal(ps_flush(rig.c, &err), 0);
    assert_int_equal(push_step(rig.c, rig.table, 1, &err), 0);
    assert_int_equal(ps_flush(rig.c, &err), PS_ENAN);
    assert_non_null(strstr(err.text, "refused push 2 of clock 1: the fake refuses this push"));
    assert_int_equal(ps_flush(rig.c, &err), 0);
    assert_int_equal(push_step(rig.c, rig.table, 2, &err), 0);
    assert_int_equal(ps_leave(rig.c, &err), 0);
    tear_down(&rig);
}

static void a_push_that_was_not_judged_is_sent_again(void **state)
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
    assert_int_equal(ps_pull_wait(rig.c, &err), -EINVAL);
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
    assert_int_equal(push_step(rig.c, rig.table, 0, &err), 0);
    assert_int_equal(ps_flush(rig.c, &err), 0);
    tear_down(&rig);
}

static void pushes_wait_for_room_in_the_window(void **state)
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
    ps_close(rig.c);
    fake_stop(rig.f);
    assert_int_equal(rig.f->shards[1].n_applied, 50);
    fake_free(rig.f);
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

static void a_worker_goes_on_at_the_greatest_clock_that_a_shard_tells(void **state)
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
    ps_close(rig.c);
    fake_stop(rig.f);
    assert_int_equal(rig.f->shards[0].n_joins, 0);
    fake_free(rig.f);
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
    assert_int_equal(push_step(rig.c, rig.table, 0, &err), 0);
    assert_int_equal(ps_flush(rig.c, &err), 0);
    fake_stop(rig.f);
    plan.port = rig.f->port;
    fake_free(rig.f);
    rig.f = fake_start(&plan); /* knows nothing */
    while ((status = ps_flush(rig.c, &err)) == 0)
        assert_int_equal(push_step(rig.c, rig.table, 1, &err) % PS_EFENCED, 0);
    assert_int_equal(status, PS_EFENCED);
    assert_int_equal(push_step(rig.c, rig.table, ps_clock(rig.c), &err), 0);
    assert_int_equal(ps_flush(rig.c, &err), 0);
    ps_stats(rig.c, &stats);
    assert_int_equal(stats.rejoins, 1);
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
    ps_close(rig.c);
    fake_free(rig.f);
}

static void a_rank_that_is_fenced_for_ever_gives_up(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1, .fences_all = true };
    struct fake *f = fake_start(&plan);
    char address[32];
    struct ps_options options = make_options(address);
    struct ps_client *c;
    struct err err;

    (void)state;
    fake_address(f, address);
    assert_int_equal(ps_open(&options, &c, &err), PS_EFENCED);
    assert_non_null(strstr(err.text, "another process running with the same rank"));
    fake_stop(f);
    fake_free(f);
}

static void an_operator_gets_the_json_text(void **state)
{
    struct fake *f = fake_start(&(struct fake_plan){ .n_shards = 1, .fault_at = -1 });
    struct fake *mute =
        fake_start(&(struct fake_plan){ .n_shards = 1, .fault_at = -1, .mute = true });
    char address[32], *json = NULL;
    struct err err;

    (void)state;
    fake_address(f, address);
    assert_int_equal(ps_admin(address, "", "status", "", 5000, &json, &err), 0);
    assert_string_equal(json, "{\"fake\":true}");
    free(json);
    fake_stop(f);
    assert_int_equal(ps_admin(address, "", "status", "", 5000, &json, &err), -ECONNREFUSED);
    assert_int_equal(ps_admin("nowhere", "", "status", "", 5000, &json, &err), -EINVAL);
    assert_int_equal(ps_admin(address, "", "a command that is much too long for its field", "",
                              5000, &json, &err),
                     -EINVAL);
    fake_address(mute, address);
    assert_int_equal(ps_admin(address, "", "status", "", 50, &json, &err), PS_EDEADLINE);
    assert_non_null(strstr(err.text, "no answer for 50 ms"));
    fake_stop(mute);
    fake_free(mute);
    fake_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_reads_what_it_has_pushed),
        cmocka_unit_test(a_push_arrives_once_wherever_the_connection_breaks),
        cmocka_unit_test(an_answer_that_comes_twice_counts_once),
        cmocka_unit_test(nonsense_from_a_server_is_survived),
        cmocka_unit_test(a_client_waits_for_servers_that_come_late),
        cmocka_unit_test(servers_that_never_come_end_in_a_sentence),
        cmocka_unit_test(a_refused_greeting_ends_at_once_with_the_servers_sentence),
        cmocka_unit_test(a_worker_declared_dead_joins_anew_and_says_so_once),
        cmocka_unit_test(a_refused_push_is_told_once_by_the_next_call),
        cmocka_unit_test(a_push_that_was_not_judged_is_sent_again),
        cmocka_unit_test(a_refused_pull_says_which_shard_and_why),
        cmocka_unit_test(a_pull_that_is_never_answered_ends_at_its_deadline),
        cmocka_unit_test(pushes_wait_for_room_in_the_window),
        cmocka_unit_test(a_table_with_another_specification_is_refused_with_the_difference),
        cmocka_unit_test(a_worker_goes_on_at_the_greatest_clock_that_a_shard_tells),
        cmocka_unit_test(a_reader_reads_without_joining),
        cmocka_unit_test(a_shard_that_has_lost_pushes_is_joined_anew),
        cmocka_unit_test(a_shard_that_stays_away_ends_every_wait_with_one_sentence),
        cmocka_unit_test(a_rank_that_is_fenced_for_ever_gives_up),
        cmocka_unit_test(an_operator_gets_the_json_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
