#include "server/settings_reload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/log_line.h"
#include "common/memory.h"
#include "server/admin/json.h"

/* Read on the main thread each time that they count, or passed on by the caller. The token counts for hellos to come:
 * who is connected stays. */
static const char *const reloadable[] = {
    "log-level",        "token-file",   "token",
    "insecure",         "idle-timeout", "connections-max",
    "checkpoint-every", "log-max",      "connections-per-address",
    "tls-ca",           "tls-cert",     "tls-key",
};

/* Nodes of one cluster, and members of a pair, must agree in these. standby_settings.c refuses a pair that does not. */
static const char *const equal[] = {
    "cluster",   "shards",       "tls",           "lease",      "join-timeout",
    "frame-max", "gradient-max", "gradient-over", "tables-max", "cut-every",
};

static bool is_one_of(const struct setting *row, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(row->name, names[i]) == 0)
            return true;
    return false;
}

static bool is_reloadable(const struct setting *row)
{
    return is_one_of(row, reloadable, COUNT_OF(reloadable));
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

static int load(const struct settings_reload *r, struct settings *ret,
                struct setting_origin *origins, struct err *err)
{
    enum settings_action action;
    int status = check_config(r, err);

    return status ? status
                  : settings_load_origins(&settings_psd, r->argc, r->argv, 1, ret, &action,
                                          origins, err);
}

int settings_reload_init(struct settings_reload *r, int argc, char **argv,
                         struct settings *settings, enum settings_action *ret_action,
                         struct err *err)
{
    int status;

    *r = (struct settings_reload){ .argc = argc, .argv = argv };
    status = settings_load_origins(&settings_psd, argc, argv, 1, settings, ret_action,
                                   r->origins, err);
    if (!status)
        settings_copy(&settings_psd, &r->typed, settings);
    return status;
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

/* The file's content is no setting's value. Without any token a peer that shows no certificate is nobody. */
static void apply_tokens(const struct settings *fresh, struct settings *s,
                         struct settings_reload_changes *ret)
{
    if (strcmp(s->token, fresh->token) == 0 &&
        memcmp(&s->tokens, &fresh->tokens, sizeof s->tokens) == 0)
        return;
    memcpy(s->token, fresh->token, sizeof s->token);
    s->tokens = fresh->tokens;
    if (s->tls)
        tls_context_set_needs_certificate(s->tls, !s->token[0] && !s->tokens.n);
    add_name(ret->applied, sizeof ret->applied, "the secret in token-file");
}

/* Both sets are whole: what changed and counts at once goes from `fresh` to *s. */
static void apply(struct settings_reload *r, const struct settings *typed,
                  const struct settings *fresh, const struct setting_origin *origins,
                  struct settings *s, struct settings_reload_changes *ret)
{
    for (size_t i = 0; i < settings_psd.n_rows; i++) {
        const struct setting *row = &settings_psd.rows[i];

        r->is_waiting[i] = false;
        if (settings_row_is_equal(row, &r->typed, typed)) {
            r->origins[i] = origins[i]; /* it may have moved to another line */
        } else if (is_reloadable(row)) {
            r->origins[i] = origins[i];
            r->was_reloaded[i] = true;
            settings_row_copy(row, &r->typed, typed);
            settings_row_copy(row, s, fresh);
            add_name(ret->applied, sizeof ret->applied, row->name);
        } else {
            r->is_waiting[i] = true;
            add_name(ret->waiting, sizeof ret->waiting, row->name);
        }
    }
    apply_tokens(fresh, s, ret);
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
    struct setting_origin origins[SETTINGS_ROWS_MAX];
    int status = load(r, fresh, origins, err);

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
        apply(r, typed, fresh, origins, s, ret);
    tls_context_free(fresh->tls);
    settings_free(&settings_psd, fresh);
    free(fresh);
    return status;
}

/* --- what is in force --- */

/* The secret itself, which no report shows. After settings_complete() it may be that of token-file. */
static bool is_secret(const struct setting *row)
{
    return strcmp(row->name, "token") == 0;
}

static void put_source(struct json *j, const struct setting_origin *origin, bool is_chosen)
{
    static const char *const names[] = { [SETTING_FROM_FALLBACK] = "default",
                                         [SETTING_FROM_FILE] = "file",
                                         [SETTING_FROM_COMMAND_LINE] = "command line" };

    json_text(j, "source", is_chosen ? "chosen" : names[origin->source]);
    if (origin->source == SETTING_FROM_FILE && !is_chosen) {
        json_text(j, "path", origin->path);
        json_u64(j, "line", origin->line);
    }
}

static void put_setting(struct json *j, const struct settings_reload *r,
                        const struct settings *s, size_t i)
{
    const struct setting *row = &settings_psd.rows[i];
    /* --dev and the machine fill in what nobody typed. */
    bool is_chosen = r->origins[i].source == SETTING_FROM_FALLBACK && !is_secret(row) &&
                     !settings_row_is_equal(row, &r->typed, s);
    char *value = settings_row_text(row, is_secret(row) ? &r->typed : s);

    json_open(j, NULL);
    json_text(j, "section", row->section);
    json_text(j, "name", row->name);
    json_text(j, "value", is_secret(row) && value[0] ? "(not shown)" : value);
    json_text(j, "default", row->fallback);
    put_source(j, &r->origins[i], is_chosen);
    json_bool(j, "reloadable", is_reloadable(row));
    json_bool(j, "reloaded", r->was_reloaded[i]);
    json_bool(j, "waits_for_restart", r->is_waiting[i]);
    json_bool(j, "equal", is_one_of(row, equal, COUNT_OF(equal)));
    json_close(j);
    free(value);
}

char *settings_reload_report(const struct settings_reload *r, const struct settings *s)
{
    char *text = NULL;
    size_t n_bytes;
    struct json j = { .out = open_memstream(&text, &n_bytes) };

    memory_need(j.out);
    json_open(&j, NULL);
    json_open_list(&j, "settings");
    for (size_t i = 0; i < settings_psd.n_rows; i++)
        put_setting(&j, r, s, i);
    json_close_list(&j);
    json_close(&j);
    fputc('\n', j.out);
    fclose(j.out);
    return memory_need(text);
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
