/*
 * A thread that measures the current wait for the servers, asks a server for its reason, and logs it.
 *
 *     a wait is longer than           then
 *     --progress-every                a line has the server's reason; repeated
 *     the same, and it has ended      a line names each dead worker of the job
 *     half a second, and a stop       a line has the reason, and the pull is cancelled: -ECANCELED
 *       is asked for
 */
#ifndef WORKER_WAIT_MONITOR_H
#define WORKER_WAIT_MONITOR_H

#include "worker/param_store.h"
#include "worker/settings.h"
#include "worker/stop_signal.h"

struct wait_monitor;

/* All is borrowed until wait_monitor_close(). NULL with --local, which never waits. */
int wait_monitor_start(const struct settings *s, struct param_store *store,
                       const struct stop_signal *stop, struct wait_monitor **ret,
                       struct err *err) MUST_CHECK;

/* NULL is fine. */
void wait_monitor_close(struct wait_monitor *w);

#endif
