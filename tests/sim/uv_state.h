/*
 * What stands behind libuv's types here. Of a handle u.reserved[0] points to it, of a loop internal_fields; a mutex and a
 * condition are in place of the system's.
 */
#ifndef TESTS_SIM_UV_STATE_H
#define TESTS_SIM_UV_STATE_H

#include <uv.h>

#include "tests/sim/machine.h"

#define SIM_FD_FIRST 1000 /* descriptors from here on are simulated sockets */

struct sock;

/* A write that is under way, or a result that its loop has still to be told. */
struct request {
    struct request *next;
    uv_req_t *req;
    enum { REQUEST_WRITE, REQUEST_CONNECT, REQUEST_SHUTDOWN, REQUEST_WORK } kind;
    int status;
    uint8_t *bytes; /* owned: of a write, what is left of it */
    size_t n_bytes, n_done;
    union {
        uv_write_cb write;
        uv_connect_cb connect;
        uv_shutdown_cb shutdown;
        uv_after_work_cb work;
    } on_done;
};

struct handle {
    struct handle *next; /* of the loop */
    uv_handle_t *uv;
    struct loop *loop;
    bool is_active, is_ref, is_closing, is_closed;
    uv_close_cb on_close;

    /* timer */
    uv_timer_cb on_timer;
    uint64_t due_ms, repeat_ms, order;
    /* idle, check, prepare, async, signal: */
    uv_idle_cb on_idle;
    uv_check_cb on_check;
    uv_prepare_cb on_prepare;
    uv_async_cb on_async;
    uv_signal_cb on_signal;
    int signal_number;
    bool is_pending; /* async, signal */
    /* tcp */
    struct sock *sock;
    int fd; /* -1: none */
    bool reads, listens, is_shut;
    uv_alloc_cb on_alloc;
    uv_read_cb on_read;
    uv_connection_cb on_connection;
    struct request *connect, *shutdown, *writes;
};

struct loop {
    struct loop *next; /* of the process */
    uv_loop_t *uv;
    struct process *process;
    struct fiber *fiber; /* that waits in uv_run(); NULL: none */
    uint64_t now_ms, n_timers;
    struct handle *handles;
    struct request *done; /* to be told, the newest first */
    uint32_t n_requests;  /* under way or to be told */
    bool has_closing, runs;
    struct handle **scratch;
    uint32_t n_scratch, cap_scratch;
};

static inline struct handle *handle_of(const void *uv)
{
    return ((const uv_handle_t *)uv)->u.reserved[0];
}

static inline struct loop *loop_of(const uv_loop_t *uv)
{
    return uv->internal_fields;
}

struct handle *handle_new(uv_loop_t *loop, void *uv, uv_handle_type type);
void loop_wake(struct loop *l);
/* Its loop tells it soon. */
void request_done(struct loop *l, struct request *r, int status);
void request_report(struct handle *h, struct request *r);

/* --- streams, for the loop (uv_stream.c) --- */
bool stream_is_ready(const struct handle *h);
void stream_poll(struct handle *h);
void stream_close(struct handle *h); /* uv_close(): its descriptor goes */
void stream_destroy(
    struct handle *h); /* before its close callback: what is under way is cancelled */

/* --- the network --- */
/* Cuts a connection of that process (flying: that has bytes on their way to the other end); both ends hear of it, each at its
 * time. False: it has none. */
bool net_reset_one(struct process *p, bool flying, struct dice *dice);
/* Cuts all connections of that worker to a node, with what is on its way. */
void net_reset_path(const void *from, uint32_t node, struct dice *dice);

int sim_close(int fd);
int sim_dup(int fd);
int sim_shutdown(int fd);
/* Bytes that are sent and have not arrived. */
int sim_outq(int fd);

#endif
