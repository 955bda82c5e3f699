#include "server/admin/http.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/http/http_server.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "proto/frame.h"
#include "server/admin/events.h"
#include "server/admin/page.h"
#include "server/admin/page_cache.h"
#include "server/admin/render.h"

/* A connection's request for a cached page. */
struct page_request {
    struct http *http;                 /* borrowed */
    struct MHD_Connection *connection; /* suspended until the text is made */
    struct page_waiter waiter;
    bool is_made;                 /* the waiter has the text, or NULL */
    _Atomic uint64_t text_number; /* of the text that it is sent; 0: none */
};

struct http {
    struct http_server *server; /* owned */
    struct page_cache *pages;   /* owned */
    struct events *events;      /* owned */
    stats_with_report with_report;
    void *node;                  /* borrowed */
    struct http_access *access;  /* borrowed; NULL: pages are for all */
    struct log_line_limit limit; /* of the HTTP thread's lines */
    uint64_t surplus;            /* page_cache_surplus(), for the sweep under way */
};

/* --- answers --- */

/* One short answer in the making, on the HTTP thread. */
struct reply_stream {
    const struct endpoint *endpoint;
    const char *job; /* of the query; borrowed; "": none */
    char *text;      /* owned; NULL: no memory */
    unsigned code;
};

/* Pages of page_cache.h. */
enum { PAGE_STATS, PAGE_METRICS, PAGE_HISTORY, PAGE_HISTORY_DAY, N_PAGES };

struct endpoint {
    const char *path, *content_type;
    void (*make)(struct reply_stream *a, const struct node_report *node); /* NULL: a page */
    uint32_t page;
};

static char *render_stats(void *http, const struct node_report *node)
{
    (void)http;
    return render_json(node, "stats");
}

static char *render_prometheus(void *http, const struct node_report *node)
{
    (void)http;
    return render_metrics(node);
}

/* Without a history, as before http_keep_history(), it is an empty one. */
static char *render_history(struct http *h, enum history_step step,
                            const struct node_report *node)
{
    struct history *history = events_history(h->events);

    return history ? history_render(history, step, node) : strdup("{\"n\":0,\"series\":{}}\n");
}

static char *render_seconds(void *http, const struct node_report *node)
{
    return render_history(http, HISTORY_SECOND, node);
}

static char *render_minutes(void *http, const struct node_report *node)
{
    return render_history(http, HISTORY_MINUTE, node);
}

static const page_cache_render renders[N_PAGES] = { [PAGE_STATS] = render_stats,
                                                    [PAGE_METRICS] = render_prometheus,
                                                    [PAGE_HISTORY] = render_seconds,
                                                    [PAGE_HISTORY_DAY] = render_minutes };

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
    char sentence[STATS_HEALTH_MAX];
    int status = render_health(node, sentence, sizeof sentence);

    set_sentence(a, status ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, sentence);
}

static void set_restoring(struct reply_stream *a, const struct node_report *node)
{
    char text[STATS_RESTORE_TEXT_MAX];

    stats_restore_text(&node->restore, node->clock_unix_ms, text);
    set_sentence(a, MHD_HTTP_SERVICE_UNAVAILABLE, text);
}

/* What it waits for; of a standby that follows, what it is. */
static void set_starting(struct reply_stream *a, const struct stats_standby *standby)
{
    char text[sizeof standby->wait];

    if (!standby->is_on)
        snprintf(text, sizeof text, "starting");
    else if (standby->wait[0] || strcmp(standby->role, "standby") != 0)
        snprintf(text, sizeof text, "%s", standby->wait[0] ? standby->wait : "starting");
    else
        snprintf(text, sizeof text, "a standby of %s: %s", standby->peer, standby->state);
    set_sentence(a, MHD_HTTP_SERVICE_UNAVAILABLE, text);
}

static void make_ready(struct reply_stream *a, const struct node_report *node)
{
    if (node->stopping)
        set_sentence(a, MHD_HTTP_SERVICE_UNAVAILABLE, "stopping");
    else if (node->restore.is_on)
        set_restoring(a, node);
    else if (!node->ready)
        set_starting(a, &node->standby);
    else
        set_sentence(a, MHD_HTTP_OK, "ready");
}

static void make_curve(struct reply_stream *a, const struct node_report *node)
{
    a->text = render_curve(node, a->job);
}

static const struct endpoint endpoints[] = {
    { "/stats", "application/json", NULL, PAGE_STATS },
    { "/metrics", "text/plain; version=0.0.4; charset=utf-8", NULL, PAGE_METRICS },
    { "/history", "application/json", NULL, PAGE_HISTORY },
    { "/history/day", "application/json", NULL, PAGE_HISTORY_DAY },
    { "/healthz", "text/plain; charset=utf-8", make_health, 0 },
    { "/readyz", "text/plain; charset=utf-8", make_ready, 0 },
    { "/curve", "application/json", make_curve, 0 },
};

static enum MHD_Result send_file(struct MHD_Connection *connection,
                                 const struct page_file *file)
{
    return http_server_send(connection, MHD_HTTP_OK, file->content_type, page_policy,
                            MHD_create_response_from_buffer(file->n_bytes,
                                                            (void *)(uintptr_t)file->text,
                                                            MHD_RESPMEM_PERSISTENT));
}

static void use_report(void *arg, const struct node_report *node)
{
    struct reply_stream *a = arg;

    a->endpoint->make(a, node);
}

static enum MHD_Result send_short(struct http *h, struct MHD_Connection *connection,
                                  const struct endpoint *endpoint)
{
    const char *job = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "job");
    struct reply_stream a = { .endpoint = endpoint,
                              .job = job ? job : "",
                              .code = MHD_HTTP_OK };
    struct MHD_Response *response;

    h->with_report(h->node, use_report, &a);
    if (!a.text)
        return http_server_send_sentence(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                                         "no memory to make this answer\n");
    response = MHD_create_response_from_buffer(strlen(a.text), a.text, MHD_RESPMEM_MUST_FREE);
    if (!response)
        free(a.text);
    return http_server_send(connection, a.code, endpoint->content_type, NULL, response);
}

/* --- pages, whose texts are made on another thread and shared --- */

/* The request is then given to on_request() again. */
static void on_page_made(struct page_waiter *waiter)
{
    struct page_request *r = CONTAINER_OF(waiter, struct page_request, waiter);

    r->is_made = true;
    http_server_resume(r->http->server, r->connection);
}

/* Takes `text`. */
static enum MHD_Result send_text(struct page_request *r, struct MHD_Connection *connection,
                                 const struct endpoint *endpoint, struct page_text *text)
{
    struct MHD_Response *response;

    if (!text)
        return http_server_send_sentence(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                                         "no memory to make this answer\n");
    atomic_store(&r->text_number, text->number);
    response = MHD_create_response_from_buffer_with_free_callback_cls(text->n_bytes, text->text,
                                                                      page_text_release, text);
    if (!response)
        page_text_release(text);
    return http_server_send(connection, MHD_HTTP_OK, endpoint->content_type, NULL, response);
}

static enum MHD_Result send_page_text(struct http *h, struct MHD_Connection *connection,
                                      const struct endpoint *endpoint)
{
    struct page_request *r = http_server_state(connection);
    struct page_text *text;

    if (!r)
        return MHD_NO; /* there was no memory for it */
    text = r->is_made ? r->waiter.text : page_cache_find(h->pages, endpoint->page);
    if (text || r->is_made) {
        r->is_made = false;
        r->waiter.text = NULL;
        return send_text(r, connection, endpoint, text);
    }
    r->http = h;
    r->connection = connection;
    r->waiter.on_made = on_page_made;
    MHD_suspend_connection(connection);
    page_cache_wait(h->pages, endpoint->page, &r->waiter);
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
    const char *sentence, *challenge = NULL;
    struct page_file file;
    struct http *h = arg;
    unsigned code;

    (void)http_version, (void)upload_data;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return http_server_refuse_method(connection, "GET, HEAD",
                                         "read-only: GET and HEAD are what it knows\n");
    if (!*request_state) {
        *request_state = h;
        return MHD_YES;
    }
    code = http_server_check_host(h->server, connection, &sentence);
    if (!code && h->access)
        code = http_access_check(h->access, connection, url, &sentence, &challenge);
    if (challenge)
        return http_server_send_challenge(connection, challenge, sentence);
    if (code)
        return http_server_send_sentence(connection, code, sentence);
    if (*upload_bytes)
        return MHD_NO; /* a GET with a body: nobody means that */
    if (page_file_find(url, &file))
        return send_file(connection, &file);
    if (strcmp(url, "/events") == 0)
        return events_send(h->events, h->server, connection, method);
    for (size_t i = 0; i < COUNT_OF(endpoints); i++)
        if (strcmp(url, endpoints[i].path) == 0)
            return endpoints[i].make ? send_short(h, connection, &endpoints[i])
                                     : send_page_text(h, connection, &endpoints[i]);
    return http_server_send_sentence(connection, MHD_HTTP_NOT_FOUND,
                                     "no such page; there are / /stats /metrics "
                                     "/curve?job=NAME /history /history/day /events "
                                     "/healthz /readyz\n");
}

static const char no_handshake[] =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    "Connection: close\r\n\r\nthis is the stats port: frames go to --listen's\n";

/* Who takes this port for the other one greets with a frame, in which libmicrohttpd sees a line whose end it waits for.
 * TCP_DEFER_ACCEPT lets us see it first. */
static void turn_away(void *owner, int fd)
{
    uint8_t bytes[1024];
    ssize_t n = recv(fd, bytes, FRAME_HEADER_BYTES, MSG_PEEK | MSG_DONTWAIT);

    (void)owner;
    if (n < (ssize_t)FRAME_HEADER_BYTES || !frame_magic_fits(bytes, (size_t)n))
        return;
    (void)!recv(fd, bytes, sizeof bytes,
                MSG_DONTWAIT); /* left unread, it would turn the end into a reset */
    (void)!send(fd, no_handshake, sizeof no_handshake - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(fd, SHUT_RDWR);
}

static void on_mismatch(void *owner, const char *peer, const char *sentence)
{
    struct http *h = owner;
    char more[64];

    if (log_line_limit_pass(&h->limit, sentence, 0, clock_mono_ms(), more))
        log_line_warn("http: %s was refused: %s%s", peer, sentence, more);
}

static void on_completed(void *owner, void *state, void *request_state)
{
    struct page_request *r = state;

    (void)owner, (void)request_state;
    if (r)
        atomic_store(&r->text_number, 0);
}

static void on_closed(void *owner, void *state)
{
    (void)owner;
    page_text_release(((struct page_request *)state)->waiter.text);
}

/* Too slow for the memory of texts. */
static bool is_slow(void *owner, const void *state)
{
    const struct page_request *r = state;
    const struct http *h = owner;

    return h->surplus && atomic_load(&r->text_number) == h->surplus;
}

static const struct http_server_events events = { .on_request = on_request,
                                                  .on_connection = turn_away,
                                                  .on_mismatch = on_mismatch,
                                                  .on_completed = on_completed,
                                                  .on_closed = on_closed,
                                                  .is_unwanted = is_slow };

void http_sweep(struct http *h, uint64_t now_ms, struct http_counts *ret)
{
    struct http_server_counts counts;

    h->surplus = page_cache_surplus(h->pages);
    http_server_sweep(h->server, now_ms, &counts);
    *ret = (struct http_counts){ counts.connections, counts.connections_total, counts.evicted };
}

int http_start(const char *address, const struct http_names *names,
               stats_with_report with_report, void *node, struct http **ret_http,
               struct err *err)
{
    struct http *h = memory_alloc(sizeof *h);
    const struct http_server_config config = {
        .address = address,
        .names = { .self = names->self,
                   .hosts = names->hosts,
                   .refusal = "the name in the header Host is none of this node's; psd "
                              "--http-hosts lists more\n" },
        .request_ms = HTTP_REQUEST_MS,
        .idle_ms = HTTP_IDLE_MS,
        .address_max = HTTP_ADDRESS_MAX,
        .connections_max = HTTP_CONNECTIONS_MAX,
        .tls = names->tls,
        .state_bytes = sizeof(struct page_request),
        .events = &events,
        .owner = h
    };
    int status = http_server_open(&config, &h->server, err);

    h->with_report = with_report;
    h->node = node;
    h->access = names->access;
    h->limit = (struct log_line_limit){ .n_at_once = 5, .every_ms = 10000 };
    h->events = memory_need(events_new(with_report, node));
    if (!status)
        status = page_cache_start(renders, N_PAGES, h, with_report, node, &h->pages, err);
    if (!status)
        status = http_server_start(h->server, err);
    if (status) {
        http_stop(h);
        return status;
    }
    *ret_http = h;
    return 0;
}

int http_keep_history(struct http *h, uint32_t n_shards, struct err *err)
{
    int status = events_keep_history(h->events, n_shards, err);

    return status ? status : events_start(h->events, err);
}

void http_stop(struct http *h)
{
    if (!h)
        return;
    page_cache_stop(h->pages); /* before: a suspended connection cannot be closed */
    events_stop(h->events);
    http_server_stop(h->server);
    page_cache_free(h->pages);
    events_free(h->events);
    http_server_free(h->server);
    free(h);
}

const char *http_address(const struct http *h)
{
    return http_server_address(h->server);
}
