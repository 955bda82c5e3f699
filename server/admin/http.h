/*
 * The stats endpoint: / (a page that refreshes), /stats, /metrics, /healthz, /readyz, over
 * libmicrohttpd with a thread of its own, so that a stuck shard cannot take it along.
 * Read-only; GET and HEAD only.
 */
#ifndef SERVER_ADMIN_HTTP_H
#define SERVER_ADMIN_HTTP_H

#include "common/status.h"
#include "server/admin/stats.h"

struct http;

/*
 * `with_report` (called on HTTP threads) makes a node_report, calls `use(arg, report)` while it
 * holds whatever keeps the report's pointers alive, and returns. address: "127.0.0.1:7071",
 * "[::1]:7071", "name:7071"; port 0 takes a free one.
 */
typedef void (*http_with_report)(void *node,
                                 void (*use)(void *arg, const struct node_report *report),
                                 void *arg);

int http_start(const char *address, http_with_report with_report, void *node,
               struct http **ret_http, struct err *err) MUST_CHECK;
/* Waits for the answers under way. NULL is fine. */
void http_stop(struct http *h);

/* Where it really listens, "127.0.0.1:7071" or "[::1]:7071": port 0 was asked for, this is the
 * one it got. Good until http_stop(). */
const char *http_address(const struct http *h);

#endif
