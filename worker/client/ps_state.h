/*
 * A client from inside: what the parts of the library's front (ps.c, ps_table.c) share.
 */
#ifndef WORKER_CLIENT_PS_STATE_H
#define WORKER_CLIENT_PS_STATE_H

#include <stdatomic.h>

#include "worker/client/encode.h"
#include "worker/client/net.h"
#include "worker/client/outbox.h"
#include "worker/client/ps_types.h"
#include "worker/client/resend.h"

/* The servers' own sentence about a deadline is to come before ours. */
#define PS_STATE_SLACK_MS 2000u

struct ps_client {
    struct ps_options options;
    struct desk desk;
    struct net *net;         /* owned */
    struct encoder *encoder; /* owned */
    uint32_t n_shards, n_tables;
    struct push *pushes; /* owned, n_shards */
    struct pull *pulls;  /* owned, n_shards */
    struct outbox push_out, pull_out;
    struct ps_tap tap;
    struct resend resend; /* pushes of the process before, and for the next one */
    struct {
        bool under_way;
        const struct ps_pull_section *sections; /* borrowed while under way */
        uint32_t n;
        uint64_t deadline_ns;
    } pull;
    _Atomic uint64_t n_ticked; /* steps whose push the network thread has */
    _Atomic uint64_t n_pulls, n_pushes, rows_pulled, rows_pushed, bytes_pushed;
    _Atomic uint64_t park_ns, room_ns;
    _Atomic uint64_t parked_since_ns, room_since_ns; /* of the wait under way; 0: none */
    _Atomic uint64_t residual_rows, residual_bytes, residual_settled;
    _Atomic uint64_t pulled_clock; /* lowest min clock of the last pull's answers */
};

/* So long from now, of uv_hrtime(). */
static inline uint64_t ps_state_after_ms(uint64_t ms)
{
    return uv_hrtime() + ms * UINT64_C(1000000);
}

#endif
