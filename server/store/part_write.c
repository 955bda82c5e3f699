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
                                                        .row_floats = t->row_floats });
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

/* Rows first .. first + n_rows - 1 of table number `id`. */
static int put_chunk(struct writer *w, const struct shard_table *table, uint32_t id,
                     uint64_t first, uint32_t n_rows)
{
    uint32_t row_bytes = part_row_bytes(table->row_floats);
    struct part_chunk chunk = { .table = id, .n_rows = n_rows, .n_bytes = n_rows * row_bytes };
    uint8_t head[PART_CHUNK_BYTES];
    int status;

    for (uint32_t i = 0; i < n_rows; i++)
        part_encode_row(w->rows + (size_t)i * row_bytes, table_row(table->rows, first + i),
                        table->row_floats);
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
        uint64_t n_rows = table_n_rows(table->rows);
        uint32_t at_once = part_rows_max(table->row_floats), n;

        for (uint64_t first = 0; first < n_rows && !status; first += n) {
            n = n_rows - first < at_once ? (uint32_t)(n_rows - first) : at_once;
            status = put_chunk(w, table, id, first, n);
        }
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
        uint32_t row_floats = shard_table(shard, i)->row_floats;
        size_t n_bytes = (size_t)part_rows_max(row_floats) * part_row_bytes(row_floats);

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
