/* Help and completions, from a table of commands. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deploy/psctl/command.h"

static const struct setting rows[] = {
    { "files", "out", SETTING_TEXT, "PATH", "", "the file's name", 0, 0, 0 },
    { "files", "mode", SETTING_CHOICE, "a|b", "a", "one [or: two]", 0, 0, 0 },
    { "other", "yes", SETTING_FLAG, "", "no", "do it", 0, 0, 0 },
};

static const struct settings_table settings = { .program = "x",
                                                .usage = "x COMMAND",
                                                .about = "The end.",
                                                .rows = rows,
                                                .n_rows = COUNT_OF(rows) };

static const struct command commands[] = {
    { "copy",
      "PATH",
      "a copy",
      1,
      1,
      " out mode ",
      "copies it. Twice.",
      { { "x copy a", "copies a" } },
      NULL,
      false },
    { "stop", "", "ends it", 0, 0, " yes ", "stops it.", { { NULL, NULL } }, NULL, false },
};

static const struct command_group groups[] = { { "Files", "copy" }, { "Other", "stop" } };

static const struct command_list list = { commands, COUNT_OF(commands), groups,
                                          COUNT_OF(groups), &settings };

static char *print(void (*print_it)(FILE *out))
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    print_it(out);
    fclose(out);
    return text;
}

static void print_list(FILE *out)
{
    command_print_help(&list, out);
}

static void print_all(FILE *out)
{
    command_print_all(&list, out);
}

static void print_copy(FILE *out)
{
    command_print_help_of(&list, command_find(&list, "copy"), out);
}

static void print_bash(FILE *out)
{
    assert_true(command_print_completion(&list, "bash", out));
}

static void print_zsh(FILE *out)
{
    assert_true(command_print_completion(&list, "zsh", out));
    assert_false(command_print_completion(&list, "fish", out));
}

static void help_has_all_commands_or_one(void **state)
{
    char *all = print(print_all), *copy = print(print_copy), *lines = print(print_list);

    (void)state;
    assert_string_equal(
        lines, "usage: x COMMAND\n"
               "\nFiles:\n  copy PATH                   a copy\n"
               "\nOther:\n  stop                        ends it\n"
               "\npsctl help COMMAND: its options and examples; psctl help all: all of them\n");
    assert_non_null(
        strstr(all, "\ncopy PATH: copies it. Twice.\n\nstop: stops it.\n\nThe end.\n"));
    assert_non_null(strstr(all, "--yes"));
    assert_non_null(strstr(copy, "usage: psctl copy PATH [options]\n\nCopies it. Twice.\n"));
    assert_non_null(strstr(copy, "--out PATH"));
    assert_null(strstr(copy, "--yes"));
    assert_non_null(strstr(copy, "\nexamples:\n  x copy a\n      copies a\n"));
    free(all);
    free(lines);
    free(copy);
}

static void a_command_is_found_by_its_whole_name(void **state)
{
    (void)state;
    assert_ptr_equal(command_find(&list, "stop"), &commands[1]);
    assert_null(command_find(&list, "sto"));
    assert_true(command_takes(&commands[0], "mode"));
    assert_false(command_takes(&commands[0], "mod"));
    assert_false(command_takes(&commands[0], "yes"));
}

static void completions_have_each_command_and_setting(void **state)
{
    char *bash = print(print_bash), *zsh = print(print_zsh);

    (void)state;
    assert_non_null(strstr(
        bash, "copy) flags='--out --mode --config --check --print-config --help' files=1 ;;"));
    assert_non_null(strstr(bash, "stop) flags='--yes --config"));
    assert_non_null(strstr(bash, "--mode) COMPREPLY=($(compgen -W 'a b' "));
    assert_non_null(strstr(zsh, "'--out[the file'\\''s name]:file:_files'"));
    assert_non_null(strstr(zsh, "'--mode[one \\[or\\: two\\]]:value:(a b)'"));
    assert_non_null(strstr(zsh, "'copy:copies it'"));
    free(bash);
    free(zsh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_has_all_commands_or_one),
        cmocka_unit_test(a_command_is_found_by_its_whole_name),
        cmocka_unit_test(completions_have_each_command_and_setting),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
