/*
 * Push sections -> the bytes of one push per shard: deals the keys out, encodes keys and
 * values, and keeps what lossy codecs with feedback lose (the residuals) until the row's next
 * push. Also the other way for pulls. Used by the network client and by --local alike, so that
 * both send the same bytes.
 *
 * Pushes (encoder_push(), encoder_residuals()) and pulls (encoder_pull(), encoder_pulled())
 * share nothing that changes: one thread may do the former while another does the latter.
 *
 * What is sent and what is owed add up to the gradients, to the rounding of one fp32 addition a
 * push, whatever codec each push has: a row whose table has gone over to a codec without
 * feedback gets what it is owed with its next push; where residuals of a sparse table have no
 * room left, one push of the table goes out in full and brings the oldest of them (settle.h), of
 * rows that need not be in the batch. What a refused or a dropped push carried is lost with it.
 */
#ifndef WORKER_CLIENT_ENCODE_H
#define WORKER_CLIENT_ENCODE_H

#include "common/buf.h"
#include "proto/section.h"
#include "worker/client/ps_types.h"

struct encoder;
struct residual;

struct encoder *encoder_new(uint32_t n_shards);
void encoder_free(struct encoder *e);

/* Table numbers are dealt by the caller, 0, 1, 2 ... */
int encoder_add_table(struct encoder *e, uint32_t table, const struct table_spec *spec)
    MUST_CHECK;

/* Fills pushes[shard].sections and n_sections (seq, clock and so on are the caller's); bytes
 * are appended to bufs[shard], which must stay alive and unmoved as long as the push is used.
 * section.table_id is the caller's table number: links translate it. -ENOMEM. */
int encoder_push(struct encoder *e, const struct ps_push_section *sections, uint32_t n,
                 struct buf *bufs, struct push *pushes) MUST_CHECK;

/* The same for a question. PS_ECODEC: codecs with feedback answer no pulls. */
int encoder_pull(struct encoder *e, const struct ps_pull_section *sections, uint32_t n,
                 struct buf *bufs, struct pull *pulls) MUST_CHECK;

/* Decodes one shard's answer to the last encoder_pull() into the dsts of the sections that were
 * asked, or hands it to their sinks. PS_ECOUNT / PS_ECODEC, or what a sink says. */
int encoder_pulled(struct encoder *e, const struct ps_pull_section *sections, uint32_t n,
                   uint32_t shard, const uint8_t *const *values, const size_t *value_bytes)
    MUST_CHECK;

/* Bounds the memory of what is owed to a sparse table's rows, for each table; 0: no bound. */
void encoder_bound_residuals(struct encoder *e, uint64_t max_bytes);

/* What is owed: rows and bytes held, and rows that were sent in full to make room. */
struct encoder_residuals {
    uint64_t n_rows, n_bytes, n_settled;
};

void encoder_residuals(const struct encoder *e, struct encoder_residuals *ret);

/* Table by table, for those who keep residuals from one run to the next: what is owed to its
 * rows, and its name. Good as long as the encoder. */
uint32_t encoder_n_tables(const struct encoder *e);
struct residual *encoder_residual(struct encoder *e, uint32_t table);
const char *encoder_table_name(const struct encoder *e, uint32_t table);

#endif
