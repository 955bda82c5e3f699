/* Device memory that grows to the largest that was asked for, and holds nothing from one op to the next. */
#ifndef WORKER_CUDA_SCRATCH_H
#define WORKER_CUDA_SCRATCH_H

#include "worker/cuda/cuda_runtime.h"

struct scratch {
    void *memory; /* owned */
    size_t n_bytes;
};

/* Space for n_bytes. If it moves, nothing may be running that uses it, and no graph may know it. Fails as cudaMalloc()
 * does; then it is as it was, or empty. */
cudaError_t scratch_reserve(struct scratch *s, size_t n_bytes);
void scratch_free(struct scratch *s);

#endif
