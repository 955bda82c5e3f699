/*
 * What the stats page hears of a node while it is open: server-sent events (https://html.spec.whatwg.org, 9.2), one a
 * second. The thread that makes them also notes the history, whether or not somebody listens.
 *
 *     each second    with_report() --> history_sample()
 *                          +--> if there are listeners: one text for all --> each that waits is woken
 *
 * A listener is an HTTP connection whose answer does not end; it is suspended while it has the newest event. One that
 * has not read an event when the next is made misses that one: it gets the newest when it is ready. One that takes
 * longer than the server's request_ms for an event is cut off by http_server_sweep(). A listener so holds one text at
 * most, and nobody waits for it.
 */
#ifndef SERVER_ADMIN_EVENTS_H
#define SERVER_ADMIN_EVENTS_H

#include "common/http/http_server.h"
#include "server/admin/history.h"

#define EVENTS_EVERY_MS 1000u
#define EVENTS_LISTENERS_MAX 32u
#define EVENTS_BYTES_MAX (256u << 10) /* of one; a longer one leaves jobs and waits out */

struct events;

/* Nothing is made before events_start() or events_make(). NULL: no memory. */
struct events *events_new(stats_with_report with_report, void *node) MUST_CHECK;

/* Allocates the history of a node of n_shards. -ENOMEM with a sentence. */
int events_keep_history(struct events *e, uint32_t n_shards, struct err *err) MUST_CHECK;

/* The thread begins; it makes an event at once. After events_keep_history(). */
int events_start(struct events *e, struct err *err) MUST_CHECK;

/* What the thread does each second. */
void events_make(struct events *e);

/* Ends the thread, and every listener's answer; who comes later is refused. NULL is fine. */
void events_stop(struct events *e);
/* After the server that the listeners came to has been stopped. NULL is fine. */
void events_free(struct events *e);

/* On the server's thread: answers GET or HEAD of this connection with the events, or 503 with a sentence. */
enum MHD_Result events_send(struct events *e, struct http_server *server,
                            struct MHD_Connection *connection, const char *method);

/* NULL before events_keep_history(). */
struct history *events_history(struct events *e);

uint32_t events_n_listeners(struct events *e);

#endif
