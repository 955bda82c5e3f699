#include "server/store/part_write.h"

#include <errno.h>
#include <stdlib.h>

#include "common/crc.h"
#include "common/mem.h"

struct writer {
    const struct file_ops *files;
    const char *path;
    int fd;
    uint64_t n_bytes, n_rows; /* written so far */
    uint32_t crc;             /* of them */
    uint64_t n_synced;        /* so many of the bytes are on the disk */
    uint8_t *rows;            /* owned: one chunk of them */
    void (*progress)(void *arg);
    void *arg;
    struct err *err;
};

static int put(struct writer *w, const void *bytes, size_t n_bytes)
{
    int status = w->files->write_all(w->files->state, w->fd, bytes, n_bytes);

    if (status)
        return err_set(w->err, status, "cannot write at byte %llu: %s: %s",
                       (unsigned long long)w->n_bytes, status_text(status), w->path);
    w->crc = crc_extend(w->crc, bytes, n_bytes);
    w->n_bytes += n_bytes;
    return 0;
}

static int put_head(struct writer *w, uint64_t number, uint32_t shard_index,
                    struct shard *shard) ON_SHARD
{
    uint8_t bytes[PART_HEADER_BYTES], record[PART_TABLE_BYTES];
    uint32_t n_tables = shard_n_tables(shard);
    int status;

    part_encode_header(bytes, &(struct part_header){ .number = number,
                                                     .version = shard_version(shard),
                                                     .shard_index = shard_index,
                                                     .n_tables = n_tables });
    status = put(w, bytes, sizeof bytes);
    for (uint32_t i = 0; i < n_tables && !status; i++) {
        const struct shard_table *t = shard_table(shard, i);

        part_encode_table(record, &(struct part_table){ .spec = t->spec,
                                                        .n_pushes = t->n_pushes,
                                                        .n_rows = table_n_rows(t->rows),
                                                        .payload_bytes = t->payload_bytes });
        status = put(w, record, sizeof record);
    }
    return status;
}

static int sync(struct writer *w)
{
    int status = w->files->sync(w->files->state, w->fd);

    w->n_synced = w->n_bytes;
    return status ? err_set(w->err, status, "cannot sync: %s: %s", status_text(status), w->path)
                  : 0;
}

/* The rows from number *at on, as many as a chunk takes; *at: where the next ones begin. */
static uint32_t collect(struct writer *w, const struct shard_table *table, uint64_t *at)
{
    uint32_t row_bytes = part_row_bytes(PART_FORMAT, table->payload_bytes);
    uint32_t n_rows = 0, n_max = part_rows_max(PART_FORMAT, table->payload_bytes);
    uint64_t n_numbers = table_n_numbers(table->rows);

    for (; *at < n_numbers && n_rows < n_max; ++*at) {
        const struct row *row = table_row(table->rows, *at);

        if (row)
            part_encode_row(w->rows + (size_t)n_rows++ * row_bytes, row, table->payload_bytes);
    }
    return n_rows;
}

/* The n_rows that collect() has encoded, of table number `id`. */
static int put_chunk(struct writer *w, const struct shard_table *table, uint32_t id,
                     uint32_t n_rows)
{
    uint32_t row_bytes = part_row_bytes(PART_FORMAT, table->payload_bytes);
    struct part_chunk chunk = { .table = id, .n_rows = n_rows, .n_bytes = n_rows * row_bytes };
    uint8_t head[PART_CHUNK_BYTES];
    int status;

    part_encode_chunk(head, &chunk, w->rows);
    status = put(w, head, sizeof head);
    if (!status)
        status = put(w, w->rows, chunk.n_bytes);
    w->n_rows += n_rows;
    if (!status && w->n_bytes - w->n_synced >= PART_WRITE_SYNC_BYTES)
        status = sync(w);
    if (w->progress)
        w->progress(w->arg);
    return status;
}

static int put_rows(struct writer *w, struct shard *shard) ON_SHARD
{
    uint32_t n_tables = shard_n_tables(shard);
    int status = 0;

    for (uint32_t id = 0; id < n_tables && !status; id++) {
        const struct shard_table *table = shard_table(shard, id);
        uint64_t at = 0;
        uint32_t n_rows;

        while (!status && (n_rows = collect(w, table, &at)) != 0)
            status = put_chunk(w, table, id, n_rows);
    }
    return status;
}

static int put_footer(struct writer *w, uint32_t n_tables)
{
    uint8_t bytes[PART_FOOTER_BYTES];

    part_encode_footer(bytes, &(struct part_footer){ .n_tables = n_tables,
                                                     .n_rows = w->n_rows,
                                                     .n_bytes = w->n_bytes,
                                                     .crc = w->crc });
    return put(w, bytes, sizeof bytes);
}

/* The longest chunk of any table. */
static size_t chunk_bytes_max(struct shard *shard) ON_SHARD
{
    uint32_t n_tables = shard_n_tables(shard);
    size_t max = 1;

    for (uint32_t i = 0; i < n_tables; i++) {
        uint32_t payload_bytes = shard_table(shard, i)->payload_bytes;
        size_t n_bytes = (size_t)part_rows_max(PART_FORMAT, payload_bytes) *
                         part_row_bytes(PART_FORMAT, payload_bytes);

        max = n_bytes > max ? n_bytes : max;
    }
    return max;
}

/* What follows the last byte: until both have worked the file may not be there after a power
 * cut. */
static int finish(struct writer *w, int status)
{
    int closed;

    if (!status)
        status = sync(w);
    closed = w->files->close(w->files->state, w->fd);
    if (!status && closed)
        status = err_set(w->err, closed, "cannot close: %s: %s", status_text(closed), w->path);
    return status;
}

int part_write(const struct file_ops *files, const char *path, uint64_t number,
               uint32_t shard_index, struct shard *shard, void (*progress)(void *), void *arg,
               struct part_facts *ret, struct err *err)
{
    struct writer w = {
        .files = files, .path = path, .progress = progress, .arg = arg, .err = err
    };
    int status;

    w.rows = mem_try_alloc(chunk_bytes_max(shard));
    if (!w.rows)
        return err_set(err, -ENOMEM, "no memory to write %s", path);
    status = files->create(files->state, path, &w.fd);
    if (status) {
        free(w.rows);
        return err_set(err, status, "cannot create: %s: %s", status_text(status), path);
    }
    status = put_head(&w, number, shard_index, shard);
    if (!status)
        status = put_rows(&w, shard);
    if (!status)
        status = put_footer(&w, shard_n_tables(shard));
    status = finish(&w, status);
    free(w.rows);
    if (status) {
        /* The room on the disk is worth a try, and no more. */
        files->unlink(files->state, path);
        return status;
    }
    *ret = (struct part_facts){
        .n_bytes = w.n_bytes, .crc = w.crc, .n_rows = w.n_rows, .version = shard_version(shard)
    };
    return 0;
}
