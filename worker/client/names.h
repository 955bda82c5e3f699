/*
 * The tables that a link asks its shard for: the client's numbers 0, 1, 2 ... to the shard's.
 * Asked anew on each connection, as a shard that was started again may number them otherwise.
 */
#ifndef WORKER_CLIENT_NAMES_H
#define WORKER_CLIENT_NAMES_H

#include <stdbool.h>

#include "proto/message.h"

struct name {
    struct table_request request;
    uint64_t request_id; /* on this connection; 0: to be asked */
    bool known;          /* on this connection */
    bool ever_known;
};

struct names {
    struct name *items;  /* owned */
    uint32_t *shard_ids; /* owned, [n] */
    uint32_t n, cap;
};

void names_deinit(struct names *names);
void names_add(struct names *names, const struct table_request *request);
void names_drop_last(struct names *names);

/* A new connection: nothing is known. */
void names_forget(struct names *names);

/* How many are not known on this connection. */
uint32_t names_unknown(const struct names *names);

/* The one that was asked for with this request, or NULL. */
struct name *names_find(struct names *names, uint64_t request_id);

/* `item` is the shard's table shard_id. */
void names_know(struct names *names, struct name *item, uint32_t shard_id);

#endif
