/*
 * Turns the sections of a push into one request per shard: partitions the keys by shard, encodes
 * keys and values, and keeps the error of codecs with feedback (the residuals) until the row's next
 * push. It does the same for pulls, and decodes their answers. The network client and --local use
 * it, so that both send the same bytes.
 *
 * One thread at a time may use it for pushes (push_encoder_push(), push_encoder_residuals()). Meanwhile any others may
 * pull (push_encoder_pull(), push_encoder_pulled()), each with a partition of its own: they change nothing here.
 *
 * The values sent and the residuals add up to the gradients, to the rounding of one fp32 addition a
 * push, also when the codec changes from push to push:
 *
 *     codec with feedback       the residual is added; the codec's error becomes the residual
 *     ... and no memory left    the section is sent in fp32, with the rows of the oldest residuals
 *                               (error_feedback_flush.h), which need not be in the batch
 *     codec without feedback    the residual, if there is one, is added and removed
 *
 * The gradients of a push that is refused or dropped are lost with it.
 */
#ifndef WORKER_CLIENT_PUSH_ENCODER_H
#define WORKER_CLIENT_PUSH_ENCODER_H

#include "worker/client/partition.h"
#include "worker/client/ps_types.h"
#include "worker/client/request.h"
#include "worker/client/task_threads.h"

struct push_encoder;
struct error_feedback;

/* NULL without memory. */
struct push_encoder *push_encoder_new(uint32_t n_shards);
void push_encoder_free(struct push_encoder *e);

/* These threads write the rows of pushes without residuals, a shard at a time; they change no byte. */
void push_encoder_share(struct push_encoder *e, const struct task_threads *threads);

/* The caller numbers the tables: 0, 1, 2 ... -ENOMEM. */
int push_encoder_add_table(struct push_encoder *e, uint32_t table,
                           const struct table_spec *spec) MUST_CHECK;

/* Fills the sections and n_sections of requests[shard], which has space for n sections, and appends
 * to its bytes; the caller fills clock and the rest. section.table_id is the caller's number of the
 * table: request_push() maps it. -ENOMEM: no residual has changed. */
int push_encoder_push(struct push_encoder *e, const struct ps_push_section *sections,
                      uint32_t n, struct request *const *requests) MUST_CHECK;

/* The same for a pull. Leaves the sections' keys by shard in *p, for push_encoder_pulled(). PS_ECODEC: a codec with
 * feedback, which pulls do not have. */
int push_encoder_pull(const struct push_encoder *e, const struct ps_pull_section *sections,
                      uint32_t n, struct partition *p, struct request *const *requests)
    MUST_CHECK;

/* Decodes one shard's answer to the pull that filled *p into the dsts of its sections, or hands it to their sinks.
 * PS_ECOUNT, PS_ECODEC, or the status of a sink. */
int push_encoder_pulled(const struct push_encoder *e, const struct ps_pull_section *sections,
                        uint32_t n, const struct partition *p, uint32_t shard,
                        const uint8_t *const *values, const size_t *value_bytes) MUST_CHECK;

/* Bounds the memory of each sparse table's residuals; 0: no bound. */
void push_encoder_bound_residuals(struct push_encoder *e, uint64_t max_bytes);

/* Residuals kept, and rows sent in full so that others have space. */
struct push_encoder_residuals {
    uint64_t n_rows, n_bytes, n_flushed;
};

/* False: no codec with feedback was used, and no caller has requested a table's residuals to fill them. */
bool push_encoder_keeps_residuals(const struct push_encoder *e);
void push_encoder_residuals(const struct push_encoder *e, struct push_encoder_residuals *ret);

/* Tables and their residuals, to save them between runs. Valid as long as the encoder. */
uint32_t push_encoder_n_tables(const struct push_encoder *e);
struct error_feedback *push_encoder_residual(struct push_encoder *e, uint32_t table);
const char *push_encoder_table_name(const struct push_encoder *e, uint32_t table);

/* The number of values of a row that topk keeps: floor(dim * fraction), at least 1. 0 for other codecs. */
uint32_t push_encoder_k(const struct codec *codec, uint32_t dim, float fraction);

/* The most rows that a section of n_keys may add to its table's residuals: beyond the bound they
 * are flushed instead. The table stands in no other section. */
uint32_t push_encoder_n_new_rows(const struct error_feedback *r, uint32_t n_keys);

#endif
