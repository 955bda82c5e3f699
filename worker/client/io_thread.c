#include "worker/client/io_thread.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/memory.h"
#include "proto/channel.h"

#define HOUR_MS 3600000u
#define SWAP_BYTES (32u << 10) /* of a frame: its buffer is worth another one */

/* A frame on its way between the threads, and a buffer on the way back. */
struct io_frame {
    struct mail mail;
    struct io_thread *thread; /* borrowed */
    struct io_connection *connection;
    struct io_frame *next_free;
    struct frame_header header; /* of one that has come; its parts: */
    const uint8_t *head, *body;
    bool is_whole;       /* `buffer` is the one that it was received to */
    struct bytes buffer; /* owned */
};

struct io_connection {
    struct io_thread *thread; /* borrowed, as events and owner */
    const struct connector_events *events;
    void *owner;
    struct mail open, fail, drop, set_frame_max; /* to the I/O thread */
    struct mail connected, closed, gone;         /* from there */

    /* The network thread's. */
    bool is_dropped, has_failed;
    struct io_frame *frame; /* inside events.frame: that one; borrowed */

    /* The I/O thread's; address, frame_max_bytes and why are handed over by mails. */
    struct address address;
    uint32_t frame_max_bytes;
    struct connector *connector; /* owned; NULL: there is none any more */
    bool is_connected;
    int why;
    struct io_connection *next, **link; /* in the thread's list */
};

struct io_thread {
    struct mailbox *home;               /* borrowed */
    struct channel_loop *home_channels; /* borrowed; the network thread's */
    struct io_frame
        *free_home; /* owned; the network thread's: sent frames that have come back */
    uv_thread_t thread;
    uv_loop_t loop;
    uv_timer_t alive; /* without connections the loop runs on, too */
    struct channel_loop channels;
    struct mailbox mailbox;
    struct mail stop;
    struct io_frame *free_here; /* owned, as the list below; the I/O thread's */
    struct io_connection *connections;
};

static struct io_frame *frame_take(struct io_frame **list, struct io_thread *t)
{
    struct io_frame *f = *list;

    if (f)
        *list = f->next_free;
    else if ((f = memory_try_alloc(sizeof *f)) != NULL)
        *f = (struct io_frame){ .thread = t };
    return f;
}

static void frame_put(struct io_frame **list, struct io_frame *f)
{
    f->connection = NULL;
    f->next_free = *list;
    *list = f;
}

static void frame_free(struct io_frame *f)
{
    bytes_deinit(&f->buffer);
    free(f);
}

static void free_frames(struct io_frame **list)
{
    struct io_frame *f;

    while ((f = *list)) {
        *list = f->next_free;
        frame_free(f);
    }
}

/* ---- on the I/O thread ---- */

/* False: the network thread takes no more. */
static bool post_home(struct io_thread *t, struct mail *mail)
{
    return mailbox_post(t->home, mail) == 0;
}

static void on_frame_back(struct mail *mail, void *owner)
{
    struct io_frame *f = CONTAINER_OF(mail, struct io_frame, mail);
    struct io_thread *t = owner;

    if (f->is_whole)
        channel_loop_release(&t->channels, &f->buffer);
    frame_put(&t->free_here, f);
}

static void on_frame_home(struct mail *mail, void *owner);
static void on_connected_home(struct mail *mail, void *owner);
static void on_closed_home(struct mail *mail, void *owner);
static void on_gone_home(struct mail *mail, void *owner);

static void on_connected(void *owner)
{
    struct io_connection *c = owner;

    c->is_connected = true;
    (void)post_home(c->thread, &c->connected);
}

/* Head and body, in the buffer that they are in, or in the frame's own. -ENOMEM. */
static int fill_frame(struct io_frame *f, struct bytes *whole,
                      const struct frame_header *header, const uint8_t *head,
                      const uint8_t *body)
{
    const size_t n_bytes = (size_t)header->head_bytes + header->body_bytes;
    uint8_t *copy;

    f->header = *header;
    f->is_whole = whole != NULL;
    if (whole) {
        bytes_deinit(&f->buffer);
        f->buffer = *whole;
        *whole = (struct bytes){ 0 };
        f->head = head;
        f->body = body;
        return 0;
    }
    bytes_consume(&f->buffer, bytes_len(&f->buffer));
    copy = bytes_reserve(&f->buffer, n_bytes + 1);
    if (!copy)
        return -ENOMEM;
    if (header->head_bytes)
        memcpy(copy, head, header->head_bytes);
    if (header->body_bytes)
        memcpy(copy + header->head_bytes, body, header->body_bytes);
    bytes_commit(&f->buffer, n_bytes);
    f->head = copy;
    f->body = copy + header->head_bytes;
    return 0;
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct io_connection *c = owner;
    struct io_thread *t = c->thread;
    struct io_frame *f = frame_take(&t->free_here, t);
    int status = -ENOMEM;

    if (f)
        status = fill_frame(f, channel_frame_buffer(connector_channel(c->connector)), header,
                            head, body);
    if (status) {
        if (f)
            frame_put(&t->free_here, f);
        return status;
    }
    f->connection = c;
    f->mail.run = on_frame_home;
    if (!post_home(t, &f->mail))
        on_frame_back(&f->mail, t);
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct io_connection *c = owner;

    c->connector = NULL;
    c->is_connected = false;
    c->why = why;
    (void)post_home(c->thread, &c->closed);
}

static const struct connector_events connector_events = { on_connected, on_frame, on_closed };

static void on_open(struct mail *mail, void *owner)
{
    struct io_connection *c = CONTAINER_OF(mail, struct io_connection, open);
    struct io_thread *t = owner;
    int status;

    c->next = t->connections;
    c->link = &t->connections;
    if (c->next)
        c->next->link = &c->next;
    t->connections = c;
    status = connector_new(&t->channels, &c->address, &connector_events, c, &c->connector);
    if (status)
        on_closed(c, status);
}

static void on_fail(struct mail *mail, void *owner)
{
    struct io_connection *c = CONTAINER_OF(mail, struct io_connection, fail);

    (void)owner;
    if (c->is_connected)
        channel_fail(connector_channel(c->connector), UV_ENOBUFS);
}

static void on_set_frame_max(struct mail *mail, void *owner)
{
    struct io_connection *c = CONTAINER_OF(mail, struct io_connection, set_frame_max);

    (void)owner;
    if (c->is_connected)
        connector_channel(c->connector)->frame_max_bytes = c->frame_max_bytes;
}

static void remove_connection(struct io_connection *c)
{
    connector_drop(c->connector);
    c->connector = NULL;
    c->is_connected = false;
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
}

static void on_drop(struct mail *mail, void *owner)
{
    struct io_connection *c = CONTAINER_OF(mail, struct io_connection, drop);

    remove_connection(c);
    if (!post_home(owner, &c->gone))
        free(c);
}

static void on_frame_sent_home(struct mail *mail, void *owner);

/* A buffer for a buffer: so both threads' pools keep theirs. */
static void on_send(struct mail *mail, void *owner)
{
    struct io_frame *f = CONTAINER_OF(mail, struct io_frame, mail);
    struct io_thread *t = owner;
    const size_t n_bytes = bytes_len(&f->buffer);

    if (f->connection->is_connected)
        (void)channel_send(connector_channel(f->connection->connector), &f->buffer);
    else
        channel_loop_release(&t->channels, &f->buffer);
    if (n_bytes >= SWAP_BYTES)
        (void)!channel_loop_acquire(&t->channels, n_bytes, &f->buffer);
    f->mail.run = on_frame_sent_home;
    if (!post_home(t, &f->mail))
        frame_free(f);
}

/* Frames that have come together leave together. */
static void begin_mails(void *owner)
{
    for (struct io_connection *c = ((struct io_thread *)owner)->connections; c; c = c->next)
        if (c->is_connected)
            channel_cork(connector_channel(c->connector));
}

static void end_mails(void *owner)
{
    for (struct io_connection *c = ((struct io_thread *)owner)->connections; c; c = c->next)
        if (c->is_connected)
            channel_uncork(connector_channel(c->connector));
}

static void on_hour(uv_timer_t *timer)
{
    (void)timer;
}

static void close_loop(struct io_thread *t)
{
    uv_close((uv_handle_t *)&t->alive, NULL);
    channel_loop_close(&t->channels);
    mailbox_close(&t->mailbox);
}

static void on_stop(struct mail *mail, void *owner)
{
    struct io_thread *t = owner;

    (void)mail;
    assert(!t->connections);
    close_loop(t);
}

static void thread_main(void *arg)
{
    struct io_thread *t = arg;
    sigset_t all;
    int status;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    uv_run(&t->loop, UV_RUN_DEFAULT);
    status = uv_loop_close(&t->loop);
    assert(status == 0);
    (void)status;
    channel_loop_deinit(&t->channels);
}

/* ---- on the network's thread ---- */

static void post(struct io_thread *t, struct mail *mail)
{
    int status = mailbox_post(&t->mailbox, mail);

    assert(status == 0); /* only io_thread_free() closes the box */
    (void)status;
}

static void on_frame_home(struct mail *mail, void *owner)
{
    struct io_frame *f = CONTAINER_OF(mail, struct io_frame, mail);
    struct io_connection *c = f->connection;

    (void)owner;
    if (!c->is_dropped) {
        c->frame = f;
        (void)c->events->frame(c->owner, &f->header, f->head, f->body);
        c->frame = NULL;
    }
    f->mail.run = on_frame_back;
    post(f->thread, &f->mail);
}

static void on_frame_sent_home(struct mail *mail, void *owner)
{
    struct io_frame *f = CONTAINER_OF(mail, struct io_frame, mail);
    struct io_thread *t = f->thread;

    (void)owner;
    channel_loop_release(t->home_channels, &f->buffer);
    frame_put(&t->free_home, f);
}

static void on_connected_home(struct mail *mail, void *owner)
{
    struct io_connection *c = CONTAINER_OF(mail, struct io_connection, connected);

    (void)owner;
    if (!c->is_dropped)
        c->events->connected(c->owner);
}

static void on_closed_home(struct mail *mail, void *owner)
{
    struct io_connection *c = CONTAINER_OF(mail, struct io_connection, closed);
    const int why = c->why;

    (void)owner;
    if (c->is_dropped)
        return;
    c->events->closed(c->owner, why);
    io_connection_drop(c);
}

static void on_gone_home(struct mail *mail, void *owner)
{
    (void)owner;
    free(CONTAINER_OF(mail, struct io_connection, gone));
}

int io_connection_new(struct io_thread *t, const struct address *address,
                      const struct connector_events *events, void *owner,
                      struct io_connection **ret)
{
    struct io_connection *c = memory_try_alloc(sizeof *c);

    if (!c)
        return -ENOMEM;
    *c = (struct io_connection){ .thread = t,
                                 .events = events,
                                 .owner = owner,
                                 .address = *address,
                                 .open.run = on_open,
                                 .fail.run = on_fail,
                                 .drop.run = on_drop,
                                 .set_frame_max.run = on_set_frame_max,
                                 .connected.run = on_connected_home,
                                 .closed.run = on_closed_home,
                                 .gone.run = on_gone_home };
    post(t, &c->open);
    *ret = c;
    return 0;
}

void io_connection_drop(struct io_connection *c)
{
    if (!c || c->is_dropped)
        return;
    c->is_dropped = true;
    post(c->thread, &c->drop);
}

static void fail(struct io_connection *c)
{
    if (!c->has_failed)
        post(c->thread, &c->fail);
    c->has_failed = true;
}

void io_connection_send(struct io_connection *c, struct bytes *frame)
{
    struct io_frame *f;

    f = frame_take(&c->thread->free_home, c->thread);
    if (!f) {
        bytes_deinit(frame);
        fail(c);
        return;
    }
    f->connection = c;
    f->buffer = *frame;
    *frame = (struct bytes){ 0 };
    f->mail.run = on_send;
    post(c->thread, &f->mail);
}

void io_connection_set_frame_max(struct io_connection *c, uint32_t n_bytes)
{
    c->frame_max_bytes = n_bytes;
    post(c->thread, &c->set_frame_max);
}

struct bytes *io_connection_frame_buffer(struct io_connection *c)
{
    assert(c->frame);
    return c->frame->is_whole ? &c->frame->buffer : NULL;
}

/* ---- its life ---- */

static int start(struct io_thread *t)
{
    int status = connector_loop_init(&t->loop);

    if (status)
        return status;
    status = mailbox_init(&t->mailbox, &t->loop, t);
    if (status) {
        uv_loop_close(&t->loop);
        return status;
    }
    uv_timer_init(&t->loop, &t->alive);
    uv_timer_start(&t->alive, on_hour, HOUR_MS, HOUR_MS);
    mailbox_set_batch(&t->mailbox, begin_mails, end_mails);
    channel_loop_init(&t->channels, &t->loop);
    t->channels.tls = t->home_channels->tls;
    status = uv_thread_create(&t->thread, thread_main, t);
    if (!status)
        return 0;
    close_loop(t);
    uv_run(&t->loop, UV_RUN_DEFAULT);
    uv_loop_close(&t->loop);
    channel_loop_deinit(&t->channels);
    mailbox_deinit(&t->mailbox);
    return status;
}

int io_thread_new(struct mailbox *home, struct channel_loop *home_channels,
                  struct io_thread **ret)
{
    struct io_thread *t = memory_try_alloc(sizeof *t);
    int status;

    if (!t)
        return -ENOMEM;
    *t =
        (struct io_thread){ .home = home, .home_channels = home_channels, .stop.run = on_stop };
    status = start(t);
    if (status)
        free(t);
    else
        *ret = t;
    return status;
}

void io_thread_free(struct io_thread *t)
{
    if (!t)
        return;
    post(t, &t->stop);
    uv_thread_join(&t->thread);
    mailbox_deinit(&t->mailbox);
    free_frames(&t->free_here);
    free_frames(&t->free_home);
    free(t);
}

uint64_t io_thread_cpu_ns(const struct io_thread *t)
{
    struct timespec spent = { 0 };
    clockid_t clock;

    if (pthread_getcpuclockid(t->thread, &clock) || clock_gettime(clock, &spent))
        return 0;
    return (uint64_t)spent.tv_sec * 1000000000u + (uint64_t)spent.tv_nsec;
}
