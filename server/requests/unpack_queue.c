#include "server/requests/unpack_queue.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"

struct packed_request {
    struct packed_request *next;
    struct frame_header header;
    struct request request; /* its head and its body point into the held frame */
    uint64_t since_ms;
};

struct unpack_line {
    struct packed_request *first, **last; /* owned */
    bool is_begun;                        /* the first one */
    uint64_t no_space_ms; /* since when that cannot begin for want of memory; 0: it can */
    const uint8_t *body;  /* of the first one, once it is begun */
    const struct connection *user; /* borrowed: uses what was unpacked last; or NULL */
    struct message_zstd zstd;
};

enum { LINE_PUSHES, LINE_PULLS, LINE_READERS, N_LINES };

struct unpack_queue {
    struct unpack_queue_config config;
    struct unpack_line lines[N_LINES];
    uint32_t turn; /* which of them had the last one */
};

struct unpack_queue *unpack_queue_new(const struct unpack_queue_config *config)
{
    struct unpack_queue *q = memory_alloc(sizeof *q);

    q->config = *config;
    for (uint32_t i = 0; i < N_LINES; i++)
        q->lines[i].last = &q->lines[i].first;
    return q;
}

/* Takes *at out of the line; it is the caller's. */
static struct packed_request *take(struct unpack_line *line, struct packed_request **at)
{
    struct packed_request *a = *at;

    if (a == line->first) {
        line->is_begun = false;
        line->no_space_ms = 0;
    }
    *at = a->next;
    if (!*at)
        line->last = at;
    return a;
}

void unpack_queue_free(struct unpack_queue *q)
{
    if (!q)
        return;
    for (uint32_t i = 0; i < N_LINES; i++) {
        while (q->lines[i].first)
            free(take(&q->lines[i], &q->lines[i].first));
        message_zstd_deinit(&q->lines[i].zstd);
    }
    free(q);
}

static struct unpack_line *line_of(struct unpack_queue *q, const struct request *r)
{
    if (r->header->type == FRAME_PUSH)
        return &q->lines[LINE_PUSHES];
    return &q->lines[r->connection->channel.turn.is_low ? LINE_READERS : LINE_PULLS];
}

int unpack_queue_add(struct unpack_queue *q, struct request *r)
{
    struct unpack_line *line = line_of(q, r);
    struct packed_request *a = memory_try_alloc(sizeof *a);

    if (!a)
        return -ENOMEM;
    request_hold(r);
    a->header = *r->header;
    a->request = *r;
    a->request.header = &a->header;
    a->request.is_late = true;
    a->request.stays_held = false;
    a->since_ms = uv_now(q->config.loop);
    *line->last = a;
    line->last = &a->next;
    return 0;
}

/* --- whose turn it is --- */

/* Does the connection that had the last turn still use its body? */
static bool is_in_use(const struct unpack_line *line)
{
    return line->user && line->user->unpacks_in_slices;
}

/* What connections hold whose bodies wait. */
static size_t held_by_waiting(const struct unpack_queue *q)
{
    size_t n_bytes = 0;

    for (uint32_t i = 0; i < N_LINES; i++)
        for (const struct packed_request *a = q->lines[i].first; a; a = a->next)
            n_bytes += a->request.connection->channel.held_bytes;
    return n_bytes;
}

/* Is there no space for it that others may make? */
static bool lacks_space(const struct unpack_queue *q, const struct packed_request *a)
{
    const struct channel_memory *m = a->request.connection->channel.channels->memory;
    size_t n_bytes = a->request.body_bytes;

    return m && channel_memory_used(m) + n_bytes > m->max_bytes &&
           channel_memory_used(m) + n_bytes > m->max_bytes + held_by_waiting(q);
}

static bool may_begin(const struct unpack_queue *q, struct unpack_line *line)
{
    uint64_t now_ms = uv_now(q->config.loop);

    if (is_in_use(line))
        return false;
    if (!lacks_space(q, line->first)) {
        line->no_space_ms = 0;
        return true;
    }
    if (!line->no_space_ms)
        line->no_space_ms = now_ms;
    return now_ms - line->no_space_ms >= UNPACK_QUEUE_SPACE_MS;
}

static bool is_busy(const struct unpack_queue *q, struct unpack_line *line)
{
    return line->first && (line->is_begun || may_begin(q, line));
}

bool unpack_queue_is_busy(struct unpack_queue *q)
{
    for (uint32_t i = 0; i < N_LINES; i++)
        if (is_busy(q, &q->lines[i]))
            return true;
    return false;
}

/* --- the first of a line --- */

static int begin(struct unpack_line *line)
{
    struct packed_request *a = line->first;
    struct request *r = &a->request;

    line->is_begun = true;
    line->no_space_ms = 0;
    return connection_begin_unpacking(r->connection, &line->zstd, r->packed,
                                      a->header.body_bytes, r->body_bytes, &line->body);
}

/* It is unpacked, or is not, for that reason. */
static void end(struct unpack_queue *q, struct unpack_line *line, int status) ON_SHARD
{
    struct packed_request *a = take(line, &line->first);
    struct request *r = &a->request;

    r->unpack_status = status;
    if (status) {
        connection_drop_unpacked(r->connection);
    } else {
        r->packed = NULL;
        r->body = line->body;
        line->user = r->connection;
    }
    status = q->config.on_late(q->config.owner, r);
    if (!r->stays_held)
        connection_release(r->connection);
    if (status)
        connection_fail(r->connection, status);
    free(a);
}

/* Whose turn it is; NULL: none has work. */
static struct unpack_line *next_line(struct unpack_queue *q)
{
    for (uint32_t i = 0; i < N_LINES; i++) {
        struct unpack_line *line = &q->lines[++q->turn % N_LINES];

        if (is_busy(q, line))
            return line;
    }
    return NULL;
}

void unpack_queue_more(struct unpack_queue *q)
{
    struct unpack_line *line = next_line(q);
    bool is_whole = false;
    int status = 0;

    if (!line)
        return;
    if (!line->is_begun)
        status = begin(line);
    if (!status)
        status =
            connection_unpack_more(line->first->request.connection, &line->zstd, &is_whole);
    if (status || is_whole)
        end(q, line, status);
}

/* --- for dispatch --- */

void unpack_queue_drop(struct unpack_queue *q, const struct connection *c)
{
    for (uint32_t i = 0; i < N_LINES; i++) {
        struct unpack_line *line = &q->lines[i];
        struct packed_request **at = &line->first;

        if (line->user == c)
            line->user = NULL;
        while (*at) {
            if ((*at)->request.connection == c)
                free(take(line, at));
            else
                at = &(*at)->next;
        }
    }
}

void unpack_queue_stop(struct unpack_queue *q, int status)
{
    for (uint32_t i = 0; i < N_LINES; i++)
        while (q->lines[i].first)
            end(q, &q->lines[i], status);
}

/* --- the report --- */

static void name(const struct connection *c, char *dst, size_t n_bytes)
{
    if (c->worker.joined)
        snprintf(dst, n_bytes, "job %.28s, worker %u", c->worker.job, c->worker.rank);
    else
        snprintf(dst, n_bytes, "a reader at %.40s", c->peer);
}

static void explain(const struct unpack_queue *q, const struct unpack_line *line,
                    struct stats_wait *wait)
{
    const struct packed_request *a = line->first;
    const struct channel_memory *m = a->request.connection->channel.channels->memory;
    const struct connection *now = line->is_begun    ? a->request.connection
                                   : is_in_use(line) ? line->user
                                                     : NULL;
    char who[80];

    if (!now && line->no_space_ms && m) {
        snprintf(wait->why, sizeof wait->why,
                 "no space in --client-memory: %" PRIu64 " of %" PRIu64
                 " bytes are held, %zu more are needed",
                 channel_memory_used(m), m->max_bytes, a->request.body_bytes);
        wait->until_unix_ms =
            wait->since_unix_ms + UNPACK_QUEUE_SPACE_MS + (line->no_space_ms - a->since_ms);
        return;
    }
    name(now ? now : a->request.connection, who, sizeof who);
    snprintf(wait->why, sizeof wait->why,
             "shard %u decompresses one long body after the other; now that of %s",
             q->config.shard_number, who);
}

uint32_t unpack_queue_report(const struct unpack_queue *q, uint64_t unix_ms,
                             struct stats_wait *ret_waits, uint32_t n_max)
{
    static const char *const names[N_LINES] = { "pushes", "pulls", "readers' pulls" };
    uint32_t n = 0;

    for (uint32_t i = 0; i < N_LINES && n < n_max; i++) {
        const struct unpack_line *line = &q->lines[i];
        const struct packed_request *first =
            line->first && line->is_begun ? line->first->next : line->first;
        struct stats_wait *wait = &ret_waits[n];
        uint32_t n_waiting = 0;

        for (const struct packed_request *a = first; a; a = a->next)
            n_waiting++;
        if (!n_waiting)
            continue;
        n++;
        *wait = (struct stats_wait){ .since_unix_ms =
                                         unix_ms - (uv_now(q->config.loop) - first->since_ms) };
        snprintf(wait->what, sizeof wait->what, "compressed body");
        snprintf(wait->who, sizeof wait->who, "%u %s to shard %u", n_waiting, names[i],
                 q->config.shard_number);
        explain(q, line, wait);
    }
    return n;
}
