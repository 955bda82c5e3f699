#include "worker/client/push_journal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define SEGMENT_BYTES (8u << 20)
#define CHUNK_BYTES (1u << 20)
#define PATH_BYTES 1024u
#define SEGMENTS_MAX (UINT64_C(1) << 20) /* from the oldest number to the newest */
#define RETRY_PUSHES 64u                 /* after a failure: until the next attempt to write */

/* What the segments of an earlier process contain. */
struct found {
    uint64_t oldest, newest;         /* numbers of the segments; 1 and 0 if there are none */
    uint64_t incarnation;            /* 0: nothing to go on from */
    uint64_t last_seq;               /* of the last push that was kept, or 0 */
    struct push_journal_push *first; /* owned by whoever gets it; in order */
};

struct push_journal {
    struct push_journal_options options;
    int fd;          /* of the newest segment; -1: there is none */
    int previous_fd; /* of the one before, if it is of this life: to be written over; or -1 */
    uint64_t incarnation;
    uint64_t oldest,
        newest; /* segments that there are: oldest .. newest; none: newest + 1 .. newest */
    uint64_t segment_bytes; /* of the newest */
    uint64_t before_seq;    /* the last push of the segments before it */
    uint64_t last_seq;
    uint64_t n_lost; /* pushes that could not be kept since the last one that was */
    struct ps_origin origin;
    struct push_journal_push *found; /* owned, in order */
    uint8_t found_note[PUSH_JOURNAL_NOTE_MAX], note[PUSH_JOURNAL_NOTE_MAX];
    uint32_t found_note_bytes, note_bytes;
    struct bytes meta; /* scratch */
};

/* ---- reading: names of segments ---- */

static int make_path(const char *dir, const char *job, uint32_t rank, uint64_t number,
                     char ret[PATH_BYTES])
{
    int n = snprintf(ret, PATH_BYTES, "%s/%s.%u.%" PRIu64 ".pushes", dir, job, rank, number);

    return n < 0 || n >= (int)PATH_BYTES ? -ENAMETOOLONG : 0;
}

struct search {
    const struct push_journal_options *options;
    uint64_t oldest, newest;
};

static int note_segment(void *arg, const char *name)
{
    struct search *search = arg;
    const struct push_journal_options *o = search->options;
    char prefix[TABLE_SPEC_NAME_MAX + 16], *end;
    uint64_t number;
    int n = snprintf(prefix, sizeof prefix, "%s.%u.", o->job, o->rank);

    if (strncmp(name, prefix, (size_t)n) != 0 || name[n] < '1' || name[n] > '9')
        return 0;
    errno = 0;
    number = strtoull(name + n, &end, 10);
    if (errno || strcmp(end, ".pushes") != 0 || number == UINT64_MAX)
        return 0;
    if (!search->oldest || number < search->oldest)
        search->oldest = number;
    if (number > search->newest)
        search->newest = number;
    return 0;
}

/* ---- reading: one segment ---- */

static int read_file(const struct file_ops *files, const char *path, struct bytes *out)
{
    int64_t n = 1;
    int fd, status = files->open_read(files->state, path, &fd);

    if (status)
        return status;
    while (n > 0) {
        uint8_t *at = bytes_reserve(out, CHUNK_BYTES);

        n = at ? files->read(files->state, fd, at, CHUNK_BYTES) : -ENOMEM;
        if (n > 0)
            bytes_commit(out, (size_t)n);
    }
    files->close(files->state, fd);
    return (int)n;
}

static void drop_pushes(struct found *f)
{
    while (f->first) {
        struct push_journal_push *p = f->first;

        f->first = p->next;
        push_journal_format_free_push(p);
    }
}

static int parse_pushes(const struct bytes *in, struct found *f,
                        struct push_journal_push ***end)
{
    uint64_t at = PUSH_JOURNAL_FIRST_PUSH;
    int status = 0;

    while (at < bytes_len(in)) {
        struct push_journal_push *p;
        size_t n_bytes;

        status = push_journal_format_read_push(bytes_front(in) + at, bytes_len(in) - at, &p,
                                               &n_bytes);
        if (status)
            break;
        at = push_journal_format_next(at + n_bytes);
        **end = p;
        *end = &p->next;
        if (p->seq != f->last_seq + 1 || p->n_shards != f->first->n_shards ||
            p->map_id != f->first->map_id)
            return PS_ECORRUPT;
        f->last_seq = p->seq;
    }
    return status == -ENOENT ? 0 : status;
}

static bool has_pushes(const struct bytes *in)
{
    static const uint8_t none[PUSH_JOURNAL_PUSH_HEAD_BYTES];

    return bytes_len(in) >= PUSH_JOURNAL_FIRST_PUSH + sizeof none &&
           memcmp(bytes_front(in) + PUSH_JOURNAL_FIRST_PUSH, none, sizeof none) != 0;
}

/* Reads the segments one after the other. Those before a new incarnation or before a gap do not count. A segment is
 * removed or used again once all of its pushes are acknowledged; if the process ended before, it may still be there.
 * (If a file is missing, the shards' counts of pushes show it.) */
static int parse_segment(const struct push_journal_options *o, const struct bytes *in,
                         struct found *f, struct push_journal_push ***end)
{
    struct push_journal_header header;

    if (bytes_len(in) < PUSH_JOURNAL_HEADER_BYTES)
        return 0; /* begun when the process ended */
    if (push_journal_format_read_header(bytes_front(in), &header))
        return PS_ECORRUPT;
    if (strcmp(header.job, o->job) != 0 || header.rank != o->rank)
        return PS_ESPEC;
    if (f->first && !has_pushes(in))
        return 0; /* likewise: what came before says where the worker stood */
    if (f->first && header.incarnation == f->incarnation && header.first_seq <= f->last_seq)
        return 0; /* likewise: it still holds what it did before it was to be used again */
    if (header.incarnation != f->incarnation || header.first_seq != f->last_seq + 1) {
        drop_pushes(f);
        *end = &f->first;
        f->incarnation = header.incarnation;
        f->last_seq = header.first_seq - 1;
    }
    return parse_pushes(in, f, end);
}

/* ---- reading: all segments ---- */

static int read_segment(const struct push_journal_options *o, const char *path, struct found *f,
                        struct push_journal_push ***end, struct err *err)
{
    struct bytes in = { 0 };
    int status = read_file(o->files, path, &in);

    if (status == -ENOENT)
        status = 0; /* between two that are there: one that was removed before its time */
    else if (!status)
        status = parse_segment(o, &in, f, end);
    bytes_deinit(&in);
    if (status == PS_ECORRUPT)
        return err_set(err, status,
                       "%s is damaged: this worker does not go on from it, and joins as a new "
                       "incarnation",
                       path);
    if (status == PS_ESPEC)
        return err_set(err, status, "%s is of another job or rank than \"%s\", %u", path,
                       o->job, o->rank);
    return status ? err_set(err, status, "%s cannot be read: %s", path, status_text(status))
                  : 0;
}

static int read_all(const struct push_journal_options *o, struct found *f, struct err *err)
{
    struct push_journal_push **end = &f->first;
    char path[PATH_BYTES];
    int status = 0;

    if (f->newest > f->oldest && f->newest - f->oldest > SEGMENTS_MAX)
        return err_set(err, PS_ECORRUPT,
                       "%s: number %" PRIu64 " of job \"%s\", rank %u, is not of one run with "
                       "number %" PRIu64 ": this worker joins as a new incarnation",
                       o->dir, f->newest, o->job, o->rank, f->oldest);
    for (uint64_t i = f->oldest; i <= f->newest && !status; i++) {
        status = make_path(o->dir, o->job, o->rank, i, path);
        if (!status)
            status = read_segment(o, path, f, &end, err);
    }
    return status;
}

static int read_segments(const struct push_journal_options *o, struct found *ret,
                         struct err *err)
{
    struct search search = { .options = o };
    char path[PATH_BYTES];
    int status = make_path(o->dir, o->job, o->rank, UINT64_MAX, path);

    if (!status)
        status = o->files->list(o->files->state, o->dir, note_segment, &search);
    if (status)
        return err_set(err, status, "%.200s cannot be read: %s", o->dir, status_text(status));
    *ret =
        (struct found){ .oldest = search.oldest ? search.oldest : 1, .newest = search.newest };
    status = read_all(o, ret, err);
    if (!status && ret->first)
        return 0;
    drop_pushes(ret);
    ret->last_seq = 0;
    /* One that has joined and pushed nothing goes on too: the servers know it. */
    if (!status)
        return 0;
    ret->incarnation = 0;
    if (status != PS_ECORRUPT)
        return status;
    if (o->notice)
        o->notice(o->notice_arg, err->text);
    return 0;
}

/* ---- writing: segments ---- */

static void notice(const struct push_journal *s, const char *sentence)
{
    if (s->options.notice)
        s->options.notice(s->options.notice_arg, sentence);
}

static void close_fd(const struct push_journal *s, int *fd)
{
    if (*fd >= 0)
        s->options.files->close(s->options.files->state, *fd);
    *fd = -1;
}

static void close_segments(struct push_journal *s)
{
    close_fd(s, &s->fd);
    close_fd(s, &s->previous_fd);
}

static int path_of(const struct push_journal *s, uint64_t number, char ret[PATH_BYTES])
{
    return make_path(s->options.dir, s->options.job, s->options.rank, number, ret);
}

/* Those before segment `end` go. One that does not is found by the next process, and is of no
 * harm: its pushes have been acknowledged. */
static void remove_before(struct push_journal *s, uint64_t end)
{
    char path[PATH_BYTES];

    for (; s->oldest < end; s->oldest++)
        if (!path_of(s, s->oldest, path))
            s->options.files->unlink(s->options.files->state, path);
}

/* The file of the next segment: the one before the newest, if its pushes are acknowledged, because existing pages cost
 * a quarter of new ones; or a new file. */
static int next_file(struct push_journal *s, uint64_t acked, int *ret_fd)
{
    const struct file_ops *files = s->options.files;
    char from[PATH_BYTES], path[PATH_BYTES];
    int status = path_of(s, s->newest + 1, path);

    if (!status && s->previous_fd >= 0 && acked >= s->before_seq &&
        !path_of(s, s->newest - 1, from) && !files->rename(files->state, from, path)) {
        remove_before(s, s->newest - 1);
        *ret_fd = s->previous_fd;
        s->previous_fd = -1;
        s->oldest = s->newest;
    } else {
        close_fd(s, &s->previous_fd);
        if (!status)
            status = files->create(files->state, path, ret_fd);
    }
    s->newest += !status;
    return status;
}

/* The next segment, whose first push is the one behind last_seq; zeros where that is going to stand. */
static int begin_segment(struct push_journal *s, uint64_t acked)
{
    struct push_journal_header header = { .rank = s->options.rank,
                                          .incarnation = s->incarnation,
                                          .first_seq = s->last_seq + 1 };
    uint8_t bytes[PUSH_JOURNAL_FIRST_PUSH + PUSH_JOURNAL_PUSH_HEAD_BYTES] = { 0 };
    int fd, status = next_file(s, acked, &fd);

    if (status)
        return status;
    s->previous_fd = s->fd;
    s->fd = fd;
    snprintf(header.job, sizeof header.job, "%s", s->options.job);
    push_journal_format_header(&header, bytes);
    s->segment_bytes = PUSH_JOURNAL_FIRST_PUSH;
    s->before_seq = s->last_seq;
    return s->options.files->write_at(s->options.files->state, fd, 0, bytes, sizeof bytes);
}

/* ---- open, close ---- */

static void adopt_found(struct push_journal *s, struct found *f)
{
    const struct push_journal_push *p;

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
        const struct request *request = p->requests[0];

        if (p == f->first)
            s->origin.clock = request->clock;
        s->origin.next_clock = request->clock + request->tick;
        s->origin.n_shards = p->n_shards;
        s->origin.map_id = p->map_id;
        s->found_note_bytes = p->note_bytes;
        memcpy(s->found_note, p->note, p->note_bytes);
    }
    memcpy(s->note, s->found_note, s->found_note_bytes);
    s->note_bytes = s->found_note_bytes;
}

int push_journal_open(const struct push_journal_options *options, struct push_journal **ret,
                      struct err *err)
{
    const struct file_ops *files = options->files;
    struct found found = { 0 };
    struct push_journal *s;
    int status = files->mkdir(files->state, options->dir);

    if (status)
        return err_set(err, status, "%s cannot be made: %s", options->dir, status_text(status));
    status = read_segments(options, &found, err);
    if (status)
        return status;
    s = memory_try_alloc(sizeof *s);
    if (!s) {
        drop_pushes(&found);
        return err_set(err, -ENOMEM, "no memory to keep pushes in %s", options->dir);
    }
    s->options = *options;
    if (!s->options.segment_bytes)
        s->options.segment_bytes = SEGMENT_BYTES;
    s->fd = s->previous_fd = -1;
    s->incarnation = options->incarnation;
    adopt_found(s, &found);
    status = begin_segment(s, 0);
    if (status) {
        push_journal_close(s);
        return err_set(err, status, "pushes cannot be kept in %s: %s", options->dir,
                       status_text(status));
    }
    if (!s->found)
        remove_before(s, s->newest);
    *ret = s;
    return 0;
}

void push_journal_close(struct push_journal *s)
{
    if (!s)
        return;
    close_segments(s);
    while (s->found)
        push_journal_format_free_push(push_journal_pop(s));
    bytes_deinit(&s->meta);
    free(s);
}

/* ---- pushes that were found ---- */

void push_journal_origin(const struct push_journal *s, struct ps_origin *ret)
{
    *ret = s->origin;
}

uint32_t push_journal_found_note(const struct push_journal *s,
                                 uint8_t ret[PUSH_JOURNAL_NOTE_MAX])
{
    memcpy(ret, s->found_note, s->found_note_bytes);
    return s->found_note_bytes;
}

bool push_journal_has_found(const struct push_journal *s)
{
    return s->found != NULL;
}

struct push_journal_push *push_journal_pop(struct push_journal *s)
{
    struct push_journal_push *p = s->found;

    if (p)
        s->found = p->next;
    return p;
}

void push_journal_drop_found(struct push_journal *s, const char *why)
{
    char text[256];

    if (!s->found)
        return;
    snprintf(text, sizeof text,
             "%s: pushes %" PRIu64 " to %" PRIu64
             ", as far as a shard has not had them, are dropped",
             why, s->found->seq, s->origin.last_seq);
    notice(s, text);
    while (s->found)
        push_journal_format_free_push(push_journal_pop(s));
}

/* ---- writing: pushes ---- */

void push_journal_set_note(struct push_journal *s, const uint8_t *note, uint32_t n_bytes)
{
    memcpy(s->note, note, n_bytes);
    s->note_bytes = n_bytes;
}

/* What there is says less than what was sent: nobody must go on from it. */
static void give_up(struct push_journal *s, int status)
{
    char text[256];

    close_segments(s);
    remove_before(s, s->newest + 1);
    if (s->n_lost++)
        return;
    snprintf(text, sizeof text,
             "pushes cannot be kept in %.100s: %s; this worker would join as a new incarnation "
             "now, if it were killed",
             s->options.dir, status_text(status));
    notice(s, text);
}

/* Each shard's rows, and zeros behind the last: where the next push is going to stand. */
static int write_rows(struct push_journal *s, const struct push_journal_push *p, uint64_t *at)
{
    static const uint8_t zeros[PUSH_JOURNAL_PUSH_HEAD_BYTES];
    const struct file_ops *files = s->options.files;
    int status = 0;

    for (uint32_t i = 0; i < p->n_shards && !status; i++) {
        const struct bytes *rows = &p->requests[i]->bytes;

        if (bytes_len(rows))
            status =
                files->write_at(files->state, s->fd, *at, bytes_front(rows), bytes_len(rows));
        *at += bytes_len(rows);
    }
    *at = push_journal_format_next(*at);
    return status ? status : files->write_at(files->state, s->fd, *at, zeros, sizeof zeros);
}

/* The head last: with it the push is kept. */
static int write_push(struct push_journal *s, const struct push_journal_push *p)
{
    const struct file_ops *files = s->options.files;
    uint64_t at = s->segment_bytes, end;
    const uint8_t *meta;
    int status;

    bytes_consume(&s->meta, bytes_len(&s->meta));
    status = push_journal_format_push(p, &s->meta);
    if (status)
        return status;
    meta = bytes_front(&s->meta);
    end = at + bytes_len(&s->meta);
    status = write_rows(s, p, &end);
    if (!status)
        status = files->write_at(files->state, s->fd, at + PUSH_JOURNAL_PUSH_HEAD_BYTES,
                                 meta + PUSH_JOURNAL_PUSH_HEAD_BYTES,
                                 bytes_len(&s->meta) - PUSH_JOURNAL_PUSH_HEAD_BYTES);
    if (!status)
        status = files->write_at(files->state, s->fd, at, meta, PUSH_JOURNAL_PUSH_HEAD_BYTES);
    s->segment_bytes = end;
    return status;
}

/* Does the push need a segment of its own, and may it have one? */
static int reserve_segment(struct push_journal *s, const struct push_journal_push *p,
                           uint64_t acked)
{
    bool is_new_life = s->fd < 0;

    if (is_new_life && (acked + 1 != p->seq || (s->n_lost && s->n_lost % RETRY_PUSHES)))
        return -EAGAIN;
    if (!is_new_life && s->segment_bytes < s->options.segment_bytes)
        return 0;
    s->last_seq = p->seq - 1;
    return begin_segment(s, acked);
}

void push_journal_put(struct push_journal *s, uint64_t incarnation,
                      struct push_journal_push *push, uint64_t acked)
{
    int status;

    memcpy(push->note, s->note, s->note_bytes);
    push->note_bytes = s->note_bytes;
    if (incarnation != s->incarnation) {
        s->incarnation = incarnation;
        close_segments(s);
    }
    status = reserve_segment(s, push, acked);
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
        notice(s, "pushes are kept again");
    s->n_lost = 0;
    s->last_seq = push->seq;
    if (acked >= s->before_seq)
        remove_before(s, s->previous_fd >= 0 ? s->newest - 1 : s->newest);
}

void push_journal_remove(struct push_journal *s)
{
    close_segments(s);
    remove_before(s, s->newest + 1);
}
