#include "server/shard_wal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"

struct shard_wal {
    struct shard_wal_config config;
    struct wal_thread *thread;  /* owned */
    struct shard_events events; /* the shard's */
    uint64_t last;              /* number of the last event's record */
    enum wal_writer_state reported;
    char failure[200];     /* its sentence */
    int reported_truncate; /* status of the last truncation */
    bool reported_gap;     /* of records that no checkpoint holds */
    uint32_t shard;        /* its number, for the log */
    struct wal_bound bound;
    uint64_t held_ms, noted_ms; /* of no push at all, for the disk's sake; until noted_ms */
    bool is_full_of_disk, is_paced_by_disk; /* else a standby is why replies say so */
    struct push_waits waits;                /* as the last tick saw them */
    uint64_t bound_over_ns; /* of waits.over_ns, what was there when the bound was told */
    bool waits_for_standby; /* pushes did, at the last tick */
    struct fetch_handler *fetches; /* borrowed; NULL: no standby follows */
    uint64_t pin, unpinned; /* a truncation waits below `pin`; what it would have been, or 0 */
};

/* --- the shard's events, as records --- */

/* Before the flags change, and to have held_ms as of now. */
static void note_held(struct shard_wal *l, uint64_t now_ms) ON_SHARD
{
    const struct reply_queue *replies = l->config.replies;

    if (l->noted_ms && ((replies->is_full && l->is_full_of_disk) ||
                        (replies->is_paced && l->is_paced_by_disk)))
        l->held_ms += now_ms - l->noted_ms;
    l->noted_ms = now_ms;
}

static int on_reserve(void *owner, const struct shard_event *event)
{
    const struct wal_record record = { .event = *event };
    struct shard_wal *l = owner;
    bool is_full_of_disk;
    int status;

    enter_shard();
    status = wal_thread_reserve(l->thread, wal_record_bytes(&record));
    is_full_of_disk = status == -EAGAIN;
    if (l->fetches && fetch_handler_is_full(l->fetches))
        status = -EAGAIN;
    /* The state that the reservation saw: the writer may have made space since. Its notification, which ends
     * the waiting, is still to come. */
    if (status == -EAGAIN && !l->config.replies->is_full) {
        note_held(l, clock_mono_ms());
        l->config.replies->is_full = true;
        l->is_full_of_disk = is_full_of_disk;
        l->config.replies->full_since_ms = clock_mono_ms();
    }
    return status;
}

/* One record of 60 MB makes for a wait of a second, and may be on the disk long before. */
#define TURN_MS_MAX 10u

/* For the disk, or for a standby that catches up. A wait that goes on may be for the other one from here on. */
static uint64_t push_wait_ms(struct shard_wal *l, uint64_t now_ms) ON_SHARD
{
    const uint64_t disk_ms = wal_thread_wait_ms(l->thread, now_ms);
    const uint64_t standby_ms = l->fetches ? fetch_handler_wait_ms(l->fetches, now_ms) : 0;

    note_held(l, now_ms);
    l->is_paced_by_disk = disk_ms > 0;
    return standby_ms > disk_ms ? standby_ms : disk_ms;
}

static uint64_t turn_ms(uint64_t wait_ms)
{
    return wait_ms < TURN_MS_MAX ? wait_ms : TURN_MS_MAX;
}

/* A moment is over: do pushes go on? */
static void on_turn(uv_timer_t *timer)
{
    struct shard_wal *l = timer->data;
    uint64_t wait_ms;

    enter_shard();
    wait_ms = push_wait_ms(l, clock_mono_ms());
    if (wait_ms && uv_timer_start(timer, on_turn, turn_ms(wait_ms), 0) == 0)
        return;
    l->config.replies->is_paced = false;
    l->config.on_space(l->config.owner);
}

/* While the disk, or a standby, is slower than pushes come, the next one waits for its turn. */
static void pace_pushes(struct shard_wal *l, uint64_t now_ms) ON_SHARD
{
    uint64_t wait_ms;

    if (l->config.replies->is_paced || !l->config.timer)
        return;
    wait_ms = push_wait_ms(l, now_ms);
    if (!wait_ms)
        return;
    l->config.replies->is_paced =
        uv_timer_start(l->config.timer, on_turn, turn_ms(wait_ms), 0) == 0;
}

static void on_event(void *owner, const struct shard_event *event)
{
    struct wal_record record = { .unix_ms = clock_unix_ms(), .event = *event };
    struct shard_wal *l = owner;
    uint64_t now_ms = clock_mono_ms();

    enter_shard();
    l->last = wal_thread_append(l->thread, &record, now_ms);
    reply_queue_note(l->config.replies, l->last);
    if (l->fetches) {
        record.number = l->last;
        fetch_handler_append(l->fetches, &record);
    }
    pace_pushes(l, now_ms);
}

/* --- notifications of the writer --- */

/* One line when it begins and one when it ends; /healthz and /stats show it meanwhile. */
static void report_state(struct shard_wal *l, const struct wal_progress *progress)
{
    if (progress->state == l->reported)
        return;
    l->reported = progress->state;
    snprintf(l->failure, sizeof l->failure, "%.199s",
             progress->state == WAL_WRITER_FAILED ? progress->err.text : "");
    if (progress->state == WAL_WRITER_FAILED)
        log_line_error("the write-ahead log cannot be written: %s; tried again every second",
                       progress->err.text);
    else
        log_line_info("the write-ahead log is written again");
}

static void report_truncate(struct shard_wal *l, const struct err *err)
{
    if (err->status && err->status != l->reported_truncate)
        log_line_error("the write-ahead log grows, as segments that no start needs "
                       "cannot be removed: %s",
                       err->text);
    l->reported_truncate = err->status;
}

static void report_gap(struct shard_wal *l, const struct wal_thread_view *view)
{
    bool lacks = view->lost_first != 0;

    if (lacks && !l->reported_gap)
        log_line_error(
            "the write-ahead log lacks records from %" PRIu64
            " on: psd goes on, but a crash loses all that came since, until the next "
            "checkpoint is written",
            view->lost_first);
    l->reported_gap = lacks;
}

static double mb(uint64_t n_bytes)
{
    return (double)n_bytes / 1e6;
}

/* What the disk takes, and what would be needed. */
static void put_rates(const struct shard_wal *l, uint64_t disk_bytes_per_s,
                      char ret[static 120]) ON_SHARD
{
    struct wal_bound_rates r;

    if (wal_bound_rates(&l->bound, &r))
        snprintf(ret, 120,
                 "for %.1f s of the last %.1f s; the disk takes %.1f MB/s, %s %.1f MB/s are "
                 "needed",
                 (double)r.held_ms / 1e3, (double)r.ms / 1e3, mb(r.bytes_per_s),
                 r.is_least ? "more than" : "about", mb(r.needed_bytes_per_s));
    else
        snprintf(ret, 120, "for less than a second; the disk takes %.1f MB/s",
                 mb(disk_bytes_per_s));
}

static enum wal_bound_change tick_bound(struct shard_wal *l, const struct wal_thread_view *view,
                                        uint64_t now_ms) ON_SHARD
{
    const struct push_waits *waits = &l->config.replies->push_waits;
    const bool is_standby = l->fetches && (fetch_handler_wait_ms(l->fetches, now_ms) ||
                                           fetch_handler_is_full(l->fetches));
    /* A disk that fails is another matter, with lines of its own, and so is a standby: also for waits that have ended
     * since the last tick. */
    const bool is_bound = view->progress.state == WAL_WRITER_OK && !is_standby &&
                          !l->waits_for_standby &&
                          (waits->n_now || waits->n_over != l->waits.n_over);
    struct wal_bound_sample now = { .ms = now_ms,
                                    .stored_bytes = view->progress.stored_bytes,
                                    .disk_bytes_per_s = view->progress.disk_bytes_per_s };

    l->waits_for_standby = is_standby;
    note_held(l, now_ms);
    now.held_ms = l->held_ms;
    return wal_bound_tick(&l->bound, &now,
                          is_bound ? WAL_BOUND_PUSHES_WAIT : WAL_BOUND_NO_PUSH_WAITS);
}

/* One line when pushes begin to wait for the disk and one when they wait no more. */
static void report_bound(struct shard_wal *l, const struct wal_thread_view *view) ON_SHARD
{
    const struct push_waits *waits = &l->config.replies->push_waits;
    char rates[120];

    switch (tick_bound(l, view, clock_mono_ms())) {
    case WAL_BOUND_BEGAN:
        l->bound_over_ns = l->waits.over_ns;
        put_rates(l, view->progress.disk_bytes_per_s, rates);
        log_line_warn("shard %u: pushes wait for the write-ahead log's disk: %s", l->shard,
                      rates);
        break;
    case WAL_BOUND_ENDED:
        log_line_info(
            "shard %u: pushes do not wait for the write-ahead log's disk any more; they "
            "did for %.1f s, %.1f s of waiting in all",
            l->shard, (double)(l->bound.last_ms - l->bound.since_ms) / 1e3,
            (double)(waits->over_ns - l->bound_over_ns) / 1e9);
        break;
    case WAL_BOUND_UNCHANGED:
        break;
    }
    l->waits = *waits;
}

/* Why pushes wait, if it is because of the standby. */
static bool is_standby_bound(const struct shard_wal *l, struct stats_wait *ret) ON_SHARD
{
    uint64_t behind, records_per_s;

    if (!l->fetches || !fetch_handler_slows(l->fetches, &behind, &records_per_s))
        return false;
    snprintf(ret->what, sizeof ret->what, "standby that catches up");
    snprintf(ret->why, sizeof ret->why,
             "it is %" PRIu64
             " records behind, and slower than pushes came: they are held to %" PRIu64
             " records/s until it is in sync",
             behind, records_per_s);
    ret->since_unix_ms = clock_unix_ms();
    return true;
}

bool shard_wal_is_bound(struct shard_wal *l, struct stats_wait *ret)
{
    struct wal_thread_view view;
    char rates[120];

    if (is_standby_bound(l, ret))
        return true;
    wal_thread_view(l->thread, &view);
    if (!l->bound.is_on || !view.progress.disk_bytes_per_s)
        return false;
    snprintf(ret->what, sizeof ret->what, "write-ahead log's disk");
    put_rates(l, view.progress.disk_bytes_per_s, rates);
    snprintf(ret->why, sizeof ret->why, "pushes waited %s; %" PRIu64 " wait now", rates,
             l->config.replies->push_waits.n_now);
    ret->since_unix_ms = clock_unix_ms() - (clock_mono_ms() - l->bound.since_ms);
    return true;
}

static void on_progress(void *owner)
{
    struct shard_wal *l = owner;
    struct wal_thread_view view;

    enter_shard();
    wal_thread_view(l->thread, &view);
    report_state(l, &view.progress);
    report_truncate(l, &view.truncate_err);
    if (l->is_full_of_disk && view.state != WAL_QUEUE_FULL) {
        note_held(l, clock_mono_ms());
        l->is_full_of_disk = false; /* if a standby goes on to be why */
    }
    if (l->config.replies->is_full && view.state != WAL_QUEUE_FULL &&
        !(l->fetches && fetch_handler_is_full(l->fetches))) {
        l->config.replies->is_full = false;
        l->config.on_space(l->config.owner);
    }
    reply_queue_release(l->config.replies, view.acknowledged);
    if (l->config.on_progress)
        l->config.on_progress(l->config.owner);
}

/* --- for the shard's thread --- */

int shard_wal_open(const struct shard_wal_config *config, const struct wal_end *end,
                   struct shard_wal **ret, struct err *err)
{
    struct shard_wal *l = memory_alloc(sizeof *l);
    struct wal_thread_config thread = { .writer = *config->writer,
                                        .max_bytes = config->queue_max_bytes,
                                        .mailbox = config->mailbox,
                                        .on_progress = on_progress,
                                        .owner = l };
    int status = wal_thread_start(&thread, end, &l->thread, err);

    if (status) {
        free(l);
        return status;
    }
    l->config = *config;
    l->pin = UINT64_MAX;
    l->shard = config->writer->identity.shard;
    if (config->timer)
        config->timer->data = l;
    reply_queue_note(config->replies, end->last);
    /* Unless replies wait for the disk, replies of all that is appended may be sent. */
    reply_queue_release(config->replies,
                        config->writer->durability == WAL_FSYNC ? end->last : UINT64_MAX);
    l->last = end->last;
    l->events = (struct shard_events){ l, on_reserve, on_event };
    if (!config->follows)
        shard_set_events(config->shard, &l->events);
    *ret = l;
    return 0;
}

/* --- a standby's --- */

int shard_wal_reserve_copy(struct shard_wal *l, size_t n_bytes)
{
    return l->reported == WAL_WRITER_FAILED ? -EAGAIN : wal_thread_reserve(l->thread, n_bytes);
}

uint64_t shard_wal_copy(struct shard_wal *l, const struct wal_record *record)
{
    l->last = wal_thread_append(l->thread, record, clock_mono_ms());
    reply_queue_note(l->config.replies, l->last);
    return l->last;
}

void shard_wal_lead(struct shard_wal *l)
{
    shard_set_events(l->config.shard, &l->events);
}

uint64_t shard_wal_durable(const struct shard_wal *l)
{
    struct wal_thread_view view;

    wal_thread_view(l->thread, &view);
    return view.progress.durable;
}

uint64_t shard_wal_whole(const struct shard_wal *l)
{
    struct wal_thread_view view;

    wal_thread_view(l->thread, &view);
    return view.whole;
}

const char *shard_wal_failure(const struct shard_wal *l)
{
    return l->failure;
}

void shard_wal_begin_segment(struct shard_wal *l)
{
    wal_thread_begin_segment(l->thread);
}

uint64_t shard_wal_last(const struct shard_wal *l)
{
    return l->last;
}

void shard_wal_sync(struct shard_wal *l, uint64_t number)
{
    wal_thread_sync(l->thread, number);
}

int shard_wal_await(struct shard_wal *l, uint64_t first, uint64_t through, struct err *err)
{
    struct wal_thread_view view;

    wal_thread_view(l->thread, &view);
    if (view.lost_last > first)
        return err_set(err, -EIO,
                       "the write-ahead log lost records while the checkpoint was written");
    if (view.progress.durable >= through)
        return 0;
    if (view.progress.state == WAL_WRITER_FAILED)
        return err_set(err, view.progress.err.status,
                       "the write-ahead log cannot be written: %.200s", view.progress.err.text);
    return -EAGAIN;
}

void shard_wal_checkpointed(struct shard_wal *l, uint64_t first, uint64_t needed)
{
    wal_thread_close_gap(l->thread, first);
    if (needed > l->pin) {
        l->unpinned = needed;
        needed = l->pin;
    }
    wal_thread_truncate(l->thread, needed);
    on_progress(
        l); /* the gap is none any more: replies behind it may go, and no writer says so */
}

void shard_wal_ship(struct shard_wal *l, struct fetch_handler *fetches)
{
    l->fetches = fetches;
}

void shard_wal_pin(struct shard_wal *l, uint64_t number)
{
    l->pin = number;
    if (!l->unpinned)
        return;
    wal_thread_truncate(l->thread, l->unpinned < number ? l->unpinned : number);
    if (l->unpinned <= number)
        l->unpinned = 0;
}

void shard_wal_report(struct shard_wal *l, struct stats_log *ret, char ret_error[static 200])
{
    struct wal_thread_view view;
    struct wal_bound_rates rates = { 0 };

    wal_thread_view(l->thread, &view);
    report_gap(l, &view);
    report_bound(l, &view);
    if (!wal_bound_rates(&l->bound, &rates))
        rates.needed_bytes_per_s = 0;
    *ret = (struct stats_log){ .is_on = 1,
                               .appended = view.appended,
                               .durable = view.progress.durable,
                               .held_bytes = view.held_bytes,
                               .bytes = view.progress.stored_bytes,
                               .n_syncs = view.progress.n_syncs,
                               .n_failures = view.progress.n_failures,
                               .n_dropped = view.n_dropped,
                               .is_failed = view.progress.state == WAL_WRITER_FAILED,
                               .is_full = view.state == WAL_QUEUE_FULL,
                               .has_gap = view.lost_first != 0,
                               .disk_bytes_per_s = view.progress.disk_bytes_per_s,
                               .needed_bytes_per_s = rates.needed_bytes_per_s,
                               .n_pushes_waiting = l->config.replies->push_waits.n_now,
                               .push_wait_us = l->config.replies->push_waits.over_ns / 1000,
                               .n_waiting = l->config.replies->n_waiting,
                               .waited_ms = reply_queue_waited_ms(l->config.replies) };
    snprintf(ret_error, 200, "%.199s", ret->is_failed ? view.progress.err.text : "");
}

int shard_wal_close(struct shard_wal *l, struct err *err)
{
    int status;

    shard_set_events(l->config.shard, NULL);
    status = wal_thread_close(l->thread, err);
    free(l);
    return status;
}
