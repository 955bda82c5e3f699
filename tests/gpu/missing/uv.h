/* For machines with a GPU and no libuv: common/status.c knows errno alone then. */
#ifndef GPU_UV_H
#define GPU_UV_H

#define UV_ERRNO_MAP(XX)

#endif
