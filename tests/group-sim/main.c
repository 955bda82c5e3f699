/*
 * Simulates a replica group: two members (server/cluster/group.h) with modelled logs, a store in memory
 * (server/cluster/coord_mem.h), and everything between them late, twice, out of order or lost. Each schedule has a
 * seed; README.md beside this file says what goes wrong and what is held.
 *
 *     group-sim [--seed N] [--schedules N | --seconds N] [--trace]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/group-sim/world.h"

static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static uint64_t number_of(const char *text)
{
    char *end;
    const uint64_t n = strtoull(text, &end, 10);

    if (*end || !*text) {
        fprintf(stderr, "group-sim: %s is no number\n", text);
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    static struct world w;
    uint64_t seed = (uint64_t)time(NULL) << 20, n_schedules = UINT64_MAX, seconds = UINT64_MAX;
    struct world_counts counts = { 0 };
    uint64_t n = 0;

    if (argc > 1 && strcmp(argv[argc - 1], "--trace") == 0) {
        w.is_traced = true;
        argc--;
    }
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--seed") == 0)
            seed = number_of(argv[i + 1]);
        else if (i + 1 < argc && strcmp(argv[i], "--schedules") == 0)
            n_schedules = number_of(argv[i + 1]);
        else if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0)
            seconds = number_of(argv[i + 1]);
        else {
            fprintf(stderr,
                    "usage: group-sim [--seed N] [--schedules N | --seconds N] [--trace]\n");
            return 2;
        }
    }
    if (n_schedules == UINT64_MAX && seconds == UINT64_MAX)
        n_schedules = 1000;
    for (; n < n_schedules && cpu_seconds() < (double)seconds; n++)
        if (!world_run(&w, seed + n, &counts)) {
            printf("seed %llu: %s\n", (unsigned long long)(seed + n), w.violation);
            return 1;
        }
    printf("%llu schedules from seed %llu, no violation: %llu promotions, %llu switches, %llu "
           "kills, "
           "%llu records acknowledged, %llu excused, %.0f schedules a CPU-minute\n",
           (unsigned long long)n, (unsigned long long)seed, (unsigned long long)counts.n_leads,
           (unsigned long long)counts.n_switches, (unsigned long long)counts.n_kills,
           (unsigned long long)counts.n_acknowledged, (unsigned long long)counts.n_excused,
           (double)n / cpu_seconds() * 60);
    return 0;
}
