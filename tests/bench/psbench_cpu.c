#include "tests/bench/psbench_cpu.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/number.h"

int psbench_cpu_parse(const char *name, const char *text, int *ret_cpu, struct err *err)
{
    uint64_t n;

    *ret_cpu = PSBENCH_CPU_ANY;
    if (!text[0])
        return 0;
    if (number_read_u64(text, &n) || n >= CPU_SETSIZE)
        return err_set(err, PS_ESETTING, "%s: found \"%.40s\", expected the number of a core",
                       name, text);
    *ret_cpu = (int)n;
    return 0;
}

int psbench_cpu_pin(int cpu, struct err *err)
{
    cpu_set_t set;

    if (cpu == PSBENCH_CPU_ANY)
        return 0;
    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        return err_set(err, -errno, "core %d: %s", cpu, status_text(-errno));
    return 0;
}

int psbench_cpu_count(void)
{
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

int psbench_cpu_nth(uint32_t i)
{
    cpu_set_t set;
    int cpu;

    if (sched_getaffinity(0, sizeof set, &set))
        return PSBENCH_CPU_ANY;
    i %= (uint32_t)CPU_COUNT(&set);
    for (cpu = 0; !CPU_ISSET((unsigned)cpu, &set) || i--; cpu++)
        ;
    return cpu;
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    return clock_gettime(clock, &t) ? -1 : (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

double psbench_cpu_of_process(uint32_t pid)
{
    clockid_t clock;

    return pid && !clock_getcpuclockid((pid_t)pid, &clock) ? seconds_of(clock) : -1;
}

double psbench_cpu_of_thread(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

void psbench_cpu_model(char *ret, size_t n_bytes)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    const char *colon;

    snprintf(ret, n_bytes, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        colon = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (!colon)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(ret, n_bytes, "%s", colon + (colon[1] == ' ' ? 2 : 1));
        break;
    }
    if (file)
        fclose(file);
}
