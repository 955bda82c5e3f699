// The emulated device itself: it runs what is right, and ends programs that are wrong with a sentence.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include "worker/cuda/cuda_compat.h"

static struct cuda_compat_shape shape(unsigned blocks, unsigned threads, size_t n_shared)
{
    return { dim3(blocks), dim3(threads), n_shared };
}

/* The kernel ends its process, and says so. */
template <typename... P, typename... A>
static void assert_aborts(const char *why, const struct cuda_compat_shape &s,
                          void (*kernel)(P...), A... args)
{
    char said[512] = "";
    int ends[2], status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        cuda_compat_launch(kernel, s, (cudaStream_t) nullptr, args...);
        _exit(0);
    }
    close(ends[1]);
    for (size_t n = 0; n < sizeof said - 1;) {
        const ssize_t got = read(ends[0], said + n, sizeof said - 1 - n);

        if (got <= 0)
            break;
        n += (size_t)got;
    }
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    if (!strstr(said, why))
        fail_msg("it said \"%s\", expected \"%s\"", said, why);
}

/* ---- orders */

static __global__ void who_is_first(unsigned *ticket, unsigned *tickets)
{
    tickets[cuda_compat_index()] = atomicAdd(ticket, 1u);
}

static void each_order_takes_all_threads_and_blocks_once(void **state)
{
    const uint64_t orders[] = { 0, 1, 77, 78 };
    unsigned tickets[4][96];

    (void)state;
    for (int o = 0; o < 4; o++) {
        unsigned ticket = 0;
        bool seen[96] = {};

        emu_order(orders[o]);
        assert_int_equal(cuda_compat_launch(who_is_first, shape(3, 32, 0),
                                            (cudaStream_t) nullptr, &ticket,
                                            (unsigned *)tickets[o]),
                         cudaSuccess);
        for (unsigned t : tickets[o]) {
            assert_true(t < 96 && !seen[t]);
            seen[t] = true;
        }
    }
    for (unsigned i = 0; i < 96; i++)
        assert_true(tickets[0][i] == i && tickets[1][i] == 95 - i);
    assert_memory_not_equal(tickets[2], tickets[3], sizeof tickets[2]);
    assert_memory_not_equal(tickets[2], tickets[0], sizeof tickets[2]);
}

/* ---- shared memory and barriers */

template <bool HAS_BARRIER> static __global__ void reverse(const float *x, float *y)
{
    float *scratch = cuda_compat_shared<float>();

    scratch[threadIdx.x] = x[threadIdx.x];
    if (HAS_BARRIER)
        __syncthreads();
    y[threadIdx.x] = scratch[blockDim.x - 1 - threadIdx.x];
}

static void a_missing_barrier_shows_as_nan_in_some_order(void **state)
{
    float x[64], y[64];

    (void)state;
    for (int i = 0; i < 64; i++)
        x[i] = (float)i;
    for (uint64_t order = 0; order < 4; order++) {
        int n_nan = 0;

        emu_order(order);
        cuda_compat_launch(reverse<true>, shape(1, 64, sizeof x), (cudaStream_t) nullptr, x, y);
        for (int i = 0; i < 64; i++)
            assert_true(y[i] == (float)(63 - i));
        cuda_compat_launch(reverse<false>, shape(1, 64, sizeof x), (cudaStream_t) nullptr, x,
                           y);
        for (float v : y)
            n_nan += v != v;
        assert_true(n_nan > 0);
    }
}

static __global__ void leaves_early(void)
{
    if (threadIdx.x == 5)
        return;
    __syncthreads();
}

/* A barrier for the block where half a warp waits for the other half. */
static __global__ void waits_elsewhere(void)
{
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncwarp();
}

static __global__ void asks_a_whole_warp(void)
{
    __syncwarp();
}

static __global__ void waits_for_who_left(void)
{
    if (threadIdx.x == 5)
        return;
    __syncwarp();
}

static __global__ void is_not_in_its_mask(void)
{
    __syncwarp(0x7fffffffu);
}

static __global__ void asks_outside_the_mask(void)
{
    if (threadIdx.x < 16)
        __shfl_sync(0xffffu, threadIdx.x, 16);
}

static void a_barrier_that_some_threads_skip_ends_the_program(void **state)
{
    (void)state;
    emu_order(0);
    assert_aborts("after threads of the block have left", shape(1, 64, 0), leaves_early);
    assert_aborts("threads wait at different barriers", shape(1, 32, 0), waits_elsewhere);
    assert_aborts("names a lane that is not there", shape(1, 32, 0), waits_for_who_left);
    assert_aborts("names a lane that is not there", shape(1, 16, 0), asks_a_whole_warp);
    assert_aborts("a lane is not in the mask", shape(1, 32, 0), is_not_in_its_mask);
    assert_aborts("outside its mask", shape(1, 32, 0), asks_outside_the_mask);
}

/* ---- warps */

static __global__ void talk(unsigned *xored, unsigned *down, unsigned *half, unsigned *ballot)
{
    const unsigned i = threadIdx.x;

    xored[i] = __shfl_xor_sync(CUDA_COMPAT_ALL_LANES, i, 5);
    down[i] = __shfl_down_sync(CUDA_COMPAT_ALL_LANES, i, 3u);
    half[i] = __shfl_down_sync(CUDA_COMPAT_ALL_LANES, i, 3u, 16);
    ballot[i] = __ballot_sync(CUDA_COMPAT_ALL_LANES, i % 3 == 0);
}

static void lanes_talk_as_cuda_says(void **state)
{
    unsigned xored[64], down[64], half[64], ballot[64];

    (void)state;
    for (uint64_t order = 0; order < 4; order++) {
        emu_order(order);
        cuda_compat_launch(talk, shape(1, 64, 0), (cudaStream_t) nullptr, (unsigned *)xored,
                           (unsigned *)down, (unsigned *)half, (unsigned *)ballot);
        for (unsigned i = 0; i < 64; i++) {
            unsigned votes = 0;

            for (unsigned k = 0; k < 32; k++)
                votes |= (unsigned)((i / 32 * 32 + k) % 3 == 0) << k;
            assert_int_equal(xored[i], i ^ 5);
            assert_int_equal(down[i], i % 32 + 3 < 32 ? i + 3 : i);
            assert_int_equal(half[i], i % 16 + 3 < 16 ? i + 3 : i);
            assert_int_equal(ballot[i], votes);
        }
    }
}

/* ---- tensor cores */

/* A 16 x 8 words, row by row; B column by column. */
template <bool IS_BF16>
static __global__ void multiply(const uint32_t *a, const uint32_t *b, float *c)
{
    const unsigned g = threadIdx.x / 4, q = threadIdx.x % 4;
    const uint32_t left[4] = { a[g * 8 + q], a[(g + 8) * 8 + q], a[g * 8 + q + 4],
                               a[(g + 8) * 8 + q + 4] };
    float sum[4] = { 1, 1, 1, 1 };

    emu_mma(sum, left, b[g * 8 + q], b[g * 8 + q + 4], IS_BF16);
    for (unsigned e = 0; e < 4; e++)
        c[(g + e / 2 * 8) * 8 + 2 * q + e % 2] = sum[e];
}

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Small integers, one in a word or two. */
static uint32_t word_of(int i, bool is_bf16, float number[2])
{
    number[0] = (float)(i % 7 - 3);
    number[1] = is_bf16 ? (float)(i % 5 - 2) : 0;
    return is_bf16 ? bits_of(number[0]) >> 16 | bits_of(number[1]) : bits_of(number[0]);
}

static void check_product(bool is_bf16)
{
    uint32_t a[128], b[64];
    float left[128][2], right[64][2], c[128];

    for (int i = 0; i < 128; i++)
        a[i] = word_of(i * 3, is_bf16, left[i]);
    for (int i = 0; i < 64; i++)
        b[i] = word_of(i * 5 + 1, is_bf16, right[i]);
    for (uint64_t order = 0; order < 4; order++) {
        emu_order(order);
        cuda_compat_launch(is_bf16 ? multiply<true> : multiply<false>, shape(1, 32, 0),
                           (cudaStream_t) nullptr, (const uint32_t *)a, (const uint32_t *)b,
                           (float *)c);
        for (int i = 0; i < 128; i++) {
            float want = 1;

            for (int k = 0; k < 8; k++)
                for (int n = 0; n < 2; n++)
                    want += left[i / 8 * 8 + k][n] * right[i % 8 * 8 + k][n];
            assert_true(c[i] == want);
        }
    }
}

static void a_product_of_words_is_one_of_all_lanes(void **state)
{
    uint32_t a[128], b[64] = {};
    float c[128];

    (void)state;
    check_product(false);
    check_product(true);
    for (uint32_t &word : a)
        word = bits_of(0.1f);
    assert_aborts("was not rounded to TF32", shape(1, 32, 0), multiply<false>,
                  (const uint32_t *)a, (const uint32_t *)b, (float *)c);
}

static float rounded(float x)
{
    return emu_mma_float(emu_mma_round(bits_of(x)));
}

static void tf32_rounds_to_nearest_and_ties_away_from_zero(void **state)
{
    (void)state;
    assert_true(rounded(1 + 0x1p-11f) == 1 + 0x1p-10f);
    assert_true(rounded(-1 - 0x1p-11f) == -1 - 0x1p-10f);
    assert_true(rounded(1 + 0x1p-12f) == 1);
    assert_true(rounded(INFINITY) == INFINITY);
    assert_true(rounded(NAN) != rounded(NAN));
}

/* ---- launches */

static __global__ void nothing(void) {}

static void what_cuda_does_not_launch_is_refused(void **state)
{
    const struct cuda_compat_shape wrong[] = {
        shape(1, 0, 0),
        shape(1, 1025, 0),
        shape(1, 32, 48 * 1024 + 1),
        { dim3(1, 65536), dim3(32), 0 },
        { dim3(1, 1, 0), dim3(32), 0 },
    };

    (void)state;
    for (const struct cuda_compat_shape &s : wrong)
        assert_int_equal(cuda_compat_launch(nothing, s, (cudaStream_t) nullptr),
                         cudaErrorInvalidValue);
    assert_int_equal(cuda_compat_launch(nothing, shape(0, 32, 0), (cudaStream_t) nullptr),
                     cudaSuccess);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_order_takes_all_threads_and_blocks_once),
        cmocka_unit_test(a_missing_barrier_shows_as_nan_in_some_order),
        cmocka_unit_test(a_barrier_that_some_threads_skip_ends_the_program),
        cmocka_unit_test(lanes_talk_as_cuda_says),
        cmocka_unit_test(a_product_of_words_is_one_of_all_lanes),
        cmocka_unit_test(tf32_rounds_to_nearest_and_ties_away_from_zero),
        cmocka_unit_test(what_cuda_does_not_launch_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
