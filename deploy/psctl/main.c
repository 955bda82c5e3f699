/*
 * psctl: what an operator asks a running psd, or the files that it has left. One question, one answer, exit:
 * 0 answered, 1 not, 2 asked wrongly.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/memory.h"
#include "common/number.h"
#include "common/suggest.h"
#include "deploy/psctl/cert.h"
#include "deploy/psctl/cluster.h"
#include "deploy/psctl/cluster_query.h"
#include "deploy/psctl/cluster_rates.h"
#include "deploy/psctl/command.h"
#include "deploy/psctl/config.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/diff.h"
#include "deploy/psctl/doctor.h"
#include "deploy/psctl/export.h"
#include "deploy/psctl/import.h"
#include "deploy/psctl/latency.h"
#include "deploy/psctl/list_checkpoints.h"
#include "deploy/psctl/online.h"
#include "deploy/psctl/options.h"
#include "deploy/psctl/prune.h"
#include "deploy/psctl/restore.h"
#include "deploy/psctl/terminal.h"
#include "deploy/psctl/top.h"
#include "deploy/psctl/verify.h"
#include "server/cluster/etcd_lookup.h"
#include "server/cluster/etcd_url.h"

#define WORDS_MAX 5u /* the command and what stands behind it */
#define NODE_MAX 1023u
#define REPEAT_BUFFER (1u << 18)

static int print_help(const struct options *o, const char *const *words, uint32_t n_words);
static int print_completion(const struct options *o, const char *const *words,
                            uint32_t n_words);
static int repeat(const struct options *o, const char *const *words, uint32_t n_words);

/* clang-format off */
static const struct setting rows[] = {
    { "server", "server", SETTING_TEXT, "HOST:PORT,...", "127.0.0.1:7070",
      "a node of the cluster; of several the first that answers", offsetof(struct options, server), 0, 0 },
    { "server", "coord", SETTING_TEXT, "URL", "",
      "in place of server: etcd says where the nodes are; etcd://HOST:PORT[,HOST:PORT...]/CLUSTER, as psd has it",
      offsetof(struct options, coord), 0, 0 },
    { "server", "coord-ca", SETTING_TEXT, "FILE", "",
      "ask etcd over TLS, and trust the certificates that this file signs", offsetof(struct options, coord_ca), 0, 0 },
    { "server", "coord-cert", SETTING_TEXT, "FILE", "",
      "an own certificate for etcd; needs coord-key", offsetof(struct options, coord_cert), 0, 0 },
    { "server", "coord-key", SETTING_TEXT, "FILE", "",
      "the key of coord-cert", offsetof(struct options, coord_key), 0, 0 },
    { "server", "coord-user", SETTING_TEXT, "NAME", "",
      "etcd's user; needs coord-password-file", offsetof(struct options, coord_user), 0, 0 },
    { "server", "coord-password-file", SETTING_TEXT, "FILE", "",
      "the file with the user's password", offsetof(struct options, coord_password_file), 0, 0 },
    { "server", "token-file", SETTING_TEXT, "FILE", "",
      "the file with the cluster's secret; empty: none",
      offsetof(struct options, token_file), 0, 0 },
    { "server", "tls-ca", SETTING_TEXT, "FILE", "",
      "speak TLS with the nodes, whose certificates are of the CA in this PEM file",
      offsetof(struct options, tls_ca), 0, 0 },
    { "server", "tls-cert", SETTING_TEXT, "FILE", "", "certificate that the nodes are shown (PEM)",
      offsetof(struct options, tls_cert), 0, 0 },
    { "server", "tls-key", SETTING_TEXT, "FILE", "", "private key of tls-cert (PEM)", offsetof(struct options, tls_key),
      0, 0 },
    { "server", "timeout", SETTING_MS, "TIME", "0ms",
      "the longest silence of a node that is waited for; 0ms: 8s, for doctor 3s, for checkpoint, promote, switch, "
      "drop, set and import 30s",
      offsetof(struct options, timeout_ms), 0, 86400000 },
    { "server", "node", SETTING_TEXT, "N", "",
      "ask this node alone; restore: for which node of the new cluster; empty: all, restore: 0",
      offsetof(struct options, node_text), 0, 0 },
    { "changes", "yes", SETTING_FLAG, "", "no",
      "drop, prune: do it; without it they say what would go", offsetof(struct options, yes), 0, 0 },
    { "promote", "the-other-is-dead", SETTING_FLAG, "", "no",
      "though the primary still answers, or did a moment ago: nobody is to use it any more",
      offsetof(struct options, other_is_dead), 0, 0 },
    { "promote", "accept-loss", SETTING_FLAG, "", "no",
      "without what the primary may have acknowledged and the standby does not have",
      offsetof(struct options, accept_loss), 0, 0 },
    { "files", "at", SETTING_TEXT, "STATE", "",
      "the state of checkpoint NUMBER, of JOB:CLOCK, or intact: all that can be read; empty: the newest",
      offsetof(struct options, at), 0, 0 },
    { "files", "table", SETTING_LIST, "NAME,...", "",
      "only these tables; empty: all", offsetof(struct options, tables), 0, 0 },
    { "restore", "to", SETTING_TEXT, "DATA_DIR", "",
      "the data directory to make", offsetof(struct options, to), 0, 0 },
    { "restore", "nodes", SETTING_U32, "N", "1",
      "how many nodes the new cluster has", offsetof(struct options, nodes), 1, 1024 },
    { "restore", "shards", SETTING_U32, "N", "0",
      "how many shards each of them has; 0: as many as the nodes that wrote",
      offsetof(struct options, shards), 0, 1024 },
    { "export", "format", SETTING_CHOICE, "safetensors|npy", "safetensors",
      "one file of named arrays, or a directory with a file for each", offsetof(struct options, format), 0, 0 },
    { "export", "out", SETTING_TEXT, "PATH", "",
      "the file, or with npy the directory, to write", offsetof(struct options, out), 0, 0 },
    { "export", "state", SETTING_FLAG, "", "no",
      "the optimizers' state, too", offsetof(struct options, state), 0, 0 },
    { "import", "make", SETTING_FLAG, "", "no",
      "make tables that are not there, as the file says", offsetof(struct options, make), 0, 0 },
    { "import", "set", SETTING_TEXT, "NAME=VALUE,...", "",
      "settings of tables that are made, as of the command set; empty: the optimizer's own",
      offsetof(struct options, set), 0, 0 },
    { "import", "weights", SETTING_FLAG, "", "no",
      "leave out the optimizers' state, which begins anew", offsetof(struct options, weights), 0, 0 },
    { "compare", "top", SETTING_U32, "N", "10",
      "diff: name so many of the most drifted keys of each table", offsetof(struct options, top), 0, 10000 },
    { "compare", "against", SETTING_TEXT, "PATH", "",
      "replay: what the result must be the same as", offsetof(struct options, against), 0, 0 },
    { "cert", "cluster", SETTING_TEXT, "NAME", "psd", "the cluster's name, in all its certificates",
      offsetof(struct options, cluster), 0, 0 },
    { "cert", "host", SETTING_LIST, "NAME,...", "", "names and addresses of the nodes' machines, for node.pem",
      offsetof(struct options, hosts), 0, 0 },
    { "cert", "job", SETTING_TEXT, "JOB", "", "the job that worker.pem is for; empty: all",
      offsetof(struct options, job), 0, 0 },
    { "cert", "days", SETTING_U32, "N", "90", "how long certificates are good for",
      offsetof(struct options, days), 1, 36500 },
    { "prune", "keep", SETTING_U32, "N", "1",
      "prune: so many restore points stay, the newest", offsetof(struct options, keep), 1, 1000000 },
    { "report", "every", SETTING_MS, "TIME", "2s",
      "top, watch: the time from one to the next; doctor, latency: between their two reports",
      offsetof(struct options, every_ms), 100, 3600000 },
    { "report", "curve", SETTING_FLAG, "", "no",
      "job: its curve as CSV on standard output: a line for each point", offsetof(struct options, curve), 0, 0 },
    { "report", "svg", SETTING_FLAG, "", "no",
      "job: with --curve, a picture (SVG) in place of CSV", offsetof(struct options, svg), 0, 0 },
    { "report", "count", SETTING_U32, "N", "0",
      "top, watch: so many times; 0: until it is stopped", offsetof(struct options, count), 0, 1000000 },
    { "output", "output", SETTING_CHOICE, "text|wide|json", "text",
      "or -o: wide: all columns and lines; json: as --json", offsetof(struct options, output), 0, 0 },
    { "output", "json", SETTING_FLAG, "", "no",
      "one JSON object; of a node: its answer as it came", offsetof(struct options, json), 0, 0 },
};

static const struct settings_table table = {
    .program = "psctl",
    .usage = "psctl COMMAND [options]",
    .about = "PATH is a data directory, or DATA_DIR/checkpoints/NUMBER, as checkpoints shows it; of a cluster, those "
             "of all nodes with commas: n0,n1 (verify and checkpoints then answer for each; with --json a line each). "
             "Nothing is written there but by prune --yes, also while psd runs.\n"
             "Tables fold to the width of the terminal, or to COLUMNS; without either they have all columns. Colours "
             "are for terminals; NO_COLOR switches them off.\n"
             "Settings of the sections server and output may stand in ~/.config/psd/psctl.conf, or in the file that "
             "PSCTL_CONFIG names: server = 10.0.0.1:7070. What stands on the command line wins, and --config FILE is "
             "read in its place. psctl config says what is from a file.",
    .rows = rows,
    .n_rows = COUNT_OF(rows),
};

#define OUTPUT_FLAGS " json output "
#define SERVER_FLAGS " server token-file tls-ca tls-cert tls-key timeout" OUTPUT_FLAGS
#define FOUND_FLAGS SERVER_FLAGS "coord coord-ca coord-cert coord-key coord-user coord-password-file "
#define CLUSTER_FLAGS FOUND_FLAGS "node "

static const struct command commands[] = {
    { "status", "", "the nodes, their shards, rows and checkpoints", 0, 0, CLUSTER_FLAGS,
      "the nodes, their shards, rows, refusals and checkpoints.",
      { { "psctl status --server 10.0.0.1:7070", "all nodes of the cluster of that node" },
        { "psctl status --node 2", "node 2 alone" } }, online_status, true },
    { "cluster", "", "primary and standby of each group, in sync or not", 0, 0, FOUND_FLAGS,
      "a line for each group: primary and standby, term, in sync, how far behind, version; then the members that do "
      "not answer, and who waits for what. Ends with 1 if a member does not answer, or a group has no primary.",
      { { "psctl cluster", "by a node, and what it knows of the others" },
        { "psctl cluster --coord etcd://10.0.0.3:2379/prod", "by etcd, also while nodes are away" } },
      cluster_run, true },
    { "tables", "", "each table: optimizer, rows, traffic", 0, 0, CLUSTER_FLAGS,
      "each table, its optimizer, rows and traffic; a line for all dense tables of a job, but with -o wide.",
      { { "psctl tables", "summed over the cluster" },
        { "psctl tables -o wide", "all columns, and each dense table" } }, online_tables, true },
    { "workers", "", "each worker: state, clock, staleness", 0, 0, CLUSTER_FLAGS,
      "each job's workers, their clocks and the staleness they saw.",
      { { "psctl workers", "the jobs of the cluster; a worker's clock is that of the shard furthest behind" } },
      online_workers, true },
    { "jobs", "", "each job: clocks, samples/s, loss, AUC", 0, 0, CLUSTER_FLAGS,
      "a line for each job: mode, workers, clocks, samples/s, loss, AUC, deaths, waits, staleness.",
      { { "psctl jobs", "all jobs" },
        { "psctl jobs -o json | jq .jobs[].name", "their names, for a script (a cluster of one node)" } },
      online_jobs, true },
    { "job", "NAME", "one job whole, with a chart of its loss", 1, 1, CLUSTER_FLAGS "curve svg ",
      "one job whole: workers, samples, loss, AUC, busy shares, tables, and a chart of its loss; with --curve the "
      "curve that psd keeps of it.",
      { { "psctl job ads", "the job ads" },
        { "psctl job ads --curve >ads.csv", "time, clock, samples, samples/s, loss, AUC, log-loss" },
        { "psctl job ads --curve --svg >ads.svg", "the same as a picture for a browser" } }, online_job, true },
    { "why", "", "what waits now, for what, and until when", 0, 0, CLUSTER_FLAGS,
      "what waits now on any node of the cluster, with its cause, start and deadline.",
      { { "psctl why", "all waits" },
        { "psctl watch why", "the same, again and again" },
        { "psctl why --node 1", "those of node 1" } }, online_why, true },
    { "config", "[SETTING ...]", "psd's settings in force, and where they are from", 0, WORDS_MAX - 1, CLUSTER_FLAGS,
      "psd's settings in force: value, where it is from, whether a reload (SIGHUP) reads it again, and what waits for "
      "a restart. Without names those that differ from the default; -o wide: all. Ends with 1 if nodes differ in a "
      "setting that must be equal.",
      { { "psctl config", "all nodes of the cluster; what all agree in has one line" },
        { "psctl config cut-every lease -o wide", "these two" } },
      config_run, true },
    { "latency", "", "how long requests took in the last minute", 0, 0, CLUSTER_FLAGS "every ",
      "how long requests of each type took in the last minute, with histograms, and what the slowest waited for. "
      "Compares two reports, --every apart.",
      { { "psctl latency", "all nodes together" },
        { "psctl latency --node 1 --every 10s", "one node; what was waited for in ten seconds" } }, latency_run, true },
    { "top", "", "shards and jobs with their rates, again and again", 0, 0, CLUSTER_FLAGS "every count ",
      "shards and jobs with their rates, again and again; at a terminal keys sort the shards, and open a job with its "
      "workers and tables.",
      { { "psctl top", "keys: r, l, m, g, n sort; arrows and Enter open a job; q ends" },
        { "psctl top --count 1 --every 5s >load.txt", "one frame as text: the rates of five seconds" } },
      top_run, false },
    { "watch", "COMMAND ...", "another command of this group, again and again", 1, WORDS_MAX - 1, CLUSTER_FLAGS
      "every count ",
      "runs one of the commands that only ask, every --every, until it is stopped.",
      { { "psctl watch workers", "every 2 s" },
        { "psctl watch doctor --every 30s", "problems as they come" } }, repeat, false },
    { "doctor", "", "what is wrong, or will be, in sentences", 0, 0, CLUSTER_FLAGS "every ",
      "what is wrong with the cluster, or will be, in sentences: problems, warnings, notes. Compares two reports, "
      "--every apart. Ends with 1 if there is a problem.",
      { { "psctl doctor", "all nodes, jobs and disks" },
        { "psctl doctor -o json", "the same for a program" } }, doctor_run, true },
    { "row", "TABLE KEY", "one row: values, state, version, who pushed it", 2, 2, FOUND_FLAGS,
      "a row's values, state and version, and who pushed it last.",
      { { "psctl row criteo/emb 42", "the row of key 42" },
        { "psctl row criteo/emb $(psworker key C1 68fd1e64 --format criteo)", "the row of a token" } },
      online_row, true },
    { "checkpoint", "", "every node writes a checkpoint now", 0, 0, CLUSTER_FLAGS,
      "every node of the cluster writes one now; waits for them.",
      { { "psctl checkpoint", "all nodes at once; returns when all have written it" } }, online_checkpoint, false },
    { "promote", "[GROUP]", "a standby becomes the primary", 0, 1, FOUND_FLAGS "the-other-is-dead accept-loss ",
      "the standby at --server becomes the primary, in a term of its own; with GROUP, a node's number, or with "
      "--coord: the standby of that group. Refused while the primary answers, and where the standby was not in sync "
      "with it. From the first second on psctl says what the standby waits for: with --coord psd needs etcd's word, "
      "and psctl ends after --timeout, while the promotion goes on.",
      { { "psctl promote --server 10.0.0.2:7070", "the primary has died: its standby takes over" },
        { "psctl promote 2 --coord etcd://10.0.0.3:2379/prod", "that of node 2, which etcd names" } },
      online_promote, false },
    { "switch", "[GROUP]", "primary and standby change places, under load", 0, 1, FOUND_FLAGS,
      "the standby becomes the primary, and the primary its standby, under load: pushes wait for some milliseconds. "
      "GROUP: a node's number; without it, of the psd at --server, or of the only group that --coord names. Refused "
      "without a standby in sync.",
      { { "psctl switch", "of the psd at --server, before its machine is stopped" },
        { "psctl switch 2", "node 2 of the cluster" } },
      online_switch, false },
    { "drop", "JOB", "removes all tables of a job", 1, 1, FOUND_FLAGS "yes ",
      "removes all tables of a job, with their rows, from every node; --yes does it. Refused while the job has "
      "workers.",
      { { "psctl drop criteo", "says what would go, and ends with 1" },
        { "psctl drop criteo --yes", "removes it" } }, online_drop, false },
    { "set", "JOB NAME=VALUE,...", "changes the learning rate of a job's tables", 2, 2, FOUND_FLAGS,
      "changes the learning rate and its schedule in the tables that a job trains: lr, "
      "dense-lr, epsilon, momentum, weight-decay, beta1, beta2, lr-decay, warmup, decay, decay-start, "
      "decay-clocks, decay-rate, decay-floor, clip, dense-clip. Refused while the job has workers; start them "
      "again with the same options.",
      { { "psctl set criteo lr=0.005,warmup=100", "for all of its tables" } }, online_set, false },
    { "import", "PATH", "sets rows of tables from arrays in files", 1, 1, FOUND_FLAGS "table make set weights ",
      "sets rows of tables, also while they train, from a safetensors file, an npy file, or a "
      "directory of npy files, as export writes them: NAME.keys with NAME.weight and NAME.state.X, or NAME of a "
      "dense table. All is checked before the first row is sent. The same import once more completes one that "
      "was interrupted.",
      { { "psctl import model.safetensors", "all tables of the file" },
        { "psctl import arrays --table criteo/emb --weights", "one table, without its optimizer's state" } },
      import_run, false },
    { "verify", "PATH[,PATH...]", "checks every checksum and record", 1, 1, OUTPUT_FLAGS,
      "checks every checksum, count, row and record of a data directory, or of one checkpoint.",
      { { "psctl verify /var/lib/psd", "also while psd runs" } }, verify_run, false },
    { "checkpoints", "PATH[,PATH...]", "what a start, or --at, can go back to", 1, 1, OUTPUT_FLAGS,
      "what a start, or --at, can go back to.",
      { { "psctl checkpoints /var/lib/psd", "the restore points, with the clocks of their jobs" } },
      list_checkpoints_run, false },
    { "prune", "PATH[,PATH...]", "removes files that no start needs", 1, 1, OUTPUT_FLAGS "keep yes ",
      "files that no start needs, with their size; --yes removes them; while psd runs, "
      "only those that a start has archived.",
      { { "psctl prune /var/lib/psd", "what would go" },
        { "psctl prune /var/lib/psd --yes --keep 3", "removes it, but leaves three restore points" } },
      prune_run, false },
    { "restore", "PATH --to DATA_DIR", "a copy, also in another layout", 1, 1,
      OUTPUT_FLAGS "to node nodes shards at table ",
      "the state of other files as a data directory of any layout.",
      { { "psctl restore /var/lib/psd --to backup", "a copy, also while psd runs" },
        { "psctl restore n0,n1 --to new --shards 4", "two nodes as one with four shards" } }, restore_run, false },
    { "export", "PATH --out PATH", "tables as arrays for PyTorch and NumPy", 1, 1,
      OUTPUT_FLAGS "format out table at state ",
      "tables as arrays that PyTorch and NumPy read.",
      { { "psctl export /var/lib/psd --out model.safetensors", "all tables in one file" },
        { "psctl export /var/lib/psd --out arrays --format npy --state", "a file for each array, with states" } },
      export_run, false },
    { "diff", "A B", "rows new, gone and changed", 2, 2, OUTPUT_FLAGS "at table top ",
      "rows new, gone, changed, and drifted most.",
      { { "psctl diff backup /var/lib/psd --top 3", "ends with 1 if they differ" } }, diff_run, false },
    { "replay", "PATH", "replays the log; checksums of the tables", 1, 1, OUTPUT_FLAGS "at table against ",
      "replays checkpoint and write-ahead log; checksums of the tables, and where they differ from --against.",
      { { "psctl replay /var/lib/psd --at criteo:1000", "the state at clock 1000" } }, diff_replay, false },
    { "cert", "DIR", "certificates for a cluster with TLS", 1, 1, OUTPUT_FLAGS "cluster host job days ",
      "makes certificates in DIR: a CA's, a node's, and one of each role of clients. What is there stays; if it is "
      "of another --cluster, --job or --host, psctl says so, makes nothing, and ends with 1.",
      { { "psctl cert tls", "for a trial on this machine" },
        { "psctl cert tls --host a.example,b.example --job ads", "for two nodes and the workers of one job" } },
      cert_run, false },
    { "completion", "bash|zsh", "a script that completes words in a shell", 1, 1, OUTPUT_FLAGS,
      "a script that completes psctl's words in a shell.",
      { { "source <(psctl completion bash)", "for this shell; packages install it for all" } },
      print_completion, false },
    { "help", "[COMMAND|all]", "this list; a command whole; all: all of them", 0, 1, OUTPUT_FLAGS,
      "a list of the commands; one with its settings and examples; with all: the text of every command, and all "
      "settings.",
      { { "psctl help row", "the same as psctl row --help" },
        { "psctl help -o json | jq -r .commands[].name", "commands, options and examples, for a program" } },
      print_help, false },
};
/* clang-format on */

static const struct command_group groups[] = {
    { "Of a running cluster", "status" },
    { "Changes to a running cluster", "checkpoint" },
    { "Files that psd has written", "verify" },
    { "To set up", "cert" },
};

static const struct command_list list = { commands, COUNT_OF(commands), groups,
                                          COUNT_OF(groups), &table };

PRINTF_LIKE(1, 2) static int misused(const char *fmt, ...)
{
    va_list args;

    fputs("psctl: ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    return EXIT_MISUSED;
}

/* --- words and flags --- */

static bool has_value(const char *flag)
{
    static const char *const alone[] = { "--help", "--version", "--check", "--print-config" };

    for (size_t i = 0; i < COUNT_OF(alone); i++)
        if (strcmp(flag, alone[i]) == 0)
            return false;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (rows[i].type == SETTING_FLAG && strcmp(flag + 2, rows[i].name) == 0)
            return false;
    return strchr(flag, '=') == NULL;
}

static bool is_flag(const char *text)
{
    return strncmp(text, "--", 2) == 0;
}

static char *join(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    char *text = memory_alloc(n + m + 1);

    memcpy(text, a, n);
    memcpy(text + n, b, m);
    return text;
}

/* -o json, -ojson and -o=json as the flags that they stand for; else the argument itself. *ret_owned is to be
 * freed. */
static char *long_flag(char *arg, char **ret_owned)
{
    *ret_owned = NULL;
    if (strncmp(arg, "-o", 2) != 0)
        return arg;
    if (!arg[2])
        return *ret_owned = join("--output", "");
    return *ret_owned = join("--output=", arg + 2 + (arg[2] == '='));
}

/* The command line, taken apart. */
struct line {
    int argc; /* the flags, behind the program's name */
    char **argv;
    char **owned; /* as many as there were arguments */
    int n_owned;
    const char *words[WORDS_MAX];
    uint32_t n_words; /* of which WORDS_MAX are kept */
};

/* Words may stand anywhere between the flags. */
static void take_words(int argc, char **argv, struct line *ret)
{
    *ret = (struct line){ .argv = argv, .argc = 1, .n_owned = argc };
    ret->owned = memory_alloc((size_t)(argc + 1) * sizeof *ret->owned);
    for (int i = 1; i < argc; i++) {
        char *arg = long_flag(argv[i], &ret->owned[i]);

        if (arg[0] != '-') {
            if (ret->n_words < WORDS_MAX)
                ret->words[ret->n_words] = arg;
            ret->n_words++;
            continue;
        }
        argv[ret->argc++] = arg;
        if (is_flag(arg) && has_value(arg) && i + 1 < argc)
            argv[ret->argc++] = argv[++i];
    }
    argv[ret->argc] = NULL;
}

static void line_deinit(struct line *line)
{
    for (int i = 0; i < line->n_owned; i++)
        free(line->owned[i]);
    free(line->owned);
}

/* A setting's name, from its flag; NULL: it is none of ours, which settings_load() tells. */
static const char *setting_of(const char *flag)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        size_t len = strlen(rows[i].name);

        if (strncmp(flag + 2, rows[i].name, len) == 0 &&
            (!flag[2 + len] || flag[2 + len] == '='))
            return rows[i].name;
    }
    return NULL;
}

/* A flag that says nothing to this command, or NULL. */
static const char *find_stray(const struct command *command, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *name = is_flag(argv[i]) ? setting_of(argv[i]) : NULL;

        if (!name)
            continue;
        if (!command_takes(command, name))
            return name;
        i += has_value(argv[i]);
    }
    return NULL;
}

static int refuse_command(const char *name)
{
    struct suggest near;

    suggest_init(&near, name);
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        suggest_offer(&near, commands[i].name);
    if (near.name)
        return misused("unknown command \"%.100s\"; did you mean \"%s\"?", name, near.name);
    return misused("unknown command \"%.100s\"; psctl help lists what there is", name);
}

/* --- the user's own file --- */

/* $PSCTL_CONFIG, which may be empty: none. Else psd/psctl.conf where the user keeps settings, if it is there. False:
 * there is none. */
static bool find_own_file(char ret[static SETTINGS_TEXT_MAX])
{
    const char *named = getenv("PSCTL_CONFIG"), *base = getenv("XDG_CONFIG_HOME"),
               *home = getenv("HOME");
    int n;

    if (named)
        return snprintf(ret, SETTINGS_TEXT_MAX, "%s", named) < (int)SETTINGS_TEXT_MAX && ret[0];
    if (base && base[0] == '/')
        n = snprintf(ret, SETTINGS_TEXT_MAX, "%s/psd/psctl.conf", base);
    else
        n = snprintf(ret, SETTINGS_TEXT_MAX, "%s/.config/psd/psctl.conf", home ? home : "");
    return n < (int)SETTINGS_TEXT_MAX && access(ret, F_OK) == 0;
}

static bool has_flag(const struct line *line, const char *flag)
{
    const size_t n = strlen(flag);

    for (int i = 1; i < line->argc; i++)
        if (strncmp(line->argv[i], flag, n) == 0 &&
            (!line->argv[i][n] || line->argv[i][n] == '='))
            return true;
    return false;
}

/* A file that counts for every command says where the cluster is and who asks, and nothing of what is asked. */
static int check_own_file(const struct setting_origin *origins)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (origins[i].source == SETTING_FROM_FILE && strcmp(rows[i].section, "server") != 0 &&
            strcmp(rows[i].section, "output") != 0)
            return misused(
                "%.200s:%u: %s: this file is for settings of the sections server and "
                "output alone; --config FILE takes all",
                origins[i].path, origins[i].line, rows[i].name);
    return EXIT_ANSWERED;
}

/* Of server and coord that one counts which the command line has. */
static void prefer_command_line(struct options *o, const struct setting_origin *origins)
{
    size_t server = 0, coord = 0;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        server = strcmp(rows[i].name, "server") == 0 ? i : server;
        coord = strcmp(rows[i].name, "coord") == 0 ? i : coord;
    }
    if (origins[server].source == SETTING_FROM_COMMAND_LINE &&
        origins[coord].source == SETTING_FROM_FILE)
        o->coord[0] = '\0';
}

/* "server, tls-ca of FILE" */
static void note_origin(struct options *o, const struct setting_origin *origins)
{
    const char *path = NULL;
    size_t n = 0;

    for (size_t i = 0; i < COUNT_OF(rows) && n < sizeof o->origin; i++) {
        if (origins[i].source != SETTING_FROM_FILE)
            continue;
        n += (size_t)snprintf(o->origin + n, sizeof o->origin - n, "%s%s", path ? ", " : "",
                              rows[i].name);
        path = origins[i].path;
    }
    if (path && n < sizeof o->origin)
        snprintf(o->origin + n, sizeof o->origin - n, " of %s", path);
}

/* Reads the command line, and the user's file where that names none. */
static int load(const struct line *line, struct options *o, enum settings_action *ret_action)
{
    struct setting_origin origins[COUNT_OF(rows)] = { 0 };
    char path[SETTINGS_TEXT_MAX], flag[] = "--config", **argv;
    const bool is_own = !has_flag(line, flag) && find_own_file(path);
    struct err err = { 0 };
    int argc = 0, code = EXIT_ANSWERED;

    argv = memory_alloc((size_t)(line->argc + 3) * sizeof *argv);
    argv[argc++] = line->argv[0];
    if (is_own) {
        argv[argc++] = flag;
        argv[argc++] = path;
    }
    for (int i = 1; i < line->argc; i++)
        argv[argc++] = line->argv[i];
    if (settings_load_origins(&table, argc, argv, 1, o, ret_action, origins, &err) != 0)
        code = misused("%s", err.text);
    if (!code && is_own)
        code = check_own_file(origins);
    if (!code) {
        prefer_command_line(o, origins);
        note_origin(o, origins);
    }
    free(argv);
    return code;
}

/* --- help --- */

static int print_completion(const struct options *o, const char *const *words, uint32_t n_words)
{
    char *script = NULL;
    size_t n_bytes;
    FILE *text = open_memstream(&script, &n_bytes);
    bool is_known;

    (void)n_words;
    if (!text)
        abort(); /* only without memory */
    is_known = command_print_completion(&list, words[0], text);
    if (fclose(text) != 0)
        abort();
    if (is_known && o->json) {
        cJSON *json = cJSON_CreateObject();

        cJSON_AddStringToObject(json, "shell", words[0]);
        cJSON_AddStringToObject(json, "script", script);
        data_dir_print_json(json);
    } else if (is_known) {
        fputs(script, stdout);
    }
    free(script);
    return is_known ? EXIT_ANSWERED
                    : misused("completion: found \"%.100s\", expected bash or zsh", words[0]);
}

static int print_help(const struct options *o, const char *const *words, uint32_t n_words)
{
    const struct command *command = n_words ? command_find(&list, words[0]) : NULL;
    bool wants_all = n_words && strcmp(words[0], "all") == 0;

    if (n_words && !command && !wants_all)
        return refuse_command(words[0]);
    if (o->json)
        data_dir_print_json(command ? command_to_json(&list, command)
                                    : command_list_to_json(&list));
    else if (command)
        command_print_help_of(&list, command, stdout);
    else if (wants_all)
        command_print_all(&list, stdout);
    else
        command_print_help(&list, stdout);
    return EXIT_ANSWERED;
}

/* --- running --- */

static int check_words(const struct command *command, const char *const *words,
                       uint32_t n_words)
{
    if (n_words - 1 > command->n_words_max)
        return misused("%s: has no use for \"%.100s\"", command->name,
                       words[command->n_words_max + 1]);
    if (n_words - 1 < command->n_words_min)
        return misused("%s: expected psctl %s %s", command->name, command->name,
                       command->words);
    return 0;
}

static void print_failure(void *arg, const char *server, const struct err *err)
{
    (void)arg;
    (void)server;
    fprintf(stderr, "psctl: %s%s\n", err->text, cluster_query_hint(err->status));
}

/* Commands that want more of etcd than a list of servers. */
static bool asks_etcd_itself(const struct command *command)
{
    return command->run == cluster_run || command->run == online_promote;
}

/* Of several servers a command sees the one that answers. doctor looks for it itself: that one is silent is what it
 * has to tell. */
static int call(const struct options *o, const struct command *command,
                const char *const *words, uint32_t n_words)
{
    struct options chosen = *o;
    const bool is_of_one =
        (command->run == online_promote || command->run == online_switch) && !n_words;

    if (command->run == doctor_run || command->run == repeat || !strchr(o->server, ',') ||
        !command_takes(command, "server") || (asks_etcd_itself(command) && o->coord[0]))
        return command->run(o, words, n_words);
    if (is_of_one && !o->coord[0])
        return misused("%s: it is for the psd at --server: name that one alone", command->name);
    return cluster_query_choose(&chosen, print_failure, NULL)
               ? command->run(&chosen, words, n_words)
               : EXIT_FAILED;
}

static int run(const struct options *o, const struct command *command, const char *const *words,
               uint32_t n_words)
{
    int code = call(o, command, words, n_words);

    if (fflush(stdout) != 0) {
        fputs("psctl: cannot write the answer to standard output\n", stderr);
        code = EXIT_FAILED;
    }
    return code;
}

/* --- watch --- */

/* Runs the command with what it writes to stderr behind what it writes to stdout: one screen shows both. */
static int run_to_screen(const struct options *o, const struct command *command,
                         const char *const *words, uint32_t n_words)
{
    FILE *errors = tmpfile();
    int own = dup(STDERR_FILENO), code, c;
    bool is_kept = errors && own >= 0 && dup2(fileno(errors), STDERR_FILENO) >= 0;

    code = call(o, command, words, n_words);
    fflush(stderr);
    if (is_kept) {
        dup2(own, STDERR_FILENO);
        rewind(errors);
        while ((c = getc(errors)) != EOF)
            putchar(c);
    }
    if (own >= 0)
        close(own);
    if (errors)
        fclose(errors);
    return code;
}

static void print_repeat_head(const struct options *o, const char *name)
{
    struct terminal terminal = terminal_of(stdout, false);
    time_t seconds = time(NULL);
    char when[16] = "";
    struct tm local;

    if (localtime_r(&seconds, &local))
        strftime(when, sizeof when, "%H:%M:%S", &local);
    printf("%severy %.1f s: psctl %s, %s%s\n", terminal_begin(&terminal, TERMINAL_BOLD),
           (double)o->every_ms / 1000, name, when, terminal_end(&terminal, TERMINAL_BOLD));
}

/* check_command() has looked at the words. */
static int repeat(const struct options *o, const char *const *words, uint32_t n_words)
{
    const struct command *command = command_find(&list, words[0]);
    bool is_screen = isatty(STDOUT_FILENO) && !o->json;
    int code = EXIT_ANSWERED;

    setvbuf(stdout, NULL, _IOFBF, REPEAT_BUFFER); /* a screen at once */
    for (uint32_t i = 0; !o->count || i < o->count; i++) {
        if (i)
            cluster_rates_wait(o->every_ms);
        if (is_screen)
            fputs("\033[H\033[2J", stdout);
        if (!o->json)
            print_repeat_head(o, words[0]);
        code = is_screen ? run_to_screen(o, command, words + 1, n_words - 1)
                         : call(o, command, words + 1, n_words - 1);
        if (fflush(stdout) != 0)
            return EXIT_FAILED;
    }
    return code;
}

/* Whether or not the command asks a node: a wrong setting is wrong. */
static int check_server(const struct options *o)
{
    struct err err = { 0 };
    struct etcd_url url;

    if (o->coord[0])
        return etcd_url_parse(o->coord, &url, &err) ? misused("coord: %s", err.text)
                                                    : EXIT_ANSWERED;
    return cluster_query_check_servers(o, &err) ? misused("server: %s", err.text)
                                                : EXIT_ANSWERED;
}

/* --coord stands for its nodes, primaries before standbys. */
static int find_servers(struct options *o)
{
    const struct coord_options service = options_coord(o);
    struct err err = { 0 };

    if (!etcd_lookup_servers(&service, cluster_query_timeout_ms(o, false), o->server,
                             sizeof o->server, &err))
        return EXIT_ANSWERED;
    fprintf(stderr, "psctl: %s\n", err.text);
    return EXIT_FAILED;
}

/* Settings that depend on each other, or that no type of the table says. */
static int complete(struct options *o)
{
    uint64_t n = 0;

    o->has_node = o->node_text[0] != '\0';
    if (o->has_node && (number_read_u64(o->node_text, &n) || n > NODE_MAX))
        return misused("node: \"%.60s\" is not a whole number from 0 to %u", o->node_text,
                       NODE_MAX);
    o->node = (uint32_t)n;
    if (o->json && o->output == OPTIONS_WIDE)
        return misused("output: --json and -o wide exclude each other");
    o->json = o->json || o->output == OPTIONS_JSON;
    o->output = o->json ? OPTIONS_JSON : o->output;
    return check_server(o);
}

/* The command behind `watch`. */
static int check_repeated(const struct line *line)
{
    const struct command *command = command_find(&list, line->words[1]);

    if (!command)
        return refuse_command(line->words[1]);
    if (!command->is_repeatable)
        return misused("watch: %s is no command that only asks", command->name);
    return check_words(command, line->words + 1, line->n_words - 1);
}

/* What is asked, and whether all that was said has a use for it. */
static int check_command(const struct line *line, const struct command **ret)
{
    const char *stray;
    int code;

    *ret = command_find(&list, line->words[0]);
    if (!*ret)
        return refuse_command(line->words[0]);
    stray = find_stray(*ret, line->argc, line->argv);
    if (stray)
        return misused("%s: has no use for --%s", (*ret)->name, stray);
    code = check_words(*ret, line->words, line->n_words);
    return code || (*ret)->run != repeat ? code : check_repeated(line);
}

/* Commands that read files do without, also where the user's file names certificates. */
static int open_tls(struct options *o)
{
    struct err err = { 0 };

    return tls_context_open(o->tls_ca, o->tls_cert, o->tls_key, &o->tls, &err)
               ? misused("%s", err.text)
               : EXIT_ANSWERED;
}

/* Settings alone may be looked at without a command, but not with a wrong one. */
static int act(struct options *o, enum settings_action action, const struct line *line)
{
    const struct command *command = NULL;
    int code = complete(o);

    if (!code && line->n_words)
        code = check_command(line, &command);
    if (!code && (!command || command_takes(command, "tls-ca")))
        code = open_tls(o);
    if (code)
        return code;
    if (action == SETTINGS_CHECK)
        settings_print_checked(&table, "", stdout);
    else if (action == SETTINGS_PRINT_CONFIG)
        settings_print_config(&table, o, stdout);
    else if (command && o->coord[0] && !asks_etcd_itself(command) && find_servers(o))
        code = EXIT_FAILED;
    else if (command)
        code = run(o, command, line->words + 1, line->n_words - 1);
    else
        code = misused("what to ask? psctl help lists the commands");
    return code;
}

/* --help ends the reading of settings, and those of the output may stand behind it. */
static bool wants_json(const struct line *line)
{
    for (int i = 1; i < line->argc; i++)
        if (strcmp(line->argv[i], "--json") == 0 ||
            strcmp(line->argv[i], "--output=json") == 0 ||
            (strcmp(line->argv[i], "--output") == 0 && i + 1 < line->argc &&
             strcmp(line->argv[i + 1], "json") == 0))
            return true;
    return false;
}

int main(int argc, char **argv)
{
    struct options options = { 0 };
    enum settings_action action;
    struct line line;
    int code;

    take_words(argc, argv, &line);
    code = load(&line, &options, &action);
    options.json = options.json || (action == SETTINGS_HELP && wants_json(&line));
    if (!code && action == SETTINGS_HELP)
        code = print_help(&options, line.words, line.n_words ? 1 : 0);
    else if (!code && action == SETTINGS_VERSION)
        code = printf("psctl %s\n", PS_VERSION) > 0 ? EXIT_ANSWERED : EXIT_FAILED;
    else if (!code)
        code = act(&options, action, &line);
    tls_context_free(options.tls);
    settings_free(&table, &options);
    line_deinit(&line);
    return code;
}
