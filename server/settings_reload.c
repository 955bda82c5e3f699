#include "server/settings_reload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/log_line.h"
#include "common/memory.h"

/* Read on the main thread each time that they count, or passed on by the caller. The token counts for hellos to come:
 * who is connected stays. */
static const char *const reloadable[] = {
    "log-level",        "token-file",   "token",
    "insecure",         "idle-timeout", "connections-max",
    "checkpoint-every", "log-max",      "connections-per-address",
    "tls-ca",           "tls-cert",     "tls-key",
};

static bool is_reloadable(const struct setting *row)
{
    for (size_t i = 0; i < COUNT_OF(reloadable); i++)
        if (strcmp(row->name, reloadable[i]) == 0)
            return true;
    return false;
}

/* A pipe has been read already, and would be waited for. */
static int check_is_file(const char *setting, const char *path, struct err *err)
{
    struct stat found;

    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode))
        return err_set(err, PS_ESETTING, "%s: %.150s is no regular file: it is read once only",
                       setting, path);
    return 0;
}

static int check_config(const struct settings_reload *r, struct err *err)
{
    int status = 0;

    for (int i = 1; i < r->argc && !status; i++)
        if (strncmp(r->argv[i], "--config=", 9) == 0)
            status = check_is_file("config", r->argv[i] + 9, err);
        else if (strcmp(r->argv[i], "--config") == 0 && i + 1 < r->argc)
            status = check_is_file("config", r->argv[i + 1], err);
    return status;
}

static int load(const struct settings_reload *r, struct settings *ret, struct err *err)
{
    enum settings_action action;
    int status = check_config(r, err);

    return status ? status
                  : settings_load(&settings_psd, r->argc, r->argv, 1, ret, &action, err);
}

void settings_reload_init(struct settings_reload *r, int argc, char **argv,
                          const struct settings *typed)
{
    r->argc = argc;
    r->argv = argv;
    settings_copy(&settings_psd, &r->typed, typed);
}

void settings_reload_deinit(struct settings_reload *r)
{
    settings_free(&settings_psd, &r->typed);
}

static void add_name(char *names, size_t n_bytes, const char *name)
{
    size_t n = strlen(names);

    snprintf(names + n, n_bytes - n, "%s%s", n ? ", " : "", name);
}

/* Both sets are whole: what changed and counts at once goes from `fresh` to *s. */
static void apply(struct settings_reload *r, const struct settings *typed,
                  const struct settings *fresh, struct settings *s,
                  struct settings_reload_changes *ret)
{
    for (size_t i = 0; i < settings_psd.n_rows; i++) {
        const struct setting *row = &settings_psd.rows[i];

        if (settings_row_is_equal(row, &r->typed, typed))
            continue;
        if (is_reloadable(row)) {
            settings_row_copy(row, &r->typed, typed);
            settings_row_copy(row, s, fresh);
            add_name(ret->applied, sizeof ret->applied, row->name);
        } else {
            add_name(ret->waiting, sizeof ret->waiting, row->name);
        }
    }
    /* The file's content is no setting's value. */
    if (strcmp(s->token, fresh->token) != 0 ||
        memcmp(&s->tokens, &fresh->tokens, sizeof s->tokens) != 0) {
        memcpy(s->token, fresh->token, sizeof s->token);
        s->tokens = fresh->tokens;
        add_name(ret->applied, sizeof ret->applied, "the secret in token-file");
    }
}

/* Files are read again whether their names have changed or not: connections to come have what is in them now. */
static int reload_tls(struct settings *s, const struct settings *fresh,
                      struct settings_reload_changes *changes, struct err *err)
{
    struct tls_expiry before, after;
    int status;

    if (!s->tls || !fresh->tls)
        return 0;
    tls_context_expiry(s->tls, &before);
    status = tls_context_reload(
        s->tls, &(struct tls_files){ fresh->tls_ca, fresh->tls_cert, fresh->tls_key }, err);
    if (status)
        return status;
    tls_context_expiry(s->tls, &after);
    if (memcmp(&before, &after, sizeof before) != 0)
        add_name(changes->applied, sizeof changes->applied, "the certificates");
    return 0;
}

int settings_reload_run(struct settings_reload *r, struct settings *s,
                        struct settings_reload_changes *ret, struct err *err)
{
    struct settings *fresh = memory_alloc(2 * sizeof *fresh), *typed = fresh + 1;
    int status = load(r, fresh, err);

    *ret = (struct settings_reload_changes){ 0 };
    if (!status)
        status = check_is_file("token-file", fresh->token_file, err);
    if (!status) {
        *typed = *fresh; /* its lists are borrowed: settings_complete() leaves them alone */
        status = settings_complete(fresh, err);
    }
    if (!status && log_line_set_level(fresh->log_line_level))
        status = err_set(err, PS_ESETTING,
                         "log-level: found \"%.40s\", expected error, warn, info or debug",
                         fresh->log_line_level);
    if (!status)
        status = reload_tls(s, fresh, ret, err);
    if (!status)
        apply(r, typed, fresh, s, ret);
    tls_context_free(fresh->tls);
    settings_free(&settings_psd, fresh);
    free(fresh);
    return status;
}

struct connection_limits_config settings_connection_limits(const struct settings *s)
{
    return (struct connection_limits_config){ .connections_max = s->connections_max,
                                              .address_max = s->address_connections_max,
                                              .idle_ms = s->idle_timeout_ms,
                                              .lease_ms = s->lease_ms };
}

void settings_reload_take(struct settings_reload *r, struct settings *s,
                          struct connection_limits *limits)
{
    struct settings_reload_changes changes;
    struct connection_limits_config config;
    struct err err;

    if (settings_reload_run(r, s, &changes, &err)) {
        log_line_error("SIGHUP: all settings stay as they are: %s", err.text);
        return;
    }
    config = settings_connection_limits(s);
    connection_limits_set(limits, &config);
    log_line_info("SIGHUP: settings were read again; in force now: %s",
                  changes.applied[0] ? changes.applied : "nothing that had changed");
    if (changes.waiting[0])
        log_line_warn("SIGHUP: changed, and in force after a restart: %s", changes.waiting);
}
