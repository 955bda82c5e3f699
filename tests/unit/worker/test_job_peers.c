/* What a server tells of the other workers, and servers that tell nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/client/fake_shard.h"
#include "worker/job_peers.h"

static struct fake *start(bool is_mute)
{
    return fake_start(&(struct fake_plan){ .n_shards = 1, .fault_at = -1, .mute = is_mute });
}

static void set_servers(struct settings *s, const char *before, const struct fake *f)
{
    char address[32];

    fake_address(f, address);
    snprintf(s->servers, sizeof s->servers, "%s%s", before, address);
}

/* Each question takes its time; after one there is none left. */
static void a_server_that_hangs_is_not_asked_for_longer_than_was_said(void **state)
{
    struct fake *f = start(true);
    struct settings s = { .job = "job", .finish_timeout_ms = 1 };
    struct job_peers_ends ends;

    (void)state;
    set_servers(&s, "", f);
    job_peers_find_ends(&(struct job_peers){ .settings = &s }, NULL, 1, &ends);
    fake_stop(f);
    assert_in_range(f->n_frames, 0, 1);
    assert_false(ends.is_known);
    assert_string_not_equal(ends.why_unknown, "");
    fake_free(f);
}

#define JOB_OF(own, others)                                                                   \
    "{\"jobs\":[{\"name\":\"job\",\"workers\":[{\"rank\":0,\"name\":\"own\",\"state\":\"" own \
    "\",\"clock\":9}," others "]}]}"
#define JOB(others) JOB_OF("left", others)

/* To rank 0, which has left. */
static struct job_peers_ends ask(const char *json, uint64_t silence_max_ms)
{
    struct fake *f =
        fake_start(&(struct fake_plan){ .n_shards = 1, .fault_at = -1, .admin = json });
    struct settings s = { .job = "job", .workers = 3, .finish_timeout_ms = 1 };
    struct job_peers_ends ends;

    set_servers(&s, "", f);
    job_peers_find_ends(&(struct job_peers){ .settings = &s }, NULL, silence_max_ms, &ends);
    fake_stop(f);
    fake_free(f);
    return ends;
}

static void a_worker_that_is_live_suspected_or_expected_is_waited_for(void **state)
{
    const char *states[] = {
        JOB("{\"rank\":1,\"name\":\"w1\",\"state\":\"live\",\"clock\":4}"),
        JOB("{\"rank\":1,\"name\":\"w1\",\"state\":\"suspected\",\"clock\":4}"),
        JOB("{\"rank\":1,\"name\":\"w1\",\"state\":\"expected\",\"clock\":0}"),
    };

    (void)state;
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        struct job_peers_ends ends = ask(states[i], 60000);

        assert_false(ends.is_known);
        assert_string_equal(ends.why_unknown, "rank 1 (w1) has not ended");
        assert_int_equal(ends.n_lost, 0);
        ends = ask(states[i], 0); /* who does not wait */
        assert_true(ends.is_known);
        assert_false(ends.has_left[1]);
    }
}

static void the_others_ends_and_their_last_steps_are_found(void **state)
{
    struct job_peers_ends ends =
        ask(JOB("{\"rank\":1,\"name\":\"w1\",\"state\":\"left\",\"clock\":7},"
                "{\"rank\":2,\"name\":\"w2\",\"state\":\"dead\",\"clock\":4}"),
            60000);

    (void)state;
    assert_true(ends.is_known && ends.has_left[1] && ends.is_lost[2]);
    assert_false(ends.has_left[0] || ends.is_lost[1] || ends.has_left[2]);
    assert_int_equal(ends.n_lost, 1);
    assert_int_equal(ends.clock[1], 7);
    assert_int_equal(ends.clock[2], 4);
}

static void a_worker_whose_farewell_was_lost_has_ended_too(void **state)
{
    struct job_peers_ends ends = ask(
        JOB_OF("dead", "{\"rank\":1,\"name\":\"w1\",\"state\":\"left\",\"clock\":7}"), 60000);

    (void)state;
    assert_true(ends.is_known && ends.has_left[1]);
    assert_false(ends.is_lost[0]);
    assert_int_equal(ends.n_lost, 0);
    ends =
        ask(JOB_OF("live", "{\"rank\":1,\"name\":\"w1\",\"state\":\"left\",\"clock\":7}"), 1);
    assert_false(ends.is_known);
}

/* --- where a standby has taken over --- */

#define ENDED JOB("{\"rank\":1,\"name\":\"w1\",\"state\":\"left\",\"clock\":7}")

struct knowing_store {
    struct param_store store;
    char moved_to[32];
};

static void know(const struct param_store *s, struct ps_stats *ret)
{
    const struct knowing_store *k = (const struct knowing_store *)(const void *)s;

    *ret = (struct ps_stats){ 0 };
    memcpy(ret->moved_to, k->moved_to, sizeof k->moved_to);
}

static const struct param_store_ops knowing = { .stats = know };

/* Of a job whose --servers names the dead primary alone. */
static void the_psd_that_took_over_is_asked_though_servers_does_not_name_it(void **state)
{
    struct fake *f =
        fake_start(&(struct fake_plan){ .n_shards = 1, .fault_at = -1, .admin = ENDED });
    struct knowing_store store = { .store.ops = &knowing };
    struct settings s = {
        .job = "job", .workers = 3, .finish_timeout_ms = 60000, .servers = "127.0.0.1:1"
    };
    const struct job_peers peers = { &s, &store.store };
    struct job_peers_ends ends;
    char why[JOB_PEERS_WHY_MAX];

    (void)state;
    fake_address(f, store.moved_to);
    job_peers_find_ends(&peers, NULL, 60000, &ends);
    assert_true(ends.is_known && ends.has_left[1]);
    job_peers_why(&peers, why);
    assert_null(strstr(why, "no server says"));
    fake_stop(f);
    fake_free(f);
}

/* The first of --servers is the standby now, and has nothing to say. */
static void the_primary_that_a_standby_names_is_asked(void **state)
{
    struct fake *standby = fake_start(
                    &(struct fake_plan){ .n_shards = 1, .fault_at = -1, .admin = "{}" }),
                *primary = fake_start(
                    &(struct fake_plan){ .n_shards = 1, .fault_at = -1, .admin = ENDED });
    struct settings s = { .job = "job", .workers = 3, .finish_timeout_ms = 60000 };
    struct job_peers_ends ends;

    (void)state;
    fake_become(standby, FAKE_STANDBY, 7, primary, standby, NULL);
    fake_become(primary, FAKE_PRIMARY, 7, primary, standby, NULL);
    set_servers(&s, "", standby);
    job_peers_find_ends(&(struct job_peers){ .settings = &s }, NULL, 60000, &ends);
    assert_true(ends.is_known && ends.has_left[1]);
    fake_stop(standby);
    fake_stop(primary);
    fake_free(standby);
    fake_free(primary);
}

static void whoever_of_the_servers_answers_is_asked(void **state)
{
    struct fake *f = start(false);
    struct settings s = { .job = "job" };
    char why[JOB_PEERS_WHY_MAX];

    (void)state;
    set_servers(&s, "127.0.0.1:1 , ", f);
    do
        job_peers_why(&(struct job_peers){ .settings = &s }, why);
    while (strstr(why, "no answer for")); /* of a machine that stalls */
    assert_string_equal(why, "the servers know of no wait");
    snprintf(s.servers, sizeof s.servers, "127.0.0.1:1");
    job_peers_why(&(struct job_peers){ .settings = &s }, why);
    assert_string_equal(why,
                        "no server says for what (psd at 127.0.0.1:1: Connection refused)");
    fake_stop(f);
    fake_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_that_hangs_is_not_asked_for_longer_than_was_said),
        cmocka_unit_test(a_worker_that_is_live_suspected_or_expected_is_waited_for),
        cmocka_unit_test(the_others_ends_and_their_last_steps_are_found),
        cmocka_unit_test(a_worker_whose_farewell_was_lost_has_ended_too),
        cmocka_unit_test(the_psd_that_took_over_is_asked_though_servers_does_not_name_it),
        cmocka_unit_test(the_primary_that_a_standby_names_is_asked),
        cmocka_unit_test(whoever_of_the_servers_answers_is_asked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
