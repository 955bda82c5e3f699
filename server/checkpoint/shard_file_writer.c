#include "server/checkpoint/shard_file_writer.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc32c.h"
#include "common/memory.h"

#define N_BUFFERS 2u
#define PIECES_MAX 64u
#define SLICES 4u /* in a buffer, at least */

_Static_assert(SLICES *SNAPSHOT_SCAN_BYTES == SHARD_FILE_CHUNK_MAX_BYTES,
               "a buffer may be one chunk");

/* A slow disk takes long to sync what has piled up in memory, and nobody shows life meanwhile: so it never
 * has more than this, and a buffer, to do at once. */
#define SYNC_BYTES (UINT64_C(64) << 20)

/* --- the file --- */

/* A chunk in a buffer: its n_bytes stand at `at`, behind SHARD_FILE_CHUNK_BYTES for its head. */
struct buffered_chunk {
    struct shard_file_chunk chunk;
    size_t at;
};

struct target_file {
    const struct file_ops *files; /* borrowed */
    char path[CHECKPOINT_FILE_PATH_MAX];
    uint8_t *head; /* owned: header and table records */
    size_t head_bytes;
    int fd;       /* -1: none is open */
    bool is_made; /* with its head */
    struct shard_file_facts facts;
    struct shard_file_footer totals; /* of what is written */
    uint64_t n_synced;               /* so many of the bytes are on the disk */
    struct err fault;                /* the first; status 0: none */
};

static void init_file(struct target_file *f, const struct file_ops *files)
{
    f->files = files;
    f->fd = -1;
}

static int reserve_head(struct target_file *f, uint32_t n_tables)
{
    f->head_bytes = SHARD_FILE_HEADER_BYTES + n_tables * (size_t)SHARD_FILE_TABLE_BYTES;
    f->head = memory_try_alloc(f->head_bytes);
    return f->head ? 0 : -ENOMEM;
}

static uint8_t *begin_head(struct target_file *f, const struct shard_file_header *header)
{
    assert(f->head_bytes ==
           SHARD_FILE_HEADER_BYTES + header->n_tables * (size_t)SHARD_FILE_TABLE_BYTES);
    shard_file_encode_header(f->head, header);
    f->totals.n_tables = header->n_tables;
    f->facts = (struct shard_file_facts){ .shard = header->identity.shard,
                                          .version = header->version,
                                          .first = header->first,
                                          .is_delta = header->base != 0 };
    return f->head + SHARD_FILE_HEADER_BYTES;
}

static void deinit_file(struct target_file *f)
{
    assert(f->fd < 0);
    free(f->head);
    f->head = NULL;
}

static int fail(struct target_file *f, int status, const char *what)
{
    return err_set(&f->fault, status, "cannot %s at byte %llu: %s: %.160s", what,
                   (unsigned long long)f->totals.n_bytes, status_text(status), f->path);
}

static int write_bytes(struct target_file *f, const void *bytes, size_t n_bytes)
{
    int status = f->files->write_all(f->files->state, f->fd, bytes, n_bytes);

    if (status)
        return fail(f, status, "write");
    f->totals.n_bytes += n_bytes;
    return 0;
}

static int sync(struct target_file *f)
{
    int status = f->files->sync(f->files->state, f->fd);

    f->n_synced = f->totals.n_bytes;
    return status ? fail(f, status, "sync") : 0;
}

/* The file and its head, unless they are there. */
static int make(struct target_file *f)
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
    f->totals.crc = crc32c_extend(0, f->head, f->head_bytes);
    return write_bytes(f, f->head, f->head_bytes);
}

static void seal(struct target_file *f, const struct buffered_chunk *c, uint8_t *bytes)
{
    uint8_t *head = bytes + c->at - SHARD_FILE_CHUNK_BYTES;

    shard_file_encode_chunk(head, &c->chunk, bytes + c->at);
    f->totals.crc = crc32c_extend(f->totals.crc, head, SHARD_FILE_CHUNK_BYTES);
    if (c->chunk.what == SHARD_FILE_ROWS)
        f->totals.n_rows += c->chunk.n_items;
    else
        f->totals.n_gone += c->chunk.n_items; /* of STATE 0 */
}

static int write_chunks(struct target_file *f, const struct buffered_chunk *chunks,
                        uint32_t n_chunks, uint8_t *bytes, size_t n_bytes)
{
    int status = make(f);

    if (status)
        return status;
    for (uint32_t i = 0; i < n_chunks; i++)
        seal(f, &chunks[i], bytes);
    status = write_bytes(f, bytes, n_bytes);
    if (!status && f->totals.n_bytes - f->n_synced >= SYNC_BYTES)
        status = sync(f);
    return status;
}

/* The fault, again. */
static int report_fault(const struct target_file *f, struct err *err)
{
    return f->fault.status ? err_set(err, f->fault.status, "%s", f->fault.text) : 0;
}

static int write_buffer(struct target_file *f, const struct buffered_chunk *chunks,
                        uint32_t n_chunks, uint8_t *bytes, size_t n_bytes, struct err *err)
{
    if (!f->fault.status)
        (void)write_chunks(f, chunks, n_chunks, bytes, n_bytes);
    return report_fault(f, err);
}

static int put_footer(struct target_file *f)
{
    uint8_t bytes[SHARD_FILE_FOOTER_BYTES];

    shard_file_encode_footer(bytes, &f->totals);
    f->facts.n_rows = f->totals.n_rows;
    f->facts.n_gone = f->totals.n_gone;
    f->facts.through = f->totals.through;
    f->facts.crc = crc32c_extend(f->totals.crc, bytes, sizeof bytes);
    f->facts.n_bytes = f->totals.n_bytes + sizeof bytes;
    return write_bytes(f, bytes, sizeof bytes);
}

static int close_file(struct target_file *f)
{
    int status = f->files->close(f->files->state, f->fd);

    f->fd = -1;
    return status ? fail(f, status, "close") : 0;
}

static int finish(struct target_file *f)
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

/* Nobody can be told of a failure here, and nothing depends on it: without a manifest it counts for nothing. */
static void discard_file(struct target_file *f)
{
    if (f->fd >= 0)
        (void)f->files->close(f->files->state, f->fd);
    f->fd = -1;
    if (f->is_made)
        (void)f->files->unlink(f->files->state, f->path);
    f->is_made = false;
}

static int finish_file(struct target_file *f, uint64_t through, uint64_t last_version,
                       struct shard_file_facts *ret, struct err *err)
{
    f->totals.through = through;
    f->totals.last_version = last_version;
    if (!f->fault.status)
        (void)finish(f);
    if (f->fault.status)
        discard_file(f);
    else
        *ret = f->facts;
    return report_fault(f, err);
}

/* --- the shard's side --- */

struct shard_file_writer_buffer {
    uint8_t *bytes; /* owned, the writer's buffer_bytes */
    size_t used;
    struct buffered_chunk pieces[PIECES_MAX];
    uint32_t n_pieces;
};

/* Buffers are filled, taken and given back in turn: number i, counted from 0, is buffers[i % 2], and
 * n_recycled <= n_taken <= n_filled <= n_recycled + 2. */
struct shard_file_writer {
    /* The shard's thread: */
    struct snapshot_scan *scan; /* owned until shard_file_writer_end() */
    struct shard_file_writer_buffer buffers[N_BUFFERS];
    size_t buffer_bytes, slice_bytes_max;
    uint64_t n_filled, n_taken, n_recycled;
    uint64_t n_bytes; /* in buffers that were given back */
    uint64_t n_read_bytes;
    bool is_read;
    uint64_t last_version; /* when it was read */
    uint32_t *records;     /* owned: of each table's id, the index of its record */
    uint32_t n_records;

    struct target_file file; /* whoever writes */
};

/* --- the first moment --- */

static void fill_header(const struct shard_file_writer_config *config,
                        const struct snapshot_scan *scan, uint64_t first,
                        struct shard_file_header *ret)
{
    struct snapshot_scan_facts facts;

    snapshot_scan_facts(scan, &facts);
    *ret = (struct shard_file_header){ .number = config->number,
                                       .version = facts.version,
                                       .shard_index = config->shard_index,
                                       .identity = config->identity,
                                       .first = first,
                                       .base = config->base,
                                       .base_version = facts.base,
                                       .state_bytes = facts.state_bytes };
}

/* How many tables from this one on were dropped. */
static uint32_t n_dropped(struct shard *shard, uint32_t id) ON_SHARD
{
    uint32_t n = 0;

    while (id + n < shard_n_tables(shard) && !shard_table(shard, id + n))
        n++;
    return n;
}

/* One record for each table, and one for each row of dropped ones. */
static int number_records(struct shard_file_writer *s, struct shard *shard) ON_SHARD
{
    uint32_t n_tables = shard_n_tables(shard), n;

    s->records = memory_try_alloc((n_tables + 1) * sizeof *s->records);
    if (!s->records)
        return -ENOMEM;
    for (uint32_t id = 0; id < n_tables; id += n, s->n_records++) {
        n = n_dropped(shard, id);
        s->records[id] = s->n_records;
        n = n ? n : 1;
    }
    return 0;
}

static void fill_record(const struct shard_file_writer *s, struct shard *shard, uint32_t id,
                        struct shard_file_table *ret) ON_SHARD
{
    const struct shard_table *t = shard_table(shard, id);

    *ret = (struct shard_file_table){ .spec = t->spec,
                                      .n_pushes = snapshot_scan_n_pushes(s->scan, id),
                                      .n_rows = table_n_rows(t->rows),
                                      .payload_bytes = t->payload_bytes };
}

/* The file's head, as it is at this moment. */
static void encode_head(struct shard_file_writer *s,
                        const struct shard_file_writer_config *config, struct shard *shard,
                        uint64_t first) ON_SHARD
{
    struct shard_file_header header;
    uint32_t n, n_tables = shard_n_tables(shard);
    uint8_t *at;

    fill_header(config, s->scan, first, &header);
    header.n_tables = s->n_records;
    if (shard_n_live_tables(shard) < n_tables)
        header.format = SHARD_FILE_FORMAT_DROP;
    at = begin_head(&s->file, &header);
    for (uint32_t id = 0; id < n_tables; id += n, at += SHARD_FILE_TABLE_BYTES) {
        struct shard_file_table record = { .n_dropped = n_dropped(shard, id) };

        n = record.n_dropped ? record.n_dropped : 1;
        if (!record.n_dropped)
            fill_record(s, shard, id, &record);
        shard_file_encode_table(at, &record);
    }
}

static void free_writer(struct shard_file_writer *s)
{
    for (uint32_t i = 0; i < N_BUFFERS; i++)
        free(s->buffers[i].bytes);
    deinit_file(&s->file);
    free(s->records);
    free(s);
}

/* With space for the longest slice, behind shorter ones. */
static int reserve_buffers(struct shard_file_writer *s, const struct shard *shard) ON_SHARD
{
    s->slice_bytes_max = snapshot_scan_bytes_max(shard);
    s->buffer_bytes = (SLICES - 1) * SNAPSHOT_SCAN_BYTES + s->slice_bytes_max +
                      PIECES_MAX * SHARD_FILE_CHUNK_BYTES;
    for (uint32_t i = 0; i < N_BUFFERS; i++) {
        s->buffers[i].bytes = memory_try_alloc(s->buffer_bytes);
        if (!s->buffers[i].bytes)
            return -ENOMEM;
    }
    return 0;
}

static int reserve(struct shard_file_writer *s, struct shard *shard) ON_SHARD
{
    int status = number_records(s, shard);

    if (!status)
        status = reserve_buffers(s, shard);
    return status ? status : reserve_head(&s->file, s->n_records);
}

static int begin(struct shard_file_writer *s, const struct shard_file_writer_config *config,
                 struct shard *shard, uint64_t first) ON_SHARD
{
    int status = reserve(s, shard);

    if (!status)
        status = snapshot_scan_begin(
            shard, config->base ? SNAPSHOT_SCAN_DELTA : SNAPSHOT_SCAN_FULL, &s->scan);
    if (!status)
        encode_head(s, config, shard, first);
    return status;
}

int shard_file_writer_begin(const struct shard_file_writer_config *config, struct shard *shard,
                            uint64_t first, struct shard_file_writer **ret, struct err *err)
{
    struct shard_file_writer *s = memory_alloc(sizeof *s);
    int status;

    init_file(&s->file, config->files);
    status = checkpoint_file_path(config->data_dir, config->number, config->shard_index,
                                  s->file.path, err);
    if (!status) {
        status = begin(s, config, shard, first);
        if (status)
            err_set(err, status, "cannot begin %.200s: %s", s->file.path, status_text(status));
    }
    if (status) {
        free_writer(s);
        return status;
    }
    *ret = s;
    return 0;
}

/* --- filling --- */

static bool has_space(const struct shard_file_writer *s,
                      const struct shard_file_writer_buffer *b)
{
    return b->n_pieces < PIECES_MAX &&
           s->buffer_bytes - b->used >= s->slice_bytes_max + SHARD_FILE_CHUNK_BYTES;
}

/* Does it go on where the last chunk ends? */
static bool continues(const struct shard_file_writer_buffer *b,
                      const struct shard_file_chunk *chunk)
{
    const struct shard_file_chunk *last;

    if (!b->n_pieces)
        return false;
    last = &b->pieces[b->n_pieces - 1].chunk;
    return last->what == chunk->what && last->table == chunk->table &&
           last->n_bytes + chunk->n_bytes <= SHARD_FILE_CHUNK_MAX_BYTES;
}

/* A slice that stands behind all that is used. Mostly it goes on where the last chunk ends; else it
 * makes space for a head. */
static void add(const struct shard_file_writer *s, struct shard_file_writer_buffer *b,
                const struct snapshot_scan_slice *slice)
{
    static const enum shard_file_what whats[] = { [SNAPSHOT_SCAN_STATE] = SHARD_FILE_STATE,
                                                  [SNAPSHOT_SCAN_GONE] = SHARD_FILE_GONE,
                                                  [SNAPSHOT_SCAN_ROWS] = SHARD_FILE_ROWS };
    struct shard_file_chunk chunk = { .what = whats[slice->what],
                                      .table = slice->what == SNAPSHOT_SCAN_STATE
                                                   ? 0
                                                   : s->records[slice->table_id],
                                      .n_items = slice->n_items,
                                      .n_bytes = (uint32_t)slice->n_bytes };

    if (slice->n_bytes == 0)
        return;
    if (continues(b, &chunk)) {
        b->pieces[b->n_pieces - 1].chunk.n_items += chunk.n_items;
        b->pieces[b->n_pieces - 1].chunk.n_bytes += chunk.n_bytes;
    } else {
        memmove(b->bytes + b->used + SHARD_FILE_CHUNK_BYTES, b->bytes + b->used,
                slice->n_bytes);
        b->used += SHARD_FILE_CHUNK_BYTES;
        b->pieces[b->n_pieces++] = (struct buffered_chunk){ .chunk = chunk, .at = b->used };
    }
    b->used += slice->n_bytes;
}

enum shard_file_writer_state shard_file_writer_fill(struct shard_file_writer *s,
                                                    struct shard *shard)
{
    struct shard_file_writer_buffer *b = &s->buffers[s->n_filled % N_BUFFERS];
    struct snapshot_scan_slice slice;

    if (s->is_read)
        return SHARD_FILE_WRITER_READ;
    if (s->n_filled == s->n_recycled + N_BUFFERS)
        return SHARD_FILE_WRITER_FULL;
    snapshot_scan_more(shard, s->scan, b->bytes + b->used,
                       snapshot_scan_slice_bytes(shard, s->scan), &slice);
    s->is_read = slice.what == SNAPSHOT_SCAN_DONE;
    if (s->is_read)
        s->last_version = shard_version(shard);
    else
        add(s, b, &slice);
    s->n_read_bytes += s->is_read ? 0 : slice.n_bytes;
    if (!has_space(s, b) || (s->is_read && b->used))
        s->n_filled++;
    return s->is_read ? SHARD_FILE_WRITER_READ
                      : (s->n_filled == s->n_recycled + N_BUFFERS ? SHARD_FILE_WRITER_FULL
                                                                  : SHARD_FILE_WRITER_MORE);
}

uint64_t shard_file_writer_read_bytes(const struct shard_file_writer *s)
{
    return s->n_read_bytes;
}

struct shard_file_writer_buffer *shard_file_writer_next(struct shard_file_writer *s)
{
    if (s->n_taken == s->n_filled || s->n_taken > s->n_recycled)
        return NULL;
    return &s->buffers[s->n_taken++ % N_BUFFERS];
}

void shard_file_writer_recycle(struct shard_file_writer *s,
                               struct shard_file_writer_buffer *buffer)
{
    assert(s->n_taken == s->n_recycled + 1 && buffer == &s->buffers[s->n_recycled % N_BUFFERS]);
    s->n_bytes += buffer->used;
    buffer->used = buffer->n_pieces = 0;
    s->n_recycled++;
}

bool shard_file_writer_is_written(const struct shard_file_writer *s)
{
    return s->is_read && s->n_recycled == s->n_filled;
}

void shard_file_writer_facts(const struct shard_file_writer *s,
                             struct shard_file_writer_facts *ret)
{
    struct snapshot_scan_facts facts;

    snapshot_scan_facts(s->scan, &facts);
    *ret = (struct shard_file_writer_facts){ .n_numbers = facts.n_numbers,
                                             .n_seen = facts.n_seen,
                                             .n_bytes = s->n_bytes };
}

/* --- writing --- */

int shard_file_writer_write(struct shard_file_writer *s,
                            struct shard_file_writer_buffer *buffer, struct err *err)
{
    return write_buffer(&s->file, buffer->pieces, buffer->n_pieces, buffer->bytes, buffer->used,
                        err);
}

int shard_file_writer_close(struct shard_file_writer *s, uint64_t through,
                            struct shard_file_facts *ret, struct err *err)
{
    return finish_file(&s->file, through, s->last_version, ret, err);
}

void shard_file_writer_discard(struct shard_file_writer *s)
{
    discard_file(&s->file);
}

void shard_file_writer_end(struct shard_file_writer *s, struct shard *shard,
                           enum snapshot_scan_end how)
{
    if (!s)
        return;
    snapshot_scan_end(shard, s->scan, how);
    free_writer(s);
}

/* --- all at once --- */

static int save(struct shard_file_writer *s, struct shard *shard, uint64_t through,
                void (*progress)(void *), void *arg, struct shard_file_facts *ret,
                struct err *err) ON_SHARD
{
    struct shard_file_writer_buffer *buffer;
    int status = 0;

    while (!shard_file_writer_is_written(s) && !status) {
        (void)shard_file_writer_fill(s, shard);
        buffer = shard_file_writer_next(s);
        if (buffer) {
            status = shard_file_writer_write(s, buffer, err);
            shard_file_writer_recycle(s, buffer);
        }
        if (progress)
            progress(arg);
    }
    if (!status)
        return shard_file_writer_close(s, through, ret, err);
    shard_file_writer_discard(s);
    return status;
}

int shard_file_writer_save(const struct shard_file_writer_config *config, struct shard *shard,
                           uint64_t first, void (*progress)(void *), void *arg,
                           struct shard_file_facts *ret, struct err *err)
{
    struct shard_file_writer *s;
    int status = shard_file_writer_begin(config, shard, first, &s, err);

    if (status)
        return status;
    status = save(s, shard, first, progress, arg, ret, err);
    shard_file_writer_end(s, shard, status ? SNAPSHOT_SCAN_DROPPED : SNAPSHOT_SCAN_KEPT);
    return status;
}

void shard_file_writer_note_jobs(struct shard *shard, struct manifest *m)
{
    struct membership *membership = shard_membership(shard);

    for (uint32_t i = 0; i < membership_n_jobs(membership); i++) {
        const struct job *job = membership_job(membership, i);

        manifest_note_job(m, job->name, job->mode, job_min_clock(job));
    }
}
