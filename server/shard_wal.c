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
    int reported_truncate; /* status of the last truncation */
    bool reported_gap;     /* of records that no checkpoint holds */
};

/* --- the shard's events, as records --- */

static int on_reserve(void *owner, const struct shard_event *event)
{
    const struct wal_record record = { .event = *event };
    struct shard_wal *l = owner;
    int status;

    enter_shard();
    status = wal_thread_reserve(l->thread, wal_record_bytes(&record));
    /* As the reservation saw it: the writer may have made space since, and its news, which end the
     * waiting, are still to come. */
    if (status == -EAGAIN)
        l->config.replies->is_full = true;
    return status;
}

static void on_event(void *owner, const struct shard_event *event)
{
    const struct wal_record record = { .unix_ms = clock_unix_ms(), .event = *event };
    struct shard_wal *l = owner;

    enter_shard();
    l->last = wal_thread_append(l->thread, &record, clock_mono_ms());
    reply_queue_note(l->config.replies, l->last);
}

/* --- notifications of the writer --- */

/* One line when it begins and one when it ends; /healthz and /stats show it meanwhile. */
static void report_state(struct shard_wal *l, const struct wal_progress *progress)
{
    if (progress->state == l->reported)
        return;
    l->reported = progress->state;
    if (progress->state == WAL_WRITER_FAILED)
        log_line_error("the write-ahead log cannot be written: %s; tried again every second",
                       progress->err.text);
    else
        log_line_info("the write-ahead log is written again");
}

static void report_truncate(struct shard_wal *l, const struct err *err)
{
    if (err->status && err->status != l->reported_truncate)
        log_line_error("the write-ahead log grows, as what a checkpoint has made needless "
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

static void on_news(void *owner)
{
    struct shard_wal *l = owner;
    struct wal_thread_view view;

    enter_shard();
    wal_thread_view(l->thread, &view);
    report_state(l, &view.progress);
    report_truncate(l, &view.truncate_err);
    if (l->config.replies->is_full && view.state != WAL_QUEUE_FULL) {
        l->config.replies->is_full = false;
        l->config.on_space(l->config.owner);
    }
    reply_queue_release(l->config.replies, view.acknowledged);
}

/* --- for the shard's thread --- */

int shard_wal_open(const struct shard_wal_config *config, const struct wal_end *end,
                   struct shard_wal **ret, struct err *err)
{
    struct shard_wal *l = memory_alloc(sizeof *l);
    struct wal_thread_config thread = { .writer = *config->writer,
                                        .max_bytes = config->queue_max_bytes,
                                        .mailbox = config->mailbox,
                                        .on_news = on_news,
                                        .owner = l };
    int status = wal_thread_start(&thread, end, &l->thread, err);

    if (status) {
        free(l);
        return status;
    }
    l->config = *config;
    reply_queue_note(config->replies, end->last);
    /* Unless replies wait for the disk, replies of all that is appended may be sent. */
    reply_queue_release(config->replies,
                        config->writer->durability == WAL_FSYNC ? end->last : UINT64_MAX);
    l->last = end->last;
    l->events = (struct shard_events){ l, on_reserve, on_event };
    shard_set_events(config->shard, &l->events);
    *ret = l;
    return 0;
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
    wal_thread_truncate(l->thread, needed);
    on_news(l); /* the gap is none any more: replies behind it may go, and no writer says so */
}

void shard_wal_report(struct shard_wal *l, struct stats_log *ret, char ret_error[static 200])
{
    struct wal_thread_view view;

    wal_thread_view(l->thread, &view);
    report_gap(l, &view);
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
