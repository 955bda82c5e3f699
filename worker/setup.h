/*
 * Settings -> the objects of a run: which files, which rows, what a line means, which model,
 * which store. Every mistake that a person can make in those becomes one sentence here, before
 * anything has started.
 */
#ifndef WORKER_SETUP_H
#define WORKER_SETUP_H

#include "worker/data/feed.h"
#include "worker/feed_memory.h"
#include "worker/model/dlrm.h"
#include "worker/settings.h"
#include "worker/store.h"

struct setup {
    const struct settings *s;          /* borrowed */
    char **train_files, **valid_files; /* owned; valid may be train */
    uint32_t n_train_files, n_valid_files;
    struct feed_range train, valid; /* rows of those files */
    bool has_valid, labelled;
    bool strict;                     /* a malformed row ends the reading: set by predict */
    struct schema *schema;           /* owned */
    struct dlrm *model;              /* owned */
    struct feed_memory *feed_memory; /* owned; NULL without a model */
};

/* For train: --data trains, and --valid or the end of --data validates. For eval and predict:
 * all of --data is `valid`. `labelled`: the files have the label column. */
int setup_data(struct setup *u, const struct settings *s, bool training, bool labelled,
               struct err *err) MUST_CHECK;

/* What the columns are, and nothing else; without --data where a preset or --columns says it. */
int setup_columns(struct setup *u, const struct settings *s, struct err *err) MUST_CHECK;

/* The model, on the device that --device asks for. PS_EDEVICE: it must be a GPU, and there is none that can
 * be used; with `auto` that is a line in the log. */
int setup_model(struct setup *u, struct err *err) MUST_CHECK;
/* The same on a device of the caller's choice: dlrm_new_on(). */
int setup_model_on(struct setup *u, const struct compute_ops *ops, struct err *err) MUST_CHECK;

/* Samples that this worker trains on in all epochs, give or take a batch; 0 where the number of rows is not known. */
uint64_t setup_n_samples(const struct setup *u);

/* Means and deviations over the first rows of the training files: the same for every worker.
 * [n_numeric] each. */
int setup_moments(const struct setup *u, float *ret_mean, float *ret_std, struct err *err)
    MUST_CHECK;

/* A feed over the training rows of this rank in `epoch`, from behind its first `skip` batches, or
 * over the validation rows. */
int setup_feed(const struct setup *u, bool training, uint32_t epoch, uint64_t skip,
               struct feed **ret, struct err *err) MUST_CHECK;

/* Reads a batch of the rows to be trained on, and of --valid's where this worker validates: a mistake in what
 * the settings say of the files shows before any table is made for it. PS_EDATA also where there is no row. */
int setup_look(const struct setup *u, struct err *err) MUST_CHECK;

/* With --state-dir and servers: where a training run keeps its pushes, and finds those of the process
 * before; else NULL. PS_ESPEC: those are of other settings. notice(arg, sentence): what libps has to say. */
int setup_spool(const struct settings *s, void (*notice)(void *, const char *), void *arg,
                struct spool **ret, struct err *err) MUST_CHECK;

/* Connects to the servers, or makes tables in this process. To train with a spool, which is borrowed, or without;
 * or, if it is no training, as a reader. */
int setup_store(const struct settings *s, bool training, struct spool *spool,
                void (*notice)(void *, const char *), void *arg, struct store **ret,
                struct err *err) MUST_CHECK;

void setup_deinit(struct setup *u);

#endif
