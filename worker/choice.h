/*
 * Which codec each kind of table has in each direction, out of what was measured: arithmetic
 * alone, so that a test can say what was measured.
 *
 *     wire = round trip + bytes / link rate;  step = compute + encode + wire
 *            (where the wire overlaps the rest: the greater of both)
 *
 * The order of safety is fp32, bf16, int8, then what has feedback: onebit for rows, topk for dense
 * tables, after a warm-up. A level is taken only if it
 * makes the step shorter by CHOICE_GAIN; then each direction goes back towards fp32 as far as
 * that costs next to nothing. So a fast link stays at fp32, and a slow one pays with what is
 * lost only where the bytes are.
 */
#ifndef WORKER_CHOICE_H
#define WORKER_CHOICE_H

#include <stdbool.h>

#include "common/status.h"
#include "proto/codec.h"

#define CHOICE_GAIN 0.05  /* of a step: what a lossier level must save */
#define CHOICE_SLACK 0.02 /* of a step: what going back may cost in all */
#define CHOICE_BAND 1.5   /* a link within this factor of the measured one changes nothing */
#define CHOICE_TEXT_MAX 320u

enum choice_slot {
    CHOICE_ROWS_PUSH,
    CHOICE_ROWS_PULL,
    CHOICE_WIDE_PUSH,
    CHOICE_WIDE_PULL,
    CHOICE_DENSE_PUSH,
    CHOICE_DENSE_PULL,
    CHOICE_SLOT_END
};

/* What goes one way in a step. */
struct choice_flow {
    double n_rows; /* 0: this kind of table is not there, or its pulls are answered here */
    uint32_t dim;
    bool is_free;        /* to be chosen; else: */
    enum codec_id codec; /* as the settings say */
    uint32_t k;          /* of topk */
};

struct choice_input {
    double rtt_s, bytes_per_s; /* of the link; bytes_per_s 0: there is none (--local) */
    double compute_s;          /* of a step */
    double key_bytes;          /* of a step, both ways: no codec changes them */
    bool overlaps;
    double encode_s[CODEC_ID_END]; /* of one float */
    struct choice_flow flows[CHOICE_SLOT_END];
    uint32_t refresh_max; /* dense tables may be pulled every so many steps, 1 or more */
};

struct choice {
    enum codec_id codecs[CHOICE_SLOT_END];
    uint32_t refresh; /* dense tables are pulled every so many steps */
};

/* Seconds of a step with this choice, and of its wire. */
double choice_step_s(const struct choice_input *in, const struct choice *c);
double choice_wire_s(const struct choice_input *in, const struct choice *c);

/* The best one. */
void choice_make(const struct choice_input *in, struct choice *ret);

/* The same, unless what is used now would be chosen for some link within CHOICE_BAND of the
 * measured one: then it stays. True if *now was changed. */
bool choice_adapt(const struct choice_input *in, struct choice *now);

/* "link 96.0 Mbit/s, 0.30 ms away; 4.1 ms of wire against 2.3 ms of compute a step: rows int8
 * out, bf16 in; dense topk out, fp32 in" */
void choice_tell(const struct choice_input *in, const struct choice *c,
                 char ret_text[CHOICE_TEXT_MAX]);

#endif
