#include "server/checkpoint/shard_file_reader.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc32c.h"
#include "common/memory.h"

static int corrupt(struct shard_file_reader *r, uint64_t offset, const char *reason)
{
    return err_set(r->err, PS_ECORRUPT, "at byte %llu, %s: %.160s", (unsigned long long)offset,
                   reason, r->path);
}

/* The next n_bytes of the file, into dst. */
static int read_bytes(struct shard_file_reader *r, void *dst, size_t n_bytes)
{
    size_t done = 0;

    while (done < n_bytes) {
        int64_t n =
            r->files->read(r->files->state, r->fd, (uint8_t *)dst + done, n_bytes - done);

        if (n < 0)
            return err_set(r->err, (int)n, "cannot read at byte %llu: %s: %s",
                           (unsigned long long)r->facts.n_bytes + done, status_text((int)n),
                           r->path);
        if (n == 0)
            return corrupt(r, r->facts.n_bytes + done, "the file ends too early");
        done += (size_t)n;
    }
    r->facts.n_bytes += n_bytes;
    return 0;
}

/* The same of a header, a record, or the head of a chunk: what the file's checksum covers. */
static int read_counted(struct shard_file_reader *r, void *dst, size_t n_bytes)
{
    int status = read_bytes(r, dst, n_bytes);

    if (!status)
        r->facts.crc = crc32c_extend(r->facts.crc, dst, n_bytes);
    return status;
}

/* --- header and tables --- */

static int read_header(struct shard_file_reader *r)
{
    uint8_t bytes[SHARD_FILE_HEADER_BYTES];
    const char *reason;
    uint32_t format;
    int status = read_counted(r, bytes, SHARD_FILE_HEADER_1_BYTES);

    if (status)
        return status;
    reason = shard_file_decode_format(bytes, &format);
    if (!reason)
        status = read_counted(r, bytes + SHARD_FILE_HEADER_1_BYTES,
                              shard_file_header_bytes(format) - SHARD_FILE_HEADER_1_BYTES);
    if (status)
        return status;
    if (!reason)
        reason = shard_file_decode_header(bytes, format, &r->header);
    if (reason)
        return corrupt(r, 0, reason);
    r->facts.version = r->header.version;
    r->facts.shard = r->header.identity.shard;
    r->facts.first = r->header.first;
    r->facts.is_delta = r->header.base != 0;
    return 0;
}

/* *id: of the record's first table; then of the next record's. */
static int read_table(struct shard_file_reader *r, uint32_t i, uint32_t *id)
{
    uint8_t bytes[SHARD_FILE_TABLE_BYTES];
    uint64_t offset = r->facts.n_bytes;
    uint32_t format = r->header.format;
    struct err why;
    const char *reason;
    int status = read_counted(r, bytes, shard_file_table_bytes(format));

    if (status)
        return status;
    reason = shard_file_decode_table(bytes, format, &r->tables[i], &why);
    if (reason)
        return corrupt(r, offset, reason);
    r->tables[i].id = *id;
    *id += r->tables[i].n_dropped ? r->tables[i].n_dropped : 1;
    return *id > SHARD_TABLE_NUMBERS_MAX
               ? corrupt(r, offset, "more tables than a shard can have")
               : 0;
}

#define TABLES_STEP 1024u

/* Memory grows with the records that have come, not with those that are promised. */
static int reserve_tables(struct shard_file_reader *r, uint32_t n, uint32_t *cap)
{
    uint32_t more = *cap ? 2 * *cap : TABLES_STEP;
    struct shard_file_table *tables;

    if (n < *cap)
        return 0;
    tables = memory_try_alloc(more * sizeof *tables);
    if (!tables)
        return err_set(r->err, -ENOMEM, "no memory to read %s", r->path);
    if (n)
        memcpy(tables, r->tables, n * sizeof *tables);
    free(r->tables);
    r->tables = tables;
    *cap = more;
    return 0;
}

static int read_tables(struct shard_file_reader *r)
{
    uint32_t n = r->header.n_tables, cap = 0, id = 0;
    int status = reserve_tables(r, 0, &cap);

    for (uint32_t i = 0; i < n && !status; i++) {
        status = reserve_tables(r, i, &cap);
        if (!status)
            status = read_table(r, i, &id);
    }
    if (status)
        return status;
    r->n_rows = memory_try_alloc((n + 1) * sizeof *r->n_rows);
    return r->n_rows ? 0 : err_set(r->err, -ENOMEM, "no memory to read %s", r->path);
}

int shard_file_reader_open(struct shard_file_reader *r, const struct file_ops *files,
                           const char *path, struct err *err)
{
    int status;

    *r = (struct shard_file_reader){ .files = files, .path = path, .fd = -1, .err = err };
    status = files->open_read(files->state, path, &r->fd);
    if (status) {
        r->fd = -1;
        return err_set(err, status, "cannot open: %s: %s", status_text(status), path);
    }
    status = read_header(r);
    if (!status)
        status = read_tables(r);
    if (status)
        shard_file_reader_close(r);
    return status;
}

/* --- footer --- */

/* Formats 1 and 2 said in front how many rows there are. */
static const char *check_table_counts(const struct shard_file_reader *r)
{
    if (r->header.format >= 3)
        return NULL;
    for (uint32_t i = 0; i < r->header.n_tables; i++)
        if (r->n_rows[i] < r->tables[i].n_rows)
            return "a table has fewer rows than its record says";
    return NULL;
}

/* before: what the file was up to here. */
static const char *check_footer(const struct shard_file_reader *r,
                                const struct shard_file_facts *before,
                                const struct shard_file_footer *footer)
{
    if (footer->n_bytes != before->n_bytes || footer->crc != before->crc ||
        footer->n_rows != before->n_rows || footer->n_gone != before->n_gone ||
        footer->n_tables != r->header.n_tables)
        return "the footer's totals are not those of the file";
    if (r->header.format < 3)
        return check_table_counts(r);
    if (r->state_bytes != r->header.state_bytes)
        return "there is less state than the header says";
    if (r->last_version > footer->last_version || r->header.version > footer->last_version ||
        footer->last_version > ROW_VERSION_MAX)
        return "a row is newer than the shard";
    if (footer->through < r->header.first || footer->through > SHARD_FILE_COUNT_MAX)
        return "it ends before it begins";
    return NULL;
}

/* The footer, of which the first bytes stand in `bytes` already, and nothing behind it. */
static int read_footer(struct shard_file_reader *r,
                       uint8_t bytes[static SHARD_FILE_FOOTER_BYTES],
                       const struct shard_file_facts *before)
{
    struct shard_file_footer footer;
    const char *reason;
    uint8_t more;
    int64_t n;
    uint32_t format = r->header.format;
    int status = read_counted(r, bytes + SHARD_FILE_CHUNK_BYTES,
                              shard_file_footer_bytes(format) - SHARD_FILE_CHUNK_BYTES);

    if (status)
        return status;
    reason = shard_file_decode_footer(bytes, format, &footer);
    if (!reason)
        reason = check_footer(r, before, &footer);
    if (reason)
        return corrupt(r, before->n_bytes, reason);
    r->facts.through = footer.through;
    r->facts.last_version = format < 3 ? r->header.version : footer.last_version;
    n = r->files->read(r->files->state, r->fd, &more, 1);
    if (n < 0)
        return err_set(r->err, (int)n, "cannot read: %s: %s", status_text((int)n), r->path);
    return n == 0 ? 0 : corrupt(r, r->facts.n_bytes, "there are bytes behind the footer");
}

/* --- chunks --- */

/* The chunk's place: STATE, GONE, ROWS, each in its measure. */
static const char *check_order(struct shard_file_reader *r,
                               const struct shard_file_chunk *chunk)
{
    if (chunk->what < r->what)
        return "chunks are not in their order";
    r->what = chunk->what;
    if (chunk->what == SHARD_FILE_STATE) {
        r->state_bytes += chunk->n_bytes;
        return r->state_bytes > r->header.state_bytes
                   ? "there is more state than the header says"
                   : NULL;
    }
    if (chunk->what == SHARD_FILE_GONE && !r->header.base)
        return "rows that went in a full checkpoint";
    return NULL;
}

/* Keys and rows begin with their key. */
static const char *check_keys(const struct shard_file_reader *r,
                              const struct shard_file_reader_chunk *chunk)
{
    const struct table_spec *spec = &r->tables[chunk->table].spec;
    uint64_t key;

    if (spec->kind != TABLE_SPEC_DENSE)
        return NULL;
    for (uint32_t i = 0; i < chunk->n_items; i++) {
        memcpy(&key, chunk->bytes + i * chunk->item_bytes, sizeof key);
        if (key >= table_spec_n_blocks(spec))
            return "a dense table has a row behind its last block";
    }
    return NULL;
}

static const char *count_rows(struct shard_file_reader *r,
                              const struct shard_file_reader_chunk *chunk)
{
    uint64_t key, stamp, last = r->last_version;

    for (uint32_t i = 0; i < chunk->n_items; i++) {
        (void)shard_file_reader_row(chunk, i, &key, &stamp);
        last = stamp >> 16 > last ? stamp >> 16 : last;
    }
    r->last_version = last;
    r->facts.n_rows += chunk->n_items;
    r->n_rows[chunk->table] += chunk->n_items;
    if (r->header.format >= 3)
        return NULL;
    if (last > r->header.version)
        return "a row is newer than the shard";
    if (r->n_rows[chunk->table] > r->tables[chunk->table].n_rows)
        return "a table has more rows than its record says";
    return NULL;
}

static int reserve(struct shard_file_reader *r, size_t n_bytes)
{
    if (n_bytes <= r->bytes_cap)
        return 0;
    free(r->bytes);
    r->bytes_cap = 0;
    r->bytes = memory_try_alloc(n_bytes);
    if (!r->bytes)
        return err_set(r->err, -ENOMEM, "no memory to read %s", r->path);
    r->bytes_cap = n_bytes;
    return 0;
}

/* What a chunk that is whole holds, with its rows as they are now. */
static void open_chunk(struct shard_file_reader *r, const struct shard_file_chunk *chunk,
                       struct shard_file_reader_chunk *ret)
{
    *ret = (struct shard_file_reader_chunk){ .what = chunk->what,
                                             .table = chunk->table,
                                             .n_items = chunk->n_items,
                                             .n_bytes = chunk->n_bytes,
                                             .bytes = r->bytes };
    if (chunk->what == SHARD_FILE_GONE)
        ret->item_bytes = sizeof(uint64_t);
    if (chunk->what != SHARD_FILE_ROWS)
        return;
    ret->item_bytes =
        shard_file_row_bytes(SHARD_FILE_FORMAT, r->tables[chunk->table].payload_bytes);
    ret->n_bytes = chunk->n_items * ret->item_bytes;
    if (r->header.format == 1)
        shard_file_convert_rows_1(r->bytes, chunk->n_items,
                                  r->tables[chunk->table].payload_bytes);
}

static int read_chunk(struct shard_file_reader *r, const uint8_t *head, uint64_t offset,
                      struct shard_file_reader_chunk *ret)
{
    struct shard_file_chunk chunk;
    const char *reason = shard_file_decode_chunk(head, &r->header, r->tables, &chunk);
    int status;

    if (!reason)
        reason = check_order(r, &chunk);
    if (reason)
        return corrupt(r, offset, reason);
    status = reserve(r, chunk.n_bytes);
    if (!status)
        status = r->header.format < 3 ? read_counted(r, r->bytes, chunk.n_bytes)
                                      : read_bytes(r, r->bytes, chunk.n_bytes);
    if (status)
        return status;
    if (!shard_file_chunk_is_whole(head, &chunk, r->bytes))
        return corrupt(r, offset, "a chunk fails its checksum");
    open_chunk(r, &chunk, ret);
    if (chunk.what != SHARD_FILE_STATE)
        reason = check_keys(r, ret);
    if (chunk.what == SHARD_FILE_GONE)
        r->facts.n_gone += chunk.n_items;
    else if (chunk.what == SHARD_FILE_ROWS && !reason)
        reason = count_rows(r, ret);
    return reason ? corrupt(r, offset, reason) : 1;
}

int shard_file_reader_next(struct shard_file_reader *r, struct shard_file_reader_chunk *ret)
{
    _Static_assert(SHARD_FILE_FOOTER_1_BYTES >= SHARD_FILE_CHUNK_BYTES,
                   "a chunk's head is read first");
    uint8_t bytes[SHARD_FILE_FOOTER_BYTES];
    struct shard_file_facts before = r->facts;
    int status = read_counted(r, bytes, SHARD_FILE_CHUNK_BYTES);

    if (status)
        return status;
    if (memcmp(bytes, "END\n", 4) == 0)
        return read_footer(r, bytes, &before);
    return read_chunk(r, bytes, before.n_bytes, ret);
}

const void *shard_file_reader_row(const struct shard_file_reader_chunk *chunk, uint32_t i,
                                  uint64_t *ret_key, uint64_t *ret_stamp)
{
    const uint8_t *row = chunk->bytes + i * chunk->item_bytes;

    assert(chunk->what == SHARD_FILE_ROWS && i < chunk->n_items);
    memcpy(ret_key, row, 8);
    memcpy(ret_stamp, row + 8, 8);
    *ret_stamp &= ~UINT64_C(0xff);
    return row + SHARD_FILE_ROW_HEAD_BYTES;
}

void shard_file_reader_close(struct shard_file_reader *r)
{
    if (r->fd >= 0)
        r->files->close(r->files->state, r->fd);
    free(r->tables);
    free(r->n_rows);
    free(r->bytes);
    r->fd = -1;
    r->tables = NULL;
    r->n_rows = NULL;
    r->bytes = NULL;
}
