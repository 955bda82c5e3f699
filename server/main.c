/* psd: reads what the person asked for, and becomes a node. */
#include <signal.h>
#include <stdio.h>

#include "common/log_line.h"
#include "common/memory_reserve.h"
#include "server/node.h"

#define READY_MS 90000u              /* from then on, as deploy/psd.service has it */
#define RESERVE_BYTES_PER_MS 100000u /* at the least: a host may have to find them */

static int misuse(const struct err *err)
{
    fprintf(stderr, "psd: %s\n", err->text);
    return 2;
}

/* -1: go on and run. */
static int read_settings(int argc, char **argv, struct settings *settings)
{
    enum settings_action action;
    struct err err = { 0 };

    if (settings_load(&settings_psd, argc, argv, 1, settings, &action, &err))
        return misuse(&err);
    switch (action) {
    case SETTINGS_HELP:
        settings_print_help(&settings_psd, stdout);
        return 0;
    case SETTINGS_VERSION:
        printf("psd %s\n", PS_VERSION);
        return 0;
    case SETTINGS_PRINT_CONFIG:
        settings_print_config(&settings_psd, settings, stdout);
        return 0;
    case SETTINGS_RUN:
    case SETTINGS_CHECK:
        break;
    }
    if (settings_complete(settings, &err))
        return misuse(&err);
    if (log_line_set_level(settings->log_line_level)) {
        err_set(&err, PS_ESETTING,
                "log-level: found \"%.40s\", expected error, warn, info or debug",
                settings->log_line_level);
        return misuse(&err);
    }
    return action == SETTINGS_CHECK ? 0 : -1;
}

/* Nothing is open yet: a signal ends the process at once. */
static int reserve(uint64_t n_bytes)
{
    struct err err = { 0 };
    int status;

    node_extend_timeout(READY_MS + n_bytes / RESERVE_BYTES_PER_MS);
    status = memory_reserve_init(n_bytes, &err);
    if (status)
        log_line_error("memory-reserve: %s", err.text);
    return status;
}

static int run(const struct settings *settings) ON_MAIN
{
    int status = reserve(settings->memory_reserve_bytes) ? 1 : node_run(settings);

    memory_reserve_deinit();
    return status;
}

int main(int argc, char **argv)
{
    struct settings settings = { 0 };
    int status = read_settings(argc, argv, &settings);

    enter_main();
    signal(SIGPIPE, SIG_IGN); /* a peer that is gone is an error of write(), not the end */
    signal(SIGXFSZ, SIG_IGN); /* so is a file that is as large as the system allows it to be */
    if (status < 0)
        status = run(&settings);
    settings_free(&settings_psd, &settings);
    return status;
}
