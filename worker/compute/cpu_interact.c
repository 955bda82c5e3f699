/*
 * Pairwise dot products of a sample's vectors. A product of 27 x 16 floats is too small for a
 * call of sgemm each, so the vectors are transposed in tiles and one vector unit works on
 * CPU_LANES pairs (i, j), (i, j + 1), ... at once; each pair's sum still runs over d ascending.
 */
#include "worker/compute/cpu.h"

#include <string.h>

enum { TILE_DEPTH = 64 };

/* Where row i of the pairs begins. */
static inline size_t row_start(uint32_t i, uint32_t self)
{
    return ((size_t)i * i + i) / 2 - (self ? 0 : i);
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* tile[d][k] = element d of vector k; vectors past n_vectors count as 0. */
static inline void load_tile(const float *t, uint32_t dim, uint32_t n_vectors, uint32_t depth,
                             cpu_lanes *tile)
{
    const uint32_t width = min_u32(n_vectors, CPU_LANES);

    for (uint32_t d = 0; d < depth; d++) {
        cpu_lanes row = { 0 };

        for (uint32_t k = 0; k < width; k++)
            row[k] = t[(size_t)k * dim + d];
        tile[d] = row;
    }
}

/* z[k] (+)= v . column k of the tile, for the first n of them. */
static inline void dot_tile(const float *v, uint32_t depth, const cpu_lanes *tile, uint32_t n,
                            float *z, uint32_t d0)
{
    cpu_lanes acc = { 0 };

    if (d0)
        memcpy(&acc, z, n * sizeof *z);
    for (uint32_t d = 0; d < depth; d++)
        acc += v[d] * tile[d];
    if (n == CPU_LANES)
        *(cpu_lanes *)z = acc;
    else
        memcpy(z, &acc, n * sizeof *z);
}

CPU_CLONES static void pairs_forward(const float *t, uint32_t n_vectors, uint32_t dim,
                                     uint32_t self, float *z)
{
    cpu_lanes tile[TILE_DEPTH];

    for (uint32_t j = 0; j < n_vectors; j += CPU_LANES)
        for (uint32_t d0 = 0; d0 < dim; d0 += TILE_DEPTH) {
            const uint32_t depth = min_u32(dim - d0, TILE_DEPTH);

            load_tile(t + (size_t)j * dim + d0, dim, n_vectors - j, depth, tile);
            for (uint32_t i = j + 1 - self; i < n_vectors; i++)
                dot_tile(t + (size_t)i * dim + d0, depth, tile,
                         min_u32(i - j + self, CPU_LANES), z + row_start(i, self) + j, d0);
        }
}

void cpu_interact_forward(struct compute *c, const struct interact *it, const float *t,
                          float *r)
{
    const size_t pairs = row_start(it->n_vectors, it->self),
                 t_ld = (size_t)it->n_vectors * it->dim;

    (void)c;
    for (uint32_t s = 0; s < it->n; s++, t += t_ld, r += it->direct + pairs) {
        memcpy(r, t, it->direct * sizeof *r);
        pairs_forward(t, it->n_vectors, it->dim, it->self, r + it->direct);
    }
}

/* What pair (i, j) hands to vector i, per unit of vector j. */
static inline float pair_grad(const float *dz, uint32_t i, uint32_t j, uint32_t self)
{
    if (i == j)
        return self ? 2.0f * dz[row_start(i, self) + i] : 0.0f;
    return i > j ? dz[row_start(i, self) + j] : dz[row_start(j, self) + i];
}

CPU_CLONES static void pairs_backward(const float *t, uint32_t n_vectors, uint32_t dim,
                                      uint32_t self, const float *dz, float *restrict dt)
{
    for (uint32_t i = 0; i < n_vectors; i++, dt += dim) {
        uint32_t d = 0;

        for (; d + CPU_LANES <= dim; d += CPU_LANES) {
            cpu_lanes acc = { 0 };

            for (uint32_t j = 0; j < n_vectors; j++)
                acc +=
                    pair_grad(dz, i, j, self) * *(const cpu_lanes *)(t + (size_t)j * dim + d);
            *(cpu_lanes *)(dt + d) = acc;
        }
        for (; d < dim; d++) {
            float acc = 0;

            for (uint32_t j = 0; j < n_vectors; j++)
                acc += pair_grad(dz, i, j, self) * t[(size_t)j * dim + d];
            dt[d] = acc;
        }
    }
}

void cpu_interact_backward(struct compute *c, const struct interact *it, const float *t,
                           const float *dr, float *dt)
{
    const size_t pairs = row_start(it->n_vectors, it->self),
                 t_ld = (size_t)it->n_vectors * it->dim;

    (void)c;
    for (uint32_t s = 0; s < it->n; s++, t += t_ld, dt += t_ld, dr += it->direct + pairs)
        pairs_backward(t, it->n_vectors, it->dim, it->self, dr + it->direct, dt);
}
