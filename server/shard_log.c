#include "server/shard_log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/now.h"
#include "server/durable/recorder.h"

struct shard_log {
    struct shard_log_config config;
    struct log_thread *thread; /* owned */
    struct recorder recorder;
    enum log_writer_state told;
    int told_cut;   /* status of the last cut */
    bool told_loss; /* of records that no checkpoint has made good */
};

/* --- the recorder's sink --- */

static int on_reserve(void *owner, size_t n_bytes)
{
    struct shard_log *l = owner;
    int status;

    enter_shard();
    status = log_thread_reserve(l->thread, n_bytes);
    /* As the reservation saw it: the writer may have made room since, and its news, which end the
     * waiting, are still to come. */
    if (status == -EAGAIN)
        l->config.acks->is_full = true;
    return status;
}

static uint64_t on_append(void *owner, const struct log_record *record)
{
    struct shard_log *l = owner;
    uint64_t number;

    enter_shard();
    number = log_thread_append(l->thread, record, now_mono_ms());
    acks_note(l->config.acks, number);
    return number;
}

/* --- news of the writer --- */

/* Said once for each time that it begins and ends; /healthz and /stats go on saying it. */
static void tell(struct shard_log *l, const struct log_progress *progress)
{
    if (progress->state == l->told)
        return;
    l->told = progress->state;
    if (progress->state == LOG_WRITER_FAILED)
        log_error("the push log cannot be written: %s; tried again every second",
                  progress->err.text);
    else
        log_info("the push log is written again");
}

static void tell_cut(struct shard_log *l, const struct err *cut)
{
    if (cut->status && cut->status != l->told_cut)
        log_error(
            "the push log grows, as what a checkpoint has made needless cannot be removed: %s",
            cut->text);
    l->told_cut = cut->status;
}

static void tell_loss(struct shard_log *l, const struct log_view *view)
{
    bool lacks = view->lost_first != 0;

    if (lacks && !l->told_loss)
        log_error("the push log lacks records from %" PRIu64
                  " on: psd goes on, but a crash loses all that came since, until the next "
                  "checkpoint is written",
                  view->lost_first);
    l->told_loss = lacks;
}

static void on_news(void *owner)
{
    struct shard_log *l = owner;
    struct log_view view;

    enter_shard();
    log_thread_view(l->thread, &view);
    tell(l, &view.progress);
    tell_cut(l, &view.cut_err);
    if (l->config.acks->is_full && view.state != LOG_QUEUE_FULL) {
        l->config.acks->is_full = false;
        l->config.on_room(l->config.owner);
    }
    acks_reach(l->config.acks, view.acknowledged);
}

/* --- for the shard's thread --- */

static uint64_t unix_ms(void *owner)
{
    (void)owner;
    return now_unix_ms();
}

int shard_log_open(const struct shard_log_config *config, const struct log_end *end,
                   struct shard_log **ret, struct err *err)
{
    struct shard_log *l = mem_alloc(sizeof *l);
    struct log_thread_config thread = { .writer = *config->writer,
                                        .max_bytes = config->queue_max_bytes,
                                        .mailbox = config->mailbox,
                                        .on_news = on_news,
                                        .owner = l };
    struct recorder_config recorder = { .sink = { l, on_reserve, on_append },
                                        .last = end->last,
                                        .unix_ms = unix_ms };
    int status = log_thread_start(&thread, end, &l->thread, err);

    if (status) {
        free(l);
        return status;
    }
    l->config = *config;
    acks_note(config->acks, end->last);
    /* Unless replies wait for the disk, all that is appended may be told. */
    acks_reach(config->acks, config->writer->durability == LOG_FSYNC ? end->last : UINT64_MAX);
    recorder_init(&l->recorder, &recorder);
    shard_listen(config->shard, &l->recorder.journal);
    *ret = l;
    return 0;
}

uint64_t shard_log_last(const struct shard_log *l)
{
    return recorder_last(&l->recorder);
}

void shard_log_sync(struct shard_log *l, uint64_t number)
{
    log_thread_sync(l->thread, number);
}

int shard_log_await(struct shard_log *l, uint64_t first, uint64_t through, struct err *err)
{
    struct log_view view;

    log_thread_view(l->thread, &view);
    if (view.lost_last > first)
        return err_set(err, -EIO, "the push log lost records while the checkpoint was written");
    if (view.progress.durable >= through)
        return 0;
    if (view.progress.state == LOG_WRITER_FAILED)
        return err_set(err, view.progress.err.status, "the push log cannot be written: %.200s",
                       view.progress.err.text);
    return -EAGAIN;
}

void shard_log_saved(struct shard_log *l, uint64_t first, uint64_t needed)
{
    log_thread_mend(l->thread, first);
    log_thread_cut(l->thread, needed);
    on_news(l); /* the gap is none any more: replies behind it may go, and no writer says so */
}

void shard_log_report(struct shard_log *l, struct report_log *ret, char ret_error[static 200])
{
    struct log_view view;

    log_thread_view(l->thread, &view);
    tell_loss(l, &view);
    *ret = (struct report_log){ .is_on = 1,
                                .appended = view.appended,
                                .durable = view.progress.durable,
                                .held_bytes = view.held_bytes,
                                .bytes = view.progress.stored_bytes,
                                .n_syncs = view.progress.n_syncs,
                                .n_failures = view.progress.n_failures,
                                .n_dropped = view.n_dropped,
                                .is_failed = view.progress.state == LOG_WRITER_FAILED,
                                .is_full = view.state == LOG_QUEUE_FULL,
                                .has_gap = view.lost_first != 0,
                                .n_waiting = l->config.acks->n_waiting,
                                .waited_ms = acks_waited_ms(l->config.acks) };
    snprintf(ret_error, 200, "%.199s", ret->is_failed ? view.progress.err.text : "");
}

int shard_log_close(struct shard_log *l, struct err *err)
{
    int status;

    shard_listen(l->config.shard, NULL);
    status = log_thread_close(l->thread, err);
    free(l);
    return status;
}
