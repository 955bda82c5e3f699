#include "server/durable/part_file.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/crc.h"
#include "common/mem.h"

/* A slow disk takes long to sync what has piled up in memory, and nobody shows life meanwhile: so it never
 * has more than this, and a buffer, to do at once. */
#define SYNC_BYTES (UINT64_C(64) << 20)

void part_file_init(struct part_file *f, const struct file_ops *files)
{
    f->files = files;
    f->fd = -1;
}

int part_file_reserve(struct part_file *f, uint32_t n_tables)
{
    f->head_bytes = PART_HEADER_BYTES + n_tables * (size_t)PART_TABLE_BYTES;
    f->head = mem_try_alloc(f->head_bytes);
    return f->head ? 0 : -ENOMEM;
}

uint8_t *part_file_begin(struct part_file *f, const struct part_header *header)
{
    assert(f->head_bytes == PART_HEADER_BYTES + header->n_tables * (size_t)PART_TABLE_BYTES);
    part_encode_header(f->head, header);
    f->totals.n_tables = header->n_tables;
    f->facts = (struct part_facts){ .shard = header->identity.shard,
                                    .version = header->version,
                                    .first = header->first,
                                    .is_delta = header->base != 0 };
    return f->head + PART_HEADER_BYTES;
}

void part_file_deinit(struct part_file *f)
{
    assert(f->fd < 0);
    free(f->head);
    f->head = NULL;
}

static int fail(struct part_file *f, int status, const char *what)
{
    return err_set(&f->fault, status, "cannot %s at byte %llu: %s: %.160s", what,
                   (unsigned long long)f->totals.n_bytes, status_text(status), f->path);
}

static int put(struct part_file *f, const void *bytes, size_t n_bytes)
{
    int status = f->files->write_all(f->files->state, f->fd, bytes, n_bytes);

    if (status)
        return fail(f, status, "write");
    f->totals.n_bytes += n_bytes;
    return 0;
}

static int sync(struct part_file *f)
{
    int status = f->files->sync(f->files->state, f->fd);

    f->n_synced = f->totals.n_bytes;
    return status ? fail(f, status, "sync") : 0;
}

/* The file and its head, unless they are there. */
static int make(struct part_file *f)
{
    int status;

    if (f->is_made)
        return 0;
    status = f->files->create(f->files->state, f->path, &f->fd);
    if (status) {
        f->fd = -1;
        return fail(f, status, "create");
    }
    f->is_made = true;
    f->totals.crc = crc_extend(0, f->head, f->head_bytes);
    return put(f, f->head, f->head_bytes);
}

static void seal(struct part_file *f, const struct part_file_chunk *c, uint8_t *bytes)
{
    uint8_t *head = bytes + c->at - PART_CHUNK_BYTES;

    part_encode_chunk(head, &c->chunk, bytes + c->at);
    f->totals.crc = crc_extend(f->totals.crc, head, PART_CHUNK_BYTES);
    if (c->chunk.what == PART_ROWS)
        f->totals.n_rows += c->chunk.n_items;
    else
        f->totals.n_gone += c->chunk.n_items; /* of STATE 0 */
}

static int write_chunks(struct part_file *f, const struct part_file_chunk *chunks,
                        uint32_t n_chunks, uint8_t *bytes, size_t n_bytes)
{
    int status = make(f);

    if (status)
        return status;
    for (uint32_t i = 0; i < n_chunks; i++)
        seal(f, &chunks[i], bytes);
    status = put(f, bytes, n_bytes);
    if (!status && f->totals.n_bytes - f->n_synced >= SYNC_BYTES)
        status = sync(f);
    return status;
}

/* The fault, again. */
static int tell(const struct part_file *f, struct err *err)
{
    return f->fault.status ? err_set(err, f->fault.status, "%s", f->fault.text) : 0;
}

int part_file_write(struct part_file *f, const struct part_file_chunk *chunks,
                    uint32_t n_chunks, uint8_t *bytes, size_t n_bytes, struct err *err)
{
    if (!f->fault.status)
        (void)write_chunks(f, chunks, n_chunks, bytes, n_bytes);
    return tell(f, err);
}

static int put_footer(struct part_file *f)
{
    uint8_t bytes[PART_FOOTER_BYTES];

    part_encode_footer(bytes, &f->totals);
    f->facts.n_rows = f->totals.n_rows;
    f->facts.n_gone = f->totals.n_gone;
    f->facts.through = f->totals.through;
    f->facts.crc = crc_extend(f->totals.crc, bytes, sizeof bytes);
    f->facts.n_bytes = f->totals.n_bytes + sizeof bytes;
    return put(f, bytes, sizeof bytes);
}

static int close_file(struct part_file *f)
{
    int status = f->files->close(f->files->state, f->fd);

    f->fd = -1;
    return status ? fail(f, status, "close") : 0;
}

static int finish(struct part_file *f)
{
    int status = make(f);

    if (!status)
        status = put_footer(f);
    if (!status)
        status = sync(f);
    if (!status)
        status = close_file(f);
    return status;
}

int part_file_close(struct part_file *f, uint64_t through, uint64_t last_version,
                    struct part_facts *ret, struct err *err)
{
    f->totals.through = through;
    f->totals.last_version = last_version;
    if (!f->fault.status)
        (void)finish(f);
    if (f->fault.status)
        part_file_discard(f);
    else
        *ret = f->facts;
    return tell(f, err);
}

/* Nobody can be told of a failure here, and nothing depends on it: without a manifest it counts for nothing. */
void part_file_discard(struct part_file *f)
{
    if (f->fd >= 0)
        (void)f->files->close(f->files->state, f->fd);
    f->fd = -1;
    if (f->is_made)
        (void)f->files->unlink(f->files->state, f->path);
    f->is_made = false;
}
