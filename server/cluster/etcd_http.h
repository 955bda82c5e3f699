/*
 * HTTP requests of coord_etcd.c: libcurl's multi interface on a libuv loop.
 *
 * Within curl's own callbacks nothing of curl may be called: it refuses a request that is added there, and the request
 * is lost. So they only keep bytes; on_data and on_done are called when curl has returned.
 */
#ifndef SERVER_CLUSTER_ETCD_HTTP_H
#define SERVER_CLUSTER_ETCD_HTTP_H

#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <stdbool.h>
#include <uv.h>

#include "common/bytes.h"
#include "common/status.h"

struct etcd_http {
    uv_loop_t *loop;                            /* borrowed */
    CURLM *multi;                               /* owned */
    const char *ca_file, *cert_file, *key_file; /* borrowed; ca_file "": without TLS */
    const char *token;                          /* borrowed; NULL: requests carry none */
    uv_timer_t timer;
    uint32_t n_handles;                   /* of libuv, that are not closed */
    size_t max_bytes;                     /* of an answer, or of what is unread of a stream */
    void (*on_data)(struct etcd_http *h); /* streams may have new bytes */
    void (*on_closed)(struct etcd_http *h);
};

/* One request. Zeroed but for http and on_done: none is under way. */
struct etcd_http_transfer {
    struct etcd_http *http;     /* borrowed */
    CURL *easy;                 /* owned; NULL: not under way */
    const char *address;        /* borrowed */
    char *body;                 /* owned */
    struct curl_slist *headers; /* owned */
    struct bytes in;            /* what has come */
    bool is_too_long;
    int status; /* on_done: 0, -ETIMEDOUT, -ECONNREFUSED, -ECONNRESET for all else */
    char error[CURL_ERROR_SIZE]; /* ... its sentence */
    void (*on_done)(struct etcd_http_transfer *t);
};

/* Over TLS, with a ca_file: whose certificates are trusted. PS_ESETTING. Texts are borrowed; NULL is "". */
int etcd_http_set_tls(struct etcd_http *h, const char *ca_file, const char *cert_file,
                      const char *key_file, struct err *err) MUST_CHECK;

/* Set max_bytes, on_data and on_closed. */
void etcd_http_open(struct etcd_http *h, uv_loop_t *loop);

/* No request is under way. on_closed is called later. */
void etcd_http_close(struct etcd_http *h);

/* Posts the body to http://ADDRESS/PATH, or https with a ca_file. timeout_ms 0: a stream, which has no end. Call it
 * from the loop, not from on_done or on_data. 0, or -ENOMEM. */
int etcd_http_start(struct etcd_http_transfer *t, const char *address, const char *path,
                    const char *body, uint64_t timeout_ms) MUST_CHECK;

/* In on_done: the root of what came, to be deleted, or NULL with a sentence, which may name the peer's own. What is not
 * JSON: PS_EPROTO. */
cJSON *etcd_http_read(struct etcd_http_transfer *t, struct err *err);

/* Ends the request, if one is under way, and frees what has come. */
void etcd_http_stop(struct etcd_http_transfer *t);

#endif
