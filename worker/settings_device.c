/* Where the model computes, and on which of a machine's GPUs. */
#include <stdio.h>
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

static int refuse(const char *found, struct err *err)
{
    return err_set(
        err, PS_ESETTING,
        "--device: \"%.40s\" is not one of auto|cpu|cuda|cuda:N|cuda:N,N,...|cuda:all, "
        "N from 0",
        found);
}

/* "0,1,4", or "all". */
static int read_gpus(const char *whole, struct settings_gpus *ret, struct err *err)
{
    const char *text = whole + strlen(NAMED);
    char list[SETTINGS_TEXT_MAX], *rest = list, *item;

    *ret = (struct settings_gpus){ .all = strcmp(text, "all") == 0 };
    snprintf(list, sizeof list, "%s", text);
    while (!ret->all && (item = strsep(&rest, ",")) != NULL) {
        uint32_t number;

        if (!read_number(item, &number))
            return refuse(whole, err);
        for (uint32_t i = 0; i < ret->n; i++)
            if (ret->numbers[i] == number)
                return err_set(err, PS_ESETTING, "--device: " NAMED "%u is named twice",
                               number);
        if (ret->n == SETTINGS_GPUS_MAX)
            return err_set(err, PS_ESETTING,
                           "--device: more than %u GPUs are named, which is the most that a "
                           "worker can use",
                           SETTINGS_GPUS_MAX);
        ret->numbers[ret->n++] = number;
    }
    return 0;
}

static int read_device(const char *text, enum settings_device *ret,
                       struct settings_gpus *ret_gpus, struct err *err)
{
    static const char *const names[] = {
        [DEVICE_AUTO] = "auto", [DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda"
    };

    *ret_gpus = (struct settings_gpus){ 0 };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            *ret = (enum settings_device)i;
            return 0;
        }
    *ret = DEVICE_CUDA;
    return strncmp(text, NAMED, strlen(NAMED)) == 0 ? read_gpus(text, ret_gpus, err)
                                                    : refuse(text, err);
}

enum settings_device settings_device(const struct settings *s, struct device_place *ret)
{
    struct settings_gpus gpus;
    enum settings_device device;

    (void)read_device(s->device, &device, &gpus, NULL); /* it has been checked */
    if (ret && (gpus.n || gpus.all))
        *ret = (struct device_place){ .number = gpus.numbers[0] };
    else if (ret)
        *ret = (struct device_place){ .number = local_rank(s), .wraps = true };
    return device;
}

struct settings_gpus settings_gpus(const struct settings *s)
{
    struct settings_gpus gpus;
    enum settings_device device;

    (void)read_device(s->device, &device, &gpus, NULL);
    return gpus;
}

int settings_check_device(const struct settings *s, struct err *err)
{
    struct settings_gpus gpus;
    enum settings_device device;

    return read_device(s->device, &device, &gpus, err);
}
