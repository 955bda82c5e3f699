/* The optimizers and rates of a job's tables, where the settings leave them to psworker; delay compensation. */
#include <stdlib.h>
#include <string.h>

#include "proto/codec_catalog.h"
#include "proto/section.h"
#include "worker/settings.h"

/* The choices of --dense-optimizer, before the optimizers themselves. */
enum { DENSE_AUTO, DENSE_SAME, DENSE_OPTIMS };

/* One number for a block of 1024 weights would be no Adagrad: golden rule 12. */
static enum table_spec_optim dense_kin(enum table_spec_optim optim)
{
    return optim == TABLE_SPEC_ROWWISE_ADAGRAD ? TABLE_SPEC_ADAGRAD : optim;
}

/* Adagrad's first steps have full length, and its later ones shrink: of few steps, most are of the wrong length. Where
 * there are many it learns as much as Adam and costs the servers less. Adam's second moment of gradients of onebit or
 * topk is one of their errors. The figures: deploy/docs/benchmarks.md, "The defaults". */
#define ADAM_FROM_SAMPLES 512u

static bool adam_suits(const struct settings *s)
{
    const uint64_t n_together = settings_dense_is_exact(s) ? s->workers : 1;
    enum codec_id codec;

    if (s->local_steps) /* on its own batches; and its gradients go through no codec */
        return s->batch >= ADAM_FROM_SAMPLES;
    return n_together * s->batch >= ADAM_FROM_SAMPLES &&
           !settings_codec(s, CODEC_POLICY_DENSE_PUSH, &codec) && !codec_by_id(codec)->feedback;
}

bool settings_dense_optim_is_auto(const struct settings *s)
{
    return s->dense_optimizer == DENSE_AUTO;
}

enum table_spec_optim settings_optim(const struct settings *s, bool dense)
{
    const enum table_spec_optim optim = (enum table_spec_optim)s->optimizer;

    if (!dense)
        return optim;
    if (s->dense_optimizer >= DENSE_OPTIMS)
        return (enum table_spec_optim)(s->dense_optimizer - DENSE_OPTIMS);
    if (s->dense_optimizer == DENSE_AUTO && dense_kin(optim) == TABLE_SPEC_ADAGRAD &&
        adam_suits(s))
        return TABLE_SPEC_ADAM;
    return dense_kin(optim);
}

/* The rate that is given for these tables; 0: none is. */
static float given_rate(const struct settings *s, bool dense, enum table_spec_optim optim)
{
    if (!dense)
        return s->lr;
    if (s->dense_lr > 0)
        return s->dense_lr;
    return optim == dense_kin((enum table_spec_optim)s->optimizer) ? s->lr : 0;
}

bool settings_rate_is_auto(const struct settings *s, bool dense, enum table_spec_optim optim)
{
    return !(given_rate(s, dense, optim) > 0);
}

/* A row has few steps, so Adagrad's are longer than those of the dense tables. */
#define ROWS_ADAGRAD_RATE 0.03f

static float rate_of(const struct settings *s, bool dense, enum table_spec_optim optim)
{
    if (!settings_rate_is_auto(s, dense, optim))
        return given_rate(s, dense, optim);
    return !dense && dense_kin(optim) == TABLE_SPEC_ADAGRAD
               ? ROWS_ADAGRAD_RATE
               : table_spec_optim_defaults(optim).learning_rate;
}

struct optimizer_params settings_optim_params(const struct settings *s, bool dense,
                                              enum table_spec_optim optim)
{
    struct optimizer_params p = table_spec_optim_defaults(optim);

    p.learning_rate = rate_of(s, dense, optim);
    if (s->epsilon > 0)
        p.epsilon = s->epsilon;
    p.momentum = s->momentum;
    p.nesterov = s->nesterov;
    p.beta1 = s->beta1;
    /* That of optimizers that have none is a part of their tables, too. */
    p.beta2 = s->beta2 > 0 ? s->beta2 : optim == TABLE_SPEC_LION ? p.beta2 : 0.999f;
    if (s->weight_decay > 0)
        p.weight_decay = s->weight_decay;
    p.initial_accumulator = s->initial_accumulator;
    p.ftrl_beta = s->ftrl_beta;
    p.ftrl_l1 = s->ftrl_l1;
    p.ftrl_l2 = s->ftrl_l2;
    return p;
}

/* Adagrad's first step moves each weight of a dense table by the whole rate, whatever its gradient, and some runs with
 * dropout never recover. Others learn less with a warm-up: the first gradients, of an output far from the share of
 * positive labels, stay in Adagrad's sums and shorten every later step (deploy/docs/benchmarks.md, "The defaults"). Who
 * chooses optimizer or rate chooses the warm-up, too, and with large batches the steps are too few for one. */
struct lr_schedule settings_dense_schedule(const struct settings *s,
                                           enum table_spec_optim optim)
{
    struct lr_schedule schedule = settings_schedule(s);

    if (settings_warmup_is_auto(s) && settings_dense_optim_is_auto(s) &&
        settings_rate_is_auto(s, true, optim) && optim == TABLE_SPEC_ADAGRAD &&
        s->batch < ADAM_FROM_SAMPLES && s->dropout > 0)
        schedule.warmup_clocks = SETTINGS_WARMUP_AUTO;
    return schedule;
}

bool settings_warmup_is_auto(const struct settings *s)
{
    return strcmp(s->warmup, "auto") == 0;
}

static uint32_t warmup_clocks(const struct settings *s)
{
    if (settings_warmup_is_auto(s))
        return s->workers > 1 && s->mode + TABLE_SPEC_MODE_ASYNC != TABLE_SPEC_MODE_BSP
                   ? SETTINGS_WARMUP_AUTO
                   : 0;
    return (uint32_t)strtoul(s->warmup, NULL, 10); /* settings_check() has read it */
}

struct lr_schedule settings_schedule(const struct settings *s)
{
    return (struct lr_schedule){ .warmup_clocks = warmup_clocks(s),
                                 .decay = (enum table_spec_decay)s->decay,
                                 .decay_start = s->decay_start,
                                 .decay_clocks = s->decay_clocks,
                                 .decay_rate = s->decay_rate,
                                 .decay_floor = s->decay_floor };
}

/* ---- delay compensation ---- */

bool settings_compensates(const struct settings *s, bool dense)
{
    const int own = dense ? s->dense_mode : s->embedding_mode;
    const int mode = own ? own : s->mode + TABLE_SPEC_MODE_ASYNC;

    return s->delay_compensation > 0 && mode != TABLE_SPEC_MODE_BSP;
}

struct section_delay settings_delay(const struct settings *s)
{
    return (struct section_delay){ .lambda = s->delay_compensation,
                                   .constant = s->delay_form == DELAY_CONSTANT };
}

/* Of which a push has no place for the weights; auto may come to it. */
static bool may_be_topk(const struct settings *s, enum codec_policy_direction direction)
{
    enum codec_id codec;

    return settings_codec(s, direction, &codec) || codec == CODEC_TOPK;
}

static int check_delay(const struct settings *s, struct err *err)
{
    const bool rows = settings_compensates(s, false), dense = settings_compensates(s, true);

    if (!(s->delay_compensation > 0))
        return 0;
    if (!rows && !dense)
        return err_set(
            err, PS_ESETTING,
            "--delay-compensation goes with --mode ssp or async: in lock step gradients "
            "are those of the weights that they change");
    if (settings_device(s, NULL) == DEVICE_CUDA)
        return err_set(
            err, PS_ESETTING,
            "--delay-compensation goes with --device cpu: a GPU keeps the weights that "
            "the servers need");
    if ((rows &&
         (may_be_topk(s, CODEC_POLICY_ROWS_PUSH) || may_be_topk(s, CODEC_POLICY_WIDE_PUSH))) ||
        (dense && may_be_topk(s, CODEC_POLICY_DENSE_PUSH)))
        return err_set(
            err, PS_ESETTING,
            "--delay-compensation goes with push codecs that send each gradient: fp32, "
            "bf16, fp16, int8 or onebit");
    return 0;
}

/* ---- whole layers ---- */

bool settings_has_layers(const struct settings *s)
{
    return table_spec_takes_layers(settings_optim(s, true)) && !s->local_steps;
}

int settings_check_optimizers(const struct settings *s, struct err *err)
{
    enum codec_id codec;

    if (settings_has_layers(s) && !settings_codec(s, CODEC_POLICY_DENSE_PUSH, &codec) &&
        codec == CODEC_TOPK)
        return err_set(err, PS_ESETTING,
                       "--dense-optimizer lamb and lars take each layer whole, and topk counts "
                       "up to %u floats: give --dense-push-codec fp32, bf16, fp16, int8 or "
                       "onebit",
                       TABLE_SPEC_DIM_MAX);
    return check_delay(s, err);
}
