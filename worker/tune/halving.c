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

uint64_t halving_steps(double share, uint64_t n_rows, uint32_t n_epochs, uint32_t batch,
                       uint64_t steps_max)
{
    uint64_t n_whole = (n_rows + batch - 1) / batch * n_epochs;

    if (!(share < 1))
        return steps_max;
    if (steps_max && steps_max < n_whole)
        n_whole = steps_max;
    return 1 + (uint64_t)(share * (double)n_whole);
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
