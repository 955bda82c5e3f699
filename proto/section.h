/*
 * A run of rows of one table inside a pull or a push, as it stands in a frame's body. Pure
 * description: the bytes are borrowed from whoever holds the frame.
 *
 * Life: message.c makes sections out of a frame (counts and lengths already checked against
 * the body), server/core reads them.
 */
#ifndef PROTO_SECTION_H
#define PROTO_SECTION_H

#include <stdbool.h>

#include "common/base.h"
#include "proto/codec.h"

#define SECTIONS_MAX 256u

/* What a push does with its rows. */
enum section_op {
    SECTION_GRADIENT, /* one optimizer step on each row */
    SECTION_ASSIGN,   /* the row's weights become these; its optimizer state starts anew */
    SECTION_OP_END
};

struct section {
    uint32_t table_id;   /* the shard's number of the table */
    enum section_op op;  /* push only */
    enum codec_id codec; /* push: of `values`; pull: of the answer */
    uint32_t k;          /* topk: values kept in a row; else 0 */
    uint32_t n_keys;
    const uint8_t *keys; /* keys.h, key_bytes long */
    size_t key_bytes;
    const uint8_t *values; /* push: n_keys rows, one behind the other; pull: NULL */
    size_t value_bytes;
};

/* One numbered push: all that a worker sends a shard for one step. */
struct push {
    uint64_t seq;       /* 1, 2, 3 ... per (worker incarnation, shard) */
    uint64_t clock;     /* the step that the gradients are from, 0-based */
    uint32_t n_samples; /* of this worker in this step: its weight in lock step */
    bool tick;          /* the worker has finished step `clock`: its clock becomes clock + 1 */
    uint32_t n_sections;
    struct section sections[SECTIONS_MAX];
};

/* One question for rows. */
struct pull {
    uint64_t clock;       /* of the step that the rows are for, 0-based */
    uint64_t unfinished;  /* steps before it that the worker has not finished */
    uint32_t deadline_ms; /* how long the shard may park it; 0: the shard's own limit */
    uint32_t n_sections;
    struct section sections[SECTIONS_MAX];
};

#endif
