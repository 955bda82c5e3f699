/*
 * What a run of psbench is asked for, and what it has seen.
 */
#ifndef TESTS_BENCH_PSBENCH_TYPES_H
#define TESTS_BENCH_PSBENCH_TYPES_H

#include <stdbool.h>

#include "common/histogram.h"
#include "common/settings.h"

enum psbench_load { PSBENCH_PULL, PSBENCH_PUSH, PSBENCH_MIX };

struct psbench_settings {
    enum psbench_load load;
    char server[SETTINGS_TEXT_MAX], token[SETTINGS_TEXT_MAX], json[SETTINGS_TEXT_MAX];
    uint32_t keys_per_request, dim, depth, connections, seconds, warmup_seconds, server_pid;
    uint64_t rows, seed;
    float zipf; /* 0: uniform */
    int codec;  /* enum codec_id */
    int optimizer;
    bool compress, no_fill;
};

/* Of the measured seconds. */
struct psbench_counts {
    uint64_t n_requests, n_rows, n_errors, bytes_in, bytes_out, n_filled;
    struct histogram latency_ns;
    double seconds, server_cpu_seconds; /* the latter negative when not known */
    uint32_t n_shards;
    char first_error[256];
};

#endif
