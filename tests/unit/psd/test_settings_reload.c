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
        settings_load(&settings_psd, 3, p->argv, 1, &p->settings, &action, &p->err), 0);
    settings_reload_init(&p->reload, 3, p->argv, &p->settings);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_can_change_does_and_what_cannot_is_named_until_a_restart),
        cmocka_unit_test(the_secret_in_a_file_is_read_again),
        cmocka_unit_test(a_bad_file_changes_nothing),
        cmocka_unit_test(a_pipe_is_not_read_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
