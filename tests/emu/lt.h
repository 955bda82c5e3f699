/*
 * cublasLt on the CPU: products in double, column-major as it documents them, queued on emulated streams. Inputs are
 * rounded as the compute type and the operands' types say; sums are not.
 *
 * It minds what the library may mind: operands of tensor cores (TF32, bf16) want 16-byte rows and addresses, a pointer
 * must be aligned as the preference has promised, an algorithm runs what it was chosen for, no heuristic is asked while a
 * stream is captured.
 */
#ifndef TESTS_EMU_LT_H
#define TESTS_EMU_LT_H

#include <stdbool.h>

#include <cublasLt.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An epilogue that has any of these bits is refused: when an algorithm is asked for, or only when it is run. 0: none is. */
enum emu_lt_when { EMU_LT_AT_ONCE, EMU_LT_LATE };
void emu_lt_refuse(unsigned epilogue_bits, enum emu_lt_when when);

/* Whether the fused ReLU is max(x, 0), which makes 0 of a NaN. */
enum emu_lt_relu { EMU_LT_KEEPS_NAN, EMU_LT_DROPS_NAN };
void emu_lt_relu(enum emu_lt_relu relu);

/* Whether the fused sums of bf16 operands are floats, or bf16 themselves. */
enum emu_lt_sums { EMU_LT_SUMS_FLOATS, EMU_LT_SUMS_HALVES };
void emu_lt_sums(enum emu_lt_sums sums);

/* Products that had a fused epilogue, and all, since the last call with NULL. */
struct emu_lt_counts {
    long products, fused, heuristics;
};
void emu_lt_counts(struct emu_lt_counts *ret);

#ifdef __cplusplus
}
#endif

#endif
