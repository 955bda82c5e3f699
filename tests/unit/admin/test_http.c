/* The HTTP endpoint, asked over real sockets on the loopback. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "proto/message.h"
#include "server/admin/http.h"
#include "server/admin/page.h"
#include "tests/unit/admin/fixture.h"

static const struct http_names no_names = { .self = "" };

static void with_report(void *node, void (*use)(void *arg, const struct node_report *report),
                        void *arg)
{
    use(arg, node);
}

/* From 127.0.0.`last`. */
static int connector_from(const char *address, unsigned last)
{
    struct sockaddr_in to = { .sin_family = AF_INET }, from = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    from.sin_addr.s_addr = htonl((INADDR_LOOPBACK & ~0xffu) | last);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);

    assert_int_equal(strncmp(address, "127.0.0.1:", 10), 0);
    to.sin_port = htons((uint16_t)atoi(address + 10));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static int connector(const char *address)
{
    return connector_from(address, 1);
}

/* Everything that comes back until the server closes. */
static size_t send_bytes(const char *address, const void *request, size_t request_bytes,
                         char *dst, size_t n_bytes)
{
    int fd = connector(address);
    size_t done = 0;
    ssize_t n;

    assert_int_equal(send(fd, request, request_bytes, MSG_NOSIGNAL), (ssize_t)request_bytes);
    while ((n = recv(fd, dst + done, n_bytes - 1 - done, 0)) > 0)
        done += (size_t)n;
    dst[done] = '\0';
    assert_int_equal(n, 0); /* and not a reset, which may overtake what was said */
    close(fd);
    return done;
}

static size_t talk(const char *address, const char *request, char *dst, size_t n_bytes)
{
    return send_bytes(address, request, strlen(request), dst, n_bytes);
}

static void ask(const struct http *h, const char *line, char *dst, size_t n_bytes)
{
    char request[256];

    snprintf(request, sizeof request, "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
             line);
    talk(http_address(h), request, dst, n_bytes);
}

static void assert_answer(const struct http *h, const char *line, const char *code,
                          const char *holds)
{
    static char answer[1 << 20];

    ask(h, line, answer, sizeof answer);
    if (strncmp(answer, "HTTP/1.1 ", 9) != 0 || strncmp(answer + 9, code, 3) != 0)
        fail_msg("%s: %.60s, expected %s", line, answer, code);
    if (!strstr(answer, holds))
        fail_msg("%s: no %s in %.2000s", line, holds, answer);
}

static struct http *started(struct fixture *f)
{
    struct http *h = NULL;
    struct err err = { 0 };

    fixture_init(f);
    if (http_start("127.0.0.1:0", &no_names, with_report, &f->node, &h, &err) != 0)
        fail_msg("%s", err.text);
    return h;
}

static void the_pages_are_there(void **state)
{
    struct fixture f;
    struct http *h = started(&f);

    (void)state;
    assert_answer(h, "GET /", "200", "<!doctype html>");
    assert_answer(h, "GET /", "200", "</html>");
    assert_answer(h, "GET /?x=1", "200", "text/html");
    assert_answer(h, "GET /stats", "200", "\"totals\":{");
    assert_answer(h, "GET /stats", "200", "Content-Type: application/json\r\n");
    assert_answer(h, "GET /metrics", "200", "\npsd_ready 1\n");
    assert_answer(h, "GET /metrics", "200", "text/plain; version=0.0.4");
    assert_answer(h, "GET /healthz", "200", "\r\n\r\nok\n");
    assert_answer(h, "GET /readyz", "200", "\r\n\r\nready\n");
    http_stop(h);
    fixture_deinit(&f);
}

static void health_and_readiness_turn_to_503_with_a_sentence(void **state)
{
    struct fixture f;
    struct http *h = started(&f);

    (void)state;
    snprintf(f.node.last_checkpoint_error, sizeof f.node.last_checkpoint_error, "disk full");
    assert_answer(h, "GET /healthz", "503", "the last checkpoint failed: disk full\n");
    f.node.ready = false;
    assert_answer(h, "GET /readyz", "503", "starting\n");
    f.node.standby = (struct stats_standby){ .is_on = true,
                                             .role = "standby",
                                             .state = "copying",
                                             .peer = "a:7070",
                                             .wait = "copying from a:7070: 1 of 3 bytes" };
    assert_answer(h, "GET /readyz", "503", "copying from a:7070: 1 of 3 bytes\n");
    f.node.standby.wait[0] = '\0';
    snprintf(f.node.standby.state, sizeof f.node.standby.state, "in sync");
    assert_answer(h, "GET /readyz", "503", "a standby of a:7070: in sync\n");
    f.node.standby.is_on = false;
    f.node.restore = (struct stats_restore){ .is_on = true,
                                             .since_unix_ms = f.node.clock_unix_ms - 7500,
                                             .n_rows = 12,
                                             .n_records = 34,
                                             .n_bytes = 500000,
                                             .n_total_bytes = 2000000 };
    assert_answer(h, "GET /readyz", "503",
                  "restoring: 25 % of 2.0 MB, 12 rows, 34 records of the write-ahead log, for "
                  "7 s\n");
    f.node.ready = f.node.stopping = true;
    assert_answer(h, "GET /readyz", "503", "stopping\n");
    http_stop(h);
    fixture_deinit(&f);
}

static void another_page_or_method_is_refused_with_a_sentence(void **state)
{
    struct fixture f;
    struct http *h = started(&f);
    static char answer[1 << 16];

    (void)state;
    assert_answer(h, "GET /favicon.ico", "404", "no such page");
    assert_answer(h, "GET /stats/", "404", "no such page");
    assert_answer(h, "GET /../../etc/passwd", "404", "no such page");
    assert_answer(h, "GET /%00", "404", "no such page");
    assert_answer(h, "GET /stats%00x", "404", "no such page");
    assert_answer(h, "GET /health%7A", "200", "ok\n");
    assert_answer(h, "DELETE /stats", "405", "Allow: GET, HEAD\r\n");
    assert_answer(h, "PUT /stats", "405", "read-only");
    talk(http_address(h),
         "POST /stats HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
         "5\r\n\r\nhello",
         answer, sizeof answer);
    assert_int_equal(strncmp(answer, "HTTP/1.1 405", 12), 0);
    http_stop(h);
    fixture_deinit(&f);
}

static bool is_answered(const struct http *h, const char *host)
{
    char request[512], answer[1 << 12];

    snprintf(request, sizeof request, "GET /healthz HTTP/1.%s%s\r\nConnection: close\r\n\r\n",
             host ? "1\r\nHost: " : "0", host ? host : "");
    talk(http_address(h), request, answer, sizeof answer);
    if (strncmp(answer + 8, " 200 ", 5) == 0)
        return true;
    assert_int_equal(strncmp(answer + 8, " 403 ", 5), 0);
    assert_non_null(strstr(answer, "--http-hosts"));
    return false;
}

static const char *const good_hosts[] = { "127.0.0.1:7071",
                                          "localhost:7071",
                                          "LocalHost",
                                          "[::1]:80",
                                          "10.1.2.3",
                                          "node-3",
                                          "node-1.example:7071",
                                          "Stats.Example.:80",
                                          "localhost.",
                                          "localhost:",
                                          "[fe80::1%lo]:80",
                                          "[fe80::1%25lo]",
                                          "[FE80::1%7]",
                                          "[::ffff:127.0.0.1]" };
static const char *const bad_hosts[] = { "evil.example:7071",
                                         "127.0.0.1.evil.example",
                                         "x.node-1.example",
                                         "stats.example.org",
                                         "localhost.evil.example",
                                         "[evil.example]",
                                         "[evil]",
                                         "[::1].evil.example",
                                         "[::1]evil.example",
                                         "[::1",
                                         "[fe80::1%]",
                                         "[fe80::1%a/b]",
                                         "[fe80::1%evil.com]",
                                         "[fe80::1%25evil.com]",
                                         "[fe80::1%evil]",
                                         "[fe80::1%1.evil.com]",
                                         "[::1%25evil.com]",
                                         "[::1%lo]",
                                         "[::1%1]",
                                         "[fe80::1%lo].evil.com",
                                         "[fe80::1%25]x",
                                         "[%eth0]",
                                         "[]",
                                         "a:b:c.evil.example",
                                         "1:evil.example",
                                         "127.0.0.1:80:evil.example",
                                         "evil\texample",
                                         "evil@localhost",
                                         "localhost..",
                                         ".",
                                         "1.2.3",
                                         "1.2.3.4.5",
                                         "stats.example:x",
                                         "" };

/* DNS rebinding: the page of another site asks under its own name, which it has made lead here. */
static void a_host_of_another_name_is_refused(void **state)
{
    char stats[] = "stats.example", all[] = "*";
    struct setting_list hosts = { 1, { stats } };
    const struct http_names names = { .self = "node-1.example:7070", .hosts = &hosts };
    struct fixture f;
    struct http *h = NULL;
    struct err err;

    (void)state;
    fixture_init(&f);
    assert_int_equal(http_start("127.0.0.1:0", &names, with_report, &f.node, &h, &err), 0);
    assert_true(is_answered(h, NULL));
    for (size_t i = 0; i < COUNT_OF(good_hosts); i++)
        if (!is_answered(h, good_hosts[i]))
            fail_msg("%s is refused", good_hosts[i]);
    for (size_t i = 0; i < COUNT_OF(bad_hosts); i++)
        if (is_answered(h, bad_hosts[i]))
            fail_msg("%s is answered", bad_hosts[i]);
    http_stop(h);
    hosts.items[0] = all;
    assert_int_equal(http_start("127.0.0.1:0", &names, with_report, &f.node, &h, &err), 0);
    assert_true(is_answered(h, bad_hosts[0]));
    http_stop(h);
    fixture_deinit(&f);
}

/* A proxy before this node may have chosen the other way, and what follows is then not a request of who it seems. */
static void a_request_that_can_be_read_in_two_ways_ends_its_connection(void **state)
{
    static const char *const heads[] = {
        "Host: localhost\r\nHost: evil.example\r\n",
        "Host: evil.example\r\nhost: localhost\r\n",
        "Host: localhost\r\nHost: localhost\r\n",
        "Host : evil.example\r\n",
        "Host\t: x\r\n",
        "Host: localhost\r\n .evil.example\r\n",
        "Host:\r\n\tlocalhost\r\n",
        "Host: x\r\nContent-Length : 34\r\n",
        "Host: x\r\nContent-Length: 0\r\nContent-Length: 34\r\n",
        "Host: x\r\nContent-Length: 34\r\nTransfer-Encoding: chunked\r\n",
        "Host: x\r\nTransfer-Encoding: chunked\r\ncontent-length: 34\r\n",
        "Host: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    };
    char request[256], answer[1 << 12];
    struct fixture f;
    struct http *h = started(&f);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(heads); i++) {
        snprintf(request, sizeof request,
                 "GET /healthz HTTP/1.1\r\n%s\r\nGET /readyz HTTP/1.1\r\nHost: x\r\n\r\n",
                 heads[i]);
        talk(http_address(h), request, answer, sizeof answer);
        if (strncmp(answer, "HTTP/1.1 400 ", 13) != 0 || strstr(answer + 1, "HTTP/1.1"))
            fail_msg("%s: %.600s", heads[i], answer);
    }
    http_stop(h);
    fixture_deinit(&f);
}

static void every_answer_says_what_a_browser_may_do_with_it(void **state)
{
    static const char *const lines[] = { "GET /", "GET /stats", "GET /none", "PUT /" };
    static const char *const wanted[] = { "Content-Security-Policy: default-src 'none'",
                                          "frame-ancestors 'none'",
                                          "X-Frame-Options: DENY\r\n",
                                          "X-Content-Type-Options: nosniff\r\n",
                                          "Referrer-Policy: no-referrer\r\n",
                                          "Cross-Origin-Resource-Policy: same-origin\r\n",
                                          "Cache-Control: no-store\r\n" };
    static char answer[1 << 16];
    struct fixture f;
    struct http *h = started(&f);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        ask(h, lines[i], answer, sizeof answer);
        for (size_t j = 0; j < COUNT_OF(wanted); j++)
            if (!strstr(answer, wanted[j]))
                fail_msg("%s: no %s", lines[i], wanted[j]);
        assert_null(strstr(strstr(answer, "Content-Security-Policy"), "\r\nContent-Security"));
    }
    http_stop(h);
    fixture_deinit(&f);
}

/* Its scripts and styles are files of this server, and what got into the page otherwise does not run. */
static void the_page_runs_the_files_of_this_server_alone(void **state)
{
    static char answer[1 << 18];
    struct page_file file;
    struct fixture f;
    struct http *h = started(&f);
    size_t n_bytes = 0;

    (void)state;
    for (uint32_t i = 0; page_file_at(i, &file); i++) {
        char line[128];

        snprintf(line, sizeof line, "GET %s", file.path);
        ask(h, line, answer, sizeof answer);
        assert_int_equal(strncmp(answer, "HTTP/1.1 200", 12), 0);
        assert_non_null(strstr(answer, file.content_type));
        assert_non_null(strstr(answer, "script-src 'self'; "));
        assert_null(strstr(strstr(answer, "Content-Security"), "unsafe"));
        assert_memory_equal(strstr(answer, "\r\n\r\n") + 4, file.text, file.n_bytes);
        n_bytes += file.n_bytes;
    }
    assert_in_range(n_bytes, 60000, PAGE_BYTES_MAX);
    ask(h, "GET /", answer, sizeof answer);
    for (const char *at = answer; (at = strstr(at, "<script")) != NULL; at++)
        assert_int_equal(strncmp(at, "<script src=", 12), 0);
    assert_null(strstr(answer, "<style"));
    assert_null(strstr(answer, " style="));
    assert_null(strstr(answer, "//"));
    http_stop(h);
    fixture_deinit(&f);
}

static void head_sends_the_length_and_no_body(void **state)
{
    static char answer[1 << 16];
    struct fixture f;
    struct http *h = started(&f);
    const char *end;

    (void)state;
    ask(h, "HEAD /healthz", answer, sizeof answer);
    assert_int_equal(strncmp(answer, "HTTP/1.1 200", 12), 0);
    assert_non_null(strstr(answer, "Content-Length: 3\r\n"));
    end = strstr(answer, "\r\n\r\n");
    assert_non_null(end);
    assert_string_equal(end + 4, "");
    http_stop(h);
    fixture_deinit(&f);
}

static void rubbish_and_endless_headers_end_their_connection_only(void **state)
{
    static char request[1 << 18], answer[1 << 16];
    struct fixture f;
    struct http *h = started(&f);
    int fd;

    (void)state;
    memset(request, 'a', sizeof request - 1);
    memcpy(request, "GET / HTTP/1.1\r\nX: ", 19);
    fd = connector(http_address(h));
    (void)!send(fd, request, sizeof request - 1, MSG_NOSIGNAL);
    while (recv(fd, answer, sizeof answer, 0) > 0)
        ;
    close(fd);
    talk(http_address(h), "\x01\x02 PSD1 \r\n\r\n", answer, sizeof answer);
    fd = connector(http_address(h)); /* says nothing, and is still there */
    assert_answer(h, "GET /healthz", "200", "ok");
    http_stop(h);
    close(fd);
    fixture_deinit(&f);
}

/* Told by an answer: left to itself the server waits for the end of a line, and hangs up without a word. */
static void a_hello_sent_to_the_http_port_is_answered(void **state)
{
    const struct hello hello = { .version_min = 1, .version_max = 1, .role = "worker" };
    struct bytes frame = { 0 };
    char answer[1 << 12];
    struct fixture f;
    struct http *h = started(&f);

    (void)state;
    assert_int_equal(message_write_hello(&frame, 1, &hello), 0);
    send_bytes(http_address(h), bytes_front(&frame), bytes_len(&frame), answer, sizeof answer);
    assert_int_equal(strncmp(answer, "HTTP/1.1 400 ", 13), 0);
    assert_non_null(strstr(answer, "this is the stats port"));
    assert_answer(h, "GET /healthz", "200", "ok");
    bytes_deinit(&frame);
    http_stop(h);
    fixture_deinit(&f);
}

static void one_connection_serves_several_requests(void **state)
{
    char answer[1 << 16];
    struct fixture f;
    struct http *h = started(&f);

    (void)state;
    talk(http_address(h),
         "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /readyz HTTP/1.1\r\nHost: "
         "x\r\nConnection: close\r\n\r\n",
         answer, sizeof answer);
    assert_non_null(strstr(answer, "ok\n"));
    assert_non_null(strstr(answer, "ready\n"));
    http_stop(h);
    fixture_deinit(&f);
}

static void a_wrong_or_taken_address_is_refused_with_a_sentence(void **state)
{
    static const char *const wrong[] = {
        "",      "7071",   "127.0.0.1",  ":7071",       "::1:7071",
        "[::1]", "[:7071", "127.0.0.1:", "127.0.0.1:x", "256.256.256.256:1"
    };
    struct fixture f;
    struct http *h = started(&f), *second = NULL;
    struct err err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(http_start(wrong[i], &no_names, with_report, &f.node, &second, &err),
                         -EINVAL);
        assert_non_null(strstr(err.text, "HTTP address"));
    }
    assert_int_equal(
        http_start(http_address(h), &no_names, with_report, &f.node, &second, &err),
        -EADDRINUSE);
    assert_non_null(strstr(err.text, http_address(h)));
    assert_null(second);
    http_stop(h);
    http_stop(NULL);
    fixture_deinit(&f);
}

static void an_ipv6_address_works(void **state)
{
    struct fixture f;
    struct http *h = NULL;
    struct err err;
    int status;

    (void)state;
    fixture_init(&f);
    status = http_start("[::1]:0", &no_names, with_report, &f.node, &h, &err);
    fixture_deinit(&f);
    if (status) {
        print_message("skipped: this machine has no IPv6: %s\n", err.text);
        skip();
    }
    assert_int_equal(strncmp(http_address(h), "[::1]:", 6), 0);
    http_stop(h);
}

/* Connected, with half a request. */
static int drip(const struct http *h)
{
    static const char half[] = "GET /healthz HTTP/1.1\r\nHost: x\r\nX-";
    int fd = connector(http_address(h));

    assert_int_equal(send(fd, half, sizeof half - 1, MSG_NOSIGNAL), sizeof half - 1);
    return fd;
}

static uint64_t n_evicted(struct http *h, uint64_t now_ms)
{
    struct http_counts counts;

    http_sweep(h, now_ms, &counts);
    return counts.evicted;
}

static void slow_clients_block_nobody_and_are_closed(void **state)
{
    enum { N = HTTP_ADDRESS_MAX + 40 };
    struct http_counts counts;
    struct fixture f;
    struct http *h = started(&f);
    int fds[N];
    char byte;

    (void)state;
    for (int i = 0; i < N; i++)
        fds[i] = drip(h);
    assert_answer(h, "GET /healthz", "200", "\r\n\r\nok\n");
    assert_in_range(n_evicted(h, clock_mono_ms()), N - HTTP_ADDRESS_MAX,
                    N - HTTP_ADDRESS_MAX + 1);
    assert_int_equal(recv(fds[0], &byte, 1, 0), 0); /* the oldest */
    assert_in_range(n_evicted(h, clock_mono_ms() + HTTP_REQUEST_MS + 1), N, N + 1);
    for (int i = 0; i < N; i++) {
        assert_int_equal(recv(fds[i], &byte, 1, 0), 0);
        close(fds[i]);
    }
    do
        http_sweep(h, clock_mono_ms(), &counts);
    while (counts.connections);
    assert_int_equal(counts.connections_total, N + 1);
    http_stop(h);
    fixture_deinit(&f);
}

/* Waits at the gate on the way to its first report. */
struct slow_node {
    struct node_report *report;
    uv_sem_t gate;
    bool is_through;
};

static void with_report_later(void *node,
                              void (*use)(void *arg, const struct node_report *report),
                              void *arg)
{
    struct slow_node *slow = node;

    if (!slow->is_through)
        uv_sem_wait(&slow->gate);
    slow->is_through = true;
    use(arg, slow->report);
}

/* A full backlog drops a SYN, which is sent again 1 s later. */
static void clients_that_come_at_once_find_a_place_in_the_backlog(void **state)
{
    enum { N = 400, TOOK_MAX_MS = 900 };
    uint64_t start_ms, took_ms = 0;
    struct fixture f;
    struct slow_node slow = { .report = &f.node };
    struct http *h = NULL;
    struct err err;
    int fds[N], n = 0;

    (void)state;
    fixture_init(&f);
    assert_int_equal(uv_sem_init(&slow.gate, 0), 0);
    assert_int_equal(http_start("127.0.0.1:0", &no_names, with_report_later, &slow, &h, &err),
                     0);
    start_ms = clock_mono_ms();
    while (n < N && took_ms < TOOK_MAX_MS) {
        static const char request[] = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

        fds[n] = connector(http_address(h));
        assert_int_equal(send(fds[n++], request, sizeof request - 1, MSG_NOSIGNAL),
                         sizeof request - 1);
        took_ms = clock_mono_ms() - start_ms;
    }
    uv_sem_post(&slow.gate);
    assert_int_equal(n, N);
    while (n)
        close(fds[--n]);
    http_stop(h);
    uv_sem_destroy(&slow.gate);
    fixture_deinit(&f);
}

static void get_and_keep(int fd)
{
    static const char request[] = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    char answer[4096] = "";
    size_t n = 0;

    assert_int_equal(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
    while (!strstr(answer, "\r\n\r\nok\n")) {
        ssize_t more = recv(fd, answer + n, sizeof answer - 1 - n, 0);

        assert_true(more > 0);
        n += (size_t)more;
        answer[n] = '\0';
    }
}

/* Sends a request; false if no answer begins within 10 s. */
static bool is_answered_soon(const struct http *h, const char *path)
{
    struct pollfd poll_fd = { .fd = connector(http_address(h)), .events = POLLIN };
    char request[128];
    int n = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
    bool answered;

    assert_int_equal(send(poll_fd.fd, request, (size_t)n, MSG_NOSIGNAL), n);
    answered = poll(&poll_fd, 1, 10000) == 1;
    close(poll_fd.fd);
    return answered;
}

/* Whose first report is not ready before the gate opens. */
struct stuck_node {
    struct node_report *report;
    uv_sem_t entered, gate;
    _Atomic uint32_t n;
};

static void with_report_behind_a_gate(void *node,
                                      void (*use)(void *arg, const struct node_report *report),
                                      void *arg)
{
    struct stuck_node *stuck = node;

    if (atomic_fetch_add(&stuck->n, 1) == 0) {
        uv_sem_post(&stuck->entered);
        uv_sem_wait(&stuck->gate);
    }
    use(arg, stuck->report);
}

/* Readers of a long page, of which one is rendered for all, and a probe meanwhile. */
static void a_probe_does_not_wait_for_a_page_that_is_being_rendered(void **state)
{
    enum { N = 60 };
    static const char request[] =
        "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    static char answer[1 << 20];
    struct stuck_node stuck = { 0 };
    struct fixture f;
    struct http *h = NULL;
    struct err err;
    int fds[N];

    (void)state;
    fixture_init(&f);
    stuck.report = &f.node;
    assert_int_equal(uv_sem_init(&stuck.entered, 0) | uv_sem_init(&stuck.gate, 0), 0);
    assert_int_equal(
        http_start("127.0.0.1:0", &no_names, with_report_behind_a_gate, &stuck, &h, &err), 0);
    for (int i = 0; i < N; i++) {
        fds[i] = connector(http_address(h));
        assert_int_equal(send(fds[i], request, sizeof request - 1, MSG_NOSIGNAL),
                         sizeof request - 1);
    }
    uv_sem_wait(&stuck.entered);
    assert_true(is_answered_soon(h, "/healthz"));
    assert_true(is_answered_soon(h, "/"));
    uv_sem_post(&stuck.gate);
    for (int i = 0; i < N; i++) {
        size_t n = 0;
        ssize_t more;

        while ((more = recv(fds[i], answer + n, sizeof answer - 1 - n, 0)) > 0)
            n += (size_t)more;
        answer[n] = '\0';
        assert_int_equal(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
        assert_non_null(strstr(answer, "\npsd_ready 1\n"));
        close(fds[i]);
    }
    assert_in_range(atomic_load(&stuck.n), 2, 4); /* the page's, and the probe's */
    http_stop(h);
    uv_sem_destroy(&stuck.entered);
    uv_sem_destroy(&stuck.gate);
    fixture_deinit(&f);
}

/* The HTTP thread sleeps meanwhile, and nothing else wakes it. */
static void a_page_is_sent_when_it_is_made(void **state)
{
    static const char request[] = "GET /stats HTTP/1.1\r\nHost: x\r\n\r\n";
    struct stuck_node stuck = { 0 };
    struct pollfd reader = { .events = POLLIN };
    struct fixture f;
    struct http *h = NULL;
    struct err err;

    (void)state;
    fixture_init(&f);
    stuck.report = &f.node;
    assert_int_equal(uv_sem_init(&stuck.entered, 0) | uv_sem_init(&stuck.gate, 0), 0);
    assert_int_equal(
        http_start("127.0.0.1:0", &no_names, with_report_behind_a_gate, &stuck, &h, &err), 0);
    reader.fd = connector(http_address(h));
    assert_int_equal(send(reader.fd, request, sizeof request - 1, MSG_NOSIGNAL),
                     sizeof request - 1);
    uv_sem_wait(&stuck.entered);
    assert_int_equal(poll(&reader, 1, 30), 0);
    uv_sem_post(&stuck.gate);
    assert_int_equal(poll(&reader, 1, 5000), 1);
    close(reader.fd);
    http_stop(h);
    uv_sem_destroy(&stuck.entered);
    uv_sem_destroy(&stuck.gate);
    fixture_deinit(&f);
}

/* So many events does libmicrohttpd ask for at a time (MAX_EVENTS). */
static void requests_that_fill_one_round_of_events_are_answered(void **state)
{
    enum { N = 128 };
    static const char request[] = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    struct stuck_node stuck = { .n = 1 }; /* the gate is open */
    struct pollfd fds[N], blocker;
    struct fixture f;
    struct http *h = NULL;
    struct err err;

    (void)state;
    fixture_init(&f);
    stuck.report = &f.node;
    assert_int_equal(uv_sem_init(&stuck.entered, 0) | uv_sem_init(&stuck.gate, 0), 0);
    assert_int_equal(
        http_start("127.0.0.1:0", &no_names, with_report_behind_a_gate, &stuck, &h, &err), 0);
    for (unsigned i = 0; i < N; i++) {
        fds[i] = (struct pollfd){ .fd = connector_from(http_address(h), 2 + i % 4),
                                  .events = POLLIN };
        get_and_keep(fds[i].fd);
    }
    blocker = (struct pollfd){ .fd = connector(http_address(h)), .events = POLLIN };
    get_and_keep(blocker.fd);
    atomic_store(&stuck.n, 0);
    assert_int_equal(send(blocker.fd, request, sizeof request - 1, MSG_NOSIGNAL),
                     sizeof request - 1);
    uv_sem_wait(&stuck.entered);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(send(fds[i].fd, request, sizeof request - 1, MSG_NOSIGNAL),
                         sizeof request - 1);
    uv_sem_post(&stuck.gate);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(poll(&fds[i], 1, 10000), 1);
        close(fds[i].fd);
    }
    close(blocker.fd);
    http_stop(h);
    uv_sem_destroy(&stuck.entered);
    uv_sem_destroy(&stuck.gate);
    fixture_deinit(&f);
}

/* One that waits for its page is answered, too. */
static void a_stop_waits_for_no_reader(void **state)
{
    struct stuck_node stuck = { 0 };
    struct fixture f;
    struct http *h = NULL;
    struct err err;
    int fd;

    (void)state;
    fixture_init(&f);
    stuck.report = &f.node;
    assert_int_equal(uv_sem_init(&stuck.entered, 0) | uv_sem_init(&stuck.gate, 1), 0);
    assert_int_equal(
        http_start("127.0.0.1:0", &no_names, with_report_behind_a_gate, &stuck, &h, &err), 0);
    fd = connector(http_address(h));
    for (int i = 0; i < 50; i++)
        assert_true(send(fd, "GET /stats HTTP/1.1\r\nHost: x\r\n\r\n", 32, MSG_NOSIGNAL) == 32);
    uv_sem_wait(&stuck.entered);
    http_stop(h);
    close(fd);
    uv_sem_destroy(&stuck.entered);
    uv_sem_destroy(&stuck.gate);
    fixture_deinit(&f);
}

/* Two whole requests, so that the first one's end has been seen when its time is looked at. */
static void a_later_request_has_as_long_as_the_first(void **state)
{
    enum { N_BYTES = 200 };
    struct fixture f;
    struct http *h = started(&f);
    int fd = connector(http_address(h));
    char byte;

    (void)state;
    get_and_keep(fd);
    get_and_keep(fd);
    assert_int_equal(n_evicted(h, clock_mono_ms()), 0);
    for (int i = 0; i < N_BYTES && !n_evicted(h, clock_mono_ms() + HTTP_REQUEST_MS + 1); i++) {
        assert_int_equal(send(fd, "G", 1, MSG_NOSIGNAL), 1);
        (void)poll(NULL, 0, 5);
    }
    assert_int_equal(n_evicted(h, clock_mono_ms()), 1);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
    http_stop(h);
    fixture_deinit(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pages_are_there),
        cmocka_unit_test(health_and_readiness_turn_to_503_with_a_sentence),
        cmocka_unit_test(another_page_or_method_is_refused_with_a_sentence),
        cmocka_unit_test(a_host_of_another_name_is_refused),
        cmocka_unit_test(a_request_that_can_be_read_in_two_ways_ends_its_connection),
        cmocka_unit_test(every_answer_says_what_a_browser_may_do_with_it),
        cmocka_unit_test(the_page_runs_the_files_of_this_server_alone),
        cmocka_unit_test(head_sends_the_length_and_no_body),
        cmocka_unit_test(rubbish_and_endless_headers_end_their_connection_only),
        cmocka_unit_test(a_hello_sent_to_the_http_port_is_answered),
        cmocka_unit_test(one_connection_serves_several_requests),
        cmocka_unit_test(a_wrong_or_taken_address_is_refused_with_a_sentence),
        cmocka_unit_test(an_ipv6_address_works),
        cmocka_unit_test(slow_clients_block_nobody_and_are_closed),
        cmocka_unit_test(clients_that_come_at_once_find_a_place_in_the_backlog),
        cmocka_unit_test(a_later_request_has_as_long_as_the_first),
        cmocka_unit_test(a_probe_does_not_wait_for_a_page_that_is_being_rendered),
        cmocka_unit_test(a_page_is_sent_when_it_is_made),
        cmocka_unit_test(requests_that_fill_one_round_of_events_are_answered),
        cmocka_unit_test(a_stop_waits_for_no_reader),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
