#include "proto/message_zstd.h"

#include <errno.h>
#include <string.h>

#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_d_stableOutBuffer */
#include <zstd.h>

#include "common/status.h"

void message_zstd_deinit(struct message_zstd *z)
{
    ZSTD_freeCCtx(z->compress);
    ZSTD_freeDCtx(z->decompress);
    ZSTD_freeDCtx(z->slices);
    bytes_deinit(&z->packed);
    *z = (struct message_zstd){ 0 };
}

/* Space for n_bytes of a packed body. NULL: no memory. */
static uint8_t *make_ready(struct message_zstd *z, size_t n_bytes)
{
    if (!z->compress)
        z->compress = ZSTD_createCCtx();
    z->packed.start = z->packed.end = 0;
    return z->compress ? bytes_reserve(&z->packed, n_bytes) : NULL;
}

size_t message_zstd_compress(struct message_zstd *z, uint8_t *body, size_t n_bytes)
{
    size_t space = n_bytes - n_bytes / 16, n;
    uint8_t *packed;

    if (n_bytes < MESSAGE_ZSTD_BYTES_MIN)
        return n_bytes;
    packed = make_ready(z, space);
    if (!packed)
        return n_bytes;
    /* Where the space ends, it would not pay: zstd gives up there by itself. */
    n = ZSTD_compressCCtx(z->compress, packed, space, body, n_bytes, MESSAGE_ZSTD_LEVEL);
    if (ZSTD_isError(n))
        return n_bytes;
    memcpy(body, packed, n);
    return n;
}

int message_zstd_size(const uint8_t *src, size_t n_bytes, uint32_t max_bytes, size_t *ret_bytes)
{
    unsigned long long want = ZSTD_getFrameContentSize(src, n_bytes);

    /* 0: our writer never sends it, but zstd says so of a frame to be skipped. */
    if (want == ZSTD_CONTENTSIZE_UNKNOWN || want == ZSTD_CONTENTSIZE_ERROR || want == 0)
        return PS_ECORRUPT;
    if (want > max_bytes)
        return PS_ETOOBIG;
    *ret_bytes = (size_t)want;
    return 0;
}

int message_zstd_decompress(struct message_zstd *z, const uint8_t *src, size_t n_bytes,
                            uint32_t max_bytes, struct bytes *scratch)
{
    size_t want;
    uint8_t *space;
    int status = message_zstd_size(src, n_bytes, max_bytes, &want);

    if (status)
        return status;
    if (ZSTD_findFrameCompressedSize(src, n_bytes) != n_bytes)
        return PS_ECORRUPT;
    scratch->start = scratch->end = 0;
    space = bytes_reserve(scratch, want);
    if (!z->decompress)
        z->decompress = ZSTD_createDCtx();
    if (!space || !z->decompress)
        return -ENOMEM;
    if (ZSTD_decompressDCtx(z->decompress, space, want, src, n_bytes) != want)
        return PS_ECORRUPT;
    bytes_commit(scratch, want);
    return 0;
}

/* It decompresses to where the body is to be, without a window of its own, whatever window the frame names. */
static struct ZSTD_DCtx_s *new_slices(void)
{
    struct ZSTD_DCtx_s *ctx = ZSTD_createDCtx();

    if (ctx &&
        (ZSTD_isError(ZSTD_DCtx_setParameter(ctx, ZSTD_d_stableOutBuffer, 1)) ||
         ZSTD_isError(ZSTD_DCtx_setParameter(ctx, ZSTD_d_windowLogMax, ZSTD_WINDOWLOG_MAX)))) {
        ZSTD_freeDCtx(ctx);
        ctx = NULL;
    }
    return ctx;
}

int message_zstd_begin(struct message_zstd *z, const uint8_t *src, size_t n_bytes, uint8_t *dst,
                       size_t dst_bytes, struct message_zstd_slices *ret)
{
    if (!z->slices)
        z->slices = new_slices();
    if (!z->slices)
        return -ENOMEM;
    (void)ZSTD_DCtx_reset(z->slices, ZSTD_reset_session_only);
    *ret = (struct message_zstd_slices){ .src = src,
                                         .n_bytes = n_bytes,
                                         .next_bytes = ZSTD_FRAMEHEADERSIZE_MIN(ZSTD_f_zstd1),
                                         .dst = dst,
                                         .dst_bytes = dst_bytes };
    return 0;
}

int message_zstd_more(struct message_zstd *z, struct message_zstd_slices *s, size_t slice_bytes,
                      bool *ret_done)
{
    size_t until = s->n_done + slice_bytes, read_until = s->n_read + slice_bytes / 8;
    ZSTD_outBuffer out = { s->dst, s->dst_bytes, s->n_done };

    /* zstd asks for its next block, and decompresses no more than it is given. (A block may be empty.) */
    while (s->next_bytes && s->n_done < until && s->n_read < read_until) {
        size_t left = s->n_bytes - s->n_read;
        ZSTD_inBuffer in = { s->src + s->n_read, s->next_bytes < left ? s->next_bytes : left,
                             0 };

        s->next_bytes = ZSTD_decompressStream(z->slices, &out, &in);
        if (ZSTD_isError(s->next_bytes) || (!in.pos && out.pos == s->n_done))
            return PS_ECORRUPT;
        s->n_read += in.pos;
        s->n_done = out.pos;
    }
    *ret_done = !s->next_bytes;
    return *ret_done && (s->n_done != s->dst_bytes || s->n_read != s->n_bytes) ? PS_ECORRUPT
                                                                               : 0;
}
