#include "server/requests/fetch_sender.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/memory.h"
#include "server/replication/record_ring.h"

/* One reply. The thread's from fetch_sender_send() until has_sent. */
struct sender_job {
    struct bytes frame; /* owned: the records, then the frame, then its rest */
    uint64_t request_id;
    struct fetch_reply reply;
    size_t n_sent;
    int status;
};

struct fetch_sender {
    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t wake, sent;
    uv_async_t async;
    void (*on_sent)(void *owner);
    void *owner; /* borrowed */
    int fd;      /* owned; -1: none */
    bool is_stopped;
    /* Under the lock. */
    bool has_job, stops;
    _Atomic bool has_sent; /* read without it, too */
    struct sender_job job;
};

/* --- the thread --- */

/* As much as the socket takes at once. */
static int send_some(int fd, struct bytes *frame, size_t *n_sent)
{
    while (bytes_len(frame)) {
        const ssize_t n =
            send(fd, bytes_front(frame), bytes_len(frame), MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == ENOBUFS ? 0 : -errno;
        bytes_consume(frame, (size_t)n);
        *n_sent += (size_t)n;
    }
    return 0;
}

static void run_job(struct sender_job *job, int fd)
{
    const uint32_t crc = record_ring_seal(&job->frame);

    job->status =
        message_write_fetch_reply_around(&job->frame, crc, job->request_id, &job->reply);
    if (!job->status)
        job->status = send_some(fd, &job->frame, &job->n_sent);
}

static void thread_main(void *arg)
{
    struct fetch_sender *s = arg;

    uv_mutex_lock(&s->lock);
    while (!s->stops) {
        if (!s->has_job) {
            uv_cond_wait(&s->wake, &s->lock);
            continue;
        }
        s->has_job = false;
        uv_mutex_unlock(&s->lock);
        run_job(&s->job, s->fd);
        uv_mutex_lock(&s->lock);
        atomic_store_explicit(&s->has_sent, true, memory_order_release);
        uv_cond_signal(&s->sent);
        uv_async_send(&s->async);
    }
    uv_mutex_unlock(&s->lock);
}

/* --- the shard's side --- */

static void on_async(uv_async_t *async)
{
    struct fetch_sender *s = async->data;

    s->on_sent(s->owner);
}

/* The thread, then what wakes the loop: it is needed for a job, and a thread can be ended at once. */
static int start(struct fetch_sender *s, uv_loop_t *loop)
{
    if (uv_mutex_init(&s->lock) || uv_cond_init(&s->wake) || uv_cond_init(&s->sent))
        abort();
    if (uv_thread_create(&s->thread, thread_main, s))
        return -EAGAIN;
    if (uv_async_init(loop, &s->async, on_async) == 0) {
        uv_unref((uv_handle_t *)&s->async);
        s->async.data = s;
        return 0;
    }
    return -EMFILE;
}

static void end_thread(struct fetch_sender *s)
{
    uv_mutex_lock(&s->lock);
    s->stops = true;
    uv_cond_signal(&s->wake);
    uv_mutex_unlock(&s->lock);
    uv_thread_join(&s->thread);
}

struct fetch_sender *fetch_sender_new(uv_loop_t *loop, void (*on_sent)(void *owner),
                                      void *owner)
{
    struct fetch_sender *s = memory_try_alloc(sizeof *s);
    int status;

    if (!s)
        return NULL;
    *s = (struct fetch_sender){ .on_sent = on_sent, .owner = owner, .fd = -1 };
    status = start(s, loop);
    if (status == -EMFILE)
        end_thread(s);
    if (!status)
        return s;
    s->is_stopped = true;
    fetch_sender_free(s);
    return NULL;
}

void fetch_sender_stop(struct fetch_sender *s)
{
    if (!s)
        return;
    fetch_sender_end(s);
    end_thread(s);
    s->is_stopped = true;
    uv_close((uv_handle_t *)&s->async, NULL);
}

void fetch_sender_free(struct fetch_sender *s)
{
    if (!s)
        return;
    assert(s->is_stopped && !s->job.frame.bytes);
    uv_cond_destroy(&s->sent);
    uv_cond_destroy(&s->wake);
    uv_mutex_destroy(&s->lock);
    free(s);
}

void fetch_sender_begin(struct fetch_sender *s, int fd)
{
    fetch_sender_end(s);
    if (s)
        s->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

bool fetch_sender_is_open(const struct fetch_sender *s)
{
    return s && s->fd >= 0;
}

void fetch_sender_end(struct fetch_sender *s)
{
    if (!s || s->fd < 0)
        return;
    assert(!s->job.frame.bytes);
    (void)close(s->fd);
    s->fd = -1;
}

void fetch_sender_send(struct fetch_sender *s, struct bytes *records, uint64_t request_id,
                       const struct fetch_reply *reply)
{
    assert(s->fd >= 0 && !s->job.frame.bytes && records->bytes);
    s->job =
        (struct sender_job){ .frame = *records, .request_id = request_id, .reply = *reply };
    *records = (struct bytes){ 0 };
    uv_mutex_lock(&s->lock);
    s->has_job = true;
    atomic_store_explicit(&s->has_sent, false, memory_order_relaxed);
    uv_mutex_unlock(&s->lock);
    uv_cond_signal(&s->wake);
}

bool fetch_sender_has_sent(const struct fetch_sender *s)
{
    return atomic_load_explicit(&s->has_sent, memory_order_acquire);
}

int fetch_sender_collect(struct fetch_sender *s, struct bytes *rest, size_t *ret_n_sent)
{
    assert(s->job.frame.bytes);
    uv_mutex_lock(&s->lock);
    while (!s->has_sent)
        uv_cond_wait(&s->sent, &s->lock);
    uv_mutex_unlock(&s->lock);
    *rest = s->job.frame;
    *ret_n_sent = s->job.n_sent;
    s->job.frame = (struct bytes){ 0 };
    return s->job.status;
}
