/*
 * Counter-based randomness and key mixing: pure functions of their arguments,
 * so that the same (seed, key, i) gives the same number wherever and whenever
 * it is asked for. No state, no clock, no library.
 *
 * splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
 * generators", OOPSLA 2014 (the finaliser is David Stafford's mix 13).
 */
#ifndef COMMON_HASH_H
#define COMMON_HASH_H

#include "common/base.h"

/* A bijection of 64 bits in which every input bit reaches every output bit. */
HOST_DEVICE static inline uint64_t hash_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

HOST_DEVICE static inline uint64_t hash_mix2(uint64_t a, uint64_t b)
{
    return hash_mix(hash_mix(a) ^ b);
}

/* In [0, 1), from the upper 24 bits: exact in a float. */
HOST_DEVICE static inline float hash_unit(uint64_t h)
{
    return (float)(h >> 40) * 0x1p-24f;
}

#endif
