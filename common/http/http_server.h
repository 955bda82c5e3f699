/*
 * An HTTP server over libmicrohttpd, with a thread of its own: connections and their limits. What is answered is the
 * owner's business (struct http_server_events).
 *
 * A client that drips its request, or reads its answer so, is cut off request_ms after it began; that a kept
 * connection's next request has begun is seen by the next sweep. A new client always gets in: where its address (of
 * IPv6 its /64) has address_max connections, or all have connections_max, the oldest of them is cut off, but none
 * whose answer is being worked on (http_server_hold()).
 */
#ifndef COMMON_HTTP_HTTP_SERVER_H
#define COMMON_HTTP_HTTP_SERVER_H

#include <microhttpd.h>
#include <stdbool.h>

#include "common/settings.h"
#include "common/status.h"
#include "common/tls.h"

#define HTTP_SERVER_HOST_MAX 256

struct http_server;

/* On the server's thread, but is_unwanted(). `state`: the connection's, of state_bytes, zeroed before its first
 * request. */
struct http_server_events {
    /* Of libmicrohttpd, with the owner for its first argument. */
    MHD_AccessHandlerCallback on_request;
    /* A connection is there; fd is its socket. NULL: nothing to do. */
    void (*on_connection)(void *owner, int fd);
    /* A client of this address speaks TLS at a port that does not, or the other way round: it is told, and cut off.
     * May be NULL. */
    void (*on_mismatch)(void *owner, const char *peer, const char *sentence);
    /* The request has been answered, or its connection has ended before; on_request()'s state of it. May be NULL. */
    void (*on_completed)(void *owner, void *state, void *request_state);
    /* The connection has ended. May be NULL. */
    void (*on_closed)(void *owner, void *state);
    /* By http_server_sweep(), on its thread: true cuts the connection off. May be NULL. */
    bool (*is_unwanted)(void *owner, const void *state);
};

/*
 * The names under which a browser may reach this server (the header Host). A page of another site whose own name
 * resolves to this address must not read its pages (DNS rebinding). Numbers, localhost, and names without a dot,
 * which cannot be registered, are always allowed.
 */
struct http_server_names {
    const char *self; /* HOST:PORT, as others know it; "": none */
    const struct setting_list *
        hosts; /* more, without port; "*" allows all. Borrowed until http_server_stop(); NULL: none */
    const char *refusal; /* the sentence for another name, with a line end */
};

struct http_server_config {
    const char
        *address; /* "127.0.0.1:7071", "[::1]:7071", "name:7071"; port 0 takes a free one */
    struct http_server_names names;
    uint32_t request_ms; /* from a request's first byte to its answer's last */
    uint32_t idle_ms;    /* between two requests of a connection */
    uint32_t address_max, connections_max;
    struct tls_context *tls; /* borrowed: HTTPS with its certificate; NULL: plain */
    size_t state_bytes;
    const struct http_server_events *events;
    void *owner;
};

struct http_server_counts {
    uint64_t connections, connections_total;
    uint64_t evicted; /* of the total: too slow, or the oldest of too many */
};

/* Binds the address. *config is copied, with its pointers. -EINVAL, or the errno of the bind, with a sentence. */
int http_server_open(const struct http_server_config *config, struct http_server **ret,
                     struct err *err) MUST_CHECK;

/* The thread begins. The owner's events come from here on. */
int http_server_start(struct http_server *h, struct err *err) MUST_CHECK;

/* Called a few times a second: ends connections that are too slow, and counts them. */
void http_server_sweep(struct http_server *h, uint64_t now_ms, struct http_server_counts *ret);

/* No connection is accepted from here on; those that are there go on. */
void http_server_close_listener(struct http_server *h);

/* Ends the thread and all connections; none may be suspended. NULL is fine. */
void http_server_stop(struct http_server *h);
/* After http_server_stop(). NULL is fine. */
void http_server_free(struct http_server *h);

/* The address on which it listens, with the port that the system chose. Valid until http_server_free(). */
const char *http_server_address(const struct http_server *h);

/* ---- for on_request() ---- */

/* The connection's state; NULL: there was no memory for it. */
void *http_server_state(struct MHD_Connection *connection);

/* A connection that is held is not cut off for a new one, until it is answered. */
void http_server_hold(struct http_server *h, struct MHD_Connection *connection);

/* An answer that goes on for as long as its reader likes gets request_ms from now on: said of each part of it. */
void http_server_extend(struct http_server *h, struct MHD_Connection *connection);

/* Goes on with a suspended connection. Any thread. */
void http_server_resume(struct http_server *h, struct MHD_Connection *connection);

/* 0, or the code and the sentence of a refusal: the name that was asked for is none of this server's. A request without
 * the header is no browser's. */
unsigned http_server_check_host(const struct http_server *h, struct MHD_Connection *connection,
                                const char **ret_sentence);

/* Who the client is by its certificate. -ENOENT: it has shown none; else why that is refused. */
int http_server_peer(const struct http_server *h, struct MHD_Connection *connection,
                     struct access *ret) MUST_CHECK;

/* True if the request brings this token: Authorization: Bearer TOKEN. Takes as long for a wrong one as for a right one. */
bool http_server_has_token(struct MHD_Connection *connection, const char *token);

/* Queues the answer with the headers that all have. Takes the response; NULL ends the connection. `policy`: the
 * header Content-Security-Policy; NULL: nothing may be loaded. */
enum MHD_Result http_server_send(struct MHD_Connection *connection, unsigned code,
                                 const char *content_type, const char *policy,
                                 struct MHD_Response *response);

/* A text that stays: static, with a line end. */
enum MHD_Result http_server_send_sentence(struct MHD_Connection *connection, unsigned code,
                                          const char *sentence);

/* The same, code 401; `challenge`: what may be shown (the header WWW-Authenticate). */
enum MHD_Result http_server_send_challenge(struct MHD_Connection *connection,
                                           const char *challenge, const char *sentence);

/* The same for a method that is not known; `allow`: those that are, as "GET, HEAD". */
enum MHD_Result http_server_refuse_method(struct MHD_Connection *connection, const char *allow,
                                          const char *sentence);

#endif
