#include "worker/tune/halving.h"

#include <math.h>

void halving_plan(uint32_t n_trials, uint32_t eta, struct halving *ret)
{
    *ret = (struct halving){ .n_rungs = 1, .n_trials = { n_trials } };
    while (eta > 1 && ret->n_rungs < HALVING_RUNGS_MAX &&
           ret->n_trials[ret->n_rungs - 1] / eta >= 2) {
        ret->n_trials[ret->n_rungs] = ret->n_trials[ret->n_rungs - 1] / eta;
        ret->n_rungs++;
    }
    ret->share[ret->n_rungs - 1] = 1;
    for (uint32_t i = ret->n_rungs - 1; i > 0; i--)
        ret->share[i - 1] = ret->share[i] / eta;
}

uint32_t halving_promote(const double *losses, uint32_t n, uint32_t keep, uint32_t *ret_numbers)
{
    uint32_t n_kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = n_kept;

        if (!isfinite(losses[i]))
            continue;
        while (at > 0 && losses[ret_numbers[at - 1]] > losses[i])
            at--;
        if (at == keep)
            continue;
        n_kept += n_kept < keep;
        for (uint32_t j = n_kept - 1; j > at; j--)
            ret_numbers[j] = ret_numbers[j - 1];
        ret_numbers[at] = i;
    }
    return n_kept;
}
