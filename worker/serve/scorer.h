/*
 * Threads that score requests. Each takes what waits, as many rows as a batch has space for, and computes them in one
 * pass: while it does, the next requests gather. So one request alone waits for nothing, and many share a pass.
 * A request of more rows takes several passes.
 */
#ifndef WORKER_SERVE_SCORER_H
#define WORKER_SERVE_SCORER_H

#include <stdatomic.h>

#include "worker/serve/score_request.h"
#include "worker/serve/served_model.h"

struct scorer;

/* One request, the caller's until on_done(). */
struct score_call {
    char *body; /* borrowed, and changed */
    size_t n_bytes;
    uint64_t deadline_ns; /* in clock_mono_ns() */
    /* Nobody waits any more: it is done without scores, soon. Set by any thread. */
    _Atomic bool is_abandoned;
    void (*on_done)(struct score_call *call); /* on a scorer's thread, once */

    /* For on_done(): PS_EDATA, a fault of the request; another: it could not be scored. With a sentence. */
    int status;
    struct err err;
    uint32_t n_rows, n_tasks;
    float *scores; /* [n_rows][n_tasks], owned by the caller from on_done() on */
    struct served_model_stamp stamp; /* of the oldest pass */

    /* The scorer's. */
    struct score_call *next;
    struct score_request request;
    uint32_t n_scored;
};

struct scorer_counts {
    uint64_t n_batches, n_rows; /* passes, and what was computed in them */
    uint64_t n_waiting;         /* requests that no thread has taken yet */
};

/* n_threads of them, with batches of at most batch_max rows. The model is borrowed. */
int scorer_start(struct served_model *m, uint32_t n_threads, uint32_t batch_max,
                 struct scorer **ret, struct err *err) MUST_CHECK;

/* The requests that wait are done with PS_ESTOPPING; waits for those under way. NULL is fine. */
void scorer_stop(struct scorer *s);
void scorer_free(struct scorer *s);

/* Any thread. After scorer_stop() the call is done at once, within this one. */
void scorer_submit(struct scorer *s, struct score_call *call);

const struct score_columns *scorer_columns(const struct scorer *s);
void scorer_count(struct scorer *s, struct scorer_counts *ret);

#endif
