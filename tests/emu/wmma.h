/*
 * nvcuda::wmma for TF32, 16 x 16 x 8. A lane holds num_elements elements of a matrix, as on the device, and which those are is drawn
 * (emu_scatter()): the standard does not say. Lanes meet at mma_sync(), nowhere else.
 */
#ifndef TESTS_EMU_WMMA_H
#define TESTS_EMU_WMMA_H

#ifndef TESTS_EMU_SIMT_H
#error "include tests/emu/simt.h"
#endif

namespace nvcuda
{
namespace wmma
{
struct row_major {
};
struct col_major {
};
struct matrix_a {
};
struct matrix_b {
};
struct accumulator {
};
enum layout_t { mem_row_major, mem_col_major };

namespace precision
{
struct tf32 {
};
} // namespace precision

/* Rows and columns of each use, of a product of M x K by K x N. */
template <typename Use, int M, int N, int K> struct emu_shape;
template <int M, int N, int K> struct emu_shape<matrix_a, M, N, K> {
    enum { ROWS = M, COLUMNS = K };
};
template <int M, int N, int K> struct emu_shape<matrix_b, M, N, K> {
    enum { ROWS = K, COLUMNS = N };
};
template <int M, int N, int K> struct emu_shape<accumulator, M, N, K> {
    enum { ROWS = M, COLUMNS = N };
};

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
    typedef emu_shape<Use, M, N, K> shape;
    enum { num_elements = shape::ROWS * shape::COLUMNS / 32 };
    float x[num_elements];

    fragment()
    {
        memset(x, 0xff, sizeof x);
    }
};

/* Element i of a lane, as its number in the matrix, row by row. */
template <int ELEMENTS> unsigned emu_place(unsigned lane, unsigned i)
{
    return emu_scatter(lane * (ELEMENTS / 32) + i) % ELEMENTS;
}

/* To nearest, ties away from zero, as cvt.rna.tf32.f32. */
static inline float __float_to_tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u)
        bits = (bits + 0x1000u) & ~0x1fffu;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

template <int M, int N, int K, typename T, typename L>
void fill_fragment(fragment<accumulator, M, N, K, T, L> &f, float value)
{
    for (float &x : f.x)
        x = value;
}

template <typename Use, int M, int N, int K, typename T, typename Layout>
void emu_load(fragment<Use, M, N, K, T, Layout> &f, const float *p, unsigned ld, bool by_rows)
{
    typedef emu_shape<Use, M, N, K> shape;

    if (ld % 4 || (uintptr_t)p % 32)
        emu_abort("a wmma matrix is not aligned to 32 bytes");
    for (unsigned i = 0; i < f.num_elements; i++) {
        const unsigned at = emu_place<shape::ROWS * shape::COLUMNS>(emu_lane(), i),
                       row = at / shape::COLUMNS, column = at % shape::COLUMNS;

        f.x[i] = by_rows ? p[row * ld + column] : p[column * ld + row];
    }
}

template <typename Use, int M, int N, int K, typename T>
void load_matrix_sync(fragment<Use, M, N, K, T, row_major> &f, const float *p, unsigned ld)
{
    emu_load(f, p, ld, true);
}

template <typename Use, int M, int N, int K, typename T>
void load_matrix_sync(fragment<Use, M, N, K, T, col_major> &f, const float *p, unsigned ld)
{
    emu_load(f, p, ld, false);
}

template <int M, int N, int K, typename T>
void store_matrix_sync(float *p, const fragment<accumulator, M, N, K, T> &f, unsigned ld,
                       layout_t layout)
{
    if (ld % 4 || (uintptr_t)p % 32)
        emu_abort("a wmma matrix is not aligned to 32 bytes");
    for (unsigned i = 0; i < f.num_elements; i++) {
        const unsigned at = emu_place<M * N>(emu_lane(), i), row = at / N, column = at % N;

        p[layout == mem_row_major ? row * ld + column : column * ld + row] = f.x[i];
    }
}

static inline float emu_tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u && bits & 0x1fffu)
        emu_abort("mma_sync() of a number that was not rounded to TF32");
    return x;
}

/* The whole matrix out of what the lanes hold. */
template <typename F, int ELEMENTS> void emu_gather(const F &mine, float *matrix)
{
    emu_barrier_warp(0xffffffffu, (uint64_t)(uintptr_t)&mine);
    for (unsigned lane = 0; lane < 32; lane++) {
        const F *f = (const F *)(uintptr_t)emu_value(0xffffffffu, lane);

        for (unsigned i = 0; i < (unsigned)F::num_elements; i++)
            matrix[emu_place<ELEMENTS>(lane, i)] = f->x[i];
    }
}

template <int M, int N, int K, typename T, typename LA, typename LB>
void mma_sync(fragment<accumulator, M, N, K, float> &d,
              const fragment<matrix_a, M, N, K, T, LA> &a,
              const fragment<matrix_b, M, N, K, T, LB> &b,
              const fragment<accumulator, M, N, K, float> &c)
{
    typedef fragment<matrix_a, M, N, K, T, LA> FA;
    typedef fragment<matrix_b, M, N, K, T, LB> FB;
    float left[M * K], right[K * N];

    emu_gather<FA, M * K>(a, left);
    emu_gather<FB, K * N>(b, right);
    for (unsigned i = 0; i < d.num_elements; i++) {
        const unsigned at = emu_place<M * N>(emu_lane(), i);
        float sum = c.x[i];

        for (unsigned k = 0; k < K; k++)
            sum += emu_tf32(left[at / N * K + k]) * emu_tf32(right[k * N + at % N]);
        d.x[i] = sum;
    }
    emu_barrier_warp(0xffffffffu, 0); /* until then the others read a and b */
}
} // namespace wmma
} // namespace nvcuda

#endif
