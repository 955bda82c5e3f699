/*
 * A person or systemd asks the run to stop: SIGINT or SIGTERM. The first lets the step finish and the worker say
 * goodbye; the second ends the process at once. The handler only writes a byte into a pipe; a thread reads it.
 */
#ifndef WORKER_STOP_SIGNAL_H
#define WORKER_STOP_SIGNAL_H

#include <stdbool.h>

struct stop_signal;

/* One at a time in a process. NULL without a thread or a pipe. */
struct stop_signal *stop_signal_start(void);

/* From here on the first signal only asks. Until then, while servers are waited for, it ends the process with the exit
 * code 128 + its number: at once if it comes twice, and after 2 s if nobody has done so before. */
void stop_signal_grace(struct stop_signal *s);

/* The number of a signal that came before; 0: none. Takes NULL. */
int stop_signal_early(const struct stop_signal *s);

bool stop_signal_asked(const struct stop_signal *s);
void stop_signal_close(struct stop_signal *s);

#endif
