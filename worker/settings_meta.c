/* Meta learning: what --meta goes with, and the name of its column. */
#include <string.h>

#include "worker/settings.h"

#define INNER_LR 0.1f /* as settings.c has them */
#define INNER_STEPS 1u

static int refuse_if(struct err *err, bool holds, const char *sentence)
{
    return holds ? err_set(err, PS_ESETTING, "%s", sentence) : 0;
}

static bool reads_no_labels(const char *command)
{
    return strcmp(command, "predict") == 0 || strcmp(command, "serve") == 0;
}

int settings_check_meta(const struct settings *s, const char *command, struct err *err)
{
    const bool has_inner = s->meta_inner_lr != INNER_LR || s->meta_inner_steps != INNER_STEPS;
    int status;

    if (!s->meta[0])
        return refuse_if(err, has_inner,
                         "--meta-inner-lr and --meta-inner-steps go with --meta");
    status = refuse_if(err, reads_no_labels(command),
                       "--meta goes with train and eval: predict and serve have no labels that "
                       "a model could adapt to; leave it out");
    if (!status)
        status = refuse_if(err, s->batch_norm || s->dropout > 0 || s->clip_global_norm > 0,
                           "--meta goes without --batch-norm, --dropout and "
                           "--clip-global-norm: a step has many passes over parts of a batch");
    if (!status)
        status = refuse_if(err, s->delay_compensation > 0,
                           "--meta goes without --delay-compensation: its gradients are of "
                           "weights that each task has to itself");
    if (!status)
        status = refuse_if(err, settings_gpus(s).all || settings_gpus(s).n > 1,
                           "--meta goes with one device: the samples of a task are few");
    if (!status)
        status = refuse_if(err, s->report_page[0],
                           "--meta goes without --report, whose importances are of a model "
                           "that does not adapt");
    return status;
}

const char *settings_changes_gradients(const struct settings *s)
{
    if (s->clip_global_norm > 0)
        return "clip-global-norm";
    if (settings_periods_are_set(s))
        return "local-steps, --period, --row-period";
    return s->meta[0] ? "meta" : NULL;
}
