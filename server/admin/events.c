#include "server/admin/events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/memory.h"
#include "server/admin/render.h"

#define BLOCK_BYTES (16u << 10) /* what libmicrohttpd asks for at a time */

/* One event, shared by its readers. */
struct event {
    uint32_t n_holders;
    uint64_t number;
    size_t n_bytes;
    char text[];
};

struct listener {
    struct listener *next, *prev;
    struct events *events; /* borrowed, as are these two */
    struct http_server *server;
    struct MHD_Connection *connection;
    struct event *event; /* held; NULL: none yet */
    size_t n_sent;       /* of it */
    bool is_suspended;
};

struct events {
    uv_mutex_t lock;
    uv_cond_t wake;
    uv_thread_t thread;
    bool has_thread, is_stopping;
    stats_with_report with_report;
    void *node;                 /* borrowed */
    struct history *history;    /* owned; NULL: none yet */
    struct listener *listeners; /* owned by their connections */
    uint32_t n_listeners;
    struct event *newest; /* held; NULL: none, or older than a second */
    uint64_t n_made;
};

/* --- events: under the lock --- */

static void release(struct event *event)
{
    if (event && --event->n_holders == 0)
        free(event);
}

static struct event *hold(struct event *event)
{
    if (event)
        event->n_holders++;
    return event;
}

/* --- a text --- */

struct making {
    struct events *events;
    bool is_wanted; /* there are listeners */
    char *text;     /* owned; NULL: no memory, or not wanted */
};

/* NULL: no memory. */
static char *make_text(struct events *e, const struct node_report *node,
                       char *(*render)(const struct node_report *node))
{
    char *json = render(node), *text = NULL;
    size_t n_bytes, n = json ? strlen(json) : 0;
    bool is_bad;
    FILE *out = json ? open_memstream(&text, &n_bytes) : NULL;

    if (!out) {
        free(json);
        return NULL;
    }
    n -= n && json[n - 1] == '\n'; /* a line ends the event's data */
    fprintf(out,
            "data: {\"slot\":%llu,\"values\":", (unsigned long long)history_newest(e->history));
    history_put_newest(e->history, out);
    fprintf(out, ",\"stats\":%.*s}\n\n", (int)n, json);
    free(json);
    is_bad = ferror(out) != 0;
    if (fclose(out) == 0 && !is_bad)
        return text;
    free(text);
    return NULL;
}

static void use_report(void *arg, const struct node_report *node)
{
    struct making *m = arg;

    (void)history_sample(m->events->history, node);
    if (!m->is_wanted)
        return;
    m->text = make_text(m->events, node, render_live);
    if (m->text && strlen(m->text) > EVENTS_BYTES_MAX) {
        free(m->text);
        m->text = make_text(m->events, node, render_live_short);
    }
}

/* Takes the text. NULL: no memory. */
static struct event *make_event(char *text)
{
    size_t n_bytes = text ? strlen(text) : 0;
    struct event *event = text ? memory_try_alloc(sizeof *event + n_bytes) : NULL;

    if (event) {
        event->n_holders = 1;
        event->n_bytes = n_bytes;
        memcpy(event->text, text, n_bytes);
    }
    free(text);
    return event;
}

static void wake_listeners(struct events *e)
{
    for (struct listener *i = e->listeners; i; i = i->next) {
        if (!i->is_suspended)
            continue;
        i->is_suspended = false;
        http_server_resume(i->server, i->connection);
    }
}

void events_make(struct events *e)
{
    struct making making = { .events = e };
    struct event *event;

    uv_mutex_lock(&e->lock);
    making.is_wanted = e->n_listeners > 0;
    uv_mutex_unlock(&e->lock);
    e->with_report(e->node, use_report, &making);
    event = make_event(making.text);
    uv_mutex_lock(&e->lock);
    release(e->newest);
    e->newest = event;
    if (event) {
        event->number = ++e->n_made;
        wake_listeners(e);
    }
    uv_mutex_unlock(&e->lock);
}

/* --- the thread --- */

/* Until the middle of the next second, so that a sample that is somewhat late is in its second all the same. */
static uint64_t wait_ns(void)
{
    uint64_t every_ns = EVENTS_EVERY_MS * UINT64_C(1000000);

    return every_ns - (clock_mono_ns() + every_ns / 2) % every_ns;
}

static void run(void *arg)
{
    struct events *e = arg;

    uv_mutex_lock(&e->lock);
    while (!e->is_stopping) {
        uv_mutex_unlock(&e->lock);
        events_make(e);
        uv_mutex_lock(&e->lock);
        if (!e->is_stopping)
            (void)uv_cond_timedwait(&e->wake, &e->lock, wait_ns());
    }
    uv_mutex_unlock(&e->lock);
}

struct events *events_new(stats_with_report with_report, void *node)
{
    struct events *e = memory_try_alloc(sizeof *e);

    if (!e)
        return NULL;
    e->with_report = with_report;
    e->node = node;
    if (uv_mutex_init(&e->lock) || uv_cond_init(&e->wake))
        abort(); /* only without memory */
    return e;
}

int events_keep_history(struct events *e, uint32_t n_shards, struct err *err)
{
    struct history *history = history_new(n_shards);

    if (!history)
        return err_set(err, -ENOMEM, "no memory for the stats page's history");
    uv_mutex_lock(&e->lock);
    e->history = history;
    uv_mutex_unlock(&e->lock);
    return 0;
}

int events_start(struct events *e, struct err *err)
{
    if (uv_thread_create(&e->thread, run, e))
        return err_set(err, -EAGAIN,
                       "cannot start the thread that keeps the history (ulimit -v and -u)");
    e->has_thread = true;
    return 0;
}

void events_stop(struct events *e)
{
    if (!e)
        return;
    uv_mutex_lock(&e->lock);
    e->is_stopping = true;
    uv_cond_signal(&e->wake);
    wake_listeners(e);
    uv_mutex_unlock(&e->lock);
    if (e->has_thread)
        uv_thread_join(&e->thread);
    e->has_thread = false;
}

void events_free(struct events *e)
{
    if (!e)
        return;
    release(e->newest);
    history_free(e->history);
    uv_cond_destroy(&e->wake);
    uv_mutex_destroy(&e->lock);
    free(e);
}

struct history *events_history(struct events *e)
{
    struct history *history;

    uv_mutex_lock(&e->lock);
    history = e->history;
    uv_mutex_unlock(&e->lock);
    return history;
}

uint32_t events_n_listeners(struct events *e)
{
    uint32_t n;

    uv_mutex_lock(&e->lock);
    n = e->n_listeners;
    uv_mutex_unlock(&e->lock);
    return n;
}

/* --- listeners: on the server's thread --- */

/* NULL: there are enough, or there is no memory. */
static struct listener *add_listener(struct events *e, struct http_server *server,
                                     struct MHD_Connection *connection)
{
    struct listener *listener = NULL;

    uv_mutex_lock(&e->lock);
    if (!e->is_stopping && e->n_listeners < EVENTS_LISTENERS_MAX)
        listener = memory_try_alloc(sizeof *listener);
    if (listener) {
        *listener = (struct listener){
            .next = e->listeners, .events = e, .server = server, .connection = connection
        };
        if (listener->next)
            listener->next->prev = listener;
        e->listeners = listener;
        e->n_listeners++;
        if (!e->newest)
            uv_cond_signal(&e->wake); /* the first one waits for no second to end */
    }
    uv_mutex_unlock(&e->lock);
    return listener;
}

/* The answer's end, however it came. */
static void remove_listener(void *arg)
{
    struct listener *listener = arg;
    struct events *e = listener->events;

    uv_mutex_lock(&e->lock);
    if (listener->prev)
        listener->prev->next = listener->next;
    else
        e->listeners = listener->next;
    if (listener->next)
        listener->next->prev = listener->prev;
    e->n_listeners--;
    release(listener->event);
    uv_mutex_unlock(&e->lock);
    free(listener);
}

/* True if there is something to send. Under the lock. */
static bool take_event(struct listener *listener)
{
    struct event *newest = listener->events->newest, *had = listener->event;

    if (had && listener->n_sent < had->n_bytes)
        return true;
    if (!newest || (had && had->number == newest->number))
        return false;
    listener->event = hold(newest);
    listener->n_sent = 0;
    release(had);
    http_server_extend(listener->server, listener->connection);
    return true;
}

/* libmicrohttpd has sent what it had, and asks for more. */
static ssize_t read_more(void *arg, uint64_t position, char *dst, size_t n_max)
{
    struct listener *listener = arg;
    struct events *e = listener->events;
    size_t n = 0;

    (void)position;
    uv_mutex_lock(&e->lock);
    if (e->is_stopping) {
        uv_mutex_unlock(&e->lock);
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    if (take_event(listener)) {
        n = listener->event->n_bytes - listener->n_sent;
        n = n < n_max ? n : n_max;
        memcpy(dst, listener->event->text + listener->n_sent, n);
        listener->n_sent += n;
    } else {
        listener->is_suspended = true;
        MHD_suspend_connection(listener->connection);
    }
    uv_mutex_unlock(&e->lock);
    return (ssize_t)n;
}

enum MHD_Result events_send(struct events *e, struct http_server *server,
                            struct MHD_Connection *connection, const char *method)
{
    static const char content_type[] = "text/event-stream";
    struct MHD_Response *response;
    struct listener *listener;

    if (strcmp(method, MHD_HTTP_METHOD_HEAD) == 0)
        return http_server_send(
            connection, MHD_HTTP_OK, content_type, NULL,
            MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT));
    listener = add_listener(e, server, connection);
    if (!listener)
        return http_server_send_sentence(
            connection, MHD_HTTP_SERVICE_UNAVAILABLE,
            "too many pages are open: close one, or read /stats\n");
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_more,
                                                 listener, remove_listener);
    if (!response)
        remove_listener(listener);
    return http_server_send(connection, MHD_HTTP_OK, content_type, NULL, response);
}
