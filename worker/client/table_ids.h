/*
 * The tables of one link, and the shard's number of each. The client's number of a table is its index here, from 0.
 * Tables are requested anew on each connection, because a restarted shard may number its tables otherwise.
 *
 *     request_id 0, unknown    -> requested: request_id set    -> known: shard_ids[i] valid
 *          ^                                                              |
 *          +------------------------- table_ids_reset(): a new connection +
 */
#ifndef WORKER_CLIENT_TABLE_IDS_H
#define WORKER_CLIENT_TABLE_IDS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/message.h"
#include "worker/client/ps_types.h"

struct requested_table {
    struct table_request request;
    uint64_t request_id; /* on this connection; 0: not requested yet */
    bool known;          /* on this connection */
    bool ever_known;
};

/* Zeroed: no tables. */
struct table_ids {
    struct requested_table *items; /* owned */
    uint32_t shard_ids[PS_TABLES_MAX];
    uint32_t n, cap;
};

void table_ids_deinit(struct table_ids *t);

/* Makes space for one more table, so that table_ids_add() finds it. Pointers to items are valid until the next call.
 * -ENOMEM. */
int table_ids_reserve(struct table_ids *t) MUST_CHECK;

/* Adds an unknown table; at most PS_TABLES_MAX. Its space is reserved. */
struct requested_table *table_ids_add(struct table_ids *t, const struct table_request *request);

/* Makes all tables unknown. */
void table_ids_reset(struct table_ids *t);

bool table_ids_all_known(const struct table_ids *t);

/* The table with this request_id, which is not 0; NULL: none. */
struct requested_table *table_ids_find(struct table_ids *t, uint64_t request_id);

/* Sets the shard's number of a table, which is known from then on. */
void table_ids_set(struct table_ids *t, struct requested_table *item, uint32_t shard_id);

#endif
