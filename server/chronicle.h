/*
 * Who has come and gone, as lines for the operator: of each worker that it has joined, left, was declared dead
 * or never came. Read off the reports of one of the node's shards, as every worker joins all of them.
 */
#ifndef SERVER_CHRONICLE_H
#define SERVER_CHRONICLE_H

#include "common/log.h"
#include "common/thread_role.h"
#include "server/admin/report.h"

struct chronicle;

/* Gets each line; NULL in its place: the log. */
typedef void (*chronicle_tell)(void *arg, enum log_level level, const char *line);

struct chronicle *chronicle_new(chronicle_tell tell, void *arg) ON_MAIN;
/* NULL is fine. */
void chronicle_free(struct chronicle *c) ON_MAIN;

/* What has changed since the last report. A worker that comes and goes between two is told to have gone. */
void chronicle_look(struct chronicle *c, const struct shard_report *report) ON_MAIN;

#endif
