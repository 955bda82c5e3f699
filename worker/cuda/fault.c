#include "worker/cuda/fault.h"

#include <stdio.h>

bool fault_is_set(const struct fault *f)
{
    return f->text[0];
}

static void set(struct fault *f, const char *what, const char *name, const char *text)
{
    if (!fault_is_set(f))
        snprintf(f->text, sizeof f->text, "cuda: %s: %s: %s", what, name, text);
}

bool fault_check(struct fault *f, const char *what, cudaError_t e)
{
    if (e == cudaSuccess)
        return true;
    set(f, what, cudaGetErrorName(e), cudaGetErrorString(e));
    return false;
}

bool fault_check_lt(struct fault *f, const char *what, cublasStatus_t status)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    set(f, what, "cublasLt", cublasLtGetStatusString(status));
    return false;
}
