/*
 * A person or systemd asks the run to stop: SIGINT or SIGTERM. The first lets the step finish and the worker say
 * goodbye; the second ends the process at once. The handler only writes a byte into a pipe; a thread reads it.
 */
#ifndef WORKER_STOP_H
#define WORKER_STOP_H

#include <stdbool.h>

struct stop;

/* One at a time in a process. NULL without a thread or a pipe. */
struct stop *stop_start(void);

/* From here on the first signal only asks; until then, while servers are waited for, it ends the process. */
void stop_grace(struct stop *s);

bool stop_asked(const struct stop *s);
void stop_close(struct stop *s);

#endif
