/*
 * The rows of one table that a client is known to have, so that a pull brings what has changed (section.h has the
 * bytes). The server holds one for each connection and table, the client one for each shard and table, and both hold
 * the same floats: what the server sends, it adds to its own copy, too. So what a codec loses stays in the difference,
 * and comes with the row's next pull (error feedback: Tang et al., DoubleSqueeze, ICML 2019; Richtarik et al., EF21,
 * NeurIPS 2021).
 *
 *     value      what the shard has
 *     have       what the client has: the row here, or the row that the key would start with (row_init.h)
 *     difference value - have
 *
 *     mode       if, by root mean square over the row                          then both have
 *     NONE       the difference is within the tolerance                        have
 *     ONEBIT     what onebit loses of the difference is within it              have + onebit(difference)
 *     INT8       half a step of int8 is within it                              have + int8(difference)
 *     SPARSE     in place of ONEBIT and INT8, if the client asks for it        have + sparse(difference)
 *     FULL       else, or the tolerance is 0                                   the section's codec(value)
 *
 * A mode that takes as many bytes as FULL is left out. Of a tolerance of 0 NONE is a row that FULL would not change.
 * The client may force ONEBIT, INT8 or SPARSE, whatever it loses, for rows that are here: these are further off while
 * they catch up. A row that is not here may get no place, and what is lost of it would never come: it comes by the
 * table above, and of SPARSE as a difference that loses no more than the tolerance, else FULL.
 *
 * Both copies are of one answer: its number. Where the client names another one (its connection is new, an answer was
 * lost, it had no memory for a row), the server removes all rows, and says so. Of two answers that are written at once
 * the one that was opened later has the rows; the other one goes on with whole rows. A row for which the server has no
 * memory is not kept, and comes so each time; once there were more of these than there are rows, the next answer begins
 * anew.
 */
#ifndef SERVER_CORE_DELTA_ROWS_H
#define SERVER_CORE_DELTA_ROWS_H

#include "proto/section.h"
#include "proto/table_spec.h"
#include "server/core/memory_budget.h"
#include "server/core/table.h"

/* What the rows of many tables and clients share; zeroed but for budget.max. One thread's. */
struct delta_memory {
    struct memory_budget budget; /* of the rows; max 0: no limit */
    float *scratch;              /* owned: three rows of dim_max floats */
    uint32_t dim_max;
};

struct delta_rows {
    struct table *rows;            /* owned; NULL: none are kept */
    struct delta_memory *memory;   /* borrowed */
    const struct table_spec *spec; /* borrowed */
    uint64_t number;               /* of the answer that the rows are of; 0: there are none */
    uint64_t writing;  /* of the answer that was opened last: it alone changes the rows */
    uint64_t base;     /* the client's: the number that it has asked with */
    uint64_t n_missed; /* rows sent since the rows began that had no place here */
    bool is_full; /* begin anew: too many were missed, or the client had no memory for one */
    bool is_bare; /* none are ever kept */
};

/* All rows have been freed. */
void delta_memory_deinit(struct delta_memory *m);

/* `spec` and `memory` stay borrowed. -ENOMEM. */
int delta_rows_init(struct delta_rows *d, const struct table_spec *spec,
                    struct delta_memory *memory) MUST_CHECK;
/* The same, for a client whose rows have no place: none are ever here. It holds nothing, and needs no deinit. */
int delta_rows_init_bare(struct delta_rows *d, const struct table_spec *spec,
                         struct delta_memory *memory) MUST_CHECK;
/* A zeroed one is fine. */
void delta_rows_deinit(struct delta_rows *d);

uint64_t delta_rows_n(const struct delta_rows *d);

/* The most that an answer for n_keys takes. */
size_t delta_rows_answer_bytes(const struct table_spec *spec, const struct codec *full,
                               uint32_t n_keys);

/* ---- the server ---- */

/* How many rows went in each mode. */
struct delta_counts {
    uint64_t rows[SECTION_DELTA_FULL + 1];
};

/* An answer that is being written, row by row. */
struct delta_writer {
    struct delta_rows *rows;  /* borrowed */
    const struct codec *full; /* static */
    struct section_delta asked;
    uint8_t *head, *at;  /* borrowed: the answer; where the next row goes */
    uint64_t number;     /* the answer's */
    uint32_t n, n_kept;  /* rows so far */
    size_t row_bytes;    /* of the last one, unless its mode is NONE */
    bool keeps, is_anew; /* new rows; all rows were removed */
    struct delta_counts counts;
};

/* dst: delta_rows_answer_bytes(). `number` is this answer's alone, and not 0. */
void delta_writer_open(struct delta_writer *w, struct delta_rows *rows,
                       const struct codec *full, const struct section_delta *asked,
                       uint32_t n_keys, uint64_t number, uint8_t *dst);
/* The rows here of the next keys, many at a time, as a lookup waits for memory; NULL: there is none. For
 * delta_writer_put(), with no other call on the rows between. */
void delta_writer_find(const struct delta_writer *w, const uint64_t *keys, uint32_t n,
                       struct row **ret_rows);
/* The next key's weights. */
void delta_writer_put(struct delta_writer *w, uint64_t key, struct row *row,
                      const float *weights);
/* Behind the last one: where the answer ends. */
uint8_t *delta_writer_close(struct delta_writer *w);

/* ---- the client ---- */

/* The number to ask with; from here on the rows are of no answer, until one is read. */
uint64_t delta_rows_ask(struct delta_rows *d);

struct delta_answer {
    const struct codec *full; /* of the section */
    bool is_sparse;           /* it has asked for SECTION_DELTA_SPARSE */
    uint32_t n;
    const uint64_t *keys; /* keys[numbers[i]] are those asked for */
    const uint32_t *numbers;
    const uint8_t *values;
    size_t value_bytes;
};

/* Fills dst[numbers[i]], dim floats each, and changes the rows. PS_ECOUNT, PS_ECODEC: the bytes are no answer; then the
 * next one begins anew. */
int delta_rows_read(struct delta_rows *d, const struct delta_answer *answer, float *dst)
    MUST_CHECK;

#endif
