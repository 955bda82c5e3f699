/* psworker serve: scores rows of HTTP requests with the model of a job, while it trains, or of a checkpoint. */
#ifndef WORKER_SERVE_SERVE_H
#define WORKER_SERVE_SERVE_H

#include "worker/settings.h"
#include "worker/stop_signal.h"

/* Serves until a stop is asked for; requests that are under way are answered then. PS_ESETTING, PS_ESPEC: settings do
 * not fit. An error also if the model has not been refreshed for --give-up. */
int serve_run(const struct settings *s, struct stop_signal *stop, struct err *err) MUST_CHECK;

#endif
