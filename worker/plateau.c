#include "worker/plateau.h"

#include <math.h>

#include "worker/settings.h"

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

struct plateau_rule plateau_rule_of(const struct settings *s)
{
    return (struct plateau_rule){ .by = s->decay_rate,
                                  .floor = s->decay_floor,
                                  .patience = s->decay_patience };
}

int plateau_check(const struct settings *s, struct err *err)
{
    int status = 0;

    if (s->decay != TABLE_SPEC_DECAY_PLATEAU)
        return 0;
    if (!settings_has_valid_rows(s))
        return err_set(
            err, PS_ESETTING,
            "--decay plateau needs validation rows: give --valid, --valid-fraction or "
            "--train-rows");
    if (settings_optim(s, false) == TABLE_SPEC_FTRL ||
        settings_optim(s, true) == TABLE_SPEC_FTRL)
        status =
            err_set(err, PS_ESETTING,
                    "--decay plateau does not go with ftrl, whose weights would change with "
                    "the learning rate");
    if (!status && !(s->decay_rate > 0 && s->decay_rate < 1))
        status = err_set(err, PS_ESETTING,
                         "--decay-rate: plateau multiplies by it; found %g, expected a number "
                         "between 0 and 1",
                         (double)s->decay_rate);
    return status;
}
