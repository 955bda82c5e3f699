/*
 * A run of rows of one table inside a pull or a push, as it stands in a frame's body. Pure
 * description: the bytes are borrowed from the holder of the frame.
 *
 * Life: message.c makes sections out of a frame (counts and lengths already checked against
 * the body), server/core reads them.
 */
#ifndef PROTO_SECTION_H
#define PROTO_SECTION_H

#include <stdbool.h>
#include <string.h>

#include "common/base.h"
#include "proto/codec.h"

#define SECTIONS_MAX 256u
#define SECTION_ASSIGN_MAX 1e15f /* the largest magnitude of an assigned weight */

/*
 * The answer to a section that asks for state, from which a copy of the rows can go on by itself:
 *
 *     n_pushes u64 | flags u8 | which keys have a row: ceil(n_keys / 8) bytes, bit i % 8 of byte
 *     i / 8 | their rows, one behind the other
 *
 *     row     weights as the table stores them, up to a multiple of 4 bytes | state f32
 *
 * n_pushes is the table's step count on this shard when the first row was read. A key without a row
 * takes its bit alone: the row is as it would start. Bits beyond n_keys are 0.
 */
#define SECTION_STATE_HEAD_BYTES 9u
/* A flag: the shard has a limit of memory, so a push may leave rows out. */
#define SECTION_STATE_LIMITED 1u
/* Another: the shard has no row of the table yet. */
#define SECTION_STATE_EMPTY 2u

/*
 * A scan reads a table's rows on one shard, a slice in each answer, in an order that depends on the keys alone. The
 * shard keeps nothing of it: the cursor says where it goes on, 0 where it begins. So a scan outlives connections and
 * processes, and each key that is there all the time is in exactly one slice.
 *
 *     version u64 | next u64 | n_rows u32 | flags u32 | keys u64 [n_rows] | rows [n_rows]
 *
 *     version     rows of this version and older are all there, as they were at it or later
 *     next        the cursor of the next slice
 *     flags       SECTION_SCAN_END: this was the last slice
 *     keys        in no order
 *     row         as the codec writes it; of a section with state: dim weights, then the optimizer's state, all f32
 */
#define SECTION_SCAN_HEAD_BYTES 24u
#define SECTION_SCAN_END 1u

/*
 * The answer to a section that asks for deltas: each row as its difference from what the client has, as both ends know
 * it (server/core/delta_rows.h). A client that has no row of a key has the row that the key would start with.
 *
 *     number u64 | n_kept u32 | flags u8 | modes: 2 bits a key, ceil(n_keys / 4) bytes | what the modes bring
 *
 *     number    of this answer; the client's next section of this table says so in `delta.base`
 *     n_kept    both ends keep rows that they had not, of the first n_kept keys
 *     flags     SECTION_DELTA_ANEW: both ends have removed all rows of the table that they kept, before this answer
 *     modes     key i: bits 2 (i % 4) and above of byte i / 4, enum section_delta_mode. Bits beyond n_keys are 0
 */
#define SECTION_DELTA_HEAD_BYTES 13u
#define SECTION_DELTA_ANEW 1u

enum section_delta_mode {
    SECTION_DELTA_NONE, /* nothing: the row is close enough to what the client has */
    SECTION_DELTA_ONEBIT, /* the difference, as codec onebit; of a section that asks for SPARSE, as delta_sparse.h */
    SECTION_DELTA_INT8, /* the difference, as codec int8 */
    SECTION_DELTA_FULL, /* the row, in the section's codec */
    SECTION_DELTA_SPARSE /* asked for only: the difference as delta_sparse.h; it stands as mode ONEBIT in the answer */
};

/* What a section of a pull says about them; zeroes: it asks for no deltas. */
struct section_delta {
    bool asked;
    enum section_delta_mode
        mode; /* of rows beyond the tolerance: ONEBIT, INT8, SPARSE, or FULL: the shortest within it */
    float
        tolerance; /* root mean square that a row may differ by; 0: as the section's codec has it, exactly */
    uint64_t base;     /* number of the last answer that the client has; 0: none */
    uint32_t rows_max; /* that the client keeps of this table and shard */
};

static inline size_t section_delta_bytes(uint32_t n_keys)
{
    return SECTION_DELTA_HEAD_BYTES + (size_t)n_keys / 4 + (n_keys % 4 != 0);
}

/* Largest step count that a push can set. */
#define SECTION_STEPS_MAX ((UINT64_C(1) << 48) - 1)

/* Bytes that say of each key whether it has a row: bit i % 8 of byte i / 8. Bits beyond n_keys are 0. */
static inline size_t section_present_bytes(uint32_t n_keys)
{
    return (size_t)n_keys / 8 + (n_keys % 8 != 0);
}

/* Bytes before the first row. */
static inline size_t section_state_bytes(uint32_t n_keys)
{
    return SECTION_STATE_HEAD_BYTES + section_present_bytes(n_keys);
}

/* A shard keeps the keys of pulls that ask for it, so that a push need not send them again: of each connection those of
 * so many pulls, the ones with the greatest request ids. */
#define SECTION_PULLS_KEPT 8u

/* The effect of a push on its rows. */
enum section_op {
    SECTION_GRADIENT, /* one optimizer step on each row */
    SECTION_ASSIGN,   /* the row's weights become these; its optimizer state starts anew */
    SECTION_ASSIGN_STATE, /* its weights and its optimizer's state become these: all of them f32, weights first */
    /* No rows: the learning rate of a table whose decay is "plateau" becomes the number in `steps`. It holds for what
     * is applied behind this push; in lock step for the clocks that are not combined yet. */
    SECTION_RATE,
    /* As SECTION_GRADIENT, with delay compensation: behind the gradient of each row, as the codec writes it, stand the
     * weights that it was computed at, dim f32. `steps` says how the servers compensate (struct section_delay). The
     * codec is none that needs `k`. Tables in lock step have no delay, and refuse it. */
    SECTION_GRADIENT_AT,
    SECTION_OP_END
};

/* The operations with a number beside their rows. */
static inline bool section_op_has_steps(enum section_op op)
{
    return op == SECTION_ASSIGN_STATE || op == SECTION_RATE || op == SECTION_GRADIENT_AT;
}

/* Those of which each row makes one optimizer step. */
static inline bool section_op_is_gradient(enum section_op op)
{
    return op == SECTION_GRADIENT || op == SECTION_GRADIENT_AT;
}

struct section {
    uint32_t table_id;   /* the shard's number of the table */
    enum section_op op;  /* push only */
    enum codec_id codec; /* push: of `values`; pull: of the answer */
    uint32_t k;          /* topk: values kept in a row; else 0 */
    bool state;          /* pull: rows with their state, see above; codec is CODEC_FP32 */
    bool
        present; /* pull, without state: behind the values, which keys have a row (section_present_bytes()) */
    uint32_t
        scan_bytes;  /* pull: not 0: a scan, of at most about so many bytes; it has no keys */
    uint64_t cursor; /* of the scan */
    struct section_delta delta; /* pull, without state, present or a scan */
    uint64_t
        steps; /* SECTION_ASSIGN_STATE: the table's step count becomes this, if it is less; SECTION_RATE: the bits of
                * an f32; SECTION_GRADIENT_AT: section_delay_steps() */
    uint32_t n_keys;
    const uint8_t *keys; /* key_codec.h, key_bytes long */
    size_t key_bytes;
    const uint8_t *values; /* push: n_keys rows, one behind the other; pull: NULL */
    size_t value_bytes;
    uint32_t
        keys_at; /* push: not 0: it has no keys, but those of section keys_at - 1 of push.keys_of */
    uint32_t
        n_finite; /* push of CODEC_FP32: rows at the beginning that the receiver has found to be
                        * finite; not on the wire */
};

/* The learning rate of SECTION_RATE as its `steps`, and back. */
static inline uint64_t section_rate_steps(float rate)
{
    uint32_t bits;

    memcpy(&bits, &rate, sizeof bits);
    return bits;
}

static inline float section_rate_of(uint64_t steps)
{
    const uint32_t bits = (uint32_t)steps;
    float rate;

    memcpy(&rate, &bits, sizeof rate);
    return rate;
}

/* How a gradient becomes that of weights which others have changed since (server/core/delay.h). */
struct section_delay {
    float lambda;  /* at least 0, at most SECTION_LAMBDA_MAX */
    bool constant; /* DC-ASGD-c, else DC-ASGD-a */
};

#define SECTION_LAMBDA_MAX 1e6f
#define SECTION_DELAY_CONSTANT (UINT64_C(1) << 32)

/* As the `steps` of SECTION_GRADIENT_AT, and back. */
static inline uint64_t section_delay_steps(struct section_delay delay)
{
    return section_rate_steps(delay.lambda) | (delay.constant ? SECTION_DELAY_CONSTANT : 0);
}

static inline struct section_delay section_delay_of(uint64_t steps)
{
    return (struct section_delay){ .lambda = section_rate_of(steps),
                                   .constant = (steps & SECTION_DELAY_CONSTANT) != 0 };
}

/* False for a lambda out of range, NaN among them, and for bits that mean nothing. */
static inline bool section_delay_is_valid(uint64_t steps)
{
    const float lambda = section_rate_of(steps);

    return steps < 2 * SECTION_DELAY_CONSTANT && lambda >= 0 && lambda <= SECTION_LAMBDA_MAX;
}

/* One numbered push: all that a worker sends a shard for one step. */
struct push {
    uint64_t seq;       /* 1, 2, 3 ... per (worker incarnation, shard) */
    uint64_t clock;     /* the step that the gradients are from, 0-based */
    uint32_t n_samples; /* of this worker in this step: its weight in lock step */
    bool tick;          /* the worker has finished step `clock`: its clock becomes clock + 1 */
    uint64_t keys_of;   /* request id of the pull whose keys some sections have; 0: none has */
    uint32_t n_sections;
    struct section sections[SECTIONS_MAX];
};

/* One question for rows. */
struct pull {
    uint64_t clock;       /* of the step that the rows are for, 0-based */
    uint64_t unfinished;  /* steps before it that the worker has not finished */
    uint32_t deadline_ms; /* how long the shard may park it; 0: the shard's own limit */
    bool keep;            /* pushes may name its keys: SECTION_PULLS_KEPT */
    uint32_t n_sections;
    struct section sections[SECTIONS_MAX];
};

#endif
