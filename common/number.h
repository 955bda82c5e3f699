/*
 * Numbers as people type them: counts, sizes (64M), times (30s), fractions; and back.
 *
 * Reading takes the whole text and nothing else: no blanks, no sign on a count, no number that
 * the type cannot hold. 0, or -EINVAL with *ret untouched.
 */
#ifndef COMMON_NUMBER_H
#define COMMON_NUMBER_H

#include "common/base.h"

#define NUMBER_TEXT_MAX 32u /* what a written number takes at most, with NUL */

/* Decimal digits. */
int number_read_u64(const char *text, uint64_t *ret) MUST_CHECK;

/* Digits, then nothing or one of K M G T (k m g t): powers of 1024. */
int number_read_bytes(const char *text, uint64_t *ret) MUST_CHECK;

/* Digits, then ms, s, m or h; in milliseconds. Only 0 may stand without its unit. */
int number_read_ms(const char *text, uint64_t *ret) MUST_CHECK;

/* Decimal, finite, and not so small that a float makes it 0. */
int number_read_float(const char *text, float *ret) MUST_CHECK;

/* The shortest text that reads back as the same number. */
void number_write_bytes(uint64_t n_bytes, char dst[NUMBER_TEXT_MAX]);
void number_write_ms(uint64_t ms, char dst[NUMBER_TEXT_MAX]);
void number_write_float(float x, char dst[NUMBER_TEXT_MAX]);

/* The end of a noun behind its number, of any type: printf("%u shard%s", n, NUMBER_PLURAL(n)). */
#define NUMBER_PLURAL(n) ((n) == 1 ? "" : "s")

#endif
