/* The CUDA runtime under its own names; with PS_EMU, the tests' emulation of it. */
#ifndef WORKER_CUDA_RT_H
#define WORKER_CUDA_RT_H

#ifdef PS_EMU
#include "tests/emu/rt.h"
#else
#include <cuda_runtime_api.h>
#endif

#endif
