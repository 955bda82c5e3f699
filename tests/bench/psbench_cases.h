/*
 * Several benchmarks in one run: every load with every codec and every number of keys that were
 * named. So a matrix fills the server's table, and that of the limits, once.
 */
#ifndef TESTS_BENCH_PSBENCH_CASES_H
#define TESTS_BENCH_PSBENCH_CASES_H

#include "tests/bench/psbench_types.h"

#define PSBENCH_CASES_MAX 256u

struct psbench_case {
    enum psbench_load load;
    int codec; /* enum codec_id */
    uint32_t keys_per_request;
};

/* "pull" or "pull,push": PS_ESETTING with a sentence if one is no load. */
int psbench_cases_loads(const char *text, struct psbench_settings *settings, struct err *err)
    MUST_CHECK;

/* Every combination, keys within codecs within loads. */
int psbench_cases_list(const struct psbench_settings *settings,
                       struct psbench_case ret[static PSBENCH_CASES_MAX], uint32_t *ret_n,
                       struct err *err) MUST_CHECK;

/* The settings of one of them, the depth and the table's name included. */
void psbench_cases_choose(const struct psbench_case *one, struct psbench_settings *settings);

#endif
