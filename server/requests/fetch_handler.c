#include "server/requests/fetch_handler.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/memory.h"
#include "proto/message_replication.h"
#include "server/replication/audit.h"
#include "server/replication/catch_up.h"
#include "server/replication/record_ring.h"
#include "server/wal/wal_reader.h"

#define REPLY_SLACK_BYTES 65536u /* of a frame, for its head */
#define REPLY_HEAD_BYTES 1024u   /* of most; others grow */
#define DOUBT_MS 1000u           /* what cannot be read for so long is lost */
#define DOUBT_EVERY_MS 100u

/* A fetch that is not answered yet. */
struct waiting_fetch {
    struct connection *connection;       /* borrowed: f->connection */
    uint64_t request_id, next, until_ms; /* loop time */
    uint32_t max_bytes;
    struct reply_timing timing;
};

/* Records read from the log's segments, by libuv's pool. */
struct segment_job {
    uv_work_t work;
    bool is_running;
    struct wal_reader *reader; /* owned: goes on at `next`; NULL: none */
    uint64_t next;
    uint64_t first;  /* asked for */
    bool is_durable; /* that record: it has been written, if the log has it at all */
    size_t max_bytes;
    struct bytes records; /* owned */
    uint32_t n_records;
    struct err err;
};

struct fetch_handler {
    struct fetch_handler_config config;
    struct fetch_view view;
    uv_prepare_t prepare; /* active while a turn of the loop has brought records */
    const struct file_ops *files;
    char dir[WAL_PATH_MAX];
    struct record_ring ring;
    struct gate gate;
    struct catch_up catch_up; /* while the gate is open */
    bool is_slowing;          /* the log's reader knows */
    struct fetch_standby standby;
    enum { FETCH_OFF, FETCH_ON, FETCH_STOPPED } state;
    bool is_in_sync;
    bool begins;                   /* no connection has fetched since fetch_handler_begin() */
    struct connection *connection; /* borrowed: the standby's; NULL: none */
    uint64_t sent_through;         /* on it; none is sent twice */
    struct waiting_fetch waiting[FETCH_HANDLER_WAITING_MAX]; /* in their order */
    uint32_t n_waiting;
    struct segment_job job;
    struct audit_cursor audited;
    uint64_t audit_ms; /* loop time: the next one */
    uint64_t doubted_ms,
        read_ms; /* loop time: since when; and when it is read again; 0: all could be read */
    uint64_t log_written, log_whole, stored_bytes;
    uint64_t pin; /* UINT64_MAX: none */
    uint64_t pin_stored_bytes, pin_bytes_max;
    uint64_t mark,
        mark_stored_bytes; /* once it has this one, what was stored by then is behind it */
    bool was_full, has_moved;
    bool is_parked, hands_over; /* a switch */
};

static struct reply_queue *replies_of(const struct fetch_handler *f)
{
    return f->config.context->replies;
}

struct fetch_handler *fetch_handler_new(const struct fetch_handler_config *config)
{
    struct fetch_handler *f = memory_alloc(sizeof *f);

    f->config = *config;
    f->pin = UINT64_MAX;
    uv_prepare_init(config->context->loop, &f->prepare);
    f->prepare.data = f;
    return f;
}

void fetch_handler_free(struct fetch_handler *f)
{
    if (!f)
        return;
    assert(!f->job.is_running);
    wal_reader_free(f->job.reader);
    bytes_deinit(&f->job.records);
    record_ring_deinit(&f->ring);
    free(f);
}

void fetch_handler_log(struct fetch_handler *f, const struct file_ops *files, const char *dir,
                       uint64_t last)
{
    f->files = files;
    snprintf(f->dir, sizeof f->dir, "%s", dir);
    atomic_store(&f->view.appended, last);
}

void fetch_handler_lead(struct fetch_handler *f, uint64_t last)
{
    atomic_store(&f->view.appended, last);
}

const struct fetch_view *fetch_handler_view(const struct fetch_handler *f)
{
    return &f->view;
}

static uint64_t appended(const struct fetch_handler *f)
{
    return atomic_load_explicit(&f->view.appended, memory_order_relaxed);
}

/* --- what replies wait for --- */

static void publish_gate(struct fetch_handler *f)
{
    atomic_store(&f->view.received, f->gate.received);
    atomic_store(&f->view.durable, f->gate.durable);
    atomic_store(&f->view.applied, f->gate.applied);
    atomic_store(&f->view.held, gate_held(&f->gate));
    atomic_store(&f->view.closed_at, f->gate.closed_at);
    atomic_store(&f->view.caught_up_ms, f->gate.caught_up_ms);
    atomic_store(&f->view.is_closed, f->gate.mode != GATE_OPEN);
}

/* Once the gate is open, a claim says that the standby may not take over; once it is sealed, another psd serves. While
 * the gate waits, "in sync" may be claimed, though nobody has told this psd so yet. */
static uint64_t alone_until_ms(const struct fetch_handler *f)
{
    if (f->gate.mode == GATE_SEALED)
        return 0;
    if (!f->standby.takes_over || f->gate.mode != GATE_WAITS)
        return UINT64_MAX;
    return atomic_load(&f->view.sent_ms) + FETCH_HANDLER_ALONE_MS;
}

uint64_t fetch_handler_silent_ms(const struct fetch_view *view, uint64_t now_ms)
{
    const uint64_t until_ms = atomic_load(&view->alone_until_ms);

    return until_ms && now_ms > until_ms ? now_ms - until_ms + FETCH_HANDLER_ALONE_MS : 0;
}

/* What the standby has, or the gate, has changed. */
static void move_gate(struct fetch_handler *f) ON_SHARD
{
    struct reply_queue *replies = replies_of(f);
    const bool shows_all = reply_queue_shows_gone(replies) && reply_queue_is_current(replies);

    f->ring.keeps = f->gate.mode == GATE_WAITS;
    f->was_full = f->was_full || record_ring_is_full(&f->ring);
    publish_gate(f);
    reply_queue_set_standby(replies, gate_acknowledged(&f->gate));
    replies->alone_until_ms = alone_until_ms(f);
    atomic_store(&f->view.alone_until_ms, replies->alone_until_ms);
    f->has_moved = f->has_moved || (!shows_all && reply_queue_shows_gone(replies) &&
                                    reply_queue_is_current(replies));
    if (f->was_full && !fetch_handler_is_full(f)) {
        f->was_full = false;
        replies->is_full = false;
        f->config.on_space(f->config.owner);
    }
}

bool fetch_handler_has_moved(struct fetch_handler *f)
{
    const bool has_moved = f->has_moved;

    f->has_moved = false;
    return has_moved;
}

/* --- pushes wait for a standby that catches up --- */

static bool is_catching_up(const struct fetch_handler *f)
{
    return f->state == FETCH_ON && f->gate.mode == GATE_OPEN && f->gate.ack != TERMS_ACK_NO;
}

static void note_progress(struct fetch_handler *f) ON_SHARD
{
    const bool was_slowing = f->is_slowing;

    if (!is_catching_up(f) || !f->connection)
        return;
    catch_up_note(&f->catch_up, appended(f), f->gate.received, clock_mono_ms());
    f->is_slowing = was_slowing || f->catch_up.records_per_s;
    if (f->is_slowing && !was_slowing)
        log_line_info("shard %u: pushes are slowed down to %" PRIu64
                      " records/s until the standby, which is %" PRIu64
                      " records behind, has caught up",
                      f->config.context->shard_number, f->catch_up.records_per_s,
                      appended(f) - f->gate.received);
}

uint64_t fetch_handler_wait_ms(const struct fetch_handler *f, uint64_t now_ms)
{
    return is_catching_up(f) && f->connection
               ? catch_up_wait_ms(&f->catch_up, appended(f), now_ms)
               : 0;
}

bool fetch_handler_slows(const struct fetch_handler *f, uint64_t *ret_behind,
                         uint64_t *ret_records_per_s)
{
    if (!is_catching_up(f) || !f->connection || !f->catch_up.records_per_s)
        return false;
    *ret_behind = appended(f) - f->gate.received;
    *ret_records_per_s = f->catch_up.records_per_s;
    return true;
}

/* A standby that follows, or is out of sync again, catches up from here on. */
static void begin_catching_up(struct fetch_handler *f) ON_SHARD
{
    catch_up_begin(&f->catch_up, appended(f), f->gate.received, clock_mono_ms());
    f->is_slowing = false;
}

/* --- pins --- */

uint64_t fetch_handler_pin(const struct fetch_handler *f)
{
    return f->pin;
}

static void begin_counting(struct fetch_handler *f, uint64_t stored_bytes)
{
    f->pin_stored_bytes = stored_bytes;
    f->mark = appended(f);
    f->mark_stored_bytes = f->stored_bytes;
}

void fetch_handler_hold(struct fetch_handler *f, uint64_t number, uint64_t bytes_max)
{
    f->pin = number;
    atomic_store(&f->view.dropped_ms, 0);
    f->pin_bytes_max = bytes_max;
    begin_counting(f, f->stored_bytes);
}

/* Records that the standby has on its disk nobody will ask for again. One for which the log kept no more, and which has
 * followed all the same, has to copy no more. */
static void move_pin(struct fetch_handler *f) ON_SHARD
{
    const bool has_all = f->gate.received == appended(f);

    if (f->pin == UINT64_MAX && has_all && atomic_load(&f->view.dropped_ms))
        fetch_handler_hold(f, appended(f) + 1, f->pin_bytes_max);
    if (f->pin == UINT64_MAX || f->gate.durable + 1 <= f->pin)
        return;
    f->pin = f->gate.durable + 1;
    if (has_all)
        begin_counting(f, f->stored_bytes);
    else if (f->pin > f->mark) /* under a steady load it never has all */
        begin_counting(f, f->mark_stored_bytes);
}

void fetch_handler_stored(struct fetch_handler *f, uint64_t written, uint64_t whole,
                          uint64_t stored_bytes)
{
    f->log_written = written;
    f->log_whole = whole;
    f->stored_bytes = stored_bytes;
    if (f->pin == UINT64_MAX || stored_bytes - f->pin_stored_bytes <= f->pin_bytes_max)
        return;
    f->pin = UINT64_MAX;
    atomic_store(&f->view.dropped_ms, clock_mono_ms());
    log_line_warn("shard %u: the log keeps no more for the standby, which is more than "
                  "--standby-log-max behind: it has to copy again",
                  f->config.context->shard_number);
}

/* --- answers --- */

static struct waiting_fetch take_first(struct fetch_handler *f)
{
    struct waiting_fetch first = f->waiting[0];

    f->n_waiting--;
    memmove(f->waiting, f->waiting + 1, f->n_waiting * sizeof *f->waiting);
    return first;
}

static void complete(struct fetch_handler *f, const struct waiting_fetch *w,
                     struct fetch_reply *reply) ON_SHARD
{
    reply->term = f->standby.term;
    reply->appended = appended(f);
    reply->durable = f->log_whole < reply->appended ? f->log_whole : reply->appended;
    reply->sent_ms = clock_mono_ms();
    reply->hands_over = f->hands_over && !reply->status;
    reply->in_sync = f->is_in_sync || reply->hands_over; /* it has all, and stays so */
    histogram_record(&w->timing.requests->latency_ns, uv_hrtime() - w->timing.start_ns);
    w->timing.requests->n_refused += reply->status != 0;
}

/* The frame, or why there is none. */
static void send_frame(const struct waiting_fetch *w, struct bytes *frame, int status) ON_SHARD
{
    if (status)
        channel_loop_release(w->connection->channel.channels, frame);
    else
        status = connection_send(w->connection, frame);
    if (status)
        connection_fail(w->connection, status);
}

static void send_reply(struct fetch_handler *f, const struct waiting_fetch *w,
                       struct fetch_reply *reply) ON_SHARD
{
    struct channel_loop *channels = w->connection->channel.channels;
    struct bytes frame = { 0 };
    int status;

    complete(f, w, reply);
    /* From the pool: new memory for each reply costs the shard more than the records in it. */
    status = channel_loop_acquire(channels, REPLY_HEAD_BYTES + reply->record_bytes, &frame);
    if (!status)
        status = message_write_fetch_reply(&frame, w->request_id, reply);
    send_frame(w, &frame, status);
}

/* Some rows as they are now, that is, at the newest record. */
static void add_audit(struct fetch_handler *f, struct fetch_reply *reply) ON_SHARD
{
    const uint64_t now_ms = uv_now(f->config.context->loop);

    if (now_ms < f->audit_ms)
        return;
    f->audit_ms = now_ms + AUDIT_EVERY_MS;
    reply->audit_bytes =
        (uint32_t)audit_take(f->config.context->shard, appended(f), &f->audited, reply->audit);
}

static void send_records(struct fetch_handler *f, uint64_t first, const uint8_t *records,
                         size_t n_bytes, uint32_t n_records) ON_SHARD
{
    struct waiting_fetch w = take_first(f);
    struct fetch_reply reply = {
        .first = first, .n_records = n_records, .records = records, .record_bytes = n_bytes
    };

    if (n_records)
        f->sent_through = first + n_records - 1;
    add_audit(f, &reply);
    send_reply(f, &w, &reply);
}

/* A chunk of the ring: its buffer becomes the frame. */
static void send_taken(struct fetch_handler *f, struct bytes *records, uint32_t crc,
                       uint32_t n_records) ON_SHARD
{
    struct waiting_fetch w = take_first(f);
    struct fetch_reply reply = { .first = w.next, .n_records = n_records };

    f->sent_through = w.next + n_records - 1;
    add_audit(f, &reply);
    complete(f, &w, &reply);
    send_frame(&w, records,
               message_write_fetch_reply_around(records, crc, w.request_id, &reply));
}

static void refuse_first(struct fetch_handler *f, int status, const char *sentence) ON_SHARD
{
    struct waiting_fetch w = take_first(f);
    struct fetch_reply reply = { .status = status };

    snprintf(reply.text, sizeof reply.text, "%.*s", (int)sizeof reply.text - 1, sentence);
    send_reply(f, &w, &reply);
}

/* --- from the log's segments --- */

static void end_reading(struct segment_job *job)
{
    wal_reader_free(job->reader);
    job->reader = NULL;
}

/* Appends the record, as it stands in a block. */
static int add_record(struct segment_job *job, const struct wal_record *record)
{
    const size_t n_bytes = wal_record_bytes(record);
    uint8_t *dst = bytes_reserve(&job->records, n_bytes);
    uint32_t unused = 0;

    if (!dst)
        return err_set(&job->err, -ENOMEM, "no memory for records");
    memset(dst, 0, n_bytes);
    wal_record_encode(dst, record);
    (void)wal_record_seal(dst, &unused);
    bytes_commit(&job->records, n_bytes);
    job->n_records++;
    job->next = record->number + 1;
    return 0;
}

/* The end of what is there. A log that is being written ends anywhere; it may have lost records, too, which only a
 * checkpoint has: then it may end before them as if they were still to come. */
static int classify_end(struct segment_job *job, bool sees_all)
{
    const struct wal_end *end = wal_reader_end(job->reader);

    if (sees_all && job->is_durable && end->verdict == WAL_CLEAN)
        return err_set(&job->err, -ENODATA,
                       "the log does not have record %" PRIu64 ": a checkpoint has it",
                       job->next);
    if (end->verdict != WAL_GAP && end->verdict != WAL_DAMAGED)
        return 0;
    return err_set(&job->err, -ENODATA, "the log does not have record %" PRIu64 ": %.180s",
                   job->next, end->text);
}

static void read_segments(uv_work_t *work)
{
    struct fetch_handler *f = work->data;
    struct segment_job *job = &f->job;
    const struct wal_record *record = NULL;
    bool is_new; /* else segments may have begun that this reader does not know */
    int status = 0;

    enter_pool();
    if (job->reader && job->next != job->first)
        end_reading(job);
    job->next = job->first;
    is_new = !job->reader;
    if (is_new)
        status = wal_reader_open(f->files, f->dir, NULL, job->first, &job->reader, &job->err);
    if (status)
        job->reader = NULL;
    do { /* one record at least, whatever the standby's limit */
        if (!status)
            status = wal_reader_next(job->reader, &record, &job->err);
        if (status || !record)
            break;
        status = add_record(job, record);
    } while (!status && bytes_len(&job->records) < job->max_bytes);
    if (!status && !record && !job->n_records)
        status = classify_end(job, is_new);
    if (status || !record)
        end_reading(job);
    job->err.status = status;
}

static void answer_all(struct fetch_handler *f) ON_SHARD;

/* A block that is being written looks like a damaged one with whole ones behind it, if the writer comes that far while
 * it is read. So it is read again before it counts as lost. */
static bool is_in_doubt(struct fetch_handler *f) ON_SHARD
{
    const uint64_t now_ms = uv_now(f->config.context->loop);

    if (f->job.err.status != -ENODATA) {
        f->doubted_ms = f->read_ms = 0;
    } else if (!f->doubted_ms || now_ms - f->doubted_ms < DOUBT_MS) {
        f->doubted_ms = f->doubted_ms ? f->doubted_ms : now_ms;
        f->read_ms = now_ms + DOUBT_EVERY_MS;
    }
    atomic_store(&f->view.doubted, f->doubted_ms ? f->job.next : 0);
    return f->read_ms > now_ms;
}

static void note_lost(struct fetch_handler *f)
{
    if (f->job.err.status == -ENODATA && f->job.next > atomic_load(&f->view.lost_through))
        atomic_store(&f->view.lost_through, f->job.next);
}

static void on_read(uv_work_t *work, int canceled)
{
    struct fetch_handler *f = work->data;
    struct segment_job *job = &f->job;
    const bool is_wanted = f->n_waiting && f->waiting[0].next == job->first;
    struct bytes records = job->records;

    (void)canceled;
    enter_shard();
    job->is_running = false;
    job->records =
        (struct bytes){ 0 }; /* the pool's again as soon as the next one is asked for */
    if (is_in_doubt(f)) {
        bytes_deinit(&records);
        return; /* the tick tries again */
    }
    note_lost(f);
    if (job->err.status && is_wanted) {
        refuse_first(f, job->err.status, job->err.text);
    } else if (job->n_records && is_wanted) {
        send_records(f, job->first, bytes_front(&records), bytes_len(&records), job->n_records);
        answer_all(f);
    } /* else it is not written yet: the tick tries again */
    bytes_deinit(&records);
}

static void start_reading(struct fetch_handler *f, const struct waiting_fetch *w) ON_SHARD
{
    struct segment_job *job = &f->job;

    if (job->is_running || !f->files || uv_now(f->config.context->loop) < f->read_ms)
        return;
    job->first = w->next;
    job->is_durable = w->next <= f->log_written;
    job->max_bytes = w->max_bytes;
    job->n_records = 0;
    job->err = (struct err){ 0 };
    job->work.data = f;
    job->is_running = true;
    if (uv_queue_work(f->config.context->loop, &job->work, read_segments, on_read))
        abort(); /* only for a NULL callback */
}

/* --- from the ring --- */

static void send_from_ring(struct fetch_handler *f) ON_SHARD
{
    const struct waiting_fetch *w = &f->waiting[0];
    struct record_ring_part part;
    struct bytes taken;
    uint32_t crc, n_records = record_ring_take(&f->ring, w->next, w->max_bytes, &taken, &crc);

    if (n_records) {
        send_taken(f, &taken, crc, n_records);
        return;
    }
    part = record_ring_read(&f->ring, w->next, w->max_bytes);
    send_records(f, w->next, part.records, part.n_bytes, part.n_records);
}

/* --- the order of fetches --- */

/* False: the first one waits. */
static bool answer_first(struct fetch_handler *f) ON_SHARD
{
    const struct waiting_fetch *w = &f->waiting[0];

    if (w->next > appended(f)) {
        if (uv_now(f->config.context->loop) < w->until_ms)
            return false;
        send_records(f, w->next, NULL, 0, 0);
        return true;
    }
    if (!record_ring_has(&f->ring, w->next)) {
        start_reading(f, w);
        return false;
    }
    send_from_ring(f);
    return true;
}

/* The next one goes on where the one before it has ended. */
static void answer_all(struct fetch_handler *f)
{
    while (f->n_waiting && f->hands_over)
        send_records(f, f->waiting[0].next, NULL, 0, 0);
    while (f->n_waiting && f->state == FETCH_ON) {
        if (f->waiting[0].next <= f->sent_through)
            f->waiting[0].next = f->sent_through + 1;
        if (!answer_first(f))
            return;
    }
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct fetch_handler *f = prepare->data;

    enter_shard();
    uv_prepare_stop(prepare);
    answer_all(f);
}

/* --- for the log --- */

bool fetch_handler_is_full(const struct fetch_handler *f)
{
    return f->is_parked || record_ring_is_full(&f->ring);
}

bool fetch_handler_describe_full(const struct fetch_handler *f, struct stats_wait *ret)
{
    if (!fetch_handler_is_full(f))
        return false;
    snprintf(ret->what, sizeof ret->what, "%s", f->is_parked ? "switch" : "standby behind");
    if (f->hands_over)
        snprintf(ret->why, sizeof ret->why, "this psd hands over to standby %.60s",
                 f->standby.name);
    else if (f->is_parked)
        snprintf(ret->why, sizeof ret->why,
                 "they wait until standby %.60s has all that is acknowledged, at most 2 s",
                 f->standby.name);
    else
        snprintf(ret->why, sizeof ret->why,
                 "standby %.63s has not acknowledged the newest %u MB: they go on after "
                 "--standby-patience",
                 f->standby.name, (unsigned)(f->ring.held_bytes / 1000000));
    return true;
}

void fetch_handler_append(struct fetch_handler *f, const struct wal_record *record)
{
    if (f->state != FETCH_ON)
        return; /* the shard stops */
    atomic_store_explicit(&f->view.appended, record->number, memory_order_relaxed);
    record_ring_append(&f->ring, record);
    f->was_full = f->was_full || fetch_handler_is_full(f);
    if (record->event.type == SHARD_EVENT_GONE)
        reply_queue_note_gone(replies_of(f), record->number);
    if (f->n_waiting)
        uv_prepare_start(&f->prepare, on_prepare);
}

/* --- orders --- */

void fetch_handler_begin(struct fetch_handler *f, const struct fetch_standby *standby,
                         uint64_t last)
{
    if (f->state == FETCH_STOPPED)
        return;
    if (f->state == FETCH_ON)
        fetch_handler_end(f);
    f->state = FETCH_ON;
    f->standby = *standby;
    f->begins = true;
    atomic_store(&f->view.appended, last);
    f->gate.ack = standby->ack;
    gate_begin(&f->gate, standby->keep);
    begin_catching_up(f);
    record_ring_init(&f->ring, &f->config.context->channels->pool, f->config.ring_bytes, last);
    fetch_handler_hold(f, standby->keep + 1, standby->pin_bytes_max);
    move_gate(f);
}

void fetch_handler_end(struct fetch_handler *f)
{
    struct connection *c = f->connection;

    if (f->state != FETCH_ON)
        return;
    f->n_waiting = 0;
    f->connection = NULL;
    f->begins = false;
    atomic_store(&f->view.is_connected, false);
    f->state = FETCH_OFF;
    record_ring_deinit(&f->ring);
    uv_prepare_stop(&f->prepare);
    f->is_in_sync = false;
    gate_open(&f->gate);
    move_gate(f);
    if (c)
        connection_close(c);
}

void fetch_handler_close_gate(struct fetch_handler *f)
{
    gate_close(&f->gate, appended(f));
    move_gate(f);
}

void fetch_handler_set_in_sync(struct fetch_handler *f)
{
    f->is_in_sync = f->gate.mode == GATE_WAITS;
    move_gate(f);
}

void fetch_handler_open_gate(struct fetch_handler *f)
{
    f->is_in_sync = false;
    gate_open(&f->gate);
    begin_catching_up(f);
    move_gate(f);
}

void fetch_handler_seal(struct fetch_handler *f)
{
    f->is_in_sync = false;
    gate_seal(&f->gate);
    move_gate(f);
}

/* --- a switch --- */

void fetch_handler_park(struct fetch_handler *f, bool is_still, bool needs_disk)
{
    const uint64_t has = needs_disk ? f->gate.durable : f->gate.received;

    f->is_parked = f->was_full = true;
    atomic_store(&f->view.is_drained,
                 is_still && f->connection && has == appended(f) && !replies_of(f)->n_waiting);
}

void fetch_handler_unpark(struct fetch_handler *f)
{
    f->is_parked = f->hands_over; /* what is handed over stays so */
    atomic_store(&f->view.is_drained, false);
    move_gate(f);
}

void fetch_handler_hand_over(struct fetch_handler *f)
{
    f->is_parked = f->was_full = f->hands_over = true;
    fetch_handler_seal(f);
    answer_all(f);
}

/* --- requests --- */

/* A sentence if this connection may not fetch. */
static int check_standby(struct fetch_handler *f, const struct connection *c,
                         const struct fetch *asked, struct err *err) ON_SHARD
{
    if (strcmp(c->hello.role, "standby") != 0)
        return err_set(err, -EPERM, "role %.20s: fetches nothing", c->hello.role);
    if (f->gate.mode == GATE_SEALED && !(f->hands_over && c == f->connection))
        return err_set(err, PS_EMOVED, "another psd is the primary");
    if (f->state != FETCH_ON || (f->connection != c && !f->begins))
        return err_set(err, -ESTALE, "this standby does not follow: FOLLOW first");
    if (strcmp(c->hello.name, f->standby.name) != 0)
        return err_set(err, -EBUSY, "%.63s follows, and %.63s does not", f->standby.name,
                       c->hello.name);
    if (asked->term > f->standby.term) {
        atomic_store(&f->view.greater_term, asked->term);
        gate_seal(&f->gate);
        move_gate(f);
        return err_set(err, PS_EMOVED, "term %" PRIu64 " is over: %" PRIu64 " has begun",
                       f->standby.term, asked->term);
    }
    if (asked->term < f->standby.term)
        return err_set(err, -ESTALE,
                       "term %" PRIu64 " is over, this is term %" PRIu64 ": FOLLOW first",
                       asked->term, f->standby.term);
    if (asked->differs[0]) {
        atomic_fetch_add(&f->view.n_differences, 1);
        log_line_error("shard %" PRIu32 ": standby %.63s copies anew, as it found that %.200s",
                       f->config.context->shard_number, c->hello.name, asked->differs);
        return err_set(err, PS_ECORRUPT, "a standby whose rows differ copies anew");
    }
    return 0;
}

/* It is the standby's from now on, and no reader's: no --idle-timeout, no small slices for it. */
static void take_connection(struct fetch_handler *f, struct connection *c) ON_SHARD
{
    f->connection = c;
    f->begins = false;
    channel_set_low_priority(&c->channel, false);
    connection_entry_set(c->entry, ENTRY_JOINED);
    atomic_store(&f->view.is_connected, true);
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static struct waiting_fetch waiting_of(const struct fetch_handler *f, const struct request *r,
                                       const struct fetch *asked) ON_SHARD
{
    const struct request_context *x = f->config.context;

    return (struct waiting_fetch){
        .connection = r->connection,
        .request_id = r->header->request_id,
        .next = asked->next,
        .until_ms = uv_now(x->loop) + least(asked->wait_ms, FETCH_HANDLER_WAIT_MS_MAX),
        .max_bytes = least(asked->max_bytes ? asked->max_bytes : FETCH_HANDLER_BYTES_DEFAULT,
                           x->frame_max_bytes - REPLY_SLACK_BYTES),
        .timing = { &x->requests[FRAME_FETCH], r->start_ns }
    };
}

int fetch_handler_receive(struct fetch_handler *f, struct request *r)
{
    struct waiting_fetch w;
    struct fetch asked;
    struct err err = { 0 };
    int status = message_read_fetch(r->header, r->head, &asked);

    if (status)
        return status;
    w = waiting_of(f, r, &asked);
    status = check_standby(f, r->connection, &asked, &err);
    if (status) {
        struct fetch_reply reply = { .status = status };

        memcpy(reply.text, err.text, sizeof reply.text);
        request_context_log(f->config.context, r->connection, "fetch", status, err.text);
        send_reply(f, &w, &reply);
        return 0;
    }
    if (f->connection == r->connection && f->n_waiting == FETCH_HANDLER_WAITING_MAX)
        return PS_EPROTO;
    status = gate_fetch(&f->gate, &asked, appended(f), clock_mono_ms());
    if (status)
        return status;
    if (f->connection != r->connection) {
        take_connection(f, r->connection);
        f->sent_through = asked.next - 1;
    }
    atomic_store(&f->view.heard_ms, clock_mono_ms());
    if (asked.heard_ms <= clock_mono_ms()) /* no word has been sent later */
        atomic_store(&f->view.sent_ms, asked.heard_ms);
    record_ring_release(&f->ring, f->gate.received);
    move_pin(f);
    move_gate(f);
    note_progress(f);
    f->waiting[f->n_waiting++] = w;
    answer_all(f);
    /* The first one has nothing to bring, and the standby may soon have more to tell. */
    if (f->n_waiting == FETCH_HANDLER_WAITING_MAX && f->waiting[0].next > appended(f))
        send_records(f, f->waiting[0].next, NULL, 0, 0);
    return 0;
}

void fetch_handler_drop(struct fetch_handler *f, const struct connection *c)
{
    if (f->connection != c)
        return;
    f->connection = NULL;
    f->n_waiting = 0;
    atomic_store(&f->view.is_connected, false);
}

void fetch_handler_tick(struct fetch_handler *f)
{
    note_progress(f);
    answer_all(f);
}

void fetch_handler_stop(struct fetch_handler *f)
{
    if (f->state == FETCH_STOPPED)
        return;
    while (f->n_waiting)
        refuse_first(f, PS_ESTOPPING, status_text(PS_ESTOPPING));
    f->state = FETCH_STOPPED;
    record_ring_release(&f->ring, UINT64_MAX); /* while the loop's buffers are still there */
    uv_close((uv_handle_t *)&f->prepare, NULL);
}
