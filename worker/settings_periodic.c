/* Dense tables that are pushed and pulled every so many steps: --local-steps, --period. */
#include <fnmatch.h>
#include <string.h>

#include "common/number.h"
#include "worker/model/dlrm_config.h"
#include "worker/settings.h"

#define PERIOD_MAX 100000u

int settings_period_pattern(const char *item, char ret[SETTINGS_TEXT_MAX], uint32_t *ret_period,
                            struct err *err)
{
    const char *equals = strrchr(item, '=');
    const size_t len = equals ? (size_t)(equals - item) : 0;
    uint64_t n;

    if (!len || len >= SETTINGS_TEXT_MAX || number_read_u64(equals + 1, &n) || n < 1 ||
        n > PERIOD_MAX)
        return err_set(err, PS_ESETTING,
                       "--period: \"%.60s\" is not the name of a dense table or a pattern, and "
                       "a number of steps from 1 to %u, such as top.*=8",
                       item, PERIOD_MAX);
    memcpy(ret, item, len);
    ret[len] = '\0';
    *ret_period = (uint32_t)n;
    return 0;
}

uint32_t settings_period(const struct settings *s, const char *table)
{
    const char *name = table + strlen(s->job) + 1;
    uint32_t period = s->local_steps ? s->local_steps : 1, n = 1;
    char pattern[SETTINGS_TEXT_MAX];
    struct err err;

    for (uint32_t i = 0; i < s->period.n; i++)
        if (!settings_period_pattern(s->period.items[i], pattern, &n, &err) &&
            fnmatch(pattern, name, 0) == 0)
            period = n;
    return period;
}

bool settings_periods_are_set(const struct settings *s)
{
    return s->local_steps || s->period.n;
}

float settings_slow_lr(const struct settings *s)
{
    if (s->slow_lr > 0)
        return s->slow_lr;
    return settings_dense_is_exact(s) ? 1 : 1 / (float)s->workers;
}

static int refuse_if(struct err *err, bool holds, const char *sentence)
{
    return holds ? err_set(err, PS_ESETTING, "%s", sentence) : 0;
}

/* What needs a push and a pull of each dense table at each step. */
static int check_all_steps(const struct settings *s, struct err *err)
{
    enum codec_id codec;
    int status = refuse_if(
        err, s->local,
        "--local-steps and --period save bytes between workers and servers: with --local "
        "there are none, leave them out");

    if (!status)
        status = refuse_if(
            err, s->state_dir[0],
            "--state-dir goes without --local-steps and --period: what a killed worker has of "
            "its dense tables between two pushes is not kept");
    if (!status)
        status = refuse_if(err, strcmp(s->dense_refresh, "1") != 0,
                           "--dense-refresh goes without --local-steps and --period, which say "
                           "when dense tables are pulled");
    if (!status)
        status = refuse_if(err, s->backup_workers > 0,
                           "--backup-workers goes without --local-steps and --period: a push "
                           "that comes too late would be that of several steps");
    if (!status)
        status = refuse_if(err, settings_compensates(s, true),
                           "--delay-compensation goes without --local-steps and --period: what "
                           "they push is of the weights of several steps");
    if (!status)
        status = refuse_if(
            err,
            settings_codec(s, CODEC_POLICY_DENSE_PUSH, &codec) ||
                settings_codec(s, CODEC_POLICY_DENSE_PULL, &codec),
            "--local-steps and --period go with codecs of dense tables other than auto, which "
            "measures what each step sends");
    return status;
}

/* Of what it is derived for. The servers' step is the mean, and all tables are merged at once. */
static int check_merge_weight(const struct settings *s, struct err *err)
{
    int status =
        refuse_if(err, !s->local_steps || s->model != MODEL_LR || !settings_dense_is_exact(s),
                  "--merge-weight adaptive goes with --model lr, --local-steps and lock step");

    if (status)
        return status;
    return refuse_if(err, s->slow_momentum > 0 || s->slow_lr > 0 || s->rotate || s->period.n,
                     "--merge-weight adaptive goes without --slow-momentum, --slow-lr, "
                     "--rotate and --period: it is the length of the servers' step");
}

static int check_local_steps(const struct settings *s, struct err *err)
{
    int status = refuse_if(err, settings_optim(s, true) == TABLE_SPEC_FTRL,
                           "--dense-optimizer ftrl goes without --local-steps: its weights are "
                           "made of its sums, which know nothing of other workers");

    if (!status && s->freeze_at)
        status = refuse_if(
            err,
            (settings_optim(s, true) != TABLE_SPEC_ADAM &&
             settings_optim(s, true) != TABLE_SPEC_LAMB) ||
                !settings_dense_is_exact(s),
            "--freeze-variance-at goes with --dense-optimizer adam or lamb and lock step, "
            "in which the workers share a second moment");
    if (status)
        return status;
    return refuse_if(err, s->decay == TABLE_SPEC_DECAY_PLATEAU,
                     "--decay plateau goes without --local-steps: the learning rate that the "
                     "servers have is not that of a worker's own steps");
}

int settings_check_periods(const struct settings *s, struct err *err)
{
    char pattern[SETTINGS_TEXT_MAX];
    uint32_t n;
    int status = 0;

    for (uint32_t i = 0; i < s->period.n && !status; i++)
        status = settings_period_pattern(s->period.items[i], pattern, &n, err);
    if (!status)
        status = refuse_if(
            err, !s->local_steps && (s->slow_lr > 0 || s->slow_momentum > 0 || s->freeze_at),
            "--slow-lr, --slow-momentum and --freeze-variance-at go with --local-steps");
    if (!status)
        status = refuse_if(err, s->rotate && !settings_periods_are_set(s),
                           "--rotate goes with --local-steps or --period");
    if (!status && s->merge_weight == MERGE_ADAPTIVELY)
        status = check_merge_weight(s, err);
    if (!status && settings_periods_are_set(s))
        status = check_all_steps(s, err);
    return status || !s->local_steps ? status : check_local_steps(s, err);
}
