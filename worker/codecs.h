/*
 * The codec of each table and direction at each step: as the settings say, or, where they say
 * auto, chosen (choice.h) out of what this run measures.
 *
 *     state       pushes of auto directions go     leaves it by
 *     MEASURING   fp32 and int8 in turn, timed     6 of them (the first 2 are not counted; 4 when
 *                 to their acknowledgement         measured again) -> CHOSEN
 *     CHOSEN      as chosen                        1024 steps -> MEASURING
 *
 * Two sizes give two unknowns: the link's rate, and what does not depend on bytes. What codecs
 * cost is measured once, at the start. Nothing here reads a clock: the caller does.
 *
 * How a step's gradients go is planned step by step, when it is pushed, or where they leave a device encoded when it
 * begins: others are then under way. What is measured is what was planned, and with so many steps under way a choice
 * is good for those that begin after it.
 */
#ifndef WORKER_CODECS_H
#define WORKER_CODECS_H

#include "worker/choice.h"

#define CODECS_FIRST 6u
#define CODECS_AGAIN 4u
#define CODECS_EVERY 1024u

struct codecs_options {
    /* Directions: dims, which are free, the others' codecs; of dense tables n_rows too. */
    struct choice_flow flows[CHOICE_SLOT_END];
    bool has_link, overlaps;
    uint32_t refresh, refresh_max; /* refresh 0: to be chosen, up to refresh_max */
    uint64_t warmup_steps;         /* dense gradients have warmup_codec so long, if theirs is */
    enum codec_id warmup_codec;    /* one with feedback */
    uint64_t steps_before;         /* that earlier runs have made */
    double (*now_s)(void *arg);    /* to time the codecs */
    void (*notice)(void *arg, const char *sentence); /* what was chosen, and why */
    void *arg;
};

/* How a step's gradients go. */
struct codecs_plan {
    enum codec_id codecs[CHOICE_SLOT_END]; /* of the directions that push */
    uint32_t n_left; /* pushes to be measured, this one included; 0: this one is not */
    uint64_t number; /* 1, 2, 3 ... over all runs */
};

/* One step, when its push has been handed over (or, if it was measured, acknowledged). */
struct codecs_step {
    uint32_t n_left; /* its plan's */
    uint32_t n_rows; /* of the batch */
    double compute_s;
    uint64_t bytes_in;   /* since the run began */
    uint64_t push_bytes; /* if measured: of keys and values */
    double push_s; /* likewise: from the push's first byte to the last answer; 0: unknown */
};

struct codecs {
    struct codecs_options options;
    struct choice_input input;
    struct choice now;
    uint64_t n_steps, n_planned;  /* n_steps <= n_planned */
    uint32_t n_left, n_unplanned; /* pushes to be measured; those of them without a plan yet */
    uint32_t n_quiet;             /* steps since the last choice */
    struct {
        double bytes, s; /* s 0: none yet */
    } big, small;
    double rows, compute_s; /* sums since the last choice */
    uint64_t bytes_in;      /* at the last choice */
};

void codecs_init(struct codecs *c, const struct codecs_options *options);

/* Of the next pull, and of the next step that is planned. */
enum codec_id codecs_at(const struct codecs *c, enum choice_slot slot);
uint32_t codecs_refresh(const struct codecs *c);

/* Codecs cost the host nothing: a device encodes. Before the first step. */
void codecs_encode_elsewhere(struct codecs *c);

/* Plans the next step. Steps are made in that order, or all that are planned are dropped. */
void codecs_plan(struct codecs *c, struct codecs_plan *ret);
void codecs_forget(struct codecs *c);

void codecs_stepped(struct codecs *c, const struct codecs_step *step);

#endif
