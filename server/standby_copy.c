#include "server/standby_copy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/thread_role.h"
#include "proto/message_replication.h"
#include "server/replication/copy.h"

#define FILE_BYTES_MAX (4u << 20) /* of a reply; a standby asks for COPY_PIECE_BYTES */

struct standby_copy {
    struct standby_copy_config config;
    const struct file_ops *files; /* borrowed: config's */
    struct standby_files open;    /* owned */
    struct connection *copier;    /* borrowed; NULL: none */
    uint64_t answered_ms;         /* its last question, or its FOLLOW */
    bool has_all;                 /* it has got the end of the last file */
    struct copy_pace pace;
    uv_timer_t timer; /* until the next read */
    uv_work_t work;
    bool is_reading;            /* or is about to: `open` stays as it is */
    struct standby_files later; /* owned: of a copy that begins meanwhile */
    struct connection *reader;  /* borrowed: who waits for it; NULL: it has gone */
    const struct standby_file *file;
    struct file_request asked;
    uint64_t request_id;
    struct bytes bytes; /* owned: what was read */
    int status;
};

struct standby_copy *standby_copy_new(const struct standby_copy_config *config)
{
    struct standby_copy *c = memory_alloc(sizeof *c);

    c->config = *config;
    c->files = config->files;
    uv_timer_init(config->loop, &c->timer);
    c->timer.data = c->work.data = c;
    return c;
}

void standby_copy_close(struct standby_copy *c)
{
    uv_close((uv_handle_t *)&c->timer, NULL);
}

void standby_copy_free(struct standby_copy *c)
{
    if (!c)
        return;
    bytes_deinit(&c->bytes);
    standby_files_close(c->files, &c->open);
    standby_files_close(c->files, &c->later);
    free(c);
}

const struct connection *standby_copy_of(const struct standby_copy *c)
{
    return c->copier;
}

/* What is open is open for `copier` alone. */
static void use_later(struct standby_copy *c)
{
    if (c->is_reading)
        return;
    standby_files_close(c->files, &c->open);
    c->open = c->later;
    c->later = (struct standby_files){ 0 };
}

void standby_copy_begin(struct standby_copy *c, struct connection *connection,
                        struct standby_files *files)
{
    standby_files_close(c->files, &c->later);
    c->later = *files;
    *files = (struct standby_files){ 0 };
    c->copier = connection;
    c->answered_ms = clock_mono_ms();
    c->has_all = false;
    use_later(c);
}

void standby_copy_drop(struct standby_copy *c, const struct connection *connection)
{
    if (c->reader == connection) /* another one waits for its answer, and is held until then */
        c->reader = NULL;
    if (!c->copier || (connection && c->copier != connection))
        return;
    c->copier = NULL;
    standby_files_close(c->files, &c->later);
    use_later(c);
}

uint64_t standby_copy_silent_ms(const struct standby_copy *c, uint64_t now_ms)
{
    const bool asks = c->copier && !c->is_reading && !c->has_all;

    return asks && now_ms > c->answered_ms ? now_ms - c->answered_ms : 0;
}

void standby_copy_tick(struct standby_copy *c, uint64_t now_ms)
{
    struct connection *copier = c->copier;

    if (standby_copy_silent_ms(c, now_ms) < STANDBY_COPY_SILENCE_MS)
        return;
    log_line_warn("standby %.63s has stopped in the middle of its copy, and asked for nothing "
                  "for %u s: the copy is given up",
                  copier->hello.name, STANDBY_COPY_SILENCE_MS / 1000);
    standby_copy_drop(c, copier);
    connection_fail(copier, -ETIMEDOUT);
}

static int send_reply(struct connection *connection, uint64_t request_id,
                      const struct file_reply *reply)
{
    struct bytes frame = { 0 };
    int status = message_write_file_reply(&frame, request_id, reply);

    if (status)
        bytes_deinit(&frame);
    return status ? status : connection_send(connection, &frame);
}

static int refuse(const struct request *r, int status, const char *sentence)
{
    struct file_reply reply = { .status = status };

    snprintf(reply.text, sizeof reply.text, "%s", sentence);
    return send_reply(r->connection, r->header->request_id, &reply);
}

static void run(uv_work_t *work)
{
    struct standby_copy *c = work->data;

    enter_pool();
    c->status = standby_files_read(c->file, c->asked.offset, c->asked.max_bytes, &c->bytes);
}

static void answer(struct standby_copy *c, struct connection *connection)
{
    struct file_reply reply = { .status = c->status };
    int status;

    if (c->status) {
        snprintf(reply.text, sizeof reply.text, "cannot read %.100s: %s", c->asked.name,
                 status_text(c->status));
    } else {
        reply.file_bytes = c->file->n_bytes;
        reply.n_bytes = bytes_len(&c->bytes);
        reply.bytes = reply.n_bytes ? bytes_front(&c->bytes) : NULL;
    }
    if (connection == c->copier) {
        c->answered_ms = clock_mono_ms();
        c->has_all = !c->status && c->file + 1 == c->open.items + c->open.n &&
                     c->asked.offset + reply.n_bytes >= c->file->n_bytes;
    }
    status = send_reply(connection, c->request_id, &reply);
    connection_release(connection);
    if (status)
        connection_fail(connection, status);
}

static void on_read(uv_work_t *work, int canceled)
{
    struct standby_copy *c = work->data;
    struct connection *reader = c->reader;

    (void)canceled;
    enter_main();
    c->is_reading = false;
    c->reader = NULL;
    if (reader)
        answer(c, reader);
    bytes_deinit(&c->bytes);
    if (!c->copier || c->later.items)
        use_later(c);
}

static void on_time(uv_timer_t *timer);

/* Its asker may have gone while it waited. */
static void start_reading(struct standby_copy *c)
{
    if (!c->reader) {
        c->is_reading = false;
        use_later(c);
    } else if (uv_queue_work(c->config.loop, &c->work, run, on_read)) {
        abort(); /* only for a NULL callback */
    }
}

/* Now, or when it may: a copy leaves time for clients, if there are some. */
static void read_in_time(struct standby_copy *c)
{
    const uint64_t wait_ms = c->config.serves_clients(c->config.owner)
                                 ? copy_pace_wait_ms(&c->pace, uv_hrtime(), c->asked.max_bytes)
                                 : 0;

    if (!wait_ms || uv_timer_start(&c->timer, on_time, wait_ms, 0))
        start_reading(c);
}

static void on_time(uv_timer_t *timer)
{
    struct standby_copy *c = timer->data;

    enter_main();
    if (c->reader)
        read_in_time(c);
    else
        start_reading(c);
}

static int list(struct standby_copy *c, const struct request *r)
{
    struct bytes text = { 0 };
    struct file_reply reply = { 0 };
    int status = standby_files_list(&c->open, &text);

    if (!status) {
        reply.file_bytes = reply.n_bytes = bytes_len(&text);
        reply.bytes = text.bytes ? bytes_front(&text) : NULL;
        status = send_reply(r->connection, r->header->request_id, &reply);
    }
    bytes_deinit(&text);
    return status;
}

int standby_copy_request(struct standby_copy *c, struct request *r)
{
    struct file_request asked;
    int status = message_read_file(r->header, r->head, &asked);

    if (status)
        return status;
    if (c->copier != r->connection)
        return refuse(r, -EPERM, "this standby does not copy: FOLLOW first");
    if (c->is_reading) /* for one that has gone */
        return refuse(r, -EBUSY, "a file is being read: ask again");
    c->answered_ms = clock_mono_ms();
    c->has_all = c->open.n == 0;
    if (!asked.name[0])
        return list(c, r);
    c->file = standby_files_find(&c->open, asked.name);
    if (!c->file)
        return refuse(r, -ENOENT, "the restore point has no such file");
    if (!asked.max_bytes || asked.max_bytes > FILE_BYTES_MAX)
        asked.max_bytes = FILE_BYTES_MAX;
    c->asked = asked;
    c->request_id = r->header->request_id;
    c->reader = r->connection;
    c->is_reading = true;
    connection_hold(r->connection);
    read_in_time(c);
    return 0;
}
