#include "worker/plateau.h"

#include <math.h>

static float lower(const struct plateau_rule *rule, float factor)
{
    return fmaxf(rule->floor, factor * rule->by);
}

float plateau_next(const struct plateau_rule *rule, float factor, bool is_better,
                   uint32_t *n_flat)
{
    *n_flat = is_better ? 0 : *n_flat + 1;
    if (*n_flat <= rule->patience)
        return factor;
    *n_flat = 0;
    return lower(rule, factor);
}

float plateau_factor_of(const struct plateau_rule *rule, float base, float rate)
{
    float factor = 1, next;

    while (base * factor > rate) {
        next = lower(rule, factor);
        if (next >= factor)
            break;
        factor = next;
    }
    return base * factor == rate ? factor : rate / base;
}
