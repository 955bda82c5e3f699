/* Server-sent events to readers that are fast, slow, gone, or too many. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "common/clock.h"
#include "server/admin/events.h"
#include "tests/unit/admin/fixture.h"

#define REQUEST_MS 600000u
#define ANSWER_BYTES (1 << 20)

/* A server that has nothing but events. */
struct server {
    struct fixture fixture;
    struct events *events;
    struct http_server *http;
};

static void with_report(void *node, void (*use)(void *arg, const struct node_report *report),
                        void *arg)
{
    use(arg, node);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **request_state)
{
    struct server *s = arg;

    (void)url, (void)version, (void)upload, (void)upload_bytes;
    if (!*request_state) {
        *request_state = s;
        return MHD_YES;
    }
    return events_send(s->events, s->http, connection, method);
}

static const struct http_server_events server_events = { .on_request = on_request };

static void start(struct server *s)
{
    const struct http_server_config config = { .address = "127.0.0.1:0",
                                               .names = { .self = "", .refusal = "\n" },
                                               .request_ms = REQUEST_MS,
                                               .idle_ms = 600000,
                                               .address_max = 64,
                                               .connections_max = 256,
                                               .events = &server_events,
                                               .owner = s };
    struct err err = { 0 };

    *s = (struct server){ 0 };
    fixture_init(&s->fixture);
    s->events = memory_need(events_new(with_report, &s->fixture.node));
    assert_int_equal(events_keep_history(s->events, 2, &err), 0);
    assert_int_equal(http_server_open(&config, &s->http, &err), 0);
    assert_int_equal(http_server_start(s->http, &err), 0);
}

static void stop(struct server *s)
{
    events_stop(s->events);
    http_server_stop(s->http);
    events_free(s->events);
    http_server_free(s->http);
    fixture_deinit(&s->fixture);
}

/* A second later. */
static void make(struct server *s)
{
    s->fixture.node.clock_mono_ms += 1000;
    events_make(s->events);
}

static int connector(const struct server *s, int receive_bytes)
{
    const struct timeval patience = { .tv_sec = 60 };
    struct sockaddr_in to = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (receive_bytes)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    to.sin_port = htons((uint16_t)atoi(strrchr(http_server_address(s->http), ':') + 1));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static int ask(const struct server *s, int receive_bytes)
{
    static const char request[] =
        "GET /events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    int fd = connector(s, receive_bytes);

    assert_int_equal(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
    return fd;
}

static void wait_for_listeners(struct server *s, uint32_t n)
{
    uint64_t until_ms = clock_mono_ms() + 30000;

    while (events_n_listeners(s->events) != n && clock_mono_ms() < until_ms)
        (void)poll(NULL, 0, 2); /* between two looks */
    assert_int_equal(events_n_listeners(s->events), n);
}

/* Up to the end of the next event, or of the answer; what had been read goes on. */
static bool read_event(int fd, char *answer)
{
    size_t n = strlen(answer);
    const char *end;

    while (!(end = strstr(answer, "}\n\n"))) {
        ssize_t more = recv(fd, answer + n, ANSWER_BYTES - 1 - n, 0);

        if (more <= 0)
            return false;
        n += (size_t)more;
        answer[n] = '\0';
    }
    memmove(answer, end + 3, strlen(end + 3) + 1);
    return true;
}

static int listen_to(struct server *s, uint32_t n_then, int receive_bytes)
{
    int fd = ask(s, receive_bytes);

    wait_for_listeners(s, n_then);
    return fd;
}

static void a_listener_gets_each_event(void **state)
{
    static char answer[ANSWER_BYTES];
    struct server s;
    char *data;
    cJSON *json;
    int fd;

    (void)state;
    start(&s);
    fd = listen_to(&s, 1, 0);
    answer[0] = '\0';
    make(&s);
    assert_true(recv(fd, answer, ANSWER_BYTES - 1, MSG_PEEK) > 0);
    assert_int_equal(strncmp(answer, "HTTP/1.1 200", 12), 0);
    answer[0] = '\0';
    assert_true(read_event(fd, answer));
    for (int i = 0; i < 5; i++) {
        make(&s);
        assert_true(read_event(fd, answer));
    }
    close(fd);
    fd = ask(&s, 0); /* the newest is there already */
    memset(answer, 0, sizeof answer);
    while (!strstr(answer, "}\n\n"))
        assert_true(recv(fd, answer + strlen(answer), 4096, 0) > 0);
    assert_non_null(strstr(answer, "Content-Type: text/event-stream\r\n"));
    data = strstr(answer, "data: ");
    *strstr(data, "\n\n") = '\0';
    json = cJSON_Parse(data + 6);
    assert_non_null(json);
    assert_float_equal(cJSON_GetObjectItem(json, "slot")->valuedouble, 16, 0);
    assert_non_null(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "values"), "rows"));
    assert_non_null(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "stats"), "jobs"));
    assert_null(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "stats"), "tables"));
    cJSON_Delete(json);
    close(fd);
    stop(&s);
}

static bool is_refused(struct server *s)
{
    char answer[1024] = "";
    int fd = ask(s, 0);

    assert_true(recv(fd, answer, sizeof answer - 1, 0) > 0);
    close(fd);
    return strncmp(answer, "HTTP/1.1 503", 12) == 0;
}

static void too_many_listeners_are_refused_until_one_goes(void **state)
{
    int fds[EVENTS_LISTENERS_MAX];
    static char answer[ANSWER_BYTES];
    uint64_t until_ms = clock_mono_ms() + 30000;
    struct server s;

    (void)state;
    start(&s);
    for (uint32_t i = 0; i < EVENTS_LISTENERS_MAX; i++)
        fds[i] = listen_to(&s, i + 1, 0);
    assert_true(is_refused(&s));
    close(fds[0]); /* seen when it is written to */
    while (events_n_listeners(s.events) == EVENTS_LISTENERS_MAX && clock_mono_ms() < until_ms) {
        make(&s);
        for (uint32_t i = 1; i < EVENTS_LISTENERS_MAX; i++) {
            answer[0] = '\0';
            assert_true(read_event(fds[i], answer));
        }
    }
    fds[0] = listen_to(&s, EVENTS_LISTENERS_MAX, 0);
    for (uint32_t i = 0; i < EVENTS_LISTENERS_MAX; i++)
        close(fds[i]);
    stop(&s);
}

/* It holds up nobody, and its time runs from the last event that it took. */
static void a_slow_listener_is_closed_and_the_others_go_on(void **state)
{
    static char answer[ANSWER_BYTES];
    struct http_server_counts counts;
    uint64_t middle_ms;
    struct server s;
    int slow, fast;

    (void)state;
    start(&s);
    slow = listen_to(&s, 1, 2048);
    fast = listen_to(&s, 2, 0);
    answer[0] = '\0';
    for (int i = 0; i < 200; i++) {
        make(&s);
        assert_true(read_event(fast, answer));
    }
    middle_ms = clock_mono_ms();
    while (clock_mono_ms() <= middle_ms)
        (void)poll(NULL, 0, 1);
    make(&s);
    assert_true(read_event(fast, answer));
    http_server_sweep(s.http, middle_ms + REQUEST_MS, &counts);
    assert_int_equal(counts.evicted, 1);
    wait_for_listeners(&s, 1);
    make(&s);
    assert_true(read_event(fast, answer));
    close(slow);
    close(fast);
    stop(&s);
}

static void a_stop_ends_every_answer(void **state)
{
    static char answer[ANSWER_BYTES];
    struct server s;
    int waits, fresh;

    (void)state;
    start(&s);
    waits = listen_to(&s, 1, 0);
    make(&s);
    answer[0] = '\0';
    assert_true(read_event(waits, answer));
    fresh = listen_to(&s, 2, 0);
    stop(&s);
    while (recv(waits, answer, ANSWER_BYTES, 0) > 0)
        ;
    assert_int_equal(recv(waits, answer, 1, 0), 0);
    close(waits);
    close(fresh);
}

static void a_long_event_leaves_jobs_and_waits_out(void **state)
{
    enum { N = 3000 };
    static char answer[2 * ANSWER_BYTES];
    struct shard_report *r;
    struct server s;
    int fd;

    (void)state;
    start(&s);
    r = (struct shard_report *)(uintptr_t)s.fixture.shards[0];
    free(r->workers);
    r->n_workers = N;
    r->workers = memory_alloc(N * sizeof *r->workers);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(r->workers[i].job, sizeof r->workers[i].job, "criteo");
        r->workers[i].rank = i;
    }
    fd = listen_to(&s, 1, 0);
    make(&s);
    memset(answer, 0, sizeof answer);
    while (!strstr(answer, "}\n\n"))
        assert_true(recv(fd, answer + strlen(answer), 4096, 0) > 0);
    assert_in_range(strlen(answer), 1000, EVENTS_BYTES_MAX);
    assert_null(strstr(answer, "\"jobs\""));
    close(fd);
    stop(&s);
}

static void head_has_no_body(void **state)
{
    static const char request[] =
        "HEAD /events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    char answer[2048] = "";
    size_t n = 0;
    struct server s;
    ssize_t more;
    int fd;

    (void)state;
    start(&s);
    fd = connector(&s, 0);
    assert_int_equal(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
    while ((more = recv(fd, answer + n, sizeof answer - 1 - n, 0)) > 0)
        n += (size_t)more;
    assert_non_null(strstr(answer, "text/event-stream"));
    assert_string_equal(strstr(answer, "\r\n\r\n"), "\r\n\r\n");
    assert_int_equal(events_n_listeners(s.events), 0);
    close(fd);
    stop(&s);
}

#ifdef PS_FAULTS
/* Each allocation in turn, of the listener's and of the event's. */
static void without_memory_an_event_is_missing_and_the_next_one_comes(void **state)
{
    static char answer[ANSWER_BYTES];

    (void)state;
    for (long k = 0; k < 6; k++) {
        struct server s;
        int failing, fd;

        start(&s);
        memory_fail_anywhere(k, 1);
        failing = ask(&s, 0);
        make(&s);
        make(&s);
        memory_fail_anywhere(-1, 0);
        fd = ask(&s, 0);
        while (events_n_listeners(s.events) == 0)
            (void)poll(NULL, 0, 2);
        make(&s);
        answer[0] = '\0';
        assert_true(read_event(fd, answer));
        close(fd);
        close(failing);
        stop(&s);
    }
    memory_fail_after(0);
    assert_null(events_new(with_report, NULL));
    memory_fail_after(-1);
}

static void without_memory_for_the_history_there_is_a_sentence(void **state)
{
    struct events *e = events_new(with_report, NULL);
    struct err err = { 0 };

    (void)state;
    memory_fail_after(0);
    assert_int_equal(events_keep_history(e, 2, &err), -ENOMEM);
    memory_fail_after(-1);
    assert_string_equal(err.text, "no memory for the stats page's history");
    events_free(e);
    events_free(NULL);
    events_stop(NULL);
}
#endif

struct maker {
    struct server *server;
    _Atomic bool is_over;
};

static void make_on(void *arg)
{
    struct maker *m = arg;

    while (!atomic_load(&m->is_over))
        make(m->server);
}

/* Three threads: the maker, the server, and listeners that come and go in the middle of events. */
static void listeners_come_and_go_in_the_middle_of_events(void **state)
{
    enum { N = 12, N_ROUNDS = 40 };
    static char answer[ANSWER_BYTES];
    int fds[N];
    struct server s;
    struct maker m = { .server = &s };
    uv_thread_t thread;

    (void)state;
    start(&s);
    for (int i = 0; i < N; i++)
        fds[i] = ask(&s, 0);
    assert_int_equal(uv_thread_create(&thread, make_on, &m), 0);
    for (int round = 0; round < N_ROUNDS; round++) {
        int i = round % N;

        answer[0] = '\0';
        if (round % 3) /* those that have gone are noticed late, so there may be too many */
            assert_true(read_event(fds[i], answer) || strstr(answer, " 503 "));
        close(fds[i]);
        fds[i] = ask(&s, round % 2 ? 2048 : 0);
    }
    atomic_store(&m.is_over, true);
    uv_thread_join(&thread);
    stop(&s);
    for (int i = 0; i < N; i++)
        close(fds[i]);
}

static void the_thread_makes_an_event_for_the_first_listener_at_once(void **state)
{
    static char answer[ANSWER_BYTES];
    struct err err = { 0 };
    struct server s;
    int fd;

    (void)state;
    start(&s);
    assert_int_equal(events_start(s.events, &err), 0);
    fd = ask(&s, 0);
    answer[0] = '\0';
    assert_true(read_event(fd, answer));
    assert_true(read_event(fd, answer));
    close(fd);
    stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_listener_gets_each_event),
        cmocka_unit_test(too_many_listeners_are_refused_until_one_goes),
        cmocka_unit_test(a_slow_listener_is_closed_and_the_others_go_on),
        cmocka_unit_test(a_stop_ends_every_answer),
        cmocka_unit_test(a_long_event_leaves_jobs_and_waits_out),
        cmocka_unit_test(head_has_no_body),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_an_event_is_missing_and_the_next_one_comes),
        cmocka_unit_test(without_memory_for_the_history_there_is_a_sentence),
#endif
        cmocka_unit_test(listeners_come_and_go_in_the_middle_of_events),
        cmocka_unit_test(the_thread_makes_an_event_for_the_first_listener_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
