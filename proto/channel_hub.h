/*
 * What all channels of one loop share: buffers, and turns.
 *
 * Buffers. A channel owns none while it is between frames: it takes one from the hub when bytes
 * have come, and gives it back when all that came in it is delivered. What is sent comes from the
 * hub too, and goes back there once it is written (channel_pool.h). What nobody has needed for a
 * while is freed. For what travels compressed the loop's zstd is here too.
 *
 * Turns. In one iteration of the loop a channel may use up CHANNEL_TURN_BYTES, of frames
 * delivered and replies sent; then the others come. A channel that has more to deliver waits in
 * the hub's line, and the loop does not sleep meanwhile:
 *
 *     timers, mail -> the line, once through -> poll: sockets are read -> the next turn
 *
 * Every function here runs on the thread of the loop.
 */
#ifndef PROTO_CHANNEL_HUB_H
#define PROTO_CHANNEL_HUB_H

#include <uv.h>

#include "proto/channel_pool.h"
#include "proto/message_zstd.h"

#define CHANNEL_TURN_BYTES (512u << 10)
#define CHANNEL_HUB_SWEEP_MS 2000u

/* Somebody who waits for its turn; lies in the channel. */
struct channel_hub_waiter {
    void (*go)(struct channel_hub_waiter *w); /* NULL: does not wait */
    struct channel_hub_waiter *next, *prev;
};

/* Begins what is kept for later. */
struct channel_hub_spare {
    struct channel_hub_spare *next;
};

struct channel_hub {
    uv_loop_t *loop; /* borrowed */
    uint64_t turn;   /* counts the loop's iterations; never 0 */
    struct channel_pool pool;
    struct message_zstd zstd; /* for their owners' messages */
    struct channel_hub_spare
        *spare; /* channel_out's, of malloc: owned; the newest of n_spares */
    uint32_t n_spares;
    struct channel_hub_waiter *first, *last; /* borrowed: the line */
    size_t n_waiting;
    uv_check_t check;
    uv_idle_t idle; /* active while somebody waits */
    uv_timer_t sweep;
    bool closing;
    uint8_t trash[16 << 10]; /* where bytes go that nobody wants; never read */
};

/* The hub alone does not keep the loop running. It must not move. */
void channel_hub_init(struct channel_hub *hub, uv_loop_t *loop);

/* Once no channel is open any more; those that are CLOSING may take their time. Idempotent. */
void channel_hub_close(struct channel_hub *hub);

/* After the loop has ended: frees all buffers that were not taken, or were given back. */
void channel_hub_deinit(struct channel_hub *hub);

/* Sets *ret to an empty buf with room for n_bytes or more: to be sent, given back, or freed with
 * buf_deinit(). -ENOMEM leaves *ret alone. */
int channel_hub_take(struct channel_hub *hub, size_t n_bytes, struct buf *ret) MUST_CHECK;

/* Takes back any buf, also an empty one or one that did not come from here; leaves *b empty. */
void channel_hub_give(struct channel_hub *hub, struct buf *b);

/* ---- for channels ---- */

/* go(w) is called in the loop's next iteration, unless channel_hub_leave_line() comes first.
 * Nothing happens if w waits already. */
void channel_hub_line_up(struct channel_hub *hub, struct channel_hub_waiter *w,
                         void (*go)(struct channel_hub_waiter *w));
void channel_hub_leave_line(struct channel_hub *hub, struct channel_hub_waiter *w);

#endif
