#include "server/acks.h"

#include <errno.h>
#include <stdlib.h>

#include "common/mem.h"

#define SPARES_MAX 256u /* so many that wait at a time cost no allocation */

struct ack {
    struct pile_link spare; /* once it is sent */
    struct ack *next;
    struct connection *connection; /* borrowed; acks_drop() comes before it goes */
    uint64_t number, since_ns;
    struct buf frame; /* owned */
    struct ack_timing timing;
};

static uint64_t bytes_of(const struct buf *frame)
{
    return sizeof(struct ack) + buf_len(frame);
}

void acks_init(struct acks *a)
{
    *a = (struct acks){ .spares = { .n_max = SPARES_MAX } };
    a->last = &a->first;
}

static void free_ack(struct ack *ack)
{
    buf_deinit(&ack->frame);
    free(ack);
}

/* The first in line, without it being sent. */
static struct ack *take(struct acks *a, struct ack **at)
{
    struct ack *ack = *at;

    *at = ack->next;
    if (!*at)
        a->last = at;
    a->n_waiting--;
    a->waiting_bytes -= bytes_of(&ack->frame);
    a->since_ns = a->first ? a->first->since_ns : 0;
    return ack;
}

static struct ack *ack_of(struct pile_link *spare)
{
    return spare ? CONTAINER_OF(spare, struct ack, spare) : NULL;
}

void acks_deinit(struct acks *a)
{
    struct ack *ack;

    while (a->first)
        free_ack(take(a, &a->first));
    while ((ack = ack_of(pile_pop(&a->spares))) != NULL)
        free_ack(ack);
}

/* Done with, in no line. */
static void put_by(struct acks *a, struct ack *ack)
{
    buf_deinit(&ack->frame);
    if (!pile_push(&a->spares, &ack->spare))
        free(ack);
}

/* NULL: no memory. */
static struct ack *take_spare(struct acks *a)
{
    struct ack *ack = ack_of(pile_pop(&a->spares));

    return ack ? ack : mem_try_alloc(sizeof *ack);
}

static void measure(const struct ack_timing *timing)
{
    histogram_record(&timing->requests->latency_ns, uv_hrtime() - timing->start_ns);
}

/* A reply that finds no memory to wait in: its peer asks again, and is told then. */
static int line_up(struct acks *a, struct connection *c, struct buf *frame,
                   const struct ack_timing *timing)
{
    struct ack *ack =
        a->waiting_bytes + bytes_of(frame) <= ACKS_BYTES_MAX ? take_spare(a) : NULL;

    if (!ack) {
        buf_deinit(frame);
        return -ENOMEM;
    }
    *ack = (struct ack){ .connection = c,
                         .number = a->appended,
                         .since_ns = uv_hrtime(),
                         .frame = *frame,
                         .timing = *timing };
    *frame = (struct buf){ 0 };
    *a->last = ack;
    a->last = &ack->next;
    a->n_waiting++;
    a->waiting_bytes += bytes_of(&ack->frame);
    a->since_ns = a->first->since_ns;
    return 0;
}

int acks_send(struct acks *a, struct connection *c, struct buf *frame,
              const struct ack_timing *timing)
{
    if (a->acknowledged < a->appended)
        return line_up(a, c, frame, timing);
    measure(timing);
    return connection_send(c, frame);
}

void acks_reach(struct acks *a, uint64_t acknowledged)
{
    if (acknowledged > a->acknowledged)
        a->acknowledged = acknowledged;
    while (a->first && a->first->number <= a->acknowledged) {
        struct ack *ack = take(a, &a->first);
        int status;

        measure(&ack->timing);
        status = connection_send(ack->connection, &ack->frame);
        if (status)
            connection_fail(ack->connection, status);
        put_by(a, ack);
    }
}

uint64_t acks_waited_ms(const struct acks *a)
{
    return a->first ? (uv_hrtime() - a->first->since_ns) / 1000000 : 0;
}

void acks_drop(struct acks *a, const struct connection *c)
{
    struct ack **at = &a->first;

    while (*at) {
        if ((*at)->connection == c)
            put_by(a, take(a, at));
        else
            at = &(*at)->next;
    }
}
