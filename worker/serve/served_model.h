/*
 * The model that serves: of a job on servers, followed while it trains, or of a checkpoint. It makes no table and moves
 * no clock: it is a reader, which training never waits for.
 *
 *     dense arrays    pulled by a thread of their own, twice in each --max-age; every reader has a copy
 *     rows            pulled for each batch, through a store of the reader's own: a cache may stand before it
 *
 * The age of a prediction is the time since the oldest of its pulls was sent. One that would be older than --max-age
 * fails instead; a checkpoint has no age.
 */
#ifndef WORKER_SERVE_SERVED_MODEL_H
#define WORKER_SERVE_SERVED_MODEL_H

#include "worker/data/schema.h"
#include "worker/settings.h"
#include "worker/stop_signal.h"

struct served_model;
struct served_model_reader;

/* What a prediction was made with. */
struct served_model_stamp {
    bool follows; /* a job; else the rest is 0 */
    bool has_clock;
    uint64_t clock;    /* all workers' pushes of the steps before it are in the dense arrays */
    uint64_t taken_ns; /* clock_mono_ns() when the oldest pull was sent */
};

struct served_model_state {
    struct served_model_stamp stamp;          /* of the dense arrays */
    uint64_t n_refreshes, n_failed_refreshes; /* pulls of them */
    bool is_fresh;                            /* they are within --max-age */
    char failure[256];                        /* "" or why the last refresh has failed */
};

/* Connects, finds the job's columns and shape, and pulls the dense arrays once. *s is copied, with its lists; its
 * token is read. A signal before stop_signal_grace() ends every wait. PS_ESETTING, PS_ESPEC: settings do not fit. */
int served_model_open(const struct settings *s, const struct stop_signal *stop,
                      struct served_model **ret, struct err *err) MUST_CHECK;
/* Its readers are gone. NULL is fine. */
void served_model_close(struct served_model *m);

/* Scores of a row. */
uint32_t served_model_n_tasks(const struct served_model *m);

const struct schema *served_model_schema(const struct served_model *m);
/* For the batches that are scored. */
const struct batch_groups *served_model_groups(const struct served_model *m);
/* A JSON text, as the job's record has it (deploy/docs/serving.md); to be freed. */
int served_model_describe(const struct served_model *m, char **ret, struct err *err) MUST_CHECK;
const char *served_model_device(const struct served_model *m);

/* Any thread. */
void served_model_state(struct served_model *m, struct served_model_state *ret);

/* True if no refresh has come for --give-up, with the reason: the end. */
bool served_model_has_failed(struct served_model *m, struct err *err);

/* From here on every wait for the servers ends soon, with an error. Any thread. */
void served_model_cancel(struct served_model *m);

/* For one thread that predicts; made by one thread at a time. */
int served_model_reader_new(struct served_model *m, struct served_model_reader **ret,
                            struct err *err) MUST_CHECK;
void served_model_reader_free(struct served_model_reader *r);

/* Probabilities of the batch's samples, which is deduplicated and has at most --batch of them: valid until the next
 * call. until_ns: in clock_mono_ns(), the last moment for a wait for newer dense arrays. Fails with what the servers
 * say. */
int served_model_predict(struct served_model_reader *r, struct batch *batch, uint64_t until_ns,
                         const float **ret_probs, struct served_model_stamp *ret,
                         struct err *err) MUST_CHECK;

#endif
