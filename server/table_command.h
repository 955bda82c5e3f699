/*
 * An operator's command on the tables of a job (server/core/table_admin.h), on all shards of this node, one after the
 * other. First each shard checks that it can, and locks the job: nobody joins it there until the shard has executed the
 * command. So no worker finds some shards changed and others not. Then each executes it; then each syncs its log: a
 * reply is about state that survives a crash, whatever --durability is. If psd ends in between, some shards have
 * executed the command; the same command again does the rest.
 *
 *     check all ---> act on all ---> sync all ---> done
 *         |              |
 *         +--------------+--> unlock all ---> failure; -ETIMEDOUT if some shards have executed it
 */
#ifndef SERVER_TABLE_COMMAND_H
#define SERVER_TABLE_COMMAND_H

#include "server/shard_call.h"

struct table_command;

enum table_command_kind {
    TABLE_COMMAND_DROP_CHECK, /* argument: JOB; nothing changes */
    TABLE_COMMAND_DROP,
    TABLE_COMMAND_SET_CHECK, /* argument: JOB NAME=VALUE,... */
    TABLE_COMMAND_SET,
    TABLE_COMMAND_END
};

/* The command's kind by its name (drop-check, drop, set-check, set); TABLE_COMMAND_END: it is none of these. */
enum table_command_kind table_command_kind(const char *name);

/* json: {"job":..., "tables":..., "rows":..., "bytes":...} of this node's shards; of a failure NULL. */
typedef void (*table_command_done)(void *arg, const struct err *err, const char *json);

/* `done` is called once, later, from the loop, unless it is cancelled. PS_ESETTING: a wrong argument; PS_ESTOPPING. */
int table_command_start(const struct shard_call_config *config, enum table_command_kind kind,
                        const char *argument, table_command_done done, void *arg,
                        struct table_command **ret, struct err *err) ON_MAIN MUST_CHECK;

/* A few times a second: goes on where the log was full, or not yet on the disk. May call `done`. */
void table_command_tick(struct table_command *c) ON_MAIN;

/* `done` is not called any more. It goes on as far as no shard has to wait; executed parts stay executed. */
void table_command_cancel(struct table_command *c) ON_MAIN;

#endif
