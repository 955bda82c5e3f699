/*
 * Where operators are served: connections on the main thread that send commands (FRAME_ADMIN)
 * and get JSON.
 *
 *     status tables workers why stats     what render.h makes of the node's report
 *     checkpoint                          takes one, and answers when it is done
 *     row                                 inquiry.h
 *
 * Each connection waits for one answer of the last two at a time.
 */
#ifndef SERVER_DESK_H
#define SERVER_DESK_H

#include "server/facts.h"
#include "server/inquiry.h"
#include "server/keeper.h"
#include "server/net/switchboard.h"

struct desk;

struct desk_config {
    uv_loop_t *loop;                   /* borrowed */
    const struct hello_reply *welcome; /* borrowed */
    uint64_t frame_timeout_ms;
    struct facts *facts;   /* borrowed */
    struct keeper *keeper; /* borrowed; NULL: no data directory */
    struct inquiry_config inquiry;
    void (*refresh)(void *node); /* publishes the newest facts */
    void *node;                  /* borrowed */
};

struct desk *desk_new(const struct desk_config *config) ON_MAIN;

/* All connections have closed. NULL is fine. */
void desk_free(struct desk *d) ON_MAIN;

/* Takes `fd` whatever is returned. */
int desk_receive(struct desk *d, int fd, uint64_t request_id, const struct hello *hello)
    ON_MAIN MUST_CHECK;

/* A few times a second. */
void desk_sweep(struct desk *d) ON_MAIN;

/* Refuses who waits, hangs up. */
void desk_close(struct desk *d) ON_MAIN;

uint64_t desk_n_connections(const struct desk *d) ON_MAIN;

void desk_count(const struct desk *d, struct switchboard_counts *ret, uint64_t *ret_n_refused)
    ON_MAIN;

#endif
