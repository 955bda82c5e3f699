/*
 * The commands of psctl: one table, from which the command line is checked, the help is printed and the completions of
 * shells are made, so they cannot disagree.
 */
#ifndef DEPLOY_PSCTL_COMMAND_H
#define DEPLOY_PSCTL_COMMAND_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "common/settings.h"
#include "deploy/psctl/options.h"

#define COMMAND_EXAMPLES_MAX 3u

struct command_example {
    const char *line, *text; /* what is typed, and what it does; line NULL: none */
};

struct command {
    const char *name;
    const char *words; /* behind the name, for people */
    const char *brief; /* a few words: its line in the list of all */
    uint32_t n_words_min, n_words_max;
    const char *flags; /* that it takes, each between blanks */
    const char *about; /* sentences */
    struct command_example examples[COMMAND_EXAMPLES_MAX];
    int (*run)(const struct options *o, const char *const *words, uint32_t n_words);
    bool is_repeatable; /* it only asks: psctl watch runs it again and again */
};

/* Commands that belong together: they stand one behind the other, up to the first one of the next group. */
struct command_group {
    const char *title, *first;
};

/* All borrowed. */
struct command_list {
    const struct command *commands;
    size_t n_commands;
    const struct command_group *groups;
    size_t n_groups;
    const struct settings_table *settings; /* its `about` is the text behind the commands */
};

/* NULL: there is none of this name. */
const struct command *command_find(const struct command_list *list, const char *name);

/* True if the command takes the setting of this name. */
bool command_takes(const struct command *command, const char *setting);

/* What psctl --help prints: a line for each command, in groups. */
void command_print_help(const struct command_list *list, FILE *out);

/* Every command's text, and all settings: from it the reference and the man pages are made. */
void command_print_all(const struct command_list *list, FILE *out);

/* One command: its words, text, settings and examples. */
void command_print_help_of(const struct command_list *list, const struct command *command,
                           FILE *out);

/* The same for a program: {"name", "words", "brief", "about", "group", "repeatable", "settings": [{"name", "value",
 * "default", "help", "choices"}], "examples": [{"command", "text"}]}. The caller's to delete. */
cJSON *command_to_json(const struct command_list *list, const struct command *command);

/* {"usage", "about", "commands": [each as above]} */
cJSON *command_list_to_json(const struct command_list *list);

/* A completion script. False: no shell of this name is known. */
bool command_print_completion(const struct command_list *list, const char *shell, FILE *out);

#endif
