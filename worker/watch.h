/*
 * A thread beside the training that looks at how long the servers have been waited for, and asks them why.
 *
 *     a wait is longer than           then
 *     --progress-every                a line says what is waited for, as the server tells it; again and again
 *     the same, and it has ended      workers of the job that are gone are named
 *     half a second, and a stop       a line says what was waited for, and the pull is given up: -ECANCELED
 *       is asked for
 */
#ifndef WORKER_WATCH_H
#define WORKER_WATCH_H

#include "worker/settings.h"
#include "worker/stop.h"
#include "worker/store.h"

struct watch;

/* All is borrowed until watch_close(). NULL with --local, which never waits. */
int watch_start(const struct settings *s, struct store *store, const struct stop *stop,
                struct watch **ret, struct err *err) MUST_CHECK;

/* NULL is fine. */
void watch_close(struct watch *w);

#endif
