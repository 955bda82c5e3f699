/* Linear layers whose operands and results are bf16 (device_bf16.h). All of them lie as the library wants them. */
#include <assert.h>

#include "worker/cuda/gemm.h"
#include "worker/cuda/kernels.h"

/* For the gradient of a W whose rows are padded. */
cudaError_t gemm_bf16_reserve(struct gemm *p, uint32_t in, uint32_t out)
{
    const size_t ld = (in + 7) / 8 * 8;

    return ld == in ? cudaSuccess
                    : scratch_reserve(gemm_result_of(p), ld * out * sizeof(float));
}

/* Y' [out x n] = W'^T X' */
bool gemm_bf16_forward(struct gemm *p, cudaStream_t stream, const struct bf16_linear *l,
                       enum device_act act, bf16 *y, uint32_t ldy, struct cuda_error *f)
{
    const enum gemm_plans_kind kind =
        act == DEVICE_RELU ? GEMM_PLANS_FORWARD_RELU : GEMM_PLANS_FORWARD;
    bool fused;

    if (!gemm_plans_run(
            gemm_plans_of(p), stream,
            &(struct gemm_plans_shape){ kind, l->out, l->n, l->ldx, l->ldx, l->ldx, ldy, 1 },
            &(struct gemm_plans_operands){ l->w, l->x, y, (bf16 *)(uintptr_t)l->b }, &fused, f))
        return false;
    return fused || cuda_error_check(
                        f, "bias", kernels_bf16_bias(stream, l->n, l->out, l->b, act, y, ldy));
}

/* dX' [ldx x n] = W' dY' */
static bool make_dx(struct gemm *p, cudaStream_t stream, const struct bf16_linear *l,
                    const bf16 *dy, bf16 *dx, const struct bf16_mask *mask, float *sums,
                    void *scratch, struct cuda_error *f)
{
    bool fused;

    assert(!mask || l->ldx == l->in);
    return gemm_plans_run(gemm_plans_of(p), stream,
                          &(struct gemm_plans_shape){ GEMM_PLANS_DX, l->ldx, l->n, l->out,
                                                      l->ldx, l->out, l->ldx, 1 },
                          &(struct gemm_plans_operands){ l->w, dy, dx, NULL }, &fused, f) &&
           (!mask || cuda_error_check(
                         f, "mask",
                         kernels_bf16_mask_sums(stream, l->n, l->in, mask, dx, sums, scratch)));
}

/* dW' [ldx x out] = X' dY'^T */
static bool make_dw(struct gemm *p, cudaStream_t stream, const struct bf16_linear *l,
                    const bf16 *dy, float *dw, struct cuda_error *f)
{
    const bool direct = l->ldx == l->in;
    float *d = direct ? dw : gemm_result_of(p)->memory;
    bool fused;

    if (!gemm_plans_run(gemm_plans_of(p), stream,
                        &(struct gemm_plans_shape){ GEMM_PLANS_DW, l->ldx, l->out, l->n, l->ldx,
                                                    l->out, l->ldx, 0 },
                        &(struct gemm_plans_operands){ l->x, dy, d, NULL }, &fused, f))
        return false;
    return direct || cuda_error_check(
                         f, "weight gradient",
                         kernels_add_rows(stream, l->out, l->in, d, l->ldx, NULL, 0, NULL, dw));
}

bool gemm_bf16_backward(struct gemm *p, cudaStream_t stream, const struct bf16_linear *l,
                        const bf16 *dy, bf16 *dx, const struct bf16_mask *mask, float *dw,
                        float *db, float *sums, void *scratch, struct cuda_error *f)
{
    return (!dx || make_dx(p, stream, l, dy, dx, mask, sums, scratch, f)) &&
           make_dw(p, stream, l, dy, dw, f) &&
           (!db ||
            cuda_error_check(f, "bias gradient",
                             kernels_bf16_bias_grad(stream, l->n, l->out, dy, db, scratch)));
}
