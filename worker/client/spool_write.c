#include "worker/client/spool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "worker/client/spool_found.h"

#define SEGMENT_BYTES (8u << 20)
#define RETRY_PUSHES 64u /* a disk that is full is asked again after so many */

struct spool {
    struct spool_options options;
    int fd; /* of the newest segment; -1: there is none */
    uint64_t incarnation;
    uint64_t oldest,
        newest; /* segments that there are: oldest .. newest; none: newest + 1 .. newest */
    uint64_t segment_bytes; /* of the newest */
    uint64_t before_seq;    /* the last push of the segments before it */
    uint64_t last_seq;
    uint64_t n_lost; /* pushes that could not be kept since the last one that was */
    struct ps_origin origin;
    struct spool_push *found; /* owned, in order */
    uint8_t found_note[SPOOL_NOTE_MAX], note[SPOOL_NOTE_MAX];
    uint32_t found_note_bytes, note_bytes;
    struct buf meta; /* scratch */
};

static void tell(const struct spool *s, const char *sentence)
{
    if (s->options.notice)
        s->options.notice(s->options.notice_arg, sentence);
}

/* ---- segments ---- */

static void close_segment(struct spool *s)
{
    if (s->fd >= 0)
        s->options.files->close(s->options.files->state, s->fd);
    s->fd = -1;
}

/* Those before segment `end` go. One that does not is found by the next process, and is of no
 * harm: its pushes have been judged. */
static void remove_before(struct spool *s, uint64_t end)
{
    char path[SPOOL_PATH_MAX];

    for (; s->oldest < end; s->oldest++)
        if (!spool_found_path(s->options.dir, s->options.job, s->options.rank, s->oldest, path))
            s->options.files->unlink(s->options.files->state, path);
}

/* The next segment, whose first push is the one behind last_seq. */
static int begin_segment(struct spool *s)
{
    const struct file_ops *files = s->options.files;
    struct spool_header header = { .rank = s->options.rank,
                                   .incarnation = s->incarnation,
                                   .first_seq = s->last_seq + 1 };
    uint8_t bytes[SPOOL_HEADER_BYTES];
    char path[SPOOL_PATH_MAX];
    int status;

    close_segment(s);
    snprintf(header.job, sizeof header.job, "%s", s->options.job);
    spool_format_header(&header, bytes);
    status =
        spool_found_path(s->options.dir, s->options.job, s->options.rank, ++s->newest, path);
    if (!status)
        status = files->create(files->state, path, &s->fd);
    if (status) {
        s->fd = -1;
        return status;
    }
    s->segment_bytes = sizeof bytes;
    s->before_seq = s->last_seq;
    return files->write_all(files->state, s->fd, bytes, sizeof bytes);
}

/* ---- open, close ---- */

static void take_found(struct spool *s, struct spool_found *f)
{
    const struct spool_push *p;

    s->oldest = f->oldest;
    s->newest = f->newest;
    s->last_seq = f->last_seq;
    if (f->incarnation)
        s->incarnation = f->incarnation;
    s->found = f->first;
    s->origin = (struct ps_origin){ .incarnation = s->incarnation,
                                    .acked_seq = f->first ? f->first->seq - 1 : f->last_seq,
                                    .last_seq = f->last_seq };
    for (p = f->first; p; p = p->next) {
        const struct parcel *parcel = p->parcels[0];

        if (p == f->first)
            s->origin.clock = parcel->clock;
        s->origin.next_clock = parcel->clock + parcel->tick;
        s->origin.n_shards = p->n_shards;
        s->origin.map_id = p->map_id;
        s->found_note_bytes = p->note_bytes;
        memcpy(s->found_note, p->note, p->note_bytes);
    }
    memcpy(s->note, s->found_note, s->found_note_bytes);
    s->note_bytes = s->found_note_bytes;
}

int spool_open(const struct spool_options *options, struct spool **ret, struct err *err)
{
    const struct file_ops *files = options->files;
    struct spool_found found = { 0 };
    struct spool *s;
    int status = files->mkdir(files->state, options->dir);

    if (status)
        return err_set(err, status, "%s cannot be made: %s", options->dir, status_text(status));
    status = spool_found_read(options, &found, err);
    if (status)
        return status;
    s = mem_alloc(sizeof *s);
    s->options = *options;
    s->fd = -1;
    s->incarnation = options->incarnation;
    take_found(s, &found);
    status = begin_segment(s);
    if (status) {
        spool_close(s);
        return err_set(err, status, "pushes cannot be kept in %s: %s", options->dir,
                       status_text(status));
    }
    if (!s->found)
        remove_before(s, s->newest);
    *ret = s;
    return 0;
}

void spool_close(struct spool *s)
{
    if (!s)
        return;
    close_segment(s);
    while (s->found)
        spool_format_free_push(spool_take(s));
    buf_deinit(&s->meta);
    free(s);
}

/* ---- what was found ---- */

void spool_origin(const struct spool *s, struct ps_origin *ret)
{
    *ret = s->origin;
}

uint32_t spool_found_note(const struct spool *s, uint8_t ret[SPOOL_NOTE_MAX])
{
    memcpy(ret, s->found_note, s->found_note_bytes);
    return s->found_note_bytes;
}

bool spool_has_found(const struct spool *s)
{
    return s->found != NULL;
}

struct spool_push *spool_take(struct spool *s)
{
    struct spool_push *p = s->found;

    if (p)
        s->found = p->next;
    return p;
}

void spool_drop_found(struct spool *s, const char *why)
{
    char text[256];

    if (!s->found)
        return;
    snprintf(text, sizeof text,
             "%s: pushes %" PRIu64 " to %" PRIu64
             ", as far as a shard has not had them, are dropped",
             why, s->found->seq, s->origin.last_seq);
    tell(s, text);
    while (s->found)
        spool_format_free_push(spool_take(s));
}

/* ---- keeping ---- */

void spool_set_note(struct spool *s, const uint8_t *note, uint32_t n_bytes)
{
    memcpy(s->note, note, n_bytes);
    s->note_bytes = n_bytes;
}

/* What there is says less than what was sent: nobody must go on from it. */
static void give_up(struct spool *s, int status)
{
    char text[256];

    close_segment(s);
    remove_before(s, s->newest + 1);
    if (s->n_lost++)
        return;
    snprintf(
        text, sizeof text,
        "pushes cannot be kept in %.100s: %s; this worker would join as somebody new now, if "
        "it were killed",
        s->options.dir, status_text(status));
    tell(s, text);
}

static int write_push(struct spool *s, const struct spool_push *p)
{
    const struct file_ops *files = s->options.files;
    size_t n_meta;
    int status;

    buf_consume(&s->meta, buf_len(&s->meta));
    status = spool_format_push(p, &s->meta);
    n_meta = buf_len(&s->meta);
    if (!status)
        status = files->write_all(files->state, s->fd, buf_front(&s->meta), n_meta);
    s->segment_bytes += n_meta;
    for (uint32_t i = 0; i < p->n_shards && !status; i++) {
        const struct buf *rows = &p->parcels[i]->bytes;

        if (buf_len(rows))
            status = files->write_all(files->state, s->fd, buf_front(rows), buf_len(rows));
        s->segment_bytes += buf_len(rows);
    }
    return status;
}

/* Does the push need a segment of its own, and may it have one? */
static int make_place(struct spool *s, const struct spool_push *p, uint64_t acked)
{
    bool is_new_life = s->fd < 0;

    if (is_new_life && (acked + 1 != p->seq || (s->n_lost && s->n_lost % RETRY_PUSHES)))
        return -EAGAIN;
    if (!is_new_life && s->segment_bytes < SEGMENT_BYTES)
        return 0;
    s->last_seq = p->seq - 1;
    return begin_segment(s);
}

void spool_put(struct spool *s, uint64_t incarnation, struct spool_push *push, uint64_t acked)
{
    int status;

    memcpy(push->note, s->note, s->note_bytes);
    push->note_bytes = s->note_bytes;
    if (incarnation != s->incarnation) {
        s->incarnation = incarnation;
        close_segment(s);
    }
    status = make_place(s, push, acked);
    if (status == -EAGAIN) {
        s->n_lost++;
        return;
    }
    if (!status)
        status = write_push(s, push);
    if (status) {
        give_up(s, status);
        return;
    }
    if (s->n_lost)
        tell(s, "pushes are kept again");
    s->n_lost = 0;
    s->last_seq = push->seq;
    if (acked >= s->before_seq)
        remove_before(s, s->newest);
}

void spool_remove(struct spool *s)
{
    close_segment(s);
    remove_before(s, s->newest + 1);
}
