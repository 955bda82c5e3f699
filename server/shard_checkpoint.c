#include "server/shard_checkpoint.h"

#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"

#define TURN_MS 1u
#define HURRY_NS UINT64_C(5000000) /* reading for so long at a time when nobody waits, */
#define BUSY_NS UINT64_C(500000)   /* and for so long where there is no rate */
#define BURST_MS 20u               /* of bytes that a late turn may catch up on */

struct shard_checkpoint {
    struct shard_checkpoint_config config;
    struct shard_wal *log; /* borrowed; NULL: nothing is logged */
    uv_timer_t timer;      /* turns, while a save is under way */
    uv_work_t work;        /* on the pool, one at a time */
    enum { IDLE, WAITING, READING, CLOSING, SYNCING, DONE } state;
    struct shard_file_writer_config file;
    struct shard_file_writer *writer;         /* owned; NULL before READING */
    struct shard_file_writer_buffer *writing; /* on the pool now; NULL: none */
    bool is_working;                          /* the pool */
    bool is_closed;                           /* the file */
    bool hurries, is_stopped;
    int64_t credit_bytes; /* may be read now */
    uint64_t n_bytes;     /* read so far */
    uint64_t credited_ns, first, through;
    struct shard_file_facts facts;
    struct err err;
    shard_checkpoint_done done;
    void *arg;
};

static void on_turn(uv_timer_t *timer);

struct shard_checkpoint *shard_checkpoint_new(const struct shard_checkpoint_config *config)
{
    struct shard_checkpoint *s = memory_alloc(sizeof *s);

    s->config = *config;
    uv_timer_init(config->loop, &s->timer);
    s->timer.data = s;
    s->work.data = s;
    return s;
}

void shard_checkpoint_follow(struct shard_checkpoint *s, struct shard_wal *log)
{
    s->log = log;
}

void shard_checkpoint_stop(struct shard_checkpoint *s)
{
    s->is_stopped = true;
    uv_close((uv_handle_t *)&s->timer, NULL);
}

static void drop(struct shard_checkpoint *s, enum snapshot_scan_end how) ON_SHARD
{
    if (!s->writer)
        return;
    if (!s->is_closed)
        shard_file_writer_discard(s->writer);
    shard_file_writer_end(s->writer, s->config.shard, how);
    s->writer = NULL;
}

void shard_checkpoint_free(struct shard_checkpoint *s)
{
    drop(s, SNAPSHOT_SCAN_DROPPED);
    free(s);
}

/* --- the end --- */

static void finish(struct shard_checkpoint *s) ON_SHARD
{
    if (s->is_stopped)
        return;
    s->state = DONE;
    uv_timer_stop(&s->timer);
    s->done(s->arg, &s->facts, &s->err);
}

/* --- SYNCING --- */

static void await_log(struct shard_checkpoint *s) ON_SHARD
{
    struct err err = { 0 };
    int status = s->log ? shard_wal_await(s->log, s->first, s->through, &err) : 0;

    if (status == -EAGAIN)
        return;
    s->err = err;
    s->err.status = status;
    finish(s);
}

/* --- CLOSING --- */

static void close_file(uv_work_t *work)
{
    struct shard_checkpoint *s = work->data;

    enter_pool();
    s->err.status = shard_file_writer_close(s->writer, s->through, &s->facts, &s->err);
}

static void on_file_closed(uv_work_t *work, int status)
{
    struct shard_checkpoint *s = work->data;

    (void)status;
    enter_shard();
    s->is_working = false;
    s->is_closed = true;
    if (s->err.status) {
        finish(s);
        return;
    }
    s->state = SYNCING;
    await_log(s);
}

/* The scan's end: all that rows may already have seen is in the log up to here. */
static void begin_close(struct shard_checkpoint *s) ON_SHARD
{
    s->state = CLOSING;
    s->is_working = true;
    s->through = s->log ? shard_wal_last(s->log) : 0;
    if (s->log)
        shard_wal_sync(s->log, s->through);
    if (uv_queue_work(s->config.loop, &s->work, close_file, on_file_closed))
        abort(); /* only for a NULL callback */
}

/* --- READING --- */

static void write_buffer(uv_work_t *work)
{
    struct shard_checkpoint *s = work->data;

    enter_pool();
    s->err.status = shard_file_writer_write(s->writer, s->writing, &s->err);
}

static void go_on(struct shard_checkpoint *s) ON_SHARD;

static void on_written(uv_work_t *work, int status)
{
    struct shard_checkpoint *s = work->data;

    (void)status;
    enter_shard();
    s->is_working = false;
    shard_file_writer_recycle(s->writer, s->writing);
    s->writing = NULL;
    if (s->err.status)
        finish(s);
    else
        go_on(s);
}

/* Whatever is full goes to the pool; behind the last one the file is closed. */
static void go_on(struct shard_checkpoint *s)
{
    if (s->is_working || s->is_stopped)
        return;
    s->writing = shard_file_writer_next(s->writer);
    if (s->writing) {
        s->is_working = true;
        if (uv_queue_work(s->config.loop, &s->work, write_buffer, on_written))
            abort(); /* only for a NULL callback */
    } else if (shard_file_writer_is_written(s->writer)) {
        begin_close(s);
    }
}

/* One slice, which costs what it has: a whole layer may be tens of megabytes. One with few bytes costs as many as any,
 * since it has looked at rows that did not change. False: there is no more to read now. */
static bool read_slice(struct shard_checkpoint *s) ON_SHARD
{
    const uint64_t before = shard_file_writer_read_bytes(s->writer);
    enum shard_file_writer_state state = shard_file_writer_fill(s->writer, s->config.shard);
    const uint64_t n_read = shard_file_writer_read_bytes(s->writer) - before,
                   n_bytes = n_read > SNAPSHOT_SCAN_BYTES ? n_read : SNAPSHOT_SCAN_BYTES;

    s->credit_bytes -= (int64_t)n_bytes;
    s->n_bytes += n_bytes;
    go_on(s);
    return state == SHARD_FILE_WRITER_MORE;
}

static void add_credit(struct shard_checkpoint *s)
{
    uint64_t now_ns = uv_hrtime();
    int64_t most = (int64_t)(s->config.bytes_per_s * BURST_MS / 1000);

    s->credit_bytes +=
        (int64_t)((double)s->config.bytes_per_s * (double)(now_ns - s->credited_ns) / 1e9);
    if (s->credit_bytes > most)
        s->credit_bytes = most;
    s->credited_ns = now_ns;
}

static void read_turn(struct shard_checkpoint *s) ON_SHARD
{
    bool is_limited = s->config.bytes_per_s && !s->hurries;
    uint64_t until_ns = uv_hrtime() + (s->hurries ? HURRY_NS : BUSY_NS);

    add_credit(s);
    if (is_limited && s->credit_bytes <= 0)
        return;
    while (read_slice(s) && !is_limited && uv_hrtime() < until_ns)
        ;
}

/* --- WAITING --- */

static void try_begin(struct shard_checkpoint *s) ON_SHARD
{
    struct err err = { 0 };
    int status;

    s->first = s->log ? shard_wal_last(s->log) : 0;
    status = shard_file_writer_begin(&s->file, s->config.shard, s->first, &s->writer, &err);
    if (status == -EAGAIN)
        return;
    if (status) {
        s->err = err;
        s->err.status = status;
        finish(s);
        return;
    }
    if (s->log)
        shard_wal_begin_segment(s->log);
    s->state = READING;
    s->credited_ns = uv_hrtime();
}

static void on_turn(uv_timer_t *timer)
{
    struct shard_checkpoint *s = timer->data;

    enter_shard();
    if (s->state == WAITING)
        try_begin(s);
    if (s->state == READING)
        read_turn(s);
    if (s->state == SYNCING)
        await_log(s);
}

void shard_checkpoint_begin(struct shard_checkpoint *s,
                            const struct shard_file_writer_config *config,
                            shard_checkpoint_done done, void *arg)
{
    s->state = WAITING;
    s->file = *config;
    if (!snapshot_scan_may_be_delta(s->config.shard))
        s->file.base = 0;
    s->writer = NULL;
    s->is_closed = false;
    s->credit_bytes = 0;
    s->facts = (struct shard_file_facts){ 0 };
    s->err = (struct err){ 0 };
    s->done = done;
    s->arg = arg;
    uv_timer_start(&s->timer, on_turn, 0, TURN_MS);
}

void shard_checkpoint_hurry(struct shard_checkpoint *s, bool hurries)
{
    s->hurries = hurries;
}

uint64_t shard_checkpoint_bytes(const struct shard_checkpoint *s)
{
    return s->n_bytes;
}

void shard_checkpoint_end(struct shard_checkpoint *s, enum snapshot_scan_end how,
                          uint64_t needed)
{
    drop(s, how);
    if (how == SNAPSHOT_SCAN_KEPT && s->log)
        shard_wal_checkpointed(s->log, s->first, needed);
    s->state = IDLE;
}
