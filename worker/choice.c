#include "worker/choice.h"

#include <stdio.h>
#include <string.h>

#include "proto/codec_catalog.h"

#define LEVELS 4

/* By level. What is not there for a direction stands at the one before it: weights of one float
 * have no scale to share, and codecs with feedback answer no pulls. The last level is what costs
 * the least AUC on Criteo's logs for its bytes (README.md, "Few bytes"). */
static const enum codec_id ladders[CHOICE_SLOT_END][LEVELS] = {
    [CHOICE_ROWS_PUSH] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_ONEBIT },
    [CHOICE_ROWS_PULL] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_INT8 },
    [CHOICE_WIDE_PUSH] = { CODEC_FP32, CODEC_BF16, CODEC_BF16, CODEC_BF16 },
    [CHOICE_WIDE_PULL] = { CODEC_FP32, CODEC_BF16, CODEC_BF16, CODEC_BF16 },
    [CHOICE_DENSE_PUSH] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_TOPK },
    [CHOICE_DENSE_PULL] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_INT8 },
};

/* Steps that share one pull of it. */
static double every(const struct choice *c, int slot)
{
    return slot == CHOICE_DENSE_PULL ? (double)c->refresh : 1;
}

double choice_wire_s(const struct choice_input *in, const struct choice *c)
{
    double n_bytes = in->key_bytes;

    if (!(in->bytes_per_s > 0))
        return 0;
    for (int i = 0; i < CHOICE_SLOT_END; i++) {
        const struct choice_flow *f = &in->flows[i];

        n_bytes += f->n_rows * (double)codec_by_id(c->codecs[i])->row_bytes(f->dim, f->k) /
                   every(c, i);
    }
    return in->rtt_s + n_bytes / in->bytes_per_s;
}

double choice_step_s(const struct choice_input *in, const struct choice *c)
{
    double wire_s = choice_wire_s(in, c), busy_s = in->compute_s;

    for (int i = 0; i < CHOICE_SLOT_END; i++)
        busy_s +=
            in->flows[i].n_rows * in->flows[i].dim * in->encode_s[c->codecs[i]] / every(c, i);
    if (in->overlaps)
        return wire_s > busy_s ? wire_s : busy_s;
    return wire_s + busy_s;
}

static void set_level(const struct choice_input *in, int level, struct choice *c)
{
    for (int i = 0; i < CHOICE_SLOT_END; i++)
        c->codecs[i] = in->flows[i].is_free ? ladders[i][level] : in->flows[i].codec;
}

/* Each direction back towards fp32, the lossiest first, as long as the step stays below most_s. */
static void go_back(const struct choice_input *in, int level, double most_s, struct choice *c)
{
    for (int from = level; from > 0; from--) {
        for (int i = 0; i < CHOICE_SLOT_END; i++) {
            const enum codec_id before = c->codecs[i];

            if (!in->flows[i].is_free || before != ladders[i][from])
                continue;
            c->codecs[i] = ladders[i][from - 1];
            if (choice_step_s(in, c) > most_s)
                c->codecs[i] = before;
        }
    }
}

/* The fewest pulls of dense tables that still pay; most are fresh, then. */
static void set_refresh(const struct choice_input *in, struct choice *c)
{
    double best_s;

    c->refresh = in->refresh_max;
    best_s = choice_step_s(in, c);
    c->refresh = 1;
    if (best_s > choice_step_s(in, c) * (1 - CHOICE_GAIN))
        return;
    while (c->refresh < in->refresh_max && choice_step_s(in, c) > best_s * (1 + CHOICE_SLACK))
        c->refresh++;
}

void choice_make(const struct choice_input *in, struct choice *ret)
{
    struct choice c = { .refresh = 1 };
    int best = 0;
    double best_s;

    set_level(in, 0, &c);
    set_refresh(in, &c);
    best_s = choice_step_s(in, &c);
    for (int level = 1; level < LEVELS; level++) {
        set_level(in, level, &c);
        if (choice_step_s(in, &c) > best_s * (1 - CHOICE_GAIN))
            continue;
        best = level;
        best_s = choice_step_s(in, &c);
    }
    set_level(in, best, &c);
    go_back(in, best, best_s * (1 + CHOICE_SLACK), &c);
    set_refresh(in, &c);
    *ret = c;
}

static bool same(const struct choice *a, const struct choice *b)
{
    return a->refresh == b->refresh && memcmp(a->codecs, b->codecs, sizeof a->codecs) == 0;
}

bool choice_adapt(const struct choice_input *in, struct choice *now)
{
    static const double links[] = { 1, CHOICE_BAND, 1 / CHOICE_BAND };
    struct choice_input near = *in;
    struct choice best, other;

    choice_make(in, &best);
    for (size_t i = 0; i < COUNT_OF(links); i++) {
        near.bytes_per_s = in->bytes_per_s * links[i];
        choice_make(&near, &other);
        if (same(&other, now))
            return false;
    }
    *now = best;
    return true;
}

static const char *name_of(const struct choice *c, int slot)
{
    return codec_by_id(c->codecs[slot])->name;
}

/* No network is as fast as what a message over loopback can seem to be. */
static void tell_link(const struct choice_input *in, char *dst, size_t n_bytes)
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

void choice_tell(const struct choice_input *in, const struct choice *c,
                 char ret_text[CHOICE_TEXT_MAX])
{
    char link[80], wide[48] = "", refresh[48] = "";

    tell_link(in, link, sizeof link);
    if (in->flows[CHOICE_WIDE_PUSH].n_rows > 0)
        snprintf(wide, sizeof wide, "; wide %s out, %s in", name_of(c, CHOICE_WIDE_PUSH),
                 name_of(c, CHOICE_WIDE_PULL));
    if (c->refresh > 1)
        snprintf(refresh, sizeof refresh, " every %u steps", c->refresh);
    snprintf(ret_text, CHOICE_TEXT_MAX,
             "%s; %.1f ms of wire against %.1f ms of compute a step: rows %s out, %s in%s; "
             "dense %s out, %s in%s",
             link, choice_wire_s(in, c) * 1e3, in->compute_s * 1e3,
             name_of(c, CHOICE_ROWS_PUSH), name_of(c, CHOICE_ROWS_PULL), wide,
             name_of(c, CHOICE_DENSE_PUSH), name_of(c, CHOICE_DENSE_PULL), refresh);
}
