#include "server/core/section_check.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "proto/placement.h"

int section_check_table(const struct shard *s, const struct section *sent,
                        struct shard_section *ret, struct err *err)
{
    ret->sent = sent;
    ret->entry = shard_entry_at(s, sent->table_id);
    if (!ret->entry)
        return sent->table_id < s->n_tables
                   ? err_set(err, PS_ENOTABLE,
                             "table number %" PRIu32
                             " was dropped (psctl drop): a table of its "
                             "name that is made now has another number",
                             sent->table_id)
                   : err_set(err, PS_ENOTABLE,
                             "no table has number %" PRIu32 ": this shard has had %" PRIu32
                             " tables",
                             sent->table_id, s->n_tables);
    return 0;
}

int section_check_codec(const struct shard *s, struct shard_section *section, struct err *err)
{
    const struct section *sent = section->sent;
    const struct table_spec *spec = &section->entry->table.spec;
    const struct codec *codec = sent->codec < CODEC_ID_END ? s->codecs[sent->codec] : NULL;

    if (!codec)
        return err_set(err, PS_ECODEC, "table %s: no codec has number %u", spec->name,
                       (unsigned)sent->codec);
    if (codec->id == CODEC_TOPK && spec->dim > TABLE_SPEC_DIM_MAX)
        return err_set(err, PS_ECODEC,
                       "table %s: topk has numbers of %u floats of a row, this one has %" PRIu32
                       ": another codec",
                       spec->name, TABLE_SPEC_DIM_MAX, spec->dim);
    if (codec->id == CODEC_TOPK && (sent->k == 0 || sent->k > spec->dim))
        return err_set(err, PS_ECODEC,
                       "table %s: topk keeps %" PRIu32
                       " values of a row; expected 1 to %" PRIu32,
                       spec->name, sent->k, spec->dim);
    if (sent->state && codec->id != CODEC_FP32)
        return err_set(err, PS_ECODEC,
                       "table %s: state is asked for as it is stored, not as %s", spec->name,
                       codec->name);
    section->codec = codec;
    section->row_bytes = sent->state ? section->entry->table.payload_bytes
                                     : codec->row_bytes(spec->dim, sent->k);
    return 0;
}

int section_check_count(const struct shard_section *section, struct err *err)
{
    const struct section *sent = section->sent;

    if (sent->n_keys > sent->key_bytes)
        return err_set(err, PS_ECOUNT, "table %s: %" PRIu32 " keys cannot stand in %zu bytes",
                       section->entry->table.spec.name, sent->n_keys, sent->key_bytes);
    return 0;
}

static int refuse_keys(const struct shard_section *section, int status, struct err *err)
{
    return err_set(err, status, "table %s: %s (%" PRIu32 " keys in %zu bytes)",
                   section->entry->table.spec.name, status_text(status), section->sent->n_keys,
                   section->sent->key_bytes);
}

int section_check_open(struct shard_section *section, struct err *err)
{
    const struct section *sent = section->sent;
    int status =
        key_codec_reader_init(&section->keys, sent->keys, sent->key_bytes, sent->n_keys);

    return status ? refuse_keys(section, status, err) : 0;
}

int section_check_sizes(const struct shard *s, struct shard_section *section, struct err *err)
{
    const struct section *sent = section->sent;
    const struct table_spec *spec = &section->entry->table.spec;
    int status = section_check_codec(s, section, err);

    if (!status)
        status = section_check_open(section, err);
    if (!status && sent->op == SECTION_ASSIGN_STATE && section->codec->id != CODEC_FP32)
        status =
            err_set(err, PS_ECODEC, "table %s: rows with state are assigned as fp32, not as %s",
                    spec->name, section->codec->name);
    if (status)
        return status;
    if (sent->op == SECTION_ASSIGN_STATE)
        section->row_bytes = shard_state_row_bytes(section->entry);
    if (sent->op == SECTION_GRADIENT_AT)
        section->row_bytes += spec->dim * sizeof(float);
    if (sent->value_bytes != (uint64_t)sent->n_keys * section->row_bytes)
        return err_set(err, PS_EWIDTH,
                       "table %s: %zu bytes of values for %" PRIu32
                       " rows of %zu bytes (dim %" PRIu32 ", %s)",
                       spec->name, sent->value_bytes, sent->n_keys, section->row_bytes,
                       spec->dim, section->codec->name);
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

    while ((owner = placement_shard(keys[i], entry->salt, s->config.n_shards)) ==
           s->config.shard)
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
        wrong |= placement_shard(keys[i], entry->salt, n_shards) ^ shard;
    return wrong ? refuse_owner(s, entry, keys, ret_key, err) : 0;
}

int section_check_keys(const struct shard *s, struct shard_section *section, uint32_t n,
                       uint64_t *ret_keys, uint64_t *ret_key, struct err *err)
{
    const struct shard_entry *entry = section->entry;
    int status = key_codec_reader_next(&section->keys, n, ret_keys);

    if (status)
        return refuse_keys(section, status, err);
    status = check_blocks(entry, ret_keys, n, ret_key, err);
    return status ? status : check_owner(s, entry, ret_keys, n, ret_key, err);
}

static const uint8_t *row_at(const struct shard_section *section, uint32_t row)
{
    return section->sent->values + row * section->row_bytes;
}

/* Of what the log has it was asked when it came, maybe by an older psd. */
static enum optimizer_fault state_fault(const struct shard *s,
                                        const struct shard_section *section, uint32_t row)
{
    const struct shard_entry *entry = section->entry;
    const struct table_spec *spec = &entry->table.spec;
    const optimizer_gradient *state =
        (const optimizer_gradient *)(row_at(section, row) + spec->dim * sizeof(float));
    const float max = s->config.gradient_max;
    enum optimizer_fault fault;

    if (section->sent->op != SECTION_ASSIGN_STATE)
        return OPTIMIZER_FINE;
    fault = optimizer_check_state(entry->optim, state, spec,
                                  max == 0                   ? INFINITY
                                  : max > SECTION_ASSIGN_MAX ? max
                                                             : SECTION_ASSIGN_MAX);
    return s->replay && fault != OPTIMIZER_NOT_FINITE ? OPTIMIZER_FINE : fault;
}

size_t section_check_gradient_bytes(const struct shard_section *section)
{
    return section->row_bytes - section->entry->table.spec.dim * sizeof(float);
}

/* Of gradients with the weights that they are of: are these finite? */
static int check_then(const struct shard *s, const struct shard_section *section,
                      const uint8_t *src)
{
    if (section->sent->op != SECTION_GRADIENT_AT)
        return 0;
    return s->codecs[CODEC_FP32]->check(src + section_check_gradient_bytes(section),
                                        section->entry->table.spec.dim, 0, CODEC_FINITE);
}

int section_check_values(const struct shard *s, const struct shard_section *section,
                         uint32_t from, uint32_t n, uint32_t max, uint32_t *ret_row)
{
    const struct section *sent = section->sent;
    const uint32_t dim = section->entry->table.spec.dim;
    uint32_t i = from > sent->n_finite ? from : sent->n_finite;
    const uint8_t *src = row_at(section, i);
    int status = 0;

    for (; i < from + n && !status; i++, src += section->row_bytes) {
        status = section->codec->check(src, dim, sent->k, max);
        if (!status && state_fault(s, section, i))
            status = PS_ENAN;
        if (!status)
            status = check_then(s, section, src);
    }
    if (status)
        *ret_row = i - 1;
    return status;
}

bool section_check_is_huge(const struct shard *s, const struct shard_section *section,
                           uint32_t row)
{
    const enum optimizer_fault fault = state_fault(s, section, row);

    return section->codec->check(row_at(section, row), section->entry->table.spec.dim,
                                 section->sent->k, CODEC_FINITE) == 0 &&
           check_then(s, section, row_at(section, row)) == 0 &&
           (fault == OPTIMIZER_FINE || fault == OPTIMIZER_LARGE);
}

int section_check_refuse_row(const struct shard *s, const struct shard_section *section,
                             uint32_t row, uint64_t key, int status, float max, struct err *err)
{
    const char *name = section->entry->table.spec.name;
    const enum optimizer_fault fault = state_fault(s, section, row);
    const bool is_huge = status == PS_ENAN && section_check_is_huge(s, section, row);

    if (fault)
        return err_set(err, status, "table %s: the row of key %" PRIu64 " has %s", name, key,
                       optimizer_fault_text(fault));
    if (is_huge && !section_op_is_gradient(section->sent->op))
        return err_set(err, status,
                       "table %s: the row of key %" PRIu64
                       " holds an assigned weight beyond %g",
                       name, key, (double)SECTION_ASSIGN_MAX);
    if (is_huge)
        return err_set(err, status,
                       "table %s: the row of key %" PRIu64
                       " holds a gradient beyond %g (gradient-max)",
                       name, key, (double)max);
    if (status == PS_ENAN)
        return err_set(err, status,
                       "table %s: the row of key %" PRIu64 " holds NaN or infinity", name, key);
    return err_set(err, status, "table %s: the row of key %" PRIu64 " is not what %s writes",
                   name, key, section->codec->name);
}

/* The bytes are the receiver's own buffer, or what it has decompressed: sections only read them. */
void section_check_clip(const struct shard_section *section, uint32_t row, float max,
                        float *floats)
{
    const struct codec *codec = section->codec;
    const uint32_t dim = section->entry->table.spec.dim, k = section->sent->k;
    uint8_t *bytes = (uint8_t *)(uintptr_t)row_at(section, row);
    int status = codec->decode(bytes, dim, k, floats);

    assert(status == 0);
    (void)status;
    for (uint32_t i = 0; i < dim; i++)
        floats[i] = floats[i] > max ? max : floats[i] < -max ? -max : floats[i];
    codec->encode(floats, dim, k, bytes);
}
