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
    int fd;       /* of the newest segment; -1: there is none */
    int spare_fd; /* of the one before, if it is of this life: to be written over; or -1 */
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

static void close_fd(const struct spool *s, int *fd)
{
    if (*fd >= 0)
        s->options.files->close(s->options.files->state, *fd);
    *fd = -1;
}

static void close_segments(struct spool *s)
{
    close_fd(s, &s->fd);
    close_fd(s, &s->spare_fd);
}

static int path_of(const struct spool *s, uint64_t number, char ret[SPOOL_PATH_MAX])
{
    return spool_found_path(s->options.dir, s->options.job, s->options.rank, number, ret);
}

/* Those before segment `end` go. One that does not is found by the next process, and is of no
 * harm: its pushes have been judged. */
static void remove_before(struct spool *s, uint64_t end)
{
    char path[SPOOL_PATH_MAX];

    for (; s->oldest < end; s->oldest++)
        if (!path_of(s, s->oldest, path))
            s->options.files->unlink(s->options.files->state, path);
}

/* A file for the next segment: the one before the newest, if its pushes are judged, as pages that are there cost a
 * quarter of new ones; or a new one. */
static int next_file(struct spool *s, uint64_t acked, int *ret_fd)
{
    const struct file_ops *files = s->options.files;
    char from[SPOOL_PATH_MAX], path[SPOOL_PATH_MAX];
    int status = path_of(s, s->newest + 1, path);

    if (!status && s->spare_fd >= 0 && acked >= s->before_seq &&
        !path_of(s, s->newest - 1, from) && !files->rename(files->state, from, path)) {
        remove_before(s, s->newest - 1);
        *ret_fd = s->spare_fd;
        s->spare_fd = -1;
        s->oldest = s->newest;
    } else {
        close_fd(s, &s->spare_fd);
        if (!status)
            status = files->create(files->state, path, ret_fd);
    }
    s->newest += !status;
    return status;
}

/* The next segment, whose first push is the one behind last_seq; zeros where that is going to stand. */
static int begin_segment(struct spool *s, uint64_t acked)
{
    struct spool_header header = { .rank = s->options.rank,
                                   .incarnation = s->incarnation,
                                   .first_seq = s->last_seq + 1 };
    uint8_t bytes[SPOOL_FIRST_PUSH + SPOOL_PUSH_HEAD_BYTES] = { 0 };
    int fd, status = next_file(s, acked, &fd);

    if (status)
        return status;
    s->spare_fd = s->fd;
    s->fd = fd;
    snprintf(header.job, sizeof header.job, "%s", s->options.job);
    spool_format_header(&header, bytes);
    s->segment_bytes = SPOOL_FIRST_PUSH;
    s->before_seq = s->last_seq;
    return s->options.files->write_at(s->options.files->state, fd, 0, bytes, sizeof bytes);
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
    if (!s->options.segment_bytes)
        s->options.segment_bytes = SEGMENT_BYTES;
    s->fd = s->spare_fd = -1;
    s->incarnation = options->incarnation;
    take_found(s, &found);
    status = begin_segment(s, 0);
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
    close_segments(s);
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

    close_segments(s);
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

/* Each shard's rows, and zeros behind the last: where the next push is going to stand. */
static int write_rows(struct spool *s, const struct spool_push *p, uint64_t *at)
{
    static const uint8_t zeros[SPOOL_PUSH_HEAD_BYTES];
    const struct file_ops *files = s->options.files;
    int status = 0;

    for (uint32_t i = 0; i < p->n_shards && !status; i++) {
        const struct buf *rows = &p->parcels[i]->bytes;

        if (buf_len(rows))
            status = files->write_at(files->state, s->fd, *at, buf_front(rows), buf_len(rows));
        *at += buf_len(rows);
    }
    *at = spool_format_next(*at);
    return status ? status : files->write_at(files->state, s->fd, *at, zeros, sizeof zeros);
}

/* The head last: with it the push is kept. */
static int write_push(struct spool *s, const struct spool_push *p)
{
    const struct file_ops *files = s->options.files;
    uint64_t at = s->segment_bytes, end;
    const uint8_t *meta;
    int status;

    buf_consume(&s->meta, buf_len(&s->meta));
    status = spool_format_push(p, &s->meta);
    if (status)
        return status;
    meta = buf_front(&s->meta);
    end = at + buf_len(&s->meta);
    status = write_rows(s, p, &end);
    if (!status)
        status = files->write_at(files->state, s->fd, at + SPOOL_PUSH_HEAD_BYTES,
                                 meta + SPOOL_PUSH_HEAD_BYTES,
                                 buf_len(&s->meta) - SPOOL_PUSH_HEAD_BYTES);
    if (!status)
        status = files->write_at(files->state, s->fd, at, meta, SPOOL_PUSH_HEAD_BYTES);
    s->segment_bytes = end;
    return status;
}

/* Does the push need a segment of its own, and may it have one? */
static int make_place(struct spool *s, const struct spool_push *p, uint64_t acked)
{
    bool is_new_life = s->fd < 0;

    if (is_new_life && (acked + 1 != p->seq || (s->n_lost && s->n_lost % RETRY_PUSHES)))
        return -EAGAIN;
    if (!is_new_life && s->segment_bytes < s->options.segment_bytes)
        return 0;
    s->last_seq = p->seq - 1;
    return begin_segment(s, acked);
}

void spool_put(struct spool *s, uint64_t incarnation, struct spool_push *push, uint64_t acked)
{
    int status;

    memcpy(push->note, s->note, s->note_bytes);
    push->note_bytes = s->note_bytes;
    if (incarnation != s->incarnation) {
        s->incarnation = incarnation;
        close_segments(s);
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
        remove_before(s, s->spare_fd >= 0 ? s->newest - 1 : s->newest);
}

void spool_remove(struct spool *s)
{
    close_segments(s);
    remove_before(s, s->newest + 1);
}
