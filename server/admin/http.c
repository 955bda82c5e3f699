#include "server/admin/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/memory.h"
#include "proto/frame.h"
#include "server/admin/render.h"

#define N_CONNECTIONS_MAX 64u
#define CONNECTION_BYTES_MAX (32u << 10) /* a request's line and headers */
#define IDLE_SECONDS_MAX 15u
#define HOST_MAX 256

struct http {
    struct MHD_Daemon *daemon; /* owned */
    http_with_report with_report;
    void *node; /* borrowed */
    char address[HOST_MAX + 16];
};

/* --- the stats page, page.html beside this file, as it stands in the program --- */

/* The path counts from the folder that the compiler runs in: the root of the tree. */
__asm__(".pushsection .rodata\n"
        "page_start:\n"
        ".incbin \"server/admin/page.html\"\n"
        "page_end:\n"
        ".popsection\n");

extern const char page_start[], page_end[];

/* Static storage. */
static const char *page_text(size_t *ret_bytes)
{
    *ret_bytes = (size_t)(page_end - page_start);
    return page_start;
}

/* --- answers --- */

/* One answer in the making, on the HTTP thread. */
struct reply_stream {
    const struct endpoint *endpoint;
    char *text; /* owned; NULL: no memory */
    unsigned code;
};

struct endpoint {
    const char *path, *content_type;
    void (*make)(struct reply_stream *a, const struct node_report *node);
};

static void make_stats(struct reply_stream *a, const struct node_report *node)
{
    a->text = render_json(node, "stats");
}

static void make_metrics(struct reply_stream *a, const struct node_report *node)
{
    a->text = render_metrics(node);
}

static void set_sentence(struct reply_stream *a, unsigned code, const char *sentence)
{
    size_t n_bytes = strlen(sentence) + 2;

    a->code = code;
    a->text = memory_try_alloc(n_bytes);
    if (a->text)
        snprintf(a->text, n_bytes, "%s\n", sentence);
}

static void make_health(struct reply_stream *a, const struct node_report *node)
{
    char sentence[320];
    int status = render_health(node, sentence, sizeof sentence);

    set_sentence(a, status ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, sentence);
}

static void make_ready(struct reply_stream *a, const struct node_report *node)
{
    if (node->stopping)
        set_sentence(a, MHD_HTTP_SERVICE_UNAVAILABLE, "stopping");
    else if (!node->ready)
        set_sentence(a, MHD_HTTP_SERVICE_UNAVAILABLE, "starting");
    else
        set_sentence(a, MHD_HTTP_OK, "ready");
}

static const struct endpoint endpoints[] = {
    { "/stats", "application/json", make_stats },
    { "/metrics", "text/plain; version=0.0.4; charset=utf-8", make_metrics },
    { "/healthz", "text/plain; charset=utf-8", make_health },
    { "/readyz", "text/plain; charset=utf-8", make_ready },
};

static enum MHD_Result send_response(struct MHD_Connection *connection, unsigned code,
                                     const char *content_type, struct MHD_Response *response)
{
    enum MHD_Result result;

    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", content_type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, "Allow", "GET, HEAD");
    result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result send_sentence(struct MHD_Connection *connection, unsigned code,
                                     const char *sentence)
{
    return send_response(connection, code, "text/plain; charset=utf-8",
                         MHD_create_response_from_buffer(strlen(sentence),
                                                         (void *)(uintptr_t)sentence,
                                                         MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result send_page(struct MHD_Connection *connection)
{
    size_t n_bytes;
    const char *text = page_text(&n_bytes);

    return send_response(connection, MHD_HTTP_OK, "text/html; charset=utf-8",
                         MHD_create_response_from_buffer(n_bytes, (void *)(uintptr_t)text,
                                                         MHD_RESPMEM_PERSISTENT));
}

static void use_report(void *arg, const struct node_report *node)
{
    struct reply_stream *a = arg;

    a->endpoint->make(a, node);
}

static enum MHD_Result send_report(struct http *h, struct MHD_Connection *connection,
                                   const struct endpoint *endpoint)
{
    struct reply_stream a = { .endpoint = endpoint, .code = MHD_HTTP_OK };
    struct MHD_Response *response;

    h->with_report(h->node, use_report, &a);
    if (!a.text)
        return send_sentence(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                             "no memory to make this answer\n");
    response = MHD_create_response_from_buffer(strlen(a.text), a.text, MHD_RESPMEM_MUST_FREE);
    if (!response)
        free(a.text);
    return send_response(connection, a.code, endpoint->content_type, response);
}

/*
 * Called when a request's headers are there, and again when all of it is. An answer to the
 * first call ends the connection: right for a method that may bring a body, which is then never
 * read; GET and HEAD are answered at the second call, so that a scraper keeps its connection.
 */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *http_version,
                                  const char *upload_data, size_t *upload_bytes,
                                  void **request_state)
{
    struct http *h = arg;

    (void)http_version, (void)upload_data;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return send_sentence(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
                             "read-only: GET and HEAD are what it knows\n");
    if (!*request_state) {
        *request_state = h;
        return MHD_YES;
    }
    if (*upload_bytes)
        return MHD_NO; /* a GET with a body: nobody means that */
    if (strcmp(url, "/") == 0)
        return send_page(connection);
    for (size_t i = 0; i < COUNT_OF(endpoints); i++)
        if (strcmp(url, endpoints[i].path) == 0)
            return send_report(h, connection, &endpoints[i]);
    return send_sentence(connection, MHD_HTTP_NOT_FOUND,
                         "no such page; there are / /stats /metrics /healthz /readyz\n");
}

static const char no_handshake[] =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    "Connection: close\r\n\r\nthis is the stats port: frames go to --listen's\n";

/* Who takes this port for the other one greets with a frame, in which libmicrohttpd sees a line whose end it waits for.
 * TCP_DEFER_ACCEPT lets us see it first. */
static void turn_away(int fd)
{
    uint8_t bytes[1024];
    ssize_t n = recv(fd, bytes, FRAME_HEADER_BYTES, MSG_PEEK | MSG_DONTWAIT);

    if (n < (ssize_t)FRAME_HEADER_BYTES || !frame_magic_fits(bytes, (size_t)n))
        return;
    (void)!recv(fd, bytes, sizeof bytes,
                MSG_DONTWAIT); /* left unread, it would turn the end into a reset */
    (void)!send(fd, no_handshake, sizeof no_handshake - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(fd, SHUT_RDWR);
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **state,
                          enum MHD_ConnectionNotificationCode code)
{
    const union MHD_ConnectionInfo *info;

    (void)arg;
    (void)state;
    if (code != MHD_CONNECTION_NOTIFY_STARTED)
        return;
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info)
        turn_away(info->connect_fd);
}

/* "127.0.0.1:7071", "[::1]:7071", "name:7071" into host and port. */
static int split(const char *address, char host[static HOST_MAX], const char **ret_port,
                 struct err *err)
{
    const char *colon = strrchr(address, ':'), *first = address, *end = colon;

    if (colon && address[0] == '[') {
        first = address + 1;
        end = colon > first && colon[-1] == ']' ? colon - 1 : NULL;
    } else if (colon && memchr(address, ':', (size_t)(colon - address))) {
        end = NULL; /* an IPv6 address without brackets: where does it end? */
    }
    if (!end || end <= first || end - first >= HOST_MAX || !colon[1])
        return err_set(err, -EINVAL,
                       "the HTTP address is \"%.100s\", HOST:PORT was expected, like "
                       "127.0.0.1:7071 or [::1]:7071",
                       address);
    snprintf(host, HOST_MAX, "%.*s", (int)(end - first), first);
    *ret_port = colon + 1;
    return 0;
}

static int bind_to(const struct addrinfo *info, int *ret_fd)
{
    int one = 1, seconds = IDLE_SECONDS_MAX,
        fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                    info->ai_protocol);

    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, 64) == 0) {
        *ret_fd = fd;
        return 0;
    }
    one = errno;
    close(fd);
    return -one;
}

/* The socket is ours to make: libmicrohttpd would not say why it could not. */
static int open_listener(const char *address, int *ret_fd, struct err *err)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_PASSIVE | AI_NUMERICSERV },
                    *found;
    char host[HOST_MAX];
    const char *port = NULL;
    int status = split(address, host, &port, err), code;

    if (status)
        return status;
    code = getaddrinfo(host, port, &hints, &found);
    if (code)
        return err_set(err, -EINVAL, "the HTTP address %.100s does not resolve: %s", address,
                       gai_strerror(code));
    status = -EADDRNOTAVAIL;
    for (const struct addrinfo *info = found; info && status; info = info->ai_next)
        status = bind_to(info, ret_fd);
    freeaddrinfo(found);
    return status ? err_set(err, status, "--http: cannot listen on %.100s: %s", address,
                            status_text(status))
                  : 0;
}

static void name_socket(int fd, char *dst, size_t n_bytes)
{
    struct sockaddr_storage bound;
    socklen_t bound_bytes = sizeof bound;
    char host[HOST_MAX] = "?", port[16] = "0";

    if (getsockname(fd, (struct sockaddr *)&bound, &bound_bytes) == 0)
        (void)!getnameinfo((struct sockaddr *)&bound, bound_bytes, host, sizeof host, port,
                           sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(dst, n_bytes, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

int http_start(const char *address, http_with_report with_report, void *node,
               struct http **ret_http, struct err *err)
{
    struct http *h;
    int fd, status = open_listener(address, &fd, err);

    if (status)
        return status;
    h = memory_alloc(sizeof *h);
    h->with_report = with_report;
    h->node = node;
    name_socket(fd, h->address, sizeof h->address);
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET,
        fd, MHD_OPTION_CONNECTION_LIMIT, N_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_BYTES_MAX, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS_MAX,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, NULL, MHD_OPTION_END);
    if (!h->daemon) {
        close(fd);
        free(h);
        return err_set(err, -EIO, "cannot start the HTTP thread for %.100s", address);
    }
    *ret_http = h;
    return 0;
}

void http_stop(struct http *h)
{
    if (!h)
        return;
    MHD_stop_daemon(h->daemon); /* closes the socket, too */
    free(h);
}

const char *http_address(const struct http *h)
{
    return h->address;
}
