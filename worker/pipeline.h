/*
 * The steps of a run as stages that work at the same time, each on its own batch:
 *
 *     read   ->   fetch   ->   compute   ->   deliver
 *     loader's      pulls        caller's       encodes,
 *     thread      into a       thread         pushes
 *                 step_buffers
 *
 * Step buffers are numbered 0, 1, 2 ... in an epoch and go through the stages in that order, so one counter per stage
 * describes the state:
 *
 *     n_delivered <= n_computed <= n_acquired <= n_fetched <= n_claimed <= n_read
 *
 * Where the store's pulls may overlap (param_store_ops.pull), several threads fetch: each claims a batch, in order, and
 * pulls it while the others pull theirs. n_fetched counts those before which all are fetched.
 *
 * The caller computes its batches in order: one at a time, or several on a device that copies one batch in while it
 * computes another (pipeline_ready()).
 *
 * Permits: a batch is fetched only while fewer than n_permits batches are between their pull and the hand-over of
 * their push (n_claimed - n_delivered < n_permits). With the job's bound s and n_permits <= s + 1 a pull of clock c is
 * sent after the push of c - s - 1 or later, so it misses no more than the bound allows. Servers check this again, by
 * the number of unfinished steps (ps.h). Hand-over is enough: a shard handles a link's pushes before the pulls behind
 * them.
 *
 * With one permit (lock step, --local, a store whose calls must not overlap) only reading overlaps with other stages.
 * The others run one after the other in the caller's thread, and every bit is that of the plain loop. With
 * param_store_ops.ahead the store gets the next batch, if it has been read already, before the caller computes this
 * one.
 *
 * Failures: the first one stops fetch and is returned by pipeline_next() or pipeline_done(). After PS_EFENCED the
 * caller calls pipeline_restart(), and undelivered batches are fetched anew, in order; after any other failure the run
 * ends.
 */
#ifndef WORKER_PIPELINE_H
#define WORKER_PIPELINE_H

#include "worker/data/data_loader.h"
#include "worker/model_tables.h"
#include "worker/stage_times.h"
#include "worker/stop_signal.h"

struct pipeline;

/* The number of delivered batches, in all epochs. */
struct pipeline_totals {
    uint64_t steps, samples;
};

/* n_permits >= 1. All is borrowed; stop may be NULL. Makes the step buffers. */
int pipeline_new(struct model_tables *tables, struct param_store *store,
                 const struct stop_signal *stop, uint32_t n_permits, struct pipeline **ret,
                 struct err *err) MUST_CHECK;

/* From here on a batch is of the step at which the job is, if that is later than the one behind the batch before: for a
 * job that does not wait for this worker (ps_options.n_backups). */
void pipeline_follow_job(struct pipeline *p);

/* Batches that are with the pipeline at most: data_loader_options.lend. */
uint32_t pipeline_n_buffers(uint32_t n_permits);

/* Batches that can be between their pull and the hand-over of their push: 1 where the store's calls must not
 * overlap. */
uint32_t pipeline_n_permits(const struct pipeline *p);

/* Threads that fetch, at least 1: the time of that stage is divided by so many. */
uint32_t pipeline_n_fetchers(const struct pipeline *p);

/* After pipeline_end(). NULL is fine. */
void pipeline_free(struct pipeline *p);

/* An epoch begins: its loader (borrowed until pipeline_end()), the clock of its first step, and how
 * many batches may be fetched before pipeline_allow(). -EAGAIN: no thread can be started. */
int pipeline_begin(struct pipeline *p, struct data_loader *loader, uint64_t clock,
                   uint64_t n_allowed, struct err *err) MUST_CHECK;

/* The next batch to compute, with its rows, when all that were taken are done; NULL when all are
 * delivered that the loader had or that were allowed, or when a stop is asked for. Waits: the loader for the
 * disk, the pull for its deadline. */
int pipeline_next(struct pipeline *p, struct step_buffers **ret, struct err *err) MUST_CHECK;

/* One more, behind those that were taken and are not done: NULL if none is there yet. */
struct step_buffers *pipeline_ready(struct pipeline *p);

/* The oldest batch that was taken is computed: its gradients go on their way. */
int pipeline_done(struct pipeline *p, struct err *err) MUST_CHECK;

/* n_more batches may be fetched. */
void pipeline_allow(struct pipeline *p, uint64_t n_more);

/* Restarts after PS_EFENCED from any call: the caller loses its batches. Waits until no stage is at work, lets the
 * store go on (param_store_ops.resume) and fetches undelivered batches anew. Returns the clock of its first step: that
 * of the others, or this worker's own if it is greater. */
uint64_t pipeline_restart(struct pipeline *p);

/* Ends the epoch: drops a pull under way, and delivers computed batches. Returns the failure, if there was one, also
 * one that was returned before. */
int pipeline_end(struct pipeline *p, struct err *err) MUST_CHECK;

/* The clock after the last delivered step. */
uint64_t pipeline_clock(struct pipeline *p);

void pipeline_totals(struct pipeline *p, struct pipeline_totals *ret);

/* Time in each stage so far, but for STAGE_SERVERS and STAGE_NETWORK, which the store knows; fetch
 * and deliver include what STAGE_SERVERS is to have. */
void pipeline_stages(struct pipeline *p, struct stage_times *ret);

#endif
