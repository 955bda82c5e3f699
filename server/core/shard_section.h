/*
 * One section of a pull or a push, held against the table that it names. Every function here
 * refuses with a status and a sentence; none changes anything but its outputs.
 */
#ifndef SERVER_CORE_SHARD_SECTION_H
#define SERVER_CORE_SHARD_SECTION_H

#include "server/core/shard_state.h"

/* PS_ENOTABLE. */
int shard_section_table(const struct shard *s, const struct section *section,
                        struct shard_entry **ret_entry, struct err *err) MUST_CHECK;

/* The section's codec, and the bytes of one of its rows: of a pull that asks for state, as they are
 * stored. PS_ECODEC: unknown, or k is out of range, or state in another codec than fp32. */
int shard_section_codec(const struct shard_entry *entry, const struct section *section,
                        const struct codec **ret_codec, size_t *ret_row_bytes, struct err *err)
    MUST_CHECK;

/* Do as many keys as the section says fit in its bytes? To be asked before room is made for
 * them. PS_ECOUNT. */
int shard_section_count(const struct shard_entry *entry, const struct section *section,
                        struct err *err) MUST_CHECK;

/* Has the section as many bytes of values as its keys have rows? As above, before room is made.
 * PS_EWIDTH. */
int shard_section_width(const struct shard_entry *entry, const struct section *section,
                        const struct codec *codec, size_t row_bytes, struct err *err)
    MUST_CHECK;

/* Begins to read the section's keys. PS_ECOUNT. */
int shard_section_open(const struct shard_entry *entry, const struct section *section,
                       struct keys_reader *ret_reader, struct err *err) MUST_CHECK;

/* ret_keys[0 .. n): the next ones, ascending, and all of them this shard's. PS_ECOUNT, PS_EORDER,
 * PS_ESHARD; *ret_key is then the first wrong key where one is known. */
int shard_section_keys(const struct shard *s, const struct shard_entry *entry,
                       const struct section *section, struct keys_reader *reader, uint32_t n,
                       uint64_t *ret_keys, uint64_t *ret_key, struct err *err) MUST_CHECK;

/* Rows [from, from + n) of the part's values, which have the right width, make sense and are
 * finite; their keys stand in part->rows.keys. PS_ECODEC, PS_ENAN; *ret_key as above. */
int shard_section_values(const struct shard_part *part, uint32_t from, uint32_t n,
                         uint64_t *ret_key, struct err *err) MUST_CHECK;

#endif
