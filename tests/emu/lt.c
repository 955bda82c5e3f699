#include "tests/emu/lt.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/memory.h"
#include "tests/emu/rt.h"

struct emu_lt {
    int device;
};

struct emu_lt_desc {
    cublasComputeType_t compute;
    int32_t ta, tb;
    uint32_t epilogue;
    void *bias;
};

struct emu_lt_layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
};

enum { A, B, C, D, N_OPERANDS };

struct emu_lt_preference {
    uint64_t workspace;
    uint32_t align[N_OPERANDS];
};

static struct {
    unsigned refused;
    enum emu_lt_when when;
    enum emu_lt_relu relu;
    enum emu_lt_sums sums;
    struct emu_lt_counts counts;
} lt;

void emu_lt_refuse(unsigned epilogue_bits, enum emu_lt_when when)
{
    lt.refused = epilogue_bits;
    lt.when = when;
}

void emu_lt_relu(enum emu_lt_relu relu)
{
    lt.relu = relu;
}

void emu_lt_sums(enum emu_lt_sums sums)
{
    lt.sums = sums;
}

void emu_lt_counts(struct emu_lt_counts *ret)
{
    if (ret)
        *ret = lt.counts;
    else
        lt.counts = (struct emu_lt_counts){ 0 };
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_ALLOC_FAILED ? "CUBLAS_STATUS_ALLOC_FAILED"
                                                : "CUBLAS_STATUS_EMULATED";
}

size_t cublasLtGetVersion(void)
{
    return 130100;
}

static cublasStatus_t make(void *ret, size_t n_bytes)
{
    void *made;

    if (emu_rt_is_faulty())
        return CUBLAS_STATUS_ALLOC_FAILED;
    made = calloc(1, n_bytes);
    assert(made);
    memcpy(ret, &made, sizeof made);
    emu_rt_count(1);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t unmake(void *made)
{
    free(made);
    emu_rt_count(-1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret)
{
    const cublasStatus_t status = make(ret, sizeof **ret);

    if (!status)
        (*ret)->device = emu_rt_use_device();
    return status;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return unmake(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    const cublasStatus_t status = make(ret, sizeof **ret);

    if (status)
        return status;
    assert(scale == CUDA_R_32F);
    (*ret)->compute = compute;
    (*ret)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return status;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    return unmake(d);
}

static cublasStatus_t set(void *field, size_t n_field_bytes, const void *value, size_t n_bytes)
{
    if (n_bytes != n_field_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, n_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t n_bytes)
{
    if (emu_rt_is_faulty())
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&d->ta, sizeof d->ta, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&d->tb, sizeof d->tb, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&d->epilogue, sizeof d->epilogue, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&d->bias, sizeof d->bias, value, n_bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    cublasStatus_t status;

    if (ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    status = make(ret, sizeof **ret);
    if (!status)
        **ret = (struct emu_lt_layout){ type, rows, cols, ld };
    return status;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    return unmake(l);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
    const cublasStatus_t status = make(ret, sizeof **ret);

    for (int i = 0; !status && i < N_OPERANDS; i++)
        (*ret)->align[i] = 256;
    return status;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    return unmake(p);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t n_bytes)
{
    if (emu_rt_is_faulty())
        return CUBLAS_STATUS_INVALID_VALUE;
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&p->workspace, sizeof p->workspace, value, n_bytes);
    return set(&p->align[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], sizeof *p->align,
               value, n_bytes);
}

/* A product as it was asked for: D [m x n] = op(A) op(B), over k. */
struct product {
    struct emu_lt_desc desc;
    struct emu_lt_layout layout[N_OPERANDS];
    const void *from[2];
    void *to;
    uint64_t m, n, k;
};

static bool is_tensor(const struct product *p)
{
    return p->desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 || p->layout[A].type == CUDA_R_16BF;
}

static size_t size_of(const struct emu_lt_layout *l)
{
    return l->type == CUDA_R_16BF ? 2 : 4;
}

static bool plan(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                 cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t to, struct product *p)
{
    uint64_t k_of_b;

    *p = (struct product){ .desc = *d, .layout = { *a, *b, *c, *to } };
    p->m = d->ta ? a->cols : a->rows;
    p->k = d->ta ? a->rows : a->cols;
    p->n = d->tb ? b->rows : b->cols;
    k_of_b = d->tb ? b->cols : b->rows;
    return p->m == to->rows && p->n == to->cols && p->k == k_of_b && a->type == b->type &&
           (to->type == CUDA_R_32F ||
            (to->type == CUDA_R_16BF && a->type == CUDA_R_16BF && !(to->ld % 8))) &&
           !memcmp(c, to, sizeof *c);
}

/* What an algorithm is for; a hash by which it is known again. */
static uint64_t purpose(const struct product *p, const uint32_t align[N_OPERANDS])
{
    const uint64_t parts[] = { p->m,
                               p->n,
                               p->k,
                               p->desc.epilogue,
                               (uint64_t)p->desc.ta * 2 + (uint64_t)p->desc.tb,
                               align[A],
                               align[B],
                               align[C],
                               align[D],
                               (uint64_t)p->layout[A].ld,
                               (uint64_t)p->layout[B].ld,
                               (uint64_t)p->layout[D].ld };
    uint64_t sum = 14695981039346656037u;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        sum = (sum ^ parts[i]) * 1099511628211u;
    return sum;
}

/* Rows that begin at 16 bytes: else a tensor core's copies take many times as long. */
static bool is_fit_for_tensors(const struct product *p, const uint32_t align[N_OPERANDS])
{
    for (int i = A; i <= B; i++)
        if (align[i] % 16 || (size_t)p->layout[i].ld * size_of(&p->layout[i]) % 16)
            return false;
    return true;
}

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t to,
                               cublasLtMatmulPreference_t pref, int n_wanted,
                               cublasLtMatmulHeuristicResult_t *results, int *n_results)
{
    struct product p;

    (void)handle;
    lt.counts.heuristics++;
    *n_results = 0;
    if (emu_rt_is_capturing() || emu_rt_is_faulty())
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (n_wanted < 1 || !plan(d, a, b, c, to, &p))
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((lt.when == EMU_LT_AT_ONCE && lt.refused & p.desc.epilogue) ||
        (is_tensor(&p) && !is_fit_for_tensors(&p, pref->align)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(results, 0, sizeof *results);
    results->algo.data[0] = purpose(&p, pref->align);
    for (int i = 0; i < N_OPERANDS; i++)
        results->algo.data[1 + i] = pref->align[i];
    results->workspaceSize = pref->workspace;
    *n_results = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* To 10 bits of mantissa, ties away from zero. */
static float round_tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000) != 0x7f800000)
        bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Number `at` of a matrix or a bias. */
static double number(cudaDataType type, const void *from, size_t at)
{
    uint16_t half;
    uint32_t bits;
    float x;

    if (type == CUDA_R_16BF) {
        memcpy(&half, (const char *)from + at * sizeof half, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&x, &bits, sizeof x);
        return (double)x;
    }
    memcpy(&x, (const char *)from + at * sizeof x, sizeof x);
    return (double)x;
}

/* As a product reads it. */
static double operand(const struct product *p, int of, size_t at)
{
    const double x = number(p->layout[of].type, p->from[of], at);

    return p->desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? (double)round_tf32((float)x) : x;
}

/* Of the sum in fp32: rounded to nearest even if D is bf16. */
static void put(const struct product *p, size_t at, float x)
{
    uint32_t bits;
    uint16_t half;

    if (p->layout[D].type == CUDA_R_32F) {
        memcpy((char *)p->to + at * sizeof x, &x, sizeof x);
        return;
    }
    memcpy(&bits, &x, sizeof bits);
    half = (uint16_t)(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    memcpy((char *)p->to + at * sizeof half, &half, sizeof half);
}

/* op(A)^T or op(B), n x k without gaps, k running fastest. */
static double *gather(const struct product *p, int of, uint64_t n)
{
    const bool k_is_row = of == A ? p->desc.ta : !p->desc.tb;
    const size_t ld = (size_t)p->layout[of].ld;
    double *x = malloc((n * p->k + 1) * sizeof *x);

    assert(x);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < p->k; k++)
            x[i * p->k + k] = operand(p, of, k_is_row ? i * ld + k : k * ld + i);
    return x;
}

static double finish(const struct product *p, size_t row, double sum)
{
    if (p->desc.epilogue & CUBLASLT_EPILOGUE_BIAS)
        sum += number(p->layout[D].type, p->desc.bias, row);
    if (p->desc.epilogue != CUBLASLT_EPILOGUE_RELU_BIAS)
        return sum;
    if (sum != sum)
        return lt.relu == EMU_LT_DROPS_NAN ? 0 : sum;
    return sum > 0 ? sum : 0;
}

static void put_sum(const struct product *p, size_t i, float sum)
{
    uint32_t bits;

    memcpy(&bits, &sum, sizeof bits);
    bits >>= 16;
    if (lt.sums == EMU_LT_SUMS_HALVES && p->layout[B].type == CUDA_R_16BF)
        memcpy((uint8_t *)p->desc.bias + i * sizeof(uint16_t), &bits, sizeof(uint16_t));
    else
        ((float *)p->desc.bias)[i] = sum;
}

static void run(void *arg)
{
    const struct product *p = arg;
    double *a = gather(p, A, p->m), *b = gather(p, B, p->n);

    for (size_t j = 0; j < p->n; j++) {
        double of_b = 0;

        for (size_t k = 0; k < p->k; k++)
            of_b += b[j * p->k + k];
        if (p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB)
            put_sum(p, j, (float)of_b);
        for (size_t i = 0; i < p->m; i++) {
            double sum = 0;

            for (size_t k = 0; k < p->k; k++)
                sum += a[i * p->k + k] * b[j * p->k + k];
            put(p, j * (size_t)p->layout[D].ld + i, (float)finish(p, i, sum));
        }
    }
    free(a);
    free(b);
}

/* Whether a matrix is the device's, from its first to its last number. */
static bool is_device(const struct emu_lt_layout *l, const void *memory)
{
    return l->cols &&
           emu_memory_is_device(emu_rt_use_device(), memory,
                                ((size_t)l->ld * (l->cols - 1) + l->rows) * size_of(l));
}

static bool is_as_promised(const struct product *p, const cublasLtMatmulAlgo_t *algo)
{
    const void *at[] = { p->from[A], p->from[B], p->to, p->to };
    uint32_t align[N_OPERANDS];

    for (int i = 0; i < N_OPERANDS; i++) {
        align[i] = (uint32_t)algo->data[1 + i];
        if (!align[i] || (uintptr_t)at[i] % align[i] || !is_device(&p->layout[i], at[i]))
            return false;
    }
    return algo->data[0] == purpose(p, align);
}

/* The library wants none where no epilogue takes one. */
static bool is_bias_right(const struct product *p)
{
    const bool is_sums = p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    const size_t n_bytes = is_sums ? p->n * sizeof(float) : p->m * size_of(&p->layout[D]);

    if (p->desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return !p->desc.bias;
    return emu_memory_is_device(emu_rt_use_device(), p->desc.bias, n_bytes);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t la,
                              const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *to,
                              cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t n_workspace_bytes, cudaStream_t s)
{
    struct product *p = malloc(sizeof *p);
    const bool whole = p && plan(d, la, lb, lc, ld, p);
    bool sound;

    assert(p && *(const float *)alpha == 1 && *(const float *)beta == 0 && c == to);
    p->from[A] = a;
    p->from[B] = b;
    p->to = to;
    sound = whole && handle->device == emu_rt_use_device() && is_as_promised(p, algo) &&
            emu_memory_is_device(handle->device, workspace, n_workspace_bytes) &&
            is_bias_right(p);
    if (!sound || lt.refused & p->desc.epilogue) {
        free(p);
        return sound ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_INVALID_VALUE;
    }
    lt.counts.products++;
    lt.counts.fused += p->desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    return emu_stream_launch(s, run, free, p) ? CUBLAS_STATUS_EXECUTION_FAILED
                                              : CUBLAS_STATUS_SUCCESS;
}
