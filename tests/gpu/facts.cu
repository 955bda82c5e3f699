/*
 * facts FILE: what this machine's GPU is and does at best, as JSON, a fact a line. Floors of benchmarks come from here.
 *
 *     copy_gb_s             bytes read and written by a kernel that copies 1 GiB
 *     gemm_*_tflop_s        8192 x 8192 x 8192 of random numbers by cublasLt, its first choice; of the layouts below the
 *                           fastest: gemm_*_tn, _nn, _nt, operands transposed or not, column-major
 *     h2d_gb_s, d2h_gb_s    pinned memory, 64 MiB; copies: by size, microseconds and GB/s
 *     launch_us             a launch of an empty kernel, of many in a row
 *     graph_launch_us       a graph of 30 of them: the call; graph_us: until it is done, of many in a row
 *     round_trip_us         a launch and the wait for it
 *
 * Medians. Without a GPU: one sentence, exit 1. Without FILE: is there a GPU? Nothing else is asked.
 */
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RUNS = 11, KERNELS = 30, GEMM = 8192 };

static const size_t copy_bytes = (size_t)1 << 30;

/* ---- failures, time ---- */

static void must(const char *what, cudaError_t status)
{
    if (status == cudaSuccess)
        return;
    fprintf(stderr, "facts: %s: %s (%d)\n", what, cudaGetErrorString(status), (int)status);
    exit(1);
}

static bool can(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS;
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Of RUNS runs after two, of the GPU's own clock; a run is n calls. */
template <typename F> static double gpu_s(int n, F call)
{
    cudaEvent_t from, to;
    double took[RUNS];

    must("event", cudaEventCreate(&from));
    must("event", cudaEventCreate(&to));
    for (int run = -2; run < RUNS; run++) {
        float ms = 0;

        must("event", cudaEventRecord(from));
        for (int i = 0; i < n; i++)
            call();
        must("event", cudaEventRecord(to));
        must("wait", cudaEventSynchronize(to));
        must("event", cudaEventElapsedTime(&ms, from, to));
        if (run >= 0)
            took[run] = 1e-3 * (double)ms / n;
    }
    qsort(took, RUNS, sizeof *took, compare);
    must("event", cudaEventDestroy(from));
    must("event", cudaEventDestroy(to));
    return took[RUNS / 2];
}

/* The same of the host's clock; `then` ends a run and counts only if it is asked to. */
template <typename F> static double host_s(int n, bool waits, F call)
{
    double took[RUNS];

    for (int run = -2; run < RUNS; run++) {
        const double start = now_s();
        double called;

        for (int i = 0; i < n; i++)
            call();
        called = now_s();
        must("wait", cudaDeviceSynchronize());
        if (run >= 0)
            took[run] = ((waits ? now_s() : called) - start) / n;
    }
    qsort(took, RUNS, sizeof *took, compare);
    return took[RUNS / 2];
}

/* ---- what it is ---- */

static void put_driver(FILE *out)
{
    char line[256] = "";
    FILE *f = fopen("/proc/driver/nvidia/version", "r");

    if (f && fgets(line, sizeof line, f))
        for (char *c = line; *c; c++)
            if (*c == '\n' || *c == '"' || *c == '\\' || *c == '\t')
                *c = ' ';
    if (f)
        fclose(f);
    if (line[0])
        fprintf(out, "\"driver\":\"%s\",\n", line);
    else
        fprintf(out, "\"driver\":null,\n");
}

static void put_date(FILE *out)
{
    const time_t now = time(NULL);
    struct tm tm;
    char text[32];

    gmtime_r(&now, &tm);
    strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &tm);
    fprintf(out, "\"date\":\"%s\",\n", text);
}

static void put_device(FILE *out)
{
    struct cudaDeviceProp gpu;
    int driver = 0, runtime = 0;

    must("no GPU", cudaSetDevice(0));
    must("no GPU", cudaGetDeviceProperties(&gpu, 0));
    must("driver", cudaDriverGetVersion(&driver));
    must("runtime", cudaRuntimeGetVersion(&runtime));
    put_date(out);
    fprintf(
        out,
        "\"device\":\"%s\",\n\"compute_capability\":\"%d.%d\",\n\"sms\":%d,\n\"l2_bytes\":%d,\n"
        "\"memory_bytes\":%zu,\n\"driver_cuda\":%d,\n\"runtime\":%d,\n\"cublaslt\":%zu,\n",
        gpu.name, gpu.major, gpu.minor, gpu.multiProcessorCount, gpu.l2CacheSize,
        gpu.totalGlobalMem, driver, runtime, cublasLtGetVersion());
    put_driver(out);
}

/* ---- numbers ---- */

/* From -1 to 1, spread evenly. Nothing here is a constant: a GPU that is short of power runs faster on those. */
static __device__ float drawn(size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + 0x9e3779b9u;

    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return (float)(x ^ (x >> 16)) * 0x1p-31f - 1;
}

__global__ void draw_floats(float *x, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        x[i] = drawn(i);
}

__global__ void draw_bf16(uint16_t *x, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        x[i] = (uint16_t)(__float_as_uint(drawn(i)) >> 16);
}

static void draw(void *x, cudaDataType_t type, size_t n)
{
    if (type == CUDA_R_16BF)
        draw_bf16<<<4096, 256>>>((uint16_t *)x, n);
    else
        draw_floats<<<4096, 256>>>((float *)x, n);
    must("numbers", cudaGetLastError());
}

/* ---- memory ---- */

__global__ void copy(const float4 *from, float4 *to, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = from[i];
}

static void put_copy(FILE *out)
{
    float4 *from, *to;
    double s;

    must("memory", cudaMalloc(&from, copy_bytes));
    must("memory", cudaMalloc(&to, copy_bytes));
    draw(from, CUDA_R_32F, copy_bytes / sizeof(float));
    s = gpu_s(4, [&] { copy<<<4096, 256>>>(from, to, copy_bytes / sizeof *from); });
    must("copy", cudaGetLastError());
    fprintf(out, "\"copy_gb_s\":%.1f,\n", 2e-9 * (double)copy_bytes / s);
    must("memory", cudaFree(from));
    must("memory", cudaFree(to));
}

static void put_transfers(FILE *out)
{
    const size_t largest = (size_t)64 << 20;
    double in = 0, away = 0;
    void *host, *device;

    must("pinned memory", cudaHostAlloc(&host, largest, cudaHostAllocDefault));
    must("memory", cudaMalloc(&device, largest));
    fprintf(out, "\"copies\":[");
    for (size_t n = 4096; n <= largest; n *= 4) {
        in = gpu_s(
            8, [&] { must("copy", cudaMemcpyAsync(device, host, n, cudaMemcpyHostToDevice)); });
        away = gpu_s(
            8, [&] { must("copy", cudaMemcpyAsync(host, device, n, cudaMemcpyDeviceToHost)); });
        fprintf(
            out,
            "%s\n  "
            "{\"bytes\":%zu,\"in_us\":%.2f,\"in_gb_s\":%.2f,\"out_us\":%.2f,\"out_gb_s\":%.2f}",
            n == 4096 ? "" : ",", n, 1e6 * in, 1e-9 * (double)n / in, 1e6 * away,
            1e-9 * (double)n / away);
    }
    fprintf(out, "],\n\"h2d_gb_s\":%.2f,\n\"d2h_gb_s\":%.2f,\n", 1e-9 * (double)largest / in,
            1e-9 * (double)largest / away);
    must("memory", cudaFree(device));
    must("pinned memory", cudaFreeHost(host));
}

/* ---- products ---- */

struct gemm {
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t in, out;
    cublasLtMatmulPreference_t limits;
    cublasLtMatmulHeuristicResult_t found;
    void *a, *b, *c, *workspace;
    size_t workspace_bytes;
};

static bool gemm_init(struct gemm *g, cublasComputeType_t how, cudaDataType_t type,
                      cublasOperation_t a, cublasOperation_t b)
{
    const size_t width = type == CUDA_R_16BF ? 2 : 4;
    int n = 0;

    *g = gemm{};
    g->workspace_bytes = (size_t)32 << 20;
    must("memory", cudaMalloc(&g->a, GEMM * GEMM * width));
    must("memory", cudaMalloc(&g->b, GEMM * GEMM * width));
    must("memory", cudaMalloc(&g->c, GEMM * GEMM * sizeof(float)));
    must("memory", cudaMalloc(&g->workspace, g->workspace_bytes));
    draw(g->a, type, (size_t)GEMM * GEMM);
    draw(g->b, type, (size_t)GEMM * GEMM);
    return can(cublasLtCreate(&g->lt)) &&
           can(cublasLtMatmulDescCreate(&g->desc, how, CUDA_R_32F)) &&
           can(cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a,
                                              sizeof a)) &&
           can(cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b,
                                              sizeof b)) &&
           can(cublasLtMatrixLayoutCreate(&g->in, type, GEMM, GEMM, GEMM)) &&
           can(cublasLtMatrixLayoutCreate(&g->out, CUDA_R_32F, GEMM, GEMM, GEMM)) &&
           can(cublasLtMatmulPreferenceCreate(&g->limits)) &&
           can(cublasLtMatmulPreferenceSetAttribute(
               g->limits, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &g->workspace_bytes,
               sizeof g->workspace_bytes)) &&
           can(cublasLtMatmulAlgoGetHeuristic(g->lt, g->desc, g->in, g->in, g->out, g->out,
                                              g->limits, 1, &g->found, &n)) &&
           n == 1;
}

static void gemm_deinit(struct gemm *g)
{
    (void)cublasLtMatmulPreferenceDestroy(g->limits);
    (void)cublasLtMatrixLayoutDestroy(g->in);
    (void)cublasLtMatrixLayoutDestroy(g->out);
    (void)cublasLtMatmulDescDestroy(g->desc);
    (void)cublasLtDestroy(g->lt);
    must("memory", cudaFree(g->a));
    must("memory", cudaFree(g->b));
    must("memory", cudaFree(g->c));
    must("memory", cudaFree(g->workspace));
}

/* FLOP/s */
static double gemm_rate(const char *name, cublasComputeType_t how, cudaDataType_t type,
                        cublasOperation_t a, cublasOperation_t b)
{
    const float one = 1, zero = 0;
    bool works = true;
    struct gemm g;
    double s;

    if (!gemm_init(&g, how, type, a, b)) {
        fprintf(stderr, "facts: cublasLt has no %s product\n", name);
        exit(1);
    }
    s = gpu_s(4, [&] {
        works =
            can(cublasLtMatmul(g.lt, g.desc, &one, g.a, g.in, g.b, g.in, &zero, g.c, g.out, g.c,
                               g.out, &g.found.algo, g.workspace, g.workspace_bytes, 0)) &&
            works;
    });
    if (!works) {
        fprintf(stderr, "facts: a %s product fails\n", name);
        exit(1);
    }
    gemm_deinit(&g);
    return 2.0 * GEMM * GEMM * GEMM / s;
}

static void put_gemm(FILE *out, const char *name, cublasComputeType_t how, cudaDataType_t type)
{
    static const struct {
        const char *name;
        cublasOperation_t a, b;
    } layouts[] = { { "tn", CUBLAS_OP_T, CUBLAS_OP_N },
                    { "nn", CUBLAS_OP_N, CUBLAS_OP_N },
                    { "nt", CUBLAS_OP_N, CUBLAS_OP_T } };
    double best = 0;

    for (const auto &layout : layouts) {
        const double rate = gemm_rate(name, how, type, layout.a, layout.b);

        best = rate > best ? rate : best;
        fprintf(out, "\"gemm_%s_%s\":%.1f,\n", name, layout.name, 1e-12 * rate);
    }
    fprintf(out, "\"gemm_%s_tflop_s\":%.1f,\n", name, 1e-12 * best);
}

/* ---- launches ---- */

__global__ void nothing(void) {}

static void put_launches(FILE *out)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    must("stream", cudaStreamCreate(&stream));
    fprintf(out, "\"launch_us\":%.3f,\n",
            1e6 * host_s(300, true, [&] { nothing<<<1, 32, 0, stream>>>(); }));
    fprintf(out, "\"round_trip_us\":%.3f,\n",
            1e6 * host_s(1, true, [&] { nothing<<<1, 32, 0, stream>>>(); }));
    must("graph", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < KERNELS; i++)
        nothing<<<1, 32, 0, stream>>>();
    must("graph", cudaStreamEndCapture(stream, &graph));
    must("graph", cudaGraphInstantiate(&exec, graph, 0));
    fprintf(out, "\"graph_launch_us\":%.3f,\n",
            1e6 * host_s(10, false, [&] { must("graph", cudaGraphLaunch(exec, stream)); }));
    fprintf(out, "\"graph_us\":%.3f\n",
            1e6 * host_s(50, true, [&] { must("graph", cudaGraphLaunch(exec, stream)); }));
    must("graph", cudaGraphExecDestroy(exec));
    must("graph", cudaGraphDestroy(graph));
    must("launch", cudaStreamDestroy(stream));
}

/* Without a driver CUDA says that its version is insufficient, which sends people to look for a newer one. */
static void find_gpu(void)
{
    int n = 0, driver = 0;

    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
        fprintf(stderr, "facts: no GPU: there is no NVIDIA driver\n");
        exit(1);
    }
    must("no GPU", cudaGetDeviceCount(&n));
    must("no GPU", n ? cudaSuccess : cudaErrorNoDevice);
}

int main(int argc, char **argv)
{
    FILE *out;

    if (argc < 2) {
        find_gpu();
        return 0;
    }
    out = argc == 2 ? fopen(argv[1], "w") : NULL;
    if (!out) {
        fprintf(stderr,
                argc == 2 ? "facts: the file cannot be written\n" : "usage: facts [FILE]\n");
        return argc == 2 ? 1 : 2;
    }
    find_gpu();
    fprintf(out, "{\n");
    put_device(out);
    put_copy(out);
    put_gemm(out, "tf32", CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F);
    put_gemm(out, "bf16", CUBLAS_COMPUTE_32F, CUDA_R_16BF);
    put_transfers(out);
    put_launches(out);
    fprintf(out, "}\n");
    return fclose(out) ? 1 : 0;
}
