/* The first thing that went wrong on the device since somebody asked, as a sentence. Later ones are its children. */
#ifndef WORKER_CUDA_FAULT_H
#define WORKER_CUDA_FAULT_H

#include <cublasLt.h>

#include <stdbool.h>

#include "worker/cuda/rt.h"

struct fault {
    char text[192]; /* "": nothing */
};

/* Whether it worked; if not, `what` was being done. */
bool fault_check(struct fault *f, const char *what, cudaError_t e);
bool fault_check_lt(struct fault *f, const char *what, cublasStatus_t status);

bool fault_is_set(const struct fault *f);

#endif
