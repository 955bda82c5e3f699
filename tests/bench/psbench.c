/*
 * psbench pull|push|mix: how much psd takes. A closed loop: N connections, each with `depth`
 * requests in flight, all on one thread of this program; a request goes to one shard, with
 * keys of that shard. README.md has the figures.
 */
#include "tests/bench/psbench_types.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "proto/spec.h"
#include "tests/bench/psbench_report.h"
#include "tests/bench/psbench_run.h"

#define AT(field) offsetof(struct psbench_settings, field)

/* clang-format off */
static const struct setting rows[] = {
    { "server", "server", SETTING_TEXT, "HOST:PORT", "127.0.0.1:7070", "any node of the cluster", AT(server), 0, 0 },
    { "server", "token", SETTING_TEXT, "TEXT", "", "the cluster's secret", AT(token), 0, 0 },
    { "server", "server-pid", SETTING_U32, "PID", "0", "a psd on this machine, whose CPU time is to be reported",
      AT(server_pid), 0, 0 },
    { "load", "keys-per-request", SETTING_U32, "N", "1000", "unique keys in each request", AT(keys_per_request), 1, 1000000 },
    { "load", "dim", SETTING_U32, "D", "16", "floats in a row; the table is psbench/D", AT(dim), 1, SPEC_DIM_MAX },
    { "load", "rows", SETTING_U64, "N", "1000000", "rows in the table", AT(rows), 1, UINT64_C(1) << 40 },
    { "load", "depth", SETTING_U32, "N", "4", "requests in flight on each connection", AT(depth), 1, 4096 },
    { "load", "connections", SETTING_U32, "N", "4", "dealt out to the shards in turn", AT(connections), 1, 4096 },
    { "load", "zipf", SETTING_FLOAT, "A", "0", "row number i is asked for in proportion to 1 / i^A; 0: uniform",
      AT(zipf), 0, 10 },
    { "load", "codec", SETTING_CHOICE, "fp32|bf16|fp16|int8|onebit|topk", "fp32",
      "of the values; pulls are fp32 where it needs feedback", AT(codec), 0, 0 },
    { "load", "optimizer", SETTING_CHOICE, "sgd|momentum|adagrad|rowwise_adagrad|adam|ftrl", "adagrad",
      "of the table, if it is not there yet", AT(optimizer), 0, 0 },
    { "load", "compress", SETTING_FLAG, "", "no", "zstd on requests where it pays", AT(compress), 0, 0 },
    { "load", "seed", SETTING_U64, "N", "1", "of the keys", AT(seed), 0, 0 },
    { "run", "seconds", SETTING_U32, "S", "10", "to measure", AT(seconds), 1, 86400 },
    { "run", "warmup", SETTING_U32, "S", "2", "before that", AT(warmup_seconds), 0, 86400 },
    { "run", "no-fill", SETTING_FLAG, "", "no", "the rows are there already, or are to come with the pushes", AT(no_fill), 0, 0 },
    { "run", "json", SETTING_TEXT, "FILE", "", "append the result as one line", AT(json), 0, 0 },
};
/* clang-format on */

static const struct settings_table table = {
    .program = "psbench",
    .usage = "psbench pull|push|mix [options]",
    .about = "Measures psd: a closed loop of requests over several connections, as "
             "redis-benchmark does it. The job and the "
             "tables that it makes are called psbench.",
    .rows = rows,
    .n_rows = COUNT_OF(rows),
};

static int run(const struct psbench_settings *settings)
{
    struct psbench_counts *counts = mem_alloc(sizeof *counts);
    struct err err = { 0 };
    int status = psbench_run(settings, counts, &err);

    if (!status) {
        psbench_report_print(settings, counts, stdout);
        if (settings->json[0])
            status = psbench_report_json(settings, counts, &err);
    }
    if (status)
        fprintf(stderr, "psbench: %s\n", err.text);
    else if (counts->n_errors)
        status = -1;
    free(counts);
    return status ? 1 : 0;
}

/* The first word, if it is a load: *ret_first is where the flags begin. */
static bool take_load(int argc, char **argv, struct psbench_settings *settings, int *ret_first)
{
    int load;

    *ret_first = 1;
    if (argc < 2 || argv[1][0] == '-')
        return false;
    *ret_first = 2;
    for (load = PSBENCH_PULL; load <= PSBENCH_MIX; load++)
        if (strcmp(argv[1], psbench_report_load_name((enum psbench_load)load)) == 0) {
            settings->load = (enum psbench_load)load;
            return true;
        }
    return false;
}

int main(int argc, char **argv)
{
    struct psbench_settings *settings = mem_alloc(sizeof *settings);
    enum settings_action action = SETTINGS_RUN;
    struct err err = { 0 };
    int first, code = 0;
    bool has_load = take_load(argc, argv, settings, &first);

    if (settings_load(&table, argc, argv, first, settings, &action, &err)) {
        fprintf(stderr, "psbench: %s\n", err.text);
        code = 2;
    } else if (action == SETTINGS_HELP) {
        settings_print_help(&table, stdout);
    } else if (action == SETTINGS_VERSION) {
        printf("psbench %s\n", PS_VERSION);
    } else if (action == SETTINGS_PRINT_CONFIG) {
        settings_print_config(&table, settings, stdout);
    } else if (!has_load) {
        fprintf(stderr,
                "psbench: what to do? expected pull, push or mix%s%s%s; see psbench --help\n",
                first == 2 ? ", found \"" : "", first == 2 ? argv[1] : "",
                first == 2 ? "\"" : "");
        code = 2;
    } else if (action == SETTINGS_RUN) {
        code = run(settings);
    }
    settings_free(&table, settings);
    free(settings);
    return code;
}
