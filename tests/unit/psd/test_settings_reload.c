/* Settings that are read again: what counts at once, what waits, and that a bad file changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/settings_reload.h"

struct psd {
    char path[64];
    char *argv[3];
    struct settings settings;
    struct settings_reload reload;
    struct settings_reload_changes changes;
    struct err err;
};

static void write_config(const struct psd *p, const char *text)
{
    FILE *f = fopen(p->path, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* As main() starts. */
static void start(struct psd *p, const char *text)
{
    enum settings_action action;

    *p = (struct psd){ .path = "/tmp/test_settings_reload.XXXXXX" };
    close(mkstemp(p->path));
    p->argv[0] = (char *)"psd";
    p->argv[1] = (char *)"--config";
    p->argv[2] = p->path;
    write_config(p, text);
    assert_int_equal(
        settings_reload_init(&p->reload, 3, p->argv, &p->settings, &action, &p->err), 0);
    assert_int_equal(settings_complete(&p->settings, &p->err), 0);
}

static void stop(struct psd *p)
{
    unlink(p->path);
    settings_reload_deinit(&p->reload);
    settings_free(&settings_psd, &p->settings);
}

static int reload(struct psd *p, const char *text)
{
    write_config(p, text);
    return settings_reload_run(&p->reload, &p->settings, &p->changes, &p->err);
}

static void what_can_change_does_and_what_cannot_is_named_until_a_restart(void **state)
{
    struct psd p;
    uint32_t shards;

    (void)state;
    start(&p, "listen = 127.0.0.1:0\ntoken = first-secret\n");
    shards = p.settings.shards;
    assert_int_equal(reload(&p, "listen = 127.0.0.1:0\ntoken = other-secret\nlog-max = 1G\n"
                                "shards = 7\nhttp-hosts = a.b, c.d\n"),
                     0);
    assert_string_equal(p.changes.applied, "token, log-max");
    assert_string_equal(p.changes.waiting, "http-hosts, shards");
    assert_string_equal(p.settings.token, "other-secret");
    assert_true(p.settings.log_max_bytes == UINT64_C(1) << 30);
    assert_true(p.settings.shards == shards && p.settings.http_hosts.n == 0);
    /* It still waits, and what was applied is no news. */
    assert_int_equal(reload(&p, "listen = 127.0.0.1:0\ntoken = other-secret\nlog-max = 1G\n"
                                "shards = 7\n"),
                     0);
    assert_string_equal(p.changes.applied, "");
    assert_string_equal(p.changes.waiting, "shards");
    stop(&p);
}

static void the_secret_in_a_file_is_read_again(void **state)
{
    char token[] = "/tmp/test_settings_token.XXXXXX", text[200];
    struct psd p;
    int fd = mkstemp(token);

    (void)state;
    assert_int_equal(write(fd, "first-secret\n", 13), 13);
    snprintf(text, sizeof text, "listen = 127.0.0.1:0\ntoken-file = %s\n", token);
    start(&p, text);
    assert_string_equal(p.settings.token, "first-secret");
    assert_int_equal(reload(&p, text), 0);
    assert_string_equal(p.changes.applied, "");
    assert_int_equal(pwrite(fd, "other", 5, 0), 5);
    assert_int_equal(reload(&p, text), 0);
    assert_string_equal(p.changes.applied, "the secret in token-file");
    assert_string_equal(p.settings.token, "other-secret");
    close(fd);
    unlink(token);
    /* Gone: who has the old secret stays welcome. */
    assert_int_equal(reload(&p, text), PS_ESETTING);
    assert_string_equal(p.settings.token, "other-secret");
    stop(&p);
}

static void a_bad_file_changes_nothing(void **state)
{
    static const char *const bad[] = {
        "listen = 127.0.0.1:0\nlog-max = 2G\nlog-max = many\n",
        "listen = 127.0.0.1:0\nlog-max = 2G\nno-such-setting = 1\n",
        "listen = 127.0.0.1:0\nlog-max = 2G\nlog-level = loud\n",
        "listen = 0.0.0.0:0\nlog-max = 2G\n", /* others reach it, and there is no token */
        "log-max = 2G\n",
    };
    struct psd p;

    (void)state;
    start(&p, "listen = 127.0.0.1:0\nlog-max = 1G\n");
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        p.err = (struct err){ 0 };
        assert_int_equal(reload(&p, bad[i]), PS_ESETTING);
        assert_true(p.err.text[0]);
        assert_true(p.settings.log_max_bytes == UINT64_C(1) << 30);
    }
    unlink(p.path);
    assert_int_equal(settings_reload_run(&p.reload, &p.settings, &p.changes, &p.err),
                     PS_ESETTING);
    assert_int_equal(reload(&p, "listen = 127.0.0.1:0\nlog-max = 2G\n"), 0);
    assert_string_equal(p.changes.applied, "log-max");
    stop(&p);
}

static void a_pipe_is_not_read_again(void **state)
{
    struct psd p;

    (void)state;
    start(&p, "listen = 127.0.0.1:0\n");
    unlink(p.path);
    assert_int_equal(mkfifo(p.path, 0600), 0);
    assert_int_equal(settings_reload_run(&p.reload, &p.settings, &p.changes, &p.err),
                     PS_ESETTING);
    assert_non_null(strstr(p.err.text, "is no regular file"));
    stop(&p);
}

/* Of a setting, from its name to the end. */
static void expect_in_report(const struct psd *p, const char *name, const char *wanted)
{
    char *report = settings_reload_report(&p->reload, &p->settings), label[64];
    const char *at;

    snprintf(label, sizeof label, "\"name\":\"%s\",", name);
    at = strstr(report, label);
    assert_non_null(at);
    at += strlen(label);
    if (strncmp(at, wanted, strlen(wanted)) != 0)
        fail_msg("%s: found %.200s, expected %s", name, at, wanted);
    free(report);
}

static void the_report_says_what_is_in_force_and_where_it_is_from(void **state)
{
    char wanted[300];
    struct psd p;

    (void)state;
    start(&p, "listen = 127.0.0.1:0\ntoken = first-secret\nshards = 2\n");
    snprintf(
        wanted, sizeof wanted,
        "\"value\":\"2\",\"default\":\"0\",\"source\":\"file\",\"path\":\"%s\",\"line\":3,"
        "\"reloadable\":false,\"reloaded\":false,\"waits_for_restart\":false,\"equal\":true}",
        p.path);
    expect_in_report(&p, "shards", wanted);
    expect_in_report(&p, "log-max",
                     "\"value\":\"8G\",\"default\":\"8G\",\"source\":\"default\","
                     "\"reloadable\":true,\"reloaded\":false");
    expect_in_report(&p, "client-memory", "\"value\":\"");
    assert_int_equal(
        reload(&p, "listen = 127.0.0.1:0\n\nlog-max = 1G\nshards = 3\ntoken = first-secret\n"),
        0);
    snprintf(
        wanted, sizeof wanted,
        "\"value\":\"1G\",\"default\":\"8G\",\"source\":\"file\",\"path\":\"%s\",\"line\":3,"
        "\"reloadable\":true,\"reloaded\":true,\"waits_for_restart\":false",
        p.path);
    expect_in_report(&p, "log-max", wanted);
    snprintf(wanted, sizeof wanted,
             "\"value\":\"2\",\"default\":\"0\",\"source\":\"file\",\"path\":\"%s\",\"line\":3,"
             "\"reloadable\":false,\"reloaded\":false,\"waits_for_restart\":true",
             p.path);
    expect_in_report(&p, "shards", wanted);
    snprintf(wanted, sizeof wanted,
             "\"value\":\"(not "
             "shown)\",\"default\":\"\",\"source\":\"file\",\"path\":\"%s\",\"line\":5",
             p.path);
    expect_in_report(&p, "token", wanted);
    stop(&p);
}

/* Neither that of a file, nor one that is typed, nor one that a reload has brought. */
static void no_secret_is_in_the_report(void **state)
{
    char token[] = "/tmp/test_settings_token.XXXXXX", text[200], *report;
    struct psd p;
    int fd = mkstemp(token);

    (void)state;
    assert_int_equal(write(fd, "hidden-secret\n", 14), 14);
    close(fd);
    snprintf(text, sizeof text, "listen = 127.0.0.1:0\ntoken-file = %s\n", token);
    start(&p, text);
    expect_in_report(&p, "token", "\"value\":\"\",\"default\":\"\",\"source\":\"default\"");
    for (int i = 0; i < 2; i++) {
        report = settings_reload_report(&p.reload, &p.settings);
        assert_null(strstr(report, "hidden-secret"));
        free(report);
        assert_int_equal(reload(&p, "listen = 127.0.0.1:0\ntoken = hidden-secret\n"), 0);
    }
    unlink(token);
    stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_can_change_does_and_what_cannot_is_named_until_a_restart),
        cmocka_unit_test(the_secret_in_a_file_is_read_again),
        cmocka_unit_test(a_bad_file_changes_nothing),
        cmocka_unit_test(a_pipe_is_not_read_again),
        cmocka_unit_test(the_report_says_what_is_in_force_and_where_it_is_from),
        cmocka_unit_test(no_secret_is_in_the_report),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
