/*
 * psctl: what an operator asks a running psd, at a terminal. One question, one answer, exit: 0
 * answered, 1 not, 2 asked wrongly.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/mem.h"
#include "common/settings.h"
#include "deploy/psctl/show.h"
#include "worker/client/ps.h"

#define TOKEN_MAX 256u

enum { EXIT_ANSWERED = 0, EXIT_FAILED = 1, EXIT_MISUSED = 2 };

struct options {
    char server[SETTINGS_TEXT_MAX], token_file[SETTINGS_TEXT_MAX];
    uint64_t timeout_ms;
    bool json;
};

/* clang-format off */
static const struct setting rows[] = {
    { "server", "server", SETTING_TEXT, "HOST:PORT", "127.0.0.1:7070",
      "the node to ask", offsetof(struct options, server), 0, 0 },
    { "server", "token-file", SETTING_TEXT, "FILE", "",
      "holds the secret that the node wants to be shown; empty: none",
      offsetof(struct options, token_file), 0, 0 },
    { "server", "timeout", SETTING_MS, "TIME", "30s",
      "how long to wait for the answer", offsetof(struct options, timeout_ms), 1, 86400000 },
    { "output", "json", SETTING_FLAG, "", "no",
      "the answer as the node gave it", offsetof(struct options, json), 0, 0 },
};
/* clang-format on */

static const struct settings_table table = {
    .program = "psctl",
    .usage = "psctl status|tables|workers|why|checkpoint [options]",
    .about = "Asks a running psd how it is.\n"
             "status: the node, its shards, rows, refusals and checkpoints.\n"
             "tables: each table, its optimizer, rows and traffic.\n"
             "workers: each job's workers, their clocks and the staleness they saw.\n"
             "why: what waits now, for what, since when, until when.\n"
             "checkpoint: writes one now and waits for it.",
    .rows = rows,
    .n_rows = COUNT_OF(rows),
};

static bool has_value(const char *flag)
{
    static const char *const alone[] = { "--json", "--help", "--version", "--check",
                                         "--print-config" };

    for (size_t i = 0; i < COUNT_OF(alone); i++)
        if (strcmp(flag, alone[i]) == 0)
            return false;
    return strchr(flag, '=') == NULL;
}

/* Takes the command out of argv, wherever between the flags it stands; NULL if there is
 * none. */
static const char *take_command(int *argc, char **argv)
{
    const char *command;

    for (int i = 1; i < *argc; i++) {
        if (strncmp(argv[i], "-", 1) == 0) {
            i += has_value(argv[i]);
            continue;
        }
        command = argv[i];
        /* The final NULL, too. */
        memmove(&argv[i], &argv[i + 1], (size_t)(*argc - i) * sizeof *argv);
        --*argc;
        return command;
    }
    return NULL;
}

static int complain(int code, const char *sentence)
{
    fprintf(stderr, "psctl: %s\n", sentence);
    return code;
}

/* One line of a file, without the blanks at its end. */
static int read_token(const char *path, char token[static TOKEN_MAX], struct err *err)
{
    int64_t n;
    int fd, status;

    token[0] = '\0';
    if (!path[0])
        return 0;
    status = file_os.open_read(file_os.state, path, &fd);
    if (status)
        return err_set(err, status, "token-file: cannot read %.150s: %s", path,
                       status_text(status));
    n = file_os.read(file_os.state, fd, token, TOKEN_MAX);
    file_os.close(file_os.state, fd);
    if (n < 0)
        return err_set(err, (int)n, "token-file: cannot read %.150s: %s", path,
                       status_text((int)n));
    if (n == TOKEN_MAX)
        return err_set(err, PS_ESETTING,
                       "token-file: %.150s holds more than the %u characters of a token", path,
                       TOKEN_MAX - 1);
    while (n > 0 && strchr("\r\n\t ", token[n - 1]))
        n--;
    token[n] = '\0';
    return 0;
}

static int ask(const struct options *o, const char *command)
{
    char token[TOKEN_MAX], *json = NULL;
    struct err err = { 0 };
    int code = EXIT_ANSWERED;

    if (read_token(o->token_file, token, &err) != 0)
        return complain(EXIT_FAILED, err.text);
    if (ps_admin(o->server, token, command, "", (uint32_t)o->timeout_ms, &json, &err) != 0)
        return complain(EXIT_FAILED, err.text);
    if (o->json)
        printf("%s%s", json, json[0] && json[strlen(json) - 1] == '\n' ? "" : "\n");
    else if (!show_answer(command, json, stdout))
        code =
            complain(EXIT_FAILED, "the answer makes no sense here; --json shows it as it came");
    free(json);
    if (fflush(stdout) != 0)
        code = complain(EXIT_FAILED, "cannot write the answer to standard output");
    return code;
}

static int run(const struct options *o, const char *command)
{
    char sentence[300];

    if (!command)
        return complain(
            EXIT_MISUSED,
            "what to ask? status, tables, workers, why or checkpoint (psctl --help)");
    if (!show_knows(command)) {
        snprintf(
            sentence, sizeof sentence,
            "unknown command \"%.100s\", expected status, tables, workers, why or checkpoint",
            command);
        return complain(EXIT_MISUSED, sentence);
    }
    return ask(o, command);
}

int main(int argc, char **argv)
{
    const char *command = take_command(&argc, argv);
    struct options options = { 0 };
    enum settings_action action;
    struct err err = { 0 };
    int code = EXIT_ANSWERED;

    if (settings_load(&table, argc, argv, 1, &options, &action, &err) != 0)
        return complain(EXIT_MISUSED, err.text);
    if (action == SETTINGS_HELP)
        settings_print_help(&table, stdout);
    else if (action == SETTINGS_VERSION)
        printf("psctl %s\n", PS_VERSION);
    else if (action == SETTINGS_PRINT_CONFIG)
        settings_print_config(&table, &options, stdout);
    else if (action == SETTINGS_RUN)
        code = run(&options, command);
    settings_free(&table, &options);
    return code;
}
