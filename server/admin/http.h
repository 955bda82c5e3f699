/*
 * The stats endpoint: / (the page, page.h), /stats, /metrics, /history, /events, /healthz, /readyz, over libmicrohttpd
 * with a thread of its own, so that a stuck shard cannot take it along. Read-only; GET and HEAD only.
 *
 * Connections and their limits are common/http/http_server.h's.
 *
 * /stats and /metrics are rendered on a thread of their own and shared (page_cache.h), so probes never wait for them.
 * The history and the events come from a third thread (events.h).
 */
#ifndef SERVER_ADMIN_HTTP_H
#define SERVER_ADMIN_HTTP_H

#include "common/settings.h"
#include "common/status.h"
#include "server/admin/http_access.h"
#include "server/admin/stats.h"

#define HTTP_REQUEST_MS 10000u /* from a request's first byte to its answer's last */
#define HTTP_IDLE_MS 15000u    /* between two requests of a connection */
#define HTTP_ADDRESS_MAX 64u
#define HTTP_CONNECTIONS_MAX 256u

struct http;

struct http_counts {
    uint64_t connections, connections_total;
    uint64_t evicted; /* of the total: too slow, or the oldest of too many */
};

/* The names under which a browser may reach this node (http_server.h), and who may read. */
struct http_names {
    const char *self; /* HOST:PORT, as other nodes know it; "": none */
    const struct setting_list
        *hosts; /* more, without port; "*" allows all. Borrowed until http_stop(); NULL: none */
    /* Both borrowed until http_stop(): HTTPS with this certificate, or plain; pages want a role, or are for all. */
    struct tls_context *tls;
    struct http_access *access;
};

/* address: "127.0.0.1:7071", "[::1]:7071", "name:7071"; port 0 takes a free one. `with_report` is called on three
 * threads of its own, until http_stop(). */
int http_start(const char *address, const struct http_names *names,
               stats_with_report with_report, void *node, struct http **ret_http,
               struct err *err) MUST_CHECK;

/* From here on there is a history of n_shards shards, and events. -ENOMEM, -EAGAIN with a sentence. */
int http_keep_history(struct http *h, uint32_t n_shards, struct err *err) MUST_CHECK;

/* Called a few times a second: ends connections that are too slow, and counts them. */
void http_sweep(struct http *h, uint64_t now_ms, struct http_counts *ret);

/* Waits for the answers under way. NULL is fine. */
void http_stop(struct http *h);

/* The address on which it listens, "127.0.0.1:7071" or "[::1]:7071": with port 0 the port that the system chose. Valid
 * until http_stop(). */
const char *http_address(const struct http *h);

#endif
