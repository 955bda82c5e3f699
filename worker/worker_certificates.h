/* The certificates of a worker that speaks TLS: what the log says of them, and how they are read again. */
#ifndef WORKER_WORKER_CERTIFICATES_H
#define WORKER_WORKER_CERTIFICATES_H

#include "worker/settings.h"

/* Days that are left, if they are few. */
void worker_certificates_log(struct tls_context *t);

/* Of stop_signal_on_reload(): `settings` is a struct settings; the files of its TLS, if it speaks it, are read again for
 * connections to come. A bad file changes nothing; the log says which it was. */
void worker_certificates_reload(void *settings);

#endif
