#include "common/http/http_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/clock.h"
#include "common/http/http_tls.h"
#include "common/memory.h"
#include "common/token_file.h"

#define CONNECTIONS_EXTRA 64u            /* of those that are cut off and not closed yet */
#define CONNECTION_BYTES_MAX (32u << 10) /* a request's line and headers */
#define BACKLOG 4096                     /* or as many as net.core.somaxconn allows */
#define JIFFIES_MS 20u /* what the kernel's times are exact to, with some to spare */
/* What one write takes, so that many readers of a long text hold nobody else up, and the kernel holds little of it. */
#define SEND_BUFFER_BYTES (64 << 10)

/* One connection, as long as its descriptor is open. */
struct client {
    struct client *next, *prev;      /* the older one is next */
    struct sockaddr_storage address; /* address_host() */
    uint64_t until_ms;
    uint64_t answered_ms; /* when it was last answered; 0: a request has begun */
    int fd;
    bool is_evicted, is_held;
    max_align_t state[]; /* the owner's */
};

struct http_server {
    struct http_server_config config;
    pthread_mutex_t lock;  /* of the clients and counts: libmicrohttpd's thread and the sweep */
    struct client *newest; /* owned */
    struct http_server_counts counts;
    struct MHD_Daemon *daemon; /* owned */
    pthread_t thread;
    int listen_fd; /* owned, until the daemon has it; else -1 */
    int wake_fd;   /* owned; an eventfd; -1: there is no thread */
    _Atomic bool is_stopping, is_closing;
    char bind[HTTP_SERVER_HOST_MAX],
        self[HTTP_SERVER_HOST_MAX]; /* hosts: told to listen on; known to others by */
    char address[HTTP_SERVER_HOST_MAX + 16];
};

/* ---- answers ---- */

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

enum MHD_Result http_server_send(struct MHD_Connection *connection, unsigned code,
                                 const char *content_type, const char *policy,
                                 struct MHD_Response *response)
{
    enum MHD_Result result;

    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", content_type);
    MHD_add_response_header(response, "Content-Security-Policy",
                            policy ? policy : no_content_policy);
    for (size_t i = 0; i < COUNT_OF(headers); i++)
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
    result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static struct MHD_Response *response_of(const char *sentence)
{
    return MHD_create_response_from_buffer(strlen(sentence), (void *)(uintptr_t)sentence,
                                           MHD_RESPMEM_PERSISTENT);
}

static const char plain_text[] = "text/plain; charset=utf-8";

enum MHD_Result http_server_send_sentence(struct MHD_Connection *connection, unsigned code,
                                          const char *sentence)
{
    return http_server_send(connection, code, plain_text, NULL, response_of(sentence));
}

enum MHD_Result http_server_send_challenge(struct MHD_Connection *connection,
                                           const char *challenge, const char *sentence)
{
    struct MHD_Response *response = response_of(sentence);

    if (response)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, challenge);
    return http_server_send(connection, MHD_HTTP_UNAUTHORIZED, plain_text, NULL, response);
}

enum MHD_Result http_server_refuse_method(struct MHD_Connection *connection, const char *allow,
                                          const char *sentence)
{
    struct MHD_Response *response = response_of(sentence);

    if (response)
        MHD_add_response_header(response, "Allow", allow);
    return http_server_send(connection, MHD_HTTP_METHOD_NOT_ALLOWED, plain_text, NULL,
                            response);
}

/*
 * ---- the host in the header Host, or in an address ----
 *
 * A browser sends the name under which it reached this server, so a name that somebody else can register is another
 * site's (DNS rebinding).
 */

/* Of a name without a dot. */
static const char name_chars[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* The host of "host:port" or "[::1]:port" (brackets stay) without a last dot. False: it is neither, or too long. */
static bool get_host(const char *text, char dst[static HTTP_SERVER_HOST_MAX])
{
    size_t n =
        text[0] == '[' ? strcspn(text, "]") + (strchr(text, ']') != NULL) : strcspn(text, ":");
    const char *port = text + n;

    if (n >= HTTP_SERVER_HOST_MAX || (*port && *port != ':') ||
        (*port && port[1 + strspn(port + 1, "0123456789")]))
        return false;
    memcpy(dst, text, n);
    n -= n > 1 && dst[n - 1] == '.';
    dst[n] = '\0';
    return n > 0;
}

/* "%eth0]", or "%25eth0]" as in a URL: an interface of this machine, by name or number. */
static bool is_own_zone(const char *text)
{
    char zone[IF_NAMESIZE];
    const char *start = text + 1 + (strncmp(text, "%25", 3) == 0 && text[3] != ']' ? 2 : 0);
    size_t n = strcspn(start, "]");

    if (*text != '%' || !n || n >= sizeof zone || strcmp(start + n, "]") != 0)
        return false;
    snprintf(zone, sizeof zone, "%.*s", (int)n, start);
    return zone[strspn(zone, "0123456789")] == '\0' || if_nametoindex(zone) != 0;
}

/* "[::1]", "[fe80::1%eth0]" */
static bool is_ipv6(const char *host)
{
    char text[INET6_ADDRSTRLEN];
    struct in6_addr address;
    size_t n = strcspn(host, "%]");

    if (host[0] != '[' || n > sizeof text)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)n - 1, host + 1);
    return inet_pton(AF_INET6, text, &address) == 1 &&
           (strcmp(host + n, "]") == 0 ||
            (IN6_IS_ADDR_LINKLOCAL(&address) && is_own_zone(host + n)));
}

/* A number, localhost, or another name that nobody can register. A zone is an interface of this machine. */
static bool is_own_host(const char *host)
{
    uint8_t ignored[sizeof(struct in_addr)];

    return is_ipv6(host) || inet_pton(AF_INET, host, ignored) == 1 ||
           host[strspn(host, name_chars)] == '\0';
}

static bool is_host_of(const char *host, const char *address)
{
    char own[HTTP_SERVER_HOST_MAX];

    return address && get_host(address, own) && strcasecmp(host, own) == 0;
}

static bool is_named(const struct http_server *h, const char *header)
{
    const struct setting_list *hosts = h->config.names.hosts;
    char host[HTTP_SERVER_HOST_MAX], machine[HTTP_SERVER_HOST_MAX] = "";

    for (uint32_t i = 0; hosts && i < hosts->n; i++)
        if (strcmp(hosts->items[i], "*") == 0)
            return true;
    if (!get_host(header, host))
        return false;
    if (is_own_host(host) || is_host_of(host, h->bind) || is_host_of(host, h->self))
        return true;
    (void)gethostname(machine, sizeof machine - 1);
    if (is_host_of(host, machine))
        return true;
    for (uint32_t i = 0; hosts && i < hosts->n; i++)
        if (is_host_of(host, hosts->items[i]))
            return true;
    return false;
}

unsigned http_server_check_host(const struct http_server *h, struct MHD_Connection *connection,
                                const char **ret_sentence)
{
    const char *host =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);

    if (!host || is_named(h, host))
        return 0;
    *ret_sentence = h->config.names.refusal;
    return MHD_HTTP_FORBIDDEN;
}

bool http_server_has_token(struct MHD_Connection *connection, const char *token)
{
    static const char bearer[] = "Bearer ";
    const char *header =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);

    return header && strncasecmp(header, bearer, sizeof bearer - 1) == 0 &&
           token_file_is_same(token, header + sizeof bearer - 1);
}

/*
 * ---- where a request ends, and who it is for ----
 *
 * A proxy that reads a request otherwise than libmicrohttpd would take a part of it for the next one, or let through
 * what it is to keep out. So a request that can be read in two ways is answered by the end of its connection.
 */

struct heads {
    uint32_t n_hosts, n_lengths, n_encodings;
    /* A name that ends in a blank, or begins like Host: to the name of a header libmicrohttpd appends the lines that it
     * is folded into. */
    bool is_bad;
};

static enum MHD_Result see_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    struct heads *all = arg;
    size_t n = strlen(name);

    (void)kind, (void)value;
    all->is_bad = all->is_bad || !n || name[n - 1] == ' ' || name[n - 1] == '\t' ||
                  (n > 4 && strncasecmp(name, MHD_HTTP_HEADER_HOST, 4) == 0);
    all->n_hosts += strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0;
    all->n_lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    all->n_encodings += strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    return MHD_YES;
}

/* NULL, or the sentence of a refusal. */
static const char *check_heads(struct MHD_Connection *connection)
{
    struct heads all = { 0 };

    MHD_get_connection_values(connection, MHD_HEADER_KIND, see_header, &all);
    if (all.is_bad || all.n_hosts > 1)
        return "a request has one header Host, in one line, and no blank before a header's "
               "colon\n";
    if (all.n_lengths + all.n_encodings > 1)
        return "a request has one header Content-Length, or one Transfer-Encoding\n";
    return NULL;
}

/* An answer to the headers alone, of which the first call is, ends the connection. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *http_version,
                                  const char *upload_data, size_t *upload_bytes,
                                  void **request_state)
{
    const struct http_server *h = arg;
    const char *sentence = *request_state ? NULL : check_heads(connection);

    if (sentence)
        return http_server_send_sentence(connection, MHD_HTTP_BAD_REQUEST, sentence);
    return h->config.events->on_request(h->config.owner, connection, url, method, http_version,
                                        upload_data, upload_bytes, request_state);
}

/* ---- connections ---- */

static struct client *client_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info ? info->socket_context : NULL;
}

void *http_server_state(struct MHD_Connection *connection)
{
    struct client *client = client_of(connection);

    return client ? client->state : NULL;
}

void http_server_hold(struct http_server *h, struct MHD_Connection *connection)
{
    struct client *client = client_of(connection);

    pthread_mutex_lock(&h->lock);
    if (client)
        client->is_held = true;
    pthread_mutex_unlock(&h->lock);
}

void http_server_extend(struct http_server *h, struct MHD_Connection *connection)
{
    struct client *client = client_of(connection);

    pthread_mutex_lock(&h->lock);
    if (client)
        client->until_ms = clock_mono_ms() + h->config.request_ms;
    pthread_mutex_unlock(&h->lock);
}

static bool is_same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Its descriptor is open until remove_client(); libmicrohttpd sees the end of the stream. */
static void evict(struct http_server *h, struct client *client)
{
    client->is_evicted = true;
    h->counts.evicted++;
    shutdown(client->fd, SHUT_RDWR);
}

/* Cuts off the oldest of an address, or of all, if there are more than there may be. */
static void make_space(struct http_server *h, const struct sockaddr_storage *address)
{
    struct client *oldest = NULL, *oldest_here = NULL;
    uint32_t n = 0, n_here = 0;

    for (struct client *i = h->newest; i; i = i->next) {
        if (i->is_evicted)
            continue;
        oldest = i->is_held ? oldest : i;
        n++;
        if (!is_same_address(&i->address, address))
            continue;
        oldest_here = i->is_held ? oldest_here : i;
        n_here++;
    }
    if (n_here > h->config.address_max && oldest_here)
        evict(h, oldest_here);
    else if (n > h->config.connections_max && oldest)
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
static struct client *add_client(struct http_server *h, int fd)
{
    struct client *client = memory_try_alloc(sizeof *client + h->config.state_bytes);

    if (!client)
        return NULL;
    client->fd = fd;
    client->until_ms = clock_mono_ms() + h->config.request_ms;
    read_address(fd, &client->address);
    pthread_mutex_lock(&h->lock);
    client->next = h->newest;
    if (client->next)
        client->next->prev = client;
    h->newest = client;
    h->counts.connections++;
    h->counts.connections_total++;
    make_space(h, &client->address);
    pthread_mutex_unlock(&h->lock);
    return client;
}

static void remove_client(struct http_server *h, struct client *client)
{
    pthread_mutex_lock(&h->lock);
    if (client->prev)
        client->prev->next = client->next;
    else
        h->newest = client->next;
    if (client->next)
        client->next->prev = client->prev;
    h->counts.connections--;
    pthread_mutex_unlock(&h->lock);
    if (h->config.events->on_closed)
        h->config.events->on_closed(h->config.owner, client->state);
    free(client);
}

/* A request has been answered: the next one has its own time, from its first byte on. */
static void on_completed(void *arg, struct MHD_Connection *connection, void **request_state,
                         enum MHD_RequestTerminationCode code)
{
    struct client *client = client_of(connection);
    struct http_server *h = arg;

    (void)code;
    if (h->config.events->on_completed)
        h->config.events->on_completed(h->config.owner, client ? client->state : NULL,
                                       *request_state);
    *request_state = NULL;
    if (!client)
        return;
    pthread_mutex_lock(&h->lock);
    client->is_held = false;
    client->answered_ms = clock_mono_ms();
    client->until_ms = client->answered_ms + h->config.idle_ms + h->config.request_ms;
    pthread_mutex_unlock(&h->lock);
}

/* libmicrohttpd says nothing of a request before its first line is whole; the kernel knows when bytes came. */
static bool has_begun(const struct client *client, uint64_t now_ms)
{
    struct tcp_info info = { 0 };
    socklen_t n_bytes = sizeof info;

    if (!client->answered_ms || getsockopt(client->fd, IPPROTO_TCP, TCP_INFO, &info, &n_bytes))
        return false;
    return client->answered_ms + JIFFIES_MS + info.tcpi_last_data_recv < now_ms;
}

static void begin_requests(struct http_server *h)
{
    uint64_t now_ms = clock_mono_ms();

    for (struct client *i = h->newest; i; i = i->next) {
        if (!has_begun(i, now_ms))
            continue;
        i->answered_ms = 0;
        i->until_ms = now_ms + h->config.request_ms;
    }
}

static bool is_unwanted(const struct http_server *h, const struct client *client)
{
    const struct http_server_events *events = h->config.events;

    return events->is_unwanted && events->is_unwanted(h->config.owner, client->state);
}

void http_server_sweep(struct http_server *h, uint64_t now_ms, struct http_server_counts *ret)
{
    pthread_mutex_lock(&h->lock);
    begin_requests(h);
    for (struct client *i = h->newest; i; i = i->next)
        if (!i->is_evicted && (now_ms > i->until_ms || is_unwanted(h, i)))
            evict(h, i);
    *ret = h->counts;
    pthread_mutex_unlock(&h->lock);
}

/* A client that speaks TLS to a plain port, or the other way round, would wait for an answer that it understands. The
 * first bytes are there: TCP_DEFER_ACCEPT. */
static void turn_away_mismatch(struct http_server *h, int fd)
{
    static const char *const sentences[] = { "this port speaks plain HTTP: https:// was asked",
                                             "this port speaks HTTPS: plain bytes came" };
    const bool is_sealed = h->config.tls != NULL;
    struct sockaddr_storage address = { 0 };
    socklen_t n_bytes = sizeof address;
    char peer[ADDRESS_TEXT_MAX], text[256];
    uint8_t bytes[1024];
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    int len;

    if (n <= 0 || tls_is_hello(bytes, (size_t)n) == is_sealed)
        return;
    if (getpeername(fd, (struct sockaddr *)&address, &n_bytes))
        address.ss_family = AF_UNSPEC;
    address_text((struct sockaddr *)&address, peer);
    if (h->config.events->on_mismatch)
        h->config.events->on_mismatch(h->config.owner, peer, sentences[is_sealed]);
    (void)!recv(fd, bytes, sizeof bytes,
                MSG_DONTWAIT); /* left unread, it would turn the end into a reset */
    len = snprintf(text, sizeof text,
                   "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
                   "Connection: close\r\n\r\n%s\n",
                   sentences[is_sealed]);
    (void)!send(fd, text, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(fd, SHUT_RDWR);
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **state,
                          enum MHD_ConnectionNotificationCode code)
{
    const union MHD_ConnectionInfo *info;
    struct http_server *h = arg;

    if (code != MHD_CONNECTION_NOTIFY_STARTED) {
        if (*state)
            remove_client(h, *state);
        *state = NULL;
        return;
    }
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info)
        return;
    if (h->config.events->on_connection)
        h->config.events->on_connection(h->config.owner, info->connect_fd);
    turn_away_mismatch(h, info->connect_fd);
    if (h->config.tls)
        http_tls_begin(connection, h->config.tls);
    *state = add_client(h, info->connect_fd);
}

/* ---- the socket ---- */

/* "127.0.0.1:7071", "[::1]:7071", "name:7071" into host and port. */
static int split(const char *address, char host[static HTTP_SERVER_HOST_MAX],
                 const char **ret_port, struct err *err)
{
    const char *colon = strrchr(address, ':'), *first = address, *end = colon;

    if (colon && address[0] == '[') {
        first = address + 1;
        end = colon > first && colon[-1] == ']' ? colon - 1 : NULL;
    } else if (colon && memchr(address, ':', (size_t)(colon - address))) {
        end = NULL; /* an IPv6 address without brackets: where does it end? */
    }
    if (!end || end <= first || end - first >= HTTP_SERVER_HOST_MAX || !colon[1])
        return err_set(err, -EINVAL,
                       "the HTTP address is \"%.100s\", HOST:PORT was expected, like "
                       "127.0.0.1:7071 or [::1]:7071",
                       address);
    snprintf(host, HTTP_SERVER_HOST_MAX, "%.*s", (int)(end - first), first);
    *ret_port = colon + 1;
    return 0;
}

static int bind_to(const struct http_server *h, const struct addrinfo *info, int *ret_fd)
{
    int one = 1, seconds = (int)h->config.idle_ms / 1000, send_bytes = SEND_BUFFER_BYTES,
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
static int open_listener(struct http_server *h, const char *address, struct err *err)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_PASSIVE | AI_NUMERICSERV },
                    *found;
    char host[HTTP_SERVER_HOST_MAX];
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
        status = bind_to(h, info, &h->listen_fd);
    freeaddrinfo(found);
    return status ? err_set(err, status, "--http: cannot listen on %.100s: %s", address,
                            status_text(status))
                  : 0;
}

static void name_socket(int fd, char *dst, size_t n_bytes)
{
    struct sockaddr_storage bound;
    socklen_t bound_bytes = sizeof bound;
    char host[HTTP_SERVER_HOST_MAX] = "?", port[16] = "0";

    if (getsockname(fd, (struct sockaddr *)&bound, &bound_bytes) == 0)
        (void)!getnameinfo((struct sockaddr *)&bound, bound_bytes, host, sizeof host, port,
                           sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(dst, n_bytes, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

/* ---- the thread ---- */

static void wake_thread(struct http_server *h)
{
    uint64_t one = 1;

    (void)!write(h->wake_fd, &one, sizeof one);
}

void http_server_resume(struct http_server *h, struct MHD_Connection *connection)
{
    MHD_resume_connection(connection); /* and it is the server's thread's again */
    wake_thread(h);
}

/* Who connects from here on is refused. */
static void close_listener(struct http_server *h)
{
    const MHD_socket fd = MHD_quiesce_daemon(h->daemon);

    if (fd != MHD_INVALID_SOCKET)
        close(fd);
}

/*
 * libmicrohttpd's loop, on a thread of ours. Its own thread sleeps on ready connections (0.9.75): where epoll_wait()
 * has given the 128 events that it asks for at a time, it waits for more before it looks at these.
 */
static void *run(void *arg)
{
    struct http_server *h = arg;
    bool is_closed = false;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    struct pollfd fds[] = { { .fd = info->epoll_fd, .events = POLLIN },
                            { .fd = h->wake_fd, .events = POLLIN } };

    while (!atomic_load(&h->is_stopping)) {
        MHD_UNSIGNED_LONG_LONG left_ms;
        int wait_ms = (int)h->config.idle_ms;
        uint64_t ignored;

        if (MHD_get_timeout(h->daemon, &left_ms) == MHD_YES && left_ms < h->config.idle_ms)
            wait_ms = (int)left_ms;
        if (poll(fds, COUNT_OF(fds), wait_ms) > 0 && fds[1].revents)
            (void)!read(h->wake_fd, &ignored, sizeof ignored); /* before what it tells of */
        if (!is_closed && atomic_load(&h->is_closing)) {
            is_closed = true;
            close_listener(h);
        }
        (void)!MHD_run(h->daemon);
    }
    return NULL;
}

/* A zero byte would end the path before its end: %00 stays as it is, and no page has it. */
static size_t unescape(void *arg, struct MHD_Connection *connection, char *text)
{
    (void)arg, (void)connection;
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

static int start_thread(struct http_server *h)
{
    struct MHD_OptionItem tls[HTTP_TLS_N_OPTIONS] = { { MHD_OPTION_END, 0, NULL } };

    if (h->config.tls)
        http_tls_options(tls);
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | (h->config.tls ? MHD_USE_TLS : 0), 0, NULL,
        NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET, h->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, h->config.connections_max + CONNECTIONS_EXTRA,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, h->config.idle_ms / 1000, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    if (!h->daemon)
        return -EIO;
    h->listen_fd = -1; /* the daemon closes it */
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->wake_fd < 0)
        return -errno;
    if (pthread_create(&h->thread, NULL, run, h) == 0)
        return 0;
    close(h->wake_fd);
    h->wake_fd = -1;
    return -EAGAIN;
}

static void stop_thread(struct http_server *h)
{
    if (h->wake_fd < 0)
        return;
    atomic_store(&h->is_stopping, true);
    wake_thread(h);
    pthread_join(h->thread, NULL);
    close(h->wake_fd);
    h->wake_fd = -1;
}

int http_server_open(const struct http_server_config *config, struct http_server **ret,
                     struct err *err)
{
    struct http_server *h = memory_alloc(sizeof *h);
    int status;

    h->config = *config;
    h->listen_fd = h->wake_fd = -1;
    pthread_mutex_init(&h->lock, NULL);
    status = open_listener(h, config->address, err);
    if (status) {
        http_server_free(h);
        return status;
    }
    (void)!get_host(config->address, h->bind);
    (void)!get_host(config->names.self, h->self);
    name_socket(h->listen_fd, h->address, sizeof h->address);
    *ret = h;
    return 0;
}

int http_server_start(struct http_server *h, struct err *err)
{
    int status = start_thread(h);

    return status ? err_set(err, status,
                            "cannot start the HTTP thread for %.100s (ulimit -v and -u)",
                            h->config.address)
                  : 0;
}

void http_server_close_listener(struct http_server *h)
{
    atomic_store(&h->is_closing, true);
    wake_thread(h);
}

void http_server_stop(struct http_server *h)
{
    if (!h)
        return;
    stop_thread(h);
    if (h->daemon)
        MHD_stop_daemon(h->daemon); /* closes the socket, too */
    h->daemon = NULL;
}

void http_server_free(struct http_server *h)
{
    if (!h)
        return;
    if (h->listen_fd >= 0)
        close(h->listen_fd);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

const char *http_server_address(const struct http_server *h)
{
    return h->address;
}
