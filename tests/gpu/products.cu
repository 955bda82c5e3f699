/*
 * products FILE [BATCH]: what cublasLt can do for each product of the benchmark's layers, as a JSON line for each way to
 * ask for it:
 *
 *     "product"     forward, dx, dw
 *     "operands"    how A and B lie: TN, NN, NT, as BLAS names it; another than the product's own needs a transposed copy
 *     "epilogue"    what is fused into it
 *     "result"      numbers of D: fp32, or of products of bf16 that, too
 *     "first_us"    the library's first choice, "best_us" the fastest of its first CHOICES, each a median of RUNS
 *     "kernel"      of the first choice, "best_kernel" of the fastest
 *
 * A way that the library does not offer has null. Batch: 65536 if none is named.
 */
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHOICES = 8, RUNS = 5, CALLS = 3, NAME_BYTES = 200 };

static const size_t workspace_bytes = (size_t)32 << 20;

static void must(const char *what, cudaError_t status)
{
    if (status == cudaSuccess)
        return;
    fprintf(stderr, "products: %s: %s (%d)\n", what, cudaGetErrorString(status), (int)status);
    exit(1);
}

/* ---- operands ---- */

/* One memory for all: operands, the result, the bits of ReLUs, a bias, the library's workspace. */
struct arena {
    char *a, *b, *d, *bits, *bias, *workspace;
};

static __global__ void draw(uint32_t *to, size_t n, bool halves)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + 0x9e3779b9u;

        x = (x ^ (x >> 16)) * 0x7feb352du;
        x = (x ^ (x >> 15)) * 0x846ca68bu;
        /* Floats from 1/2 to 1 with any sign, or two bf16 of those. */
        to[i] = (x & 0x807fffffu) | 0x3f000000u;
        if (halves)
            to[i] = (x & 0x807f807fu) | 0x3f003f00u;
    }
}

static char *device_memory(size_t n_bytes, int drawn)
{
    char *memory;

    must("memory", cudaMalloc(&memory, n_bytes));
    must("memory", cudaMemset(memory, 0, n_bytes));
    if (drawn)
        draw<<<4096, 256>>>((uint32_t *)memory, n_bytes / 4, drawn == 2);
    must("numbers", cudaGetLastError());
    return memory;
}

/* ---- one way to ask for a product ---- */

struct way {
    const char *product, *operands, *epilogue_name;
    uint32_t m, n, k; /* D [m x n], column-major */
    cublasLtEpilogue_t epilogue;
    cudaDataType_t result;
};

struct matmul {
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t limits;
    cublasLtMatmulHeuristicResult_t found[CHOICES];
    int n_found;
};

static bool can(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS;
}

template <typename T>
static bool set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, T value)
{
    return can(cublasLtMatmulDescSetAttribute(desc, name, &value, sizeof value));
}

static bool set_epilogue(const struct matmul *x, const struct way *w, const struct arena *at)
{
    bool done = set(x->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, w->epilogue);

    if (w->epilogue != CUBLASLT_EPILOGUE_DEFAULT && w->epilogue != CUBLASLT_EPILOGUE_DRELU)
        done = done && set(x->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, at->bias);
    if (w->epilogue & 128)
        done = done && set(x->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at->bits) &&
               set(x->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                   (int64_t)((w->m + 127) / 128 * 128));
    return done;
}

static bool open_matmul(struct matmul *x, const struct way *w, const struct arena *at,
                        cudaDataType_t type)
{
    const bool ta = w->operands[0] == 'T', tb = w->operands[1] == 'T';
    const uint32_t lda = ta ? w->k : w->m, ldb = tb ? w->n : w->k;
    const cublasComputeType_t how =
        type == CUDA_R_16BF ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32;

    return can(cublasLtMatmulDescCreate(&x->desc, how, CUDA_R_32F)) &&
           set(x->desc, CUBLASLT_MATMUL_DESC_TRANSA, ta ? CUBLAS_OP_T : CUBLAS_OP_N) &&
           set(x->desc, CUBLASLT_MATMUL_DESC_TRANSB, tb ? CUBLAS_OP_T : CUBLAS_OP_N) &&
           set_epilogue(x, w, at) &&
           can(cublasLtMatrixLayoutCreate(&x->a, type, lda, ta ? w->m : w->k, lda)) &&
           can(cublasLtMatrixLayoutCreate(&x->b, type, ldb, tb ? w->k : w->n, ldb)) &&
           can(cublasLtMatrixLayoutCreate(&x->d, w->result, w->m, w->n, w->m)) &&
           can(cublasLtMatmulPreferenceCreate(&x->limits)) &&
           can(cublasLtMatmulPreferenceSetAttribute(
               x->limits, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
               sizeof workspace_bytes)) &&
           can(cublasLtMatmulAlgoGetHeuristic(x->lt, x->desc, x->a, x->b, x->d, x->d, x->limits,
                                              CHOICES, x->found, &x->n_found)) &&
           x->n_found > 0;
}

static void close_matmul(struct matmul *x)
{
    if (x->limits)
        (void)cublasLtMatmulPreferenceDestroy(x->limits);
    for (cublasLtMatrixLayout_t layout : { x->a, x->b, x->d })
        if (layout)
            (void)cublasLtMatrixLayoutDestroy(layout);
    if (x->desc)
        (void)cublasLtMatmulDescDestroy(x->desc);
}

static bool call(const struct matmul *x, const struct arena *at, int choice, cudaStream_t on)
{
    const float one = 1, zero = 0;

    return can(cublasLtMatmul(x->lt, x->desc, &one, at->a, x->a, at->b, x->b, &zero, at->d,
                              x->d, at->d, x->d, &x->found[choice].algo, at->workspace,
                              workspace_bytes, on));
}

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Microseconds of a call; 0: the library does not run it. */
static float time_of(const struct matmul *x, const struct arena *at, int choice)
{
    float took[RUNS];
    cudaEvent_t from, to;

    must("event", cudaEventCreate(&from));
    must("event", cudaEventCreate(&to));
    for (int run = -1; run < RUNS; run++) {
        float ms = 0;
        bool ran = true;

        must("event", cudaEventRecord(from));
        for (int i = 0; i < CALLS; i++)
            ran = call(x, at, choice, NULL) && ran;
        must("event", cudaEventRecord(to));
        must("product", cudaEventSynchronize(to));
        if (!ran)
            return 0;
        must("event", cudaEventElapsedTime(&ms, from, to));
        if (run >= 0)
            took[run] = 1e3f * ms / CALLS;
    }
    qsort(took, RUNS, sizeof *took, compare);
    must("event", cudaEventDestroy(from));
    must("event", cudaEventDestroy(to));
    return took[RUNS / 2];
}

/* ---- names of kernels: a captured call, asked of the driver, as the library's kernels are not this program's ---- */

template <typename F> static F driver(const char *name)
{
    enum cudaDriverEntryPointQueryResult found;
    void *at = NULL;

    (void)cudaGetDriverEntryPointByVersion(name, &at, 12030, cudaEnableDefault, &found);
    return (F)at;
}

static void add_name(CUgraphNode node, char *name)
{
    static const auto params_of = driver<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *)>(
        "cuGraphKernelNodeGetParams");
    static const auto function_name =
        driver<CUresult (*)(const char **, CUfunction)>("cuFuncGetName");
    static const auto kernel_name =
        driver<CUresult (*)(const char **, CUkernel)>("cuKernelGetName");
    CUDA_KERNEL_NODE_PARAMS params = {};
    const char *found = NULL;
    const size_t have = strlen(name);

    if (!params_of || params_of(node, &params))
        return;
    if ((!params.func || !function_name || function_name(&found, params.func)) && params.kern &&
        kernel_name)
        (void)kernel_name(&found, params.kern);
    if (found)
        snprintf(name + have, NAME_BYTES - have, "%s%s", have ? " + " : "", found);
}

static void name_of(const struct matmul *x, const struct arena *at, int choice,
                    char name[NAME_BYTES])
{
    cudaGraphNode_t nodes[8];
    cudaStream_t stream;
    cudaGraph_t graph;
    size_t n = 8;

    name[0] = 0;
    must("stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    must("graph", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    (void)call(x, at, choice, stream);
    must("graph", cudaStreamEndCapture(stream, &graph));
    must("graph", cudaGraphGetNodes(graph, nodes, &n));
    for (size_t i = 0; i < n && i < 8; i++)
        add_name((CUgraphNode)nodes[i], name);
    must("graph", cudaGraphDestroy(graph));
    must("stream", cudaStreamDestroy(stream));
}

/* ---- all of them ---- */

static void put(FILE *out, const char *kind, const struct way *w, const struct arena *at,
                cudaDataType_t type, cublasLtHandle_t lt)
{
    char first_name[NAME_BYTES] = "", best_name[NAME_BYTES] = "";
    struct matmul x = {};
    float first = 0, best = 0;
    int best_choice = 0;

    x.lt = lt;
    if (open_matmul(&x, w, at, type))
        for (int i = 0; i < x.n_found; i++) {
            const float us = time_of(&x, at, i);

            if (i == 0)
                first = us;
            if (us > 0 && (best == 0 || us < best)) {
                best = us;
                best_choice = i;
            }
        }
    fprintf(out,
            "{\"products\":\"%s\",\"product\":\"%s\",\"m\":%u,\"n\":%u,\"k\":%u,"
            "\"operands\":\"%s\",\"epilogue\":\"%s\",\"result\":\"%s\"",
            kind, w->product, w->m, w->n, w->k, w->operands, w->epilogue_name,
            w->result == CUDA_R_16BF ? "bf16" : "fp32");
    if (best > 0) {
        if (first > 0)
            name_of(&x, at, 0, first_name);
        name_of(&x, at, best_choice, best_name);
        fprintf(out,
                ",\"first_us\":%.1f,\"best_us\":%.1f,\"best_choice\":%d,\"tflop_s\":%.1f,"
                "\"kernel\":\"%s\",\"best_kernel\":\"%s\"}\n",
                (double)first, (double)best, best_choice,
                2e-6 * w->m * w->n * w->k / (double)best, first_name, best_name);
    } else {
        fprintf(out, ",\"first_us\":null}\n");
    }
    fflush(out);
    close_matmul(&x);
}

/* A layer's products. Column-major: Y' [out x n] = W X', dX' [in x n] = W' dY', dW' [in x out] = X' dY. */
static void put_layer(FILE *out, const char *kind, uint32_t n, uint32_t in, uint32_t wide,
                      const struct arena *at, cudaDataType_t type, cublasLtHandle_t lt)
{
    const struct way ways[] = {
        { "forward", "TN", "none", wide, n, in, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F },
        { "forward", "TN", "bias, ReLU", wide, n, in, CUBLASLT_EPILOGUE_RELU_BIAS, CUDA_R_32F },
        { "dx", "NN", "none", in, n, wide, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F },
        { "dx", "TN", "none", in, n, wide, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F },
        { "dw", "NT", "none", in, wide, n, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F },
        { "dw", "NN", "none", in, wide, n, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F },
        { "dw", "TT", "none", in, wide, n, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F },
        { "dw", "TN", "none", in, wide, n, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F },
    };
    const struct way of_bf16[] = {
        { "forward", "TN", "none", wide, n, in, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_16BF },
        { "forward", "TN", "bias, ReLU", wide, n, in, CUBLASLT_EPILOGUE_RELU_BIAS,
          CUDA_R_16BF },
        { "forward", "TN", "bias, ReLU, bits", wide, n, in, CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
          CUDA_R_16BF },
        { "dx", "NN", "none", in, n, wide, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_16BF },
        { "dx", "TN", "none", in, n, wide, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_16BF },
        { "dx", "NN", "ReLU bits", in, n, wide, CUBLASLT_EPILOGUE_DRELU, CUDA_R_16BF },
        { "dx", "NN", "ReLU bits, sums", in, n, wide, CUBLASLT_EPILOGUE_DRELU_BGRAD,
          CUDA_R_16BF },
        { "dw", "NT", "sums", in, wide, n, CUBLASLT_EPILOGUE_BGRADB, CUDA_R_32F },
    };

    for (const struct way &way : ways)
        put(out, kind, &way, at, type, lt);
    if (type == CUDA_R_16BF)
        for (const struct way &way : of_bf16)
            put(out, kind, &way, at, type, lt);
}

int main(int argc, char **argv)
{
    static const uint32_t layers[][2] = { { 480, 1024 }, { 1024, 1024 }, { 1024, 512 },
                                          { 512, 256 },  { 16, 512 },    { 256, 128 } };
    const uint32_t n = argc > 2 ? (uint32_t)atoi(argv[2]) : 65536;
    FILE *out = argc > 1 ? fopen(argv[1], "w") : NULL;
    cublasLtHandle_t lt;

    if (!out || !n) {
        fprintf(stderr, "usage: products FILE [BATCH]\n");
        return 2;
    }
    if (!can(cublasLtCreate(&lt))) {
        fprintf(stderr, "products: no GPU, or no cublasLt for it\n");
        return 1;
    }
    for (cudaDataType_t type : { CUDA_R_32F, CUDA_R_16BF }) {
        const size_t most = (size_t)n * 1024 * 4;
        const int drawn = type == CUDA_R_16BF ? 2 : 1;
        const struct arena at = {
            device_memory(most, drawn), device_memory(most, drawn),
            device_memory(most, 0),     device_memory(most / 8, 0),
            device_memory(4096 * 4, 0), device_memory(workspace_bytes, 0)
        };

        for (const auto &layer : layers)
            put_layer(out, type == CUDA_R_16BF ? "bf16" : "tf32", n, layer[0], layer[1], &at,
                      type, lt);
        for (char *memory : { at.a, at.b, at.d, at.bits, at.bias, at.workspace })
            must("memory", cudaFree(memory));
    }
    (void)cublasLtDestroy(lt);
    return fclose(out) ? 1 : 0;
}
