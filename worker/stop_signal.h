/*
 * Signals, of a person or systemd. SIGHUP: files are to be read again; or a stop, too. SIGINT or SIGTERM: a request to
 * stop the run. After the first one the step finishes and the worker leaves the job; the second one ends the process at
 * once. The handler only writes a byte into a pipe; a thread reads it.
 */
#ifndef WORKER_STOP_SIGNAL_H
#define WORKER_STOP_SIGNAL_H

#include <stdbool.h>

struct stop_signal;

/* One at a time in a process. NULL without a thread or a pipe. */
struct stop_signal *stop_signal_start(void);

/* From here on the first signal only requests the stop. Before, while the worker waits for servers, a signal ends the
 * process with the exit code 128 + its number: at once if it comes twice, and after 2 s otherwise. */
void stop_signal_grace(struct stop_signal *s);

/* The number of a signal that came before; 0: none. Takes NULL. */
int stop_signal_early(const struct stop_signal *s);

/* Once: SIGHUP calls this, on a thread of its own, until stop_signal_close(). With a controlling terminal SIGHUP says
 * that it is gone, and ends the process, as without this. */
void stop_signal_on_reload(struct stop_signal *s, void (*reload)(void *arg), void *arg);

/* Instead: SIGHUP asks for a stop, too, as often as it comes; but stays ignored where it was (nohup). */
void stop_signal_on_hangup(struct stop_signal *s);

bool stop_signal_asked(const struct stop_signal *s);
void stop_signal_close(struct stop_signal *s);

#endif
