#include "server/net/connection.h"

#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/memory.h"

#define KEEPALIVE_S 60u /* finds hosts that are gone without a word */

/* --- one connection --- */

static void count_owned(struct connection *c)
{
    channel_set_owner_bytes(&c->channel,
                            c->unpacked.cap_bytes + c->reply_bytes + c->queued_bytes);
}

static bool needs_slices(const struct request *r, size_t n_bytes)
{
    size_t max_bytes = r->connection->channel.turn.is_low ? CONNECTION_UNPACK_BYTES
                                                          : CONNECTION_UNPACK_JOINED_BYTES;

    return n_bytes > max_bytes || r->header->body_bytes > max_bytes;
}

int request_open_body(struct request *r)
{
    struct connection *c = r->connection;
    size_t n_bytes;
    int status;

    if (!(r->header->flags & FRAME_ZSTD) || r->is_late)
        return 0;
    status = message_body_size(r->header, r->body, c->set->config.frame_max_bytes, &n_bytes);
    if (status)
        return status;
    if (!needs_slices(r, n_bytes))
        status = channel_loop_acquire(c->channel.channels, n_bytes, &c->unpacked);
    if (status)
        return status;
    r->packed = r->body;
    r->body = c->unpacked.bytes;
    r->body_bytes = n_bytes;
    return 0;
}

int request_unpack(struct request *r)
{
    struct connection *c = r->connection;

    if (!r->packed)
        return 0;
    if (r->is_late)
        return r->unpack_status;
    if (!r->body)
        return REQUEST_LATER;
    channel_use_unpacked(&c->channel, r->body_bytes);
    return message_body(&c->channel.channels->zstd, r->header, r->packed,
                        c->set->config.frame_max_bytes, &c->unpacked, &r->body, &r->body_bytes);
}

void request_hold(struct request *r)
{
    if (!r->is_late)
        connection_hold(r->connection);
    r->stays_held = true;
}

int connection_begin_unpacking(struct connection *c, struct message_zstd *zstd,
                               const uint8_t *packed, size_t packed_bytes, size_t body_bytes,
                               const uint8_t **ret_body)
{
    int status = channel_loop_acquire(c->channel.channels, body_bytes, &c->unpacked);

    if (status)
        return status;
    c->unpacks_in_slices = true;
    count_owned(c);
    *ret_body = c->unpacked.bytes;
    return message_zstd_begin(zstd, packed, packed_bytes, c->unpacked.bytes, body_bytes,
                              &c->unpacking);
}

int connection_unpack_more(struct connection *c, struct message_zstd *zstd, bool *ret_done)
{
    size_t before = c->unpacking.n_done;
    int status = message_zstd_more(zstd, &c->unpacking, CONNECTION_UNPACK_BYTES, ret_done);

    channel_use_unpacked_slice(&c->channel, c->unpacking.n_done - before);
    return status;
}

void connection_drop_unpacked(struct connection *c)
{
    c->unpacks_in_slices = false;
    if (!c->unpacked.bytes)
        return;
    channel_loop_release(c->channel.channels, &c->unpacked);
    count_owned(c);
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct connection *c = owner;
    struct request r = { .connection = c,
                         .header = header,
                         .head = head,
                         .body = body,
                         .body_bytes = header->body_bytes,
                         .prechecked_bytes = c->prechecked_bytes,
                         .start_ns = uv_hrtime() };
    int status;

    if (c->channel.turn.is_low)
        histogram_record(&c->set->read_wait_ns, channel_waited_ns(&c->channel, r.start_ns));
    c->n_unanswered++;
    if (!c->n_frames++)
        connection_entry_set(c->entry, ENTRY_ASKED);
    c->prechecked_bytes = c->partial_bytes = 0;
    status = c->set->config.events->on_request(c->set->config.owner, &r);
    if (c->unpacked.bytes && !c->channel.held)
        channel_loop_release(c->channel.channels, &c->unpacked);
    else if (c->unpacked.bytes)
        count_owned(c);
    return status;
}

static void on_part(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body, size_t n_bytes)
{
    struct connection *c = owner;
    const struct connection_set_config *config = &c->set->config;

    if (config->events->on_partial)
        config->events->on_partial(config->owner, c, header, head, body, n_bytes);
}

static void on_written(void *owner)
{
    struct connection *c = owner;
    const struct connection_set_config *config = &c->set->config;

    if (config->events->on_written)
        config->events->on_written(config->owner, c);
}

/* Has the peer broken the framing, so that nothing after it can be read? */
static bool is_malformed(int why)
{
    return why == PS_EPROTO || why == PS_ECORRUPT || why == PS_ETOOBIG || why == PS_ECOUNT;
}

static void unlink_connection(struct connection *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        c->set->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

static void on_closed(void *owner, int why)
{
    struct connection *c = owner;
    struct connection_set *s = c->set;

    unlink_connection(c);
    s->closed.bytes_in += c->channel.bytes_in;
    s->closed.bytes_out += c->channel.bytes_out;
    if (is_malformed(why))
        s->closed.malformed++;
    s->closed.greedy += why == -ENOBUFS;
    s->config.events->on_closed(s->config.owner, c, why);
    connection_entry_set(c->entry, ENTRY_CLOSED);
    channel_loop_release(c->channel.channels, &c->unpacked);
    free(c->named);
    free(c);
}

static const struct channel_events channel_events = {
    .frame = on_frame, .part = on_part, .written = on_written, .closed = on_closed
};

static void on_handle_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static uint64_t number_host(const struct sockaddr_storage *address)
{
    struct sockaddr_storage host = address_host(address);
    uint64_t words[sizeof host / sizeof(uint64_t)], number = 0;

    memcpy(words, &host, sizeof words);
    for (size_t i = 0; i < COUNT_OF(words); i++)
        number = hash_mix2(number, words[i]);
    return number ? number : 1;
}

static void name_peer(struct connection *c)
{
    struct sockaddr_storage address = { 0 };
    int n_bytes = sizeof address;

    if (uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&address, &n_bytes))
        address.ss_family = AF_UNSPEC;
    address_text((struct sockaddr *)&address, c->peer);
    c->host = number_host(&address);
}

void connection_socket_close(struct connection_socket *socket)
{
    tls_session_free(socket->tls);
    close(socket->fd);
}

/* Fails only before anything is read. */
static int open_socket(struct connection *c, struct connection_socket *socket)
{
    const struct connection_set_config *config = &c->set->config;
    int status = uv_tcp_open(&c->tcp, socket->fd);

    if (status) {
        connection_socket_close(socket);
        return status;
    }
    /* Both are optional: a socket without them still carries frames. */
    (void)uv_tcp_nodelay(&c->tcp, 1);
    (void)uv_tcp_keepalive(&c->tcp, 1, KEEPALIVE_S);
    name_peer(c);
    status = channel_start(&c->channel, (uv_stream_t *)&c->tcp, config->channels,
                           config->frame_max_bytes, &channel_events, c);
    if (status) {
        tls_session_free(socket->tls);
        return status;
    }
    channel_set_tls(&c->channel, socket->tls);
    channel_set_low_priority(&c->channel, config->low_priority);
    return 0;
}

/* Takes the socket whatever is returned. */
static int new_connection(struct connection_set *s, struct connection_socket *socket,
                          const struct hello *hello, struct connection **ret_connection)
{
    struct connection *c = memory_alloc(sizeof *c);
    int status = uv_tcp_init(s->config.channels->loop, &c->tcp);

    if (status) {
        connection_socket_close(socket);
        free(c);
        return status;
    }
    c->set = s;
    c->hello = *hello;
    c->access = socket->access;
    status = open_socket(c, socket);
    if (status) {
        c->tcp.data = c;
        uv_close((uv_handle_t *)&c->tcp, on_handle_closed);
        return status;
    }
    *ret_connection = c;
    return 0;
}

int connection_name_table(struct connection *c, uint32_t table_id)
{
    const uint32_t n_bytes = (table_id / 64 + 1) * 8;

    if (c->access.role == ACCESS_ALL)
        return 0;
    if (n_bytes > c->n_named_bytes) {
        uint8_t *named = memory_try_realloc(c->named, n_bytes);

        if (!named)
            return -ENOMEM;
        memset(named + c->n_named_bytes, 0, n_bytes - c->n_named_bytes);
        c->named = named;
        c->n_named_bytes = n_bytes;
    }
    c->named[table_id / 8] = (uint8_t)(c->named[table_id / 8] | 1u << table_id % 8);
    return 0;
}

int connection_check_sections(const struct connection *c, const struct section *sections,
                              uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!connection_may_use(c, sections[i].table_id))
            return PS_EDENIED;
    return 0;
}

void connection_set_reply_bytes(struct connection *c, size_t n_bytes)
{
    if (c->reply_bytes == n_bytes)
        return;
    c->reply_bytes = n_bytes;
    count_owned(c);
}

void connection_set_queued_bytes(struct connection *c, size_t n_bytes)
{
    c->queued_bytes = n_bytes;
    count_owned(c);
}

void connection_joined(struct connection *c)
{
    c->worker.joined = true;
    channel_set_low_priority(&c->channel, false);
    connection_entry_set(c->entry, ENTRY_JOINED);
}

void connection_left(struct connection *c)
{
    c->worker.joined = false;
    channel_set_low_priority(&c->channel, c->set->config.low_priority);
    connection_entry_set(c->entry, ENTRY_ASKED);
}

int connection_send(struct connection *c, struct bytes *frame)
{
    assert(c->n_unanswered > 0);
    c->n_unanswered--;
    return channel_send(&c->channel, frame);
}

int connection_send_last_chunk(struct connection *c, struct bytes *chunk)
{
    assert(c->n_unanswered > 0);
    c->n_unanswered--;
    return channel_send_last_chunk(&c->channel, chunk);
}

void connection_hold(struct connection *c)
{
    channel_hold(&c->channel);
}

void connection_release(struct connection *c)
{
    connection_drop_unpacked(c);
    channel_release(&c->channel);
    count_owned(c); /* without the frame that was held */
}

static size_t remains_bytes(const struct connection_remains *r)
{
    return r->frame.cap_bytes + r->unpacked.cap_bytes;
}

void connection_keep_request(struct connection *c, struct connection_remains *ret)
{
    *ret = (struct connection_remains){ .channels = c->channel.channels,
                                        .frame = channel_take_held(&c->channel),
                                        .unpacked = c->unpacked };
    c->unpacked = (struct bytes){ 0 };
    channel_loop_hold_bytes(ret->channels, 0, remains_bytes(ret));
}

void connection_remains_release(struct connection_remains *r)
{
    if (!r->channels)
        return;
    channel_loop_hold_bytes(r->channels, remains_bytes(r), 0);
    channel_loop_release(r->channels, &r->frame);
    channel_loop_release(r->channels, &r->unpacked);
    r->channels = NULL;
}

void connection_close(struct connection *c)
{
    channel_close(&c->channel);
}

void connection_fail(struct connection *c, int why)
{
    channel_fail(&c->channel, why);
}

void connection_fail_greedy(struct connection *c)
{
    channel_abort(&c->channel, -ENOBUFS);
}

/* Sent bytes that have reached the peer's host. */
static uint64_t count_delivered(const struct connection *c)
{
    uv_os_fd_t fd;
    int kernels = 0; /* part of them: written, and not acknowledged */

    if (uv_fileno((const uv_handle_t *)&c->tcp, &fd) || ioctl(fd, SIOCOUTQ, &kernels))
        kernels = 0;
    return c->channel.bytes_out - channel_unsent_bytes(&c->channel) - (uint64_t)kernels;
}

bool connection_is_kept_waiting(struct connection *c)
{
    uint64_t before = c->delivered_bytes;

    if (c->n_unanswered <= c->parked.n || c->channel.state == CHANNEL_CLOSING)
        return false;
    if (!channel_unsent_bytes(&c->channel))
        return true;
    c->delivered_bytes = count_delivered(c);
    return c->delivered_bytes != before;
}

static bool stands_still(struct connection_stall *stall, bool is_awaited, uint64_t progress,
                         uint64_t now_ms, uint64_t limit_ms)
{
    if (!is_awaited || !stall->since_ms || stall->progress != progress) {
        stall->since_ms = is_awaited ? now_ms : 0;
        stall->progress = progress;
        return false;
    }
    return now_ms - stall->since_ms > limit_ms;
}

static bool is_slow(struct connection *c, uint64_t now_ms, uint64_t limit_ms)
{
    size_t queue_bytes = channel_unsent_bytes(&c->channel);
    bool sends_slowly;

    if (c->channel.state == CHANNEL_CLOSING)
        return false;
    sends_slowly = stands_still(&c->in, channel_mid_frame(&c->channel),
                                c->n_frames + c->channel.n_turns_ended, now_ms, limit_ms);
    return stands_still(&c->out, queue_bytes > 0, c->channel.bytes_out - queue_bytes, now_ms,
                        limit_ms) ||
           sends_slowly;
}

/* --- the set --- */

/* Closes the greediest, until no more is held than may be. Bodies that are unpacked in slices are three at most, and
 * soon go: closed for its body, a worker would only send it again. */
static void on_over(void *owner)
{
    struct connection_set *s = owner;

    while (channel_loop_is_over(s->config.channels)) {
        struct connection *most = NULL;

        for (struct connection *c = s->first; c; c = c->next)
            if (!c->unpacks_in_slices &&
                (!most || c->channel.held_bytes > most->channel.held_bytes))
                most = c;
        if (!most || !most->channel.held_bytes)
            return;
        connection_fail_greedy(most);
    }
}

void connection_set_init(struct connection_set *s, const struct connection_set_config *config)
{
    *s = (struct connection_set){ .config = *config };
    if (config->memory)
        channel_loop_share_memory(config->channels, config->memory, on_over, s);
}

static int welcome(struct connection *c, uint64_t request_id)
{
    struct hello_reply reply = *c->set->config.welcome;
    struct bytes frame = { 0 };
    int status;

    reply.version = message_common_version(&c->hello);
    if (c->set->config.groups)
        group_view_get(c->set->config.groups, &reply.groups);
    status = message_write_hello_reply(&frame, request_id, &reply);
    if (status) {
        bytes_deinit(&frame);
        return status;
    }
    return connection_send(c, &frame);
}

int connection_set_open(struct connection_set *s, const struct connection_socket *socket,
                        uint64_t request_id, const struct hello *hello,
                        struct connection_entry *entry)
{
    struct connection_socket taken = *socket;
    struct connection *c;
    int status = new_connection(s, &taken, hello, &c);

    if (status) {
        connection_entry_set(entry, ENTRY_CLOSED);
        return status;
    }
    c->entry = entry;
    c->n_unanswered = 1; /* for the hello */
    c->next = s->first;
    if (c->next)
        c->next->prev = c;
    s->first = c;
    s->closed.connections_total++;
    status = welcome(c, request_id);
    if (status)
        connection_fail(c, status);
    return 0;
}

/* The peer has asked since the last sweep, or we owe it an answer. Here and not for each frame: a sweep costs the hot
 * path nothing. */
static bool is_active(struct connection *c)
{
    bool has_asked = c->n_frames != c->n_frames_seen;

    c->n_frames_seen = c->n_frames;
    return has_asked || c->channel.held || c->parked.n || channel_unsent_bytes(&c->channel);
}

void connection_set_sweep(struct connection_set *s, uint64_t now_ms)
{
    for (struct connection *c = s->first; c; c = c->next) {
        if (is_active(c))
            connection_entry_touch(c->entry, now_ms);
        if (is_slow(c, now_ms, s->config.frame_timeout_ms)) {
            s->closed.slow++;
            connection_fail(c, -ETIMEDOUT);
        } else if (connection_entry_is_evicted(c->entry) &&
                   c->channel.state != CHANNEL_CLOSING) {
            s->closed.evicted++;
            connection_close(c);
        }
    }
}

void connection_set_close_all(struct connection_set *s)
{
    for (struct connection *c = s->first; c; c = c->next)
        connection_close(c);
}

void connection_set_count(const struct connection_set *s, struct connection_set_counts *ret)
{
    *ret = s->closed;
    ret->held_bytes = s->config.channels->held_bytes;
    for (const struct connection *c = s->first; c; c = c->next) {
        ret->connections++;
        ret->bytes_in += c->channel.bytes_in;
        ret->bytes_out += c->channel.bytes_out;
    }
}
