#include "server/store/part_read.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc.h"
#include "common/mem.h"

static int corrupt(struct part_reader *r, uint64_t offset, const char *reason)
{
    return err_set(r->err, PS_ECORRUPT, "at byte %llu, %s: %.160s", (unsigned long long)offset,
                   reason, r->path);
}

/* The next n_bytes of the file, into dst. */
static int take(struct part_reader *r, void *dst, size_t n_bytes)
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
    r->facts.crc = crc_extend(r->facts.crc, dst, n_bytes);
    r->facts.n_bytes += n_bytes;
    return 0;
}

static int take_header(struct part_reader *r)
{
    uint8_t bytes[PART_HEADER_BYTES];
    const char *reason;
    int status = take(r, bytes, sizeof bytes);

    if (status)
        return status;
    reason = part_decode_header(bytes, &r->header);
    if (reason)
        return corrupt(r, 0, reason);
    r->facts.version = r->header.version;
    return 0;
}

/* One record; *chunk_bytes grows to what a chunk of this table may hold. */
static int take_table(struct part_reader *r, uint32_t i, size_t *chunk_bytes)
{
    uint8_t bytes[PART_TABLE_BYTES];
    uint64_t offset = r->facts.n_bytes;
    struct part_table *t = &r->tables[i];
    struct err why;
    const char *reason;
    size_t n_bytes;
    uint32_t format = r->header.format;
    int status = take(r, bytes, part_table_bytes(format));

    if (status)
        return status;
    reason = part_decode_table(bytes, format, t, &why);
    if (reason)
        return corrupt(r, offset, reason);
    r->rows_left[i] = t->n_rows;
    n_bytes = (size_t)part_rows_max(format, t->payload_bytes) *
              part_row_bytes(format, t->payload_bytes);
    if (n_bytes > *chunk_bytes)
        *chunk_bytes = n_bytes;
    return 0;
}

static int take_tables(struct part_reader *r)
{
    uint32_t n = r->header.n_tables;
    size_t chunk_bytes = 1;
    int status = 0;

    r->tables = mem_try_alloc((n + 1) * sizeof *r->tables);
    r->rows_left = mem_try_alloc((n + 1) * sizeof *r->rows_left);
    if (!r->tables || !r->rows_left)
        return err_set(r->err, -ENOMEM, "no memory to read %s", r->path);
    for (uint32_t i = 0; i < n && !status; i++)
        status = take_table(r, i, &chunk_bytes);
    if (status)
        return status;
    r->rows = mem_try_alloc(chunk_bytes);
    return r->rows ? 0 : err_set(r->err, -ENOMEM, "no memory to read %s", r->path);
}

int part_read_open(struct part_reader *r, const struct file_ops *files, const char *path,
                   struct err *err)
{
    int status;

    *r = (struct part_reader){ .files = files, .path = path, .fd = -1, .err = err };
    status = files->open_read(files->state, path, &r->fd);
    if (status) {
        r->fd = -1;
        return err_set(err, status, "cannot open: %s: %s", status_text(status), path);
    }
    status = take_header(r);
    if (!status)
        status = take_tables(r);
    if (status)
        part_read_close(r);
    return status;
}

/* The footer, of which `first` bytes stand in `bytes` already, and nothing behind it. */
static int take_footer(struct part_reader *r, uint8_t bytes[static PART_FOOTER_BYTES],
                       size_t first, const struct part_facts *before)
{
    struct part_footer footer;
    const char *reason;
    uint8_t more;
    int64_t n;
    int status = take(r, bytes + first, PART_FOOTER_BYTES - first);

    if (status)
        return status;
    reason = part_decode_footer(bytes, &footer);
    if (!reason && (footer.n_bytes != before->n_bytes || footer.crc != before->crc ||
                    footer.n_rows != before->n_rows || footer.n_tables != r->header.n_tables))
        reason = "the footer's totals are not those of the file";
    for (uint32_t i = 0; i < r->header.n_tables && !reason; i++)
        if (r->rows_left[i])
            reason = "a table has fewer rows than its record says";
    if (reason)
        return corrupt(r, before->n_bytes, reason);
    n = r->files->read(r->files->state, r->fd, &more, 1);
    if (n < 0)
        return err_set(r->err, (int)n, "cannot read: %s: %s", status_text((int)n), r->path);
    return n == 0 ? 0 : corrupt(r, r->facts.n_bytes, "there are bytes behind the footer");
}

/* A dense table's keys count its blocks, and no row is newer than its shard. */
static const char *check_rows(const struct part_reader *r, const struct part_rows *rows)
{
    const struct table_spec *spec = &r->tables[rows->table].spec;
    uint64_t key, stamp;

    for (uint32_t i = 0; i < rows->n_rows; i++) {
        part_read_row(rows, i, &key, &stamp);
        if (spec->kind == SPEC_DENSE && key >= spec_n_blocks(spec))
            return "a dense table has a row behind its last block";
        if (stamp >> 16 > r->header.version)
            return "a row is newer than the shard";
    }
    return NULL;
}

static int take_chunk(struct part_reader *r, const uint8_t *head, uint64_t offset,
                      struct part_rows *ret)
{
    struct part_chunk chunk;
    const char *reason = part_decode_chunk(head, &r->header, r->tables, &chunk);
    int status;

    if (reason)
        return corrupt(r, offset, reason);
    status = take(r, r->rows, chunk.n_bytes);
    if (status)
        return status;
    *ret = (struct part_rows){ .format = r->header.format,
                               .table = chunk.table,
                               .n_rows = chunk.n_rows,
                               .row_bytes = chunk.n_bytes / chunk.n_rows,
                               .bytes = r->rows };
    if (!part_chunk_is_whole(head, &chunk, r->rows))
        reason = "a chunk of rows fails its checksum";
    else if (chunk.n_rows > r->rows_left[chunk.table])
        reason = "a table has more rows than its record says";
    else
        reason = check_rows(r, ret);
    if (reason)
        return corrupt(r, offset, reason);
    r->rows_left[chunk.table] -= chunk.n_rows;
    r->facts.n_rows += chunk.n_rows;
    return 1;
}

int part_read_rows(struct part_reader *r, struct part_rows *ret)
{
    _Static_assert(PART_FOOTER_BYTES >= PART_CHUNK_BYTES, "the head of a chunk is read first");
    uint8_t bytes[PART_FOOTER_BYTES];
    struct part_facts before = r->facts;
    int status = take(r, bytes, PART_CHUNK_BYTES);

    if (status)
        return status;
    if (memcmp(bytes, "END\n", 4) == 0)
        return take_footer(r, bytes, PART_CHUNK_BYTES, &before);
    return take_chunk(r, bytes, before.n_bytes, ret);
}

const void *part_read_row(const struct part_rows *rows, uint32_t i, uint64_t *ret_key,
                          uint64_t *ret_stamp)
{
    const uint8_t *row = rows->bytes + (size_t)i * rows->row_bytes;

    assert(i < rows->n_rows);
    part_decode_row_head(row, rows->format, ret_key, ret_stamp);
    return row + part_row_head_bytes(rows->format);
}

void part_read_close(struct part_reader *r)
{
    if (r->fd >= 0)
        r->files->close(r->files->state, r->fd);
    free(r->tables);
    free(r->rows_left);
    free(r->rows);
    r->fd = -1;
    r->tables = NULL;
    r->rows_left = NULL;
    r->rows = NULL;
}
