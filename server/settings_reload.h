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
};

/* `typed`: what settings_load() made of these arguments. */
void settings_reload_init(struct settings_reload *r, int argc, char **argv,
                          const struct settings *typed);
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

struct connection_limits_config settings_connection_limits(const struct settings *s);

#endif
