/* The first failure on the device since the last query, as a sentence. Later ones follow from it. */
#ifndef WORKER_CUDA_CUDA_ERROR_H
#define WORKER_CUDA_CUDA_ERROR_H

#include <cublasLt.h>

#include <stdbool.h>

#include "worker/cuda/cuda_runtime.h"

struct cuda_error {
    char text[192]; /* "": nothing */
};

/* Whether it worked; if not, `what` was being done. */
bool cuda_error_check(struct cuda_error *f, const char *what, cudaError_t e);
bool cuda_error_check_lt(struct cuda_error *f, const char *what, cublasStatus_t status);

bool cuda_error_is_set(const struct cuda_error *f);

#endif
