#include "proto/message_zstd.h"

#include <errno.h>
#include <string.h>

#include <zstd.h>

#include "common/status.h"

void message_zstd_deinit(struct message_zstd *z)
{
    ZSTD_freeCCtx(z->compress);
    ZSTD_freeDCtx(z->decompress);
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
    if (ZSTD_findFrameCompressedSize(src, n_bytes) != n_bytes)
        return PS_ECORRUPT;
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
