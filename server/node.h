/*
 * One psd process from its settings to its exit status: the main thread's loop and all that
 * hangs on it.
 *
 *     STARTING   the listener is open to operators, and puts workers off; restoring
 *                                             -> SERVING, or ENDING with a sentence, or by SIGTERM
 *     FOLLOWING  the same, of a standby (standby.h); promoted -> SERVING, or ENDING, to begin again
 *     SERVING    the listener is open to all  SIGTERM or SIGINT -> STOPPING
 *     STOPPING   the listener is closed, shards are drained, the last checkpoint is written -> ENDING
 *     ENDING     threads and handles close    -> node_run() returns
 */
#ifndef SERVER_NODE_H
#define SERVER_NODE_H

#include "common/thread_role.h"
#include "server/settings_reload.h"

#define NODE_RESTART (-1)

/* Until a signal or a failure ends it. SIGHUP reads settings again, into *settings; NULL: there is nothing to read.
 * The exit status: 0, 1 with a sentence in the log, 3: another psd is the primary. NODE_RESTART: it is to be called
 * once more, as a standby cannot go on with what its shards hold. */
int node_run(struct settings *settings, struct settings_reload *reload) ON_MAIN;

#endif
