/*
 * Settings -> the objects of a run: which files, which rows, what a line means, which model,
 * which store. Every mistake that a person can make in those becomes one sentence here, before
 * anything has started.
 */
#ifndef WORKER_SETUP_H
#define WORKER_SETUP_H

#include "worker/batch_memory.h"
#include "worker/data/data_loader.h"
#include "worker/field_tables.h"
#include "worker/key_deduper.h"
#include "worker/model/dlrm.h"
#include "worker/model/meta_learning.h"
#include "worker/param_store.h"
#include "worker/settings.h"
#include "worker/stop_signal.h"

struct setup {
    const struct settings *s;          /* borrowed */
    char **train_files, **valid_files; /* owned; valid may be train */
    uint32_t n_train_files, n_valid_files;
    struct input_pipes *pipes;             /* owned: those of the files that can be read once */
    const struct stop_signal *stop;        /* borrowed; NULL: none. setup_set_stop() */
    struct data_loader_range train, valid; /* rows of those files */
    bool has_valid, labelled;
    bool strict;                       /* a malformed row ends the reading: set by predict */
    struct schema *schema;             /* owned */
    struct field_tables *fields;       /* owned; s->fields. setup_fields() */
    struct dlrm *model;                /* owned */
    struct meta_learning *meta;        /* owned; NULL without --meta */
    struct batch_memory *batch_memory; /* owned; NULL without a model */
    struct key_deduper *deduper;       /* owned; NULL: the device has none */
};

/* From here on a stop ends every wait for a pipe. Behind setup_data(). */
void setup_set_stop(struct setup *u, const struct stop_signal *stop);

/* For train: --data trains, and --valid or the end of --data validates. For eval and predict:
 * all of --data is `valid`. `labelled`: the files have the label column. */
int setup_data(struct setup *u, const struct settings *s, bool training, bool labelled,
               struct err *err) MUST_CHECK;

/* --check: the files, their columns, a first batch of them, and the directories. Nothing is made, and a pipe is not
 * read. setup_deinit() follows, as after setup_data(). */
int setup_check(struct setup *u, const struct settings *s, bool training, bool labelled,
                struct err *err) MUST_CHECK;

/* The schema alone; without --data where a preset or --columns says it. */
int setup_columns(struct setup *u, const struct settings *s, struct err *err) MUST_CHECK;

/* Behind the schema: which of its fields have tables of their own. s is the one of setup_data() or setup_columns(). */
int setup_fields(struct setup *u, struct settings *s, struct err *err) MUST_CHECK;

/* For training, if init auto asks for it: measures how many different keys fields have, over the first training rows.
 * -ECANCELED: a stop came first. */
int setup_cardinalities(struct setup *u, struct err *err) MUST_CHECK;

/* The model, on the device that --device asks for. PS_EDEVICE: it must be a GPU, and there is none that can
 * be used; with `auto` that is a line in the log. */
int setup_model(struct setup *u, struct err *err) MUST_CHECK;
/* The same on a device of the caller's choice: dlrm_new_on(). */
int setup_model_on(struct setup *u, const struct device_ops *ops, struct err *err) MUST_CHECK;

/* What numbers are to the model, as the job was begun, where settings leave it open: before anything is read, and
 * before the record is opened, as it holds that. A model that is there may become another one. */
int setup_inputs(struct setup *u, struct settings *s, struct param_store *store,
                 struct err *err) MUST_CHECK;

/* The first file of --data that can be read only once, as a sentence names it; NULL: none. */
const char *setup_first_pipe(const struct setup *u);

/* Samples that this worker trains on in all epochs, give or take a batch; 0 where the number of rows is not known. */
uint64_t setup_n_samples(const struct setup *u);

/* Rows of a rank that its steps from_clock to end_clock - 1 would train on, if the files have n_rows. Malformed rows
 * count, so it is an estimate. */
uint64_t setup_n_rows_between(const struct setup *u, uint64_t n_rows, uint32_t rank,
                              uint64_t from_clock, uint64_t end_clock);

/* Means and deviations over the first rows of the training files: the same for every worker.
 * [n_numeric] each. -ECANCELED: a stop came first. */
int setup_moments(const struct setup *u, float *ret_mean, float *ret_std, struct err *err)
    MUST_CHECK;

/* A loader of this rank's training rows in `epoch`, after its first `skip` batches, or of the validation
 * rows. */
int setup_loader(const struct setup *u, bool training, uint32_t epoch, uint64_t skip,
                 struct data_loader **ret, struct err *err) MUST_CHECK;

/* Reads a batch of the training rows, and of --valid's if this worker validates, so that an error in the settings of
 * files shows before any table is made. PS_EDATA also if there is no row. */
int setup_probe(const struct setup *u, struct err *err) MUST_CHECK;

/* Locks the state of a job's rank in --state-dir: DIR/JOB.RANK.lock, for one process at a time. The lock ends with the
 * process, however that ends, or when *ret_fd is closed. Makes the folder if need be. -EBUSY: another process has it;
 * -errno. */
int setup_state_lock(const char *dir, const char *job, uint32_t rank, int *ret_fd,
                     struct err *err) MUST_CHECK;

/* With --state-dir and servers: the push journal of a training run, with the pushes of the process
 * before; else NULL. PS_ESPEC: those are of other settings. notice(arg, sentence) gets libps's notices. */
int setup_journal(const struct settings *s, void (*notice)(void *, const char *), void *arg,
                  struct push_journal **ret, struct err *err) MUST_CHECK;

/* Connects to the servers, or makes tables in this process. The journal and stop are borrowed and may be NULL. Without
 * `training` it joins as a reader. A signal before stop_signal_grace() ends every wait. */
int setup_store(const struct settings *s, bool training, struct push_journal *journal,
                const struct stop_signal *stop, void (*notice)(void *, const char *), void *arg,
                struct param_store **ret, struct err *err) MUST_CHECK;

void setup_deinit(struct setup *u);

#endif
