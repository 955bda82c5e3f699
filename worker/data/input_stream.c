#include "worker/data/input_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "common/memory.h"
#include "worker/data/parquet_file.h"

#define PACKED_BYTES (128u * 1024u)
#define MAGIC_BYTES 4u

enum packing { PLAIN, ZSTD, GZIP };

struct input_stream {
    const char *name;        /* of its path in sentences; owned, behind the struct */
    struct input_pipe *pipe; /* borrowed; NULL: fd */
    int fd;
    enum packing packing;
    bool fd_ended;
    bool in_frame;                /* packed data has begun and not ended */
    size_t start, end;            /* of what is in `packed` */
    ZSTD_DCtx *zstd;              /* owned */
    z_stream gzip;                /* while packing == GZIP */
    uint8_t packed[PACKED_BYTES]; /* as it stands in the file */
};

static int refill_from_pipe(struct input_stream *s, struct err *err)
{
    size_t n = 0;
    int status =
        input_pipe_read(s->pipe, s->packed + s->end, sizeof s->packed - s->end, &n, err);

    s->end += n;
    s->fd_ended = n == 0;
    return status;
}

/* Adds what one read() gives. */
static int refill(struct input_stream *s, struct err *err)
{
    ssize_t n;

    if (s->start == s->end)
        s->start = s->end = 0;
    if (s->pipe)
        return refill_from_pipe(s, err);
    do
        n = read(s->fd, s->packed + s->end, sizeof s->packed - s->end);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_set(err, -errno, "%s: cannot read: %s", s->name, strerror(errno));
    s->end += (size_t)n;
    s->fd_ended = n == 0;
    return 0;
}

/* A zstd frame, or a skippable one, which may stand before it. RFC 8878, 3.1. */
static bool is_zstd(const uint8_t *bytes, size_t n_bytes)
{
    static const uint8_t frame[4] = { 0x28, 0xb5, 0x2f, 0xfd };
    static const uint8_t skippable[3] = { 0x2a, 0x4d, 0x18 };

    return n_bytes >= MAGIC_BYTES &&
           (memcmp(bytes, frame, 4) == 0 ||
            ((bytes[0] & 0xf0) == 0x50 && memcmp(bytes + 1, skippable, 3) == 0));
}

/* RFC 1952, 2.3.1. */
static bool is_gzip(const uint8_t *bytes, size_t n_bytes)
{
    return n_bytes >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

static bool ends_with(const char *text, const char *tail)
{
    size_t n = strlen(text), n_tail = strlen(tail);

    return n >= n_tail && strcmp(text + n - n_tail, tail) == 0;
}

static int start_unpacking(struct input_stream *s, struct err *err)
{
    if (is_zstd(s->packed, s->end)) {
        s->packing = ZSTD;
        s->zstd = ZSTD_createDCtx();
        return s->zstd ? 0 : err_set(err, -ENOMEM, "%s: no memory to unpack it", s->name);
    }
    if (is_gzip(s->packed, s->end)) {
        /* 15 + 16: the largest window, gzip's header. */
        if (inflateInit2(&s->gzip, 15 + 16) != Z_OK)
            return err_set(err, -ENOMEM, "%s: no memory to unpack it", s->name);
        s->packing = GZIP;
        return 0;
    }
    if (parquet_file_begins(s->packed, s->end))
        return err_set(err, PS_EDATA,
                       "%s: is Parquet, which is read from its end: name a file, not a pipe",
                       s->name);
    if (!input_pipe_is_stopped(s->pipe) &&
        (ends_with(s->name, ".zst") || ends_with(s->name, ".gz")))
        return err_set(err, PS_EDATA,
                       "%s: its name says that it is packed, its first bytes do not%s", s->name,
                       s->end == 0 ? " (it is empty)" : "");
    return 0;
}

int input_stream_open(const char *path, struct input_pipe *pipe,
                      struct input_stream **ret_source, struct err *err)
{
    const char *name = input_pipe_name(path);
    size_t name_bytes = strlen(name) + 1;
    struct input_stream *s = memory_try_alloc(sizeof *s + name_bytes);
    int status = 0;

    if (!s)
        return err_set(err, -ENOMEM, "%s: no memory to read it", name);
    s->name = memcpy(s + 1, name, name_bytes);
    s->pipe = pipe;
    s->fd = pipe ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0 && !pipe)
        status = err_set(err, -errno, "%s: cannot open: %s", name, strerror(errno));
    while (!status && s->end < MAGIC_BYTES && !s->fd_ended)
        status = refill(s, err);
    if (!status)
        status = start_unpacking(s, err);
    if (status) {
        input_stream_close(s);
        return status;
    }
    *ret_source = s;
    return 0;
}

void input_stream_close(struct input_stream *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    if (s->packing == GZIP)
        inflateEnd(&s->gzip);
    ZSTD_freeDCtx(s->zstd);
    free(s);
}

static int unpack_zstd(struct input_stream *s, void *dst, size_t n_bytes, size_t *ret_n,
                       struct err *err)
{
    ZSTD_inBuffer in = { .src = s->packed, .size = s->end, .pos = s->start };
    ZSTD_outBuffer out = { .dst = dst, .size = n_bytes };
    size_t left = ZSTD_decompressStream(s->zstd, &out, &in);

    if (ZSTD_isError(left))
        return err_set(err, PS_EDATA, "%s: cannot unpack its zstd data: %s", s->name,
                       ZSTD_getErrorName(left));
    s->start = in.pos;
    s->in_frame = left != 0;
    *ret_n = out.pos;
    return 0;
}

/* Behind a gzip member stands another one, or nothing. */
static int begin_member(struct input_stream *s, struct err *err)
{
    if (s->in_frame)
        return 0;
    if (s->packed[s->start] != 0x1f)
        return err_set(err, PS_EDATA, "%s: bytes that are not gzip follow its gzip data",
                       s->name);
    inflateReset(&s->gzip);
    s->in_frame = true;
    return 0;
}

static int unpack_gzip(struct input_stream *s, void *dst, size_t n_bytes, size_t *ret_n,
                       struct err *err)
{
    int status = begin_member(s, err), z;

    if (status)
        return status;
    s->gzip.next_in = s->packed + s->start;
    s->gzip.avail_in = (uInt)(s->end - s->start);
    s->gzip.next_out = dst;
    s->gzip.avail_out = (uInt)n_bytes;
    z = inflate(&s->gzip, Z_NO_FLUSH);
    if (z != Z_OK && z != Z_STREAM_END && z != Z_BUF_ERROR)
        return err_set(err, PS_EDATA, "%s: cannot unpack its gzip data: %s", s->name,
                       s->gzip.msg ? s->gzip.msg : zError(z));
    s->start = s->end - s->gzip.avail_in;
    s->in_frame = z != Z_STREAM_END;
    *ret_n = n_bytes - s->gzip.avail_out;
    return 0;
}

static size_t copy_plain(struct input_stream *s, void *dst, size_t n_bytes)
{
    size_t n = s->end - s->start < n_bytes ? s->end - s->start : n_bytes;

    memcpy(dst, s->packed + s->start, n);
    s->start += n;
    return n;
}

/* With nothing packed left, an unpacker may still hold text: it is asked once more before the
 * file counts as short. */
static int read_step(struct input_stream *s, void *dst, size_t n_bytes, size_t *ret_n,
                     struct err *err)
{
    switch (s->packing) {
    case ZSTD:
        return unpack_zstd(s, dst, n_bytes, ret_n, err);
    case GZIP:
        return unpack_gzip(s, dst, n_bytes, ret_n, err);
    case PLAIN:
        break;
    }
    *ret_n = copy_plain(s, dst, n_bytes);
    return 0;
}

int input_stream_read(struct input_stream *s, void *dst, size_t n_bytes, size_t *ret_n_bytes,
                      struct err *err)
{
    int status = 0;

    /* inflate() counts in 32 bits; a caller that wants more gets it in parts. */
    n_bytes = n_bytes < (1u << 30) ? n_bytes : 1u << 30;
    *ret_n_bytes = 0;
    while (!status && *ret_n_bytes == 0) {
        if (s->start == s->end && !s->fd_ended && (status = refill(s, err)) != 0)
            return status;
        if (s->start == s->end && !s->in_frame)
            return 0;
        status = read_step(s, dst, n_bytes, ret_n_bytes, err);
        if (!status && *ret_n_bytes == 0 && s->fd_ended && input_pipe_is_stopped(s->pipe))
            return 0;
        if (!status && *ret_n_bytes == 0 && s->fd_ended && s->in_frame)
            return err_set(err, PS_EDATA, "%s: the packed data ends too early", s->name);
    }
    return status;
}
