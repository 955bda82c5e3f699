/*
 * The model that --keep best has left in --save: which validation it is of. A file beside the checkpoints, BEST.json,
 * written after the checkpoint and replaced whole: a worker that is started again knows what there is to beat.
 *
 *     {"job":"ctr","epoch":1,"step":2000,"score":0.7612,"auc":0.7612,"logloss":0.4712}
 *
 * epoch counts from 1; step: of rank 0; score: what later validations have to beat (trainer.c).
 *
 * If a worker is killed between the two writes, the newest checkpoint may be of a better validation than the file says:
 * one that is worse than this and better than the file then takes its place.
 */
#ifndef WORKER_KEPT_MODEL_H
#define WORKER_KEPT_MODEL_H

#include <stdbool.h>

#include "worker/param_store.h"

struct kept_model {
    uint32_t epoch; /* from 0 */
    uint64_t step;
    double score, auc, logloss;
};

/* The tables of a store, with their optimizer's state, as a checkpoint in dir that psd, eval and predict read. A store
 * on servers is scanned into memory first; rows that others push meanwhile are there as before or after. */
int kept_model_save_tables(struct param_store *s, const char *job, const char *dir,
                           struct err *err) MUST_CHECK;

int kept_model_write(const char *dir, const char *job, const struct kept_model *kept,
                     struct err *err) MUST_CHECK;

/* False: there is none of this job, or none that can be read. */
bool kept_model_read(const char *dir, const char *job, struct kept_model *ret);

#endif
