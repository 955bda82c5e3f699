#include "server/checkpoint/shard_file.h"

#include <string.h>

#include "common/crc32c.h"
#include "server/core/optimizer.h"
#include "server/core/weights.h"

/* Floats are stored as they stand in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "checkpoints are little-endian");

static const char magic[8] = "PSDPART\n";
static const char tag_table[4] = "TABL", tag_dropped[4] = "DROP", tag_footer[4] = "END\n";
static const char tags[SHARD_FILE_WHAT_END][4] = { "STAT", "GONE", "ROWS" };

/* Walks over the fields of a record, either way: one list of fields serves
 * writing and reading. */
struct field_io {
    uint8_t *at;
    bool reads;
};

static void raw(struct field_io *p, void *field, size_t n_bytes)
{
    if (p->reads)
        memcpy(field, p->at, n_bytes);
    else
        memcpy(p->at, field, n_bytes);
    p->at += n_bytes;
}

static void u32(struct field_io *p, uint32_t *field)
{
    raw(p, field, sizeof *field);
}

static void u64(struct field_io *p, uint64_t *field)
{
    raw(p, field, sizeof *field);
}

static void f32(struct field_io *p, float *field)
{
    raw(p, field, sizeof *field);
}

/* An enum field as a u32. Its range is table_spec_check()'s to judge. */
#define ENUM_FIELD(io, field)                 \
    do {                                      \
        uint32_t number_ = (uint32_t)(field); \
        u32(io, &number_);                    \
        (field) = number_;                    \
    } while (0)

static void fields_params(struct field_io *p, struct optimizer_params *params)
{
    f32(p, &params->learning_rate);
    f32(p, &params->epsilon);
    f32(p, &params->momentum);
    f32(p, &params->nesterov);
    f32(p, &params->weight_decay);
    f32(p, &params->beta1);
    f32(p, &params->beta2);
    f32(p, &params->initial_accumulator);
    f32(p, &params->lr_decay);
    f32(p, &params->ftrl_beta);
    f32(p, &params->ftrl_l1);
    f32(p, &params->ftrl_l2);
}

static void fields_schedule(struct field_io *p, struct lr_schedule *schedule)
{
    u32(p, &schedule->warmup_clocks);
    ENUM_FIELD(p, schedule->decay);
    u64(p, &schedule->decay_start);
    u64(p, &schedule->decay_clocks);
    f32(p, &schedule->decay_rate);
    f32(p, &schedule->decay_floor);
}

static void fields_limits(struct field_io *p, struct table_spec_limits *limits)
{
    u32(p, &limits->admit_touches);
    u64(p, &limits->admit_clocks);
    u64(p, &limits->idle_clocks);
    u32(p, &limits->ttl_s);
    u32(p, &limits->rare_touches);
    u64(p, &limits->rare_clocks);
    ENUM_FIELD(p, limits->victims);
    u64(p, &limits->max_bytes);
}

/* The place of n_floats, which a sparse table has none of. */
static void length_or_decay(struct field_io *p, struct table_spec *spec)
{
    uint32_t rest = (uint32_t)(spec->n_floats >> 32);

    if (spec->kind == TABLE_SPEC_DENSE) {
        u64(p, &spec->n_floats);
        return;
    }
    f32(p, &spec->row_decay);
    u32(p, &rest);
    spec->n_floats = (uint64_t)rest << 32; /* table_spec_check() wants 0 */
}

static void fields_table(struct field_io *p, uint32_t format, struct shard_file_table *t)
{
    raw(p, t->spec.name, sizeof t->spec.name);
    ENUM_FIELD(p, t->spec.kind);
    u32(p, &t->spec.dim);
    length_or_decay(p, &t->spec);
    u64(p, &t->spec.seed);
    ENUM_FIELD(p, t->spec.init);
    f32(p, &t->spec.init_scale);
    ENUM_FIELD(p, t->spec.optim);
    fields_params(p, &t->spec.params);
    fields_schedule(p, &t->spec.schedule);
    f32(p, &t->spec.clip_norm);
    ENUM_FIELD(p, t->spec.mode);
    u32(p, &t->spec.bound);
    if (format > 1) {
        ENUM_FIELD(p, t->spec.storage);
        fields_limits(p, &t->spec.limits);
    }
    u64(p, &t->n_pushes);
    u64(p, &t->n_rows);
    u32(p, &t->payload_bytes);
    if (format == 1) /* it told the floats, all of 4 bytes */
        t->payload_bytes *= (uint32_t)sizeof(float);
}

/* Ends a record of n_bytes: the crc of all that stands before it. */
static void seal(uint8_t *record, size_t n_bytes)
{
    uint32_t crc = crc32c_extend(0, record, n_bytes - sizeof crc);

    memcpy(record + n_bytes - sizeof crc, &crc, sizeof crc);
}

static bool is_sealed(const uint8_t *record, size_t n_bytes)
{
    uint32_t crc = crc32c_extend(0, record, n_bytes - sizeof crc);

    return memcmp(record + n_bytes - sizeof crc, &crc, sizeof crc) == 0;
}

static void fields_header(struct field_io *p, uint32_t format, struct shard_file_header *header)
{
    u32(p, &header->shard_index);
    u64(p, &header->number);
    u64(p, &header->version);
    u32(p, &header->n_tables);
    if (format < 3)
        return;
    u32(p, &header->identity.node);
    u32(p, &header->identity.shard);
    u32(p, &header->identity.n_shards);
    u64(p, &header->identity.map_id);
    u64(p, &header->first);
    u64(p, &header->base);
    u64(p, &header->base_version);
    u64(p, &header->state_bytes);
}

void shard_file_encode_header(uint8_t dst[static SHARD_FILE_HEADER_BYTES],
                              const struct shard_file_header *header)
{
    struct shard_file_header copy = *header;
    struct field_io p = { .at = dst };
    uint32_t format =
        header->format == SHARD_FILE_FORMAT_DROP ? SHARD_FILE_FORMAT_DROP : SHARD_FILE_FORMAT;

    memset(dst, 0, SHARD_FILE_HEADER_BYTES);
    memcpy(p.at, magic, sizeof magic);
    p.at += sizeof magic;
    u32(&p, &format);
    fields_header(&p, SHARD_FILE_FORMAT, &copy);
    seal(dst, SHARD_FILE_HEADER_BYTES);
}

const char *shard_file_decode_format(const uint8_t src[static SHARD_FILE_FORMAT_AT_BYTES],
                                     uint32_t *ret_format)
{
    if (memcmp(src, magic, sizeof magic) != 0)
        return "no psd checkpoint file: the magic is wrong";
    memcpy(ret_format, src + sizeof magic, sizeof *ret_format);
    if (*ret_format == 0 || *ret_format > SHARD_FILE_FORMAT_DROP)
        return "the format version is not 1 to 4, those that this program reads";
    return NULL;
}

static const char *check_header(const struct shard_file_header *header)
{
    if (header->n_tables > SHARD_TABLE_NUMBERS_MAX)
        return "more tables than a shard can have";
    if (header->version > ROW_VERSION_MAX || header->base_version > header->version ||
        header->number > SHARD_FILE_COUNT_MAX || header->first > SHARD_FILE_COUNT_MAX ||
        header->state_bytes > SHARD_FILE_STATE_MAX_BYTES)
        return "a number in the header is out of range";
    if (header->base && header->base >= header->number)
        return "a delta to a later checkpoint";
    if (header->format >= 3 && header->identity.shard >= header->identity.n_shards)
        return "a shard that its cluster does not have";
    return NULL;
}

const char *shard_file_decode_header(const uint8_t *src, uint32_t format,
                                     struct shard_file_header *ret)
{
    uint8_t copy[SHARD_FILE_HEADER_BYTES];
    struct field_io p = { .at = copy + SHARD_FILE_FORMAT_AT_BYTES, .reads = true };

    *ret = (struct shard_file_header){ .format = format };
    memcpy(copy, src, shard_file_header_bytes(format));
    if (!is_sealed(src, shard_file_header_bytes(format)))
        return "the header fails its checksum";
    fields_header(&p, format, ret);
    return check_header(ret);
}

void shard_file_encode_table(uint8_t dst[static SHARD_FILE_TABLE_BYTES],
                             const struct shard_file_table *table)
{
    struct shard_file_table copy = *table;
    struct field_io p = { .at = dst };

    if (table->n_dropped) {
        memset(dst, 0, SHARD_FILE_TABLE_BYTES);
        memcpy(dst, tag_dropped, sizeof tag_dropped);
        memcpy(dst + sizeof tag_dropped, &table->n_dropped, sizeof table->n_dropped);
        seal(dst, SHARD_FILE_TABLE_BYTES);
        return;
    }
    /* What stands behind the name's NUL may be anything in memory; in a file it is zeros. */
    memset(copy.spec.name, 0, sizeof copy.spec.name);
    memcpy(copy.spec.name, table->spec.name,
           strnlen(table->spec.name, TABLE_SPEC_NAME_MAX - 1));
    memcpy(p.at, tag_table, sizeof tag_table);
    p.at += sizeof tag_table;
    fields_table(&p, SHARD_FILE_FORMAT, &copy);
    seal(dst, SHARD_FILE_TABLE_BYTES);
}

uint32_t shard_file_payload_bytes(const struct table_spec *spec)
{
    return optimizer_find(spec->optim)
               ? weights_bytes(spec->storage, spec->dim) +
                     table_spec_state_floats(spec) * (uint32_t)sizeof(float)
               : 0;
}

/* The rest of it is zeros. */
static const char *decode_dropped(const uint8_t *src, struct shard_file_table *ret)
{
    const uint8_t *at = src + sizeof tag_dropped + sizeof ret->n_dropped;
    const uint8_t *end = src + SHARD_FILE_TABLE_BYTES - sizeof(uint32_t);

    if (!is_sealed(src, SHARD_FILE_TABLE_BYTES))
        return "a record of dropped tables fails its checksum";
    memcpy(&ret->n_dropped, src + sizeof tag_dropped, sizeof ret->n_dropped);
    while (at < end && *at == 0)
        at++;
    return ret->n_dropped == 0 || ret->n_dropped > SHARD_TABLE_NUMBERS_MAX || at < end
               ? "a number in a record of dropped tables is out of range"
               : NULL;
}

const char *shard_file_decode_table(const uint8_t *src, uint32_t format,
                                    struct shard_file_table *ret, struct err *reason)
{
    uint8_t copy[SHARD_FILE_TABLE_BYTES];
    struct field_io p = { .at = copy + sizeof tag_table, .reads = true };

    *ret = (struct shard_file_table){ 0 };
    memcpy(copy, src, shard_file_table_bytes(format));
    if (format == SHARD_FILE_FORMAT_DROP && memcmp(copy, tag_dropped, sizeof tag_dropped) == 0)
        return decode_dropped(src, ret);
    if (memcmp(copy, tag_table, sizeof tag_table) != 0)
        return "no table record where one must be";
    if (!is_sealed(src, shard_file_table_bytes(format)))
        return "a table record fails its checksum";
    fields_table(&p, format, ret);
    if (ret->spec.name[TABLE_SPEC_NAME_MAX - 1])
        return "a table's name has no end";
    if (table_spec_check(&ret->spec, reason) != 0)
        return reason->text;
    if (ret->payload_bytes == 0 || ret->payload_bytes != shard_file_payload_bytes(&ret->spec))
        return "a table's rows are not as wide as its optimizer needs";
    if (ret->spec.kind == TABLE_SPEC_DENSE && ret->n_rows > table_spec_n_blocks(&ret->spec))
        return "a dense table has more rows than blocks";
    return NULL;
}

static void fields_footer(struct field_io *p, uint32_t format, struct shard_file_footer *footer)
{
    u32(p, &footer->n_tables);
    u64(p, &footer->n_rows);
    if (format >= 3) {
        u64(p, &footer->n_gone);
        u64(p, &footer->through);
        u64(p, &footer->last_version);
    }
    u64(p, &footer->n_bytes);
    u32(p, &footer->crc);
}

void shard_file_encode_footer(uint8_t dst[static SHARD_FILE_FOOTER_BYTES],
                              const struct shard_file_footer *footer)
{
    struct shard_file_footer copy = *footer;
    struct field_io p = { .at = dst + sizeof tag_footer };

    memcpy(dst, tag_footer, sizeof tag_footer);
    fields_footer(&p, SHARD_FILE_FORMAT, &copy);
    seal(dst, SHARD_FILE_FOOTER_BYTES);
}

const char *shard_file_decode_footer(const uint8_t *src, uint32_t format,
                                     struct shard_file_footer *ret)
{
    uint8_t copy[SHARD_FILE_FOOTER_BYTES];
    struct field_io p = { .at = copy + sizeof tag_footer, .reads = true };

    *ret = (struct shard_file_footer){ 0 };
    memcpy(copy, src, shard_file_footer_bytes(format));
    if (memcmp(copy, tag_footer, sizeof tag_footer) != 0)
        return "neither a chunk nor the footer where one must be";
    if (!is_sealed(src, shard_file_footer_bytes(format)))
        return "the footer fails its checksum";
    fields_footer(&p, format, ret);
    return NULL;
}

static void fields_chunk(struct field_io *p, struct shard_file_chunk *chunk)
{
    u32(p, &chunk->table);
    u32(p, &chunk->n_items);
    u32(p, &chunk->n_bytes);
    u32(p, &chunk->crc);
}

static uint32_t chunk_crc(const uint8_t *head, const struct shard_file_chunk *chunk,
                          const uint8_t *bytes)
{
    return crc32c_extend(crc32c_extend(0, head, SHARD_FILE_CHUNK_BYTES - sizeof chunk->crc),
                         bytes, chunk->n_bytes);
}

void shard_file_encode_chunk(uint8_t dst[static SHARD_FILE_CHUNK_BYTES],
                             const struct shard_file_chunk *chunk, const uint8_t *bytes)
{
    struct shard_file_chunk copy = *chunk;
    struct field_io p = { .at = dst + sizeof tags[0] };
    uint32_t crc;

    memcpy(dst, tags[chunk->what], sizeof tags[0]);
    fields_chunk(&p, &copy);
    crc = chunk_crc(dst, chunk, bytes);
    memcpy(dst + SHARD_FILE_CHUNK_BYTES - sizeof crc, &crc, sizeof crc);
}

/* What n_items of it take; a chunk of ROWS may pass SHARD_FILE_CHUNK_MAX_BYTES by having one row alone. */
static uint64_t chunk_bytes(const struct shard_file_header *header,
                            const struct shard_file_table *tables,
                            const struct shard_file_chunk *chunk)
{
    if (chunk->what == SHARD_FILE_STATE)
        return chunk->n_bytes;
    if (chunk->what == SHARD_FILE_GONE)
        return chunk->n_items * (uint64_t)sizeof(uint64_t);
    return chunk->n_items *
           (uint64_t)shard_file_row_bytes(header->format, tables[chunk->table].payload_bytes);
}

const char *shard_file_decode_chunk(const uint8_t src[static SHARD_FILE_CHUNK_BYTES],
                                    const struct shard_file_header *header,
                                    const struct shard_file_table *tables,
                                    struct shard_file_chunk *ret)
{
    uint8_t copy[SHARD_FILE_CHUNK_BYTES];
    struct field_io p = { .at = copy + sizeof tags[0], .reads = true };

    memcpy(copy, src, sizeof copy);
    ret->what = SHARD_FILE_STATE;
    while (ret->what < SHARD_FILE_WHAT_END &&
           memcmp(copy, tags[ret->what], sizeof tags[0]) != 0)
        ret->what++;
    if (ret->what == SHARD_FILE_WHAT_END ||
        (header->format < 3 && ret->what != SHARD_FILE_ROWS))
        return "neither a chunk nor the footer where one must be";
    fields_chunk(&p, ret);
    if (ret->what == SHARD_FILE_STATE ? ret->table != 0 : ret->table >= header->n_tables)
        return "a chunk of a table that has no record";
    if (ret->what != SHARD_FILE_STATE && tables[ret->table].n_dropped)
        return "a chunk of a table that was dropped";
    if ((ret->n_items == 0) != (ret->what == SHARD_FILE_STATE) || ret->n_bytes == 0)
        return "a count of rows is out of range";
    if (ret->n_bytes != chunk_bytes(header, tables, ret))
        return "a count of rows does not match their length";
    if (ret->n_bytes > SHARD_FILE_CHUNK_MAX_BYTES && ret->n_items != 1)
        return "a chunk that is longer than any";
    return NULL;
}

bool shard_file_chunk_is_whole(const uint8_t head[static SHARD_FILE_CHUNK_BYTES],
                               const struct shard_file_chunk *chunk, const uint8_t *bytes)
{
    return chunk->crc == chunk_crc(head, chunk, bytes);
}

void shard_file_convert_rows_1(uint8_t *rows, uint32_t n_rows, uint32_t payload_bytes)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        const uint8_t *src = rows + (size_t)i * shard_file_row_bytes(1, payload_bytes);
        uint8_t *dst =
            rows + (size_t)i * shard_file_row_bytes(SHARD_FILE_FORMAT, payload_bytes);
        uint64_t stamp;

        memcpy(&stamp, src + 8, sizeof stamp); /* a version */
        stamp = row_stamp(stamp < ROW_VERSION_MAX ? stamp : ROW_VERSION_MAX, 0, 0);
        memmove(dst, src, 8);
        memcpy(dst + 8, &stamp, sizeof stamp);
        memmove(dst + SHARD_FILE_ROW_HEAD_BYTES, src + SHARD_FILE_ROW_1_HEAD_BYTES,
                payload_bytes);
    }
}
