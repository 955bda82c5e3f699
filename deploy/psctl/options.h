/* The options of psctl: filled in by main.c's table of settings, used by the commands. */
#ifndef DEPLOY_PSCTL_OPTIONS_H
#define DEPLOY_PSCTL_OPTIONS_H

#include <stdbool.h>

#include "common/settings.h"
#include "common/tls.h"
#include "server/cluster/coord.h"

enum options_exit { EXIT_ANSWERED = 0, EXIT_FAILED = 1, EXIT_MISUSED = 2 };

enum options_output { OPTIONS_TEXT, OPTIONS_WIDE, OPTIONS_JSON };

enum options_format { FORMAT_SAFETENSORS, FORMAT_NPY };

struct options {
    char server[SETTINGS_TEXT_MAX], token_file[SETTINGS_TEXT_MAX];
    char tls_ca[SETTINGS_TEXT_MAX], tls_cert[SETTINGS_TEXT_MAX], tls_key[SETTINGS_TEXT_MAX];
    struct tls_context *tls; /* owned, of these files; NULL: plain */
    /* In place of --server: etcd says where the nodes are. */
    char coord[SETTINGS_TEXT_MAX], coord_ca[SETTINGS_TEXT_MAX];
    char coord_cert[SETTINGS_TEXT_MAX], coord_key[SETTINGS_TEXT_MAX];
    char coord_user[SETTINGS_TEXT_MAX], coord_password_file[SETTINGS_TEXT_MAX];
    char origin
        [2 *
         SETTINGS_TEXT_MAX]; /* "server, tls-ca of FILE": what a file has set; "": nothing */
    uint64_t timeout_ms;
    bool json, yes;
    int output; /* enum options_output; OPTIONS_JSON is the same as json */
    /* --node, as it was typed and as a number: of restore the new node, of commands that ask a cluster the only one
     * that is asked. */
    char node_text[SETTINGS_TEXT_MAX];
    bool has_node;
    uint32_t node;
    uint64_t every_ms;               /* top, watch */
    bool curve, svg;                 /* job */
    uint32_t count;                  /* the same: so many times; 0: until it is stopped */
    bool other_is_dead, accept_loss; /* promote */
    /* Of the commands that read files. */
    char at[SETTINGS_TEXT_MAX];
    struct setting_list tables;
    char against[SETTINGS_TEXT_MAX];
    uint32_t top;
    int format; /* enum options_format */
    bool state;
    char out[SETTINGS_TEXT_MAX], to[SETTINGS_TEXT_MAX];
    uint32_t nodes, shards;
    char cluster[SETTINGS_TEXT_MAX], job[SETTINGS_TEXT_MAX]; /* cert */
    struct setting_list hosts;
    uint32_t days;
    uint32_t keep;      /* prune */
    bool make, weights; /* import */
    char set[SETTINGS_TEXT_MAX];
};

static inline struct coord_options options_coord(const struct options *o)
{
    return (struct coord_options){ .url = o->coord,
                                   .ca_file = o->coord_ca,
                                   .cert_file = o->coord_cert,
                                   .key_file = o->coord_key,
                                   .user = o->coord_user,
                                   .password_file = o->coord_password_file };
}

#endif
