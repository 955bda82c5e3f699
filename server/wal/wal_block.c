#include "server/wal/wal_block.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

#include "common/crc32c.h"
#include "common/memory.h"

#define ZSTD_LEVEL 1
#define ZSTD_BYTES_MIN 512u /* less cannot repay the frame and the call */

static const char magic[4] = "BLK\n";

struct wal_block *wal_block_new(size_t cap_bytes)
{
    /* Not zeroed: it is written before it is read. */
    struct wal_block *block =
        memory_try_realloc(NULL, sizeof *block + WAL_BLOCK_HEADER_BYTES + cap_bytes);

    if (!block)
        return NULL;
    *block = (struct wal_block){ .cap_bytes = cap_bytes };
    wal_block_clear(block);
    return block;
}

void wal_block_free(struct wal_block *first)
{
    while (first) {
        struct wal_block *next = first->next;

        free(first);
        first = next;
    }
}

void wal_block_clear(struct wal_block *block)
{
    block->next = NULL;
    block->first = 1;
    block->last = 0;
    block->version = 0;
    block->gap = block->begins_segment = false;
    block->n_bytes = 0;
}

static void encode_head(uint8_t *dst, uint32_t segment_crc, const struct wal_block_head *head)
{
    const uint32_t sizes[] = { head->n_records, head->raw_bytes, head->stored_bytes, 0,
                               head->stored_crc };
    uint32_t crc;

    memcpy(dst, magic, sizeof magic);
    memcpy(dst + 4, &head->flags, 4);
    memcpy(dst + 8, &head->first, 8);
    memcpy(dst + 16, &head->durable, 8);
    memcpy(dst + 24, sizes, sizeof sizes);
    crc = crc32c_extend(segment_crc, dst, 44);
    memcpy(dst + 44, &crc, 4);
}

void wal_block_zstd_deinit(struct wal_block_zstd *z)
{
    ZSTD_freeCCtx(z->context);
    bytes_deinit(&z->bytes);
    *z = (struct wal_block_zstd){ 0 };
}

/* Behind the room for a header; its length, or 0 where it does not pay. */
static size_t compress(struct wal_block *block, struct wal_block_zstd *z)
{
    size_t max_bytes = block->n_bytes - block->n_bytes / 8, n;
    uint8_t *dst;

    if (!z || block->n_bytes < ZSTD_BYTES_MIN)
        return 0;
    z->bytes.start = z->bytes.end = 0;
    dst = bytes_reserve(&z->bytes, WAL_BLOCK_HEADER_BYTES + wal_block_padded(max_bytes));
    if (!z->context)
        z->context = ZSTD_createCCtx();
    if (!dst || !z->context)
        return 0;
    /* Beyond max_bytes it would not pay: zstd gives up there. */
    n = ZSTD_compressCCtx(z->context, dst + WAL_BLOCK_HEADER_BYTES, max_bytes,
                          wal_block_records(block), block->n_bytes, ZSTD_LEVEL);
    return ZSTD_isError(n) ? 0 : n;
}

void wal_block_seal(struct wal_block *block, uint32_t segment_crc, uint64_t durable,
                    struct wal_block_zstd *zstd, const uint8_t **ret_bytes, size_t *ret_n_bytes)
{
    struct wal_block_head head = { .first = block->first,
                                   .durable = durable,
                                   .n_records = (uint32_t)(block->last - block->first + 1),
                                   .raw_bytes = (uint32_t)block->n_bytes };
    uint8_t *dst = block->bytes;
    size_t n, n_padded = block->n_bytes;

    for (size_t at = 0; at < block->n_bytes;)
        at += wal_record_seal(wal_block_records(block) + at, &head.stored_crc);
    n = compress(block, zstd);
    if (n) {
        head.flags = WAL_BLOCK_ZSTD;
        dst = zstd->bytes.bytes;
        n_padded = wal_block_padded(n);
        memset(dst + WAL_BLOCK_HEADER_BYTES + n, 0, n_padded - n);
        head.stored_crc = crc32c_extend(0, dst + WAL_BLOCK_HEADER_BYTES, n_padded);
    }
    head.stored_bytes = (uint32_t)(n ? n : block->n_bytes);
    encode_head(dst, segment_crc, &head);
    *ret_bytes = dst;
    *ret_n_bytes = WAL_BLOCK_HEADER_BYTES + n_padded;
}

void wal_block_seal_end(uint8_t dst[static WAL_BLOCK_HEADER_BYTES], uint32_t segment_crc,
                        uint64_t last, uint64_t durable)
{
    encode_head(dst, segment_crc,
                &(struct wal_block_head){ .first = last + 1, .durable = durable });
}

const char *wal_block_decode(const uint8_t src[static WAL_BLOCK_HEADER_BYTES],
                             uint32_t segment_crc, struct wal_block_head *ret)
{
    uint32_t sizes[5], crc;

    memcpy(&ret->flags, src + 4, 4);
    memcpy(&ret->first, src + 8, 8);
    memcpy(&ret->durable, src + 16, 8);
    memcpy(sizes, src + 24, sizeof sizes);
    memcpy(&crc, src + 44, 4);
    ret->n_records = sizes[0];
    ret->raw_bytes = sizes[1];
    ret->stored_bytes = sizes[2];
    ret->stored_crc = sizes[4];
    if (memcmp(src, magic, sizeof magic) != 0)
        return "no block begins here";
    if (crc != crc32c_extend(segment_crc, src, 44))
        return "a block's header fails its checksum";
    if (ret->flags & ~(uint32_t)WAL_BLOCK_FLAGS_KNOWN)
        return "a block has unknown flags";
    if (ret->raw_bytes > WAL_RECORD_BYTES_MAX || ret->stored_bytes > ret->raw_bytes ||
        ret->raw_bytes / WAL_RECORD_HEADER_BYTES < ret->n_records ||
        ret->durable >= ret->first || ret->n_records > UINT64_MAX - ret->first)
        return "a block's counts and lengths do not fit";
    if (!(ret->flags & WAL_BLOCK_ZSTD) && ret->stored_bytes != ret->raw_bytes)
        return "a block's lengths differ";
    return NULL;
}

int wal_block_open(const struct wal_block_head *head, const uint8_t *stored,
                   struct bytes *scratch, const uint8_t **ret_records)
{
    uint8_t *space;

    if (crc32c_extend(0, stored, wal_block_padded(head->stored_bytes)) != head->stored_crc)
        return PS_ECORRUPT;
    *ret_records = stored;
    if (!(head->flags & WAL_BLOCK_ZSTD))
        return 0;
    scratch->start = scratch->end = 0;
    space = bytes_reserve(scratch, head->raw_bytes);
    if (!space)
        return -ENOMEM;
    if (ZSTD_decompress(space, head->raw_bytes, stored, head->stored_bytes) != head->raw_bytes)
        return PS_ECORRUPT;
    *ret_records = space;
    return 0;
}
