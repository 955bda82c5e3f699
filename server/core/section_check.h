/*
 * A section of a pull or push against the table that it names. Every function here refuses with a status
 * and a sentence, and changes nothing but its outputs. struct shard_section carries what is known of the
 * section from one check to the next.
 */
#ifndef SERVER_CORE_SECTION_CHECK_H
#define SERVER_CORE_SECTION_CHECK_H

#include "server/core/shard_internal.h"

/* Sets ret->sent and ret->entry. PS_ENOTABLE. */
int section_check_table(const struct shard *s, const struct section *sent,
                        struct shard_section *ret, struct err *err) MUST_CHECK;

/* Sets codec and row_bytes. PS_ECODEC: unknown codec, k out of range, or state in another codec than fp32. */
int section_check_codec(const struct shard *s, struct shard_section *section, struct err *err)
    MUST_CHECK;

/* PS_ECOUNT if the section's bytes cannot hold its number of keys. Checked before memory for them is reserved. */
int section_check_count(const struct shard_section *section, struct err *err) MUST_CHECK;

/* Of SECTION_GRADIENT_AT: the bytes of a row's gradient, behind which its weights stand. */
size_t section_check_gradient_bytes(const struct shard_section *section);

/* Begins to read the section's keys. PS_ECOUNT. */
int section_check_open(struct shard_section *section, struct err *err) MUST_CHECK;

/* Of a push: its codec; opens its keys, as many as can stand in their bytes; the bytes of values are those of
 * n_keys rows. PS_ECODEC, PS_ECOUNT, PS_EWIDTH. */
int section_check_sizes(const struct shard *s, struct shard_section *section, struct err *err)
    MUST_CHECK;

/* ret_keys[0 .. n): the next ones, ascending, and all of them this shard's. PS_ECOUNT, PS_EORDER,
 * PS_ESHARD; *ret_key is then the first wrong key where one is known. */
int section_check_keys(const struct shard *s, struct shard_section *section, uint32_t n,
                       uint64_t *ret_keys, uint64_t *ret_key, struct err *err) MUST_CHECK;

/* Rows [from, from + n) of the values are what the codec writes, finite, and of no greater magnitude than
 * max (struct codec, check()); assigned state is one that training can lead to (optimizer_check_state()), but for that
 * of a log. PS_ECODEC, PS_ENAN; *ret_row is then the first that is not. */
int section_check_values(const struct shard *s, const struct shard_section *section,
                         uint32_t from, uint32_t n, uint32_t max, uint32_t *ret_row) MUST_CHECK;

/* The result of section_check_values(), as a sentence; max: of its call, as a float for people. */
int section_check_refuse_row(const struct shard *s, const struct shard_section *section,
                             uint32_t row, uint64_t key, int status, float max,
                             struct err *err);

/* A row whose floats are finite; of them, some are above `max`, or too large for its state. */
bool section_check_is_huge(const struct shard *s, const struct shard_section *section,
                           uint32_t row);

/* Makes all floats of such a row -max to max, in the section's own bytes; row: dim floats of scratch. */
void section_check_clip(const struct shard_section *section, uint32_t row, float max,
                        float *floats);

#endif
