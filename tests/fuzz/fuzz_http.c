/*
 * What comes to the stats endpoint over a socket. Each answer has one of the statuses that there are, and
 * the endpoint goes on answering others.
 */
#include "tests/unit/admin/fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/admin/http.h"
#include "tests/fuzz/harness.h"

#define ASK_EVERY 256u /* inputs */
#define HEALTH_MS 10000u
#define ANSWER_MS 3u /* half a request has no answer, and is not waited for */

struct endpoint {
    struct fixture fixture;
    struct http *http;
    struct sockaddr_in address;
    uint64_t n_inputs;
};

static const struct http_names no_names = { .self = "" };

static void with_report(void *node, void (*use)(void *, const struct node_report *), void *arg)
{
    use(arg, node);
}

/* One for all inputs, as in psd. */
static struct endpoint *endpoint(void)
{
    static struct endpoint e;
    struct err err = { 0 };
    int status;

    if (e.http)
        return &e;
    fixture_init(&e.fixture);
    status = http_start("127.0.0.1:0", &no_names, with_report, &e.fixture.node, &e.http, &err);
    assert(status == 0);
    e.address = (struct sockaddr_in){ .sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                      .sin_port = htons((uint16_t)atoi(
                                          strrchr(http_address(e.http), ':') + 1)) };
    return &e;
}

/* libFuzzer's clock ticks with a signal that interrupts what waits. */
static int connector(const struct endpoint *e, uint32_t patience_ms)
{
    /* A reset instead of a wait in the kernel: there are millions of these. */
    const struct linger now = { .l_onoff = 1 };
    const struct timeval patience = { patience_ms / 1000, patience_ms % 1000 * 1000 };
    int fd, status;

    do {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(fd >= 0);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        status = connect(fd, (const struct sockaddr *)&e->address, sizeof e->address);
        if (status)
            close(fd);
    } while (status && errno == EINTR);
    assert(status == 0);
    return fd;
}

static ssize_t receive(int fd, char *dst, size_t n_bytes)
{
    ssize_t n;

    do
        n = recv(fd, dst, n_bytes, 0);
    while (n < 0 && errno == EINTR);
    return n;
}

/* What stands behind it may be left out: an answer to HEAD. */
static bool has_head(const char *answer, size_t n_bytes)
{
    return memmem(answer, n_bytes, "\r\n\r\n", 4) != NULL;
}

/* Sends the request; the head of the answer, as far as it comes in time, and what comes with it. */
static size_t ask(const struct endpoint *e, uint32_t patience_ms, const uint8_t *bytes,
                  size_t n_bytes, char *answer, size_t n_max)
{
    size_t n_answer = 0;
    int fd = connector(e, patience_ms);
    ssize_t n = 0;

    while (n_bytes && (n = send(fd, bytes, n_bytes, MSG_NOSIGNAL)) > 0) {
        bytes += n;
        n_bytes -= (size_t)n;
    }
    while (!has_head(answer, n_answer) &&
           (n = receive(fd, answer + n_answer, n_max - n_answer)) > 0)
        n_answer += (size_t)n;
    close(fd);
    return n_answer;
}

static void check_answer(const char *answer, size_t n_bytes)
{
    static const char *const statuses[] = { "100", "200", "400", "403", "404",
                                            "405", "411", "413", "414", "417",
                                            "431", "500", "501", "503", "505" };
    bool is_known = false;

    if (!has_head(answer, n_bytes))
        return;
    assert(n_bytes > 12 && memcmp(answer, "HTTP/1.", 7) == 0);
    for (size_t i = 0; i < COUNT_OF(statuses); i++)
        is_known = is_known || memcmp(answer + 9, statuses[i], 3) == 0;
    assert(is_known);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    static const char health[] = "GET /healthz HTTP/1.0\r\n\r\n";
    struct endpoint *e = endpoint();
    static char answer[1 << 14];

    check_answer(answer, ask(e, ANSWER_MS, bytes, n_bytes, answer, sizeof answer));
    if (e->n_inputs++ % ASK_EVERY == 0) {
        size_t n = ask(e, HEALTH_MS, (const uint8_t *)health, sizeof health - 1, answer,
                       sizeof answer);

        assert(n > 12 &&
               (memcmp(answer + 9, "200", 3) == 0 || memcmp(answer + 9, "503", 3) == 0));
    }
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    static const char *const requests[] = {
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /stats HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "HEAD /metrics HTTP/1.0\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /readyz?x=%41&y HTTP/1.1\r\nHost: "
        "a\r\n\r\n",
        "POST /stats HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        "GET /stats HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
        "chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "GET /none HTTP/1.1\r\nHost: a\r\nCookie: a=b\r\nExpect: 100-continue\r\n\r\n",
    };

    if (i >= COUNT_OF(requests))
        return false;
    harness_put_text(out, requests[i]);
    return true;
}
