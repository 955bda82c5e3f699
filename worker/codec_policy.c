#include "worker/codec_policy.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "proto/codec_catalog.h"

#define LEVELS 4

/* By level. What is not there for a direction stands at the one before it: weights of one float
 * have no scale to share, and codecs with feedback answer no pulls. The last level is what costs
 * the least AUC on Criteo's logs for its bytes (deploy/docs/benchmarks.md, "Codecs and AUC"). */
static const enum codec_id ladders[CODEC_POLICY_DIRECTIONS][LEVELS] = {
    [CODEC_POLICY_ROWS_PUSH] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_ONEBIT },
    [CODEC_POLICY_ROWS_PULL] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_INT8 },
    [CODEC_POLICY_WIDE_PUSH] = { CODEC_FP32, CODEC_BF16, CODEC_BF16, CODEC_BF16 },
    [CODEC_POLICY_WIDE_PULL] = { CODEC_FP32, CODEC_BF16, CODEC_BF16, CODEC_BF16 },
    [CODEC_POLICY_DENSE_PUSH] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_TOPK },
    [CODEC_POLICY_DENSE_PULL] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_INT8 },
};

/* Steps that share one pull of it. */
static double every(const struct codec_policy_choice *c, int direction)
{
    return direction == CODEC_POLICY_DENSE_PULL ? (double)c->refresh : 1;
}

static double seconds_on_wire(const struct codec_policy_input *in,
                              const struct codec_policy_choice *c)
{
    double n_bytes = in->key_bytes;

    if (!(in->bytes_per_s > 0))
        return 0;
    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++) {
        const struct codec_policy_rows *f = &in->rows[i];

        n_bytes += f->n_rows * (double)codec_by_id(c->codecs[i])->row_bytes(f->dim, f->k) /
                   every(c, i);
    }
    return in->rtt_s + n_bytes / in->bytes_per_s;
}

double codec_policy_step_s(const struct codec_policy_input *in,
                           const struct codec_policy_choice *c)
{
    double wire_s = seconds_on_wire(in, c), busy_s = in->compute_s;

    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++)
        busy_s +=
            in->rows[i].n_rows * in->rows[i].dim * in->encode_s[c->codecs[i]] / every(c, i);
    if (in->overlaps)
        return wire_s > busy_s ? wire_s : busy_s;
    return wire_s + busy_s;
}

/* In place of topk, the rung before it. */
static enum codec_id rung(const struct codec_policy_input *in, int direction, int level)
{
    const enum codec_id codec = ladders[direction][level];

    return codec == CODEC_TOPK && in->rows[direction].is_layers ? CODEC_INT8 : codec;
}

static void set_level(const struct codec_policy_input *in, int level,
                      struct codec_policy_choice *c)
{
    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++)
        c->codecs[i] = in->rows[i].is_free ? rung(in, i, level) : in->rows[i].codec;
}

/* Each direction back towards fp32, the lossiest first, as long as the step stays below most_s. */
static void go_back(const struct codec_policy_input *in, int level, double most_s,
                    struct codec_policy_choice *c)
{
    for (int from = level; from > 0; from--) {
        for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++) {
            const enum codec_id before = c->codecs[i];

            if (!in->rows[i].is_free || before != rung(in, i, from))
                continue;
            c->codecs[i] = rung(in, i, from - 1);
            if (codec_policy_step_s(in, c) > most_s)
                c->codecs[i] = before;
        }
    }
}

/* The fewest pulls of dense tables that still pay; most are fresh, then. */
static void set_refresh(const struct codec_policy_input *in, struct codec_policy_choice *c)
{
    double best_s;

    c->refresh = in->refresh_max;
    best_s = codec_policy_step_s(in, c);
    c->refresh = 1;
    if (best_s > codec_policy_step_s(in, c) * (1 - CODEC_POLICY_GAIN))
        return;
    while (c->refresh < in->refresh_max &&
           codec_policy_step_s(in, c) > best_s * (1 + CODEC_POLICY_SLACK))
        c->refresh++;
}

void codec_policy_choose(const struct codec_policy_input *in, struct codec_policy_choice *ret)
{
    struct codec_policy_choice c = { .refresh = 1 };
    int best = 0;
    double best_s;

    set_level(in, 0, &c);
    set_refresh(in, &c);
    best_s = codec_policy_step_s(in, &c);
    for (int level = 1; level < LEVELS; level++) {
        set_level(in, level, &c);
        if (codec_policy_step_s(in, &c) > best_s * (1 - CODEC_POLICY_GAIN))
            continue;
        best = level;
        best_s = codec_policy_step_s(in, &c);
    }
    set_level(in, best, &c);
    go_back(in, best, best_s * (1 + CODEC_POLICY_SLACK), &c);
    set_refresh(in, &c);
    *ret = c;
}

static bool same(const struct codec_policy_choice *a, const struct codec_policy_choice *b)
{
    return a->refresh == b->refresh && memcmp(a->codecs, b->codecs, sizeof a->codecs) == 0;
}

bool codec_policy_adapt(const struct codec_policy_input *in, struct codec_policy_choice *now)
{
    static const double links[] = { 1, CODEC_POLICY_BAND, 1 / CODEC_POLICY_BAND };
    struct codec_policy_input near = *in;
    struct codec_policy_choice best, other;

    codec_policy_choose(in, &best);
    for (size_t i = 0; i < COUNT_OF(links); i++) {
        near.bytes_per_s = in->bytes_per_s * links[i];
        codec_policy_choose(&near, &other);
        if (same(&other, now))
            return false;
    }
    *now = best;
    return true;
}

static const char *name_of(const struct codec_policy_choice *c, int direction)
{
    return codec_by_id(c->codecs[direction])->name;
}

/* No network is as fast as what a message over loopback can seem to be. */
static void describe_link(const struct codec_policy_input *in, char *dst, size_t n_bytes)
{
    const double mbit_s = in->bytes_per_s * 8e-6, rtt_ms = in->rtt_s * 1e3;

    if (!(mbit_s > 0))
        snprintf(dst, n_bytes, "no link");
    else if (mbit_s >= 1e6)
        snprintf(dst, n_bytes, "link faster than can be measured, %.2f ms away", rtt_ms);
    else if (mbit_s >= 1e4)
        snprintf(dst, n_bytes, "link %.0f Gbit/s, %.2f ms away", mbit_s * 1e-3, rtt_ms);
    else
        snprintf(dst, n_bytes, "link %.*f Mbit/s, %.2f ms away", mbit_s < 10 ? 1 : 0, mbit_s,
                 rtt_ms);
}

void codec_policy_describe(const struct codec_policy_input *in,
                           const struct codec_policy_choice *c,
                           char ret_text[CODEC_POLICY_TEXT_MAX])
{
    char link[80], wide[48] = "", refresh[48] = "";

    describe_link(in, link, sizeof link);
    if (in->rows[CODEC_POLICY_WIDE_PUSH].n_rows > 0)
        snprintf(wide, sizeof wide, "; wide %s out, %s in", name_of(c, CODEC_POLICY_WIDE_PUSH),
                 name_of(c, CODEC_POLICY_WIDE_PULL));
    if (c->refresh > 1)
        snprintf(refresh, sizeof refresh, " every %u steps", c->refresh);
    snprintf(ret_text, CODEC_POLICY_TEXT_MAX,
             "%s; %.1f ms of wire against %.1f ms of compute a step: rows %s out, %s in%s; "
             "dense %s out, %s in%s",
             link, seconds_on_wire(in, c) * 1e3, in->compute_s * 1e3,
             name_of(c, CODEC_POLICY_ROWS_PUSH), name_of(c, CODEC_POLICY_ROWS_PULL), wide,
             name_of(c, CODEC_POLICY_DENSE_PUSH), name_of(c, CODEC_POLICY_DENSE_PULL), refresh);
}

#define TIMED_DIM 256u /* a block of onebit */
#define TIMED_ROWS 64u
#define RATE_MAX 1e12 /* bytes/s: more than this cannot be told from no time at all */

/* Seconds that a codec takes for one float; the fastest of three. */
static double time_codec(const struct codec_policy_options *o, const struct codec *codec)
{
    float values[TIMED_DIM], residual[TIMED_DIM] = { 0 }, scratch[2 * TIMED_DIM];
    uint8_t bytes[4 * TIMED_DIM + 64];
    const struct codec_policy_rows *dense = &o->rows[CODEC_POLICY_DENSE_PUSH];
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

static bool any_is_free(const struct codec_policy_options *o)
{
    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++)
        if (o->rows[i].is_free)
            return true;
    return o->refresh == 0 && o->refresh_max > 1;
}

static void announce(struct codec_policy *c)
{
    char text[CODEC_POLICY_TEXT_MAX];

    codec_policy_describe(&c->input, &c->now, text);
    c->options.notice(c->options.arg, text);
}

void codec_policy_init(struct codec_policy *c, const struct codec_policy_options *o)
{
    *c = (struct codec_policy){ .options = *o, .now.refresh = o->refresh ? o->refresh : 1 };
    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++) {
        c->input.rows[i] = o->rows[i];
        c->now.codecs[i] = o->rows[i].is_free ? CODEC_FP32 : o->rows[i].codec;
    }
    c->input.overlaps = o->overlaps;
    c->input.refresh_max = o->refresh ? 1 : o->refresh_max;
    if (!any_is_free(o))
        return;
    if (!o->has_link) {
        announce(c);
        return;
    }
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        c->input.encode_s[id] = time_codec(o, codec_by_id(id));
    c->n_left = c->n_unplanned = CODEC_POLICY_FIRST;
}

void codec_policy_set_device_encodes(struct codec_policy *c)
{
    memset(c->input.encode_s, 0, sizeof c->input.encode_s);
}

/* Of the pushes that are measured. */
static bool is_big(uint32_t n_left)
{
    return n_left % 2 == 0;
}

/* Two sizes that no accuracy depends on. */
static enum codec_id measured_codec(const struct codec_policy *c,
                                    enum codec_policy_direction direction)
{
    if (is_big(c->n_unplanned))
        return CODEC_FP32;
    return direction == CODEC_POLICY_WIDE_PUSH ? CODEC_BF16 : CODEC_INT8;
}

enum codec_id codec_policy_at(const struct codec_policy *c,
                              enum codec_policy_direction direction)
{
    const struct codec_policy_rows *f = &c->options.rows[direction];
    bool pushes = direction == CODEC_POLICY_ROWS_PUSH || direction == CODEC_POLICY_WIDE_PUSH ||
                  direction == CODEC_POLICY_DENSE_PUSH;
    enum codec_id id = c->now.codecs[direction];

    if (c->n_unplanned && pushes && f->is_free)
        id = measured_codec(c, direction);
    if (direction == CODEC_POLICY_DENSE_PUSH &&
        c->options.steps_before + c->n_planned < c->options.warmup_steps &&
        codec_by_id(id)->feedback)
        return c->options.warmup_codec;
    return id;
}

void codec_policy_plan(struct codec_policy *c, struct codec_policy_plan *ret)
{
    ret->n_left = c->n_unplanned;
    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++)
        ret->codecs[i] = codec_policy_at(c, (enum codec_policy_direction)i);
    ret->number = c->options.steps_before + ++c->n_planned;
    if (c->n_unplanned)
        c->n_unplanned--;
}

void codec_policy_reset(struct codec_policy *c)
{
    c->n_planned = c->n_steps;
    c->n_unplanned = c->n_left;
}

uint32_t codec_policy_refresh(const struct codec_policy *c)
{
    return c->now.refresh;
}

static void add_sample(struct codec_policy *c, const struct codec_policy_step *step)
{
    if (step->push_s <= 0 ||
        step->n_left > CODEC_POLICY_REPEAT) /* a link just opened is slow */
        return;
    if (is_big(step->n_left) && (c->big.s <= 0 || step->push_s < c->big.s)) {
        c->big.bytes = (double)step->push_bytes;
        c->big.s = step->push_s;
    } else if (!is_big(step->n_left) && (c->small.s <= 0 || step->push_s < c->small.s)) {
        c->small.bytes = (double)step->push_bytes;
        c->small.s = step->push_s;
    }
}

static void set_link(struct codec_policy *c)
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
static double pulled_share(const struct codec_policy *c, const struct codec_policy_step *step)
{
    double expected = 0, n_steps = (double)c->n_quiet, share;

    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++) {
        const struct codec_policy_rows *f = &c->input.rows[i];

        if (i == CODEC_POLICY_ROWS_PULL || i == CODEC_POLICY_WIDE_PULL)
            expected +=
                c->rows * (double)codec_by_id(c->now.codecs[i])->row_bytes(f->dim, f->k);
        if (i == CODEC_POLICY_DENSE_PULL)
            expected += n_steps / c->now.refresh * c->options.rows[i].n_rows *
                        (double)codec_by_id(c->now.codecs[i])->row_bytes(f->dim, f->k);
    }
    share = expected > 0 ? (double)(step->bytes_in - c->bytes_in) / expected : 0;
    return share < 1 ? share : 1;
}

static void set_rows(struct codec_policy *c, const struct codec_policy_step *step)
{
    const struct codec_policy_rows *given = c->options.rows;
    struct codec_policy_rows *f = c->input.rows;
    double rows = c->rows / (double)c->n_quiet, share;
    bool has_wide = given[CODEC_POLICY_WIDE_PUSH].dim > 0;

    share = pulled_share(c, step);
    f[CODEC_POLICY_ROWS_PUSH].n_rows = rows;
    f[CODEC_POLICY_ROWS_PULL].n_rows = rows * share;
    f[CODEC_POLICY_WIDE_PUSH].n_rows = has_wide ? rows : 0;
    f[CODEC_POLICY_WIDE_PULL].n_rows = has_wide ? rows * share : 0;
    f[CODEC_POLICY_DENSE_PULL].n_rows = given[CODEC_POLICY_DENSE_PULL].n_rows * share;
    c->input.key_bytes = 7 * rows * (1 + share) * (has_wide ? 2 : 1);
    c->input.compute_s = c->compute_s / (double)c->n_quiet;
}

static void choose(struct codec_policy *c, const struct codec_policy_step *step)
{
    bool first = !(c->input.bytes_per_s > 0);

    set_rows(c, step);
    set_link(c);
    if (first)
        codec_policy_choose(&c->input, &c->now);
    if (first || codec_policy_adapt(&c->input, &c->now))
        announce(c);
    if (c->options.refresh)
        c->now.refresh = c->options.refresh;
    c->big.s = c->small.s = 0;
    c->rows = c->compute_s = 0;
    c->n_quiet = 0;
    c->bytes_in = step->bytes_in;
}

void codec_policy_stepped(struct codec_policy *c, const struct codec_policy_step *step)
{
    assert(c->n_steps < c->n_planned && step->n_left <= c->n_left);
    c->n_steps++;
    c->n_quiet++;
    c->rows += step->n_rows;
    c->compute_s += step->compute_s;
    if (step->n_left) {
        add_sample(c, step);
        if (--c->n_left == 0)
            choose(c, step);
    } else if (!c->n_left && c->n_quiet >= CODEC_POLICY_EVERY && c->input.bytes_per_s > 0) {
        c->n_left = c->n_unplanned = CODEC_POLICY_REPEAT;
    }
}
