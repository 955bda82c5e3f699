/*
 * CRC-32C (Castagnoli; RFC 3720, B.4), by ISA-L, which picks the fastest kernel for the CPU.
 */
#ifndef COMMON_CRC32C_H
#define COMMON_CRC32C_H

#include "common/base.h"

/* Extends `crc` (0: of no bytes) by these bytes.
 * crc32c_extend(0, "123456789", 9) = 0xe3069283. */
uint32_t crc32c_extend(uint32_t crc, const void *bytes, size_t n_bytes);

/* crc32c_extend(first, ...) with the n_bytes that `second` covers, without reading these bytes. Costs up to about 1 us,
 * whatever n_bytes is. */
uint32_t crc32c_combine(uint32_t first, uint32_t second, size_t n_bytes);

#endif
