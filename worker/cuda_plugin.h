/*
 * The GPU's half of psworker: a plug-in, opened at run time, so that one binary runs with and without a GPU.
 *
 *     1  the driver     libcuda.so.1 is opened and returns the number of devices: a millisecond, while the
 *                       plug-in and the libraries that it needs take up to seconds to load
 *     2  the plug-in    psworker_cuda.so, beside the binary or in ../lib/psd from there
 *     3  its table      of psworker_cuda(DEVICE_ABI), its one symbol; NULL: it was built against another
 *                       device.h
 *
 * Opened libraries stay open, because the threads of a driver that has been started still use it.
 */
#ifndef WORKER_CUDA_PLUGIN_H
#define WORKER_CUDA_PLUGIN_H

#include "common/status.h"
#include "worker/compute/device.h"

#define CUDA_PLUGIN_FILES_MAX 2u

struct cuda_plugin_places {
    const char *driver;                       /* a library's name or path */
    const char *files[CUDA_PLUGIN_FILES_MAX]; /* the first one that is there; NULL: no more */
};

/* PS_EDEVICE and one sentence that says why not. *ret_ops lives as long as the process. */
int cuda_plugin_open(const struct cuda_plugin_places *places, const struct device_ops **ret_ops,
                     struct err *err) MUST_CHECK;

/* The same where this program's own are. */
int cuda_plugin_cuda(const struct device_ops **ret_ops, struct err *err) MUST_CHECK;

#endif
