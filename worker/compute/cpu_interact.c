/*
 * Pairwise dot products of a sample's vectors. A product of 27 x 16 floats is too small for a
 * call of sgemm each, so sixteen vectors at a time stand on end in a tile, tile[d][vector], and
 * one vector unit works on CPU_LANES pairs (i, j), (i, j + 1), ... at once; each pair's sum
 * still runs over d ascending. All of a sample's tiles stay in the first-level cache; a sample
 * that is too large for that goes through them in parts.
 */
#include <string.h>

#include "common/simd.h"
#include "worker/compute/cpu_internal.h"

enum { TILES = 4, TILE_DEPTH = 64 };

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

/* Where row i of the pairs begins. */
static inline size_t row_start(uint32_t i, uint32_t self)
{
    return ((size_t)i * i + i) / 2 - (self ? 0 : i);
}

/* Four vectors, `dim` floats apart, four floats of each, -> four rows of a tile. */
SIMD_INLINE void turn_four(const float *t, uint32_t dim, float *tile)
{
    const four a = *(const four *)t, b = *(const four *)(t + dim),
               c = *(const four *)(t + 2 * (size_t)dim),
               d = *(const four *)(t + 3 * (size_t)dim);
    const four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
               ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7),
               cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5),
               cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);

    *(four *)tile = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    *(four *)(tile + CPU_LANES) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    *(four *)(tile + 2 * CPU_LANES) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    *(four *)(tile + 3 * CPU_LANES) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* tile[d][k] = element d of vector k; vectors past n_vectors count as 0. */
SIMD_INLINE void load_tile(const float *t, uint32_t dim, uint32_t n_vectors, uint32_t depth,
                           float *tile)
{
    const uint32_t width = cpu_min(n_vectors, CPU_LANES), fours = width & ~3u,
                   deep = depth & ~3u;

    if (width < CPU_LANES)
        memset(tile, 0, (size_t)depth * CPU_LANES * sizeof *tile);
    for (uint32_t k = 0; k < fours; k += 4)
        for (uint32_t d = 0; d < deep; d += 4)
            turn_four(t + (size_t)k * dim + d, dim, tile + (size_t)d * CPU_LANES + k);
    for (uint32_t k = 0; k < width; k++)
        for (uint32_t d = k < fours ? deep : 0; d < depth; d++)
            tile[(size_t)d * CPU_LANES + k] = t[(size_t)k * dim + d];
}

/* sum[k] += v . column k of the tile. */
SIMD_INLINE void add_products(cpu_lanes *sum, const float *v, uint32_t depth, const float *tile)
{
    cpu_lanes acc = *sum;

    for (uint32_t d = 0; d < depth; d++)
        acc += v[d] * *(const cpu_lanes *)(tile + (size_t)d * CPU_LANES);
    *sum = acc;
}

SIMD_INLINE void store_some(float *z, const cpu_lanes *v, size_t n)
{
    if (n >= CPU_LANES)
        *(cpu_lanes *)z = *v;
    else
        memcpy(z, v, n * sizeof *z);
}

/* Rows of pairs in ascending order: a store may run into the rows after it, which are still to
 * come, but not past the last. */
SIMD_INLINE void rows_of_pairs(const float *t, uint32_t n_vectors, uint32_t dim, uint32_t self,
                               float *z)
{
    float tiles[TILES][TILE_DEPTH * CPU_LANES];
    const float *end = z + row_start(n_vectors, self);

    for (uint32_t j = 0; j < n_vectors; j += CPU_LANES)
        load_tile(t + (size_t)j * dim, dim, n_vectors - j, dim, tiles[j / CPU_LANES]);
    for (uint32_t i = 1 - self; i < n_vectors; z += i++ + self)
        for (uint32_t j = 0; j < i + self; j += CPU_LANES) {
            cpu_lanes sum = { 0 };

            add_products(&sum, t + (size_t)i * dim, dim, tiles[j / CPU_LANES]);
            store_some(z + j, &sum, (size_t)(end - (z + j)));
        }
}

CPU_CLONES static void small_16(const float *t, uint32_t n_vectors, uint32_t self, float *z)
{
    rows_of_pairs(t, n_vectors, 16, self, z);
}

CPU_CLONES static void small(const float *t, uint32_t n_vectors, uint32_t dim, uint32_t self,
                             float *z)
{
    rows_of_pairs(t, n_vectors, dim, self, z);
}

/* Of any size: tile by tile, sums kept in z in between. */
CPU_CLONES static void large(const float *t, uint32_t n_vectors, uint32_t dim, uint32_t self,
                             float *z)
{
    float tile[TILE_DEPTH * CPU_LANES];

    for (uint32_t j = 0; j < n_vectors; j += CPU_LANES)
        for (uint32_t d0 = 0; d0 < dim; d0 += TILE_DEPTH) {
            const uint32_t depth = cpu_min(dim - d0, TILE_DEPTH);

            load_tile(t + (size_t)j * dim + d0, dim, n_vectors - j, depth, tile);
            for (uint32_t i = j + 1 - self; i < n_vectors; i++) {
                const uint32_t n = cpu_min(i - j + self, CPU_LANES);
                float *at = z + row_start(i, self) + j;
                cpu_lanes sum = { 0 };

                if (d0)
                    memcpy(&sum, at, n * sizeof *at);
                add_products(&sum, t + (size_t)i * dim + d0, depth, tile);
                store_some(at, &sum, n);
            }
        }
}

struct job {
    const struct interact *it;
    const float *t, *dr;
    float *r, *dt;
    size_t t_ld, r_ld;
};

static struct job job_of(const struct interact *it, const float *t)
{
    return (struct job){ .it = it,
                         .t = t,
                         .t_ld = (size_t)it->n_vectors * it->dim,
                         .r_ld = it->ldr ? it->ldr
                                         : it->direct + row_start(it->n_vectors, it->self) };
}

static void forward_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct interact *it = j->it;
    const struct cpu_range samples = cpu_range_of(task, CPU_SAMPLES, it->n);
    const bool is_small = it->n_vectors <= TILES * CPU_LANES && it->dim <= TILE_DEPTH;

    (void)thread;
    for (size_t s = samples.first; s < samples.end; s++) {
        const float *t = j->t + s * j->t_ld;
        float *r = j->r + s * j->r_ld, *z = r + it->direct;

        memcpy(r, t, it->direct * sizeof *r);
        if (is_small && it->dim == 16)
            small_16(t, it->n_vectors, it->self, z);
        else if (is_small)
            small(t, it->n_vectors, it->dim, it->self, z);
        else
            large(t, it->n_vectors, it->dim, it->self, z);
    }
}

void cpu_interact_forward(struct compute *c, const struct interact *it, const float *t,
                          float *r)
{
    struct job job = job_of(it, t);

    job.r = r;
    cpu_run(c, cpu_ceil_div(it->n, CPU_SAMPLES), forward_task, &job);
}

/* What all pairs hand to elements d .. of vector i: over j ascending. Row i of dz holds the
 * pairs with j < i; pairs with j > i stand in column i of the rows below. */
SIMD_INLINE void gather(const float *t, uint32_t n_vectors, uint32_t dim, uint32_t self,
                        const float *dz, uint32_t i, float *dt)
{
    const float *row = dz + row_start(i, self), *below = dz + row_start(i + 1, self) + i;
    cpu_lanes acc = { 0 };

    for (uint32_t j = 0; j < i; j++, t += dim)
        acc += row[j] * *(const cpu_lanes *)t;
    if (self)
        acc += 2.0f * row[i] * *(const cpu_lanes *)t;
    t += dim;
    for (uint32_t j = i + 1; j < n_vectors; below += j++ + self, t += dim)
        acc += *below * *(const cpu_lanes *)t;
    *(cpu_lanes *)dt = acc;
}

SIMD_INLINE float gather_one(const float *t, uint32_t n_vectors, uint32_t dim, uint32_t self,
                             const float *dz, uint32_t i)
{
    const float *row = dz + row_start(i, self), *below = dz + row_start(i + 1, self) + i;
    float acc = 0;

    for (uint32_t j = 0; j < i; j++, t += dim)
        acc += row[j] * *t;
    if (self)
        acc += 2.0f * row[i] * *t;
    t += dim;
    for (uint32_t j = i + 1; j < n_vectors; below += j++ + self, t += dim)
        acc += *below * *t;
    return acc;
}

CPU_CLONES static void backward_16(const float *t, uint32_t n_vectors, uint32_t self,
                                   const float *dz, float *dt)
{
    for (uint32_t i = 0; i < n_vectors; i++)
        gather(t, n_vectors, 16, self, dz, i, dt + (size_t)i * 16);
}

CPU_CLONES static void backward(const float *t, uint32_t n_vectors, uint32_t dim, uint32_t self,
                                const float *dz, float *dt)
{
    for (uint32_t i = 0; i < n_vectors; i++, dt += dim) {
        uint32_t d = 0;

        for (; d + CPU_LANES <= dim; d += CPU_LANES)
            gather(t + d, n_vectors, dim, self, dz, i, dt + d);
        for (; d < dim; d++)
            dt[d] = gather_one(t + d, n_vectors, dim, self, dz, i);
    }
}

static void backward_task(void *job, uint32_t task, uint32_t thread)
{
    const struct job *j = job;
    const struct interact *it = j->it;
    const struct cpu_range samples = cpu_range_of(task, CPU_SAMPLES, it->n);

    (void)thread;
    for (size_t s = samples.first; s < samples.end; s++) {
        const float *t = j->t + s * j->t_ld, *dz = j->dr + s * j->r_ld + it->direct;

        if (it->dim == 16)
            backward_16(t, it->n_vectors, it->self, dz, j->dt + s * j->t_ld);
        else
            backward(t, it->n_vectors, it->dim, it->self, dz, j->dt + s * j->t_ld);
    }
}

void cpu_interact_backward(struct compute *c, const struct interact *it, const float *t,
                           const float *dr, float *dt)
{
    struct job job = job_of(it, t);

    job.dr = dr;
    job.dt = dt;
    cpu_run(c, cpu_ceil_div(it->n, CPU_SAMPLES), backward_task, &job);
}
