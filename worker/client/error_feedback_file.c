#include "worker/client/error_feedback_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc32c.h"
#include "common/memory.h"
#include "worker/client/error_feedback.h"
#include "worker/client/push_encoder.h"

#define VERSION 1u
#define HEADER_BYTES 96u
#define TABLE_BYTES 144u
#define FOOTER_BYTES 16u
#define CHUNK_BYTES 65536u

static const char magic[8] = "psdowed\n";

/* DIR/JOB.RANK.residuals; -ENAMETOOLONG. */
static int file_path(const char *dir, const char *job, uint32_t rank,
                     char ret_path[ERROR_FEEDBACK_FILE_PATH_MAX], struct err *err)
{
    int n =
        snprintf(ret_path, ERROR_FEEDBACK_FILE_PATH_MAX, "%s/%s.%u.residuals", dir, job, rank);

    if (n < 0 || n >= (int)ERROR_FEEDBACK_FILE_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "%.100s...: the path is too long", dir);
    return 0;
}

/* ---- writing ---- */

struct writer {
    const struct file_ops *files;
    int fd;
    uint64_t n_bytes; /* put so far */
    uint32_t crc;     /* of them */
    size_t n_waiting;
    uint8_t chunk[CHUNK_BYTES];
};

static int drain(struct writer *w)
{
    int status = w->files->write_all(w->files->state, w->fd, w->chunk, w->n_waiting);

    w->n_waiting = 0;
    return status;
}

static int put(struct writer *w, const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;
    int status = 0;

    w->crc = crc32c_extend(w->crc, bytes, n_bytes);
    w->n_bytes += n_bytes;
    while (n_bytes && !status) {
        size_t n = CHUNK_BYTES - w->n_waiting;

        n = n < n_bytes ? n : n_bytes;
        memcpy(w->chunk + w->n_waiting, at, n);
        w->n_waiting += n;
        at += n;
        n_bytes -= n;
        if (w->n_waiting == CHUNK_BYTES)
            status = drain(w);
    }
    return status;
}

static int put_header(struct writer *w, const struct error_feedback_file *f, uint32_t n_tables)
{
    const uint32_t version = VERSION, is_ended = f->is_ended;
    uint8_t at[HEADER_BYTES] = { 0 };

    memcpy(at, magic, sizeof magic);
    memcpy(at + 8, &version, 4);
    memcpy(at + 12, &n_tables, 4);
    memcpy(at + 16, &f->clock, 8);
    memcpy(at + 24, &f->rank, 4);
    memcpy(at + 28, &is_ended, 4);
    memcpy(at + 32, f->job, strnlen(f->job, ERROR_FEEDBACK_FILE_JOB_MAX - 1));
    return put(w, at, sizeof at);
}

static int put_table(struct writer *w, const char *name, const struct error_feedback *r)
{
    const uint64_t n_rows = r->n_rows;
    uint8_t at[TABLE_BYTES] = { 0 };
    uint32_t i;
    int status;

    memcpy(at, name, strnlen(name, TABLE_SPEC_NAME_MAX - 1));
    memcpy(at + 128, &r->dim, 4);
    memcpy(at + 136, &n_rows, 8);
    status = put(w, at, sizeof at);
    for (i = r->oldest; i && !status; i = r->newer[i - 1]) {
        status = put(w, &r->keys[i - 1], sizeof *r->keys);
        if (!status)
            status = put(w, r->floats + (size_t)(i - 1) * r->dim, r->dim * sizeof(float));
    }
    return status;
}

static int put_footer(struct writer *w)
{
    const uint64_t n_bytes = w->n_bytes + FOOTER_BYTES;
    const uint32_t zero = 0;
    uint32_t crc;
    int status = put(w, &n_bytes, 8);

    if (!status)
        status = put(w, &zero, 4);
    crc = w->crc;
    return status ? status : put(w, &crc, 4);
}

static int put_all(struct writer *w, const struct error_feedback_file *f,
                   struct push_encoder *e)
{
    uint32_t n_tables = 0, i;
    int status, closed;

    for (i = 0; i < push_encoder_n_tables(e); i++)
        n_tables += push_encoder_residual(e, i)->n_rows > 0;
    status = put_header(w, f, n_tables);
    for (i = 0; i < push_encoder_n_tables(e) && !status; i++)
        if (push_encoder_residual(e, i)->n_rows)
            status = put_table(w, push_encoder_table_name(e, i), push_encoder_residual(e, i));
    if (!status)
        status = put_footer(w);
    if (!status)
        status = drain(w);
    if (!status)
        status = w->files->sync(w->files->state, w->fd);
    closed = w->files->close(w->files->state, w->fd);
    return status ? status : closed;
}

/* The file under its name, for good. */
static int publish(const struct file_ops *files, const char *dir, const char *tmp,
                   const char *path)
{
    int status = files->rename(files->state, tmp, path);

    return status ? status : files->sync_dir(files->state, dir);
}

static int write_file(const struct file_ops *files, const char *dir, const char *path,
                      const struct error_feedback_file *f, struct push_encoder *e)
{
    struct writer *w = memory_try_alloc(sizeof *w);
    char tmp[ERROR_FEEDBACK_FILE_PATH_MAX + 4];
    int status;

    if (!w)
        return -ENOMEM;
    w->files = files;
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    status = files->mkdir(files->state, dir);
    if (!status)
        status = files->create(files->state, tmp, &w->fd);
    if (!status) {
        status = put_all(w, f, e);
        if (!status)
            status = publish(files, dir, tmp, path);
        if (status)
            files->unlink(files->state, tmp);
    }
    free(w);
    return status;
}

int error_feedback_file_write(const struct file_ops *files, const char *dir,
                              const struct error_feedback_file *f, struct push_encoder *e,
                              struct err *err)
{
    char path[ERROR_FEEDBACK_FILE_PATH_MAX];
    int status = file_path(dir, f->job, f->rank, path, err);

    if (status)
        return status;
    status = write_file(files, dir, path, f, e);
    return status ? err_set(err, status, "residuals cannot be written to %s: %s", path,
                            status_text(status))
                  : 0;
}

/* ---- reading ---- */

struct reader {
    const struct file_ops *files;
    const char *path;
    int fd;
    uint64_t n_bytes; /* read so far */
    uint64_t n_left;  /* to the footer: known once the file has been verified */
    struct err *err;
};

/* Exactly n_bytes, or PS_ECORRUPT. */
static int get(struct reader *r, void *dst, size_t n_bytes)
{
    uint8_t *at = dst;

    if (n_bytes > r->n_left)
        return err_set(r->err, PS_ECORRUPT, "%s is damaged: it ends too early", r->path);
    while (n_bytes) {
        int64_t n = r->files->read(r->files->state, r->fd, at, n_bytes);

        if (n < 0)
            return err_set(r->err, (int)n, "%s cannot be read: %s", r->path,
                           status_text((int)n));
        if (n == 0)
            return err_set(r->err, PS_ECORRUPT, "%s is damaged: it ends at byte %llu", r->path,
                           (unsigned long long)r->n_bytes);
        at += n;
        n_bytes -= (size_t)n;
        r->n_bytes += (uint64_t)n;
        r->n_left -= (uint64_t)n;
    }
    return 0;
}

/* Reads all; ret_crc: of all but the last 4 bytes, which come in `tail` with the 12 before
 * them. */
static int scan(struct reader *r, uint8_t *chunk, uint8_t tail[FOOTER_BYTES], uint32_t *ret_crc)
{
    size_t n_kept = 0; /* not yet in the crc: maybe the last 4 */
    uint32_t crc = 0;

    for (;;) {
        int64_t n =
            r->files->read(r->files->state, r->fd, chunk + n_kept, CHUNK_BYTES - FOOTER_BYTES);

        if (n < 0)
            return err_set(r->err, (int)n, "%s cannot be read: %s", r->path,
                           status_text((int)n));
        r->n_bytes += (uint64_t)n;
        n_kept += (size_t)n;
        if (n == 0)
            break;
        if (n_kept > FOOTER_BYTES) {
            crc = crc32c_extend(crc, chunk, n_kept - FOOTER_BYTES);
            memmove(chunk, chunk + n_kept - FOOTER_BYTES, FOOTER_BYTES);
            n_kept = FOOTER_BYTES;
        }
    }
    if (n_kept < FOOTER_BYTES)
        return err_set(r->err, PS_ECORRUPT, "%s is damaged: it ends at byte %llu", r->path,
                       (unsigned long long)r->n_bytes);
    memcpy(tail, chunk, FOOTER_BYTES);
    *ret_crc = crc32c_extend(crc, tail, FOOTER_BYTES - 4);
    return 0;
}

static int verify(struct reader *r)
{
    uint8_t *chunk = memory_try_alloc(CHUNK_BYTES), tail[FOOTER_BYTES];
    uint32_t crc = 0, want_crc;
    uint64_t want_bytes;
    int status;

    if (!chunk)
        return err_set(r->err, -ENOMEM, "no memory to read %s", r->path);
    status = scan(r, chunk, tail, &crc);
    free(chunk);
    if (status)
        return status;
    memcpy(&want_bytes, tail, 8);
    memcpy(&want_crc, tail + 12, 4);
    if (want_crc != crc || want_bytes != r->n_bytes)
        return err_set(r->err, PS_ECORRUPT,
                       "%s is damaged: its checksum is %08x, expected was %08x", r->path, crc,
                       want_crc);
    return 0;
}

static int get_header(struct reader *r, uint32_t *ret_n_tables, struct error_feedback_file *ret)
{
    uint8_t at[HEADER_BYTES];
    uint32_t version, rank, is_ended;
    int status = get(r, at, sizeof at);

    if (status)
        return status;
    memcpy(&version, at + 8, 4);
    memcpy(ret_n_tables, at + 12, 4);
    memcpy(&rank, at + 24, 4);
    memcpy(&is_ended, at + 28, 4);
    if (memcmp(at, magic, sizeof magic) != 0 || version != VERSION)
        return err_set(r->err, PS_ESPEC, "%s holds no residuals of version %u", r->path,
                       VERSION);
    if (strncmp((const char *)at + 32, ret->job, ERROR_FEEDBACK_FILE_JOB_MAX) != 0 ||
        rank != ret->rank)
        return err_set(r->err, PS_ESPEC,
                       "%s is of job \"%.63s\", rank %u; this is job \"%s\", rank %u", r->path,
                       (const char *)at + 32, rank, ret->job, ret->rank);
    memcpy(&ret->clock, at + 16, 8);
    ret->is_ended = is_ended != 0;
    return 0;
}

static int get_row(struct reader *r, struct error_feedback *into)
{
    uint64_t key;
    float *floats;
    uint32_t i;
    int status = get(r, &key, sizeof key);

    if (status)
        return status;
    if (error_feedback_find(into, key))
        return err_set(r->err, PS_ECORRUPT, "%s is damaged: key %llu stands there twice",
                       r->path, (unsigned long long)key);
    floats = error_feedback_row(into, key);
    status = get(r, floats, into->dim * sizeof *floats);
    for (i = 0; i < into->dim && !status; i++)
        if (!isfinite(floats[i]))
            status = err_set(r->err, PS_ECORRUPT,
                             "%s is damaged: the row of key %llu holds NaN or infinity",
                             r->path, (unsigned long long)key);
    return status;
}

/* The table of that name, the last if it was asked for twice; n_tables if there is none. */
static uint32_t find_table(const struct push_encoder *e, const char *name)
{
    uint32_t n_tables = push_encoder_n_tables(e), i = n_tables;

    while (i-- > 0)
        if (strncmp(push_encoder_table_name(e, i), name, TABLE_SPEC_NAME_MAX) == 0)
            return i;
    return n_tables;
}

static int get_rows(struct reader *r, struct error_feedback *into, uint64_t n_rows)
{
    int status = 0;

    if (n_rows == 0 || into->n_rows ||
        n_rows > r->n_left / (sizeof(uint64_t) + into->dim * sizeof(float)))
        return err_set(r->err, PS_ECORRUPT, "%s is damaged: %llu rows cannot stand there",
                       r->path, (unsigned long long)n_rows);
    if (n_rows > UINT32_MAX || error_feedback_reserve(into, (uint32_t)n_rows))
        return err_set(r->err, -ENOMEM, "no memory for %llu residuals out of %s",
                       (unsigned long long)n_rows, r->path);
    for (; n_rows && !status; n_rows--)
        status = get_row(r, into);
    return status;
}

static int get_table(struct reader *r, const struct push_encoder *e,
                     struct error_feedback *into)
{
    uint8_t at[TABLE_BYTES];
    const char *name = (const char *)at;
    uint64_t n_rows;
    uint32_t dim, i;
    int status = get(r, at, sizeof at);

    if (status)
        return status;
    memcpy(&dim, at + 128, 4);
    memcpy(&n_rows, at + 136, 8);
    i = find_table(e, name);
    if (i == push_encoder_n_tables(e) || dim != into[i].dim)
        return err_set(r->err, PS_ESPEC,
                       "%s is of another model: this one has no table \"%.127s\" of dim %u",
                       r->path, name, dim);
    return get_rows(r, &into[i], n_rows);
}

static int get_all(struct reader *r, struct push_encoder *e, struct error_feedback *into,
                   struct error_feedback_file *ret)
{
    uint32_t n_tables;
    int status = get_header(r, &n_tables, ret);

    for (; !status && n_tables; n_tables--)
        status = get_table(r, e, into);
    if (!status && r->n_left)
        status = err_set(r->err, PS_ECORRUPT, "%s is damaged: it goes on after its last row",
                         r->path);
    return status;
}

/* From the start, as every pass over it. */
static int open_file(struct reader *r)
{
    int status = r->files->open_read(r->files->state, r->path, &r->fd);

    r->n_bytes = 0;
    if (status == -ENOENT)
        return err_set(r->err, -ENOENT, "there is no %s", r->path);
    return status
               ? err_set(r->err, status, "%s cannot be read: %s", r->path, status_text(status))
               : 0;
}

static int check_file(struct reader *r)
{
    int status = open_file(r);

    if (status)
        return status;
    status = verify(r);
    r->files->close(r->files->state, r->fd);
    r->n_left = r->n_bytes - FOOTER_BYTES;
    return status;
}

static int read_file(struct reader *r, struct push_encoder *e, struct error_feedback *into,
                     struct error_feedback_file *ret)
{
    int status = open_file(r);

    if (status)
        return status;
    status = get_all(r, e, into, ret);
    r->files->close(r->files->state, r->fd);
    return status;
}

int error_feedback_file_read(const struct file_ops *files, const char *dir,
                             struct push_encoder *e, struct error_feedback_file *ret,
                             struct err *err)
{
    uint32_t n_tables = push_encoder_n_tables(e), i;
    struct error_feedback_file found = *ret;
    char path[ERROR_FEEDBACK_FILE_PATH_MAX];
    struct reader r = { .files = files, .path = path, .err = err };
    struct error_feedback *into;
    int status = file_path(dir, ret->job, ret->rank, path, err);

    if (!status)
        status = check_file(&r);
    if (status)
        return status;
    into = memory_try_alloc((n_tables + 1) * sizeof *into);
    if (!into)
        return err_set(err, -ENOMEM, "no memory to read %s", path);
    for (i = 0; i < n_tables; i++) {
        error_feedback_init(&into[i], push_encoder_residual(e, i)->dim);
        into[i].rows_max = push_encoder_residual(e, i)->rows_max;
    }
    status = read_file(&r, e, into, &found);
    for (i = 0; i < n_tables; i++) {
        struct error_feedback *own = push_encoder_residual(e, i), old = *own;

        if (!status) {
            *own = into[i];
            into[i] = old;
        }
        error_feedback_deinit(&into[i]);
    }
    free(into);
    if (!status)
        *ret = found;
    return status;
}
