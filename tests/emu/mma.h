/*
 * mma.sync as worker/cuda/words.h has it, m16n8k8 of TF32 or m16n8k16 of bf16: which lane holds which element is the
 * standard's, and lanes meet there. What was not rounded to TF32 aborts.
 */
#ifndef TESTS_EMU_MMA_H
#define TESTS_EMU_MMA_H

#ifndef TESTS_EMU_SIMT_H
#error "include tests/emu/simt.h"
#endif

struct emu_mma_words {
    uint32_t a[4], b[2];
};

static inline float emu_mma_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* To nearest, ties away from zero, as cvt.rna.tf32.f32. */
static inline uint32_t emu_mma_round(uint32_t bits)
{
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

/* Of the numbers of two words: one each, or two. */
static inline float emu_mma_product(uint32_t a, uint32_t b, bool is_bf16)
{
    if (is_bf16)
        return emu_mma_float(a << 16) * emu_mma_float(b << 16) +
               emu_mma_float(a & 0xffff0000u) * emu_mma_float(b & 0xffff0000u);
    if (emu_mma_round(a) != a || emu_mma_round(b) != b)
        emu_abort("mma.sync of a number that was not rounded to TF32");
    return emu_mma_float(a) * emu_mma_float(b);
}

static inline const struct emu_mma_words *emu_mma_of(unsigned lane)
{
    return (const struct emu_mma_words *)(uintptr_t)emu_value(0xffffffffu, lane);
}

static inline void emu_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                           bool is_bf16)
{
    const struct emu_mma_words mine = { { a[0], a[1], a[2], a[3] }, { b0, b1 } };
    const unsigned g = emu_lane() / 4, q = emu_lane() % 4;

    emu_barrier_warp(0xffffffffu, (uint64_t)(uintptr_t)&mine);
    for (unsigned e = 0; e < 4; e++)
        for (unsigned w = 0; w < 8; w++)
            d[e] += emu_mma_product(emu_mma_of(4 * g + w % 4)->a[e / 2 + w / 4 * 2],
                                    emu_mma_of(4 * (2 * q + e % 2) + w % 4)->b[w / 4], is_bf16);
    emu_barrier_warp(0xffffffffu, 0); /* until then the others read them */
}

#endif
