/* What a context makes of its files: those that are wrong, and those that are read again. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "common/tls.h"
#include "common/tls_cert.h"
#include "tests/support/tls_dir.h"

static struct tls_dir *dir_of(void **state)
{
    return *state;
}

static int open_files(const struct tls_dir *d, const char *ca, const char *cert,
                      const char *key, struct err *err)
{
    char paths[3][128] = { "", "", "" };
    const char *names[] = { ca, cert, key };
    struct tls_context *t = NULL;
    int status;

    for (int i = 0; i < 3; i++)
        if (names[i][0])
            snprintf(paths[i], sizeof paths[i], "%s/%s", d->path, names[i]);
    status =
        tls_context_new(&(struct tls_files){ paths[0], paths[1], paths[2], false }, &t, err);
    if (!status)
        tls_context_free(t);
    return status;
}

static void a_file_that_is_wrong_is_named(void **state)
{
    static const struct {
        const char *ca, *cert, *key, *words;
    } cases[] = {
        { "", "node.pem", "node.key", "tls-ca: TLS needs" },
        { "none.pem", "node.pem", "node.key", "tls-ca: cannot use" },
        { "node.key", "node.pem", "node.key", "tls-ca: cannot use" },
        { "ca.pem", "node.pem", "", "tls-cert and tls-key" },
        { "ca.pem", "", "node.key", "tls-cert and tls-key" },
        { "ca.pem", "none.pem", "node.key", "tls-cert: cannot use" },
        { "ca.pem", "node.pem", "none.key", "No such file" },
        { "ca.pem", "node.pem", "admin.key", "tls-key: cannot use" },
        { "ca.pem", "node.key", "node.key", "tls-cert: cannot use" },
        { "ca.pem", "ca.pem", "ca.key", "psd://CLUSTER/ROLE" },
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct err err = { 0 };

        assert_int_equal(
            open_files(dir_of(state), cases[i].ca, cases[i].cert, cases[i].key, &err),
            PS_ESETTING);
        if (!strstr(err.text, cases[i].words))
            fail_msg("found \"%s\", expected \"%s\"", err.text, cases[i].words);
    }
}

/* With these files of the folder. */
static int reload(const struct tls_dir *d, struct tls_context *t, const char *cert,
                  const char *key, struct err *err)
{
    char paths[3][128];

    snprintf(paths[0], sizeof paths[0], "%s/ca.pem", d->path);
    snprintf(paths[1], sizeof paths[1], "%s/%s.pem", d->path, cert);
    snprintf(paths[2], sizeof paths[2], "%s/%s.key", d->path, key);
    return tls_context_reload(t, &(struct tls_files){ paths[0], paths[1], paths[2], true },
                              err);
}

static void files_that_are_read_again_count_from_then_on(void **state)
{
    const struct tls_dir *d = dir_of(state);
    struct tls_context *t = tls_dir_context(d, "expired", "ca");
    struct tls_expiry before, after;
    struct err err;

    tls_context_expiry(t, &before);
    assert_int_equal(reload(d, t, "node", "expired", &err), PS_ESETTING);
    assert_int_equal(reload(d, t, "expired", "expired", &err), 0); /* as it was */
    tls_context_expiry(t, &after);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(reload(d, t, "node", "node", &err), 0);
    tls_context_expiry(t, &after);
    assert_true(after.unix_s > before.unix_s);
    assert_true(after.ca_unix_s == before.ca_unix_s);
    tls_context_free(t);
}

/* What would shut out everybody is not taken in place of what is good. */
static void a_reload_keeps_what_is_good(void **state)
{
    const struct tls_dir *d = dir_of(state);
    struct tls_context *t = tls_dir_context(d, "node", "ca");
    struct tls_expiry before, after;
    struct err err;

    tls_context_expiry(t, &before);
    assert_int_equal(reload(d, t, "expired", "expired", &err), PS_ESETTING);
    assert_non_null(strstr(err.text, "expired.pem has expired"));
    assert_int_equal(reload(d, t, "admin", "admin", &err), PS_ESETTING);
    assert_non_null(strstr(err.text, "admin.pem is of role admin; a psd has one of role node"));
    tls_context_expiry(t, &after);
    assert_memory_equal(&before, &after, sizeof before);
    tls_context_free(t);
}

static void certificates_are_for_their_owner_alone(void **state)
{
    const struct tls_dir *d = dir_of(state);
    char cert[128], key[128];
    struct tls_cert_plan plan = {
        .cert = cert, .key = key, .name = "again", .until_unix_s = 1
    };
    struct stat found;
    struct err err;

    snprintf(cert, sizeof cert, "%s/node.pem", d->path);
    snprintf(key, sizeof key, "%s/node.key", d->path);
    assert_int_equal(stat(key, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0600);
    assert_int_equal(stat(cert, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0600);
    assert_int_equal(tls_cert_make(&plan, &err), -EEXIST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_is_wrong_is_named),
        cmocka_unit_test(files_that_are_read_again_count_from_then_on),
        cmocka_unit_test(a_reload_keeps_what_is_good),
        cmocka_unit_test(certificates_are_for_their_owner_alone),
    };

    return cmocka_run_group_tests(tests, tls_dir_set_up, tls_dir_tear_down);
}
