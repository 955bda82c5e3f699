/*
 * Samples of tables. The first --metrics-tables of a node have their own. The dense ones of a job are one sum, as in
 * psctl tables, under the name "JOB (dense)": one job has a dozen, which nobody charts one by one. All others are a sum
 * without the label table.
 */
#ifndef SERVER_ADMIN_METRICS_TABLES_H
#define SERVER_ADMIN_METRICS_TABLES_H

#include <stdio.h>

#include "server/admin/stats.h"

/* False without memory; nothing, or a part, is written then. */
bool metrics_tables_put(FILE *out, const struct node_report *node) MUST_CHECK;

#endif
