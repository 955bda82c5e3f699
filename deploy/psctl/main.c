/*
 * psctl: what an operator asks a running psd, or the files that it has left. One question, one answer, exit:
 * 0 answered, 1 not, 2 asked wrongly.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/address.h"
#include "deploy/psctl/diff.h"
#include "deploy/psctl/export.h"
#include "deploy/psctl/import.h"
#include "deploy/psctl/list_checkpoints.h"
#include "deploy/psctl/online.h"
#include "deploy/psctl/options.h"
#include "deploy/psctl/prune.h"
#include "deploy/psctl/restore.h"
#include "deploy/psctl/verify.h"

#define WORDS_MAX 4u /* the command and what stands behind it */

/* clang-format off */
static const struct setting rows[] = {
    { "server", "server", SETTING_TEXT, "HOST:PORT", "127.0.0.1:7070",
      "the node to ask", offsetof(struct options, server), 0, 0 },
    { "server", "token-file", SETTING_TEXT, "FILE", "",
      "the file with the cluster's secret; empty: none",
      offsetof(struct options, token_file), 0, 0 },
    { "server", "timeout", SETTING_MS, "TIME", "30s",
      "how long to wait for the answer; for checkpoint: the longest silence of a node",
      offsetof(struct options, timeout_ms), 1, 86400000 },
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
    { "restore", "node", SETTING_U32, "N", "0",
      "for which node of the new cluster", offsetof(struct options, node), 0, 1023 },
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
    { "prune", "keep", SETTING_U32, "N", "1",
      "prune: so many restore points stay, the newest", offsetof(struct options, keep), 1, 1000000 },
    { "output", "json", SETTING_FLAG, "", "no",
      "one JSON object; of a node: its answer as it came", offsetof(struct options, json), 0, 0 },
};

static const struct settings_table table = {
    .program = "psctl",
    .usage = "psctl status|tables|workers|why|checkpoint|promote|row TABLE KEY|drop JOB|set JOB NAME=VALUE,...|"
             "import PATH [options], "
             "or psctl verify|checkpoints|prune|restore|export|diff|replay PATH [options]",
    .about = "Asks a running psd for its state, or reads the files that psd has written.\n"
             "status: the node, its shards, rows, refusals and checkpoints.\n"
             "tables: each table, its optimizer, rows and traffic.\n"
             "workers: each job's workers, their clocks and the staleness they saw.\n"
             "why: what waits now on any node of the cluster, with its cause, start and deadline.\n"
             "checkpoint: every node of the cluster writes one now; waits for them.\n"
             "promote: the standby at --server becomes the primary, in a term of its own. Refused while the primary "
             "answers, and where the standby was not in sync with it.\n"
             "row TABLE KEY: a row's values, state and version, and who pushed it last.\n"
             "drop JOB: removes all tables of a job, with their rows, from every node; --yes does it. Refused while "
             "the job has workers.\n"
             "set JOB NAME=VALUE,...: changes the learning rate and its schedule in the tables that a job trains: lr, "
             "dense-lr, epsilon, momentum, weight-decay, beta1, beta2, lr-decay, warmup, decay, decay-start, "
             "decay-clocks, decay-rate, decay-floor, clip, dense-clip. Refused while the job has workers; start them "
             "again with the same options.\n"
             "import PATH: sets rows of tables, also while they train, from a safetensors file, an npy file, or a "
             "directory of npy files, as export writes them: NAME.keys with NAME.weight and NAME.state.X, or NAME of a "
             "dense table. All is checked before the first row is sent. The same import once more completes one that "
             "was interrupted.\n"
             "verify PATH[,PATH...]: checks every checksum, count, row and record of a data directory, or of one "
             "checkpoint.\n"
             "checkpoints PATH[,PATH...]: what a start, or --at, can go back to.\n"
             "prune PATH[,PATH...]: files that no start needs, with their size; --yes removes them; while psd runs, "
             "only those that a start has archived.\n"
             "restore PATH --to DATA_DIR: the state of other files as a data directory of any layout.\n"
             "export PATH --out PATH: tables as arrays that PyTorch and NumPy read.\n"
             "diff A B: rows new, gone, changed, and drifted most.\n"
             "replay PATH: replays checkpoint and write-ahead log; checksums of the tables, and where they differ from "
             "--against.\n"
             "PATH is a data directory, or DATA_DIR/checkpoints/NUMBER, as checkpoints shows it; of a cluster, those "
             "of all nodes with commas: n0,n1 (verify and checkpoints then answer for each; with --json a line each). "
             "Nothing is written there but by prune --yes, also while psd runs.",
    .rows = rows,
    .n_rows = COUNT_OF(rows),
};
/* clang-format on */

struct command {
    const char *name;
    uint32_t n_words;  /* behind the name */
    const char *words; /* for people */
    const char *flags; /* that it takes, each between blanks */
    int (*run)(const struct options *o, const char *const *words, uint32_t n_words);
};

#define SERVER_FLAGS " server token-file timeout json "

/* Without `run`: asked of a node, and shown. */
static const struct command commands[] = {
    { "status", 0, "", SERVER_FLAGS, NULL },
    { "tables", 0, "", SERVER_FLAGS, NULL },
    { "workers", 0, "", SERVER_FLAGS, NULL },
    { "why", 0, "", SERVER_FLAGS, online_why },
    { "checkpoint", 0, "", SERVER_FLAGS, online_checkpoint },
    { "promote", 0, "", SERVER_FLAGS "the-other-is-dead accept-loss ", online_promote },
    { "row", 2, "TABLE KEY", SERVER_FLAGS, online_row },
    { "drop", 1, "JOB", SERVER_FLAGS "yes ", online_drop },
    { "set", 2, "JOB NAME=VALUE[,NAME=VALUE...]", SERVER_FLAGS, online_set },
    { "import", 1, "PATH", SERVER_FLAGS "table make set weights ", import_run },
    { "verify", 1, "PATH[,PATH...]", " json ", verify_run },
    { "checkpoints", 1, "PATH[,PATH...]", " json ", list_checkpoints_run },
    { "prune", 1, "PATH[,PATH...]", " keep yes json ", prune_run },
    { "restore", 1, "PATH[,PATH...]", " to node nodes shards at table json ", restore_run },
    { "export", 1, "PATH[,PATH...]", " format out table at state json ", export_run },
    { "diff", 2, "A B", " at table top json ", diff_run },
    { "replay", 1, "PATH[,PATH...]", " at table against json ", diff_replay },
};

#define COMMAND_NAMES                                                                     \
    "status, tables, workers, why, checkpoint, promote, row, drop, set, import, verify, " \
    "checkpoints, "                                                                       \
    "prune, restore, export, diff or replay"

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

/* Takes all that is no flag out of argv, wherever between the flags it stands; returns how many there were,
 * of which WORDS_MAX are kept. */
static uint32_t take_words(int *argc, char **argv, const char *words[static WORDS_MAX])
{
    uint32_t n = 0;
    int kept = 1;

    for (int i = 1; i < *argc; i++) {
        bool flag = strncmp(argv[i], "-", 1) == 0;

        if (!flag) {
            if (n < WORDS_MAX)
                words[n] = argv[i];
            n++;
            continue;
        }
        argv[kept++] = argv[i];
        if (is_flag(argv[i]) && has_value(argv[i]) && i + 1 < *argc)
            argv[kept++] = argv[++i];
    }
    argv[kept] = NULL;
    *argc = kept;
    return n;
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
    char token[40];

    for (int i = 1; i < argc; i++) {
        const char *name = is_flag(argv[i]) ? setting_of(argv[i]) : NULL;

        if (!name)
            continue;
        snprintf(token, sizeof token, " %s ", name);
        if (!strstr(command->flags, token))
            return name;
        i += has_value(argv[i]);
    }
    return NULL;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* --- running --- */

static int check_words(const struct command *command, const char *const *words,
                       uint32_t n_words)
{
    if (n_words - 1 == command->n_words)
        return 0;
    if (n_words - 1 > command->n_words)
        return misused("%s: has no use for \"%.100s\"", command->name,
                       words[command->n_words + 1]);
    return misused("%s: expected psctl %s %s", command->name, command->name, command->words);
}

static int run(const struct options *o, const struct command *command, const char *const *words,
               uint32_t n_words)
{
    int code = command->run ? command->run(o, words, n_words) : online_show(o, command->name);

    if (fflush(stdout) != 0) {
        fputs("psctl: cannot write the answer to standard output\n", stderr);
        code = EXIT_FAILED;
    }
    return code;
}

/* Whether or not the command asks a node: a wrong setting is wrong. */
static int check_server(const struct options *o)
{
    struct address ignored;
    struct err err = { 0 };

    return address_parse(o->server, strlen(o->server), &ignored, &err)
               ? misused("server: %s", err.text)
               : EXIT_ANSWERED;
}

/* What is asked, and whether all that was said has a use for it. */
static int check_command(int argc, char **argv, const char *const *words, uint32_t n_words,
                         const struct command **ret)
{
    const char *stray;

    *ret = find_command(words[0]);
    if (!*ret)
        return misused("unknown command \"%.100s\", expected %s", words[0], COMMAND_NAMES);
    stray = find_stray(*ret, argc, argv);
    if (stray)
        return misused("%s: has no use for --%s", (*ret)->name, stray);
    return check_words(*ret, words, n_words);
}

/* Settings alone may be looked at without a command, but not with a wrong one. */
static int act(const struct options *o, enum settings_action action, int argc, char **argv,
               const char *const *words, uint32_t n_words)
{
    const struct command *command = NULL;
    int code = check_server(o);

    if (!code && n_words)
        code = check_command(argc, argv, words, n_words, &command);
    if (code || action == SETTINGS_CHECK)
        return code;
    if (action == SETTINGS_PRINT_CONFIG)
        settings_print_config(&table, o, stdout);
    else if (command)
        code = run(o, command, words + 1, n_words - 1);
    else
        code = misused("what to ask? %s (psctl --help)", COMMAND_NAMES);
    return code;
}

int main(int argc, char **argv)
{
    const char *words[WORDS_MAX] = { NULL };
    uint32_t n_words = take_words(&argc, argv, words);
    struct options options = { 0 };
    enum settings_action action;
    struct err err = { 0 };
    int code = EXIT_ANSWERED;

    if (settings_load(&table, argc, argv, 1, &options, &action, &err) != 0)
        return misused("%s", err.text);
    if (action == SETTINGS_HELP)
        settings_print_help(&table, stdout);
    else if (action == SETTINGS_VERSION)
        printf("psctl %s\n", PS_VERSION);
    else
        code = act(&options, action, argc, argv, words, n_words);
    settings_free(&table, &options);
    return code;
}
