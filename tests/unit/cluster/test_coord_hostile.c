/* What listens on etcd's port may be anything: nothing that it sends does harm, and the next endpoint is asked. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "server/cluster/coord_etcd.h"
#include "tests/unit/cluster/coord_calls.h"
#include "tests/unit/cluster/fake_etcd.h"

#define HEADER "\"header\":{\"revision\":\"9\"}"
#define KEY_A "L3BzZC90L2E=" /* /psd/t/a */
#define GOOD                                 \
    "{" HEADER ",\"kvs\":[{\"key\":\"" KEY_A \
    "\",\"mod_revision\":\"7\",\"value\":\"eA==\"}],\"count\":\"1\"}"

struct fixture {
    uv_loop_t loop;
    struct fake_etcd bad, good;
    struct coord *c;
    const char *body; /* of the bad one's answers */
    int n_watches, n_lists;
    struct fake_connection *stream; /* the good one's newest */
};

static void answer_well(struct fake_etcd *f, struct fake_connection *to, const char *path,
                        const char *body)
{
    struct fixture *x = f->arg;

    (void)body;
    if (strcmp(path, "/v3/watch") == 0) {
        fake_etcd_begin(to);
        fake_etcd_send(to, "{\"result\":{" HEADER ",\"created\":true}}\n",
                       strlen("{\"result\":{" HEADER ",\"created\":true}}\n"));
        x->n_watches++;
        x->stream = to;
        return;
    }
    x->n_lists++;
    fake_etcd_answer(to, GOOD);
}

typedef void on_request(struct fake_etcd *f, struct fake_connection *to, const char *path,
                        const char *body);

/* The bad one is asked first. n_endpoints 1: there is no other. */
static void start(struct fixture *f, on_request *answer, int n_endpoints)
{
    char url[80];
    struct err err;

    *f = (struct fixture){ 0 };
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->bad.arg = f->good.arg = f;
    f->bad.on_request = answer;
    f->good.on_request = answer_well;
    fake_etcd_start(&f->bad, &f->loop);
    fake_etcd_start(&f->good, &f->loop);
    snprintf(url, sizeof url,
             n_endpoints == 1 ? "etcd://127.0.0.1:%d/t" : "etcd://127.0.0.1:%d,127.0.0.1:%d/t",
             f->bad.port, f->good.port);
    assert_int_equal(
        coord_etcd_open(&(struct coord_options){ .url = url }, &f->loop, &f->c, &err), 0);
}

static void stop(struct fixture *f)
{
    calls_close(&f->loop, f->c);
    fake_etcd_stop(&f->bad);
    fake_etcd_stop(&f->good);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
}

static void answer_body(struct fake_etcd *f, struct fake_connection *to, const char *path,
                        const char *body)
{
    (void)path, (void)body;
    fake_etcd_answer(to, ((struct fixture *)f->arg)->body);
}

static void whatever_is_not_etcds_answer_is_refused_and_the_next_endpoint_asked(void **state)
{
    char *deep = malloc(100001);
    const char *bodies[] = {
        "",
        "Not Found",
        "<html>",
        "[]",
        "42",
        "{",
        "{\"kvs\":",
        "{}",
        "{\"header\":7}",
        "{\"header\":{\"revision\":\"x\"}}",
        "{\"header\":{\"revision\":\"99999999999999999999\"}}",
        "{\"header\":{\"revision\":1e300}}",
        "{\"header\":{\"revision\":[]}}",
        "{" HEADER ",\"kvs\":{}}",
        "{" HEADER ",\"kvs\":[7]}",
        "{" HEADER ",\"kvs\":[{}]}",
        "{" HEADER ",\"kvs\":[{\"key\":7,\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"L3BzZ\",\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"L3BzZC90L2E*\",\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"b3RoZXI=\",\"mod_revision\":\"1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"" KEY_A "\",\"mod_revision\":\"-1\"}]}",
        "{" HEADER ",\"kvs\":[{\"key\":\"" KEY_A "\",\"mod_revision\":\"1\",\"value\":[]}]}",
        "{\"error\":\"etcdserver: no leader\",\"message\":\"etcdserver: no "
        "leader\",\"code\":14}",
        "{\"error\":7}",
        deep,
    };

    (void)state;
    memset(deep, '[', 100000);
    deep[100000] = '\0';
    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        const struct calls_answer *a;
        struct fixture f;

        start(&f, answer_body, 2);
        f.body = bodies[i];
        a = calls_get(&f.loop, f.c, "a", false, 5000);
        if (a->err.status || a->result.n_items != 1 || f.bad.n_requests != 1)
            fail_msg("%.60s: %s", bodies[i], a->err.text);
        assert_string_equal(a->items[0].value, "x");
        stop(&f);

        start(&f, answer_body, 1);
        f.body = bodies[i];
        a = calls_get(&f.loop, f.c, "a", false, 120);
        assert_int_equal(a->err.status, PS_EDEADLINE);
        assert_non_null(strstr(a->err.text, "127.0.0.1:"));
        stop(&f);
    }
    free(deep);
}

static void answer_nothing(struct fake_etcd *f, struct fake_connection *to, const char *path,
                           const char *body)
{
    (void)f, (void)to, (void)path, (void)body;
}

static void answer_by_closing(struct fake_etcd *f, struct fake_connection *to, const char *path,
                              const char *body)
{
    (void)f, (void)path, (void)body;
    fake_etcd_close(to);
}

/* Until the reader has had enough. */
static void answer_without_end(struct fake_etcd *f, struct fake_connection *to,
                               const char *path, const char *body)
{
    char *bytes = malloc(2 * COORD_ANSWER_MAX);

    (void)f, (void)path, (void)body;
    memset(bytes, ' ', 2 * COORD_ANSWER_MAX);
    fake_etcd_begin(to);
    fake_etcd_send(to, bytes, 2 * COORD_ANSWER_MAX);
    free(bytes);
}

static void whoever_is_silent_closes_or_never_ends_costs_one_attempt(void **state)
{
    on_request *answers[] = { answer_nothing, answer_by_closing, answer_without_end };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(answers); i++) {
        struct fixture f;
        const struct calls_answer *a;
        uint64_t since = clock_mono_ms();

        start(&f, answers[i], 2);
        a = calls_get(&f.loop, f.c, "a", false, 5000);
        assert_int_equal(a->err.status, 0);
        assert_true(clock_mono_ms() - since < COORD_ETCD_ATTEMPT_MS + 1000);
        since = clock_mono_ms();
        a = calls_get(&f.loop, f.c, "a", false, 5000); /* is remembered */
        assert_int_equal(a->err.status, 0);
        assert_int_equal(f.bad.n_requests, 1);
        stop(&f);
    }
}

/* The first one says why it takes nobody; then it is silent. */
static void close_once(struct fake_etcd *f, struct fake_connection *to, const char *path,
                       const char *body)
{
    (void)path, (void)body;
    if (f->n_requests == 1)
        fake_etcd_close(to);
}

static void
an_attempt_with_little_time_left_does_not_hide_why_the_one_before_it_failed(void **state)
{
    struct fixture f;
    const struct calls_answer *a;

    (void)state;
    start(&f, close_once, 1);
    a = calls_get(&f.loop, f.c, "a", false, 300);
    assert_int_equal(a->err.status, PS_EDEADLINE);
    assert_int_equal(f.bad.n_requests, 2);
    if (!strstr(a->err.text, "does it want TLS (coord-ca)"))
        fail_msg("%s", a->err.text);
    stop(&f);

    start(&f, answer_nothing, 1); /* the first attempt itself: nothing tells more */
    a = calls_get(&f.loop, f.c, "a", false, 100);
    assert_int_equal(a->err.status, PS_EDEADLINE);
    assert_non_null(strstr(a->err.text, "timed out"));
    stop(&f);

    start(&f, close_once, 1); /* one that had its whole time counts */
    a = calls_get(&f.loop, f.c, "a", false, 900);
    assert_int_equal(a->err.status, PS_EDEADLINE);
    assert_non_null(strstr(a->err.text, "timed out"));
    stop(&f);
}

static void answer_slowly(struct fake_etcd *f, struct fake_connection *to, const char *path,
                          const char *body)
{
    (void)f, (void)path, (void)body;
    fake_etcd_answer_in_pieces(to, GOOD);
}

static void an_answer_may_come_a_byte_at_a_time(void **state)
{
    struct fixture f;
    const struct calls_answer *a;

    (void)state;
    start(&f, answer_slowly, 1);
    a = calls_get(&f.loop, f.c, "a", false, 5000);
    assert_int_equal(a->err.status, 0);
    assert_string_equal(a->items[0].value, "x");
    stop(&f);
}

/* The first transaction is made, its answer lost; to the second the store says what it has. */
static void lose_the_first(struct fake_etcd *f, struct fake_connection *to, const char *path,
                           const char *body)
{
    struct fixture *x = f->arg;

    (void)path;
    assert_non_null(strstr(body, "\"mod_revision\":\"6\""));
    if (f->n_requests == 1)
        fake_etcd_close(to);
    else
        fake_etcd_answer(to, x->body);
}

static void
a_transaction_whose_answer_was_lost_was_made_if_its_keys_are_what_it_would_have_written(
    void **state)
{
    static const struct {
        const char *response;
        bool is_made;
        int64_t revision;
    } cases[] = {
        { "{\"response_range\":{" HEADER ",\"kvs\":[{\"key\":\"" KEY_A
          "\",\"mod_revision\":\"7\",\"value\":\"eA==\"}]}}",
          true, 7 },
        { "{\"response_range\":{" HEADER ",\"kvs\":[{\"key\":\"" KEY_A
          "\",\"mod_revision\":\"7\",\"value\":\"eQ==\"}]}}",
          false, 9 },
        { "{\"response_range\":{" HEADER ",\"kvs\":[{\"key\":\"" KEY_A
          "\",\"mod_revision\":\"7\",\"value\":\"eA==\",\"lease\":\"5\"}]}}",
          false, 9 },
        { "{\"response_range\":{" HEADER "}}", false, 9 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct fixture f;
        const struct calls_answer *a;
        char body[400];

        start(&f, lose_the_first, 1);
        snprintf(body, sizeof body, "{" HEADER ",\"responses\":[%s]}", cases[i].response);
        f.body = body;
        a = calls_put(&f.loop, f.c, "a", 6, "x");
        assert_int_equal(a->err.status, 0);
        assert_int_equal(f.bad.n_requests, 2);
        assert_int_equal(a->result.is_made, cases[i].is_made);
        assert_int_equal(a->result.revision, cases[i].revision);
        stop(&f);
    }
}

static void
a_transaction_without_an_answer_may_have_been_made_and_the_sentence_says_so(void **state)
{
    struct fixture f;
    struct coord_write write = { .change = COORD_PUT, .key = "a", .value = "x" };
    const struct calls_answer *a;

    (void)state;
    start(&f, answer_nothing, 1);
    a = calls_put_if(&f.loop, f.c, &write, 1, 200);
    assert_int_equal(a->err.status, PS_EDEADLINE);
    assert_non_null(strstr(a->err.text, "may have been made"));
    stop(&f);
}

/* A watch there begins well, and goes on with the body. */
static void stream_body(struct fake_etcd *f, struct fake_connection *to, const char *path,
                        const char *body)
{
    static const char created[] = "{\"result\":{" HEADER ",\"created\":true}}\n";
    struct fixture *x = f->arg;

    (void)body;
    if (strcmp(path, "/v3/watch") != 0) {
        fake_etcd_answer(to, "{" HEADER "}");
        return;
    }
    fake_etcd_begin(to);
    fake_etcd_send(to, created, sizeof created - 1);
    if (!x->body)
        answer_without_end(f, to, path, body);
    else
        fake_etcd_send(to, x->body, strlen(x->body));
    if (x->body && !x->body[0])
        fake_etcd_close(to);
}

static void whatever_a_stream_brings_the_watch_goes_on_elsewhere(void **state)
{
    const char *bodies[] = {
        "",   /* it is cut */
        NULL, /* it never ends a line */
        "garbage\n",
        "{}\n",
        "{\"error\":{\"grpc_code\":14,\"http_code\":503,\"message\":\"etcdserver: no "
        "leader\"}}\n",
        "{\"result\":{" HEADER ",\"canceled\":true}}\n",
        "{\"result\":{" HEADER ",\"events\":[{}]}}\n",
        "{\"result\":{" HEADER ",\"events\":[{\"type\":\"EH\",\"kv\":{}}]}}\n",
        "{\"result\":{" HEADER ",\"events\":7}}\n",
        "{\"result\":{\"header\":{},\"canceled\":true,\"compact_revision\":\"12\"}}\n",
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        struct fixture f;
        struct calls_view view = { 0 };
        const bool is_compaction = i + 1 == COUNT_OF(bodies);

        start(&f, stream_body, 2);
        f.body = bodies[i];
        f.c->ops->watch(f.c, "", calls_on_event, &view);
        while (is_compaction ? view.n_all < 2 : f.n_watches == 0)
            uv_run(&f.loop, UV_RUN_ONCE);
        assert_int_equal(view.n_away, 0);
        stop(&f);
    }
}

static void run_for(struct fixture *f, uint64_t ms)
{
    const uint64_t until_ms = clock_mono_ms() + ms;

    while (clock_mono_ms() < until_ms) {
        uv_run(&f->loop, UV_RUN_NOWAIT);
        usleep(1000);
    }
}

static void a_watch_that_fails_again_and_again_asks_less_and_less_often(void **state)
{
    on_request *answers[] = { answer_by_closing, stream_body };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(answers); i++) {
        struct fixture f;
        struct calls_view view = { 0 };
        uint64_t since_ms;
        int n_before;

        start(&f, answers[i], 1);
        f.body = ""; /* a stream is cut as soon as it has begun */
        f.c->ops->watch(f.c, "", calls_on_event, &view);
        run_for(&f, 1000);
        assert_in_range(f.bad.n_requests, 4, 12); /* after 50 ms, 100, 200, 400, 800: or half */
        n_before = f.bad.n_requests;
        run_for(&f, 2000);
        assert_in_range(f.bad.n_requests - n_before, 2, 5);

        f.bad.on_request = answer_well; /* and comes back within the longest pause */
        since_ms = clock_mono_ms();
        while (f.n_watches == 0)
            uv_run(&f.loop, UV_RUN_ONCE);
        assert_true(clock_mono_ms() - since_ms < 1500);
        run_for(&f, 1500);
        assert_true(view.n_back == view.n_away);

        n_before = f.bad.n_requests; /* a stream that has lasted is begun again at once */
        f.bad.on_request = answers[i];
        fake_etcd_close(f.stream);
        run_for(&f, 300);
        assert_in_range(f.bad.n_requests - n_before, 2, 6);
        stop(&f);
    }
}

/* Whatever revision a watch asks for. */
static void say_compacted(struct fake_etcd *f, struct fake_connection *to, const char *path,
                          const char *body)
{
    static const char line[] =
        "{\"result\":{" HEADER ",\"created\":true}}\n{\"result\":{" HEADER
        ",\"canceled\":true,\"compact_revision\":\"8\"}}\n";

    if (strcmp(path, "/v3/watch") != 0) {
        answer_well(f, to, path, body);
        return;
    }
    fake_etcd_begin(to);
    fake_etcd_send(to, line, sizeof line - 1);
}

static void a_watch_whose_revision_is_compacted_each_time_asks_less_and_less_often(void **state)
{
    struct fixture f;
    struct calls_view view = { 0 };

    (void)state;
    start(&f, say_compacted, 1);
    f.c->ops->watch(f.c, "", calls_on_event, &view);
    run_for(&f, 1500);
    assert_in_range(f.n_lists, 3, 9); /* at once, after 50 ms, 100, 200, 400, 800: or half */
    stop(&f);
}

/* Its stream says nothing, whatever changes. */
static void be_silent_about_changes(struct fake_etcd *f, struct fake_connection *to,
                                    const char *path, const char *body)
{
    struct fixture *x = f->arg;

    if (strcmp(path, "/v3/watch") != 0 && !strstr(body, "min_mod_revision")) {
        fake_etcd_answer(to, "{" HEADER "}");
        return;
    }
    answer_well(f, to, path, body);
    x->n_watches = 0;
}

static void a_watch_that_is_silent_about_a_change_is_found_out(void **state)
{
    struct fixture f;
    struct calls_view view = { 0 };

    (void)state;
    start(&f, be_silent_about_changes, 2);
    f.c->ops->watch(f.c, "", calls_on_event, &view);
    while (f.n_watches == 0)
        uv_run(&f.loop, UV_RUN_ONCE);
    assert_int_equal(view.n_all, 1);
    stop(&f);
}

struct restless {
    struct fixture *f;
    struct coord_watch *w;
    int n;
};

static void on_restless(void *arg, const struct coord_event *event)
{
    struct restless *r = arg;

    assert_int_equal(event->kind, COORD_ALL);
    r->f->c->ops->unwatch(r->w);
    if (++r->n < 5)
        r->w = r->f->c->ops->watch(r->f->c, "", on_restless, r);
}

static void a_watch_may_end_and_begin_within_its_own_event(void **state)
{
    struct fixture f;
    struct restless r = { .f = &f };

    (void)state;
    start(&f, answer_well, 2);
    r.w = f.c->ops->watch(f.c, "", on_restless, &r);
    while (r.n < 5)
        uv_run(&f.loop, UV_RUN_ONCE);
    stop(&f);
}

static void calls_under_way_end_when_the_connection_is_closed(void **state)
{
    struct fixture f;
    struct calls_answer answers[3] = { 0 };
    struct calls_view view = { 0 };

    (void)state;
    start(&f, answer_nothing, 1);
    f.c->ops->watch(f.c, "", calls_on_event, &view);
    for (int i = 0; i < 3; i++)
        f.c->ops->get(f.c, "a", false, 60000, calls_on_done, &answers[i]);
    while (f.bad.n_requests < 4)
        uv_run(&f.loop, UV_RUN_ONCE);
    stop(&f);
    for (int i = 0; i < 3; i++)
        assert_int_equal(answers[i].err.status, -ECANCELED);
}

static void an_address_that_makes_no_sense_is_refused_with_a_sentence(void **state)
{
    static const char *const urls[] = {
        "",
        "127.0.0.1:2379",
        "etcd://127.0.0.1:2379",
        "etcd:///prod",
        "etcd://127.0.0.1/prod",
        "etcd://127.0.0.1:2379/",
        "etcd://127.0.0.1:2379/a b",
        "etcd://127.0.0.1:2379/a/b",
        "etcd://a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1/x",
        "http://127.0.0.1:2379/prod",
        "etcd://h:1/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    };
    uv_loop_t loop;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    for (size_t i = 0; i < COUNT_OF(urls); i++) {
        struct coord *c;
        struct err err = { 0 };

        assert_int_equal(
            coord_etcd_open(&(struct coord_options){ .url = urls[i] }, &loop, &c, &err),
            PS_ESETTING);
        assert_true(strlen(err.text) > 20);
    }
    assert_int_equal(uv_loop_close(&loop), 0);
}

#define TOKEN_MS 1200u /* longer than the pause between two tries for one */

struct slow_token {
    uv_timer_t timer;
    struct fake_connection *to;
};

static void on_token(uv_timer_t *timer)
{
    const struct slow_token *slow = timer->data;

    fake_etcd_answer(slow->to, "{" HEADER ",\"token\":\"t.1\"}");
}

static void check_password_slowly(struct fake_etcd *f, struct fake_connection *to,
                                  const char *path, const char *body)
{
    struct slow_token *slow = f->arg;

    (void)body;
    if (strcmp(path, "/v3/auth/authenticate") != 0) {
        fake_etcd_answer(to, GOOD);
        return;
    }
    slow->to = to;
    uv_timer_start(&slow->timer, on_token, TOKEN_MS, 0);
}

/* The loop, on which etcd is here, too, turns meanwhile. */
static void a_token_may_be_a_while_in_coming(void **state)
{
    char url[80], password[] = "/tmp/psd-password-XXXXXX";
    const int fd = mkstemp(password);
    struct slow_token slow = { 0 };
    struct fake_etcd etcd = { .on_request = check_password_slowly, .arg = &slow };
    const struct calls_answer *a;
    struct coord *c;
    struct err err;
    uv_loop_t loop;

    (void)state;
    assert_true(fd >= 0 && write(fd, "secret\n", 7) == 7 && close(fd) == 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    uv_timer_init(&loop, &slow.timer);
    slow.timer.data = &slow;
    fake_etcd_start(&etcd, &loop);
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d/t", etcd.port);
    assert_int_equal(
        coord_etcd_open(
            &(struct coord_options){ .url = url, .user = "u", .password_file = password },
            &loop, &c, &err),
        0);
    a = calls_get(&loop, c, "a", false, 4000);
    if (a->err.status)
        fail_msg("%s", a->err.text);
    calls_close(&loop, c);
    fake_etcd_stop(&etcd);
    uv_close((uv_handle_t *)&slow.timer, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    unlink(password);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_is_not_etcds_answer_is_refused_and_the_next_endpoint_asked),
        cmocka_unit_test(whoever_is_silent_closes_or_never_ends_costs_one_attempt),
        cmocka_unit_test(
            an_attempt_with_little_time_left_does_not_hide_why_the_one_before_it_failed),
        cmocka_unit_test(an_answer_may_come_a_byte_at_a_time),
        cmocka_unit_test(
            a_transaction_whose_answer_was_lost_was_made_if_its_keys_are_what_it_would_have_written),
        cmocka_unit_test(
            a_transaction_without_an_answer_may_have_been_made_and_the_sentence_says_so),
        cmocka_unit_test(whatever_a_stream_brings_the_watch_goes_on_elsewhere),
        cmocka_unit_test(a_watch_that_fails_again_and_again_asks_less_and_less_often),
        cmocka_unit_test(
            a_watch_whose_revision_is_compacted_each_time_asks_less_and_less_often),
        cmocka_unit_test(a_watch_that_is_silent_about_a_change_is_found_out),
        cmocka_unit_test(a_watch_may_end_and_begin_within_its_own_event),
        cmocka_unit_test(calls_under_way_end_when_the_connection_is_closed),
        cmocka_unit_test(an_address_that_makes_no_sense_is_refused_with_a_sentence),
        cmocka_unit_test(a_token_may_be_a_while_in_coming),
    };

    signal(SIGPIPE, SIG_IGN); /* of the fake server: libuv writes to who has left */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
