/* Stands in for common/crc.c: every checksum is right where it is written as 0, so that the fuzzer
 * gets behind them without having to know where they are. That a wrong one is noticed is what the unit
 * tests of each format are for. */
#include "common/crc.h"

uint32_t crc_extend(uint32_t crc, const void *bytes, size_t n_bytes)
{
    (void)crc, (void)bytes, (void)n_bytes;
    return 0;
}
