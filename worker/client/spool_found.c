#include "worker/client/spool_found.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define CHUNK_BYTES (1u << 20)
#define SPREAD_MAX (UINT64_C(1) << 20) /* from the oldest number to the newest */

int spool_found_path(const char *dir, const char *job, uint32_t rank, uint64_t number,
                     char ret[SPOOL_PATH_MAX])
{
    int n =
        snprintf(ret, SPOOL_PATH_MAX, "%s/%s.%u.%" PRIu64 ".pushes", dir, job, rank, number);

    return n < 0 || n >= (int)SPOOL_PATH_MAX ? -ENAMETOOLONG : 0;
}

/* ---- which there are ---- */

struct search {
    const struct spool_options *options;
    uint64_t oldest, newest;
};

static int note_name(void *arg, const char *name)
{
    struct search *search = arg;
    const struct spool_options *o = search->options;
    char prefix[SPEC_NAME_MAX + 16], *end;
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

/* ---- one segment ---- */

static int read_file(const struct file_ops *files, const char *path, struct buf *out)
{
    int64_t n = 1;
    int fd, status = files->open_read(files->state, path, &fd);

    if (status)
        return status;
    while (n > 0) {
        uint8_t *at = buf_reserve(out, CHUNK_BYTES);

        n = at ? files->read(files->state, fd, at, CHUNK_BYTES) : -ENOMEM;
        if (n > 0)
            buf_commit(out, (size_t)n);
    }
    files->close(files->state, fd);
    return (int)n;
}

static void drop(struct spool_found *f)
{
    while (f->first) {
        struct spool_push *p = f->first;

        f->first = p->next;
        spool_format_free_push(p);
    }
}

static int take_pushes(const struct buf *in, struct spool_found *f, struct spool_push ***end)
{
    uint64_t at = SPOOL_FIRST_PUSH;
    int status = 0;

    while (at < buf_len(in)) {
        struct spool_push *p;
        size_t n_bytes;

        status = spool_format_read_push(buf_front(in) + at, buf_len(in) - at, &p, &n_bytes);
        if (status)
            break;
        at = spool_format_next(at + n_bytes);
        **end = p;
        *end = &p->next;
        if (p->seq != f->last_seq + 1 || p->n_shards != f->first->n_shards ||
            p->map_id != f->first->map_id)
            return PS_ECORRUPT;
        f->last_seq = p->seq;
    }
    return status == -ENOENT ? 0 : status;
}

static bool has_pushes(const struct buf *in)
{
    static const uint8_t none[SPOOL_PUSH_HEAD_BYTES];

    return buf_len(in) >= SPOOL_FIRST_PUSH + sizeof none &&
           memcmp(buf_front(in) + SPOOL_FIRST_PUSH, none, sizeof none) != 0;
}

/* The segments one after the other. Of those before a new incarnation nothing counts, nor of those before a gap: a segment
 * goes when all of its pushes have been judged, and one that was to go, or to be used again, when the process ended may
 * still be there. (If a file is missing that should be there, the shards' counts of pushes tell.) */
static int take_segment(const struct spool_options *o, const struct buf *in,
                        struct spool_found *f, struct spool_push ***end)
{
    struct spool_header header;

    if (buf_len(in) < SPOOL_HEADER_BYTES)
        return 0; /* begun when the process ended */
    if (spool_format_read_header(buf_front(in), &header))
        return PS_ECORRUPT;
    if (strcmp(header.job, o->job) != 0 || header.rank != o->rank)
        return PS_ESPEC;
    if (f->first && !has_pushes(in))
        return 0; /* likewise: what came before says where the worker stood */
    if (f->first && header.incarnation == f->incarnation && header.first_seq <= f->last_seq)
        return 0; /* likewise: it still holds what it did before it was to be used again */
    if (header.incarnation != f->incarnation || header.first_seq != f->last_seq + 1) {
        drop(f);
        *end = &f->first;
        f->incarnation = header.incarnation;
        f->last_seq = header.first_seq - 1;
    }
    return take_pushes(in, f, end);
}

/* ---- all ---- */

static int read_segment(const struct spool_options *o, const char *path, struct spool_found *f,
                        struct spool_push ***end, struct err *err)
{
    struct buf in = { 0 };
    int status = read_file(o->files, path, &in);

    if (status == -ENOENT)
        status = 0; /* between two that are there: one that was removed before its time */
    else if (!status)
        status = take_segment(o, &in, f, end);
    buf_deinit(&in);
    if (status == PS_ECORRUPT)
        return err_set(
            err, status,
            "%s is damaged: this worker does not go on from it, and joins as somebody "
            "new",
            path);
    if (status == PS_ESPEC)
        return err_set(err, status, "%s is of another job or rank than \"%s\", %u", path,
                       o->job, o->rank);
    return status ? err_set(err, status, "%s cannot be read: %s", path, status_text(status))
                  : 0;
}

static int read_all(const struct spool_options *o, struct spool_found *f, struct err *err)
{
    struct spool_push **end = &f->first;
    char path[SPOOL_PATH_MAX];
    int status = 0;

    if (f->newest > f->oldest && f->newest - f->oldest > SPREAD_MAX)
        return err_set(err, PS_ECORRUPT,
                       "%s: number %" PRIu64 " of job \"%s\", rank %u, is not of one run with "
                       "number %" PRIu64 ": this worker joins as somebody new",
                       o->dir, f->newest, o->job, o->rank, f->oldest);
    for (uint64_t i = f->oldest; i <= f->newest && !status; i++) {
        status = spool_found_path(o->dir, o->job, o->rank, i, path);
        if (!status)
            status = read_segment(o, path, f, &end, err);
    }
    return status;
}

int spool_found_read(const struct spool_options *o, struct spool_found *ret, struct err *err)
{
    struct search search = { .options = o };
    char path[SPOOL_PATH_MAX];
    int status = spool_found_path(o->dir, o->job, o->rank, UINT64_MAX, path);

    if (!status)
        status = o->files->list(o->files->state, o->dir, note_name, &search);
    if (status)
        return err_set(err, status, "%.200s cannot be read: %s", o->dir, status_text(status));
    *ret = (struct spool_found){ .oldest = search.oldest ? search.oldest : 1,
                                 .newest = search.newest };
    status = read_all(o, ret, err);
    if (!status && ret->first)
        return 0;
    drop(ret);
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
