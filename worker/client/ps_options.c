#include "worker/client/ps_options.h"

#include <errno.h>
#include <string.h>

struct ps_options ps_options_complete(const struct ps_options *options)
{
    struct ps_options o = *options;

    o.connect_ms = o.connect_ms ? o.connect_ms : 60000;
    o.give_up_ms = o.give_up_ms ? o.give_up_ms : 60000;
    o.pull_ms = o.pull_ms ? o.pull_ms : 600000;
    o.window_bytes = o.window_bytes ? o.window_bytes : 64u << 20;
    o.answer_ms = o.answer_ms ? o.answer_ms : 20000;
    o.token = o.token ? o.token : "";
    o.name = o.name ? o.name : "";
    o.job = o.job ? o.job : "";
    return o;
}

int ps_options_check(const struct ps_options *o, struct err *err)
{
    if (o->reader)
        return 0;
    if (!o->job[0] || strlen(o->job) >= SPEC_NAME_MAX)
        return err_set(err, -EINVAL, "job: \"%s\" is no name of 1 to %u characters", o->job,
                       SPEC_NAME_MAX - 1);
    if (!o->n_workers || o->rank >= o->n_workers)
        return err_set(err, -EINVAL, "rank %u of %u workers: expected 0 to workers - 1",
                       o->rank, o->n_workers);
    if (o->mode != SPEC_MODE_ASYNC && o->mode != SPEC_MODE_SSP && o->mode != SPEC_MODE_BSP)
        return err_set(err, -EINVAL, "mode %d: expected async, ssp or bsp", (int)o->mode);
    return 0;
}
