/*
 * The largest floats of a difference, each as a power of two (natural compression: Horvath et al., MSML 2022; top-k
 * with error feedback: Stich et al., NeurIPS 2018). For dense tables whose pushes are top-k: between two pulls few of
 * their floats change.
 *
 *     n u16, 1 to dim | scale: the upper half of an f32, positive | n floats as bits, from the lowest of each byte on;
 *     the last byte's are filled up with zeroes
 *
 *     a float     g >> k ones, a zero, the lower k bits of g | sign | level, 3 bits
 *     g           its place, less that of the float before and 1; of the first one: its place
 *     k           the largest with n << k <= dim (Rice's code)
 *     value       scale / 2^level; with the sign bit negative
 */
#ifndef SERVER_CORE_DELTA_SPARSE_H
#define SERVER_CORE_DELTA_SPARSE_H

#include <stddef.h>

#include "common/base.h"

/* Writes the fewest of the largest floats of x such that the squares of what is lost sum up to at most `allowed`, but
 * no more than a share of dim: what is left comes with a later difference. x: finite, not all zero. Returns the bytes
 * written, at most max_bytes; 0: they do not suffice. sent[dim]: what the bytes say. */
size_t delta_sparse_encode(const float *x, uint32_t dim, double allowed, uint8_t *dst,
                           size_t max_bytes, float *sent);

/* All of dst[dim]; *ret_bytes of n_bytes were read. PS_ECOUNT: there are too few; PS_ECODEC. */
int delta_sparse_decode(const uint8_t *src, size_t n_bytes, uint32_t dim, float *dst,
                        size_t *ret_bytes) MUST_CHECK;

#endif
