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

    (void)state;
    set_servers(&s, "", f);
    job_peers_wait(&s, NULL);
    fake_stop(f);
    assert_in_range(f->n_frames, 0, 1);
    fake_free(f);
}

static void whoever_of_the_servers_answers_is_asked(void **state)
{
    struct fake *f = start(false);
    struct settings s = { .job = "job" };
    char why[JOB_PEERS_WHY_MAX];

    (void)state;
    set_servers(&s, "127.0.0.1:1 , ", f);
    do
        job_peers_why(&s, why);
    while (strstr(why, "no answer for")); /* of a machine that stalls */
    assert_string_equal(why, "the servers know of no wait");
    snprintf(s.servers, sizeof s.servers, "127.0.0.1:1");
    job_peers_why(&s, why);
    assert_string_equal(why,
                        "no server says for what (psd at 127.0.0.1:1: Connection refused)");
    fake_stop(f);
    fake_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_that_hangs_is_not_asked_for_longer_than_was_said),
        cmocka_unit_test(whoever_of_the_servers_answers_is_asked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
