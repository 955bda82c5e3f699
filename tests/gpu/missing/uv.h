/* For machines with a GPU and no libuv: common/status.c knows errno alone then. */
#ifndef TESTS_GPU_MISSING_UV_H
#define TESTS_GPU_MISSING_UV_H

#define UV_ERRNO_MAP(XX)

#endif
