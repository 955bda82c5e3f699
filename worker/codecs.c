#include "worker/codecs.h"

#include <assert.h>
#include <string.h>

#include "proto/codec_catalog.h"

#define TIMED_DIM 256u /* a block of onebit */
#define TIMED_ROWS 64u
#define RATE_MAX 1e12 /* bytes/s: more than this cannot be told from no time at all */

/* Seconds that a codec takes for one float; the fastest of three. */
static double time_codec(const struct codecs_options *o, const struct codec *codec)
{
    float values[TIMED_DIM], residual[TIMED_DIM] = { 0 }, scratch[2 * TIMED_DIM];
    uint8_t bytes[4 * TIMED_DIM + 64];
    const struct choice_flow *dense = &o->flows[CHOICE_DENSE_PUSH];
    uint32_t k = 1 + dense->k * (TIMED_DIM - 1) / (dense->dim + 1);
    double best = 0;

    for (uint32_t i = 0; i < TIMED_DIM; i++)
        values[i] = (float)(i % 17) - 8;
    for (int turn = 0; turn < 3; turn++) {
        double since = o->now_s(o->arg), took;

        for (uint32_t i = 0; i < TIMED_ROWS; i++) {
            if (codec->feedback)
                codec_encode_feedback(codec, values, residual, TIMED_DIM, k, scratch, bytes);
            else
                codec->encode(values, TIMED_DIM, k, bytes);
        }
        took = o->now_s(o->arg) - since;
        best = turn == 0 || took < best ? took : best;
    }
    return best / (TIMED_DIM * TIMED_ROWS);
}

static bool any_is_free(const struct codecs_options *o)
{
    for (int i = 0; i < CHOICE_SLOT_END; i++)
        if (o->flows[i].is_free)
            return true;
    return o->refresh == 0 && o->refresh_max > 1;
}

static void tell(struct codecs *c)
{
    char text[CHOICE_TEXT_MAX];

    choice_tell(&c->input, &c->now, text);
    c->options.notice(c->options.arg, text);
}

void codecs_init(struct codecs *c, const struct codecs_options *o)
{
    *c = (struct codecs){ .options = *o, .now.refresh = o->refresh ? o->refresh : 1 };
    for (int i = 0; i < CHOICE_SLOT_END; i++) {
        c->input.flows[i] = o->flows[i];
        c->now.codecs[i] = o->flows[i].is_free ? CODEC_FP32 : o->flows[i].codec;
    }
    c->input.overlaps = o->overlaps;
    c->input.refresh_max = o->refresh ? 1 : o->refresh_max;
    if (!any_is_free(o))
        return;
    if (!o->has_link) {
        tell(c);
        return;
    }
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        c->input.encode_s[id] = time_codec(o, codec_by_id(id));
    c->n_left = c->n_unplanned = CODECS_FIRST;
}

void codecs_encode_elsewhere(struct codecs *c)
{
    memset(c->input.encode_s, 0, sizeof c->input.encode_s);
}

/* Of the pushes that are measured. */
static bool is_big(uint32_t n_left)
{
    return n_left % 2 == 0;
}

/* Two sizes that no accuracy depends on. */
static enum codec_id measured_codec(const struct codecs *c, enum choice_slot slot)
{
    if (is_big(c->n_unplanned))
        return CODEC_FP32;
    return slot == CHOICE_WIDE_PUSH ? CODEC_BF16 : CODEC_INT8;
}

enum codec_id codecs_at(const struct codecs *c, enum choice_slot slot)
{
    const struct choice_flow *f = &c->options.flows[slot];
    bool pushes =
        slot == CHOICE_ROWS_PUSH || slot == CHOICE_WIDE_PUSH || slot == CHOICE_DENSE_PUSH;
    enum codec_id id = c->now.codecs[slot];

    if (c->n_unplanned && pushes && f->is_free)
        id = measured_codec(c, slot);
    if (slot == CHOICE_DENSE_PUSH && codec_by_id(id)->feedback &&
        c->options.steps_before + c->n_planned < c->options.warmup_steps)
        return c->options.warmup_codec;
    return id;
}

void codecs_plan(struct codecs *c, struct codecs_plan *ret)
{
    ret->n_left = c->n_unplanned;
    for (int i = 0; i < CHOICE_SLOT_END; i++)
        ret->codecs[i] = codecs_at(c, (enum choice_slot)i);
    ret->number = c->options.steps_before + ++c->n_planned;
    if (c->n_unplanned)
        c->n_unplanned--;
}

void codecs_forget(struct codecs *c)
{
    c->n_planned = c->n_steps;
    c->n_unplanned = c->n_left;
}

uint32_t codecs_refresh(const struct codecs *c)
{
    return c->now.refresh;
}

static void note_sample(struct codecs *c, const struct codecs_step *step)
{
    if (step->push_s <= 0 || step->n_left > CODECS_AGAIN) /* a link just opened is slow */
        return;
    if (is_big(step->n_left) && (c->big.s <= 0 || step->push_s < c->big.s)) {
        c->big.bytes = (double)step->push_bytes;
        c->big.s = step->push_s;
    } else if (!is_big(step->n_left) && (c->small.s <= 0 || step->push_s < c->small.s)) {
        c->small.bytes = (double)step->push_bytes;
        c->small.s = step->push_s;
    }
}

static void set_link(struct codecs *c)
{
    double bytes = c->big.bytes - c->small.bytes, s = c->big.s - c->small.s;

    c->input.bytes_per_s = RATE_MAX;
    if (bytes > 0 && s > bytes / RATE_MAX)
        c->input.bytes_per_s = bytes / s;
    c->input.rtt_s = c->small.s - c->small.bytes / c->input.bytes_per_s;
    if (c->input.rtt_s < 0)
        c->input.rtt_s = 0;
}

/* Pulls that something nearer answers cost the link nothing. */
static double pulled_share(const struct codecs *c, const struct codecs_step *step)
{
    double expected = 0, n_steps = (double)c->n_quiet, share;

    for (int i = 0; i < CHOICE_SLOT_END; i++) {
        const struct choice_flow *f = &c->input.flows[i];

        if (i == CHOICE_ROWS_PULL || i == CHOICE_WIDE_PULL)
            expected +=
                c->rows * (double)codec_by_id(c->now.codecs[i])->row_bytes(f->dim, f->k);
        if (i == CHOICE_DENSE_PULL)
            expected += n_steps / c->now.refresh * c->options.flows[i].n_rows *
                        (double)codec_by_id(c->now.codecs[i])->row_bytes(f->dim, f->k);
    }
    share = expected > 0 ? (double)(step->bytes_in - c->bytes_in) / expected : 0;
    return share < 1 ? share : 1;
}

static void set_flows(struct codecs *c, const struct codecs_step *step)
{
    const struct choice_flow *given = c->options.flows;
    struct choice_flow *f = c->input.flows;
    double rows = c->rows / (double)c->n_quiet, share;
    bool has_wide = given[CHOICE_WIDE_PUSH].dim > 0;

    share = pulled_share(c, step);
    f[CHOICE_ROWS_PUSH].n_rows = rows;
    f[CHOICE_ROWS_PULL].n_rows = rows * share;
    f[CHOICE_WIDE_PUSH].n_rows = has_wide ? rows : 0;
    f[CHOICE_WIDE_PULL].n_rows = has_wide ? rows * share : 0;
    f[CHOICE_DENSE_PULL].n_rows = given[CHOICE_DENSE_PULL].n_rows * share;
    c->input.key_bytes = 7 * rows * (1 + share) * (has_wide ? 2 : 1);
    c->input.compute_s = c->compute_s / (double)c->n_quiet;
}

static void choose(struct codecs *c, const struct codecs_step *step)
{
    bool first = !(c->input.bytes_per_s > 0);

    set_flows(c, step);
    set_link(c);
    if (first)
        choice_make(&c->input, &c->now);
    if (first || choice_adapt(&c->input, &c->now))
        tell(c);
    if (c->options.refresh)
        c->now.refresh = c->options.refresh;
    c->big.s = c->small.s = 0;
    c->rows = c->compute_s = 0;
    c->n_quiet = 0;
    c->bytes_in = step->bytes_in;
}

void codecs_stepped(struct codecs *c, const struct codecs_step *step)
{
    assert(c->n_steps < c->n_planned && step->n_left <= c->n_left);
    c->n_steps++;
    c->n_quiet++;
    c->rows += step->n_rows;
    c->compute_s += step->compute_s;
    if (step->n_left) {
        note_sample(c, step);
        if (--c->n_left == 0)
            choose(c, step);
    } else if (!c->n_left && c->n_quiet >= CODECS_EVERY && c->input.bytes_per_s > 0) {
        c->n_left = c->n_unplanned = CODECS_AGAIN;
    }
}
