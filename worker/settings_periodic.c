/* Tables that are pushed and pulled every so many steps: --local-steps, --period, --row-period. */
#include <fnmatch.h>
#include <string.h>

#include "common/number.h"
#include "worker/model/dlrm_config.h"
#include "worker/settings.h"

#define PERIOD_MAX 100000u

int settings_period_pattern(const char *setting, const char *item, char ret[SETTINGS_TEXT_MAX],
                            uint32_t *ret_period, struct err *err)
{
    const char *equals = strrchr(item, '=');
    const size_t len = equals ? (size_t)(equals - item) : 0;
    uint64_t n;

    if (!len || len >= SETTINGS_TEXT_MAX || number_read_u64(equals + 1, &n) || n < 1 ||
        n > PERIOD_MAX)
        return err_set(err, PS_ESETTING,
                       "--%s: \"%.60s\" is not the name of a table or a pattern, and a "
                       "number of steps from 1 to %u, such as %s=8",
                       setting, item, PERIOD_MAX,
                       strcmp(setting, "period") == 0 ? "top.*" : "emb*");
    memcpy(ret, item, len);
    ret[len] = '\0';
    *ret_period = (uint32_t)n;
    return 0;
}

/* The last item that names the table counts. */
static uint32_t find_period(const struct settings *s, const char *setting,
                            const struct setting_list *items, const char *table,
                            uint32_t otherwise)
{
    const char *name = table + strlen(s->job) + 1;
    uint32_t period = otherwise, n = 1;
    char pattern[SETTINGS_TEXT_MAX];
    struct err err;

    for (uint32_t i = 0; i < items->n; i++)
        if (!settings_period_pattern(setting, items->items[i], pattern, &n, &err) &&
            fnmatch(pattern, name, 0) == 0)
            period = n;
    return period;
}

uint32_t settings_period(const struct settings *s, const char *table)
{
    return find_period(s, "period", &s->period, table, s->local_steps ? s->local_steps : 1);
}

uint32_t settings_row_period(const struct settings *s, const char *table)
{
    return find_period(s, "row-period", &s->row_period, table, 1);
}

static bool dense_periods_are_set(const struct settings *s)
{
    return s->local_steps || s->period.n;
}

bool settings_periods_are_set(const struct settings *s)
{
    return dense_periods_are_set(s) || s->row_period.n;
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

static bool is_auto(const struct settings *s, enum codec_policy_direction direction)
{
    enum codec_id codec;

    return settings_codec(s, direction, &codec);
}

/* What needs a push and a pull of each dense table at each step. */
static int check_dense_steps(const struct settings *s, struct err *err)
{
    int status = refuse_if(err, strcmp(s->dense_refresh, "1") != 0,
                           "--dense-refresh goes without --local-steps and --period, which say "
                           "when dense tables are pulled");

    if (!status)
        status = refuse_if(err, settings_compensates(s, true),
                           "--delay-compensation goes without --local-steps and --period: what "
                           "they push is of the weights of several steps");
    if (!status)
        status = refuse_if(
            err, is_auto(s, CODEC_POLICY_DENSE_PUSH) || is_auto(s, CODEC_POLICY_DENSE_PULL),
            "--local-steps and --period go with codecs of dense tables other than auto, which "
            "measures what each step sends");
    return status;
}

static int check_row_steps(const struct settings *s, struct err *err)
{
    int status = refuse_if(err, settings_compensates(s, false),
                           "--delay-compensation goes without --row-period: what it pushes is "
                           "of the rows of several steps");

    if (!status)
        status = refuse_if(
            err,
            is_auto(s, CODEC_POLICY_ROWS_PUSH) || is_auto(s, CODEC_POLICY_ROWS_PULL) ||
                is_auto(s, CODEC_POLICY_WIDE_PUSH) || is_auto(s, CODEC_POLICY_WIDE_PULL),
            "--row-period goes with codecs of rows other than auto, which measures what each "
            "step sends");
    if (!status)
        status = refuse_if(err, s->embedding_mode != s->dense_mode,
                           "--row-period goes with one mode of all tables: leave out "
                           "--embedding-mode and --dense-mode, or give both the same");
    if (!status)
        status = refuse_if(err, s->reuse_clocks > 0,
                           "--reuse-clocks goes without --row-period, which says when rows "
                           "are pulled again");
    return status;
}

static int check_all_steps(const struct settings *s, struct err *err)
{
    int status = refuse_if(
        err, s->local,
        "--local-steps, --period and --row-period save bytes between workers and servers: "
        "with --local there are none, leave them out");

    if (!status)
        status = refuse_if(
            err, s->state_dir[0],
            "--state-dir goes without --local-steps, --period and --row-period: what a killed "
            "worker has of its tables between two pushes is not kept");
    if (!status)
        status = refuse_if(err, s->backup_workers > 0,
                           "--backup-workers goes without --local-steps, --period and "
                           "--row-period: a push that comes too late would be that of several "
                           "steps");
    if (!status && dense_periods_are_set(s))
        status = check_dense_steps(s, err);
    return status || !s->row_period.n ? status : check_row_steps(s, err);
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
        status = settings_period_pattern("period", s->period.items[i], pattern, &n, err);
    for (uint32_t i = 0; i < s->row_period.n && !status; i++)
        status =
            settings_period_pattern("row-period", s->row_period.items[i], pattern, &n, err);
    if (!status)
        status = refuse_if(
            err, !s->local_steps && (s->slow_lr > 0 || s->slow_momentum > 0 || s->freeze_at),
            "--slow-lr, --slow-momentum and --freeze-variance-at go with --local-steps");
    if (!status)
        status = refuse_if(err, s->rotate && !dense_periods_are_set(s),
                           "--rotate goes with --local-steps or --period");
    if (!status && s->merge_weight == MERGE_ADAPTIVELY)
        status = check_merge_weight(s, err);
    if (!status && settings_periods_are_set(s))
        status = check_all_steps(s, err);
    return status || !s->local_steps ? status : check_local_steps(s, err);
}
