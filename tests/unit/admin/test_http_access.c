/* Who may read which page, over HTTPS and in the clear: a table of clients and pages, asked over real sockets. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/admin/http.h"
#include "tests/support/tls_dir.h"
#include "tests/unit/admin/fixture.h"

#define TEXT_BYTES (1 << 18)

struct rig {
    struct fixture fixture;
    struct tls_dir dir;
    struct tls_context *tls; /* the server's */
    struct http_access *access;
    struct http_names names;
    struct http *http;
    char text[TEXT_BYTES]; /* the last answer; "": the connection ended without one */
};

static void with_report(void *node, void (*use)(void *arg, const struct node_report *report),
                        void *arg)
{
    use(arg, node);
}

static const struct token_list no_list;

static void start(struct rig *r, bool has_tls, const char *token, const struct token_list *list)
{
    struct err err = { 0 };

    fixture_init(&r->fixture);
    tls_dir_make(&r->dir);
    r->tls = has_tls ? tls_dir_context(&r->dir, "node", "ca") : NULL;
    r->access = http_access_new(r->tls);
    http_access_set(r->access, true, token, list);
    r->names = (struct http_names){ .self = "", .tls = r->tls, .access = r->access };
    if (http_start("127.0.0.1:0", &r->names, with_report, &r->fixture.node, &r->http, &err))
        fail_msg("%s", err.text);
}

static void stop(struct rig *r)
{
    http_stop(r->http);
    http_access_free(r->access);
    tls_context_free(r->tls);
    tls_dir_remove(&r->dir);
    fixture_deinit(&r->fixture);
}

/* ---- a client ---- */

static int connect_to(const struct rig *r)
{
    struct sockaddr_in to = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const struct timeval limit = { .tv_sec = 60 };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    to.sin_port = htons((uint16_t)atoi(http_address(r->http) + strlen("127.0.0.1:")));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void send_all(int fd, struct bytes *b)
{
    if (bytes_len(b))
        (void)!send(fd, bytes_front(b), bytes_len(b), MSG_NOSIGNAL);
    bytes_consume(b, bytes_len(b));
}

/* Plain text of the server's next bytes, appended. False: the stream has ended. */
static bool hear(struct rig *r, int fd, struct tls_session *s, size_t *at)
{
    uint8_t in[4096];
    ssize_t n = recv(fd, in, sizeof in, 0);
    int status = 0;

    if (n <= 0)
        return false;
    tls_session_feed(s, in, (size_t)n);
    while (!status) {
        size_t got = 0;

        status = tls_session_read(s, (uint8_t *)r->text + *at, TEXT_BYTES - 1 - *at, &got);
        *at += got;
    }
    send_all(fd, tls_session_reply(s));
    return status == -EAGAIN;
}

static bool shake_hands(int fd, struct tls_session *s)
{
    uint8_t in[8192];
    int status = tls_session_handshake(s);

    while (status == -EAGAIN) {
        ssize_t n;

        send_all(fd, tls_session_reply(s));
        n = recv(fd, in, sizeof in, 0);
        if (n <= 0)
            return false;
        tls_session_feed(s, in, (size_t)n);
        status = tls_session_handshake(s);
    }
    send_all(fd, tls_session_reply(s));
    return status == PS_EHTTP; /* which a client of frames would not go on with */
}

static void ask_sealed(struct rig *r, const char *cert, const char *request)
{
    struct tls_context *t = tls_dir_context(&r->dir, cert, "ca");
    struct bytes sealed = { 0 };
    struct tls_session *s;
    int fd = connect_to(r);
    size_t at = 0;

    assert_int_equal(tls_session_connect(t, "127.0.0.1", &s), 0);
    if (shake_hands(fd, s)) {
        assert_int_equal(
            tls_session_write(s, (const uint8_t *)request, strlen(request), &sealed), 0);
        send_all(fd, &sealed);
        while (hear(r, fd, s, &at))
            ;
    }
    r->text[at] = '\0';
    bytes_deinit(&sealed);
    tls_session_free(s);
    tls_context_free(t);
    close(fd);
}

static void ask_plain(struct rig *r, const char *request)
{
    int fd = connect_to(r);
    size_t at = 0;
    ssize_t n;

    assert_true(send(fd, request, strlen(request), MSG_NOSIGNAL) > 0);
    while ((n = recv(fd, r->text + at, TEXT_BYTES - 1 - at, 0)) > 0)
        at += (size_t)n;
    r->text[at] = '\0';
    close(fd);
}

/* The code of the answer. cert: its name in the folder, "": none; NULL: in the clear. header: "" or with a line end. */
static int ask(struct rig *r, const char *cert, const char *path, const char *header)
{
    char request[512];

    snprintf(request, sizeof request,
             "GET %s HTTP/1.1\r\nHost: x\r\n%sConnection: close\r\n\r\n", path, header);
    if (cert)
        ask_sealed(r, cert, request);
    else
        ask_plain(r, request);
    return strncmp(r->text, "HTTP/1.1 ", 9) == 0 ? atoi(r->text + 9) : 0;
}

/* ---- tests ---- */

static const struct token_list of_roles = { .n = 3,
                                            .items = {
                                                { { ACCESS_READER, "", "" }, "of readers" },
                                                { { ACCESS_WORKER, "", "job" }, "of workers" },
                                                { { ACCESS_NODE, "", "" }, "of the nodes" } } };

#define BEARER(token) "Authorization: Bearer " token "\r\n"

/* Of a server with TLS and tokens of roles. code: of a page that wants a role. */
static const struct {
    const char *cert, *header;
    int code;
    const char *text; /* that the answer has; NULL: any */
} clients[] = {
    { "", "", 401, "a token of --token-file is wanted" },
    { "node", "", 200, NULL },
    { "worker", "", 200, NULL },
    { "ads", "", 200, NULL },
    { "reader", "", 200, NULL },
    { "operator", "", 200, NULL },
    { "admin", "", 200, NULL },
    { "expired", "", 403, "has expired" },
    { "early", "", 403, "not valid yet" },
    { "stranger", "", 403, "not of the CA" },
    { "", BEARER("of readers"), 200, NULL },
    { "", BEARER("of workers"), 200, NULL },
    { "", BEARER("of the nodes"), 200, NULL },
    { "", BEARER("of reader"), 401, "a wrong one" },
    { "", BEARER(""), 401, "a wrong one" },
    { "", "Authorization: Basic bWU6b2YgcmVhZGVycw==\r\n", 200, NULL }, /* me:of readers */
    { "", "Authorization: Basic b2YgcmVhZGVyczo=\r\n", 401, NULL },     /* of readers: */
    { "", "Authorization: Basic !\r\n", 401, NULL },
    { "expired", BEARER("of readers"), 200, NULL }, /* one of both is enough */
    { NULL, BEARER("of readers"), 400, "this port speaks HTTPS" },
};

static const struct {
    const char *path;
    bool is_for_all;
} pages[] = {
    { "/", false },      { "/stats", false },   { "/metrics", false },  { "/healthz", true },
    { "/readyz", true }, { "/nothing", false }, { "/healthz/", false }, { "/stats?a=1", false },
};

static void a_page_wants_a_role_and_a_probe_does_not(void **state)
{
    static struct rig r;

    (void)state;
    start(&r, true, "of the nodes", &of_roles);
    r.fixture.node.ready = true;
    for (size_t i = 0; i < COUNT_OF(clients); i++)
        for (size_t k = 0; k < COUNT_OF(pages); k++) {
            const bool is_nowhere = strcmp(pages[k].path, "/nothing") == 0 ||
                                    strcmp(pages[k].path, "/healthz/") == 0;
            const bool is_let_in =
                clients[i].cert && (pages[k].is_for_all || clients[i].code == 200);
            const int code = ask(&r, clients[i].cert, pages[k].path, clients[i].header);
            const int expected = !is_let_in ? clients[i].code : is_nowhere ? 404 : 200;

            if (code != expected)
                fail_msg("client %zu asks for %s: %d, expected %d: %.300s", i, pages[k].path,
                         code, expected, r.text);
            if (!is_let_in && clients[i].text && !strstr(r.text, clients[i].text))
                fail_msg("client %zu asks for %s: no %s in %.900s", i, pages[k].path,
                         clients[i].text, r.text);
        }
    stop(&r);
}

static void one_token_is_of_all_roles_and_changes_with_a_reload(void **state)
{
    static struct rig r;

    (void)state;
    start(&r, false, "the first one", &no_list);
    assert_int_equal(ask(&r, NULL, "/stats", ""), 401);
    assert_non_null(strstr(r.text, "WWW-Authenticate: Basic"));
    assert_int_equal(ask(&r, NULL, "/stats", BEARER("the first one")), 200);
    assert_int_equal(ask(&r, NULL, "/healthz", ""), 200);
    http_access_set(r.access, true, "the next one", &no_list);
    assert_int_equal(ask(&r, NULL, "/stats", BEARER("the first one")), 401);
    assert_int_equal(ask(&r, NULL, "/stats", BEARER("the next one")), 200);
    http_access_set(r.access, false, "the next one", &no_list);
    assert_int_equal(ask(&r, NULL, "/stats", ""), 200);
    http_access_set(r.access, true, "the next one", &no_list);
    assert_int_equal(ask(&r, NULL, "/stats", ""), 401);
    stop(&r);
}

static void without_tokens_a_certificate_is_wanted(void **state)
{
    static struct rig r;

    (void)state;
    start(&r, true, "", &no_list);
    assert_int_equal(ask(&r, "", "/stats", ""), 403);
    assert_non_null(strstr(r.text, "a client certificate of this cluster is wanted"));
    assert_int_equal(ask(&r, "", "/stats", BEARER("")), 403);
    assert_int_equal(ask(&r, "reader", "/stats", ""), 200);
    stop(&r);
}

/* The next handshake has the certificate that was read again: a client that knows the other CA alone is let in. */
static void certificates_are_read_again(void **state)
{
    static struct rig r;
    char cert[128], key[128], ca[128];
    struct err err;

    (void)state;
    start(&r, true, "", &no_list);
    assert_int_equal(ask(&r, "reader", "/stats", ""), 200);
    snprintf(cert, sizeof cert, "%s/away.pem", r.dir.path);
    snprintf(key, sizeof key, "%s/away.key", r.dir.path);
    snprintf(ca, sizeof ca, "%s/ca.pem", r.dir.path);
    assert_int_equal(
        tls_context_reload(r.tls, &(struct tls_files){ .ca = ca, .cert = cert, .key = key },
                           &err),
        0);
    assert_int_equal(ask(&r, "reader", "/stats", ""), 0); /* it is another host's */
    snprintf(cert, sizeof cert, "%s/node.pem", r.dir.path);
    snprintf(key, sizeof key, "%s/node.key", r.dir.path);
    assert_int_equal(
        tls_context_reload(r.tls, &(struct tls_files){ .ca = ca, .cert = cert, .key = key },
                           &err),
        0);
    assert_int_equal(ask(&r, "reader", "/stats", ""), 200);
    snprintf(ca, sizeof ca, "%s/other.pem", r.dir.path); /* and so is the CA of clients */
    assert_int_equal(
        tls_context_reload(r.tls, &(struct tls_files){ .ca = ca, .cert = cert, .key = key },
                           &err),
        0);
    assert_int_equal(ask(&r, "reader", "/stats", ""), 403);
    stop(&r);
}

static void tls_at_a_plain_port_ends_at_once(void **state)
{
    static struct rig r;

    (void)state;
    start(&r, false, "a token here", &no_list);
    assert_int_equal(ask(&r, "reader", "/stats", ""), 0);
    assert_int_equal(ask(&r, NULL, "/healthz", ""), 200);
    stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_wants_a_role_and_a_probe_does_not),
        cmocka_unit_test(one_token_is_of_all_roles_and_changes_with_a_reload),
        cmocka_unit_test(without_tokens_a_certificate_is_wanted),
        cmocka_unit_test(certificates_are_read_again),
        cmocka_unit_test(tls_at_a_plain_port_ends_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
