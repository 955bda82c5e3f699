/*
 * CRC-32C (Castagnoli; RFC 3720, B.4), by ISA-L, which picks the fastest kernel for the CPU.
 */
#ifndef COMMON_CRC_H
#define COMMON_CRC_H

#include "common/base.h"

/* The crc of what `crc` covers (0: nothing yet) followed by these bytes.
 * crc_extend(0, "123456789", 9) = 0xe3069283. */
uint32_t crc_extend(uint32_t crc, const void *bytes, size_t n_bytes);

#endif
