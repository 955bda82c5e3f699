#include "deploy/psctl/command.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define N_SETTINGS_MAX 64u

const struct command *command_find(const struct command_list *list, const char *name)
{
    for (size_t i = 0; i < list->n_commands; i++)
        if (strcmp(list->commands[i].name, name) == 0)
            return &list->commands[i];
    return NULL;
}

bool command_takes(const struct command *command, const char *setting)
{
    char token[40];

    snprintf(token, sizeof token, " %s ", setting);
    return strstr(command->flags, token) != NULL;
}

/* --- help --- */

static const char *blank_before(const char *text)
{
    return text[0] ? " " : "";
}

static void print_group_of(const struct command_list *list, const struct command *c, FILE *out)
{
    for (size_t i = 0; i < list->n_groups; i++)
        if (strcmp(list->groups[i].first, c->name) == 0)
            fprintf(out, "\n%s:\n", list->groups[i].title);
}

void command_print_help(const struct command_list *list, FILE *out)
{
    char left[64];

    fprintf(out, "usage: %s\n", list->settings->usage);
    for (size_t i = 0; i < list->n_commands; i++) {
        const struct command *c = &list->commands[i];

        print_group_of(list, c, out);
        snprintf(left, sizeof left, "%s%s%s", c->name, blank_before(c->words), c->words);
        fprintf(out, "  %-27s %s\n", left, c->brief);
    }
    fputs("\npsctl help COMMAND: its options and examples; psctl help all: all of them\n", out);
}

void command_print_all(const struct command_list *list, FILE *out)
{
    struct settings_table table = *list->settings;
    char *about = NULL;
    size_t n_bytes;
    FILE *text = open_memstream(&about, &n_bytes);

    if (!text)
        abort(); /* only without memory */
    fputs("Asks the nodes of a running cluster, or reads the files that psd has written.\n\n",
          text);
    for (size_t i = 0; i < list->n_commands; i++) {
        const struct command *c = &list->commands[i];

        fprintf(text, "%s%s%s: %s\n\n", c->name, blank_before(c->words), c->words, c->about);
    }
    fputs(table.about, text);
    if (fclose(text) != 0)
        abort();
    table.about = about;
    settings_print_help(&table, out);
    free(about);
}

void command_print_help_of(const struct command_list *list, const struct command *command,
                           FILE *out)
{
    struct setting rows[N_SETTINGS_MAX];
    struct settings_table table = *list->settings;
    char usage[160], about[1400];
    size_t n = 0;

    for (size_t i = 0; i < table.n_rows && n < N_SETTINGS_MAX; i++)
        if (command_takes(command, table.rows[i].name))
            rows[n++] = table.rows[i];
    snprintf(usage, sizeof usage, "psctl %s%s%s [options]", command->name,
             blank_before(command->words), command->words);
    snprintf(about, sizeof about, "%c%s", command->about[0] & ~0x20, command->about + 1);
    table.usage = usage;
    table.about = about;
    table.rows = rows;
    table.n_rows = n;
    settings_print_help(&table, out);
    for (size_t i = 0; i < COMMAND_EXAMPLES_MAX && command->examples[i].line; i++)
        fprintf(out, "%s  %s\n      %s\n", i ? "" : "\nexamples:\n", command->examples[i].line,
                command->examples[i].text);
}

/* --- help for programs --- */

static const char *group_of(const struct command_list *list, const struct command *command)
{
    const char *title = "";

    for (const struct command *c = list->commands; c <= command; c++)
        for (size_t i = 0; i < list->n_groups; i++)
            if (strcmp(list->groups[i].first, c->name) == 0)
                title = list->groups[i].title;
    return title;
}

static void add_choices(cJSON *setting, const char *choices)
{
    cJSON *list = cJSON_AddArrayToObject(setting, "choices");

    while (*choices) {
        const size_t n = strcspn(choices, "|");
        char word[40];

        snprintf(word, sizeof word, "%.*s", (int)n, choices);
        cJSON_AddItemToArray(list, cJSON_CreateString(word));
        choices += n + (choices[n] == '|');
    }
}

static cJSON *setting_to_json(const struct setting *row)
{
    cJSON *setting = cJSON_CreateObject();

    cJSON_AddStringToObject(setting, "name", row->name);
    cJSON_AddStringToObject(setting, "value", row->arg);
    cJSON_AddStringToObject(setting, "default", row->fallback);
    cJSON_AddStringToObject(setting, "help", row->help);
    if (row->type == SETTING_CHOICE)
        add_choices(setting, row->arg);
    return setting;
}

cJSON *command_to_json(const struct command_list *list, const struct command *command)
{
    cJSON *json = cJSON_CreateObject(), *settings, *examples;

    cJSON_AddStringToObject(json, "name", command->name);
    cJSON_AddStringToObject(json, "words", command->words);
    cJSON_AddStringToObject(json, "brief", command->brief);
    cJSON_AddStringToObject(json, "about", command->about);
    cJSON_AddStringToObject(json, "group", group_of(list, command));
    cJSON_AddBoolToObject(json, "repeatable", command->is_repeatable);
    settings = cJSON_AddArrayToObject(json, "settings");
    for (size_t i = 0; i < list->settings->n_rows; i++)
        if (command_takes(command, list->settings->rows[i].name))
            cJSON_AddItemToArray(settings, setting_to_json(&list->settings->rows[i]));
    examples = cJSON_AddArrayToObject(json, "examples");
    for (size_t i = 0; i < COMMAND_EXAMPLES_MAX && command->examples[i].line; i++) {
        cJSON *example = cJSON_CreateObject();

        cJSON_AddStringToObject(example, "command", command->examples[i].line);
        cJSON_AddStringToObject(example, "text", command->examples[i].text);
        cJSON_AddItemToArray(examples, example);
    }
    return json;
}

cJSON *command_list_to_json(const struct command_list *list)
{
    cJSON *json = cJSON_CreateObject(), *commands;

    cJSON_AddStringToObject(json, "usage", list->settings->usage);
    cJSON_AddStringToObject(json, "about", list->settings->about);
    commands = cJSON_AddArrayToObject(json, "commands");
    for (size_t i = 0; i < list->n_commands; i++)
        cJSON_AddItemToArray(commands, command_to_json(list, &list->commands[i]));
    return json;
}

/* --- completion --- */

enum value_kind { VALUE_NONE, VALUE_FILE, VALUE_CHOICE, VALUE_OTHER };

static enum value_kind kind_of(const struct setting *row)
{
    if (row->type == SETTING_FLAG)
        return VALUE_NONE;
    if (row->type == SETTING_CHOICE)
        return VALUE_CHOICE;
    return strcmp(row->arg, "FILE") == 0 || strcmp(row->arg, "PATH") == 0 ||
                   strcmp(row->arg, "DATA_DIR") == 0
               ? VALUE_FILE
               : VALUE_OTHER;
}

static bool takes_paths(const struct command *command)
{
    return strncmp(command->words, "PATH", 4) == 0 || strcmp(command->words, "A B") == 0;
}

/* The shell's list of what stands behind the command; NULL: no commands do. */
static const char *commands_behind(const struct command *command)
{
    if (strcmp(command->words, "COMMAND ...") == 0)
        return "repeatable";
    return strstr(command->words, "COMMAND") ? "names" : NULL;
}

/* Up to the first full stop, within quotes; what zsh would read as syntax is escaped. */
static void put_zsh_text(const char *text, const char *syntax, FILE *out)
{
    for (; *text && strncmp(text, ". ", 2) != 0; text++) {
        if (*text == '\'')
            fputs("'\\'", out);
        else if (strchr(syntax, *text))
            fputc('\\', out);
        fputc(*text, out);
    }
}

/* The words of a|b|c with blanks between. */
static void put_choices(const char *choices, FILE *out)
{
    for (; *choices; choices++)
        fputc(*choices == '|' ? ' ' : *choices, out);
}

static void put_names(const struct command_list *list, FILE *out)
{
    for (size_t i = 0; i < list->n_commands; i++)
        fprintf(out, "%s%s", i ? " " : "", list->commands[i].name);
}

/* Of those that psctl watch accepts. */
static void put_repeatable_names(const struct command_list *list, FILE *out)
{
    const char *before = "";

    for (size_t i = 0; i < list->n_commands; i++) {
        if (!list->commands[i].is_repeatable)
            continue;
        fprintf(out, "%s%s", before, list->commands[i].name);
        before = " ";
    }
}

/* Flags of one kind as a pattern of bash's case: --a|--b. */
static void put_flags(const struct command_list *list, enum value_kind kind, FILE *out)
{
    const struct settings_table *s = list->settings;
    bool is_first = true;

    for (size_t i = 0; i < s->n_rows; i++) {
        if (kind_of(&s->rows[i]) != kind)
            continue;
        fprintf(out, "%s--%s", is_first ? "" : "|", s->rows[i].name);
        is_first = false;
    }
}

static void put_bash_values(const struct command_list *list, FILE *out)
{
    const struct settings_table *s = list->settings;

    fputs("    case $prev in\n", out);
    for (size_t i = 0; i < s->n_rows; i++) {
        if (kind_of(&s->rows[i]) != VALUE_CHOICE)
            continue;
        fprintf(out, "    %s--%s) COMPREPLY=($(compgen -W '",
                strcmp(s->rows[i].name, "output") == 0 ? "-o|" : "", s->rows[i].name);
        put_choices(s->rows[i].arg, out);
        fputs("' -- \"$cur\")); return ;;\n", out);
    }
    fputs("    ", out);
    put_flags(list, VALUE_FILE, out);
    fputs("|--config) _psctl_files \"$cur\"; return ;;\n    ", out);
    put_flags(list, VALUE_OTHER, out);
    fputs(") return ;;\n    esac\n", out);
}

static void put_bash_command(const struct command_list *list, const struct command *c,
                             FILE *out)
{
    fprintf(out, "    %s) flags='", c->name);
    for (size_t i = 0; i < list->settings->n_rows; i++)
        if (command_takes(c, list->settings->rows[i].name))
            fprintf(out, "--%s ", list->settings->rows[i].name);
    fputs("--config --check --print-config --help'", out);
    if (commands_behind(c))
        fprintf(out, " words=$%s", commands_behind(c));
    fprintf(out, "%s ;;\n",
            strcmp(c->words, "bash|zsh") == 0 ? " words='bash zsh'"
            : takes_paths(c)                  ? " files=1"
                                              : "");
}

static void print_bash(const struct command_list *list, FILE *out)
{
    fputs("# bash completion of psctl, made by psctl completion bash\n"
          "_psctl_files() {\n"
          "    compopt -o filenames 2>/dev/null\n"
          "    mapfile -t COMPREPLY < <(compgen -f -- \"$1\")\n"
          "}\n"
          "_psctl() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    local i command= flags='--help --version' words= files= names='",
          out);
    put_names(list, out);
    fputs("'\n    local repeatable='", out);
    put_repeatable_names(list, out);
    fputs("'\n    COMPREPLY=()\n", out);
    put_bash_values(list, out);
    fputs("    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        case ${COMP_WORDS[i]} in\n        -o|--config|",
          out);
    put_flags(list, VALUE_CHOICE, out);
    fputc('|', out);
    put_flags(list, VALUE_FILE, out);
    fputc('|', out);
    put_flags(list, VALUE_OTHER, out);
    fputs(") ((i++)) ;;\n"
          "        -*) ;;\n"
          "        *) command=${COMP_WORDS[i]}; break ;;\n"
          "        esac\n"
          "    done\n"
          "    case $command in\n    '') words=$names ;;\n",
          out);
    for (size_t i = 0; i < list->n_commands; i++)
        put_bash_command(list, &list->commands[i], out);
    fputs("    esac\n"
          "    if [[ $cur == -* ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
          "    elif [[ $files ]]; then\n"
          "        _psctl_files \"$cur\"\n"
          "    else\n"
          "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
          "    fi\n"
          "}\n"
          "complete -F _psctl psctl\n",
          out);
}

static void put_zsh_setting(const struct setting *row, FILE *out)
{
    fprintf(out, " \\\n            '--%s[", row->name);
    put_zsh_text(row->help, "[]:\\", out);
    fputc(']', out);
    if (kind_of(row) == VALUE_CHOICE) {
        fputs(":value:(", out);
        put_choices(row->arg, out);
        fputc(')', out);
    } else if (kind_of(row) == VALUE_FILE) {
        fputs(":file:_files", out);
    } else if (kind_of(row) == VALUE_OTHER) {
        fputc(':', out);
        put_zsh_text(row->arg, "[]:\\", out);
        fputs(": ", out);
    }
    fputc('\'', out);
}

static void put_zsh_command(const struct command_list *list, const struct command *c, FILE *out)
{
    fprintf(out, "    %s)\n        _arguments '--help[write this, and stop]'", c->name);
    for (size_t i = 0; i < list->settings->n_rows; i++)
        if (command_takes(c, list->settings->rows[i].name))
            put_zsh_setting(&list->settings->rows[i], out);
    if (takes_paths(c))
        fputs(" \\\n            '*:path:_files'", out);
    else if (commands_behind(c))
        fprintf(out, " \\\n            \"*:command:(${%s[*]})\"", commands_behind(c));
    else if (strcmp(c->words, "bash|zsh") == 0)
        fputs(" \\\n            '*:shell:(bash zsh)'", out);
    fputs("\n        ;;\n", out);
}

static void print_zsh(const struct command_list *list, FILE *out)
{
    fputs("#compdef psctl\n# zsh completion of psctl, made by psctl completion zsh\n"
          "_psctl() {\n"
          "    local curcontext=$curcontext state line\n"
          "    local -a commands names repeatable\n"
          "    names=(",
          out);
    put_names(list, out);
    fputs(")\n    repeatable=(", out);
    put_repeatable_names(list, out);
    fputs(")\n    commands=(\n", out);
    for (size_t i = 0; i < list->n_commands; i++) {
        fprintf(out, "        '%s:", list->commands[i].name);
        put_zsh_text(list->commands[i].about, ":\\", out);
        fputs("'\n", out);
    }
    fputs("    )\n"
          "    _arguments -C '1: :->command' '*:: :->words'\n"
          "    if [[ $state == command ]]; then\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    case $line[1] in\n",
          out);
    for (size_t i = 0; i < list->n_commands; i++)
        put_zsh_command(list, &list->commands[i], out);
    fputs("    esac\n}\n_psctl \"$@\"\n", out);
}

bool command_print_completion(const struct command_list *list, const char *shell, FILE *out)
{
    if (strcmp(shell, "bash") == 0)
        print_bash(list, out);
    else if (strcmp(shell, "zsh") == 0)
        print_zsh(list, out);
    else
        return false;
    return true;
}
