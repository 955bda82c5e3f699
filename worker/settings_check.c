/* What is wrong with a person's settings though each of them can be read (settings.h). */
#include <string.h>

#include "common/number.h"
#include "worker/model/dlrm_config.h"
#include "worker/settings.h"

static int want(struct err *err, int holds, const char *sentence)
{
    return holds ? 0 : err_set(err, PS_ESETTING, "%s", sentence);
}

static int check_numbers(const struct settings *s, struct err *err)
{
    const struct {
        const char *name;
        float value, lo, below;
    } floats[] = {
        { "valid-fraction", s->valid_fraction, 0, 1 },
        { "dropout", s->dropout, 0, 1 },
        { "l2-dense", s->l2_dense, 0, 1e6f },
        { "l2-embedding", s->l2_embedding, 0, 1e6f },
        { "init-scale", s->init_scale, 0, 1e6f },
        { "lr", s->lr, 0, 1e6f },
        { "dense-lr", s->dense_lr, 0, 1e6f },
        { "epsilon", s->epsilon, 0, 1e6f },
        { "momentum", s->momentum, 0, 1 },
        { "beta1", s->beta1, 0, 1 },
        { "beta2", s->beta2, 0, 1 },
        { "weight-decay", s->weight_decay, 0, 1e6f },
        { "clip-norm", s->clip_norm, 0, 1e30f },
        { "initial-accumulator", s->initial_accumulator, 0, 1e30f },
        { "ftrl-beta", s->ftrl_beta, 0, 1e6f },
        { "ftrl-l1", s->ftrl_l1, 0, 1e6f },
        { "ftrl-l2", s->ftrl_l2, 0, 1e6f },
        { "topk", s->topk, 0, 1.000001f },
        { "decay-rate", s->decay_rate, 0, 1.000001f },
        { "decay-floor", s->decay_floor, 0, 1.000001f },
        { "positive-rate", s->positive_rate, 0, 1 },
        { "zipf", s->zipf, 0, 100 },
    };

    for (size_t i = 0; i < COUNT_OF(floats); i++)
        if (!(floats[i].value >= floats[i].lo && floats[i].value < floats[i].below))
            return err_set(err, PS_ESETTING, "--%s: %g is not from %g to below %g",
                           floats[i].name, (double)floats[i].value, (double)floats[i].lo,
                           (double)floats[i].below);
    return 0;
}

static int check_warmup(const struct settings *s, struct err *err)
{
    uint64_t n;

    if (settings_warmup_is_auto(s) || (number_read_u64(s->warmup, &n) == 0 && n <= UINT32_MAX))
        return 0;
    return err_set(err, PS_ESETTING,
                   "--warmup: \"%.40s\" is neither auto nor a number of clocks", s->warmup);
}

static int check_train(const struct settings *s, struct err *err)
{
    int status = want(err, s->data.n > 0,
                      "--data: what to train on is missing; name a file or a directory");

    if (!status)
        status = check_warmup(s, err);
    if (!status)
        status = want(err, s->rank < s->workers,
                      "--rank must be less than --workers: ranks count from 0");
    if (!status)
        status = want(err, !s->local || s->workers == 1,
                      "--local is one worker: drop --workers or --local");
    if (!status)
        status =
            want(err, s->local || !s->save[0],
                 "--save goes with --local; on servers, `psctl checkpoint` saves the tables");
    if (!status)
        status = want(err, !(s->train_rows && s->valid_fraction > 0),
                      "--train-rows and --valid-fraction say the same thing; give one of them");
    if (!status)
        status =
            want(err, !s->valid.n || (!s->train_rows && !(s->valid_fraction > 0)),
                 "--valid names the validation logs; drop --train-rows and --valid-fraction");
    if (!status)
        status =
            want(err, !s->early_stop || s->valid.n || s->train_rows || s->valid_fraction > 0,
                 "--early-stop needs validation rows: give --valid, --valid-fraction or "
                 "--train-rows");
    if (!status)
        status = want(err, !s->checkpoint[0],
                      "--checkpoint is for eval and predict; psd itself starts from "
                      "its newest checkpoint");
    return status;
}

static int check_layers(const struct settings *s, struct err *err)
{
    uint32_t widths[SETTINGS_LAYERS_MAX], n;
    int status = settings_widths("bottom", s->bottom, widths, COUNT_OF(widths), &n, err);

    return status ? status : settings_widths("top", s->top, widths, COUNT_OF(widths), &n, err);
}

/* The servers' own judgement, before any is asked. */
static int check_limits(const struct settings *s, struct err *err)
{
    const struct table_spec spec = {
        .name = "emb", .dim = s->dim, .optim = SPEC_SGD, .limits = settings_limits(s)
    };
    struct err why = { 0 };
    int status = want(err, s->ttl_ms % 1000 == 0, "--ttl: whole seconds are expected");

    if (!status)
        status = want(err, (s->admit_touches > 1) == (s->admit_clocks > 0),
                      "--admit-touches of 2 or more and --admit-clocks go together: so many "
                      "pushes within so many clocks");
    if (!status)
        status = want(err, (s->rare_touches > 0) == (s->rare_clocks > 0),
                      "--rare-touches and --rare-clocks go together: fewer pushes than that "
                      "within so many clocks");

    if (!status && spec_check(&spec, &why))
        status = err_set(err, PS_ESETTING, "%s", why.text);
    return status;
}

int settings_check(const struct settings *s, const char *command, struct err *err)
{
    bool reads = strcmp(command, "eval") == 0 || strcmp(command, "predict") == 0;
    int status = check_numbers(s, err);

    if (!status)
        status = check_layers(s, err);
    if (!status)
        status = check_limits(s, err);
    if (!status)
        status =
            want(err, s->job[0] && !strpbrk(s->job, " /\t\n") && strlen(s->job) < 64,
                 "--job: a name of 1 to 63 characters without blanks and slashes is expected");
    if (!status && strcmp(command, "train") == 0)
        status = check_train(s, err);
    if (!status && reads)
        status = want(err, s->data.n > 0,
                      "--data: what to read is missing; name a file or a directory");
    if (!status && reads)
        status = want(err, !s->local || s->checkpoint[0],
                      "--local needs --checkpoint DIR to read the model from");
    return status;
}
