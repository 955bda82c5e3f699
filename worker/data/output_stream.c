#include "worker/data/output_stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "common/memory.h"

#define ZSTD_LEVEL 3

struct output_stream {
    const char *path; /* owned, behind the struct */
    FILE *file;       /* owned, unless it is stdout */
    ZSTD_CCtx *zstd;  /* owned; NULL: plain */
    size_t space_bytes;
    void *space; /* owned; packed text on its way to the file */
};

static int write_failed(const struct output_stream *s, struct err *err)
{
    int status = errno ? -errno : -EIO;

    return err_set(err, status, "%s: cannot write: %s", s->path, strerror(-status));
}

static int start_packing(struct output_stream *s, struct err *err)
{
    size_t len = strlen(s->path);

    if (len < 4 || strcmp(s->path + len - 4, ".zst") != 0)
        return 0;
    s->space_bytes = ZSTD_CStreamOutSize();
    s->space = memory_try_alloc(s->space_bytes);
    s->zstd = ZSTD_createCCtx();
    if (!s->space || !s->zstd)
        return err_set(err, -ENOMEM, "%s: no memory to pack it", s->path);
    ZSTD_CCtx_setParameter(s->zstd, ZSTD_c_compressionLevel, ZSTD_LEVEL);
    ZSTD_CCtx_setParameter(s->zstd, ZSTD_c_checksumFlag, 1);
    return 0;
}

int output_stream_open(const char *path, struct output_stream **ret_sink, struct err *err)
{
    size_t path_bytes = strlen(path) + 1;
    struct output_stream *s = memory_try_alloc(sizeof *s + path_bytes);
    int status;

    if (!s)
        return err_set(err, -ENOMEM, "%s: no memory to write it", path);
    s->path = memcpy(s + 1, path, path_bytes);
    s->file = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
    status = s->file ? start_packing(s, err) : write_failed(s, err);
    if (status)
        return output_stream_close(s, status, err);
    *ret_sink = s;
    return 0;
}

/* Packs what is in `in`; with ZSTD_e_end also finishes the frame. */
static int pack(struct output_stream *s, ZSTD_inBuffer *in, ZSTD_EndDirective directive,
                struct err *err)
{
    size_t left;

    do {
        ZSTD_outBuffer out = { .dst = s->space, .size = s->space_bytes };

        left = ZSTD_compressStream2(s->zstd, &out, in, directive);
        if (ZSTD_isError(left))
            return err_set(err, -ENOMEM, "%s: cannot pack: %s", s->path,
                           ZSTD_getErrorName(left));
        errno = 0;
        if (fwrite(s->space, 1, out.pos, s->file) != out.pos)
            return write_failed(s, err);
    } while (directive == ZSTD_e_end ? left != 0 : in->pos < in->size);
    return 0;
}

int output_stream_write(struct output_stream *s, const void *bytes, size_t n_bytes,
                        struct err *err)
{
    ZSTD_inBuffer in = { .src = bytes, .size = n_bytes };

    if (s->zstd)
        return pack(s, &in, ZSTD_e_continue, err);
    errno = 0;
    return fwrite(bytes, 1, n_bytes, s->file) == n_bytes ? 0 : write_failed(s, err);
}

/* A file of ours that is not finished is of no use; a device or a pipe is not ours to
 * remove. */
static void remove_file(const struct output_stream *s)
{
    struct stat st;

    if (lstat(s->path, &st) == 0 && S_ISREG(st.st_mode))
        unlink(s->path);
}

int output_stream_close(struct output_stream *s, int status, struct err *err)
{
    ZSTD_inBuffer nothing = { 0 };

    if (!status && s->zstd)
        status = pack(s, &nothing, ZSTD_e_end, err);
    errno = 0;
    if (s->file && fflush(s->file) != 0 && !status)
        status = write_failed(s, err);
    if (s->file && s->file != stdout) {
        if (fclose(s->file) != 0 && !status)
            status = write_failed(s, err);
        if (status)
            remove_file(s);
    }
    ZSTD_freeCCtx(s->zstd);
    free(s->space);
    free(s);
    return status;
}
