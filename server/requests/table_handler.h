/*
 * TABLE: makes a table, or finds it. No single client takes all places of --tables-max, and a refusal for want of one
 * names the job that has most of them.
 */
#ifndef SERVER_REQUESTS_TABLE_HANDLER_H
#define SERVER_REQUESTS_TABLE_HANDLER_H

#include "server/requests/request_context.h"

/* Of the last table that was refused, as there were --tables-max. Times are the loop's. */
struct table_handler_full {
    uint64_t refused_ms, counted_ms; /* 0: never */
    uint32_t n_tables, n_most;       /* on the shard; of the job that had most of them, */
    char job[TABLE_SPEC_NAME_MAX];   /* when they were last counted */
};

struct table_handler {
    struct request_context *context; /* borrowed */
    uint32_t tables_max;             /* of the shard; 0: no limit */
    struct table_handler_full full;
};

/* REQUEST_LATER: it waits for space in the log. */
int table_handler_receive(struct table_handler *t, struct request *r) ON_SHARD MUST_CHECK;

#endif
