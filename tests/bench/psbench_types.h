/*
 * What a run of psbench is asked for, and what it has seen.
 */
#ifndef TESTS_BENCH_PSBENCH_TYPES_H
#define TESTS_BENCH_PSBENCH_TYPES_H

#include <stdbool.h>

#include "common/histogram.h"
#include "common/settings.h"
#include "proto/table_spec.h"

#define PSBENCH_WORST_MAX 8u
#define PSBENCH_ROUNDS_MAX 99u

enum psbench_load { PSBENCH_PULL, PSBENCH_PUSH, PSBENCH_MIX, PSBENCH_GROW, PSBENCH_LOAD_END };

/* What one request does: mix sends both. */
enum psbench_kind { PSBENCH_IS_PULL, PSBENCH_IS_PUSH, PSBENCH_KIND_END };

struct psbench_settings {
    bool local;   /* psbench local: no server, shards in this process */
    bool connect; /* psbench connect: connections that do nothing */
    enum psbench_load loads[PSBENCH_LOAD_END];
    uint32_t n_loads;
    struct setting_list keys, codecs;
    char server[SETTINGS_TEXT_MAX], token[SETTINGS_TEXT_MAX], token_file[SETTINGS_TEXT_MAX],
        json[SETTINGS_TEXT_MAX];
    char tls_ca[SETTINGS_TEXT_MAX], tls_cert[SETTINGS_TEXT_MAX], tls_key[SETTINGS_TEXT_MAX];
    struct tls_context *tls; /* owned, of these files; NULL: plain */
    char server_cpu[SETTINGS_TEXT_MAX], client_cpu[SETTINGS_TEXT_MAX];
    char threads[SETTINGS_TEXT_MAX];
    uint32_t dim, depth_wanted, connections, reconnects, server_pid, rounds;
    uint64_t rows, seed, timeout_ms;
    float zipf; /* 0: uniform */
    float pull_share, seconds, warmup_seconds, rate;
    int arrivals; /* enum psbench_arrivals */
    int optimizer, storage;
    bool compress, no_fill, limits;
    bool spin;         /* also in the closed loop */
    bool reader;       /* joins no job */
    uint64_t pause_us; /* between an answer and the request that it brings, on average */

    /* One case of those that were asked for (psbench_cases.h). */
    enum psbench_load load;
    int codec; /* enum codec_id */
    uint32_t keys_per_request, depth;
    char table[TABLE_SPEC_NAME_MAX]; /* its name */
};

enum psbench_arrivals { PSBENCH_POISSON, PSBENCH_FIXED };

/* One slow request: how many rows the table had been sent until then. */
struct psbench_worst {
    uint64_t latency_ns, rows_before;
};

/* One kind of request, its answers. */
struct psbench_traffic {
    uint64_t n_requests, bytes_in, bytes_out;
};

/* Of the measured seconds; of several rounds, the sum. A request counts with its answer. */
struct psbench_counts {
    struct psbench_traffic traffic[PSBENCH_KIND_END];
    uint64_t n_rows, n_errors, n_filled;
    uint64_t n_rows_refused; /* new rows that found no place in the server's budget */
    uint64_t n_unsent; /* open loop: due, but never sent, as depth was used up to the end */
    struct histogram latency_ns;
    struct histogram late_ns; /* open loop: from when a request was due and could be sent */
    /* grow, one request at a time, and the server's pid known: its CPU time for each. What
     * other programs take away from it does not count. */
    struct histogram work_ns;
    struct psbench_worst worst[PSBENCH_WORST_MAX];          /* the slowest first */
    double seconds, client_cpu_seconds, server_cpu_seconds; /* the last negative: not known */
    uint32_t n_shards, server_pid;
    bool spins; /* psbench did not sleep while it had nothing to do */
    char first_error[256];
};

#endif
