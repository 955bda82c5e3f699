/*
 * Seeded schedules of a whole cluster, until one breaks a promise or enough are done. README.md.
 */
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/schedule.h"

/* Killed processes leave their memory behind: it goes with the process of the system that has run so many schedules. */
#define BATCH 24u

/* Leaks are what a killed process is (above); unit tests look for the others. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0:detect_stack_use_after_return=0:exitcode=99";
}

struct options {
    uint64_t seed, n_schedules, die_at;
    double cpu_s; /* 0: no limit */
    uint32_t node;
    bool has_seed, every_op, is_traced, loses_power, twice;
};

struct totals {
    uint64_t n, n_events, n_switches, n_recovered, n_checkpoints, n_records, n_sync_points,
        n_layouts, n_repeated, n_fenced, n_losses, n_misled, simulated_us;
};

/* What the processes share that run schedules one after the other. */
struct shared {
    struct schedule_config
        next; /* or the one that runs: an assertion of the product has no seed to tell */
    struct schedule_facts whole; /* of the seed whose operations are tried */
    bool has_whole, is_said, twice;
    struct totals totals;
};

static struct shared *shared;

static void say_again(const char *what)
{
    const struct schedule_config *c = &shared->next;

    shared->is_said = true;
    printf("seed %llu: %s; again: sim --seed %llu", (unsigned long long)c->seed, what,
           (unsigned long long)c->seed);
    if (c->die_at != SCHEDULE_NEVER)
        printf(" --node %u --die-at %llu%s", c->die_node, (unsigned long long)c->die_at,
               c->die_loses_power ? " --cut" : "");
    printf(" --trace\n");
    fflush(stdout);
}

static void on_abort(int signal)
{
    (void)signal;
    say_again("aborted");
    _Exit(134);
}

static int usage(FILE *to, int status)
{
    fprintf(to, "usage: sim [--seed N] [--schedules N] [--seconds CPU] [--every-op] [--twice] "
                "[--trace]\n"
                "           [--node N --die-at OPERATION [--cut]]\n"
                "  --seed        the first one; without it one that no run had before\n"
                "  --schedules   seeds from there on; 1 with --seed, else 1000\n"
                "  --seconds     of CPU time, then it ends\n"
                "  --every-op    each seed again and again, a process dying in its file "
                "operation 0, 1, 2 ...\n"
                "  --node, --die-at, --cut   one of these\n"
                "  --twice       each schedule two times, which have to be the same\n"
                "  --trace       every step\n");
    return status;
}

static bool parse(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--every-op") == 0)
            o->every_op = true;
        else if (strcmp(argv[i], "--twice") == 0)
            o->twice = true;
        else if (strcmp(argv[i], "--trace") == 0)
            o->is_traced = true;
        else if (strcmp(argv[i], "--cut") == 0)
            o->loses_power = true;
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

static double seconds_of(int who)
{
    struct rusage usage;

    getrusage(who, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static double cpu_s(void)
{
    return seconds_of(RUSAGE_SELF) + seconds_of(RUSAGE_CHILDREN);
}

static bool is_enough(const struct options *o)
{
    const struct totals *t = &shared->totals;

    return (o->n_schedules && t->n >= o->n_schedules) || (o->cpu_s > 0 && cpu_s() >= o->cpu_s);
}

static void run(struct schedule_facts *ret)
{
    struct totals *t = &shared->totals;

    schedule_run(&shared->next, ret);
    if (shared->twice) {
        struct schedule_facts again;

        schedule_run(&shared->next, &again);
        if (again.digest != ret->digest) {
            say_again("two runs differ");
            exit(1);
        }
    }
    t->n++;
    t->n_events += ret->n_events;
    t->n_switches += ret->n_switches;
    t->n_recovered += ret->n_recovered;
    t->n_checkpoints += ret->n_checkpoints;
    t->n_records += ret->n_records;
    t->n_sync_points += ret->n_sync_points;
    t->n_layouts += ret->n_layouts;
    t->n_repeated += ret->n_repeated;
    t->n_fenced += ret->n_fenced;
    t->n_losses += ret->n_losses;
    t->n_misled += ret->n_misled;
    t->simulated_us += ret->simulated_us;
}

static void next_seed(const struct options *o)
{
    shared->next.seed++;
    shared->next.die_at = o->every_op ? SCHEDULE_NEVER : o->die_at;
    shared->has_whole = false;
}

/* The process of each node dies in each of its operations, with and without its power. */
static void run_op(const struct options *o)
{
    struct schedule_config *c = &shared->next;
    struct schedule_facts facts;

    if (!shared->has_whole) {
        run(&shared->whole);
        shared->has_whole = true;
        c->die_node = 0;
        c->die_at = 0;
        return;
    }
    if (c->die_at >= shared->whole.n_ops[c->die_node]) {
        c->die_at = 0;
        if (++c->die_node >= shared->whole.n_nodes)
            next_seed(o);
        return;
    }
    c->die_loses_power = (c->die_at + c->seed) % 2;
    run(&facts);
    c->die_at++;
}

static void run_some(const struct options *o)
{
    uint64_t until = shared->totals.n + BATCH;
    struct schedule_facts facts;

    while (shared->totals.n < until && !is_enough(o)) {
        if (o->every_op) {
            run_op(o);
            continue;
        }
        run(&facts);
        next_seed(o);
    }
}

/* As a process of the system that ends behind it; what it fails with is this one's end. */
static void run_batch(const struct options *o)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        run_some(o);
        fflush(stdout);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("fork");
        exit(1);
    }
    if (status == 0)
        return;
    if (!shared->is_said && !(WIFEXITED(status) && WEXITSTATUS(status) == 1))
        say_again(
            "ended by the system, or by a sanitizer"); /* 1: a promise is broken, and was reported */
    exit(1);
}

static void run_all(const struct options *o)
{
    shared->next = (struct schedule_config){ .seed = o->seed,
                                             .is_traced = o->is_traced,
                                             .die_node = o->node,
                                             .die_at = o->die_at,
                                             .die_loses_power = o->loses_power };
    shared->twice = o->twice;
    while (!is_enough(o))
        if (o->n_schedules == 1)
            run_some(o); /* here, for debuggers */
        else
            run_batch(o);
}

static void report(void)
{
    const struct totals *t = &shared->totals;
    double s = cpu_s();

    printf(
        "%llu schedules, 0 violations: %llu events, %llu switches of threads, %llu records, "
        "%llu recoveries, %llu checkpoints, %llu exact cuts in bounded staleness, %llu "
        "changes of layout, %llu pushes repeated, %llu fenced, %llu with keys lost (%llu "
        "excluded: misled by an older copy), %.0f s simulated; %.1f s of CPU, %.0f schedules a "
        "minute\n",
        (unsigned long long)t->n, (unsigned long long)t->n_events,
        (unsigned long long)t->n_switches, (unsigned long long)t->n_records,
        (unsigned long long)t->n_recovered, (unsigned long long)t->n_checkpoints,
        (unsigned long long)t->n_sync_points, (unsigned long long)t->n_layouts,
        (unsigned long long)t->n_repeated, (unsigned long long)t->n_fenced,
        (unsigned long long)t->n_losses, (unsigned long long)t->n_misled,
        (double)t->simulated_us * 1e-6, s, (double)t->n / s * 60);
}

/* What is large and hardly touched, such as a shard's 3 MiB of provenance, is mapped: it is not cleared, and takes
 * memory only where it is touched. */
static void map_large_blocks(void)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

int main(int argc, char **argv)
{
    struct options o = { .die_at = SCHEDULE_NEVER };

    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return usage(stdout, 0);
    if (!parse(&o, argc, argv))
        return usage(stderr, 2);
    if (!o.has_seed)
        o.seed = (uint64_t)time(NULL) * 1000003;
    if (!o.n_schedules && o.cpu_s <= 0)
        o.n_schedules = o.has_seed ? 1 : 1000;
    shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    signal(SIGABRT, on_abort);
    map_large_blocks();
    printf("seeds from %llu\n", (unsigned long long)o.seed);
    fflush(stdout);
    run_all(&o);
    report();
    return 0;
}
