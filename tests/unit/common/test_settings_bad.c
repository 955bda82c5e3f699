#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/common/settings_example.h"

static struct example_settings s;
static struct err err;
static enum settings_action action;

struct bad_line {
    const char *words[3];
    const char *sentence;
};

/* clang-format off */
static const struct bad_line bad_lines[] = {
    { { "--shards", "abc" },      "--shards: \"abc\" is not a whole number from 1 to 1024" },
    { { "--shards", "" },         "--shards: \"\" is not a whole number from 1 to 1024" },
    { { "--shards=" },            "--shards: \"\" is not a whole number from 1 to 1024" },
    { { "--shards", "0" },        "--shards: \"0\" is not a whole number from 1 to 1024" },
    { { "--shards", "1025" },     "--shards: \"1025\" is not a whole number from 1 to 1024" },
    { { "--shards", "-1" },       "--shards: \"-1\" is not a whole number from 1 to 1024" },
    { { "--shards", "4 " },       "--shards: \"4 \" is not a whole number from 1 to 1024" },
    { { "--shards", "4.0" },      "--shards: \"4.0\" is not a whole number from 1 to 1024" },
    { { "--shards", "0x4" },      "--shards: \"0x4\" is not a whole number from 1 to 1024" },
    { { "--any32", "4294967296" },
      "--any32: \"4294967296\" is not a whole number from 0 to 4294967295" },
    { { "--seed", "18446744073709551616" },
      "--seed: \"18446744073709551616\" is not a whole number" },
    { { "--rows", "1000001" },
      "--rows: \"1000001\" is not a whole number from 1 to 1000000" },
    { { "--lr", "fast" },         "--lr: \"fast\" is not a decimal number" },
    { { "--lr", "nan" },          "--lr: \"nan\" is not a decimal number" },
    { { "--lr", "inf" },          "--lr: \"inf\" is not a decimal number" },
    { { "--lr", "1e99" },         "--lr: \"1e99\" is not a decimal number" },
    { { "--lr", "0,01" },         "--lr: \"0,01\" is not a decimal number" },
    { { "--dropout", "1.01" },    "--dropout: \"1.01\" is not a decimal number from 0 to 1" },
    { { "--dropout", "-0.5" },    "--dropout: \"-0.5\" is not a decimal number from 0 to 1" },
    { { "--memory-max", "2GB" },
      "--memory-max: \"2GB\" is not a size such as 512K, 64M or 2G" },
    { { "--memory-max", "99999999T" },
      "--memory-max: \"99999999T\" is not a size such as 512K, 64M or 2G" },
    { { "--frame-max", "1K" },
      "--frame-max: \"1K\" is not a size such as 512K, 64M or 2G from 64K to 1G" },
    { { "--frame-max", "2G" },
      "--frame-max: \"2G\" is not a size such as 512K, 64M or 2G from 64K to 1G" },
    { { "--lease", "10" },
      "--lease: \"10\" is not a time such as 250ms, 30s, 5m or 1h from 100ms to 1h" },
    { { "--lease", "2h" },
      "--lease: \"2h\" is not a time such as 250ms, 30s, 5m or 1h from 100ms to 1h" },
    { { "--park", "1 s" },
      "--park: \"1 s\" is not a time such as 250ms, 30s, 5m or 1h" },
    { { "--dev=maybe" },          "--dev: \"maybe\" is neither yes nor no" },
    { { "--dev=" },               "--dev: \"\" is neither yes nor no" },
    { { "--mode", "sync" },       "--mode: \"sync\" is not one of async|ssp|bsp" },
    { { "--mode", "ss" },         "--mode: \"ss\" is not one of async|ssp|bsp" },
    { { "--mode", "async|ssp" },  "--mode: \"async|ssp\" is not one of async|ssp|bsp" },
    { { "--mode", "" },           "--mode: \"\" is not one of async|ssp|bsp" },
    { { "--servers", "a,,b" },    "--servers: \"a,,b\" has an empty item" },
    { { "--servers", ",a" },      "--servers: \",a\" has an empty item" },
    { { "--servers", "a," },      "--servers: \"a,\" ends in a comma" },
    { { "--servers", "a, ,b" },   "--servers: \"a, ,b\" has an empty item" },
    { { "--shards" },             "--shards: the value is missing; expected N" },
    { { "--shards", "--dev" },    "--shards: the value is missing; expected N" },
    { { "--listen" },             "--listen: the value is missing; expected HOST:PORT" },
    { { "--config" },             "--config: the value is missing; expected a FILE" },
    { { "--config", "/no/psd.conf" },
      "/no/psd.conf: cannot be read: No such file or directory" },
    { { "--config=" },            ": cannot be read: No such file or directory" },
    { { "--config", "/" },        "/: cannot be read: Is a directory" },
    { { "--shrads", "4" },        "unknown option \"--shrads\"; did you mean \"--shards\"?" },
    { { "--memory_max=1G" },
      "unknown option \"--memory_max\"; did you mean \"--memory-max\"?" },
    { { "--hlep" },               "unknown option \"--hlep\"; did you mean \"--help\"?" },
    { { "--conf", "x" },          "unknown option \"--conf\"; did you mean \"--config\"?" },
    { { "--xyzzy" },              "unknown option \"--xyzzy\"; --help lists what there is" },
    { { "--=4" },                 "unknown option \"--\"; --help lists what there is" },
    { { "--help=me" },            "--help takes no value" },
    { { "--check=1" },            "--check takes no value" },
    { { "4" },
      "\"4\" is not an option; options begin with -- and are listed by --help" },
    { { "-d" },
      "\"-d\" is not an option; options begin with -- and are listed by --help" },
    { { "--" },
      "\"--\" is not an option; options begin with -- and are listed by --help" },
    { { "" },
      "\"\" is not an option; options begin with -- and are listed by --help" },
    { { "--dev", "maybe" },
      "\"maybe\" is not an option; options begin with -- and are listed by --help" },
    { { "--check", "yes" },
      "\"yes\" is not an option; options begin with -- and are listed by --help" },
    { { "--shards", "4\n5\x1b" }, "--shards: \"4?5?\" is not a whole number from 1 to 1024" },
};

/* File, and the sentence behind the file's name. */
static const char *const bad_files[][2] = {
    { "shrads = 4\n",
      ":1: unknown setting \"shrads\"; did you mean \"shards\"?" },
    { "[store]\n# why\nshards = many\n",
      ":3: shards: \"many\" is not a whole number from 1 to 1024" },
    { "shards =\n",
      ":1: shards: \"\" is not a whole number from 1 to 1024" },
    { "shards = 4 # cores\n",
      ":1: shards: \"4 # cores\" is not a whole number from 1 to 1024" },
    { "--shards = 4\n",
      ":1: unknown setting \"--shards\"; did you mean \"shards\"?" },
    { "shards 4\n",
      ":1: \"shards 4\" is not \"name = value\", a [section] or a # comment" },
    { "lr = 1\n[store\n",
      ":2: \"[store\" is not \"name = value\", a [section] or a # comment" },
    { "config = other.conf\n",
      ":1: unknown setting \"config\"; --help lists what there is" },
    { "help = yes\n",
      ":1: unknown setting \"help\"; --help lists what there is" },
    { " = 5\n",                            ":1: there is no name before the =" },
    { "listen = \"a\n",                    ":1: the quote is not closed" },
    { "lease = 10\n",
      ":1: lease: \"10\" is not a time such as 250ms, 30s, 5m or 1h from 100ms to 1h" },
    { "mode = SSP\n",                      ":1: mode: \"SSP\" is not one of async|ssp|bsp" },
    { "dev = \n",                          ":1: dev: \"\" is neither yes nor no" },
    { "data = a,\n",                       ":1: data: \"a,\" ends in a comma" },
    { "\x7f" "ELF\x02\x01\n",              ":1: \"" },
};
/* clang-format on */

static void a_wrong_command_line_is_refused_with_one_sentence(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(bad_lines); i++) {
        assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, bad_lines[i].words[0],
                                      bad_lines[i].words[1], bad_lines[i].words[2]),
                         PS_ESETTING);
        assert_int_equal(err.status, PS_ESETTING);
        assert_string_equal(err.text, bad_lines[i].sentence);
        assert_int_equal(s.data.n, 0);
    }
}

static int load_file(char *path, const char *text)
{
    int fd = mkstemp(path), status;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    status = EXAMPLE_LOAD(&s, &action, &err, "--config", path);
    unlink(path);
    return status;
}

static void a_wrong_file_is_refused_with_its_line(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(bad_files); i++) {
        char path[] = "/tmp/test_settings.XXXXXX";

        assert_int_equal(load_file(path, bad_files[i][0]), PS_ESETTING);
        assert_int_equal(strncmp(err.text, path, strlen(path)), 0);
        assert_int_equal(
            strncmp(err.text + strlen(path), bad_files[i][1], strlen(bad_files[i][1])), 0);
    }
}

static void values_that_are_too_long_are_refused_and_shown_truncated(void **state)
{
    static char text[9000];
    char path[] = "/tmp/test_settings.XXXXXX";

    (void)state;
    snprintf(text, sizeof text, "%0*d", (int)SETTINGS_TEXT_MAX, 7);
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--listen", text), PS_ESETTING);
    assert_non_null(strstr(err.text, "0...\" is longer than 1023 bytes"));
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--servers", text), PS_ESETTING);
    assert_non_null(strstr(err.text, "0...\" has an item of more than 1023 bytes"));
    memset(text, '9', SETTINGS_TEXT_MAX);
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--shards", text), PS_ESETTING);
    assert_non_null(strstr(err.text, "9...\" is not a whole number from 1 to 1024"));
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, text), PS_ESETTING);
    memcpy(text, "--", 2);
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, text), PS_ESETTING);
    snprintf(text, sizeof text, "shards = %0*d", 5000, 7);
    assert_int_equal(load_file(path, text), PS_ESETTING);
    assert_non_null(strstr(err.text, ":1: the line is longer than 4000 bytes"));
}

static void a_list_longer_than_its_limit_is_refused(void **state)
{
    static char text[SETTINGS_LIST_MAX * 2 + 2];
    const char *words[SETTINGS_LIST_MAX + 3] = { "example" };
    size_t i;

    (void)state;
    for (i = 0; i <= SETTINGS_LIST_MAX; i++) {
        memcpy(text + 2 * i, "x,", 2);
        words[1 + i] = "--data=x";
    }
    text[sizeof text - 1] = '\0';
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--data", text), PS_ESETTING);
    assert_non_null(strstr(err.text, "has more than 256 items"));
    assert_int_equal(example_load(&s, &action, &err, words), PS_ESETTING);
    assert_string_equal(err.text, "--data: \"x\" is one too many: there may be 256");
}

static void a_long_path_leaves_space_for_the_error(void **state)
{
    char path[2000];

    (void)state;
    snprintf(path, sizeof path, "/tmp/%0*d", 1900, 7);
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--config", path), PS_ESETTING);
    assert_non_null(strstr(err.text, "cannot be read: File name too long"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_command_line_is_refused_with_one_sentence),
        cmocka_unit_test(a_wrong_file_is_refused_with_its_line),
        cmocka_unit_test(values_that_are_too_long_are_refused_and_shown_truncated),
        cmocka_unit_test(a_list_longer_than_its_limit_is_refused),
        cmocka_unit_test(a_long_path_leaves_space_for_the_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
