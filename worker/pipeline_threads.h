/*
 * Fetch and deliver on threads of their own: each waits for its turn, does its part of one slot
 * without the lock, and says so. pipeline.h tells the order and the permits.
 */
#ifndef WORKER_PIPELINE_THREADS_H
#define WORKER_PIPELINE_THREADS_H

#include "worker/pipeline_state.h"

/* -EAGAIN with a sentence: none runs. */
int pipeline_threads_start(struct pipeline *p, struct err *err) MUST_CHECK;

/* Fetch ends with what it has in hand, or without it if that is a pull that waits; deliver ends
 * when all that was computed is on its way, or cannot be. */
void pipeline_threads_end(struct pipeline *p);

#endif
