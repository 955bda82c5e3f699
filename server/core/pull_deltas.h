/* Of one connection: the rows of each table that its client is known to have (delta_rows.h). */
#ifndef SERVER_CORE_PULL_DELTAS_H
#define SERVER_CORE_PULL_DELTAS_H

#include "server/core/delta_rows.h"

struct pull_deltas;

#define PULL_DELTAS_TABLES_MAX 1024u /* of one connection */

/* `memory`: borrowed. NULL without memory. */
struct pull_deltas *pull_deltas_new(struct delta_memory *memory) MUST_CHECK;
void pull_deltas_free(struct pull_deltas *p);

/* Those of the table with this number, which are none at first. *ret is what to take where there are too many tables,
 * or the budget has no space for one more: it is made bare then. -ENOMEM: not even that. */
int pull_deltas_find(struct pull_deltas *p, uint32_t table_id, const struct table_spec *spec,
                     struct delta_rows **ret) MUST_CHECK;

/* Frees those of tables that are not there any more. No answer with their rows is being written. */
void pull_deltas_drop(struct pull_deltas *p, bool (*is_there)(void *arg, uint32_t table_id),
                      void *arg);

/* A number that no answer of this connection has had. */
uint64_t pull_deltas_next_number(struct pull_deltas *p);

#endif
