/*
 * Seeded schedules of a whole cluster, until one breaks a promise or enough are done. README.md.
 */
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/schedule.h"

struct options {
    uint64_t seed, n_schedules, die_at;
    double cpu_s; /* 0: no limit */
    uint32_t node;
    bool has_seed, every_op, is_told, is_cut;
};

struct totals {
    uint64_t n, n_events, n_recovered, n_checkpoints, n_records, n_met;
};

/* The one that runs: an assertion of the product has no seed to tell. */
static struct schedule_config running;

static void on_abort(int signal)
{
    (void)signal;
    printf("seed %llu: aborted; again: sim --seed %llu", (unsigned long long)running.seed,
           (unsigned long long)running.seed);
    if (running.die_at != SCHEDULE_NEVER)
        printf(" --node %u --die-at %llu%s", running.die_node,
               (unsigned long long)running.die_at, running.die_is_cut ? " --cut" : "");
    printf(" --trace\n");
    fflush(stdout);
    _Exit(134);
}

static int usage(FILE *to, int status)
{
    fprintf(to, "usage: sim [--seed N] [--schedules N] [--seconds CPU] [--every-op] [--trace]\n"
                "           [--node N --die-at OPERATION [--cut]]\n"
                "  --seed        the first one; without it one that no run had before\n"
                "  --schedules   seeds from there on; 1 with --seed, else 1000\n"
                "  --seconds     of CPU time, then it ends\n"
                "  --every-op    each seed again and again, a process dying in its file "
                "operation 0, 1, 2 ...\n"
                "  --node, --die-at, --cut   one of these\n"
                "  --trace       every step\n");
    return status;
}

static bool parse(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--every-op") == 0)
            o->every_op = true;
        else if (strcmp(argv[i], "--trace") == 0)
            o->is_told = true;
        else if (strcmp(argv[i], "--cut") == 0)
            o->is_cut = true;
        else if (!value)
            return false;
        else if (strcmp(argv[i], "--seed") == 0)
            o->has_seed = true, o->seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--schedules") == 0)
            o->n_schedules = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            o->cpu_s = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--node") == 0)
            o->node = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--die-at") == 0)
            o->die_at = strtoull(argv[++i], NULL, 10);
        else
            return false;
    }
    return true;
}

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool is_enough(const struct options *o, const struct totals *t)
{
    return (o->n_schedules && t->n >= o->n_schedules) || (o->cpu_s > 0 && cpu_s() >= o->cpu_s);
}

static void run(const struct schedule_config *config, struct totals *t,
                struct schedule_facts *ret)
{
    running = *config;
    schedule_run(config, ret);
    t->n++;
    t->n_events += ret->n_events;
    t->n_recovered += ret->n_recovered;
    t->n_checkpoints += ret->n_checkpoints;
    t->n_records += ret->n_records;
    t->n_met += ret->n_met;
}

/* The process of each node dies in each of its operations, with and without its power. */
static void run_every_op(const struct options *o, uint64_t seed, struct totals *t)
{
    struct schedule_config config = { .seed = seed, .die_at = SCHEDULE_NEVER };
    struct schedule_facts whole, facts;

    run(&config, t, &whole);
    for (config.die_node = 0; config.die_node < whole.n_nodes; config.die_node++)
        for (config.die_at = 0; config.die_at < whole.n_ops[config.die_node]; config.die_at++) {
            if (is_enough(o, t))
                return;
            config.die_is_cut = (config.die_at + seed) % 2;
            run(&config, t, &facts);
        }
}

static void run_all(const struct options *o, struct totals *t)
{
    struct schedule_config config = {
        .is_told = o->is_told, .die_node = o->node, .die_at = o->die_at, .die_is_cut = o->is_cut
    };
    struct schedule_facts facts;

    for (config.seed = o->seed; !is_enough(o, t); config.seed++)
        if (o->every_op)
            run_every_op(o, config.seed, t);
        else
            run(&config, t, &facts);
}

static void report(const struct totals *t)
{
    double s = cpu_s();

    printf("%llu schedules, 0 violations: %llu events, %llu records, %llu recoveries, %llu "
           "checkpoints, %llu exact cuts in bounded staleness; %.1f s of CPU, %.0f schedules a "
           "minute\n",
           (unsigned long long)t->n, (unsigned long long)t->n_events,
           (unsigned long long)t->n_records, (unsigned long long)t->n_recovered,
           (unsigned long long)t->n_checkpoints, (unsigned long long)t->n_met, s,
           (double)t->n / s * 60);
}

int main(int argc, char **argv)
{
    struct options o = { .die_at = SCHEDULE_NEVER };
    struct totals t = { 0 };

    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return usage(stdout, 0);
    if (!parse(&o, argc, argv))
        return usage(stderr, 2);
    if (!o.has_seed)
        o.seed = (uint64_t)time(NULL) * 1000003;
    if (!o.n_schedules && o.cpu_s <= 0)
        o.n_schedules = o.has_seed ? 1 : 1000;
    /* Large zeroed blocks of which little is used come from the kernel, which zeroes what is touched. */
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    signal(SIGABRT, on_abort);
    printf("seeds from %llu\n", (unsigned long long)o.seed);
    fflush(stdout);
    run_all(&o, &t);
    report(&t);
    return 0;
}
