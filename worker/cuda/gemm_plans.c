#include "worker/cuda/gemm_plans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "worker/cuda/scratch.h"

enum { A, B, D, N_OPERANDS };

/* What a plan is good for. Pointers of less alignment want another. */
struct key {
    struct gemm_plans_shape shape;
    uint32_t with_bias, align[N_OPERANDS], align_bias;
};

struct plan {
    struct key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout[N_OPERANDS];
    cublasLtMatmulAlgo_t algo;
    bool fused;
};

struct gemm_plans {
    cublasLtHandle_t lt;
    cublasComputeType_t compute;
    cudaDataType type;
    struct scratch workspace;
    struct scratch nans; /* a bias to try ReLUs with */
    struct plan *at;     /* owned */
    size_t n, n_max;
};

struct gemm_plans *gemm_plans_new(cublasComputeType_t compute, cudaDataType type,
                                  size_t n_workspace_bytes, struct cuda_error *f)
{
    struct gemm_plans *p = memory_alloc(sizeof *p);

    p->compute = compute;
    p->type = type;
    if (cuda_error_check_lt(f, "cublasLtCreate", cublasLtCreate(&p->lt)) &&
        cuda_error_check(f, "memory of products",
                         scratch_reserve(&p->workspace, n_workspace_bytes)))
        return p;
    gemm_plans_free(p);
    return NULL;
}

static void free_plan(struct plan *p)
{
    for (int i = 0; i < N_OPERANDS; i++)
        if (p->layout[i])
            (void)cublasLtMatrixLayoutDestroy(p->layout[i]);
    if (p->desc)
        (void)cublasLtMatmulDescDestroy(p->desc);
}

void gemm_plans_free(struct gemm_plans *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++)
        free_plan(&p->at[i]);
    free(p->at);
    scratch_free(&p->nans);
    scratch_free(&p->workspace);
    if (p->lt)
        (void)cublasLtDestroy(p->lt);
    free(p);
}

/* At most 256, more than which no kernel asks for. */
static uint32_t alignment_of(const void *memory)
{
    const uintptr_t at = (uintptr_t)memory | 256;

    return (uint32_t)(at & -at);
}

static struct key key_of(const struct gemm_plans_shape *shape,
                         const struct gemm_plans_operands *o)
{
    return (struct key){ *shape,
                         o->bias != NULL,
                         { alignment_of(o->a), alignment_of(o->b), alignment_of(o->d) },
                         alignment_of(o->bias) };
}

static struct plan *find(const struct gemm_plans *p, const struct key *key)
{
    for (size_t i = 0; i < p->n; i++)
        if (!memcmp(&p->at[i].key, key, sizeof *key))
            return &p->at[i];
    return NULL;
}

static cublasLtEpilogue_t epilogue_of(enum gemm_plans_kind kind)
{
    switch (kind) {
    case GEMM_PLANS_FORWARD:
        return CUBLASLT_EPILOGUE_BIAS;
    case GEMM_PLANS_FORWARD_RELU:
        return CUBLASLT_EPILOGUE_RELU_BIAS;
    case GEMM_PLANS_DW:
        return CUBLASLT_EPILOGUE_BGRADB;
    case GEMM_PLANS_DX:
    case GEMM_PLANS_DX_TURNED:
        break;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

static cublasStatus_t set_epilogue(struct plan *plan, cublasLtEpilogue_t epilogue)
{
    return cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                          sizeof epilogue);
}

static cublasStatus_t set_bias(struct plan *plan, const void *bias)
{
    return cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                          sizeof bias);
}

static bool turns_a(enum gemm_plans_kind kind)
{
    return kind != GEMM_PLANS_DX && kind != GEMM_PLANS_DW;
}

static cublasStatus_t make_layouts(const struct gemm_plans *p, struct plan *plan)
{
    const struct gemm_plans_shape *s = &plan->key.shape;
    const bool ta = turns_a(s->kind), tb = s->kind == GEMM_PLANS_DW;
    cublasStatus_t status = cublasLtMatrixLayoutCreate(
        &plan->layout[A], p->type, ta ? s->k : s->m, ta ? s->m : s->k, s->lda);

    if (!status)
        status = cublasLtMatrixLayoutCreate(&plan->layout[B], p->type, tb ? s->n : s->k,
                                            tb ? s->k : s->n, s->ldb);
    if (!status)
        status = cublasLtMatrixLayoutCreate(
            &plan->layout[D], s->rounds ? CUDA_R_16BF : CUDA_R_32F, s->m, s->n, s->ldd);
    return status;
}

static cublasStatus_t make_desc(const struct gemm_plans *p, struct plan *plan)
{
    const enum gemm_plans_kind kind = plan->key.shape.kind;
    const cublasOperation_t ta = turns_a(kind) ? CUBLAS_OP_T : CUBLAS_OP_N,
                            tb = kind == GEMM_PLANS_DW ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t status = cublasLtMatmulDescCreate(&plan->desc, p->compute, CUDA_R_32F);

    if (!status)
        status = cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta,
                                                sizeof ta);
    if (!status)
        status = cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb,
                                                sizeof tb);
    return status;
}

static cublasStatus_t set_preference(const struct gemm_plans *p, const struct key *key,
                                     cublasLtMatmulPreference_t pref)
{
    static const cublasLtMatmulPreferenceAttributes_t attributes[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    const uint32_t aligns[] = { key->align[A], key->align[B], key->align[D], key->align[D] };
    const uint64_t workspace = p->workspace.n_bytes;
    cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);

    for (size_t i = 0; i < COUNT_OF(attributes) && !status; i++)
        status = cublasLtMatmulPreferenceSetAttribute(pref, attributes[i], &aligns[i],
                                                      sizeof aligns[i]);
    return status;
}

/* The best algorithm for the plan with this epilogue. */
static cublasStatus_t choose(const struct gemm_plans *p, struct plan *plan,
                             cublasLtEpilogue_t epilogue)
{
    cublasLtMatmulHeuristicResult_t best;
    cublasLtMatmulPreference_t pref;
    int n = 0;
    cublasStatus_t status = set_epilogue(plan, epilogue);

    if (status)
        return status;
    status = cublasLtMatmulPreferenceCreate(&pref);
    if (status)
        return status;
    status = set_preference(p, &plan->key, pref);
    if (!status)
        status = cublasLtMatmulAlgoGetHeuristic(p->lt, plan->desc, plan->layout[A],
                                                plan->layout[B], plan->layout[D],
                                                plan->layout[D], pref, 1, &best, &n);
    (void)cublasLtMatmulPreferenceDestroy(pref);
    if (status)
        return status;
    if (n)
        plan->algo = best.algo;
    return n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t run(const struct gemm_plans *p, cudaStream_t stream, struct plan *plan,
                          const struct gemm_plans_operands *o, const void *bias)
{
    const float one = 1, zero = 0;
    cublasStatus_t status = plan->fused ? set_bias(plan, bias) : CUBLAS_STATUS_SUCCESS;

    if (!status)
        status =
            cublasLtMatmul(p->lt, plan->desc, &one, o->a, plan->layout[A], o->b,
                           plan->layout[B], &zero, o->d, plan->layout[D], o->d, plan->layout[D],
                           &plan->algo, p->workspace.memory, p->workspace.n_bytes, stream);
    return status;
}

/* The plan is run once with a bias, or for sums, of n_bytes that are 0xff; *ret: what as many bytes at `at` are
 * then. */
static bool run_marked(const struct gemm_plans *p, cudaStream_t stream, struct plan *plan,
                       const struct gemm_plans_operands *o, void *bias, const void *at,
                       size_t n_bytes, void *ret, struct cuda_error *f)
{
    const bool ran =
        cuda_error_check(f, "trying a product", cudaMemsetAsync(bias, 0xff, n_bytes, stream)) &&
        run(p, stream, plan, o, bias) == CUBLAS_STATUS_SUCCESS &&
        cuda_error_check(f, "trying a product",
                         cudaMemcpyAsync(ret, at, n_bytes, cudaMemcpyDeviceToHost, stream)) &&
        cuda_error_check(f, "trying a product", cudaStreamSynchronize(stream));

    if (!ran)
        (void)cudaStreamSynchronize(stream); /* half of it may be queued, on memory that goes */
    return ran;
}

/* Number i of D's first column. */
static bool is_nan_at(const struct plan *plan, const void *column, size_t i)
{
    uint32_t bits = 0;

    if (plan->key.shape.rounds) {
        memcpy((uint8_t *)&bits + 2, (const uint16_t *)column + i, sizeof(uint16_t));
        return (bits & 0x7fffffffu) > 0x7f800000u;
    }
    return isnan(((const float *)column)[i]);
}

/* Whether NaNs of a bias arrive in D's first column. */
static bool keeps_nan(struct gemm_plans *p, cudaStream_t stream, struct plan *plan,
                      const struct gemm_plans_operands *o, struct cuda_error *f)
{
    const size_t n = plan->key.shape.m,
                 n_bytes = n * (plan->key.shape.rounds ? sizeof(uint16_t) : sizeof(float));
    void *first = memory_alloc(n_bytes);
    bool keeps = cuda_error_check(f, "trying a product", scratch_reserve(&p->nans, n_bytes)) &&
                 run_marked(p, stream, plan, o, p->nans.memory, o->d, n_bytes, first, f);

    for (size_t i = 0; keeps && i < n; i++)
        keeps = is_nan_at(plan, first, i);
    free(first);
    return keeps;
}

/* Whether each sum of B is written, as a float: halves would leave the end as it was. */
static bool sums_floats(const struct gemm_plans *p, cudaStream_t stream, struct plan *plan,
                        const struct gemm_plans_operands *o, struct cuda_error *f)
{
    const size_t n = plan->key.shape.n;
    const uint32_t untouched = UINT32_MAX;
    float *sums = memory_alloc(n * sizeof *sums);
    bool all = run_marked(p, stream, plan, o, o->bias, o->bias, n * sizeof *sums, sums, f);

    for (size_t i = 0; all && i < n; i++)
        all = memcmp(&sums[i], &untouched, sizeof untouched) != 0;
    free(sums);
    return all;
}

/* The library may find an algorithm and then not run it, or not as it must be. D and sums of B are still to be made, so
 * that they can be tried on. */
static bool is_good(struct gemm_plans *p, cudaStream_t stream, struct plan *plan,
                    const struct gemm_plans_operands *o, struct cuda_error *f)
{
    switch (plan->key.shape.kind) {
    case GEMM_PLANS_FORWARD_RELU:
        return keeps_nan(p, stream, plan, o, f);
    case GEMM_PLANS_DW:
        return sums_floats(p, stream, plan, o, f);
    case GEMM_PLANS_FORWARD:
    case GEMM_PLANS_DX:
    case GEMM_PLANS_DX_TURNED:
        break;
    }
    return run(p, stream, plan, o, o->bias) == CUBLAS_STATUS_SUCCESS;
}

/* Fused if that is wanted, can be had and is good; else plain, without the bias, which the library refuses then. */
static bool choose_epilogue(struct gemm_plans *p, cudaStream_t stream, struct plan *plan,
                            const struct gemm_plans_operands *o, struct cuda_error *f)
{
    plan->fused = o->bias && set_bias(plan, o->bias) == CUBLAS_STATUS_SUCCESS &&
                  choose(p, plan, epilogue_of(plan->key.shape.kind)) == CUBLAS_STATUS_SUCCESS;
    plan->fused = plan->fused && is_good(p, stream, plan, o, f);
    if (cuda_error_is_set(f))
        return false;
    return plan->fused || (cuda_error_check_lt(f, "planning a product", set_bias(plan, NULL)) &&
                           cuda_error_check_lt(f, "a product that has no algorithm",
                                               choose(p, plan, CUBLASLT_EPILOGUE_DEFAULT)));
}

static struct plan *add(struct gemm_plans *p, const struct key *key)
{
    if (p->n == p->n_max) {
        const size_t n_max = p->n_max ? 2 * p->n_max : 32;
        struct plan *at = memory_try_realloc(p->at, n_max * sizeof *at);

        if (!at)
            return NULL;
        p->at = at;
        p->n_max = n_max;
    }
    p->at[p->n] = (struct plan){ .key = *key };
    return &p->at[p->n];
}

static struct plan *make(struct gemm_plans *p, cudaStream_t stream, const struct key *key,
                         const struct gemm_plans_operands *o, struct cuda_error *f)
{
    struct plan *plan = add(p, key);

    if (!plan) {
        (void)cuda_error_check(f, "plans of products", cudaErrorMemoryAllocation);
        return NULL;
    }
    if (cuda_error_check_lt(f, "planning a product", make_layouts(p, plan)) &&
        cuda_error_check_lt(f, "planning a product", make_desc(p, plan)) &&
        choose_epilogue(p, stream, plan, o, f)) {
        p->n++;
        return plan;
    }
    free_plan(plan);
    return NULL;
}

bool gemm_plans_run(struct gemm_plans *p, cudaStream_t stream,
                    const struct gemm_plans_shape *shape,
                    const struct gemm_plans_operands *operands, bool *ret_fused,
                    struct cuda_error *f)
{
    const struct key key = key_of(shape, operands);
    struct plan *plan = find(p, &key);

    if (!plan)
        plan = make(p, stream, &key, operands, f);
    if (!plan)
        return false;
    *ret_fused = plan->fused;
    return cuda_error_check_lt(f, "a product", run(p, stream, plan, operands, operands->bias));
}
