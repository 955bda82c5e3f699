#include "server/core/shard_section.h"

#include <inttypes.h>

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
    if (section->state && codec->id != CODEC_FP32)
        return err_set(err, PS_ECODEC,
                       "table %s: state is asked for as it is stored, not as %s", spec->name,
                       codec->name);
    *ret_codec = codec;
    *ret_row_bytes =
        section->state ? entry->table.payload_bytes : codec->row_bytes(spec->dim, section->k);
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
    uint32_t i = 0;

    /* Ascending: the last one is the greatest. */
    if (!entry->key_end || n_keys == 0 || keys[n_keys - 1] < entry->key_end)
        return 0;
    while (keys[i] < entry->key_end)
        i++;
    *ret_key = keys[i];
    return err_set(err, PS_ESHARD, "table %s has blocks 0 to %" PRIu64 ", not %" PRIu64,
                   entry->table.spec.name, entry->key_end - 1, keys[i]);
}

static int refuse_owner(const struct shard *s, const struct shard_entry *entry,
                        const uint64_t *keys, uint64_t *ret_key, struct err *err)
{
    uint32_t owner, i = 0;

    while ((owner = route_shard(keys[i], entry->salt, s->config.n_shards)) == s->config.shard)
        i++;
    *ret_key = keys[i];
    return err_set(err, PS_ESHARD,
                   "table %s: key %" PRIu64 " belongs to shard %" PRIu32 ", this is %" PRIu32,
                   entry->table.spec.name, keys[i], owner, s->config.shard);
}

static int check_owner(const struct shard *s, const struct shard_entry *entry,
                       const uint64_t *keys, uint32_t n_keys, uint64_t *ret_key,
                       struct err *err)
{
    const uint32_t n_shards = s->config.n_shards, shard = s->config.shard;
    uint32_t wrong = 0;

    if (n_shards == 1)
        return 0;
    for (uint32_t i = 0; i < n_keys; i++)
        wrong |= route_shard(keys[i], entry->salt, n_shards) ^ shard;
    return wrong ? refuse_owner(s, entry, keys, ret_key, err) : 0;
}

static int refuse_keys(const struct shard_entry *entry, const struct section *section,
                       int status, struct err *err)
{
    return err_set(err, status, "table %s: %s (%" PRIu32 " keys in %zu bytes)",
                   entry->table.spec.name, status_text(status), section->n_keys,
                   section->key_bytes);
}

int shard_section_open(const struct shard_entry *entry, const struct section *section,
                       struct keys_reader *ret_reader, struct err *err)
{
    int status =
        keys_reader_init(ret_reader, section->keys, section->key_bytes, section->n_keys);

    return status ? refuse_keys(entry, section, status, err) : 0;
}

int shard_section_keys(const struct shard *s, const struct shard_entry *entry,
                       const struct section *section, struct keys_reader *reader, uint32_t n,
                       uint64_t *ret_keys, uint64_t *ret_key, struct err *err)
{
    int status = keys_reader_next(reader, n, ret_keys);

    if (status)
        return refuse_keys(entry, section, status, err);
    status = check_blocks(entry, ret_keys, n, ret_key, err);
    return status ? status : check_owner(s, entry, ret_keys, n, ret_key, err);
}

int shard_section_values(const struct shard_part *part, uint32_t from, uint32_t n,
                         uint64_t *ret_key, struct err *err)
{
    const struct section *section = part->section;
    const struct table_spec *spec = &part->rows.entry->table.spec;
    uint32_t i = from > section->n_finite ? from : section->n_finite;
    const uint8_t *src = section->values + i * part->row_bytes;
    int status = 0;

    for (; i < from + n && !status; i++, src += part->row_bytes)
        status = part->codec->check(src, spec->dim, section->k);
    if (!status)
        return 0;
    *ret_key = part->rows.keys[i - 1];
    if (status == PS_ENAN)
        return err_set(err, status,
                       "table %s: the row of key %" PRIu64 " holds NaN or infinity", spec->name,
                       *ret_key);
    return err_set(err, status, "table %s: the row of key %" PRIu64 " is not what %s writes",
                   spec->name, *ret_key, part->codec->name);
}
