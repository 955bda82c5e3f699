#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/memory.h"
#include "tests/unit/common/settings_example.h"

static struct example_settings s;
static struct err err;
static enum settings_action action;

static int free_settings(void **state)
{
    (void)state;
    settings_free(&example_table, &s);
    return 0;
}

/* Loads a file with this text, and what else stands on the command line. */
#define LOAD_FILE(lines, ...)                                                \
    do {                                                                     \
        char path_[] = "/tmp/test_settings.XXXXXX";                          \
        write_file(path_, (lines));                                          \
        if (EXAMPLE_LOAD(&s, &action, &err, "--config", path_, __VA_ARGS__)) \
            fail_msg("%s", err.text);                                        \
        unlink(path_);                                                       \
    } while (0)

static void write_file(char *path, const char *text)
{
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void assert_list(const struct setting_list *list, const char *expected)
{
    char text[4096] = "";
    uint32_t i;

    for (i = 0; i < list->n; i++) {
        strcat(text, list->items[i]);
        strcat(text, ";");
    }
    assert_string_equal(text, expected);
}

static void without_arguments_every_setting_has_its_fallback(void **state)
{
    (void)state;
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, NULL), 0);
    assert_int_equal(action, SETTINGS_RUN);
    assert_string_equal(s.listen, "127.0.0.1:7070");
    assert_int_equal(s.shards, 4);
    assert_int_equal(s.memory_max, 0);
    assert_int_equal(s.frame_max, 64u << 20);
    assert_int_equal(s.lease, 10000);
    assert_true(s.lr == 0.01f);
    assert_int_equal(s.mode, EXAMPLE_SSP);
    assert_false(s.dev);
    assert_true(s.sync);
    assert_list(&s.servers, "");
    assert_list(&s.data, "a.tsv;b.tsv;");
}

static void the_command_line_sets_every_type(void **state)
{
    (void)state;
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--listen", "[::1]:80", "--shards=16",
                                  "--any32", "4294967295", "--seed", "18446744073709551615",
                                  "--lr=-2.5e-3", "--memory-max", "2G", "--lease", "250ms",
                                  "--dev", "on", "--sync", "no", "--mode", "bsp",
                                  "--delimiter=--", "--servers=a:1,b:2"),
                     0);
    assert_string_equal(s.listen, "[::1]:80");
    assert_int_equal(s.shards, 16);
    assert_true(s.any32 == UINT32_MAX);
    assert_true(s.seed == UINT64_MAX);
    assert_true(s.lr == -2.5e-3f);
    assert_true(s.memory_max == UINT64_C(2) << 30);
    assert_int_equal(s.lease, 250);
    assert_true(s.dev);
    assert_false(s.sync);
    assert_int_equal(s.mode, EXAMPLE_BSP);
    assert_string_equal(s.delimiter, "--");
    assert_list(&s.servers, "a:1;b:2;");
}

static void items_keep_their_commas_and_grow_from_the_file_on(void **state)
{
    (void)state;
    LOAD_FILE("[field C1]\nlr = 0.5\ninit = zero\n[training]\nfield = C2:a=1,b=2\nrows = 7\n"
              "[fields]\nseed = 3\n[field  a b:c*]\nx = \" y,z\"\n",
              "--field", "C1:lr=1,dim=2", "--field=,:");
    assert_list(&s.field, "C1:lr=0.5;C1:init=zero;C2:a=1,b=2;a b:c*:x= y,z;C1:lr=1,dim=2;,:;");
    assert_int_equal(s.rows, 7);
    assert_int_equal(s.seed, 3);
}

/* What is printed is read as the same. */
static void items_are_printed_one_a_line(void **state)
{
    struct example_settings again = { 0 };
    char *text;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    (void)state;
    assert_int_equal(
        EXAMPLE_LOAD(&s, &action, &err, "--field", "C1:a=1,b=2", "--field", "C2:c=3"), 0);
    settings_print_config(&example_table, &s, out);
    fclose(out);
    assert_non_null(strstr(text, "\nfield = C1:a=1,b=2\nfield = C2:c=3\n"));
    free(text);
    settings_copy(&example_table, &again, &s);
    assert_list(&again.field, "C1:a=1,b=2;C2:c=3;");
    assert_true(settings_row_is_equal(&example_rows[12], &again, &s));
    settings_free(&example_table, &again);
}

static void items_that_are_too_long_or_too_many_are_refused(void **state)
{
    char lines[6000] = "", item[1100];

    (void)state;
    memset(item, 'x', sizeof item);
    item[1024] = '\0';
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--field", item), PS_ESETTING);
    assert_non_null(strstr(err.text, "--field:"));
    assert_non_null(strstr(err.text, "is longer than 1023 bytes"));
    for (unsigned i = 0; i < 257; i++)
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "field = C:a=%u\n", i);
    {
        char path[] = "/tmp/test_settings.XXXXXX";

        write_file(path, lines);
        assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--config", path), PS_ESETTING);
        unlink(path);
    }
    assert_non_null(strstr(err.text, ":257: field: \"C:a=256\" is one too many"));
}

static void the_ends_of_a_range_are_inside_it(void **state)
{
    (void)state;
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--shards", "1", "--frame-max", "64K",
                                  "--lease", "1h", "--dropout", "1", "--rows", "1000000"),
                     0);
    settings_free(&example_table, &s);
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--shards", "1024", "--frame-max", "1G",
                                  "--lease", "100ms", "--dropout", "0", "--rows", "1"),
                     0);
}

static void a_flag_takes_any_common_word(void **state)
{
    static const char *const yes[] = { "--dev",    "--dev=yes", "--dev=true",
                                       "--dev=on", "--dev=1",   "--dev=Yes" };
    static const char *const no[] = { "--dev=no", "--dev=false", "--dev=off", "--dev=0" };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(yes); i++) {
        assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, yes[i]), 0);
        assert_true(s.dev);
        settings_free(&example_table, &s);
    }
    for (i = 0; i < COUNT_OF(no); i++) {
        assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, no[i]), 0);
        assert_false(s.dev);
        settings_free(&example_table, &s);
    }
}

static void the_command_line_wins_over_the_file_wherever_it_stands(void **state)
{
    char path[] = "/tmp/test_settings.XXXXXX";

    (void)state;
    write_file(path, "[any head]\nshards = 8\nlr = 0.5\nlisten = 0.0.0.0:1\ndev = on\n");
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--shards", "2", "--config", path), 0);
    unlink(path);
    assert_int_equal(s.shards, 2);
    assert_true(s.lr == 0.5f);
    assert_string_equal(s.listen, "0.0.0.0:1");
    assert_true(s.dev);
    assert_int_equal(s.rows, 1000);
}

static void what_is_said_twice_counts_as_said_last(void **state)
{
    (void)state;
    LOAD_FILE("shards = 8\nshards = 9\n", "--rows=1", "--rows=2");
    assert_int_equal(s.shards, 9);
    assert_int_equal(s.rows, 2);
}

static void a_list_grows_within_its_source_and_replaces_the_one_before(void **state)
{
    (void)state;
    LOAD_FILE("data = x\ndata = y , z\nservers = a\n", "--data=1", "--data", "2,3");
    assert_list(&s.data, "1;2;3;");
    assert_list(&s.servers, "a;");
    settings_free(&example_table, &s);
    LOAD_FILE("data = x\ndata = y , z\n", NULL);
    assert_list(&s.data, "x;y;z;");
    settings_free(&example_table, &s);
    LOAD_FILE("data =\n", NULL);
    assert_list(&s.data, "");
}

static void a_list_may_be_as_long_as_its_limit(void **state)
{
    char words[SETTINGS_LIST_MAX * 2];
    size_t i;

    (void)state;
    for (i = 0; i < SETTINGS_LIST_MAX; i++)
        memcpy(words + 2 * i, "x,", 2);
    words[sizeof words - 1] = '\0';
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--data", words), 0);
    assert_int_equal(s.data.n, SETTINGS_LIST_MAX);
}

static void a_text_may_be_as_long_as_its_limit(void **state)
{
    static char text[2000];

    (void)state;
    snprintf(text, sizeof text, "listen = %0*d\n", (int)SETTINGS_TEXT_MAX - 1, 7);
    LOAD_FILE(text, NULL);
    assert_int_equal(strlen(s.listen), SETTINGS_TEXT_MAX - 1);
}

static void actions_are_reported_and_help_needs_no_valid_rest(void **state)
{
    (void)state;
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--check"), 0);
    assert_int_equal(action, SETTINGS_CHECK);
    settings_free(&example_table, &s);
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--print-config", "--shards", "5"), 0);
    assert_int_equal(action, SETTINGS_PRINT_CONFIG);
    assert_int_equal(s.shards, 5);
    settings_free(&example_table, &s);
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--version"), 0);
    assert_int_equal(action, SETTINGS_VERSION);
    settings_free(&example_table, &s);
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--config", "none", "--shards=x", "--help",
                                  "--nonsense"),
                     0);
    assert_int_equal(action, SETTINGS_HELP);
}

static void one_setting_is_set_as_it_would_be_typed(void **state)
{
    (void)state;
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, NULL), 0);
    assert_int_equal(settings_set(&example_table, &s, "memory-max", "1G", &err), 0);
    assert_int_equal(settings_set(&example_table, &s, "data", "c,d", &err), 0);
    assert_int_equal(s.memory_max, 1u << 30);
    assert_list(&s.data, "c;d;");
    assert_int_equal(settings_set(&example_table, &s, "shards", "0", &err), PS_ESETTING);
    assert_string_equal(err.text, "shards: \"0\" is not a whole number from 1 to 1024");
    assert_int_equal(settings_set(&example_table, &s, "mod", "ssp", &err), PS_ESETTING);
    assert_string_equal(err.text, "unknown setting \"mod\"; did you mean \"mode\"?");
    assert_int_equal(s.shards, 4);
    assert_int_equal(settings_set(&example_table, &s, "shards", "0", NULL), PS_ESETTING);
}

static char *print_to_memory(void (*print)(const struct settings_table *table, FILE *out))
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    assert_non_null(out);
    print(&example_table, out);
    fclose(out);
    return text;
}

static char *print_config(void)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    assert_non_null(out);
    settings_print_config(&example_table, &s, out);
    fclose(out);
    return text;
}

static void a_printed_configuration_reads_back_as_itself(void **state)
{
    char *first, *second;

    (void)state;
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, "--listen= a \"b\" # \\ ", "--delimiter",
                                  "\t", "--servers", "h:1,\"x\";y,z z", "--data=", "--shards=7",
                                  "--any32=4294967295", "--seed=18446744073709551615",
                                  "--lr=0.1234567", "--dropout=0.3", "--lease=1500ms",
                                  "--park=18446744073709551615ms", "--memory-max=3T",
                                  "--frame-max=65537", "--mode=bsp", "--dev", "--sync=off"),
                     0);
    first = print_config();
    settings_free(&example_table, &s);
    LOAD_FILE(first, NULL);
    second = print_config();
    assert_string_equal(first, second);
    assert_string_equal(s.listen, " a \"b\" # \\ ");
    assert_string_equal(s.delimiter, "\t");
    assert_list(&s.servers, "h:1;\"x\";y;z z;");
    assert_list(&s.data, "");
    assert_true(s.lr == 0.1234567f);
    free(first);
    free(second);
}

static void the_printed_fallbacks_are_a_file_that_teaches(void **state)
{
    char *text;

    (void)state;
    assert_int_equal(EXAMPLE_LOAD(&s, &action, &err, NULL), 0);
    text = print_config();
    assert_non_null(
        strstr(text, "\n[network]\n# where workers connect\nlisten = 127.0.0.1:7070\n"));
    assert_non_null(
        strstr(text, "# how workers wait for each other: async|ssp|bsp\nmode = ssp\n"));
    assert_non_null(strstr(text, "\ndata = a.tsv\ndata = b.tsv\n"));
    assert_non_null(strstr(text, "\nservers =\n"));
    assert_non_null(strstr(text, "\nframe-max = 64M\n"));
    assert_non_null(strstr(text, "\nlease = 10s\n"));
    free(text);
}

/* How many lines of `text` begin with `start`. */
static int n_lines(const char *text, const char *start)
{
    int n = 0;

    for (; text; text = strchr(text, '\n'), text = text ? text + 1 : NULL)
        n += strncmp(text, start, strlen(start)) == 0;
    return n;
}

static void help_lists_every_setting_once_under_its_section(void **state)
{
    char *text = print_to_memory(settings_print_help), start[64], *line;
    size_t i;

    (void)state;
    for (i = 0; i < example_table.n_rows; i++) {
        snprintf(start, sizeof start, "  --%s%s", example_rows[i].name,
                 example_rows[i].arg ? " " : "  ");
        assert_int_equal(n_lines(text, start), 1);
    }
    assert_int_equal(n_lines(text, "network:"), 1);
    assert_int_equal(n_lines(text, "store:"), 1);
    assert_int_equal(n_lines(text, "  --config FILE "), 1);
    assert_non_null(strstr(text, "learning rate [0.01]"));
    for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        assert_in_range(strlen(line), 0, 80);
    free(text);
}

#ifdef PS_FAULTS
static void without_memory_for_the_kth_item_loading_fails_and_leaves_nothing(void **state)
{
    int k, status = PS_ESETTING;

    (void)state;
    for (k = 2; status != 0; k++) { /* the fallbacks take two */
        memory_fail_after(k);
        status = EXAMPLE_LOAD(&s, &action, &err, "--servers", "a,b,c,d", "--data=x");
        memory_fail_after(-1);
        if (status != 0) {
            assert_int_equal(status, PS_ESETTING);
            assert_non_null(strstr(err.text, "does not fit into memory"));
            assert_int_equal(s.servers.n + s.data.n, 0);
        }
    }
    assert_int_equal(k, 2 + 5 + 1);
    assert_list(&s.servers, "a;b;c;d;");
}
#endif

static void a_list_is_one_text(void **state)
{
    const struct setting row = { .name = "x", .type = SETTING_LIST };
    char a[] = "a:1", b[] = "b";
    const struct setting_list none = { 0 }, two = { .n = 2, .items = { a, b } };
    char *text = settings_row_text(&row, &none);

    (void)state;
    assert_string_equal(text, "");
    free(text);
    text = settings_row_text(&row, &two);
    assert_string_equal(text, "a:1,b");
    free(text);
}

#define TEST(name) cmocka_unit_test_teardown(name, free_settings)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(without_arguments_every_setting_has_its_fallback),
        TEST(the_command_line_sets_every_type),
        TEST(the_ends_of_a_range_are_inside_it),
        TEST(a_flag_takes_any_common_word),
        TEST(the_command_line_wins_over_the_file_wherever_it_stands),
        TEST(what_is_said_twice_counts_as_said_last),
        TEST(a_list_grows_within_its_source_and_replaces_the_one_before),
        TEST(a_list_may_be_as_long_as_its_limit),
        TEST(a_text_may_be_as_long_as_its_limit),
        TEST(actions_are_reported_and_help_needs_no_valid_rest),
        TEST(one_setting_is_set_as_it_would_be_typed),
        TEST(a_printed_configuration_reads_back_as_itself),
        TEST(the_printed_fallbacks_are_a_file_that_teaches),
        TEST(a_list_is_one_text),
        TEST(items_keep_their_commas_and_grow_from_the_file_on),
        TEST(items_are_printed_one_a_line),
        TEST(items_that_are_too_long_or_too_many_are_refused),
        TEST(help_lists_every_setting_once_under_its_section),
#ifdef PS_FAULTS
        TEST(without_memory_for_the_kth_item_loading_fails_and_leaves_nothing),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
