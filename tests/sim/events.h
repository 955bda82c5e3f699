/*
 * Simulated time: what is to happen, and when. Whatever happens at the same microsecond happens in the
 * order in which it was asked for, so a run is a function of its seed.
 */
#ifndef TESTS_SIM_EVENTS_H
#define TESTS_SIM_EVENTS_H

#include <stdbool.h>

#include "common/base.h"

/* `data` is freed behind the call. */
typedef void (*event_fn)(void *owner, uint64_t number, void *data);

struct event {
    uint64_t at_us, order, number;
    event_fn run;
    void *owner; /* borrowed */
    void *data;  /* owned: of malloc(), or NULL */
};

struct events {
    struct event *heap; /* owned */
    size_t n, cap;
    uint64_t now_us, n_run, n_asked;
};

void events_deinit(struct events *e);

/* `data` is taken. `delay_us` from now. */
void events_in(struct events *e, uint64_t delay_us, event_fn run, void *owner, uint64_t number,
               void *data);

/* False: there is nothing more to happen. */
bool events_run_next(struct events *e);

#endif
