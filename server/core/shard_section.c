#include "server/core/shard_section.h"

#include <inttypes.h>
#include <string.h>

#include "proto/keys.h"
#include "proto/route.h"

int shard_section_table(const struct shard *s, const struct section *section,
                        struct shard_entry **ret_entry, struct err *err)
{
    *ret_entry = shard_entry_at(s, section->table_id);
    if (!*ret_entry)
        return err_set(err, PS_ENOTABLE,
                       "no table has number %" PRIu32 ": this shard has %" PRIu32 " tables",
                       section->table_id, s->n_tables);
    return 0;
}

int shard_section_codec(const struct shard_entry *entry, const struct section *section,
                        const struct codec **ret_codec, size_t *ret_row_bytes, struct err *err)
{
    const struct table_spec *spec = &entry->table.spec;
    const struct codec *codec = codec_by_id((uint32_t)section->codec);

    if (!codec)
        return err_set(err, PS_ECODEC, "table %s: no codec has number %u", spec->name,
                       (unsigned)section->codec);
    if (codec->id == CODEC_TOPK && (section->k == 0 || section->k > spec->dim))
        return err_set(err, PS_ECODEC,
                       "table %s: topk keeps %" PRIu32
                       " values of a row; expected 1 to %" PRIu32,
                       spec->name, section->k, spec->dim);
    *ret_codec = codec;
    *ret_row_bytes = codec->row_bytes(spec->dim, section->k);
    return 0;
}

int shard_section_count(const struct shard_entry *entry, const struct section *section,
                        struct err *err)
{
    if (section->n_keys > section->key_bytes)
        return err_set(err, PS_ECOUNT, "table %s: %" PRIu32 " keys cannot stand in %zu bytes",
                       entry->table.spec.name, section->n_keys, section->key_bytes);
    return 0;
}

int shard_section_width(const struct shard_entry *entry, const struct section *section,
                        const struct codec *codec, size_t row_bytes, struct err *err)
{
    const struct table_spec *spec = &entry->table.spec;

    if (section->value_bytes != (uint64_t)section->n_keys * row_bytes)
        return err_set(err, PS_EWIDTH,
                       "table %s: %zu bytes of values for %" PRIu32
                       " rows of %zu bytes (dim %" PRIu32 ", %s)",
                       spec->name, section->value_bytes, section->n_keys, row_bytes, spec->dim,
                       codec->name);
    return 0;
}

static int check_blocks(const struct shard_entry *entry, const uint64_t *keys, uint32_t n_keys,
                        uint64_t *ret_key, struct err *err)
{
    /* Ascending: the last one is the greatest. */
    if (n_keys == 0 || keys[n_keys - 1] < entry->key_end)
        return 0;
    *ret_key = keys[n_keys - 1];
    return err_set(err, PS_ESHARD, "table %s has blocks 0 to %" PRIu64 ", not %" PRIu64,
                   entry->table.spec.name, entry->key_end - 1, *ret_key);
}

static int check_owner(const struct shard *s, const struct shard_entry *entry,
                       const uint64_t *keys, uint32_t n_keys, uint64_t *ret_key,
                       struct err *err)
{
    const uint32_t n_shards = s->config.n_shards, shard = s->config.shard;

    if (n_shards == 1)
        return 0;
    for (uint32_t i = 0; i < n_keys; i++) {
        uint32_t owner = route_shard(keys[i], entry->salt, n_shards);

        if (owner == shard)
            continue;
        *ret_key = keys[i];
        return err_set(err, PS_ESHARD,
                       "table %s: key %" PRIu64 " belongs to shard %" PRIu32
                       ", this is %" PRIu32,
                       entry->table.spec.name, keys[i], owner, shard);
    }
    return 0;
}

int shard_section_keys(const struct shard *s, const struct shard_entry *entry,
                       const struct section *section, uint64_t *ret_keys, uint64_t *ret_key,
                       struct err *err)
{
    int status = keys_decode(section->keys, section->key_bytes, section->n_keys, ret_keys);

    if (status)
        return err_set(err, status, "table %s: %s (%" PRIu32 " keys in %zu bytes)",
                       entry->table.spec.name, status_text(status), section->n_keys,
                       section->key_bytes);
    if (entry->key_end)
        status = check_blocks(entry, ret_keys, section->n_keys, ret_key, err);
    return status ? status : check_owner(s, entry, ret_keys, section->n_keys, ret_key, err);
}

/* NaN and Inf are the floats whose exponent bits are all 1. */
static bool row_is_finite(const float *row, uint32_t dim)
{
    uint32_t bad = 0;

    for (uint32_t i = 0; i < dim; i++) {
        uint32_t bits;

        memcpy(&bits, &row[i], sizeof bits);
        bad |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u);
    }
    return bad == 0;
}

int shard_section_values(const struct shard_part *part, const uint64_t *keys, float *row,
                         uint64_t *ret_key, struct err *err)
{
    const struct section *section = part->section;
    const struct table_spec *spec = &part->rows.entry->table.spec;
    const uint8_t *src = section->values;

    for (uint32_t i = 0; i < section->n_keys; i++, src += part->row_bytes) {
        if (part->codec->decode(src, spec->dim, section->k, row) != 0) {
            *ret_key = keys[i];
            return err_set(err, PS_ECODEC,
                           "table %s: the row of key %" PRIu64 " is not what %s writes",
                           spec->name, keys[i], part->codec->name);
        }
        if (!row_is_finite(row, spec->dim)) {
            *ret_key = keys[i];
            return err_set(err, PS_ENAN,
                           "table %s: the row of key %" PRIu64 " holds NaN or infinity",
                           spec->name, keys[i]);
        }
    }
    return 0;
}
