#include "server/durable/saver.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/durable/part_file.h"

#define N_BUFFERS 2u
#define PIECES_MAX 64u
#define BUFFER_BYTES (4 * SHARD_WALK_BYTES + PIECES_MAX * PART_CHUNK_BYTES)

_Static_assert(4 * SHARD_WALK_BYTES == PART_CHUNK_MAX_BYTES, "a buffer may be one chunk");

struct saver_buffer {
    uint8_t *bytes; /* owned, BUFFER_BYTES */
    size_t used;
    struct part_file_chunk pieces[PIECES_MAX];
    uint32_t n_pieces;
};

/* Buffers are filled, taken and given back in turn: number i, counted from 0, is buffers[i % 2], and
 * n_given <= n_taken <= n_filled <= n_given + 2. */
struct saver {
    /* The shard's thread: */
    struct shard_walk *walk; /* owned until saver_end() */
    struct saver_buffer buffers[N_BUFFERS];
    uint64_t n_filled, n_taken, n_given;
    uint64_t n_bytes; /* in buffers that were given back */
    bool is_read;
    uint64_t last_version; /* when it was read */

    struct part_file file; /* whoever writes */
};

/* --- the first moment --- */

static void fill_header(const struct saver_config *config, const struct shard_walk *walk,
                        uint64_t first, struct part_header *ret)
{
    struct shard_walk_facts facts;

    shard_walk_facts(walk, &facts);
    *ret = (struct part_header){ .number = config->number,
                                 .version = facts.version,
                                 .shard_index = config->shard_index,
                                 .n_tables = facts.n_tables,
                                 .identity = config->identity,
                                 .first = first,
                                 .base = config->base,
                                 .base_version = facts.base,
                                 .state_bytes = facts.state_bytes };
}

/* The file's head, as it is at this moment. */
static void encode_head(struct saver *s, const struct saver_config *config, struct shard *shard,
                        uint64_t first) ON_SHARD
{
    struct part_header header;
    uint8_t *at;

    fill_header(config, s->walk, first, &header);
    at = part_file_begin(&s->file, &header);
    for (uint32_t i = 0; i < header.n_tables; i++, at += PART_TABLE_BYTES) {
        const struct shard_table *t = shard_table(shard, i);

        part_encode_table(at, &(struct part_table){ .spec = t->spec,
                                                    .n_pushes = shard_walk_n_pushes(s->walk, i),
                                                    .n_rows = table_n_rows(t->rows),
                                                    .payload_bytes = t->payload_bytes });
    }
}

static void free_saver(struct saver *s)
{
    for (uint32_t i = 0; i < N_BUFFERS; i++)
        free(s->buffers[i].bytes);
    part_file_deinit(&s->file);
    free(s);
}

static int reserve(struct saver *s, const struct shard *shard) ON_SHARD
{
    for (uint32_t i = 0; i < N_BUFFERS; i++) {
        s->buffers[i].bytes = mem_try_alloc(BUFFER_BYTES);
        if (!s->buffers[i].bytes)
            return -ENOMEM;
    }
    return part_file_reserve(&s->file, shard_n_tables(shard));
}

static int begin(struct saver *s, const struct saver_config *config, struct shard *shard,
                 uint64_t first) ON_SHARD
{
    int status = reserve(s, shard);

    if (!status)
        status = shard_walk_begin(shard, config->base ? SHARD_WALK_DELTA : SHARD_WALK_FULL,
                                  &s->walk);
    if (!status)
        encode_head(s, config, shard, first);
    return status;
}

int saver_begin(const struct saver_config *config, struct shard *shard, uint64_t first,
                struct saver **ret, struct err *err)
{
    struct saver *s = mem_alloc(sizeof *s);
    int status;

    part_file_init(&s->file, config->files);
    status = checkpoint_file_path(config->data_dir, config->number, config->shard_index,
                                  s->file.path, err);
    if (!status) {
        status = begin(s, config, shard, first);
        if (status)
            err_set(err, status, "cannot begin %.200s: %s", s->file.path, status_text(status));
    }
    if (status) {
        free_saver(s);
        return status;
    }
    *ret = s;
    return 0;
}

/* --- filling --- */

static bool has_room(const struct saver_buffer *b)
{
    return b->n_pieces < PIECES_MAX &&
           BUFFER_BYTES - b->used >= SHARD_WALK_BYTES + PART_CHUNK_BYTES;
}

/* Does it go on where the last chunk ends? */
static bool continues(const struct saver_buffer *b, const struct part_chunk *chunk)
{
    const struct part_chunk *last;

    if (!b->n_pieces)
        return false;
    last = &b->pieces[b->n_pieces - 1].chunk;
    return last->what == chunk->what && last->table == chunk->table &&
           last->n_bytes + chunk->n_bytes <= PART_CHUNK_MAX_BYTES;
}

/* A slice that stands behind all that is used. Mostly it goes on where the last chunk ends; else it
 * makes room for a head. */
static void add(struct saver_buffer *b, const struct shard_walk_slice *slice)
{
    static const enum part_what whats[] = { [SHARD_WALK_STATE] = PART_STATE,
                                            [SHARD_WALK_GONE] = PART_GONE,
                                            [SHARD_WALK_ROWS] = PART_ROWS };
    struct part_chunk chunk = { .what = whats[slice->what],
                                .table = slice->table_id,
                                .n_items = slice->n_items,
                                .n_bytes = (uint32_t)slice->n_bytes };

    if (slice->n_bytes == 0)
        return;
    if (continues(b, &chunk)) {
        b->pieces[b->n_pieces - 1].chunk.n_items += chunk.n_items;
        b->pieces[b->n_pieces - 1].chunk.n_bytes += chunk.n_bytes;
    } else {
        memmove(b->bytes + b->used + PART_CHUNK_BYTES, b->bytes + b->used, slice->n_bytes);
        b->used += PART_CHUNK_BYTES;
        b->pieces[b->n_pieces++] = (struct part_file_chunk){ .chunk = chunk, .at = b->used };
    }
    b->used += slice->n_bytes;
}

enum saver_state saver_fill(struct saver *s, struct shard *shard)
{
    struct saver_buffer *b = &s->buffers[s->n_filled % N_BUFFERS];
    struct shard_walk_slice slice;

    if (s->is_read)
        return SAVER_READ;
    if (s->n_filled == s->n_given + N_BUFFERS)
        return SAVER_FULL;
    shard_walk_more(shard, s->walk, b->bytes + b->used, SHARD_WALK_BYTES, &slice);
    s->is_read = slice.what == SHARD_WALK_DONE;
    if (s->is_read)
        s->last_version = shard_version(shard);
    else
        add(b, &slice);
    if (!has_room(b) || (s->is_read && b->used))
        s->n_filled++;
    return s->is_read ? SAVER_READ
                      : (s->n_filled == s->n_given + N_BUFFERS ? SAVER_FULL : SAVER_MORE);
}

struct saver_buffer *saver_take(struct saver *s)
{
    if (s->n_taken == s->n_filled || s->n_taken > s->n_given)
        return NULL;
    return &s->buffers[s->n_taken++ % N_BUFFERS];
}

void saver_give_back(struct saver *s, struct saver_buffer *buffer)
{
    assert(s->n_taken == s->n_given + 1 && buffer == &s->buffers[s->n_given % N_BUFFERS]);
    s->n_bytes += buffer->used;
    buffer->used = buffer->n_pieces = 0;
    s->n_given++;
}

bool saver_is_written(const struct saver *s)
{
    return s->is_read && s->n_given == s->n_filled;
}

void saver_facts(const struct saver *s, struct saver_facts *ret)
{
    struct shard_walk_facts facts;

    shard_walk_facts(s->walk, &facts);
    *ret = (struct saver_facts){ .n_numbers = facts.n_numbers,
                                 .n_seen = facts.n_seen,
                                 .n_bytes = s->n_bytes };
}

/* --- writing --- */

int saver_write(struct saver *s, struct saver_buffer *buffer, struct err *err)
{
    return part_file_write(&s->file, buffer->pieces, buffer->n_pieces, buffer->bytes,
                           buffer->used, err);
}

int saver_close(struct saver *s, uint64_t through, struct part_facts *ret, struct err *err)
{
    return part_file_close(&s->file, through, s->last_version, ret, err);
}

void saver_discard(struct saver *s)
{
    part_file_discard(&s->file);
}

void saver_end(struct saver *s, struct shard *shard, enum shard_walk_end how)
{
    if (!s)
        return;
    shard_walk_end(shard, s->walk, how);
    free_saver(s);
}

/* --- all at once --- */

static int save(struct saver *s, struct shard *shard, uint64_t through,
                void (*progress)(void *), void *arg, struct part_facts *ret, struct err *err)
    ON_SHARD
{
    struct saver_buffer *buffer;
    int status = 0;

    while (!saver_is_written(s) && !status) {
        (void)saver_fill(s, shard);
        buffer = saver_take(s);
        if (buffer) {
            status = saver_write(s, buffer, err);
            saver_give_back(s, buffer);
        }
        if (progress)
            progress(arg);
    }
    if (!status)
        return saver_close(s, through, ret, err);
    saver_discard(s);
    return status;
}

int saver_save(const struct saver_config *config, struct shard *shard, uint64_t first,
               void (*progress)(void *), void *arg, struct part_facts *ret, struct err *err)
{
    struct saver *s;
    int status = saver_begin(config, shard, first, &s, err);

    if (status)
        return status;
    status = save(s, shard, first, progress, arg, ret, err);
    saver_end(s, shard, status ? SHARD_WALK_DROPPED : SHARD_WALK_KEPT);
    return status;
}

void saver_note_jobs(struct shard *shard, struct manifest *m)
{
    struct roster *roster = shard_roster(shard);

    for (uint32_t i = 0; i < roster_n_jobs(roster); i++) {
        const struct job *job = roster_job(roster, i);

        manifest_note_job(m, job->name, job->mode, job_min_clock(job));
    }
}
