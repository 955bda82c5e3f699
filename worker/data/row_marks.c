#include "worker/data/row_marks.h"

#include <assert.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static bool marks_plain(const char *line, size_t len, char delimiter, uint64_t *marks)
{
    memset(marks, 0, (len + 63) / 64 * sizeof *marks);
    for (size_t i = 0; i < len; i++) {
        if (line[i] == '\0')
            return false;
        marks[i / 64] |= (uint64_t)(line[i] == delimiter) << i % 64;
    }
    return true;
}

#if defined(__x86_64__)
SIMD_TARGET_AVX2
static inline uint64_t equal_32(const char *bytes, __m256i wanted)
{
    __m256i found = _mm256_loadu_si256((const __m256i *)(const void *)bytes);

    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(found, wanted));
}

SIMD_TARGET_AVX2
static inline uint64_t equal_64(const char *bytes, __m256i wanted)
{
    return equal_32(bytes, wanted) | equal_32(bytes + 32, wanted) << 32;
}

SIMD_TARGET_AVX2
static bool marks_avx2(const char *line, size_t len, char delimiter, uint64_t *marks)
{
    const __m256i wanted = _mm256_set1_epi8(delimiter), nul = _mm256_setzero_si256();
    uint64_t nuls = 0, kept;
    char tail[64] = { 0 };
    size_t at = 0;

    for (; at + 64 <= len; at += 64) {
        *marks++ = equal_64(line + at, wanted);
        nuls |= equal_64(line + at, nul);
    }
    if (at == len)
        return nuls == 0;
    memcpy(tail, line + at, len - at);
    kept = (UINT64_C(1) << (len - at)) - 1;
    *marks = equal_64(tail, wanted) & kept;
    return (nuls | (equal_64(tail, nul) & kept)) == 0;
}

SIMD_TARGET_AVX512
static bool marks_avx512(const char *line, size_t len, char delimiter, uint64_t *marks)
{
    const __m512i wanted = _mm512_set1_epi8(delimiter);
    uint64_t nuls = 0;

    for (size_t at = 0; at < len; at += 64) {
        size_t n = len - at;
        __mmask64 kept = n < 64 ? (UINT64_C(1) << n) - 1 : ~UINT64_C(0);
        __m512i bytes = _mm512_maskz_loadu_epi8(kept, line + at);

        *marks++ = _mm512_mask_cmpeq_epi8_mask(kept, bytes, wanted);
        nuls |= _mm512_mask_testn_epi8_mask(kept, bytes, bytes);
    }
    return nuls == 0;
}
#endif

row_marks_fn *row_marks(enum simd build)
{
#if defined(__x86_64__)
    if (build == SIMD_AVX2)
        return marks_avx2;
    if (build == SIMD_AVX512)
        return marks_avx512;
#endif
    assert(build == SIMD_PLAIN);
    return marks_plain;
}
