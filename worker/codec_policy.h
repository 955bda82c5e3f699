/*
 * The codec of each table and direction at each step: as the settings say, or, where they say
 * auto, chosen from measurements of this run.
 *
 *     state       pushes of auto directions have   leaves it by
 *     MEASURING   fp32 and int8 in turn, timed     6 of them (the first 2 are not counted; 4 when
 *                 to their acknowledgement         measured again) -> CHOSEN
 *     CHOSEN      the codecs that were chosen      1024 steps -> MEASURING
 *
 * Two sizes give two unknowns: the link's rate, and the time that does not depend on bytes. The codecs'
 * own time is measured once, at the start. Nothing here reads a clock: the caller does.
 *
 * The choice is arithmetic alone, so that a test can supply the measurements:
 *
 *     wire = round trip + bytes / link rate;  step = compute + encode + wire
 *            (where the wire overlaps the rest: the greater of both)
 *
 * Codecs in the order of safety: fp32, bf16, int8, then those with error feedback: onebit for rows, topk
 * for dense tables, after a warm-up. A level is chosen only if it makes the step shorter by
 * CODEC_POLICY_GAIN; then each direction goes back towards fp32 as far as that costs next to nothing.
 * So a fast link stays at fp32, and a slow one loses accuracy only where its bytes are.
 *
 * A step's codecs are planned one step at a time: when it is pushed, or, where a device encodes, when it
 * begins. Other steps may then be in flight, so that a choice holds for the steps that begin after it.
 */
#ifndef WORKER_CODEC_POLICY_H
#define WORKER_CODEC_POLICY_H

#include <stdbool.h>

#include "common/status.h"
#include "proto/codec.h"

/* ---- the choice ---- */

#define CODEC_POLICY_GAIN 0.05  /* of a step: the time that a lossier level must save */
#define CODEC_POLICY_SLACK 0.02 /* of a step: the time that safer codecs may cost in all */
#define CODEC_POLICY_BAND 1.5 /* a link within this factor of the measured one: no new choice */
#define CODEC_POLICY_TEXT_MAX 320u

enum codec_policy_direction {
    CODEC_POLICY_ROWS_PUSH,
    CODEC_POLICY_ROWS_PULL,
    CODEC_POLICY_WIDE_PUSH,
    CODEC_POLICY_WIDE_PULL,
    CODEC_POLICY_DENSE_PUSH,
    CODEC_POLICY_DENSE_PULL,
    CODEC_POLICY_DIRECTIONS
};

/* The rows of one kind of table that a step sends in one direction. */
struct codec_policy_rows {
    double n_rows; /* 0: the table is absent, or a cache answers its pulls */
    uint32_t dim;
    bool is_free;        /* auto: to be chosen; otherwise: */
    enum codec_id codec; /* the settings' */
    uint32_t k;          /* of topk */
    bool is_layers;      /* rows may be longer than topk takes */
};

struct codec_policy_input {
    double rtt_s, bytes_per_s; /* of the link; bytes_per_s 0: there is none (--local) */
    double compute_s;          /* of a step */
    double key_bytes;          /* of a step, both directions: no codec changes them */
    bool overlaps;
    double encode_s[CODEC_ID_END]; /* of one float */
    struct codec_policy_rows rows[CODEC_POLICY_DIRECTIONS];
    uint32_t refresh_max; /* dense tables may be pulled every so many steps, 1 or more */
};

struct codec_policy_choice {
    enum codec_id codecs[CODEC_POLICY_DIRECTIONS];
    uint32_t refresh; /* dense tables are pulled every so many steps */
};

/* Seconds of a step with this choice, and of its wire. */
double codec_policy_step_s(const struct codec_policy_input *in,
                           const struct codec_policy_choice *c);

/* The best choice for these measurements. */
void codec_policy_choose(const struct codec_policy_input *in, struct codec_policy_choice *ret);

/* Chooses anew, unless *now would be chosen for some link within CODEC_POLICY_BAND of the measured one: then
 * it stays. True if *now was changed. */
bool codec_policy_adapt(const struct codec_policy_input *in, struct codec_policy_choice *now);

/* "link 96.0 Mbit/s, 0.30 ms away; 4.1 ms of wire against 2.3 ms of compute a step: rows int8
 * out, bf16 in; dense topk out, fp32 in" */
void codec_policy_describe(const struct codec_policy_input *in,
                           const struct codec_policy_choice *c,
                           char ret_text[CODEC_POLICY_TEXT_MAX]);

/* ---- the state ---- */

#define CODEC_POLICY_FIRST 6u
#define CODEC_POLICY_REPEAT 4u
#define CODEC_POLICY_EVERY 1024u

struct codec_policy_options {
    /* Directions: dims, which are free, the others' codecs; of dense tables n_rows too. */
    struct codec_policy_rows rows[CODEC_POLICY_DIRECTIONS];
    bool has_link, overlaps;
    uint32_t refresh, refresh_max; /* refresh 0: to be chosen, up to refresh_max */
    uint64_t warmup_steps;         /* dense gradients have warmup_codec so long, if theirs is */
    enum codec_id warmup_codec;    /* one with feedback */
    uint64_t steps_before;         /* that earlier runs have made */
    double (*now_s)(void *arg);    /* times the codecs */
    void (*notice)(void *arg, const char *sentence); /* the choice and its reason */
    void *arg;
};

/* The codecs of a step's gradients. */
struct codec_policy_plan {
    enum codec_id codecs[CODEC_POLICY_DIRECTIONS]; /* of pushes */
    uint32_t n_left; /* pushes to be measured, this one included; 0: this one is not */
    uint64_t number; /* 1, 2, 3 ... over all runs */
};

/* One step, after its push was sent (or, if it was measured, acknowledged). */
struct codec_policy_step {
    uint32_t n_left; /* its plan's */
    uint32_t n_rows; /* of the batch */
    double compute_s;
    uint64_t bytes_in;   /* if measured, as what follows: since the run began */
    uint64_t push_bytes; /* of keys and values */
    double push_s;       /* from the push's first byte to the last answer; 0: unknown */
};

struct codec_policy {
    struct codec_policy_options options;
    struct codec_policy_input input;
    struct codec_policy_choice now;
    uint64_t n_steps, n_planned;  /* n_steps <= n_planned */
    uint32_t n_left, n_unplanned; /* pushes to be measured; those that are not planned yet */
    uint32_t n_quiet;             /* steps since the last choice */
    struct {
        double bytes, s; /* s 0: none yet */
    } big, small;
    double rows, compute_s; /* sums since the last choice */
    uint64_t bytes_in;      /* at the last choice */
};

void codec_policy_init(struct codec_policy *c, const struct codec_policy_options *options);

/* The codec of the next pull, or of the next step that is planned. */
enum codec_id codec_policy_at(const struct codec_policy *c,
                              enum codec_policy_direction direction);
uint32_t codec_policy_refresh(const struct codec_policy *c);

/* A device encodes, so codecs cost the host no time. Called before the first step. */
void codec_policy_set_device_encodes(struct codec_policy *c);

/* Plans the next step. Steps are pushed in the order of their plans; codec_policy_reset() drops all plans that were
 * not pushed. */
void codec_policy_plan(struct codec_policy *c, struct codec_policy_plan *ret);
void codec_policy_reset(struct codec_policy *c);

void codec_policy_stepped(struct codec_policy *c, const struct codec_policy_step *step);

#endif
