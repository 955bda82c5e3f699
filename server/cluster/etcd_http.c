#include "server/cluster/etcd_http.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define URL_MAX 256u
#define CONNECT_MS 500L /* of a stream */

static size_t on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    struct etcd_http_transfer *t = arg;
    uint8_t *space;

    if (bytes_len(&t->in) + size * n > t->http->max_bytes) {
        t->is_too_long = true;
        return 0;
    }
    space = bytes_reserve(&t->in, size * n);
    if (!space)
        return 0;
    memcpy(space, bytes, size * n);
    bytes_commit(&t->in, size * n);
    return size * n;
}

void etcd_http_stop(struct etcd_http_transfer *t)
{
    if (t->easy) {
        curl_multi_remove_handle(t->http->multi, t->easy);
        curl_easy_cleanup(t->easy);
    }
    free(t->body);
    curl_slist_free_all(t->headers);
    t->headers = NULL;
    bytes_deinit(&t->in);
    t->easy = NULL;
    t->body = NULL;
}

static void add_header(struct etcd_http_transfer *t, const char *line)
{
    t->headers = memory_need(curl_slist_append(t->headers, line));
}

/* Without Expect a body is not held back; a member that has lost its quorum ends a stream. */
static void set_headers(struct etcd_http_transfer *t, bool is_stream)
{
    const char *token = t->http->token;

    add_header(t, "Expect:");
    if (is_stream)
        add_header(t, "Grpc-Metadata-hasleader: true");
    if (token) {
        const size_t n = strlen(token) + 20;
        char *line = memory_alloc(n);

        snprintf(line, n, "Authorization: %s", token);
        add_header(t, line);
        free(line);
    }
    curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
}

static void set_tls(struct etcd_http_transfer *t)
{
    const struct etcd_http *h = t->http;

    curl_easy_setopt(t->easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    curl_easy_setopt(t->easy, CURLOPT_CAINFO, h->ca_file);
    curl_easy_setopt(t->easy, CURLOPT_CAPATH, NULL);
    if (!h->cert_file[0])
        return;
    curl_easy_setopt(t->easy, CURLOPT_SSLCERT, h->cert_file);
    curl_easy_setopt(t->easy, CURLOPT_SSLKEY, h->key_file);
}

static const char *or_none(const char *text)
{
    return text ? text : "";
}

int etcd_http_set_tls(struct etcd_http *h, const char *ca_file, const char *cert_file,
                      const char *key_file, struct err *err)
{
    h->ca_file = or_none(ca_file);
    h->cert_file = or_none(cert_file);
    h->key_file = or_none(key_file);
    if ((h->cert_file[0] != '\0') != (h->key_file[0] != '\0'))
        return err_set(err, PS_ESETTING, "coord-cert and coord-key: give both, or none");
    if (h->cert_file[0] && !h->ca_file[0])
        return err_set(err, PS_ESETTING,
                       "coord-cert: is for TLS, which coord-ca asks for: give it, too");
    return 0;
}

static void set_options(struct etcd_http_transfer *t, const char *path, uint64_t timeout_ms)
{
    const struct etcd_http *h = t->http;
    const char *scheme = h->ca_file[0] ? "https" : "http";
    char url[URL_MAX];

    snprintf(url, sizeof url, "%s://%s%s", scheme, t->address, path);
    curl_easy_setopt(t->easy, CURLOPT_URL, url);
    curl_easy_setopt(t->easy, CURLOPT_PROTOCOLS_STR, scheme);
    if (h->ca_file[0])
        set_tls(t);
    curl_easy_setopt(t->easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(t->easy, CURLOPT_NOSIGNAL, 1L);
    set_headers(t, !timeout_ms);
    curl_easy_setopt(t->easy, CURLOPT_POSTFIELDS, t->body);
    curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(t->body));
    curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->error);
    curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    curl_easy_setopt(t->easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    curl_easy_setopt(t->easy, CURLOPT_CONNECTTIMEOUT_MS,
                     timeout_ms ? (long)timeout_ms : CONNECT_MS);
}

int etcd_http_start(struct etcd_http_transfer *t, const char *address, const char *path,
                    const char *body, uint64_t timeout_ms)
{
    assert(!t->easy);
    t->is_too_long = false;
    t->error[0] = '\0';
    t->status = 0;
    t->address = address;
    t->easy = curl_easy_init();
    if (!t->easy)
        return -ENOMEM;
    t->body = memory_need(strdup(body));
    set_options(t, path, timeout_ms);
    if (curl_multi_add_handle(t->http->multi, t->easy) == CURLM_OK)
        return 0;
    curl_easy_cleanup(t->easy);
    t->easy = NULL;
    etcd_http_stop(t);
    return -ENOMEM;
}

cJSON *etcd_http_read(struct etcd_http_transfer *t, struct err *err)
{
    const char *at = t->address;
    cJSON *root;

    if (t->is_too_long) {
        err_set(err, PS_ETOOBIG, "etcd at %s: an answer of more than %u MiB", at,
                (unsigned)(t->http->max_bytes >> 20));
        return NULL;
    }
    if (t->status) {
        err_set(err, t->status, "etcd at %s: %.120s", at, t->error);
        return NULL;
    }
    root = cJSON_ParseWithLength((const char *)bytes_front(&t->in), bytes_len(&t->in));
    if (!root && bytes_len(&t->in) &&
        memmem(bytes_front(&t->in), bytes_len(&t->in), "CommonName", 10)) {
        err_set(err, -EACCES,
                "etcd at %s has users, and refuses a certificate with a CommonName: make "
                "coord-cert without one",
                at);
        return NULL;
    }
    if (!cJSON_IsObject(root)) {
        err_set(err, PS_EPROTO,
                "%s does not answer as etcd 3.4 does: is it etcd's client port?", at);
        cJSON_Delete(root);
        return NULL;
    }
    return root;
}

/* --- the loop --- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct etcd_http *h = handle->data;

    if (handle != (uv_handle_t *)&h->timer)
        free(handle);
    if (--h->n_handles == 0)
        h->on_closed(h);
}

static int status_of(CURLcode code)
{
    switch (code) {
    case CURLE_OK:
        return 0;
    case CURLE_OPERATION_TIMEDOUT:
        return -ETIMEDOUT;
    case CURLE_COULDNT_CONNECT:
        return -ECONNREFUSED;
    default:
        return -ECONNRESET;
    }
}

/* What curl has brought: pieces of streams, and the ends of requests. */
static void use_progress(struct etcd_http *h)
{
    CURLMsg *message;
    int n_left;

    h->on_data(h);
    while ((message = curl_multi_info_read(h->multi, &n_left)) != NULL) {
        const CURLcode code = message->data.result;
        char *private = NULL;
        struct etcd_http_transfer *t;

        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &private);
        t = (struct etcd_http_transfer *)(void *)private;
        t->status = status_of(code);
        if (code == CURLE_GOT_NOTHING && !h->ca_file[0])
            snprintf(t->error, sizeof t->error,
                     "it ends the connection without an answer: does it want TLS (coord-ca)?");
        else if (code == CURLE_COULDNT_RESOLVE_HOST)
            snprintf(t->error, sizeof t->error, "its host name is not known");
        else if (code != CURLE_OK && !t->error[0])
            snprintf(t->error, sizeof t->error, "%s", curl_easy_strerror(code));
        t->on_done(t);
    }
}

static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct etcd_http *h = poll->data;
    const int flags = status < 0 ? CURL_CSELECT_ERR
                                 : ((events & UV_READABLE ? CURL_CSELECT_IN : 0) |
                                    (events & UV_WRITABLE ? CURL_CSELECT_OUT : 0));
    uv_os_fd_t fd;
    int n_running;

    if (uv_fileno((uv_handle_t *)poll, &fd))
        return;
    curl_multi_socket_action(h->multi, fd, flags, &n_running);
    use_progress(h);
}

static void on_timer(uv_timer_t *timer)
{
    struct etcd_http *h = timer->data;
    int n_running;

    curl_multi_socket_action(h->multi, CURL_SOCKET_TIMEOUT, 0, &n_running);
    use_progress(h);
}

/* By curl: which events of which socket it waits for. */
static int want_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg)
{
    struct etcd_http *h = arg;
    uv_poll_t *poll = socket_arg;

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (poll) {
            uv_poll_stop(poll);
            uv_close((uv_handle_t *)poll, on_handle_closed);
            curl_multi_assign(h->multi, fd, NULL);
        }
        return 0;
    }
    if (!poll) {
        poll = memory_alloc(sizeof *poll);
        if (uv_poll_init_socket(h->loop, poll, fd)) {
            free(poll);
            return -1;
        }
        poll->data = h;
        h->n_handles++;
        curl_multi_assign(h->multi, fd, poll);
    }
    uv_poll_start(poll,
                  (what & CURL_POLL_IN ? UV_READABLE : 0) |
                      (what & CURL_POLL_OUT ? UV_WRITABLE : 0),
                  on_socket);
    return 0;
}

static int want_timer(CURLM *multi, long ms, void *arg)
{
    struct etcd_http *h = arg;

    (void)multi;
    if (ms < 0)
        uv_timer_stop(&h->timer);
    else
        uv_timer_start(&h->timer, on_timer, (uint64_t)ms, 0);
    return 0;
}

void etcd_http_open(struct etcd_http *h, uv_loop_t *loop)
{
    h->loop = loop;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    h->multi = memory_need(curl_multi_init());
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, want_socket);
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, want_timer);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
    uv_timer_init(loop, &h->timer);
    h->timer.data = h;
    h->n_handles = 1;
}

void etcd_http_close(struct etcd_http *h)
{
    curl_multi_cleanup(h->multi);
    curl_global_cleanup();
    uv_close((uv_handle_t *)&h->timer, on_handle_closed);
}
