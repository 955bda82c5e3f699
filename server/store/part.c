#include "server/store/part.h"

#include <string.h>

#include "common/crc.h"
#include "server/core/optim_catalog.h"
#include "server/core/weights.h"

/* Floats are stored as they stand in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "checkpoints are little-endian");

static const char magic[8] = "PSDPART\n";
static const char tag_table[4] = "TABL", tag_chunk[4] = "ROWS", tag_footer[4] = "END\n";

/* Walks over the fields of a record, either way: one list of fields serves
 * writing and reading. */
struct pen {
    uint8_t *at;
    bool reads;
};

static void raw(struct pen *p, void *field, size_t n_bytes)
{
    if (p->reads)
        memcpy(field, p->at, n_bytes);
    else
        memcpy(p->at, field, n_bytes);
    p->at += n_bytes;
}

static void u32(struct pen *p, uint32_t *field)
{
    raw(p, field, sizeof *field);
}

static void u64(struct pen *p, uint64_t *field)
{
    raw(p, field, sizeof *field);
}

static void f32(struct pen *p, float *field)
{
    raw(p, field, sizeof *field);
}

/* An enum field as a u32. Its range is spec_check()'s to judge. */
#define ENUM_FIELD(pen, field)                \
    do {                                      \
        uint32_t number_ = (uint32_t)(field); \
        u32(pen, &number_);                   \
        (field) = number_;                    \
    } while (0)

static void walk_params(struct pen *p, struct optim_params *params)
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

static void walk_schedule(struct pen *p, struct lr_schedule *schedule)
{
    u32(p, &schedule->warmup_clocks);
    ENUM_FIELD(p, schedule->decay);
    u64(p, &schedule->decay_start);
    u64(p, &schedule->decay_clocks);
    f32(p, &schedule->decay_rate);
    f32(p, &schedule->decay_floor);
}

static void walk_limits(struct pen *p, struct spec_limits *limits)
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

static void walk_table(struct pen *p, uint32_t format, struct part_table *t)
{
    raw(p, t->spec.name, sizeof t->spec.name);
    ENUM_FIELD(p, t->spec.kind);
    u32(p, &t->spec.dim);
    u64(p, &t->spec.n_floats);
    u64(p, &t->spec.seed);
    ENUM_FIELD(p, t->spec.init);
    f32(p, &t->spec.init_scale);
    ENUM_FIELD(p, t->spec.optim);
    walk_params(p, &t->spec.params);
    walk_schedule(p, &t->spec.schedule);
    f32(p, &t->spec.clip_norm);
    ENUM_FIELD(p, t->spec.mode);
    u32(p, &t->spec.bound);
    if (format > 1) {
        ENUM_FIELD(p, t->spec.storage);
        walk_limits(p, &t->spec.limits);
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
    uint32_t crc = crc_extend(0, record, n_bytes - sizeof crc);

    memcpy(record + n_bytes - sizeof crc, &crc, sizeof crc);
}

static bool is_sealed(const uint8_t *record, size_t n_bytes)
{
    uint32_t crc = crc_extend(0, record, n_bytes - sizeof crc);

    return memcmp(record + n_bytes - sizeof crc, &crc, sizeof crc) == 0;
}

uint32_t part_rows_max(uint32_t format, uint32_t payload_bytes)
{
    uint32_t n_rows = PART_ROWS_MAX_BYTES / part_row_bytes(format, payload_bytes);

    return n_rows ? n_rows : 1;
}

static void walk_header(struct pen *p, struct part_header *header)
{
    u32(p, &header->shard_index);
    u64(p, &header->number);
    u64(p, &header->version);
    u32(p, &header->n_tables);
}

void part_encode_header(uint8_t dst[static PART_HEADER_BYTES], const struct part_header *header)
{
    struct part_header copy = *header;
    struct pen p = { .at = dst };
    uint32_t format = PART_FORMAT;

    memcpy(p.at, magic, sizeof magic);
    p.at += sizeof magic;
    u32(&p, &format);
    walk_header(&p, &copy);
    seal(dst, PART_HEADER_BYTES);
}

const char *part_decode_header(const uint8_t src[static PART_HEADER_BYTES],
                               struct part_header *ret)
{
    uint8_t copy[PART_HEADER_BYTES];
    struct pen p = { .at = copy + sizeof magic, .reads = true };

    memcpy(copy, src, sizeof copy);
    if (memcmp(copy, magic, sizeof magic) != 0)
        return "no psd checkpoint file: the magic is wrong";
    u32(&p, &ret->format);
    if (ret->format != 1 && ret->format != PART_FORMAT)
        return "the format version is neither 1 nor 2, those that this program reads";
    if (!is_sealed(src, PART_HEADER_BYTES))
        return "the header fails its checksum";
    walk_header(&p, ret);
    if (ret->n_tables > SHARD_N_TABLES_MAX)
        return "more tables than a shard can have";
    if (ret->version > ROW_VERSION_MAX || ret->number > PART_COUNT_MAX)
        return "a number in the header is out of range";
    return NULL;
}

void part_encode_table(uint8_t dst[static PART_TABLE_BYTES], const struct part_table *table)
{
    struct part_table copy = *table;
    struct pen p = { .at = dst };

    /* What stands behind the name's NUL may be anything in memory; in a file it is zeros. */
    memset(copy.spec.name, 0, sizeof copy.spec.name);
    memcpy(copy.spec.name, table->spec.name, strnlen(table->spec.name, SPEC_NAME_MAX - 1));
    memcpy(p.at, tag_table, sizeof tag_table);
    p.at += sizeof tag_table;
    walk_table(&p, PART_FORMAT, &copy);
    seal(dst, PART_TABLE_BYTES);
}

uint32_t part_payload_bytes(const struct table_spec *spec)
{
    const struct optim *optim = optim_find(spec->optim);

    return optim ? weights_bytes(spec->storage, spec->dim) +
                       optim->state_floats(spec->dim) * (uint32_t)sizeof(float)
                 : 0;
}

const char *part_decode_table(const uint8_t *src, uint32_t format, struct part_table *ret,
                              struct err *reason)
{
    uint8_t copy[PART_TABLE_BYTES];
    struct pen p = { .at = copy + sizeof tag_table, .reads = true };

    *ret = (struct part_table){ 0 };
    memcpy(copy, src, part_table_bytes(format));
    if (memcmp(copy, tag_table, sizeof tag_table) != 0)
        return "no table record where one must be";
    if (!is_sealed(src, part_table_bytes(format)))
        return "a table record fails its checksum";
    walk_table(&p, format, ret);
    if (ret->spec.name[SPEC_NAME_MAX - 1])
        return "a table's name has no end";
    if (spec_check(&ret->spec, reason) != 0)
        return reason->text;
    if (ret->payload_bytes == 0 || ret->payload_bytes != part_payload_bytes(&ret->spec))
        return "a table's rows are not as wide as its optimizer needs";
    if (ret->spec.kind == SPEC_DENSE && ret->n_rows > spec_n_blocks(&ret->spec))
        return "a dense table has more rows than blocks";
    return NULL;
}

static void walk_footer(struct pen *p, struct part_footer *footer)
{
    u32(p, &footer->n_tables);
    u64(p, &footer->n_rows);
    u64(p, &footer->n_bytes);
    u32(p, &footer->crc);
}

void part_encode_footer(uint8_t dst[static PART_FOOTER_BYTES], const struct part_footer *footer)
{
    struct part_footer copy = *footer;
    struct pen p = { .at = dst + sizeof tag_footer };

    memcpy(dst, tag_footer, sizeof tag_footer);
    walk_footer(&p, &copy);
    seal(dst, PART_FOOTER_BYTES);
}

const char *part_decode_footer(const uint8_t src[static PART_FOOTER_BYTES],
                               struct part_footer *ret)
{
    uint8_t copy[PART_FOOTER_BYTES];
    struct pen p = { .at = copy + sizeof tag_footer, .reads = true };

    memcpy(copy, src, sizeof copy);
    if (memcmp(copy, tag_footer, sizeof tag_footer) != 0)
        return "neither rows nor the footer where one must be";
    if (!is_sealed(src, PART_FOOTER_BYTES))
        return "the footer fails its checksum";
    walk_footer(&p, ret);
    return NULL;
}

static void walk_chunk(struct pen *p, struct part_chunk *chunk)
{
    u32(p, &chunk->table);
    u32(p, &chunk->n_rows);
    u32(p, &chunk->n_bytes);
    u32(p, &chunk->crc);
}

static uint32_t chunk_crc(const uint8_t *head, const struct part_chunk *chunk,
                          const uint8_t *rows)
{
    return crc_extend(crc_extend(0, head, PART_CHUNK_BYTES - sizeof chunk->crc), rows,
                      chunk->n_bytes);
}

void part_encode_chunk(uint8_t dst[static PART_CHUNK_BYTES], const struct part_chunk *chunk,
                       const uint8_t *rows)
{
    struct part_chunk copy = *chunk;
    struct pen p = { .at = dst + sizeof tag_chunk };
    uint32_t crc;

    memcpy(dst, tag_chunk, sizeof tag_chunk);
    walk_chunk(&p, &copy);
    crc = chunk_crc(dst, chunk, rows);
    memcpy(dst + PART_CHUNK_BYTES - sizeof crc, &crc, sizeof crc);
}

const char *part_decode_chunk(const uint8_t src[static PART_CHUNK_BYTES],
                              const struct part_header *header, const struct part_table *tables,
                              struct part_chunk *ret)
{
    uint8_t copy[PART_CHUNK_BYTES];
    struct pen p = { .at = copy + sizeof tag_chunk, .reads = true };
    uint32_t n_bytes;

    memcpy(copy, src, sizeof copy);
    if (memcmp(copy, tag_chunk, sizeof tag_chunk) != 0)
        return "neither rows nor the footer where one must be";
    walk_chunk(&p, ret);
    if (ret->table >= header->n_tables)
        return "rows of a table that has no record";
    n_bytes = tables[ret->table].payload_bytes;
    if (ret->n_rows == 0 || ret->n_rows > part_rows_max(header->format, n_bytes))
        return "a count of rows is out of range";
    if (ret->n_bytes != ret->n_rows * part_row_bytes(header->format, n_bytes))
        return "a count of rows does not match their length";
    return NULL;
}

bool part_chunk_is_whole(const uint8_t head[static PART_CHUNK_BYTES],
                         const struct part_chunk *chunk, const uint8_t *rows)
{
    return chunk->crc == chunk_crc(head, chunk, rows);
}

void part_encode_row(uint8_t *dst, const struct row *row, uint32_t payload_bytes)
{
    uint64_t stamp = row_stamp(row_version(row), row_touches(row), 0);

    memcpy(dst, &row->key, 8);
    memcpy(dst + 8, &stamp, 8);
    memcpy(dst + PART_ROW_HEAD_BYTES, row->floats, payload_bytes);
}

void part_decode_row_head(const uint8_t *src, uint32_t format, uint64_t *ret_key,
                          uint64_t *ret_stamp)
{
    uint64_t version;

    memcpy(ret_key, src, 8);
    memcpy(ret_stamp, src + 8, 8);
    if (format != 1) {
        *ret_stamp &= ~UINT64_C(0xff);
        return;
    }
    version = *ret_stamp < ROW_VERSION_MAX ? *ret_stamp : ROW_VERSION_MAX;
    *ret_stamp = row_stamp(version, 0, 0);
}
