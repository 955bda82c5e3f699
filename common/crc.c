#include "common/crc.h"

#include <isa-l/crc.h>

/* ISA-L takes an int. A power of two keeps the later chunks as aligned as the first. */
#define CHUNK_BYTES_MAX ((size_t)1 << 30)

uint32_t crc_extend(uint32_t crc, const void *bytes, size_t n_bytes)
{
    const unsigned char *at = bytes;
    size_t n;

    /* ISA-L leaves out the inversion at both ends that the standard asks for. */
    for (crc = ~crc; n_bytes > 0; at += n, n_bytes -= n) {
        n = n_bytes < CHUNK_BYTES_MAX ? n_bytes : CHUNK_BYTES_MAX;
        crc = crc32_iscsi((unsigned char *)at, (int)n, crc);
    }
    return ~crc;
}
