/*
 * Settings that are read again while psd runs (SIGHUP, systemctl reload): the same command line, and the file that it
 * names as it is now. Some take effect at once; the others are named, and wait for a restart.
 */
#ifndef SERVER_SETTINGS_RELOAD_H
#define SERVER_SETTINGS_RELOAD_H

#include "server/net/connection_limits.h"
#include "server/settings.h"

struct settings_reload {
    int argc;
    char **argv; /* borrowed */
    struct settings
        typed; /* owned: as they were typed when they took effect, before settings_complete() */
    /* Of each row of settings_psd: where its value was typed. */
    struct setting_origin origins[SETTINGS_ROWS_MAX];
    bool was_reloaded[SETTINGS_ROWS_MAX]; /* it took effect with a reload */
    bool is_waiting[SETTINGS_ROWS_MAX];   /* another value takes effect at a restart */
};

/* Reads these arguments into *settings, as settings_load() does; then they wait for settings_complete(). */
int settings_reload_init(struct settings_reload *r, int argc, char **argv,
                         struct settings *settings, enum settings_action *ret_action,
                         struct err *err) MUST_CHECK;
void settings_reload_deinit(struct settings_reload *r);

/* Names of settings, separated by commas; "": none. */
struct settings_reload_changes {
    char applied[512], waiting[512];
};

/* Changes *s where that takes effect at once; the caller passes on what others have copied (connections-max,
 * connections-per-address, idle-timeout, log-level). PS_ESETTING and a sentence: nothing has changed. */
int settings_reload_run(struct settings_reload *r, struct settings *s,
                        struct settings_reload_changes *ret, struct err *err) MUST_CHECK;

/* The same with all that it takes, and lines in the log. */
void settings_reload_take(struct settings_reload *r, struct settings *s,
                          struct connection_limits *limits) ON_MAIN;

/* What psctl config shows: {"settings": [...]}, each setting with its value in force (proto/README.md, "Operators").
 * The caller's to free. */
char *settings_reload_report(const struct settings_reload *r, const struct settings *s);

struct connection_limits_config settings_connection_limits(const struct settings *s);

#endif
