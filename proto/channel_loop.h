/*
 * The state that all channels of one loop share: buffers, turns, and the limit of their memory.
 *
 * Buffers. Between frames a channel owns none. It takes a buffer from the loop when bytes arrive, and gives it back
 * when all bytes in it are delivered. Buffers of sent frames come from the loop, too, and return once they are
 * written. Buffers that were not needed for a while are freed; large ones that have grown in parts, as to free 64 MiB
 * of small pages takes milliseconds. The loop's zstd, for compressed bodies, is here, too.
 *
 * Turns. In one iteration of the loop a channel may use up CHANNEL_TURN_BYTES, of frames
 * delivered and replies sent; then the others come. A channel that has more to deliver waits in
 * the loop's line, and the loop does not sleep meanwhile:
 *
 *     timers, mail -> the line, once through -> poll: sockets are read -> the next turn
 *
 * Channels of low priority (channel.h) share CHANNEL_LOW_SHARED_BYTES of each iteration, so that any
 * number of them leaves time for the others. Beyond that they wait in a line of their own, in the order
 * of their arrival. Bytes that one decompressed frame takes beyond it are charged to later iterations.
 * The others share CHANNEL_UNPACK_SHARED_BYTES of decompressed bytes: the next compressed frames wait in the line.
 *
 * While a channel of low priority is open, the others share CHANNEL_SHARED_BYTES of each iteration, too, so that the
 * sockets are looked at again before long, however many channels flood. Both kinds begin a turn with what their last
 * one took, which counts at once. Where both want more than there is, each iteration has CHANNEL_SHARED_BYTES for the
 * one kind and CHANNEL_LOW_BUSY_BYTES for the other.
 *
 * Memory. Received and unsent bytes that channels hold, and bytes that their owners hold for them, are summed up;
 * several loops share one limit: struct channel_memory. While the limit is passed, a loop that has more than its share
 * notifies its owner once an iteration, and the owner ends channels.
 *
 * Every function here but channel_memory_used() runs on the thread of the loop.
 */
#ifndef PROTO_CHANNEL_LOOP_H
#define PROTO_CHANNEL_LOOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

#include "common/bytes.h"
#include "common/tls.h"
#include "proto/frame.h"
#include "proto/message_zstd.h"

/* ---- buffers ---- */

/*
 * Buffers that one loop's channels use in turn, so that megabytes which come and go cost no
 * system call and no page fault each.
 *
 * Free buffers stand in lists by size, four to an octave (4, 5, 6, 7, 8, 10, 12 ... KiB); the one
 * given back last, still warm in the cache, is the first to be taken. A buffer is an ordinary
 * struct bytes: its holder may grow it, give it back, or free it with bytes_deinit(). Any buf
 * may be given; but no more of a size are kept than were taken, so that buffers which others make
 * and only ever give do not accumulate here.
 */
#define CHANNEL_POOL_CLASSES 61u                   /* 4 KiB .. 128 MiB */
#define CHANNEL_POOL_KEEP_BYTES ((size_t)64 << 20) /* free buffers kept, at most */

struct channel_pool {
    struct {
        struct channel_pool_node *first; /* owned; the newest */
        uint32_t n, n_least;             /* kept; the fewest since the last sweep */
        uint32_t n_lent;                 /* taken and not given back */
    } classes[CHANNEL_POOL_CLASSES];
    size_t kept_bytes;
    uint64_t n_made; /* allocations, since the start */
};

/* A zeroed pool is a good one. */
void channel_pool_deinit(struct channel_pool *p);

/* *ret is set: empty, with space for n_bytes or more. -ENOMEM leaves it alone. */
int channel_pool_acquire(struct channel_pool *p, size_t n_bytes, struct bytes *ret) MUST_CHECK;

/* Makes *b larger, with what is in it; it came from here. Its bytes are copied only where the allocator cannot move its
 * pages. Then it is not one of those that are kept, as its pages are small. -ENOMEM leaves it alone. */
int channel_pool_grow(struct channel_pool *p, struct bytes *b, size_t cap_bytes) MUST_CHECK;

/* Leaves *b empty. */
void channel_pool_release(struct channel_pool *p, struct bytes *b);

/* Frees the buffers that were not needed since the last sweep. */
void channel_pool_sweep(struct channel_pool *p);

/* ---- memory ---- */

#define CHANNEL_MEMORY_PUBLISH_BYTES (256u << 10) /* a loop's own sum may differ by so much */

struct channel_memory {
    _Atomic uint64_t used_bytes; /* by the channels of all loops */
    uint64_t max_bytes;
    uint32_t n_loops;
};

static inline uint64_t channel_memory_used(const struct channel_memory *m)
{
    return atomic_load_explicit(&m->used_bytes, memory_order_relaxed);
}

/* ---- the loop ---- */

#define CHANNEL_TURN_BYTES (512u << 10)
#define CHANNEL_LOW_TURN_BYTES (32u << 10)  /* of a channel of low priority */
#define CHANNEL_TURN_LEAST_BYTES (4u << 10) /* with which a turn begins, used or not */
#define CHANNEL_SHARED_BYTES \
    (192u << 10) /* of all others, in one iteration, while one of low priority is open */
#define CHANNEL_SHARED_BEGIN_BYTES (CHANNEL_SHARED_BYTES / 2) /* as CHANNEL_LOW_BEGIN_BYTES */
#define CHANNEL_LOW_BUSY_BYTES (256u << 10) /* of those of low priority, while others wait */
#define CHANNEL_LOW_SHARED_BYTES (1u << 20) /* of all of them, in one iteration */
#define CHANNEL_LOW_BEGIN_BYTES \
    (CHANNEL_LOW_SHARED_BYTES / \
     2) /* none begins a turn after so many: what it costs is not known yet */
#define CHANNEL_LOW_UNPACK_COST \
    8u /* of a byte decompressed: all of a body is one piece of work */
#define CHANNEL_UNPACK_SHARED_BYTES \
    (1u << 20) /* decompressed in one iteration: then compressed frames wait for the next */
#define CHANNEL_LOOP_SWEEP_MS 2000u
#define CHANNEL_LOOP_FREE_BYTES ((size_t)1 << 20)      /* of buffers, in one iteration, */
#define CHANNEL_LOOP_FREE_MAX_BYTES ((size_t)16 << 20) /* or so many; */
#define CHANNEL_LOOP_FREE_SHARE 16u /* between them a share of what is to be freed */

/* A channel that waits for its turn; a member of the channel. */
struct channel_loop_waiter {
    void (*go)(struct channel_loop_waiter *w); /* NULL: does not wait */
    struct channel_loop_waiter *next, *prev;
    struct channel_loop_line *line;
    uint64_t
        since_ns; /* in the line of low priority, and beyond it, until a frame is delivered */
};

struct channel_loop_line {
    struct channel_loop_waiter *first, *last; /* borrowed */
    size_t n;
};

/* Begins what is kept for later. */
struct channel_loop_pooled {
    struct channel_loop_pooled *next;
};

struct channel_loop {
    uv_loop_t *loop; /* borrowed */
    uint64_t turn;   /* counts the loop's iterations; never 0 */
    struct channel_pool pool;
    struct message_zstd zstd; /* for their owners' messages */
    struct tls_context *tls;  /* borrowed: what its connectors speak; NULL: plain */
    struct channel_loop_pooled
        *pooled; /* the channels' batches, of malloc: owned; the newest of n_pooled */
    uint32_t n_pooled;
    struct channel_pool_node *freed; /* owned: the rest of large buffers that are being freed */
    size_t freed_bytes;              /* so many */
    struct channel_loop_line line, low_line;
    uint32_t n_low;        /* channels of low priority that are open */
    size_t low_bytes;      /* used up by channels of low priority, this turn and in advance */
    size_t used_bytes;     /* by the others, this turn, while there are some of low priority */
    bool is_contended;     /* this turn has more work of the others than frames */
    uint64_t polled_ns[2]; /* at the sockets, while n_low: the last time, and the time before */
    bool has_read;         /* something since then */
    uint64_t unpacked_bytes;       /* decompressed for their owners, since the start, */
    uint64_t unpacked_before;      /* and of them before this turn */
    struct channel_memory *memory; /* borrowed; NULL: no limit */
    void (*on_over)(void *owner);  /* more is used than may be, and too much of it here */
    void *owner;                   /* borrowed; on_over's */
    uint64_t n_ended;              /* channels, since the start */
    size_t held_bytes;             /* by this loop's channels */
    uint64_t published_bytes;      /* of them in *memory */
    uv_check_t check;
    uv_prepare_t prepare; /* active while n_low */
    uv_idle_t idle;       /* active while a channel waits, or a buffer is being freed */
    uv_timer_t sweep;
    bool closing;
    uint8_t trash[16 << 10]; /* target of bytes that are dropped; never read */
};

/* A channel_loop alone does not keep libuv's loop running. It must not move. */
void channel_loop_init(struct channel_loop *channels, uv_loop_t *loop);

/* Once no channel is open any more; those that are CLOSING may take their time. Idempotent. */
void channel_loop_close(struct channel_loop *channels);

/* After the loop has ended: frees all buffers that were not taken, or were given back. */
void channel_loop_deinit(struct channel_loop *channels);

/* Sets *ret to an empty buf with space for n_bytes or more: to be sent, given back, or freed with
 * bytes_deinit(). -ENOMEM leaves *ret alone. */
int channel_loop_acquire(struct channel_loop *channels, size_t n_bytes, struct bytes *ret)
    MUST_CHECK;

/* As channel_pool_grow(). */
int channel_loop_grow(struct channel_loop *channels, struct bytes *b, size_t cap_bytes)
    MUST_CHECK;

/* Takes back any buf, also an empty one or one that did not come from here; leaves *b empty. */
void channel_loop_release(struct channel_loop *channels, struct bytes *b);

/* From here on its channels count; on_over may end some. To be called before the first one. */
void channel_loop_share_memory(struct channel_loop *channels, struct channel_memory *memory,
                               void (*on_over)(void *owner), void *owner);

/* True if the memory in use passes the limit, and this loop has more than its share. */
bool channel_loop_is_over(const struct channel_loop *channels);

/* ---- for channels ---- */

/* A channel holds `after` bytes, and held `before`. */
void channel_loop_hold_bytes(struct channel_loop *channels, size_t before, size_t after);

/* go(w) is called in the loop's next iteration, unless channel_loop_cancel() comes first.
 * Nothing happens if w waits already. */
void channel_loop_enqueue(struct channel_loop *channels, struct channel_loop_waiter *w,
                          void (*go)(struct channel_loop_waiter *w));

/* The same in the line of low priority: once those before it have had their turn. */
void channel_loop_enqueue_low(struct channel_loop *channels, struct channel_loop_waiter *w,
                              void (*go)(struct channel_loop_waiter *w));

/* A channel of low priority has opened, or closed; or a channel has become one, or is none any more. */
void channel_loop_add_low(struct channel_loop *channels);
void channel_loop_remove_low(struct channel_loop *channels);

/* True if the iteration has time for more work of channels that are not of low priority. */
static inline bool channel_loop_has_time(const struct channel_loop *channels)
{
    return !channels->n_low || channels->used_bytes < CHANNEL_SHARED_BYTES;
}

/* When the loop last looked at the sockets and did not find what it finds there now. */
static inline uint64_t channel_loop_polled_ns(const struct channel_loop *channels)
{
    return channels->polled_ns[1];
}

/* The first read since the loop has looked. */
void channel_loop_note_read(struct channel_loop *channels);

void channel_loop_cancel(struct channel_loop *channels, struct channel_loop_waiter *w);

/* ---- turns ---- */

/* A channel's. What it costs counts where turns are shared; its own limit is in bytes. */
struct channel_turn {
    bool is_low;          /* its channel is of low priority */
    uint64_t number;      /* the loop's turn in which all this was used: */
    size_t n_bytes, cost; /* so far; */
    size_t last_cost;     /* of the last turn that had any */
    uint64_t begun;       /* the loop's turn in which it may go on, where turns are shared, */
    size_t paid;          /* and so much of its cost has been counted then */
};

void channel_turn_use(struct channel_turn *t, struct channel_loop *channels, size_t n_bytes,
                      size_t cost);

/* Begins one, where turns are shared, for a channel that has waited in its line. */
void channel_turn_begin(struct channel_turn *t, struct channel_loop *channels);

/* True if it has begun, or begins now, as nobody of its kind waits and the iteration has time. */
bool channel_turn_has_begun(struct channel_turn *t, struct channel_loop *channels);

/* True if it has begun and is not over; and if there is time for one frame more. A compressed one of a channel of low
 * priority is charged for as its bytes are. */
bool channel_turn_goes_on(struct channel_turn *t, struct channel_loop *channels);
bool channel_turn_takes_frame(struct channel_turn *t, struct channel_loop *channels,
                              uint8_t frame_flags);

#endif
