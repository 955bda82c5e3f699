/* Where the model computes, and on which of a machine's GPUs. */
#include <stdlib.h>
#include <string.h>

#include "common/number.h"
#include "worker/compute/device.h"
#include "worker/settings.h"

#define NAMED "cuda:"

/* Variables of a launcher's processes: the rank among all of them, and among those of one machine. */
static const struct {
    const char *rank, *local_rank;
} launchers[] = {
    { "RANK", "LOCAL_RANK" }, /* torchrun, and the trials of psworker tune */
    { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK" },
    { "PMI_RANK", "MPI_LOCALRANKID" },
    { "SLURM_PROCID", "SLURM_LOCALID" },
};

static bool read_number(const char *text, uint32_t *ret)
{
    uint64_t n;

    if (!text || number_read_u64(text, &n) || n > INT32_MAX)
        return false;
    *ret = (uint32_t)n;
    return true;
}

/* A launcher's local rank is this worker's only if the rank beside it is: a script that a launcher started may have
 * started several workers, all with its variables. */
static uint32_t local_rank(const struct settings *s)
{
    uint32_t rank, local;

    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (read_number(getenv(launchers[i].rank), &rank) && rank == s->rank &&
            read_number(getenv(launchers[i].local_rank), &local))
            return local;
    return s->rank;
}

static bool read_device(const char *text, enum settings_device *ret, uint32_t *ret_number)
{
    static const char *const names[] = {
        [DEVICE_AUTO] = "auto", [DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda"
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            *ret = (enum settings_device)i;
            return true;
        }
    *ret = DEVICE_CUDA;
    return strncmp(text, NAMED, strlen(NAMED)) == 0 &&
           read_number(text + strlen(NAMED), ret_number);
}

enum settings_device settings_device(const struct settings *s, struct device_place *ret)
{
    struct device_place place = { 0 };
    enum settings_device device;

    (void)read_device(s->device, &device, &place.number); /* it has been checked */
    place.wraps = strchr(s->device, ':') == NULL;
    if (place.wraps)
        place.number = local_rank(s);
    if (ret)
        *ret = place;
    return device;
}

int settings_check_device(const struct settings *s, struct err *err)
{
    enum settings_device device;
    uint32_t number;

    return read_device(s->device, &device, &number)
               ? 0
               : err_set(err, PS_ESETTING,
                         "--device: \"%.40s\" is not one of auto|cpu|cuda|cuda:N, N from 0",
                         s->device);
}
