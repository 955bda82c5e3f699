/*
 * GET /metrics of a worker that trains (--metrics-listen): Prometheus' text of what progress lines say, answered on a
 * thread of its own, so that it answers while the trainer waits. Numbers are those of the last step.
 *
 * Calls come from one thread, the trainer's; a NULL endpoint, without the setting, takes them all.
 */
#ifndef WORKER_METRICS_ENDPOINT_H
#define WORKER_METRICS_ENDPOINT_H

#include "worker/client/ps.h"
#include "worker/metrics.h"
#include "worker/settings.h"
#include "worker/stage_times.h"

struct metrics_endpoint;

/* After a step. */
struct metrics_endpoint_state {
    uint32_t epoch;                      /* from 0 */
    uint64_t clock;                      /* steps finished, as the servers count them */
    uint64_t steps, samples, n_bad_rows; /* of this process */
    struct ps_stats store;
};

/* *ret is NULL if --metrics-listen is empty. `s` is borrowed. -EINVAL, or the errno of the bind, with a sentence. */
int metrics_endpoint_open(const struct settings *s, struct metrics_endpoint **ret,
                          struct err *err) MUST_CHECK;
void metrics_endpoint_close(struct metrics_endpoint *m);

/* The address with the port that the system chose; "": there is none. */
const char *metrics_endpoint_address(const struct metrics_endpoint *m);

void metrics_endpoint_set_state(struct metrics_endpoint *m,
                                const struct metrics_endpoint_state *state);

/* With each line of progress: means since the last one. */
void metrics_endpoint_set_rates(struct metrics_endpoint *m, double samples_per_s, double loss,
                                const struct stage_times *stages, double seconds);

void metrics_endpoint_set_validation(struct metrics_endpoint *m,
                                     const struct metrics_result *result);

#endif
