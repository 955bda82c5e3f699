#include "server/desk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/mem.h"
#include "server/admin/render.h"

#define COMMAND_BYTES_MAX 4096u /* head + body of a command */

/* An operator who waits for a checkpoint, or for a row. */
struct ticket {
    struct ticket *next;
    struct desk *desk;
    struct connection *connection; /* borrowed; on_closed() comes before it goes */
    uint64_t request_id;
    struct inquiry *inquiry; /* borrowed; NULL: it is for a checkpoint */
};

struct desk {
    struct desk_config config;
    struct channel_hub hub;
    struct switchboard switchboard;
    struct ticket *tickets; /* owned */
    uint64_t n_refused;
};

/* A report on its way to JSON. */
struct rendering {
    const char *what;
    char *json; /* owned by whoever asked */
};

static void render(void *arg, const struct node_report *report)
{
    struct rendering *rendering = arg;

    rendering->json = render_json(report, rendering->what);
}

static int answer(struct connection *c, uint64_t request_id, const char *json)
{
    struct status_reply reply = { 0 };
    struct buf frame = { 0 };
    int status = message_write_admin_reply(&frame, request_id, &reply, json, strlen(json));

    return status ? status : connection_send(c, &frame);
}

static int refuse(struct desk *d, struct connection *c, uint64_t request_id, int told,
                  const char *sentence)
{
    struct status_reply reply = { .status = told };
    struct buf frame = { 0 };
    int status;

    d->n_refused++;
    snprintf(reply.text, sizeof reply.text, "%s", sentence);
    status = message_write_admin_reply(&frame, request_id, &reply, NULL, 0);
    return status ? status : connection_send(c, &frame);
}

/* --- who waits --- */

static void drop_ticket(struct desk *d, struct ticket **at) ON_MAIN
{
    struct ticket *ticket = *at;

    *at = ticket->next;
    if (ticket->inquiry)
        inquiry_forget(ticket->inquiry);
    else if (d->config.keeper)
        keeper_forget(d->config.keeper, ticket);
    free(ticket);
}

/* The answer, and the end of the ticket. */
static void serve_ticket(struct ticket *ticket, const struct err *err, const char *json) ON_MAIN
{
    struct ticket **at = &ticket->desk->tickets;
    struct desk *d = ticket->desk;
    struct connection *c = ticket->connection;
    uint64_t request_id = ticket->request_id;
    int status;

    while (*at != ticket)
        at = &(*at)->next;
    *at = ticket->next;
    free(ticket);
    status = err->status ? refuse(d, c, request_id, err->status, err->text)
                         : answer(c, request_id, json);
    if (status)
        connection_fail(c, status);
}

static const struct ticket *find_ticket(const struct desk *d, const struct connection *c)
{
    const struct ticket *ticket = d->tickets;

    while (ticket && ticket->connection != c)
        ticket = ticket->next;
    return ticket;
}

static struct ticket *add_ticket(struct desk *d, struct connection *c, uint64_t request_id)
{
    struct ticket *ticket = mem_alloc(sizeof *ticket);

    *ticket = (struct ticket){
        .next = d->tickets, .desk = d, .connection = c, .request_id = request_id
    };
    d->tickets = ticket;
    return ticket;
}

static int refuse_second(struct desk *d, struct connection *c, uint64_t request_id)
{
    return refuse(d, c, request_id, -EBUSY, "this connection waits for an answer already");
}

/* --- checkpoint --- */

static void on_checkpoint(void *arg, const struct keeper_record *record)
{
    char json[240];

    enter_main();
    snprintf(json, sizeof json,
             "{\"number\":%" PRIu64 ",\"base\":%" PRIu64 ",\"rows\":%" PRIu64
             ",\"bytes\":%" PRIu64 ",\"ms\":%" PRIu64 "}",
             record->number, record->base, record->n_rows, record->n_bytes, record->took_ms);
    serve_ticket(arg, &record->error, json);
}

static int wish_checkpoint(struct desk *d, struct connection *c, uint64_t request_id) ON_MAIN
{
    if (!d->config.keeper)
        return refuse(d, c, request_id, -EINVAL,
                      "checkpoint: this node has no --data-dir to write to");
    if (find_ticket(d, c))
        return refuse_second(d, c, request_id);
    keeper_wish(d->config.keeper, on_checkpoint, add_ticket(d, c, request_id));
    return 0;
}

/* --- row --- */

static void on_row(void *arg, const struct err *err, const char *json)
{
    enter_main();
    serve_ticket(arg, err, json);
}

static int look_up_row(struct desk *d, struct connection *c, uint64_t request_id,
                       const char *argument) ON_MAIN
{
    struct ticket *ticket;
    struct err err = { 0 };

    if (find_ticket(d, c))
        return refuse_second(d, c, request_id);
    ticket = add_ticket(d, c, request_id);
    if (inquiry_start(&d->config.inquiry, argument, on_row, ticket, &ticket->inquiry, &err) ==
        0)
        return 0;
    d->tickets = ticket->next;
    free(ticket);
    return refuse(d, c, request_id, err.status, err.text);
}

/* --- the switchboard's events --- */

static int show(struct desk *d, struct connection *c, uint64_t request_id, const char *what)
{
    struct rendering rendering = { .what = what };
    char sentence[160];
    int status;

    d->config.refresh(d->config.node);
    facts_with_report(d->config.facts, render, &rendering);
    if (!rendering.json) {
        snprintf(sentence, sizeof sentence,
                 "command: found \"%s\", expected status, tables, workers, why, stats, "
                 "checkpoint or row",
                 what);
        return refuse(d, c, request_id, -EINVAL, sentence);
    }
    status = answer(c, request_id, rendering.json);
    free(rendering.json);
    return status;
}

static int on_request(void *owner, struct connection *c, const struct frame_header *header,
                      const uint8_t *head, const uint8_t *body)
{
    struct desk *d = owner;
    struct admin asked;
    int status;

    (void)body;
    enter_main();
    if (header->type != FRAME_ADMIN)
        return PS_EPROTO;
    status = message_read_admin(header, head, &asked);
    if (status)
        return refuse(d, c, header->request_id, status, status_text(status));
    if (strcmp(asked.command, "checkpoint") == 0)
        return wish_checkpoint(d, c, header->request_id);
    if (strcmp(asked.command, "row") == 0)
        return look_up_row(d, c, header->request_id, asked.argument);
    return show(d, c, header->request_id, asked.command);
}

static void on_closed(void *owner, struct connection *c, int why)
{
    struct desk *d = owner;
    struct ticket **at = &d->tickets;

    (void)why;
    enter_main();
    while (*at) {
        if ((*at)->connection == c)
            drop_ticket(d, at);
        else
            at = &(*at)->next;
    }
}

static const struct connection_events desk_events = { .request = on_request,
                                                      .closed = on_closed };

/* --- for the node --- */

struct desk *desk_new(const struct desk_config *config)
{
    struct desk *d = mem_alloc(sizeof *d);
    struct switchboard_config switchboard = { .hub = &d->hub,
                                              .frame_max_bytes = COMMAND_BYTES_MAX,
                                              .frame_timeout_ms = config->frame_timeout_ms,
                                              .welcome = config->welcome,
                                              .events = &desk_events,
                                              .owner = d };

    d->config = *config;
    channel_hub_init(&d->hub, config->loop);
    switchboard_init(&d->switchboard, &switchboard);
    return d;
}

void desk_free(struct desk *d)
{
    if (d)
        channel_hub_deinit(&d->hub);
    free(d);
}

int desk_receive(struct desk *d, int fd, uint64_t request_id, const struct hello *hello)
{
    return switchboard_open(&d->switchboard, fd, request_id, hello);
}

void desk_sweep(struct desk *d)
{
    switchboard_sweep(&d->switchboard, uv_now(d->config.loop));
}

void desk_close(struct desk *d)
{
    while (d->tickets) {
        if (refuse(d, d->tickets->connection, d->tickets->request_id, PS_ESTOPPING,
                   status_text(PS_ESTOPPING)))
            log_debug("an operator left before the answer");
        drop_ticket(d, &d->tickets);
    }
    switchboard_close_all(&d->switchboard);
    channel_hub_close(&d->hub);
}

uint64_t desk_n_connections(const struct desk *d)
{
    struct switchboard_counts counts;

    switchboard_count(&d->switchboard, &counts);
    return counts.connections;
}

void desk_count(const struct desk *d, struct switchboard_counts *ret, uint64_t *ret_n_refused)
{
    switchboard_count(&d->switchboard, ret);
    *ret_n_refused = d->n_refused;
}
