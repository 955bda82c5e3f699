/*
 * Cores: which one a thread runs on, and how much of them has been used.
 */
#ifndef TESTS_BENCH_PSBENCH_CPU_H
#define TESTS_BENCH_PSBENCH_CPU_H

#include "common/status.h"

#define PSBENCH_CPU_ANY -1

/* A core's number as the user typed it; "": PSBENCH_CPU_ANY. */
int psbench_cpu_parse(const char *name, const char *text, int *ret_cpu, struct err *err)
    MUST_CHECK;

/* The calling thread runs there from now on. PSBENCH_CPU_ANY: nothing happens. */
int psbench_cpu_pin(int cpu, struct err *err) MUST_CHECK;

/* How many cores the machine has. */
int psbench_cpu_count(void);

/* The i-th of the cores that the calling thread may use, beginning again behind the last. */
int psbench_cpu_nth(uint32_t i);

/* User and system time in seconds: of a process, negative if it cannot be known (0 is no
 * process); of the calling thread. */
double psbench_cpu_of_process(uint32_t pid);
double psbench_cpu_of_thread(void);

/* The processor's name, from /proc/cpuinfo; "unknown" where that does not say. */
void psbench_cpu_model(char *ret, size_t n_bytes);

#endif
