#include "worker/cuda/cuda_error.h"

#include <stdio.h>

bool cuda_error_is_set(const struct cuda_error *f)
{
    return f->text[0];
}

static void set(struct cuda_error *f, const char *what, const char *name, const char *text)
{
    if (!cuda_error_is_set(f))
        snprintf(f->text, sizeof f->text, "cuda: %s: %s: %s", what, name, text);
}

bool cuda_error_check(struct cuda_error *f, const char *what, cudaError_t e)
{
    if (e == cudaSuccess)
        return true;
    set(f, what, cudaGetErrorName(e), cudaGetErrorString(e));
    return false;
}

bool cuda_error_check_lt(struct cuda_error *f, const char *what, cublasStatus_t status)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    set(f, what, "cublasLt", cublasLtGetStatusString(status));
    return false;
}
