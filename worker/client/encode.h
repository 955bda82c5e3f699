/*
 * Push sections -> the bytes of one push per shard: deals the keys out, encodes keys and
 * values, and keeps what lossy codecs with feedback lose (the residuals) until the row's next
 * push. Also the other way for pulls. Used by the network client and by --local alike, so that
 * both send the same bytes.
 */
#ifndef WORKER_CLIENT_ENCODE_H
#define WORKER_CLIENT_ENCODE_H

#include "common/buf.h"
#include "proto/section.h"
#include "worker/client/ps_types.h"

struct encoder;

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

/* Rows and bytes of residuals held. */
void encoder_residuals(const struct encoder *e, uint64_t *ret_rows, uint64_t *ret_bytes);

#endif
