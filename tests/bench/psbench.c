/*
 * psbench pull|push|mix|grow: how much psd takes, and how much its machine would allow. N
 * connections, each with up to `depth` requests in flight, all on one thread of this program; a
 * request goes to one shard, with keys of that shard. psbench local: the same shards in this
 * process. psbench connect: connections alone. README.md tells how to read the figures.
 */
#include "tests/bench/psbench_types.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/address.h"
#include "common/memory.h"
#include "common/token_file.h"
#include "server/cluster/etcd_lookup.h"
#include "server/cluster/etcd_url.h"
#include "tests/bench/psbench_cases.h"
#include "tests/bench/psbench_connect.h"
#include "tests/bench/psbench_core.h"
#include "tests/bench/psbench_cpu.h"
#include "tests/bench/psbench_handshake.h"
#include "tests/bench/psbench_limits.h"
#include "tests/bench/psbench_local.h"
#include "tests/bench/psbench_report.h"
#include "tests/bench/psbench_run.h"
#include "worker/client/discovery.h"

#define FIND_MS 20000u /* etcd is waited for */
#define AT(field) offsetof(struct psbench_settings, field)

/* clang-format off */
static const struct setting rows[] = {
    { "server", "server", SETTING_TEXT, "HOST:PORT", "127.0.0.1:7070", "any node of the cluster, or etcd://HOST:PORT/CLUSTER", AT(server), 0, 0 },
    { "server", "token", SETTING_TEXT, "TEXT", "", "the cluster's secret", AT(token), 0, 0 },
    { "server", "token-file", SETTING_TEXT, "FILE", "",
      "holds the secret that the node wants to be shown, where --token does not give it; empty: none", AT(token_file), 0, 0 },
    { "server", "tls-ca", SETTING_TEXT, "FILE", "", "speak TLS; the CA of the node's certificate", AT(tls_ca), 0, 0 },
    { "server", "tls-cert", SETTING_TEXT, "FILE", "", "certificate that the node is shown", AT(tls_cert), 0, 0 },
    { "server", "tls-key", SETTING_TEXT, "FILE", "", "its private key", AT(tls_key), 0, 0 },
    { "server", "server-pid", SETTING_U32, "PID", "0",
      "the psd whose CPU time is to be reported; 0: the one that answers, if it is on this machine", AT(server_pid), 0, 0 },
    { "server", "timeout", SETTING_MS, "TIME", "30s", "how long a shard may leave everything unanswered", AT(timeout_ms), 1, 86400000 },
    { "load", "keys-per-request", SETTING_LIST, "N", "1000", "unique keys in each request", AT(keys), 0, 0 },
    { "load", "dim", SETTING_U32, "D", "16", "floats in a row", AT(dim), 1, TABLE_SPEC_DIM_MAX },
    { "load", "rows", SETTING_U64, "N", "1000000", "rows in the table", AT(rows), 1, UINT64_C(1) << 40 },
    { "load", "depth", SETTING_U32, "N", "0",
      "requests in flight on each connection; 0: up to 4, fewer if they have more than 1000 keys", AT(depth_wanted), 0, 4096 },
    { "load", "connections", SETTING_U32, "N", "4", "dealt out to the shards in turn", AT(connections), 1, 4096 },
    { "load", "reconnects", SETTING_U32, "N", "1000",
      "connect: connections to open and close, as many at a time as --connections says", AT(reconnects), 1, 1000000000 },
    { "load", "pull-share", SETTING_FLOAT, "X", "0.5", "mix: pulls among the requests", AT(pull_share), 0, 1 },
    { "load", "rate", SETTING_FLOAT, "N", "0",
      "requests/s over all connections, sent when they are due (open loop); 0: each answer brings the next (closed loop)",
      AT(rate), 0, 100000000 },
    { "load", "arrivals", SETTING_CHOICE, "poisson|fixed", "poisson", "with a rate: when requests are due", AT(arrivals), 0, 0 },
    { "load", "spin", SETTING_FLAG, "", "no",
      "poll without sleeping: costs a core, spares the server the wake-ups; an open loop always does, limits try both",
      AT(spin), 0, 0 },
    { "load", "reader", SETTING_FLAG, "", "no", "pull as a reader, which joins no job; the rows are there already", AT(reader),
      0, 0 },
    { "load", "pause-us", SETTING_U64, "N", "0",
      "closed loop: between an answer and the request that it brings, half to one and a half times so long", AT(pause_us), 0,
      60000000 },
    { "load", "zipf", SETTING_FLOAT, "A", "0", "row number i is asked for in proportion to 1 / i^A; 0: uniform",
      AT(zipf), 0, 10 },
    { "load", "codec", SETTING_LIST, "NAME", "fp32",
      "of the values: fp32, bf16, fp16, int8, onebit, topk; pulls are fp32 where it needs feedback", AT(codecs), 0, 0 },
    { "load", "compress", SETTING_FLAG, "", "no", "zstd on requests where it pays", AT(compress), 0, 0 },
    { "load", "seed", SETTING_U64, "N", "1", "of the keys and arrivals", AT(seed), 0, 0 },
    { "table", "optimizer", SETTING_CHOICE, TABLE_SPEC_OPTIM_CHOICE, "adagrad",
      "of the table psbench/DIM/OPTIMIZER/STORAGE, which is made if it is not there", AT(optimizer), 0, 0 },
    { "table", "storage", SETTING_CHOICE, "fp32|bf16|fp16", "fp32", "of its weights", AT(storage), 0, 0 },
    { "table", "no-fill", SETTING_FLAG, "", "no", "the rows are there already, or are to come with the pushes", AT(no_fill), 0, 0 },
    { "run", "seconds", SETTING_FLOAT, "S", "10", "to measure", AT(seconds), 0, 86400 },
    { "run", "warmup", SETTING_FLOAT, "S", "2", "before that", AT(warmup_seconds), 0, 86400 },
    { "run", "limits", SETTING_FLAG, "", "no", "also measure what bare sockets and the bare table can do", AT(limits), 0, 0 },
    { "run", "rounds", SETTING_U32, "N", "3", "with limits, or local: measurements of each, of which the medians count",
      AT(rounds), 1, PSBENCH_ROUNDS_MAX },
    { "run", "threads", SETTING_TEXT, "N,N", "1,2", "local: numbers of shards to compare", AT(threads), 0, 0 },
    { "run", "client-cpu", SETTING_TEXT, "N", "", "the core that this program runs on; empty: any", AT(client_cpu), 0, 0 },
    { "run", "server-cpu", SETTING_TEXT, "N", "", "the core that psd runs on, for the limits; empty: any", AT(server_cpu), 0, 0 },
    { "run", "json", SETTING_TEXT, "FILE", "", "append the result as one line", AT(json), 0, 0 },
};
/* clang-format on */

static const struct settings_table table = {
    .program = "psbench",
    .usage = "psbench pull|push|mix|grow [options] | psbench local pull|push|mix [options] | "
             "psbench connect [options]",
    .about =
        "Measures psd, as redis-benchmark does redis: requests over several connections, in "
        "a closed loop or at a given rate.\n"
        "pull, push, mix: of rows that are there.\n"
        "grow: pushes of rows that are not there yet, to a new table, until it has all of "
        "them; then the same once more.\n"
        "local: no server; shards on threads of this process, and how their number tells.\n"
        "connect: connections that are opened, greeted by a shard, and closed again, with or "
        "without TLS.\n"
        "Several loads, codecs and numbers of keys, with commas, are measured one after the "
        "other. The job and the tables that psbench makes are called psbench.",
    .rows = rows,
    .n_rows = COUNT_OF(rows),
};

static int check_server(const struct psbench_settings *s, struct err *err)
{
    struct address ignored[DISCOVERY_SERVERS_MAX];
    struct etcd_url url;
    uint32_t n;
    int status = etcd_url_is(s->server)
                     ? etcd_url_parse(s->server, &url, err)
                     : address_list(s->server, DISCOVERY_SERVERS_MAX, ignored, &n, err);
    struct err why = *err;

    return status ? err_set(err, PS_ESETTING, "server: %.400s", why.text) : 0;
}

static int check(const struct psbench_settings *s, struct err *err)
{
    bool grows = false;
    int cpu, status;

    for (uint32_t i = 0; i < s->n_loads; i++)
        grows |= s->loads[i] == PSBENCH_GROW;
    if (s->seconds <= 0)
        return err_set(err, PS_ESETTING, "seconds: found 0, expected more");
    if (s->limits && (grows || s->local))
        return err_set(err, PS_ESETTING, "limits: are those of pull, push and mix to a server");
    if (s->limits && s->rate > 0)
        return err_set(err, PS_ESETTING, "limits: are those of a closed loop; leave out rate");
    if (s->connect && (s->limits || s->rate > 0))
        return err_set(err, PS_ESETTING,
                       "limits and rate: are those of requests; leave them out with connect");
    if (s->local && grows)
        return err_set(err, PS_ESETTING, "local: found grow, expected pull, push or mix");
    if (s->local && s->spin)
        return err_set(err, PS_ESETTING, "spin: is for answers of a server; leave out local");
    if (s->reader && !s->connect &&
        (s->local || s->limits || s->n_loads != 1 || s->loads[0] != PSBENCH_PULL))
        return err_set(err, PS_ESETTING, "reader: pulls from a server, and does nothing else");
    if (s->pause_us && (s->rate > 0 || s->spin || s->local))
        return err_set(err, PS_ESETTING,
                       "pause-us: is for the closed loop; leave out rate and spin");
    if (s->token[0] && s->token_file[0])
        return err_set(err, PS_ESETTING,
                       "token and token-file: both are given, expected one of them");
    if (strlen(s->token) >= TOKEN_FILE_MAX)
        return err_set(err, PS_ESETTING, "token: found %zu characters, expected at most %u",
                       strlen(s->token), TOKEN_FILE_MAX - 1);
    status = check_server(s, err);
    if (!status)
        status = psbench_cpu_parse("server-cpu", s->server_cpu, &cpu, err);
    return status ? status : psbench_cpu_parse("client-cpu", s->client_cpu, &cpu, err);
}

/* The load, once; grow once more; or in rounds with the limits, whose table is kept. */
static int measure(struct psbench_findings *f, struct psbench_counts counts[static 2],
                   struct psbench_limits *limits, struct psbench_core **core, struct err *err)
{
    const struct psbench_settings *s = f->settings;
    struct psbench_pools pools = { 0 };
    int status;

    f->counts = counts;
    if (s->limits) {
        f->limits = limits;
        status = psbench_limits_run(s, &pools, core, counts, limits, err);
    } else {
        status = psbench_run(s, &pools, counts, err);
    }
    if (!status && s->load == PSBENCH_GROW) {
        f->again = &counts[1];
        status = psbench_run(s, &pools, &counts[1], err);
    }
    psbench_pools_deinit(&pools);
    return status;
}

static int run_case(struct psbench_settings *s, struct psbench_core **core, struct err *err)
{
    struct psbench_counts *counts = memory_alloc(2 * sizeof *counts);
    struct psbench_findings findings = { .settings = s };
    struct psbench_limits limits;
    int status;

    if (s->local) {
        free(counts);
        return psbench_local_run(s, err);
    }
    counts[0].server_pid = counts[1].server_pid = s->server_pid;
    status = measure(&findings, counts, &limits, core, err);
    if (!status) {
        psbench_report_print(&findings, stdout);
        fflush(stdout);
        if (s->json[0])
            status = psbench_report_json(&findings, err);
    }
    if (!status && counts[0].n_errors)
        status = err_set(err, -EIO, "%llu requests were refused",
                         (unsigned long long)counts[0].n_errors);
    free(counts);
    return status;
}

/* What a server is asked with, and which one. */
static int prepare(struct psbench_settings *s, struct err *err)
{
    int cpu, status = psbench_cpu_parse("client-cpu", s->client_cpu, &cpu, err);

    if (!status && s->token_file[0])
        status = token_file_read(&file_os, s->token_file, s->token, err);
    if (!status)
        status = tls_context_open(s->tls_ca, s->tls_cert, s->tls_key, &s->tls, err);
    if (!status)
        status = psbench_cpu_pin(cpu, err);
    if (!status && !s->server_pid)
        s->server_pid = psbench_handshake_find_pid(s);
    return status;
}

/* The rows are there once a case has filled the table. */
static int run_cases(struct psbench_settings *s, const struct psbench_case *cases, uint32_t n,
                     struct err *err)
{
    struct psbench_core *core = NULL;
    int status = s->local ? 0 : prepare(s, err);

    if (!status && s->connect)
        return psbench_connect_run(s, err);
    for (uint32_t i = 0; i < n && !status; i++) {
        psbench_cases_choose(&cases[i], s);
        status = run_case(s, &core, err);
        s->no_fill |= s->load != PSBENCH_GROW;
    }
    psbench_core_free(core);
    return status;
}

/* etcd says once where they are. */
static int find_servers(struct psbench_settings *s, enum settings_action action,
                        struct err *err)
{
    char url[SETTINGS_TEXT_MAX];

    if (!etcd_url_is(s->server) || action != SETTINGS_RUN)
        return 0;
    snprintf(url, sizeof url, "%s", s->server);
    return etcd_lookup_servers(&(struct coord_options){ .url = url }, FIND_MS, s->server,
                               sizeof s->server, err);
}

/* With SETTINGS_CHECK, all that is done before a server is asked. */
static int run(struct psbench_settings *s, enum settings_action action)
{
    struct psbench_case *cases = memory_alloc(PSBENCH_CASES_MAX * sizeof *cases);
    struct err err = { 0 };
    uint32_t n = 0;
    int status = find_servers(s, action, &err), code = status ? 1 : 2;

    if (!status)
        status = check(s, &err);
    if (!status && !s->connect)
        status = psbench_cases_list(s, cases, &n, &err);
    if (!status && action == SETTINGS_RUN) {
        code = 1;
        status = run_cases(s, cases, n, &err);
    }
    if (status)
        fprintf(stderr, "psbench: %s\n", err.text);
    else if (action == SETTINGS_CHECK)
        settings_print_checked(&table, "", stdout);
    free(cases);
    return status ? code : 0;
}

/* "connect", or "local" and the loads, as far as they are there: *ret_first is where the flags begin. */
static const char *take_words(int argc, char **argv, struct psbench_settings *s, int *ret_first)
{
    int at = 1;

    if (argc > at && strcmp(argv[at], "local") == 0) {
        s->local = true;
        at++;
    }
    s->connect = argc > at && strcmp(argv[at], "connect") == 0;
    *ret_first = at + s->connect;
    if (s->connect || argc <= at || argv[at][0] == '-')
        return "";
    *ret_first = at + 1;
    return argv[at];
}

int main(int argc, char **argv)
{
    struct psbench_settings *settings = memory_alloc(sizeof *settings);
    enum settings_action action = SETTINGS_RUN;
    struct err err = { 0 };
    int first, code = 0;
    const char *loads = take_words(argc, argv, settings, &first);
    int status = settings_load(&table, argc, argv, first, settings, &action, &err);

    if (!status && !settings->connect && action != SETTINGS_HELP &&
        action != SETTINGS_VERSION && (action != SETTINGS_PRINT_CONFIG || loads[0]))
        status = psbench_cases_loads(loads, settings, &err);
    if (status) {
        fprintf(stderr, "psbench: %s\n", err.text);
        code = 2;
    } else if (action == SETTINGS_HELP) {
        settings_print_help(&table, stdout);
    } else if (action == SETTINGS_VERSION) {
        printf("psbench %s\n", PS_VERSION);
    } else if (action == SETTINGS_PRINT_CONFIG) {
        settings_print_config(&table, settings, stdout);
    } else {
        code = run(settings, action);
    }
    tls_context_free(settings->tls);
    settings_free(&table, settings);
    free(settings);
    return code;
}
