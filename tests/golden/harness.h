/*
 * A training run whose start and data a golden case gives: the worker's own tables, store and
 * model, step for step what the trainer does. PS_SERVERS=HOST:PORT sends everything over the
 * wire; without it the tables are in this process.
 */
#ifndef TESTS_GOLDEN_HARNESS_H
#define TESTS_GOLDEN_HARNESS_H

#include "tests/support/npy.h"
#include "worker/model/meta_learning.h"
#include "worker/model_tables.h"

struct harness {
    struct settings s;
    struct dlrm *model;
    struct dlrm_config config; /* of that */
    struct param_store *store;
    struct model_tables *tables;
    struct batch batch;
    struct step_buffers buffers; /* of that batch */
    uint64_t clock;
};

/* flags: as on psworker's command line, NULL-terminated; the job name must be new to the
 * servers. Fails the test on any error. */
void harness_open(struct harness *h, const char *const *flags, uint32_t n_numeric,
                  uint32_t n_fields);

/* The same with n labels, each of which has a weight in the loss. */
void harness_open_tasks(struct harness *h, const char *const *flags, uint32_t n_numeric,
                        uint32_t n_fields, uint32_t n, const float *weights);
void harness_close(struct harness *h);

/* Sets weights, optimizer state anew. `name`: a tensor's, or of rows "emb" or "wide". */
void harness_assign_dense(struct harness *h, const char *name, const float *values,
                          uint32_t n_floats);
void harness_assign_rows(struct harness *h, const char *name, const uint64_t *keys,
                         const float *rows, uint32_t n_rows);

/* The weights as the tables have them now. */
void harness_read_dense(struct harness *h, const char *name, float *ret_values,
                        uint32_t n_floats);
void harness_read_rows(struct harness *h, const char *name, const uint64_t *keys,
                       float *ret_rows, uint32_t n_rows);

/* All keys of one field, ascending: those that harness_fill() gives to its ids. free() them. */
uint64_t *harness_keys_of(uint32_t field, uint32_t n_rows);

/* A case's batches, and the batch of a step. Bag (field, sample) goes from its offset to the next one's, the last to the
 * segment's end. */
struct harness_data {
    struct npy X, y, seg, indices, offsets;
};

struct harness_data harness_load(const char *case_name);
void harness_unload(struct harness_data *d);
void harness_fill(struct harness *h, const struct harness_data *d, uint32_t step);

/* The batch is filled: dedup, pull, forward, backward, push. Returns the loss before the
 * update. */
double harness_step(struct harness *h);

/* The same with meta learning, and what it says of the queries, without a push. */
double harness_meta_step(struct harness *h, struct meta_learning *meta);
void harness_meta_predict(struct harness *h, struct meta_learning *meta,
                          struct meta_learning_scores *ret);

/* Forward only; probabilities are the model's. */
void harness_forward(struct harness *h);

#endif
