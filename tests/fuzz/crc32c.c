/* Stands in for common/crc32c.c: every checksum is right where it is written as 0, so that the fuzzer
 * gets behind them without having to know where they are. That a wrong one is noticed is what the unit
 * tests of each format are for. */
#include "common/crc32c.h"

uint32_t crc32c_extend(uint32_t crc, const void *bytes, size_t n_bytes)
{
    (void)crc, (void)bytes, (void)n_bytes;
    return 0;
}

uint32_t crc32c_combine(uint32_t first, uint32_t second, size_t n_bytes)
{
    (void)first, (void)second, (void)n_bytes;
    return 0;
}
