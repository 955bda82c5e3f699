/*
 * A client's connection: a socket that speaks frames, the client's hello, and, once it has joined a job, the worker
 * that it is. The listener has checked the hello; it is not checked again.
 *
 * A connection belongs to a connection set, the connections of one loop, and only that loop's thread touches it:
 *
 *     connection_set_open -> events.on_request ...
 *         -> connection_close | connection_fail | end of stream
 *         -> events.on_closed -> freed
 *
 * A shard has a set for workers and readers, the main thread one for operators.
 */
#ifndef SERVER_NET_CONNECTION_H
#define SERVER_NET_CONNECTION_H

#include <stdbool.h>
#include <string.h>
#include <uv.h>

#include "common/access.h"
#include "common/address.h"
#include "common/histogram.h"
#include "common/tls.h"
#include "proto/channel.h"
#include "proto/message.h"
#include "proto/section.h"
#include "server/net/connection_limits.h"
#include "server/net/group_view.h"

struct connection;
struct connection_set;
struct pull_deltas;
struct pulled_keys_set;

/*
 * One whole frame. Borrowed from the connection until the handler returns; a handler that continues
 * later holds the connection, and what the request points to stays.
 *
 * A body may have come compressed, and 2 KiB of it may hold 64 MiB. A handler that reads it calls
 * request_open_body(), holds the head against its length and the peer against what it may ask, and only
 * then calls request_unpack(). Of a plain body both do nothing.
 *
 * A long body would hold up all others while it is unpacked. request_open_body() leaves `body` NULL then, and
 * request_unpack() returns REQUEST_LATER, which the handler returns, too. It is called again when the body is there
 * (unpack_queue.h), its connection held:
 *
 *     connection_hold -> [no other connection's] -> connection_begin_unpacking -> connection_unpack_more ...
 *         -> handled again -> connection_drop_unpacked | connection_release
 */
struct request {
    struct connection *connection;
    const struct frame_header *header;
    const uint8_t *head, *body;
    size_t body_bytes;
    const uint8_t *packed;   /* what `body` will hold, compressed; NULL: it does already */
    size_t prechecked_bytes; /* of the body: push_handler.h */
    uint64_t start_ns;       /* when the frame was complete */
    uint64_t now_ms;         /* the shard's time: dispatch.h fills it in */
    bool has_waited;         /* as long as it may (deferred.h): it is answered now */
    bool is_late;            /* handled again, after its body was unpacked in slices, */
    int unpack_status;       /* or was not, for this reason: then `packed` is still set */
    bool stays_held;         /* request_hold()'s */
};

#define REQUEST_LATER 1 /* a handler's answer: none yet, it is to be called again */

/* A client's open socket, as the listener hands it on. */
struct connection_socket {
    int fd;
    struct tls_session *tls; /* owned with it; NULL: plain */
    struct access access;    /* who the client is */
};

/* Both are gone. */
void connection_socket_close(struct connection_socket *socket);

struct connection_events {
    /* Anything but 0 closes the connection for that reason. */
    int (*on_request)(void *owner, struct request *r);
    /* NULL, or the beginning of a frame, as channel.h gives it. */
    void (*on_partial)(void *owner, struct connection *c, const struct frame_header *header,
                       const uint8_t *head, const uint8_t *body, size_t n_bytes);
    /* NULL, or as channel.h says: space for more of a frame that is sent in parts. */
    void (*on_written)(void *owner, struct connection *c);
    /* The last call; *c is freed when it returns. `why` as channel.h says. */
    void (*on_closed)(void *owner, struct connection *c, int why);
};

/* The worker that speaks on a connection. */
struct connection_worker {
    bool joined;
    char job[TABLE_SPEC_NAME_MAX];
    uint32_t rank;
    uint64_t incarnation;
    uint64_t join_number; /* membership.h */
    uint64_t opener; /* the connection's first join_number, which no other has; 0: none yet */
};

/* Something that ought to make progress: since when it has been at the same point. */
struct connection_stall {
    uint64_t since_ms, progress;
};

struct connection {
    struct channel channel;
    uv_tcp_t tcp;
    struct connection_set *set;     /* borrowed */
    struct connection_entry *entry; /* borrowed: closed with it; NULL: it has none */
    struct hello hello;
    struct access access;
    uint8_t *
        named; /* owned: a bit for each table's number, below 8 * n_named_bytes, that it has named */
    uint32_t n_named_bytes;
    char peer[ADDRESS_TEXT_MAX];
    uint64_t host;                    /* a number of the peer's address_host(); not 0 */
    struct connection_worker worker;  /* the dispatcher's */
    struct connection_worker joining; /* whose JOIN waits (deferred.h); its job is "": none's */
    struct {                          /* parked pulls: pull_handler.h counts them */
        uint32_t n;
        size_t n_bytes;
    } parked;
    /* Owned: the rows that its client has (pull_handler.h); or NULL. */
    struct pull_deltas *deltas;
    struct pulled_keys_set *pulled_keys; /* owned, as they are; or NULL */
    struct bytes unpacked; /* owned, from the loop: the decompressed body of its request */
    struct message_zstd_slices unpacking; /* to there, in slices */
    bool unpacks_in_slices;               /* or has done, and `unpacked` is still in use */
    uint32_t n_tables_made;               /* by its requests */
    size_t prechecked_bytes;              /* of the body being received: push_handler.h */
    size_t partial_bytes;                 /* of it, that had come then */
    struct connection *next, *prev;       /* in the set */
    size_t reply_bytes;                   /* of a reply being made for it */
    size_t queued_bytes;                  /* of its replies that wait: reply_queue.h */
    uint32_t n_unanswered;                /* requests whose replies have not been sent */
    uint64_t delivered_bytes;             /* connection_is_kept_waiting()'s */
    uint64_t n_frames;                    /* whole ones received */
    uint64_t n_frames_seen;               /* of them, by the last sweep */
    struct connection_stall in;           /* a frame that is not finished */
    struct connection_stall out;          /* replies that are not read */
};

/* A reply, of which each request gets one. Takes the frame, as channel_send() does. */
int connection_send(struct connection *c, struct bytes *frame);

/* The end of a reply that is sent in chunks: channel_send_last_chunk(). */
int connection_send_last_chunk(struct connection *c, struct bytes *chunk);

#define CONNECTION_UNPACK_BYTES \
    (256u << 10) /* of one slice, and of a body of a reader that needs no slices */
#define CONNECTION_UNPACK_JOINED_BYTES \
    (512u << 10) /* of a body of a joined worker that needs no slices */

/* Sets r->body and r->body_bytes to where a compressed body will be, and how long; r->body to NULL if it is to be
 * unpacked in slices. PS_ECORRUPT if it is not a zstd frame that states its length, PS_ETOOBIG, -ENOMEM. */
int request_open_body(struct request *r) MUST_CHECK;

/* Fills r->body, or returns REQUEST_LATER. PS_ECORRUPT, -ENOMEM; of a late request r->unpack_status. */
int request_unpack(struct request *r) MUST_CHECK;

/* As connection_hold(). The connection of a late request is held already, and stays so. */
void request_hold(struct request *r);

/* Memory for the held body, which counts from here on. *ret_body: where it will be. `zstd`: of this body until it is
 * over. -ENOMEM. */
int connection_begin_unpacking(struct connection *c, struct message_zstd *zstd,
                               const uint8_t *packed, size_t packed_bytes, size_t body_bytes,
                               const uint8_t **ret_body) MUST_CHECK;

/* One slice more; *ret_done: it is there. PS_ECORRUPT. */
int connection_unpack_more(struct connection *c, struct message_zstd *zstd, bool *ret_done)
    MUST_CHECK;

/* The body of the held frame is not needed any more. */
void connection_drop_unpacked(struct connection *c);

/* A large reply is being made for it, in so many bytes; 0: no more. */
void connection_set_reply_bytes(struct connection *c, size_t n_bytes);

/* Requests carry tables' numbers. From here on this one is the connection's to use: it has named the table, and may
 * have it. -ENOMEM. */
int connection_name_table(struct connection *c, uint32_t table_id) MUST_CHECK;

/* Whether it has; of a peer whose role nobody asked for, always. */
static inline bool connection_may_use(const struct connection *c, uint32_t table_id)
{
    if (c->access.role == ACCESS_ALL)
        return true;
    return table_id / 8 < c->n_named_bytes && (c->named[table_id / 8] >> table_id % 8 & 1);
}

/* 0 if it may use the tables of all sections, else PS_EDENIED. */
int connection_check_sections(const struct connection *c, const struct section *sections,
                              uint32_t n);

/* Its worker has joined a job, or left it. */
void connection_joined(struct connection *c);
void connection_left(struct connection *c);

/* Inside events.on_request: the request's head and body stay, and no other frame is delivered,
 * until connection_release(); as channel_hold() and channel_release() say. */
void connection_hold(struct connection *c);
void connection_release(struct connection *c);

/* What a held request of a connection that has closed still stands in. */
struct connection_remains {
    struct channel_loop *channels; /* borrowed; NULL: there is nothing */
    struct bytes frame, unpacked;  /* owned */
};

/* Inside events.on_closed: the request's bytes stay, and are counted as before, until connection_remains_release(). */
void connection_keep_request(struct connection *c, struct connection_remains *ret);
void connection_remains_release(struct connection_remains *r);

/* So much its replies hold that wait in the reply queue: it counts with what the connection holds. */
void connection_set_queued_bytes(struct connection *c, size_t n_bytes);

/* Ends one that holds more than others, with -ENOBUFS: what has not been sent is dropped. */
void connection_fail_greedy(struct connection *c);

void connection_close(struct connection *c);
void connection_fail(struct connection *c, int why);

/* True if psd alone is why a reply has not been sent. A pull that is parked waits for other workers; and a peer has to
 * read what was sent before: it has read something since the last call, which is to come now and then. */
bool connection_is_kept_waiting(struct connection *c);

/* --- the set --- */

struct connection_set_config {
    struct channel_loop *channels; /* borrowed: the loop's */
    uint32_t frame_max_bytes;
    uint64_t
        frame_timeout_ms; /* for an unfinished frame, or replies that the peer does not read */
    struct channel_memory *
        memory; /* borrowed; NULL: no limit. Beyond it the connection that holds most is closed,
                 * but for one whose body is unpacked in slices: that one's turn ends by itself */
    bool low_priority; /* of each connection, until its worker has joined (channel.h) */
    const struct hello_reply *welcome;      /* borrowed: the reply to the hello, */
    struct group_view *groups;              /* borrowed: and what these say; NULL: nothing */
    const struct connection_events *events; /* borrowed, static */
    void *owner;                            /* borrowed */
};

/* Since the start, but for `connections`. */
struct connection_set_counts {
    uint64_t connections, connections_total, malformed, slow, evicted, greedy, bytes_in,
        bytes_out;
    uint64_t held_bytes; /* now */
};

struct connection_set {
    struct connection_set_config config;
    struct connection *first;            /* owned, as long as they are open */
    struct connection_set_counts closed; /* of closed connections, and events */
    struct histogram read_wait_ns;       /* of frames at low priority: channel_waited_ns() */
};

void connection_set_init(struct connection_set *s, const struct connection_set_config *config);

/* Takes the socket and the entry, whatever is returned; replies to the hello. */
int connection_set_open(struct connection_set *s, const struct connection_socket *socket,
                        uint64_t request_id, const struct hello *hello,
                        struct connection_entry *entry) MUST_CHECK;

/*
 * To be called a few times a second. Closes slow peers: a frame has been unfinished, or replies have waited for a peer
 * that reads none of them, for more than frame_timeout_ms. A peer that is idle between frames is never slow. Nor is a
 * peer that waits for psd: while its frame is held, or while its turns limit reading. Also closes connections whose
 * entry is evicted.
 */
void connection_set_sweep(struct connection_set *s, uint64_t now_ms);

/* Closes all, each after its replies are written; events.on_closed follows for each. */
void connection_set_close_all(struct connection_set *s);

void connection_set_count(const struct connection_set *s, struct connection_set_counts *ret);

static inline bool request_is_from_reader(const struct request *r)
{
    return strcmp(r->connection->hello.role, "reader") == 0;
}

#endif
