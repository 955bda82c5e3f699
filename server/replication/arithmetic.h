/*
 * A fingerprint of how this process computes. Weights that a primary and its standby compute each for itself come from
 * libm (initial weights, Adam's corrections, learning rates) and from kernels that are built for several processors. On
 * another processor, or with another libm, a result may differ in its last bit.
 *
 *     "avx512 glibc-2.36 1a2b3c4d"     the kernels' build, libc, and a crc32c of many results
 */
#ifndef SERVER_REPLICATION_ARITHMETIC_H
#define SERVER_REPLICATION_ARITHMETIC_H

#define ARITHMETIC_MAX 64u /* with NUL */

/* Takes some milliseconds. */
void arithmetic_fingerprint(char ret[static ARITHMETIC_MAX]);

#endif
