#include "server/admin/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/clock.h"
#include "common/memory.h"
#include "proto/frame.h"
#include "server/admin/http_host.h"
#include "server/admin/page_cache.h"
#include "server/admin/render.h"

#define CONNECTIONS_EXTRA 64u            /* of those that are cut off and not closed yet */
#define CONNECTION_BYTES_MAX (32u << 10) /* a request's line and headers */
#define BACKLOG 4096                     /* or as many as net.core.somaxconn allows */
#define JIFFIES_MS 20u /* what the kernel's times are exact to, with some to spare */
/* What one write takes, so that many readers of a long text hold nobody else up, and the kernel holds little of it. */
#define SEND_BUFFER_BYTES (64 << 10)

/* One connection, as long as its descriptor is open. */
struct http_client {
    struct http_client *next, *prev; /* the older one is next */
    struct sockaddr_storage address; /* address_host() */
    uint64_t until_ms;
    uint64_t answered_ms; /* when it was last answered; 0: a request has begun */
    int fd;
    bool is_evicted;
    /* Its request for a cached page. */
    struct http *http;                 /* borrowed */
    struct MHD_Connection *connection; /* suspended until the text is made */
    struct page_waiter waiter;
    bool is_made;         /* the waiter has the text, or NULL */
    uint64_t text_number; /* of the text that it is sent; 0: none */
};

struct http {
    uv_mutex_t lock; /* of the clients and counts: libmicrohttpd's thread and the sweep */
    struct http_client *newest; /* owned */
    struct http_counts counts;
    struct MHD_Daemon *daemon; /* owned */
    uv_thread_t thread;
    int wake_fd; /* owned; an eventfd; -1: there is no thread */
    _Atomic bool is_stopping;
    struct page_cache *pages; /* owned */
    stats_with_report with_report;
    void *node;                       /* borrowed */
    const struct setting_list *hosts; /* borrowed; NULL: none */
    char bind[HTTP_HOST_MAX],
        self[HTTP_HOST_MAX]; /* hosts: told to listen on; known to other nodes by */
    char address[HTTP_HOST_MAX + 16];
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

/* One short answer in the making, on the HTTP thread. */
struct reply_stream {
    const struct endpoint *endpoint;
    char *text; /* owned; NULL: no memory */
    unsigned code;
};

/* Pages of page_cache.h. */
enum { PAGE_STATS, PAGE_METRICS, N_PAGES };

struct endpoint {
    const char *path, *content_type;
    void (*make)(struct reply_stream *a, const struct node_report *node); /* NULL: a page */
    uint32_t page;
};

static char *render_stats(const struct node_report *node)
{
    return render_json(node, "stats");
}

static const page_cache_render renders[N_PAGES] = {
    [PAGE_STATS] = render_stats, [PAGE_METRICS] = render_metrics
};

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

static void set_restoring(struct reply_stream *a, const struct node_report *node)
{
    char text[STATS_RESTORE_TEXT_MAX];

    stats_restore_text(&node->restore, node->clock_unix_ms, text);
    set_sentence(a, MHD_HTTP_SERVICE_UNAVAILABLE, text);
}

static void make_ready(struct reply_stream *a, const struct node_report *node)
{
    if (node->stopping)
        set_sentence(a, MHD_HTTP_SERVICE_UNAVAILABLE, "stopping");
    else if (node->restore.is_on)
        set_restoring(a, node);
    else if (!node->ready)
        set_sentence(a, MHD_HTTP_SERVICE_UNAVAILABLE, "starting");
    else
        set_sentence(a, MHD_HTTP_OK, "ready");
}

static const struct endpoint endpoints[] = {
    { "/stats", "application/json", NULL, PAGE_STATS },
    { "/metrics", "text/plain; version=0.0.4; charset=utf-8", NULL, PAGE_METRICS },
    { "/healthz", "text/plain; charset=utf-8", make_health, 0 },
    { "/readyz", "text/plain; charset=utf-8", make_ready, 0 },
};

/* Nothing here is for another site's frames, scripts or images. */
static const char *const headers[][2] = {
    { "Cache-Control", "no-store" },
    { "X-Content-Type-Options", "nosniff" },
    { "X-Frame-Options", "DENY" },
    { "Referrer-Policy", "no-referrer" },
    { "Cross-Origin-Resource-Policy", "same-origin" },
    { "Cross-Origin-Opener-Policy", "same-origin" },
};

static const char no_content_policy[] = "default-src 'none'; frame-ancestors 'none'";

static enum MHD_Result send_with_policy(struct MHD_Connection *connection, unsigned code,
                                        const char *content_type, const char *policy,
                                        struct MHD_Response *response)
{
    enum MHD_Result result;

    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", content_type);
    MHD_add_response_header(response, "Content-Security-Policy", policy);
    for (size_t i = 0; i < COUNT_OF(headers); i++)
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, "Allow", "GET, HEAD");
    result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result send_response(struct MHD_Connection *connection, unsigned code,
                                     const char *content_type, struct MHD_Response *response)
{
    return send_with_policy(connection, code, content_type, no_content_policy, response);
}

static enum MHD_Result send_sentence(struct MHD_Connection *connection, unsigned code,
                                     const char *sentence)
{
    return send_response(connection, code, "text/plain; charset=utf-8",
                         MHD_create_response_from_buffer(strlen(sentence),
                                                         (void *)(uintptr_t)sentence,
                                                         MHD_RESPMEM_PERSISTENT));
}

/* --- the page: its style and its script run by a number that nobody can guess, and no others do --- */

#define NONCE_BYTES 16

static int make_nonce(char dst[static 2 * NONCE_BYTES + 1])
{
    uint8_t bytes[NONCE_BYTES];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return -EIO;
    for (size_t i = 0; i < NONCE_BYTES; i++)
        snprintf(dst + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

/* The page with the nonce in its tags <style> and <script>, of which there is one each. Owned by the caller; NULL: no
 * memory. */
static char *make_page(const char *nonce, size_t *ret_bytes)
{
    static const char *const tags[] = { "<style", "<script" };
    size_t n_bytes;
    const char *text = page_text(&n_bytes), *end = text + n_bytes;
    char *page = memory_try_alloc(n_bytes + COUNT_OF(tags) * (2 * NONCE_BYTES + 16)),
         *at = page;

    if (!page)
        return NULL;
    for (size_t i = 0; i < COUNT_OF(tags); i++) {
        const char *tag = memmem(text, (size_t)(end - text), tags[i], strlen(tags[i]));
        size_t n = tag ? (size_t)(tag - text) + strlen(tags[i]) : 0;

        if (!tag)
            continue;
        memcpy(at, text, n);
        at += n;
        at += sprintf(at, " nonce=\"%s\"", nonce);
        text += n;
    }
    memcpy(at, text, (size_t)(end - text));
    *ret_bytes = (size_t)(at - page) + (size_t)(end - text);
    return page;
}

static enum MHD_Result send_page(struct MHD_Connection *connection)
{
    char nonce[2 * NONCE_BYTES + 1], policy[256], *page = NULL;
    struct MHD_Response *response;
    size_t n_bytes;

    if (!make_nonce(nonce))
        page = make_page(nonce, &n_bytes);
    if (!page)
        return send_sentence(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                             "no memory to make this answer\n");
    snprintf(
        policy, sizeof policy,
        "default-src 'none'; style-src 'nonce-%s'; script-src 'nonce-%s'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        nonce, nonce);
    response = MHD_create_response_from_buffer(n_bytes, page, MHD_RESPMEM_MUST_FREE);
    if (!response)
        free(page);
    return send_with_policy(connection, MHD_HTTP_OK, "text/html; charset=utf-8", policy,
                            response);
}

/* --- the name that was asked for --- */

static bool is_host_of(const char *host, const char *address)
{
    char own[HTTP_HOST_MAX];

    return address && http_host_get(address, own) && strcasecmp(host, own) == 0;
}

static bool is_named(const struct http *h, const char *header)
{
    const struct setting_list *hosts = h->hosts;
    char host[HTTP_HOST_MAX], machine[HTTP_HOST_MAX] = "";

    for (uint32_t i = 0; hosts && i < hosts->n; i++)
        if (strcmp(hosts->items[i], "*") == 0)
            return true;
    if (!http_host_get(header, host))
        return false;
    if (http_host_is_own(host) || is_host_of(host, h->bind) || is_host_of(host, h->self))
        return true;
    (void)gethostname(machine, sizeof machine - 1);
    if (is_host_of(host, machine))
        return true;
    for (uint32_t i = 0; hosts && i < hosts->n; i++)
        if (is_host_of(host, hosts->items[i]))
            return true;
    return false;
}

/* The headers Host of a request. */
struct host_headers {
    uint32_t n;
    /* A name that ends in a blank, or begins like this one: a proxy may take it for a Host that we do not see. To the
     * name of a header libmicrohttpd appends the lines that it is folded into. */
    bool is_bad;
    const char *first;
};

static enum MHD_Result see_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    struct host_headers *all = arg;
    size_t n = strlen(name);

    (void)kind;
    all->is_bad = all->is_bad || !n || name[n - 1] == ' ' || name[n - 1] == '\t';
    if (strncasecmp(name, MHD_HTTP_HEADER_HOST, 4) != 0)
        return MHD_YES;
    all->is_bad = all->is_bad || n > 4;
    all->first = all->n++ ? all->first : value ? value : "";
    return MHD_YES;
}

/* 0, or the code and the sentence of a refusal. A request without the header is no browser's. */
static unsigned check_host(const struct http *h, struct MHD_Connection *connection,
                           const char **ret_sentence)
{
    struct host_headers all = { 0 };

    MHD_get_connection_values(connection, MHD_HEADER_KIND, see_header, &all);
    if (all.is_bad || all.n > 1) {
        *ret_sentence = "a request has one header Host, in one line, and no blank before a "
                        "header's colon\n";
        return MHD_HTTP_BAD_REQUEST;
    }
    if (!all.n || is_named(h, all.first))
        return 0;
    *ret_sentence = "the name in the header Host is none of this node's; psd --http-hosts "
                    "lists more\n";
    return MHD_HTTP_FORBIDDEN;
}

static void use_report(void *arg, const struct node_report *node)
{
    struct reply_stream *a = arg;

    a->endpoint->make(a, node);
}

static enum MHD_Result send_short(struct http *h, struct MHD_Connection *connection,
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

/* --- pages, whose texts are made on another thread and shared --- */

static struct http_client *client_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info ? info->socket_context : NULL;
}

static void wake_thread(struct http *h)
{
    uint64_t one = 1;

    (void)!write(h->wake_fd, &one, sizeof one);
}

/* The request is then given to on_request() again. */
static void on_page_made(struct page_waiter *waiter)
{
    struct http_client *client = CONTAINER_OF(waiter, struct http_client, waiter);
    struct http *h = client->http;

    client->is_made = true;
    MHD_resume_connection(client->connection); /* and it is the HTTP thread's again */
    wake_thread(h);
}

/* Takes `text`. */
static enum MHD_Result send_text(struct http *h, struct http_client *client,
                                 struct MHD_Connection *connection,
                                 const struct endpoint *endpoint, struct page_text *text)
{
    struct MHD_Response *response;

    if (!text)
        return send_sentence(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                             "no memory to make this answer\n");
    uv_mutex_lock(&h->lock);
    client->text_number = text->number;
    uv_mutex_unlock(&h->lock);
    response = MHD_create_response_from_buffer_with_free_callback_cls(text->n_bytes, text->text,
                                                                      page_text_release, text);
    if (!response)
        page_text_release(text);
    return send_response(connection, MHD_HTTP_OK, endpoint->content_type, response);
}

static enum MHD_Result send_page_text(struct http *h, struct MHD_Connection *connection,
                                      const struct endpoint *endpoint)
{
    struct http_client *client = client_of(connection);
    struct page_text *text;

    if (!client)
        return MHD_NO; /* there was no memory for it */
    text = client->is_made ? client->waiter.text : page_cache_find(h->pages, endpoint->page);
    if (text || client->is_made) {
        client->is_made = false;
        client->waiter.text = NULL;
        return send_text(h, client, connection, endpoint, text);
    }
    client->http = h;
    client->connection = connection;
    client->waiter.on_made = on_page_made;
    MHD_suspend_connection(connection);
    page_cache_wait(h->pages, endpoint->page, &client->waiter);
    return MHD_YES;
}

/* --- requests --- */

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
    const char *sentence;
    struct http *h = arg;
    unsigned code;

    (void)http_version, (void)upload_data;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return send_sentence(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
                             "read-only: GET and HEAD are what it knows\n");
    if (!*request_state) {
        *request_state = h;
        return MHD_YES;
    }
    code = check_host(h, connection, &sentence);
    if (code)
        return send_sentence(connection, code, sentence);
    if (*upload_bytes)
        return MHD_NO; /* a GET with a body: nobody means that */
    if (strcmp(url, "/") == 0)
        return send_page(connection);
    for (size_t i = 0; i < COUNT_OF(endpoints); i++)
        if (strcmp(url, endpoints[i].path) == 0)
            return endpoints[i].make ? send_short(h, connection, &endpoints[i])
                                     : send_page_text(h, connection, &endpoints[i]);
    return send_sentence(connection, MHD_HTTP_NOT_FOUND,
                         "no such page; there are / /stats /metrics /healthz /readyz\n");
}

/* A zero byte would end the path before its end: %00 stays as it is, and no page has it. */
static size_t unescape(void *arg, struct MHD_Connection *connection, char *text)
{
    (void)arg, (void)connection;
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

static const char no_handshake[] =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    "Connection: close\r\n\r\nthis is the stats port: frames go to --listen's\n";

/* --- connections --- */

static bool is_same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Its descriptor is open until remove_client(); libmicrohttpd sees the end of the stream. */
static void evict(struct http *h, struct http_client *client)
{
    client->is_evicted = true;
    h->counts.evicted++;
    shutdown(client->fd, SHUT_RDWR);
}

/* Cuts off the oldest of an address, or of all, if there are more than there may be. */
static void make_space(struct http *h, const struct sockaddr_storage *address)
{
    struct http_client *oldest = NULL, *oldest_here = NULL;
    uint32_t n = 0, n_here = 0;

    for (struct http_client *i = h->newest; i; i = i->next) {
        if (i->is_evicted)
            continue;
        oldest = i;
        n++;
        if (!is_same_address(&i->address, address))
            continue;
        oldest_here = i;
        n_here++;
    }
    if (n_here > HTTP_ADDRESS_MAX)
        evict(h, oldest_here);
    else if (n > HTTP_CONNECTIONS_MAX)
        evict(h, oldest);
}

static void read_address(int fd, struct sockaddr_storage *ret)
{
    struct sockaddr_storage address = { 0 };
    socklen_t n_bytes = sizeof address;

    *ret = (struct sockaddr_storage){ 0 };
    if (!getpeername(fd, (struct sockaddr *)&address, &n_bytes))
        *ret = address_host(&address);
}

/* NULL: no memory. */
static struct http_client *add_client(struct http *h, int fd)
{
    struct http_client *client = memory_try_alloc(sizeof *client);

    if (!client)
        return NULL;
    *client = (struct http_client){ .fd = fd, .until_ms = clock_mono_ms() + HTTP_REQUEST_MS };
    read_address(fd, &client->address);
    uv_mutex_lock(&h->lock);
    client->next = h->newest;
    if (client->next)
        client->next->prev = client;
    h->newest = client;
    h->counts.connections++;
    h->counts.connections_total++;
    make_space(h, &client->address);
    uv_mutex_unlock(&h->lock);
    return client;
}

static void remove_client(struct http *h, struct http_client *client)
{
    uv_mutex_lock(&h->lock);
    if (client->prev)
        client->prev->next = client->next;
    else
        h->newest = client->next;
    if (client->next)
        client->next->prev = client->prev;
    h->counts.connections--;
    uv_mutex_unlock(&h->lock);
    page_text_release(client->waiter.text);
    free(client);
}

/* A request has been answered: the next one has its own time, from its first byte on. */
static void on_completed(void *arg, struct MHD_Connection *connection, void **request_state,
                         enum MHD_RequestTerminationCode code)
{
    struct http_client *client = client_of(connection);
    struct http *h = arg;

    (void)request_state;
    (void)code;
    if (!client)
        return;
    uv_mutex_lock(&h->lock);
    client->text_number = 0;
    client->answered_ms = clock_mono_ms();
    client->until_ms = client->answered_ms + HTTP_IDLE_MS + HTTP_REQUEST_MS;
    uv_mutex_unlock(&h->lock);
}

/* libmicrohttpd says nothing of a request before its first line is whole; the kernel knows when bytes came. */
static bool has_begun(const struct http_client *client, uint64_t now_ms)
{
    struct tcp_info info = { 0 };
    socklen_t n_bytes = sizeof info;

    if (!client->answered_ms || getsockopt(client->fd, IPPROTO_TCP, TCP_INFO, &info, &n_bytes))
        return false;
    return client->answered_ms + JIFFIES_MS + info.tcpi_last_data_recv < now_ms;
}

static void begin_requests(struct http *h)
{
    uint64_t now_ms = clock_mono_ms();

    for (struct http_client *i = h->newest; i; i = i->next) {
        if (!has_begun(i, now_ms))
            continue;
        i->answered_ms = 0;
        i->until_ms = now_ms + HTTP_REQUEST_MS;
    }
}

/* Too slow for its own time, or for the memory of texts. */
static bool is_slow(const struct http_client *client, uint64_t now_ms, uint64_t surplus)
{
    return now_ms > client->until_ms || (surplus && client->text_number == surplus);
}

void http_sweep(struct http *h, uint64_t now_ms, struct http_counts *ret)
{
    uint64_t surplus = page_cache_surplus(h->pages);

    uv_mutex_lock(&h->lock);
    begin_requests(h);
    for (struct http_client *i = h->newest; i; i = i->next)
        if (!i->is_evicted && is_slow(i, now_ms, surplus))
            evict(h, i);
    *ret = h->counts;
    uv_mutex_unlock(&h->lock);
}

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
    struct http *h = arg;

    if (code != MHD_CONNECTION_NOTIFY_STARTED) {
        if (*state)
            remove_client(h, *state);
        *state = NULL;
        return;
    }
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info)
        return;
    turn_away(info->connect_fd);
    *state = add_client(h, info->connect_fd);
}

/* "127.0.0.1:7071", "[::1]:7071", "name:7071" into host and port. */
static int split(const char *address, char host[static HTTP_HOST_MAX], const char **ret_port,
                 struct err *err)
{
    const char *colon = strrchr(address, ':'), *first = address, *end = colon;

    if (colon && address[0] == '[') {
        first = address + 1;
        end = colon > first && colon[-1] == ']' ? colon - 1 : NULL;
    } else if (colon && memchr(address, ':', (size_t)(colon - address))) {
        end = NULL; /* an IPv6 address without brackets: where does it end? */
    }
    if (!end || end <= first || end - first >= HTTP_HOST_MAX || !colon[1])
        return err_set(err, -EINVAL,
                       "the HTTP address is \"%.100s\", HOST:PORT was expected, like "
                       "127.0.0.1:7071 or [::1]:7071",
                       address);
    snprintf(host, HTTP_HOST_MAX, "%.*s", (int)(end - first), first);
    *ret_port = colon + 1;
    return 0;
}

static int bind_to(const struct addrinfo *info, int *ret_fd)
{
    int one = 1, seconds = HTTP_IDLE_MS / 1000, send_bytes = SEND_BUFFER_BYTES,
        fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                    info->ai_protocol);

    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes); /* inherited */
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
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
    char host[HTTP_HOST_MAX];
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
    char host[HTTP_HOST_MAX] = "?", port[16] = "0";

    if (getsockname(fd, (struct sockaddr *)&bound, &bound_bytes) == 0)
        (void)!getnameinfo((struct sockaddr *)&bound, bound_bytes, host, sizeof host, port,
                           sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(dst, n_bytes, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

/*
 * libmicrohttpd's loop, on a thread of ours. Its own thread sleeps on ready connections (0.9.75): where epoll_wait()
 * has given the 128 events that it asks for at a time, it waits for more before it looks at these.
 */
static void run(void *arg)
{
    struct http *h = arg;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    struct pollfd fds[] = { { .fd = info->epoll_fd, .events = POLLIN },
                            { .fd = h->wake_fd, .events = POLLIN } };

    while (!atomic_load(&h->is_stopping)) {
        MHD_UNSIGNED_LONG_LONG left_ms;
        int wait_ms = HTTP_IDLE_MS;
        uint64_t ignored;

        if (MHD_get_timeout(h->daemon, &left_ms) == MHD_YES && left_ms < HTTP_IDLE_MS)
            wait_ms = (int)left_ms;
        if (poll(fds, COUNT_OF(fds), wait_ms) > 0 && fds[1].revents)
            (void)!read(h->wake_fd, &ignored, sizeof ignored); /* before what it tells of */
        (void)!MHD_run(h->daemon);
    }
}

/* Takes `fd`, also when it fails. */
static int start_thread(struct http *h, int fd)
{
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, h,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        HTTP_CONNECTIONS_MAX + CONNECTIONS_EXTRA, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_BYTES_MAX, MHD_OPTION_CONNECTION_TIMEOUT, HTTP_IDLE_MS / 1000,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, h, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_END);
    if (!h->daemon) {
        close(fd);
        return -EIO;
    }
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->wake_fd < 0)
        return -errno;
    if (uv_thread_create(&h->thread, run, h) == 0)
        return 0;
    close(h->wake_fd);
    h->wake_fd = -1;
    return -EAGAIN;
}

static void stop_thread(struct http *h)
{
    if (h->wake_fd < 0)
        return;
    atomic_store(&h->is_stopping, true);
    wake_thread(h);
    uv_thread_join(&h->thread);
    close(h->wake_fd);
}

int http_start(const char *address, const struct http_names *names,
               stats_with_report with_report, void *node, struct http **ret_http,
               struct err *err)
{
    struct http *h;
    int fd, status = open_listener(address, &fd, err);

    if (status)
        return status;
    h = memory_alloc(sizeof *h);
    h->with_report = with_report;
    h->node = node;
    h->hosts = names->hosts;
    h->wake_fd = -1;
    (void)!http_host_get(address, h->bind);
    (void)!http_host_get(names->self, h->self);
    name_socket(fd, h->address, sizeof h->address);
    if (uv_mutex_init(&h->lock))
        abort(); /* only without memory */
    status = page_cache_start(renders, N_PAGES, with_report, node, &h->pages, err);
    if (status) {
        close(fd);
    } else {
        status = start_thread(h, fd);
        if (status)
            err_set(err, status, "cannot start the HTTP thread for %.100s (ulimit -v and -u)",
                    address);
    }
    if (status) {
        http_stop(h);
        return status;
    }
    *ret_http = h;
    return 0;
}

void http_stop(struct http *h)
{
    if (!h)
        return;
    page_cache_stop(h->pages); /* before: a suspended connection cannot be closed */
    stop_thread(h);
    if (h->daemon)
        MHD_stop_daemon(h->daemon); /* closes the socket, too */
    page_cache_free(h->pages);
    uv_mutex_destroy(&h->lock);
    free(h);
}

const char *http_address(const struct http *h)
{
    return h->address;
}
