/*
 * In the order of a handshake's life:
 *
 *     on_connection -> on_read -> [open_sealed] -> read_hello -> on_hello -> listener_check_hello -> events.on_client,
 *                                                                                                    or turn_away
 *
 *     state      reads            leaves it by
 *     READING    the hello        a whole hello -> on_hello(), which replies or hands the socket on
 *     ANSWERED   and drops        end of stream, or the sweep -> CLOSING
 *     CLOSING    no               libuv's close callback -> freed
 *
 * An answered peer is kept until it hangs up, so that a reset does not overtake the reply.
 */
#include "server/net/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/memory.h"
#include "proto/frame.h"

#define BACKLOG 512
#define SWEEP_MS 50u
#define SEALED_BYTES 16384u   /* of a read, with TLS */
#define HELLO_BYTES_MAX 2048u /* of a hello frame; a token and two names need a fifth of it */

/* An address that has handshakes which are not CLOSING. */
struct handshake_host {
    struct handshake_host *next;
    struct sockaddr_storage key; /* address_host() */
    uint32_t n_open;
};

/* A peer before it is let in: one socket from which exactly one hello is read. */
struct handshake {
    uv_tcp_t tcp;
    struct listener *listener; /* borrowed */
    enum { READING, ANSWERED, CLOSING } state;
    uint64_t since_ms; /* when this state began */
    struct sockaddr_storage address;
    struct handshake_host *host; /* borrowed until it is CLOSING */
    char peer[ADDRESS_TEXT_MAX];
    struct hello hello;
    struct access access;
    struct tls_session *tls;   /* owned; NULL: plain, or it has shown that it speaks no TLS */
    bool has_begun, is_sealed; /* something has come; the TLS handshake is done */
    bool is_tls_only;          /* it is a plain peer of a port that is not */
    uint64_t request_id;
    size_t n_wire;                 /* bytes on the wire that n_in does not count */
    size_t n_in, n_out;            /* bytes of its hello, and of what we have written */
    struct handshake *next, *prev; /* the listener's */
    uv_shutdown_t shutdown;
    uv_write_t write;
    struct bytes reply; /* owned, being written */
    uint8_t in[HELLO_BYTES_MAX];
};

struct listener {
    struct listener_config config;
    uv_tcp_t tcp;
    uv_timer_t timer;
    struct handshake *first, *last; /* owned, as long as they are open; the oldest is last */
    struct listener_counts counts;
    char address[ADDRESS_TEXT_MAX];
    uint32_t n_open;              /* handshakes that are not CLOSING */
    struct handshake_host *hosts; /* owned */
    uint32_t n_handles;           /* tcp and timer that have still to close */
    enum { LISTENER_OPEN, LISTENER_CLOSING } state;
    uint8_t sealed[SEALED_BYTES]; /* of the handshake that is being read */
};

/* --- the end of a handshake --- */

static void free_when_closed(struct listener *l)
{
    if (l->state == LISTENER_CLOSING && l->n_handles == 0 && !l->first)
        free(l);
}

static void on_handshake_closed(uv_handle_t *handle)
{
    struct handshake *h = handle->data;
    struct listener *l = h->listener;

    enter_main();
    if (h->prev)
        h->prev->next = h->next;
    else
        l->first = h->next;
    if (h->next)
        h->next->prev = h->prev;
    else
        l->last = h->prev;
    l->counts.handshakes--;
    l->counts.bytes_in += h->n_in + h->n_wire;
    l->counts.bytes_out += h->n_out;
    bytes_deinit(&h->reply);
    tls_session_free(h->tls);
    free(h);
    free_when_closed(l);
}

static void leave_host(struct handshake *h)
{
    struct handshake_host **at = &h->listener->hosts, *host = h->host;

    h->host = NULL;
    if (--host->n_open)
        return;
    while (*at != host)
        at = &(*at)->next;
    *at = host->next;
    free(host);
}

/* Idempotent. */
static void close_handshake(struct handshake *h)
{
    if (h->state == CLOSING)
        return;
    h->state = CLOSING;
    h->listener->n_open--;
    leave_host(h);
    uv_close((uv_handle_t *)&h->tcp, on_handshake_closed);
}

/* --- the reply --- */

static void on_shut_down(uv_shutdown_t *req, int status)
{
    (void)req;
    (void)status; /* the peer's end of stream or the sweep ends it */
}

static void on_written(uv_write_t *write, int status)
{
    struct handshake *h = CONTAINER_OF(write, struct handshake, write);

    if (h->state == CLOSING)
        return;
    if (status || uv_shutdown(&h->shutdown, (uv_stream_t *)&h->tcp, on_shut_down))
        close_handshake(h);
}

/* To h->reply. */
static int write_reply(struct handshake *h, const struct hello_reply *reply)
{
    struct bytes plain = { 0 };
    int status;

    if (!h->is_sealed)
        return message_write_hello_reply(&h->reply, h->request_id, reply);
    status = message_write_hello_reply(&plain, h->request_id, reply);
    if (!status)
        status = tls_session_write(h->tls, bytes_front(&plain), bytes_len(&plain), &h->reply);
    bytes_deinit(&plain);
    return status;
}

/* Sends what is in h->reply, and waits for the peer to hang up. */
static void send_last(struct handshake *h)
{
    uv_buf_t bytes;

    bytes = uv_buf_init((char *)bytes_front(&h->reply), (unsigned)bytes_len(&h->reply));
    h->state = ANSWERED;
    h->since_ms = uv_now(h->tcp.loop);
    h->n_out += bytes.len;
    if (uv_write(&h->write, (uv_stream_t *)&h->tcp, &bytes, 1, on_written))
        close_handshake(h);
}

static void send_reply(struct handshake *h, const struct hello_reply *reply)
{
    if (write_reply(h, reply))
        close_handshake(h);
    else
        send_last(h);
}

/* --- judging a hello --- */

static int refuse(struct hello_reply *reply, int status, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

static int refuse(struct hello_reply *reply, int status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(reply->text, sizeof reply->text, fmt, args);
    va_end(args);
    reply->status = status;
    return status;
}

static bool has_role(const struct hello *hello, const char *role)
{
    return strcmp(hello->role, role) == 0;
}

/* Of the shards' rows. */
static bool is_client(const struct hello *hello)
{
    return has_role(hello, "worker") || has_role(hello, "reader");
}

/* Operators and watchers go to the listener, the others also to a shard. */
static int check_role(const struct listener_config *config, const struct hello *hello,
                      struct hello_reply *reply)
{
    bool to_listener = hello->shard == MESSAGE_SHARD_LISTENER;

    if (has_role(hello, "operator") || has_role(hello, "watcher"))
        return to_listener ? 0
                           : refuse(reply, PS_EGREETING,
                                    "role %s: connects to the listener, not shard %u",
                                    hello->role, hello->shard);
    if (!is_client(hello) && !has_role(hello, "standby"))
        return refuse(
            reply, PS_EGREETING,
            "role: found \"%s\", expected worker, reader, operator, standby or watcher",
            hello->role);
    if (!to_listener && hello->shard >= config->map->shards_per_node)
        return refuse(reply, PS_EGREETING, "shard: found %u, this node has 0 to %u",
                      hello->shard, config->map->shards_per_node - 1);
    return 0;
}

/* By the certificate, or else by the token. A port that speaks TLS knows nobody by neither: the tokens may have gone
 * since its handshake. */
static int check_identity(const struct listener_config *config, const struct hello *hello,
                          const struct access *cert, struct hello_reply *reply,
                          struct access *ret)
{
    const bool matches = token_file_find(config->token, config->tokens, hello->token, ret);

    if (cert)
        *ret = *cert;
    if (!cert && config->tls && !config->token[0] && !(config->tokens && config->tokens->n))
        return refuse(reply, PS_EGREETING, "no certificate was shown (--tls-cert)");
    if (!cert && !matches)
        return refuse(reply, PS_EGREETING,
                      hello->token[0] ? "token: a wrong one (--token-file)"
                                      : "token: none given (--token-file)");
    return 0;
}

/* Behind check_role(): the role of the hello is one. */
static int check_access(const struct access *access, const struct hello *hello,
                        struct hello_reply *reply)
{
    if (access_may_greet(access, hello->role))
        return 0;
    return refuse(reply, PS_EDENIED, "role %s: the %s is of role %s, which may not be one",
                  hello->role, access->cluster[0] ? "certificate" : "token",
                  access_role_name(access->role));
}

static bool has_map(const struct listener_config *config)
{
    return !config->groups || group_view_has_map(config->groups);
}

int listener_check_hello(const struct listener_config *config, const struct hello *hello,
                         const struct access *cert, struct hello_reply *reply,
                         struct access *ret)
{
    int status;

    *reply = (struct hello_reply){ .version = message_common_version(hello) };
    if (hello->version_min > PROTO_VERSION_MAX || hello->version_max < PROTO_VERSION_MIN)
        return refuse(reply, PS_EVERSION,
                      "protocol versions %u to %u are offered, this node speaks %u to %u",
                      hello->version_min, hello->version_max, PROTO_VERSION_MIN,
                      PROTO_VERSION_MAX);
    status = check_identity(config, hello, cert, reply, ret);
    if (status)
        return status;
    if (hello->map_id && hello->map_id != config->map->map_id && has_map(config))
        return refuse(reply, PS_ECLUSTER,
                      "map of the cluster: the client's, which the first node gave it, is "
                      "another one than "
                      "that of %s: give every node the same --cluster and --shards",
                      config->map->nodes[config->map->node]);
    status = check_role(config, hello, reply);
    return status ? status : check_access(ret, hello, reply);
}

/* --- what becomes of the peer --- */

/* Takes a refusal as its reply. */
static void turn_away(struct handshake *h, const struct hello_reply *reply)
{
    struct listener *l = h->listener;

    l->counts.refused++;
    l->config.events->on_refused(l->config.owner, h->peer, reply->status, reply->text);
    send_reply(h, reply);
}

/* It comes again, and again, until the node serves: no fault of anybody, and no line of the log for each time. */
static void ask_to_retry(struct handshake *h, const struct hello_reply *reply)
{
    h->listener->counts.retry_later++;
    send_reply(h, reply);
}

/* A descriptor of the same socket, the caller's; the handshake closes. */
static int take_fd(struct handshake *h, int *ret_fd)
{
    uv_os_fd_t fd;
    int status = uv_fileno((uv_handle_t *)&h->tcp, &fd), copy;

    if (status)
        return status;
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return -errno;
    close_handshake(h);
    *ret_fd = copy;
    return 0;
}

static void hand_over(struct handshake *h, struct hello_reply *reply)
{
    struct listener *l = h->listener;
    struct listener_client client = { .request_id = h->request_id,
                                      .hello = &h->hello,
                                      .address = &h->address };
    int status = take_fd(h, &client.socket.fd);

    if (status) {
        refuse(reply, status, "%s", status_text(status));
        turn_away(h, reply);
        return;
    }
    client.socket.tls = h->tls;
    client.socket.access = h->access;
    h->tls = NULL;
    status = l->config.events->on_client(l->config.owner, &client);
    if (status) {
        l->counts.refused++;
        l->config.events->on_refused(l->config.owner, h->peer, status, status_text(status));
        connection_socket_close(&client.socket);
    }
}

/* The cluster's map, in the version that the client speaks. */
static void send_map(struct handshake *h)
{
    struct hello_reply map = *h->listener->config.map;

    map.version = message_common_version(&h->hello);
    if (h->listener->config.groups)
        group_view_get(h->listener->config.groups, &map.groups);
    send_reply(h, &map);
}

/* A worker, a reader, or a standby that comes to a shard. */
static void on_client_hello(struct handshake *h, struct hello_reply *reply)
{
    const struct listener_config *config = &h->listener->config;
    struct err err = { 0 };

    if (config->groups && !group_view_is_primary(config->groups)) {
        group_view_refuse(config->groups, reply);
        ask_to_retry(h, reply);
    } else if (config->events->check_serving &&
               config->events->check_serving(config->owner, &err)) {
        refuse(reply, err.status, "%s", err.text);
        ask_to_retry(h, reply);
    } else if (h->hello.shard == MESSAGE_SHARD_LISTENER) {
        send_map(h);
    } else if (config->events->admit(config->owner, &h->address, &err)) {
        refuse(reply, err.status, "%s", err.text);
        turn_away(h, reply);
    } else {
        hand_over(h, reply);
    }
}

static void on_good_hello(struct handshake *h, struct hello_reply *reply)
{
    const struct listener_config *config = &h->listener->config;
    bool is_standby = has_role(&h->hello, "standby");
    struct err err = { 0 };

    if (!has_map(config) && !is_standby && !has_role(&h->hello, "operator")) {
        refuse(reply, PS_ESTOPPING,
               "this psd is a standby that has not heard of its cluster yet: come again");
        ask_to_retry(h, reply);
    } else if (is_client(&h->hello) ||
               (is_standby && h->hello.shard != MESSAGE_SHARD_LISTENER)) {
        on_client_hello(h, reply);
    } else if (is_standby && config->events->admit_standby &&
               config->events->admit_standby(config->owner, &err)) {
        refuse(reply, err.status, "%s", err.text);
        turn_away(h, reply);
    } else if (has_role(&h->hello, "operator") && config->events->admit_operator &&
               config->events->admit_operator(config->owner, &err)) {
        refuse(reply, err.status, "%s", err.text);
        turn_away(h, reply);
    } else {
        hand_over(h, reply);
    }
}

/* 0: h->hello and h->request_id are filled. PS_EPROTO, PS_ECORRUPT, PS_ETOOBIG: no hello, close
 * without a word; PS_EGREETING: a frame, but not one that may come now: `sentence` says why. */
static void on_hello(struct handshake *h, int status, const char *sentence)
{
    struct listener *l = h->listener;
    struct hello_reply reply = { .version = PROTO_VERSION_MAX };
    struct access cert;
    const bool has_cert = h->tls && tls_session_peer(h->tls, &cert);

    if (status == 0 && h->is_tls_only) {
        refuse(&reply, PS_ETLSPLAIN,
               "this port speaks TLS: give --tls-ca, --tls-cert and --tls-key");
        turn_away(h, &reply);
    } else if (status == PS_ETLSPLAIN) {
        refuse(&reply, status,
               "this port does not speak TLS: give no --tls-ca, or psd --tls on");
        turn_away(h, &reply);
    } else if (status == PS_EGREETING) {
        refuse(&reply, status, "%s", sentence);
        turn_away(h, &reply);
    } else if (status) {
        l->counts.malformed++;
        l->config.events->on_refused(l->config.owner, h->peer, status, status_text(status));
        close_handshake(h);
    } else if (listener_check_hello(&l->config, &h->hello, has_cert ? &cert : NULL, &reply,
                                    &h->access)) {
        turn_away(h, &reply);
    } else {
        on_good_hello(h, &reply);
    }
}

/* --- reading the hello --- */

/* The rest of the frame, or a little more: bytes behind it show that the peer did not wait. */
static void on_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *ret_space)
{
    struct handshake *h = handle->data;

    (void)suggested_bytes;
    if (h->state == ANSWERED)
        h->n_in = 0;
    if (h->listener->config.tls)
        *ret_space = uv_buf_init((char *)h->listener->sealed, sizeof h->listener->sealed);
    else
        *ret_space = uv_buf_init((char *)h->in + h->n_in, (unsigned)(sizeof h->in - h->n_in));
}

/* -EAGAIN until the whole frame has come. */
static int read_hello(struct handshake *h, const char **ret_sentence)
{
    struct frame_header header;
    size_t n_bytes;
    int status;

    if (!h->tls && tls_is_hello(h->in, h->n_in))
        return PS_ETLSPLAIN;
    if (!frame_magic_fits(h->in, h->n_in))
        return PS_EPROTO; /* at once: another protocol may greet with less than a header */
    if (h->n_in < FRAME_HEADER_BYTES)
        return -EAGAIN;
    status = frame_decode(h->in, HELLO_BYTES_MAX - FRAME_HEADER_BYTES - FRAME_SUM_BYTES - 1,
                          &header);
    if (status)
        return status;
    n_bytes = frame_bytes(&header);
    if (h->n_in < n_bytes)
        return -EAGAIN;
    status = frame_verify(h->in, &header);
    if (status)
        return status;
    h->request_id = header.request_id;
    *ret_sentence = "the first message is not a hello";
    if (header.type != FRAME_HELLO)
        return PS_EGREETING;
    *ret_sentence = "bytes behind the hello: wait for the reply first";
    if (h->n_in > n_bytes || header.body_bytes || (h->tls && tls_session_has_more(h->tls)))
        return PS_EGREETING;
    return message_read_hello(&header, h->in + FRAME_HEADER_BYTES, &h->hello);
}

/* --- TLS --- */

/* A few KiB, which a new socket takes at once. */
static int send_tls_reply(struct handshake *h)
{
    struct bytes *reply = tls_session_reply(h->tls);
    const uv_buf_t bytes = { .base = (char *)reply->bytes + reply->start,
                             .len = bytes_len(reply) };
    int n = bytes.len ? uv_try_write((uv_stream_t *)&h->tcp, &bytes, 1) : 0;

    if (n < 0 || (size_t)n < bytes.len)
        return n < 0 ? n : UV_ENOBUFS;
    h->n_out += bytes.len;
    bytes_consume(reply, bytes.len);
    return 0;
}

/* Why it failed goes to the log; the peer gets TLS's alert, and time to read it. */
static void refuse_tls(struct handshake *h, int status)
{
    struct listener *l = h->listener;

    l->counts.refused++;
    l->config.events->on_refused(l->config.owner, h->peer, status, status_text(status));
    bytes_deinit(&h->reply);
    h->reply = *tls_session_reply(h->tls);
    *tls_session_reply(h->tls) = (struct bytes){ 0 };
    if (bytes_len(&h->reply))
        send_last(h);
    else
        close_handshake(h);
}

/* The handshake, then bytes of the hello to h->in. -EAGAIN: more is to come, or all has been said. */
static int open_sealed(struct handshake *h)
{
    size_t n_bytes = 0;
    int status = h->is_sealed ? 0 : tls_session_handshake(h->tls);

    if (!status || status == -EAGAIN) {
        h->is_sealed = !status;
        if (send_tls_reply(h)) {
            close_handshake(h);
            return -EAGAIN;
        }
    }
    while (!status && h->n_in < sizeof h->in) {
        status = tls_session_read(h->tls, h->in + h->n_in, sizeof h->in - h->n_in, &n_bytes);
        if (!status)
            h->n_in += n_bytes;
    }
    if (status && status != -EAGAIN) {
        if (status == UV_EOF)
            close_handshake(h);
        else
            refuse_tls(h, status);
        return -EAGAIN;
    }
    return h->n_in ? 0 : -EAGAIN;
}

/* Bytes at a port that speaks TLS. 0: h->in has some of the hello. */
static int take_sealed(struct handshake *h, const uint8_t *bytes, size_t n_bytes)
{
    if (!h->has_begun && !tls_is_hello(bytes, n_bytes)) {
        tls_session_free(h->tls);
        h->tls = NULL;
        h->is_tls_only = true;
    }
    h->has_begun = true;
    if (h->tls) {
        h->n_wire += n_bytes;
        tls_session_feed(h->tls, bytes, n_bytes);
        return open_sealed(h);
    }
    if (n_bytes > sizeof h->in - h->n_in)
        n_bytes = sizeof h->in - h->n_in;
    memcpy(h->in + h->n_in, bytes, n_bytes);
    h->n_in += n_bytes;
    return 0;
}

static void on_read(uv_stream_t *stream, ssize_t n_bytes, const uv_buf_t *space)
{
    struct handshake *h = stream->data;
    const char *sentence = "";
    int status = 0;

    enter_main();
    if (n_bytes < 0) {
        close_handshake(h);
        return;
    }
    if (h->state != READING || n_bytes == 0)
        return;
    if (h->listener->config.tls)
        status = take_sealed(h, (const uint8_t *)space->base, (size_t)n_bytes);
    else
        h->n_in += (size_t)n_bytes;
    if (!status)
        status = read_hello(h, &sentence);
    if (status != -EAGAIN)
        on_hello(h, status, sentence);
}

/* --- accepting --- */

static void on_failed_closed(uv_handle_t *handle)
{
    struct handshake *h = handle->data;

    tls_session_free(h->tls);
    free(h);
}

static int accept_peer(struct listener *l, struct handshake **ret_handshake)
{
    struct handshake *h = memory_alloc(sizeof *h);
    int n_bytes = sizeof h->address, status;

    status = uv_tcp_init(l->config.loop, &h->tcp);
    if (status) {
        free(h);
        return status;
    }
    h->listener = l;
    h->tcp.data = h;
    if (l->config.tls)
        status = tls_session_accept(l->config.tls, &h->tls);
    if (!status)
        status = uv_accept((uv_stream_t *)&l->tcp, (uv_stream_t *)&h->tcp);
    if (!status && uv_tcp_getpeername(&h->tcp, (struct sockaddr *)&h->address, &n_bytes))
        h->address.ss_family = AF_UNSPEC; /* gone already; reading will say so */
    address_text((struct sockaddr *)&h->address, h->peer);
    if (!status)
        status = uv_read_start((uv_stream_t *)&h->tcp, on_alloc, on_read);
    if (status) {
        uv_close((uv_handle_t *)&h->tcp, on_failed_closed);
        return status;
    }
    h->since_ms = uv_now(l->config.loop);
    *ret_handshake = h;
    return 0;
}

static void enter_host(struct listener *l, struct handshake *h)
{
    struct sockaddr_storage key = address_host(&h->address);
    struct handshake_host *host = l->hosts;

    while (host && memcmp(&host->key, &key, sizeof key) != 0)
        host = host->next;
    if (!host) {
        host = memory_alloc(sizeof *host);
        *host = (struct handshake_host){ .key = key, .next = l->hosts };
        l->hosts = host;
    }
    host->n_open++;
    h->host = host;
}

static void link_handshake(struct listener *l, struct handshake *h)
{
    h->next = l->first;
    if (h->next)
        h->next->prev = h;
    else
        l->last = h;
    l->first = h;
    enter_host(l, h);
    l->n_open++;
    l->counts.accepted++;
    l->counts.handshakes++;
}

/* The oldest of the address that has most. */
static void evict_greediest(struct listener *l)
{
    struct handshake *most = NULL;

    for (struct handshake *h = l->last; h; h = h->prev)
        if (h->state != CLOSING && (!most || h->host->n_open > most->host->n_open))
            most = h;
    l->counts.evicted++;
    close_handshake(most);
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct listener *l = stream->data;
    struct handshake *h = NULL;

    enter_main();
    if (!status)
        status = accept_peer(l, &h);
    if (status) { /* out of descriptors, or the peer is gone: the listener goes on */
        l->counts.failed_accepts++;
        l->config.events->on_refused(l->config.owner, "accept", status, status_text(status));
        return;
    }
    link_handshake(l, h);
    if (l->n_open > l->config.handshakes_max)
        evict_greediest(l);
}

/* Closes peers that take too long, over the hello or over reading the refusal. */
static void on_sweep(uv_timer_t *timer)
{
    struct listener *l = timer->data;
    uint64_t now_ms = uv_now(l->config.loop);

    enter_main();
    for (struct handshake *h = l->first; h; h = h->next) {
        if (h->state == CLOSING || now_ms - h->since_ms <= l->config.handshake_ms)
            continue;
        if (h->state == READING) {
            l->counts.slow++;
            l->config.events->on_refused(l->config.owner, h->peer, -ETIMEDOUT,
                                         "no hello within --greeting-timeout");
        }
        close_handshake(h);
    }
}

/* --- the listener --- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct listener *l = handle->data;

    l->n_handles--;
    free_when_closed(l);
}

static int explain(const struct listener *l, int status, struct err *err)
{
    return err_set(err, status, "listen: cannot listen on %s: %s", l->config.listen,
                   status_text(status));
}

/* libuv reports a port in use, which bind() finds, with uv_tcp_getsockname(). */
static int bind_address(struct listener *l, struct err *err)
{
    struct sockaddr_storage address = { 0 };
    int n_bytes = sizeof address, status;

    status = address_resolve("listen", l->config.listen, &address, err);
    if (status)
        return status;
    status = uv_tcp_bind(&l->tcp, (struct sockaddr *)&address, 0);
    if (!status)
        status = uv_tcp_getsockname(&l->tcp, (struct sockaddr *)&address, &n_bytes);
    if (status)
        return explain(l, status, err);
    address_text((struct sockaddr *)&address, l->address);
    return 0;
}

int listener_open(const struct listener_config *config, struct listener **ret_listener,
                  struct err *err)
{
    struct listener *l = memory_alloc(sizeof *l);
    int status = uv_tcp_init(config->loop, &l->tcp);

    l->config = *config;
    if (!l->config.handshakes_max)
        l->config.handshakes_max = LISTENER_HANDSHAKES_MAX;
    if (status) {
        free(l);
        return err_set(err, status, "listen: %s: %s", config->listen, status_text(status));
    }
    uv_timer_init(config->loop, &l->timer);
    l->tcp.data = l->timer.data = l;
    l->n_handles = 2;
    status = bind_address(l, err);
    if (status) {
        listener_close(l);
        return status;
    }
    *ret_listener = l;
    return 0;
}

int listener_listen(struct listener *l, struct err *err)
{
    int status = uv_listen((uv_stream_t *)&l->tcp, BACKLOG, on_connection);

    if (!status)
        status = uv_timer_start(&l->timer, on_sweep, SWEEP_MS, SWEEP_MS);
    return status ? explain(l, status, err) : 0;
}

const char *listener_address(const struct listener *l)
{
    return l->address;
}

void listener_close(struct listener *l)
{
    if (!l || l->state == LISTENER_CLOSING)
        return;
    l->state = LISTENER_CLOSING;
    for (struct handshake *h = l->first; h; h = h->next)
        close_handshake(h);
    uv_close((uv_handle_t *)&l->tcp, on_handle_closed);
    uv_close((uv_handle_t *)&l->timer, on_handle_closed);
}

void listener_count(const struct listener *l, struct listener_counts *ret)
{
    *ret = l->counts;
}

void listener_each_handshake(const struct listener *l,
                             void (*each)(void *arg, const char *peer, uint64_t since_ms),
                             void *arg)
{
    for (const struct handshake *h = l->first; h; h = h->next)
        if (h->state == READING)
            each(arg, h->peer, h->since_ms);
}
