/*
 * A worker that servers declare dead: how often of late, and as whom it comes back.
 *
 * Once in a while is a slow host. Again and again is another process with the same rank: the
 * two replace each other for ever, each getting some pushes through in between.
 */
#ifndef WORKER_CLIENT_FENCE_H
#define WORKER_CLIENT_FENCE_H

#include <stdint.h>

#define FENCE_N_MAX 5u         /* so many are borne ... */
#define FENCE_WINDOW_MS 60000u /* ... within so long */

/* Zeroed: never. */
struct fence {
    uint64_t at_ms[FENCE_N_MAX]; /* a ring */
    uint64_t n;
};

/* Once more, now. Returns how often in the window, this time included, up to FENCE_N_MAX + 1.
 */
uint32_t fence_count(struct fence *f, uint64_t now_ms);

/* To be waited before joining again for the n-th time: 0, then 100 ms, 200 ms ... */
uint32_t fence_delay_ms(uint32_t n);

/* The incarnation that comes after `own`: the time, if clocks agree, or else more than what the
 * servers have seen. dice: any number, for two processes of one rank must not agree on it. */
uint64_t fence_next(uint64_t own, uint64_t fenced_below, uint64_t unix_ms, uint64_t dice);

#endif
