#include "worker/cuda_plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "psworker_cuda.so"

typedef int driver_init(unsigned flags);
typedef int driver_count(int *ret_n);
typedef int driver_text(int status, const char **ret_text);
typedef const struct device_ops *cuda_plugin_table(uint32_t abi);

/* The function of this name, or false: C knows no cast for it. */
static bool find(void *library, const char *name, void *ret_function)
{
    void *symbol = dlsym(library, name);

    memcpy(ret_function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static int driver_fails(void *driver, int code, struct err *err)
{
    const char *why = NULL;
    driver_text *text;

    if (find(driver, "cuGetErrorString", &text))
        (void)text(code, &why);
    return err_set(err, PS_EDEVICE, "the NVIDIA driver has no device for us: %.120s (%d)",
                   why ? why : "it fails", code);
}

static int ask_driver(const char *name, struct err *err)
{
    void *driver = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    driver_init *init;
    driver_count *count;
    int n = 0, code;

    if (!driver)
        return err_set(err, -ENODEV, "there is no NVIDIA driver (%.150s)", dlerror());
    if (!find(driver, "cuInit", &init) || !find(driver, "cuDeviceGetCount", &count))
        return err_set(err, PS_EDEVICE,
                       "%.150s is no NVIDIA driver: it lacks cuInit or cuDeviceGetCount", name);
    code = init(0);
    if (!code)
        code = count(&n);
    if (code)
        return driver_fails(driver, code, err);
    return n > 0 ? 0 : err_set(err, PS_EDEVICE, "the NVIDIA driver knows no device");
}

static int open_file(const char *path, const struct device_ops **ret_ops, struct err *err)
{
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct device_ops *ops;
    cuda_plugin_table *table;

    if (!plugin)
        return err_set(err, PS_EDEVICE, "%s cannot be opened (%.200s)", FILE_NAME, dlerror());
    if (!find(plugin, "psworker_cuda", &table))
        return err_set(err, PS_EDEVICE,
                       "%.150s is no plug-in of psworker: it lacks psworker_cuda", path);
    ops = table(DEVICE_ABI);
    if (!ops)
        return err_set(err, PS_EDEVICE,
                       "%.150s is of another version of psworker: it does not know ABI %u; "
                       "install both from one build",
                       path, DEVICE_ABI);
    *ret_ops = ops;
    return 0;
}

int cuda_plugin_open(const struct cuda_plugin_places *places, const struct device_ops **ret_ops,
                     struct err *err)
{
    int status = ask_driver(places->driver, err);

    for (uint32_t i = 0; i < CUDA_PLUGIN_FILES_MAX && !status && places->files[i]; i++)
        if (access(places->files[i], F_OK) == 0)
            return open_file(places->files[i], ret_ops, err);
    return status ? status
                  : err_set(
                        err, PS_EDEVICE,
                        "there is no %s beside psworker or in ../lib/psd: it was built without "
                        "nvcc, or the plug-in was not installed",
                        FILE_NAME);
}

int cuda_plugin_cuda(const struct device_ops **ret_ops, struct err *err)
{
    char folder[PATH_MAX], beside[PATH_MAX + 64], installed[PATH_MAX + 64];
    const ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);

    folder[n > 0 ? n : 0] = 0;
    if (strrchr(folder, '/'))
        *strrchr(folder, '/') = 0;
    snprintf(beside, sizeof beside, "%s/" FILE_NAME, folder);
    snprintf(installed, sizeof installed, "%s/../lib/psd/" FILE_NAME, folder);
    return cuda_plugin_open(
        &(struct cuda_plugin_places){ "libcuda.so.1", { beside, installed } }, ret_ops, err);
}
