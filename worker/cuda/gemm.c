#include "worker/cuda/gemm.h"

#include <stdlib.h>

#include "common/memory.h"
#include "worker/cuda/kernels.h"
#include "worker/cuda/scratch.h"

enum { SUMS_FUSED_MIN = 512 };

struct gemm {
    struct gemm_plans *plans; /* owned */
    bool rounds;              /* operands are bf16 */
    bool turns;               /* in TF32: dx takes W transposed, which is read faster so */
    uint32_t pad;             /* numbers that rows of operands are a multiple of */
    struct scratch x, dy, w, result;
};

struct gemm *gemm_new(enum device_products how, size_t n_workspace_bytes, struct cuda_error *f)
{
    struct gemm *p = memory_alloc(sizeof *p);

    p->rounds = how == DEVICE_BF16;
    p->turns = how == DEVICE_TF32;
    p->pad = how == DEVICE_BF16 ? 8 : how == DEVICE_TF32 ? 4 : 1;
    p->plans =
        gemm_plans_new(how == DEVICE_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                       p->rounds ? CUDA_R_16BF : CUDA_R_32F, n_workspace_bytes, f);
    if (p->plans)
        return p;
    gemm_free(p);
    return NULL;
}

void gemm_free(struct gemm *p)
{
    if (!p)
        return;
    gemm_plans_free(p->plans);
    scratch_free(&p->x);
    scratch_free(&p->dy);
    scratch_free(&p->w);
    scratch_free(&p->result);
    free(p);
}

struct gemm_plans *gemm_plans_of(struct gemm *p)
{
    return p->plans;
}

struct scratch *gemm_result_of(struct gemm *p)
{
    return &p->result;
}

static uint32_t padded(const struct gemm *p, uint32_t width)
{
    return (width + p->pad - 1) / p->pad * p->pad;
}

static size_t number_bytes(const struct gemm *p)
{
    return p->rounds ? sizeof(uint16_t) : sizeof(float);
}

static bool is_padded(const struct gemm *p, uint32_t in, uint32_t out)
{
    return padded(p, in) != in || padded(p, out) != out;
}

cudaError_t gemm_reserve(struct gemm *p, uint32_t n_max, uint32_t in, uint32_t out)
{
    const size_t number = number_bytes(p), n_in = padded(p, in), n_out = padded(p, out);
    const size_t n_results = n_in * (n_max > n_out ? n_max : n_out);
    cudaError_t e = cudaSuccess;

    if (p->pad == 1)
        return e;
    e = scratch_reserve(&p->x, n_max * n_in * number);
    if (!e)
        e = scratch_reserve(&p->dy, n_max * n_out * number);
    if (!e)
        e = scratch_reserve(&p->w, n_out * n_in * number);
    if (!e && is_padded(p, in, out))
        e = scratch_reserve(&p->result, n_results * sizeof(float));
    return e;
}

/* A matrix as the products take it: padded(width) numbers a row, of which those behind `width` are 0. */
struct operand {
    const void *at;
    uint32_t ld;
};

static bool stage(struct gemm *p, cudaStream_t stream, const struct scratch *place,
                  const float *rows, uint32_t n, uint32_t width, uint32_t ld,
                  struct operand *ret, struct cuda_error *f)
{
    *ret = (struct operand){ rows, ld };
    if (!p->rounds && ld % p->pad == 0 && (uintptr_t)rows % (p->pad * sizeof(float)) == 0)
        return true;
    *ret = (struct operand){ place->memory, padded(p, width) };
    if (p->rounds)
        return cuda_error_check(
            f, "rounding", kernels_to_bf16(stream, n, width, rows, ld, place->memory, ret->ld));
    return cuda_error_check(f, "padding",
                            kernels_pad(stream, n, width, rows, ld, place->memory, ret->ld));
}

/* W transposed, padded(in) rows of padded(out). */
static bool stage_turned(struct gemm *p, cudaStream_t stream, const struct linear *l,
                         struct operand *ret, struct cuda_error *f)
{
    *ret = (struct operand){ p->w.memory, padded(p, l->out) };
    return cuda_error_check(
        f, "transposing",
        kernels_transpose(stream, l->out, l->in, l->w, p->w.memory, padded(p, l->in), ret->ld));
}

/* W with its rows, too, filled up with zeros: they are k of dx. */
static bool stage_square(struct gemm *p, cudaStream_t stream, const struct linear *l,
                         struct operand *ret, struct cuda_error *f)
{
    const size_t n_more = padded(p, l->out) - l->out;
    const size_t row_bytes = padded(p, l->in) * number_bytes(p);

    if (!n_more)
        return stage(p, stream, &p->w, l->w, l->out, l->in, l->in, ret, f);
    *ret = (struct operand){ p->w.memory, padded(p, l->in) };
    return cuda_error_check(
               f, "padding",
               p->rounds
                   ? kernels_to_bf16(stream, l->out, l->in, l->w, l->in, p->w.memory, ret->ld)
                   : kernels_pad(stream, l->out, l->in, l->w, l->in, p->w.memory, ret->ld)) &&
           cuda_error_check(f, "padding",
                            cudaMemsetAsync((char *)p->w.memory + l->out * row_bytes, 0,
                                            n_more * row_bytes, stream));
}

/* Y' [out x n] = W'^T X'. In TF32 the library's kernel for few inputs loses NaNs in its ReLU, so that bias and ReLU
 * would take another kernel: one of ours does all of it in less than half of the time. */
bool gemm_forward(struct gemm *p, cudaStream_t stream, const struct linear *l,
                  enum device_act act, float *y, uint32_t ldy, struct cuda_error *f)
{
    const enum gemm_plans_kind kind =
        act == DEVICE_RELU ? GEMM_PLANS_FORWARD_RELU : GEMM_PLANS_FORWARD;
    struct operand x, w;
    bool fused;

    if (p->turns && l->in <= KERNELS_NARROW_IN)
        return cuda_error_check(f, "a layer of few inputs",
                                kernels_narrow_forward(stream, l, act, y, ldy));
    if (!stage(p, stream, &p->x, l->x, l->n, l->in, linear_ldx(l), &x, f) ||
        !stage(p, stream, &p->w, l->w, l->out, l->in, l->in, &w, f) ||
        !gemm_plans_run(
            p->plans, stream,
            &(struct gemm_plans_shape){ kind, l->out, l->n, padded(p, l->in), w.ld, x.ld, ldy,
                                        0 },
            &(struct gemm_plans_operands){ w.at, x.at, y, (float *)(uintptr_t)l->b }, &fused,
            f))
        return false;
    return fused ||
           cuda_error_check(f, "bias", kernels_bias(stream, l->n, l->out, l->b, act, y, ldy));
}

/* What follows the product: dx without gaps, through the mask, and its sums. *d is the product, `ld` floats a row. */
static bool finish_dx(cudaStream_t stream, const struct linear *l, float *d, uint32_t ld,
                      float *dx, const struct relu_mask *mask, float *sums, void *scratch,
                      struct cuda_error *f)
{
    if (sums && mask && d == dx)
        return cuda_error_check(
            f, "mask", kernels_mask_sums(stream, l->n, l->in, mask, dx, sums, scratch));
    if (d != dx &&
        !cuda_error_check(f, "mask",
                          kernels_add_rows(stream, l->n, l->in, d, ld, NULL, 0, mask, dx)))
        return false;
    if (d == dx && mask &&
        !cuda_error_check(f, "mask", kernels_mask(stream, l->n, l->in, mask, dx)))
        return false;
    return !sums || cuda_error_check(f, "sums",
                                     kernels_bias_grad(stream, l->n, l->in, dx, sums, scratch));
}

/* dX' [in x n] = W' dY' */
static bool make_dx(struct gemm *p, cudaStream_t stream, const struct linear *l,
                    const struct operand *dy, float *dx, const struct relu_mask *mask,
                    float *sums, void *scratch, struct cuda_error *f)
{
    const enum gemm_plans_kind kind = p->turns ? GEMM_PLANS_DX_TURNED : GEMM_PLANS_DX;
    const uint32_t in = padded(p, l->in), ldx = linear_ldx(l);
    const bool direct = ldx >= in; /* what is written to dx's gaps is nobody's */
    float *d = direct ? dx : p->result.memory;
    struct operand w;
    bool fused;

    if (!(p->turns ? stage_turned : stage_square)(p, stream, l, &w, f) ||
        !gemm_plans_run(p->plans, stream,
                        &(struct gemm_plans_shape){ kind, in, l->n, padded(p, l->out), w.ld,
                                                    dy->ld, direct ? ldx : in, 0 },
                        &(struct gemm_plans_operands){ w.at, dy->at, d, NULL }, &fused, f))
        return false;
    return finish_dx(stream, l, d, in, dx, mask, sums, scratch, f);
}

/* dW' [in x out] = X' dY'^T. *ret_summed: db is made. Only with bf16 products of wide layers does cublasLt sum in less
 * time than a kernel that reads dY once more (tests/gpu/README.md, results). */
static bool make_dw(struct gemm *p, cudaStream_t stream, const struct linear *l,
                    const struct operand *dy, float *dw, float *db, bool *ret_summed,
                    struct cuda_error *f)
{
    const bool direct = !is_padded(p, l->in, l->out);
    const bool sums = direct && p->rounds && l->out >= SUMS_FUSED_MIN;
    const uint32_t in = padded(p, l->in);
    float *d = direct ? dw : p->result.memory;
    struct operand x;

    if (!stage(p, stream, &p->x, l->x, l->n, l->in, linear_ldx(l), &x, f) ||
        !gemm_plans_run(p->plans, stream,
                        &(struct gemm_plans_shape){ GEMM_PLANS_DW, in, padded(p, l->out), l->n,
                                                    x.ld, dy->ld, in, 0 },
                        &(struct gemm_plans_operands){ x.at, dy->at, d, sums ? db : NULL },
                        ret_summed, f))
        return false;
    return direct ||
           cuda_error_check(f, "weight gradient",
                            kernels_add_rows(stream, l->out, l->in, d, in, NULL, 0, NULL, dw));
}

bool gemm_backward(struct gemm *p, cudaStream_t stream, const struct linear *l, const float *dy,
                   float *dx, const struct relu_mask *mask, float *dw, float *db, float *sums,
                   void *scratch, struct cuda_error *f)
{
    struct operand y;
    bool summed;

    if (!stage(p, stream, &p->dy, dy, l->n, l->out, l->out, &y, f) ||
        (dx && !make_dx(p, stream, l, &y, dx, mask, sums, scratch, f)))
        return false;
    if (!dw)
        return true;
    return make_dw(p, stream, l, &y, dw, db, &summed, f) &&
           (summed || !db ||
            cuda_error_check(f, "bias gradient",
                             kernels_bias_grad(stream, l->n, l->out, dy, db, scratch)));
}
