#include "server/wal/wal_thread.h"

#include <assert.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/memory.h"

#define POLL_MS_MAX 100u /* none, async: a record is written after so long at most */
#define NS_PER_MS UINT64_C(1000000)

/* Outlives the thread: it may stand in the mailbox when that ends. */
struct progress_mail {
    struct mail mail;
    uv_mutex_t lock;
    bool is_posted;
    void (*on_progress)(void *owner); /* NULL: nobody listens any more */
    void *owner;
    uint32_t n_users; /* the thread, the mailbox */
};

struct wal_thread {
    struct wal_thread_config config;
    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t wake;
    bool is_idle; /* the writer waits, and nobody has woken it */
    bool stops;
    uint64_t truncate_to; /* 0: no truncation is requested */
    uint64_t sync_to;     /* a request of wal_thread_sync() that is not met; 0: none */
    bool sync_is_new;     /* and the writer has not got it */
    struct err truncate_err;
    struct wal_queue queue;
    struct wal_writer *writer; /* owned; its thread's */
    uint32_t poll_ms;
    struct progress_mail *progress_mail;
    int closed;
};

/* --- progress --- */

static void release_progress_mail(struct progress_mail *progress_mail)
{
    bool is_last;

    uv_mutex_lock(&progress_mail->lock);
    is_last = --progress_mail->n_users == 0;
    uv_mutex_unlock(&progress_mail->lock);
    if (!is_last)
        return;
    uv_mutex_destroy(&progress_mail->lock);
    free(progress_mail);
}

static void on_mail(struct mail *mail, void *loop_owner)
{
    struct progress_mail *progress_mail = CONTAINER_OF(mail, struct progress_mail, mail);
    void (*on_progress)(void *owner);

    (void)loop_owner;
    uv_mutex_lock(&progress_mail->lock);
    progress_mail->is_posted = false;
    on_progress = progress_mail->on_progress;
    uv_mutex_unlock(&progress_mail->lock);
    if (on_progress)
        on_progress(progress_mail->owner);
    release_progress_mail(progress_mail);
}

static void post_progress(struct wal_thread *t)
{
    struct progress_mail *progress_mail = t->progress_mail;
    bool posts;

    uv_mutex_lock(&progress_mail->lock);
    posts = !progress_mail->is_posted;
    progress_mail->is_posted = true;
    progress_mail->n_users += posts;
    uv_mutex_unlock(&progress_mail->lock);
    /* A mailbox that is closed: the loop takes no more progress. */
    if (posts && mailbox_post(t->config.mailbox, &progress_mail->mail) != 0)
        release_progress_mail(progress_mail);
}

static struct progress_mail *new_progress_mail(const struct wal_thread_config *config)
{
    struct progress_mail *progress_mail = memory_alloc(sizeof *progress_mail);

    *progress_mail = (struct progress_mail){ .mail.run = on_mail,
                                             .on_progress = config->on_progress,
                                             .owner = config->owner,
                                             .n_users = 1 };
    if (uv_mutex_init(&progress_mail->lock) != 0)
        abort();
    return progress_mail;
}

/* --- the writer's thread --- */

/* Has anything come that the loop waits for? */
static bool is_change(const struct wal_thread *t, const struct wal_progress *was,
                      enum wal_queue_state was_state)
{
    const struct wal_progress *is = &t->queue.progress;

    return (t->queue.durability == WAL_FSYNC && is->durable != was->durable) ||
           is->state != was->state || is->doubtful != was->doubtful ||
           t->queue.state != was_state;
}

/* Is the request of wal_thread_sync() met? A sync may not have reached that far, where records were dropped
 * before it and others came since: then there is to be another one, as under none nobody else asks for it. */
static bool is_synced(struct wal_thread *t)
{
    if (!t->sync_to)
        return false;
    if (t->queue.progress.durable < t->sync_to) {
        t->sync_is_new = t->sync_is_new || t->queue.progress.state == WAL_WRITER_OK;
        return false;
    }
    t->sync_to = 0;
    return true;
}

/* What has been done. Without the lock. */
static void report_progress(struct wal_thread *t)
{
    struct wal_progress was;
    enum wal_queue_state was_state;
    bool posts;

    uv_mutex_lock(&t->lock);
    was = t->queue.progress;
    was_state = t->queue.state;
    wal_writer_report(t->writer, &t->queue);
    posts = is_change(t, &was, was_state);
    posts = is_synced(t) || posts;
    uv_mutex_unlock(&t->lock);
    if (posts)
        post_progress(t);
}

/* Is there enough to get up for? */
static bool has_work(const struct wal_thread *t)
{
    const struct wal_block *first = t->queue.first;

    if (t->stops || t->truncate_to || t->sync_is_new)
        return true;
    return first && (t->queue.durability == WAL_FSYNC || first->next);
}

/* How long it may sleep: what waits here is written soon, unless a block of it is. */
static uint64_t sleep_ms(const struct wal_thread *t, uint64_t due_ms)
{
    uint64_t now = clock_mono_ms(), ms = t->queue.first ? t->poll_ms : UINT64_MAX;

    if (due_ms == UINT64_MAX)
        return ms;
    return due_ms <= now ? 0 : due_ms - now < ms ? due_ms - now : ms;
}

static void wait_for_work(struct wal_thread *t, uint64_t due_ms)
{
    bool is_over = false;

    while (!is_over && !has_work(t)) {
        uint64_t ms = sleep_ms(t, due_ms);

        if (ms == 0)
            return;
        t->is_idle = true;
        if (ms == UINT64_MAX)
            uv_cond_wait(&t->wake, &t->lock);
        else
            is_over = uv_cond_timedwait(&t->wake, &t->lock, ms * NS_PER_MS) != 0;
        t->is_idle = false;
    }
}

/* The requests since the last time; false: to stop. Under the lock. */
static bool acquire_requests(struct wal_thread *t, uint64_t *ret_truncate_to)
{
    if (t->sync_is_new)
        wal_writer_sync(t->writer);
    t->sync_is_new = false;
    *ret_truncate_to = t->truncate_to;
    t->truncate_to = 0;
    if (*ret_truncate_to)
        wal_writer_leave(t->writer, *ret_truncate_to);
    return !t->stops;
}

static void truncate_log(struct wal_thread *t, uint64_t number)
{
    struct err err = { 0 };

    if (wal_writer_truncate(t->writer, number, &err) == 0)
        err.status = 0;
    uv_mutex_lock(&t->lock);
    t->truncate_err = err;
    uv_mutex_unlock(&t->lock);
}

static void thread_main(void *arg)
{
    struct wal_thread *t = arg;
    uint64_t due_ms = UINT64_MAX, truncate_to;
    bool goes_on = true;

    while (goes_on) {
        uv_mutex_lock(&t->lock);
        wait_for_work(t, due_ms);
        goes_on = acquire_requests(t, &truncate_to);
        wal_writer_drain(t->writer, &t->queue);
        uv_mutex_unlock(&t->lock);
        wal_writer_work(t->writer, clock_mono_ms(), clock_unix_ms(), &due_ms);
        if (truncate_to)
            truncate_log(t, truncate_to);
        report_progress(t);
    }
    t->closed = wal_writer_close(t->writer, clock_mono_ms(), clock_unix_ms());
}

/* --- the loop's side --- */

static int make(struct wal_thread *t)
{
    int status = uv_mutex_init(&t->lock);

    if (status)
        return status;
    status = uv_cond_init(&t->wake);
    if (status) {
        uv_mutex_destroy(&t->lock);
        return status;
    }
    t->progress_mail = new_progress_mail(&t->config);
    status = uv_thread_create(&t->thread, thread_main, t);
    if (status) {
        release_progress_mail(t->progress_mail);
        uv_cond_destroy(&t->wake);
        uv_mutex_destroy(&t->lock);
    }
    return status;
}

int wal_thread_start(const struct wal_thread_config *config, const struct wal_end *end,
                     struct wal_thread **ret, struct err *err)
{
    struct wal_thread *t = memory_alloc(sizeof *t);
    uint32_t interval_ms = config->writer.interval_ms ? config->writer.interval_ms : 1000;
    int status;

    t->config = *config;
    t->poll_ms = interval_ms / 4 < POLL_MS_MAX ? interval_ms / 4 + 1 : POLL_MS_MAX;
    t->config.writer.interval_ms =
        interval_ms > t->poll_ms ? interval_ms - t->poll_ms : interval_ms;
    wal_queue_init(&t->queue,
                   &(struct wal_queue_config){ .durability = config->writer.durability,
                                               .next_number = end->last + 1,
                                               .block_bytes = config->block_bytes,
                                               .max_bytes = config->max_bytes });
    status = wal_writer_open(&t->config.writer, end, clock_unix_ms(), &t->writer, err);
    if (!status && (status = make(t)) != 0)
        err_set(err, status,
                "the write-ahead log: cannot start its thread: %s (ulimit -v and -u)",
                status_text(status));
    if (status) {
        wal_writer_free(t->writer);
        wal_queue_deinit(&t->queue);
        free(t);
        return status;
    }
    *ret = t;
    return 0;
}

int wal_thread_reserve(struct wal_thread *t, size_t n_bytes)
{
    int status;

    if (wal_queue_has_reserved(&t->queue, n_bytes))
        return 0;
    uv_mutex_lock(&t->lock);
    status = wal_queue_reserve(&t->queue, n_bytes);
    uv_mutex_unlock(&t->lock);
    return status;
}

uint64_t wal_thread_append(struct wal_thread *t, const struct wal_record *record,
                           uint64_t at_ms)
{
    uint64_t number;
    bool wakes, was_empty;

    uv_mutex_lock(&t->lock);
    was_empty = !t->queue.first;
    number = wal_queue_append(&t->queue, record, at_ms);
    wakes = t->is_idle && (was_empty || has_work(t));
    if (wakes)
        t->is_idle = false;
    uv_mutex_unlock(&t->lock);
    if (wakes)
        uv_cond_signal(&t->wake);
    return number;
}

uint64_t wal_thread_wait_ms(struct wal_thread *t, uint64_t now_ms)
{
    uint64_t wait_ms = wal_queue_wait_ms(&t->queue, now_ms);
    bool is_over;

    if (!wait_ms)
        return 0;
    uv_mutex_lock(&t->lock);
    is_over = t->queue.held_bytes <= t->queue.pace.low_bytes;
    uv_mutex_unlock(&t->lock);
    return is_over ? 0 : wait_ms;
}

void wal_thread_begin_segment(struct wal_thread *t)
{
    uv_mutex_lock(&t->lock);
    wal_queue_begin_segment(&t->queue);
    uv_mutex_unlock(&t->lock);
}

void wal_thread_view(struct wal_thread *t, struct wal_thread_view *ret)
{
    const struct wal_queue *q = &t->queue;

    uv_mutex_lock(&t->lock);
    *ret = (struct wal_thread_view){ .appended = q->next_number - 1,
                                     .acknowledged = wal_queue_acknowledged(q),
                                     .whole = wal_queue_whole(q),
                                     .state = q->state,
                                     .held_bytes = q->held_bytes,
                                     .n_dropped = q->n_dropped,
                                     .lost_first = q->lost_first,
                                     .lost_last = q->lost_last,
                                     .progress = q->progress,
                                     .truncate_err = t->truncate_err };
    uv_mutex_unlock(&t->lock);
}

void wal_thread_truncate(struct wal_thread *t, uint64_t number)
{
    uv_mutex_lock(&t->lock);
    if (number > t->truncate_to)
        t->truncate_to = number;
    uv_cond_signal(&t->wake);
    uv_mutex_unlock(&t->lock);
}

void wal_thread_sync(struct wal_thread *t, uint64_t number)
{
    uv_mutex_lock(&t->lock);
    assert(number < t->queue.next_number);
    if (number > t->sync_to)
        t->sync_to = number;
    t->sync_is_new = true;
    uv_cond_signal(&t->wake);
    uv_mutex_unlock(&t->lock);
}

void wal_thread_close_gap(struct wal_thread *t, uint64_t number)
{
    uv_mutex_lock(&t->lock);
    wal_queue_close_gap(&t->queue, number);
    uv_mutex_unlock(&t->lock);
}

int wal_thread_close(struct wal_thread *t, struct err *err)
{
    int status;

    uv_mutex_lock(&t->progress_mail->lock);
    t->progress_mail->on_progress = NULL;
    uv_mutex_unlock(&t->progress_mail->lock);
    uv_mutex_lock(&t->lock);
    t->stops = true;
    uv_cond_signal(&t->wake);
    uv_mutex_unlock(&t->lock);
    uv_thread_join(&t->thread);
    status = t->closed;
    if (status)
        err_set(err, status, "%s", wal_writer_progress(t->writer)->err.text);
    release_progress_mail(t->progress_mail);
    wal_writer_free(t->writer);
    wal_queue_deinit(&t->queue);
    uv_cond_destroy(&t->wake);
    uv_mutex_destroy(&t->lock);
    free(t);
    return status;
}
