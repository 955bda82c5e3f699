/* A worker's certificates: read at the start, and again on SIGHUP. What expires soon is logged. */
#ifndef WORKER_WORKER_TLS_H
#define WORKER_WORKER_TLS_H

#include "worker/settings.h"

/* s->tls; NULL: this worker speaks no TLS. Statuses of tls_context_open(). */
int worker_tls_open(struct settings *s, struct err *err) MUST_CHECK;

/* For stop_signal_on_reload(); `settings` is a struct settings. A bad file changes nothing. */
void worker_tls_reload(void *settings);

#endif
