#include "common/crc32c.h"

#include <isa-l/crc.h>

/* ISA-L takes an int. A power of two keeps the later chunks as aligned as the first. */
#define CHUNK_BYTES_MAX ((size_t)1 << 30)

uint32_t crc32c_extend(uint32_t crc, const void *bytes, size_t n_bytes)
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

/* --- combining: polynomials over GF(2), modulo CRC-32C's, with the bits reversed --- */

#define POLYNOMIAL 0x82f63b78u
#define ONE (UINT32_C(1) << 31) /* x^0 */

/* a * b */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (; a; a <<= 1) {
        product ^= b & (0u - (a >> 31));
        b = b >> 1 ^ (POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

/* Appending n bytes multiplies a crc by x^(8n) (M. Adler's crc32_combine() in zlib). */
uint32_t crc32c_combine(uint32_t first, uint32_t second, size_t n_bytes)
{
    /* [i]: x^(2^i) */
    static const uint32_t powers[31] = {
        0x40000000, 0x20000000, 0x08000000, 0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c,
        0x18b8ea18, 0x510ac59a, 0xb82be955, 0xb8fdb1e7, 0x88e56f72, 0x74c360a4, 0xe4172b16,
        0x0d65762a, 0x35d73a62, 0x28461564, 0xbf455269, 0xe2ea32dc, 0xfe7740e6, 0xf946610b,
        0x3c204f8f, 0x538586e3, 0x59726915, 0x734d5309, 0xbc1ac763, 0x7d0722cc, 0xd289cabe,
        0xe94ca9bc, 0x05b74f3f, 0xa51e1f42
    };
    uint32_t shift = ONE;

    /* x^(2^31) is x again. */
    for (size_t i = 3; n_bytes; n_bytes >>= 1, i = (i + 1) % COUNT_OF(powers))
        if (n_bytes & 1)
            shift = multiply(shift, powers[i]);
    return multiply(first, shift) ^ second;
}
