/*
 * --decay plateau: the learning rate's factor by the validations so far, as PyTorch's ReduceLROnPlateau with threshold
 * 0 has it:
 *
 *     n_flat = 0 after a validation that is better than all before it, else n_flat + 1
 *     if n_flat > patience:  factor = max(floor, factor * by),  n_flat = 0
 */
#ifndef WORKER_PLATEAU_H
#define WORKER_PLATEAU_H

#include <stdbool.h>

#include "common/base.h"
#include "common/status.h"

struct settings;

struct plateau_rule {
    float by, floor;
    uint32_t patience;
};

/* After a validation. Returns the new factor; *n_flat is updated. */
float plateau_next(const struct plateau_rule *rule, float factor, bool is_better,
                   uint32_t *n_flat);

/* The factor at which a rate that began as `base` stands: one that plateau_next() leads to from 1, if there is one, so
 * that a run that goes on has the very same bits; else their ratio. */
float plateau_factor_of(const struct plateau_rule *rule, float base, float rate);

struct plateau_rule plateau_rule_of(const struct settings *s);

/* The settings of a run with --decay plateau; 0 of one without. PS_ESETTING. */
int plateau_check(const struct settings *s, struct err *err) MUST_CHECK;

#endif
