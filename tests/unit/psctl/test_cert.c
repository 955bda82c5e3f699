/* psctl cert: what it makes fits together, and what is there stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "deploy/psctl/cert.h"

static const char *const names[] = { "ca", "node", "worker", "reader", "operator", "admin" };

static void path_of(const char *dir, const char *name, const char *ending, char dst[static 128])
{
    snprintf(dst, 128, "%.60s/%.20s.%.8s", dir, name, ending);
}

static void remove_all(const char *dir)
{
    char path[128];

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        path_of(dir, names[i], "pem", path);
        unlink(path);
        path_of(dir, names[i], "key", path);
        unlink(path);
    }
    rmdir(dir);
}

static void one_command_makes_all_that_a_trial_needs(void **state)
{
    struct options o = { .cluster = "c", .job = "ads", .days = 2 };
    char dir[] = "/tmp/psctl-cert-XXXXXX", sub[64], ca[128], cert[128], key[128];
    const char *words[] = { sub };
    struct stat before, after;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(sub, sizeof sub, "%s/tls", dir);
    assert_int_equal(cert_run(&o, words, 1), EXIT_ANSWERED);
    path_of(sub, "ca", "pem", ca);
    for (size_t i = 1; i < COUNT_OF(names); i++) {
        struct tls_context *t;
        struct err err;

        path_of(sub, names[i], "pem", cert);
        path_of(sub, names[i], "key", key);
        assert_int_equal(tls_context_open(ca, cert, key, &t, &err), 0);
        tls_context_free(t);
        assert_int_equal(stat(key, &before), 0);
        assert_int_equal(before.st_mode & 0777, 0600);
    }
    assert_int_equal(unlink(cert), 0); /* of admin, with its key */
    assert_int_equal(unlink(key), 0);
    assert_int_equal(stat(ca, &before), 0);
    assert_int_equal(cert_run(&o, words, 1), EXIT_ANSWERED);
    assert_int_equal(stat(ca, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(access(cert, F_OK), 0);
    remove_all(sub);
    rmdir(dir);
}

/* Of what is asked for now it may be the wrong one: then nothing is made. */
static void what_is_there_of_another_job_cluster_or_host_is_refused(void **state)
{
    static const struct {
        const char *cluster, *job, *host;
        int code;
    } rows[] = {
        { "c", "ads", "10.0.0.1", EXIT_ANSWERED },
        { "c", "", "", EXIT_ANSWERED }, /* asks no more */
        { "c", "census", "", EXIT_FAILED },
        { "d", "ads", "", EXIT_FAILED },
        { "c", "ads", "10.0.0.2", EXIT_FAILED },
        { "c", "", "b.example", EXIT_FAILED },
    };
    struct options o = { .cluster = "c", .job = "ads", .days = 2 };
    char dir[] = "/tmp/psctl-cert-XXXXXX", admin[128], key[128], host[64] = "10.0.0.1";
    const char *words[] = { dir };

    (void)state;
    assert_non_null(mkdtemp(dir));
    o.hosts.n = 1;
    o.hosts.items[0] = host;
    assert_int_equal(cert_run(&o, words, 1), EXIT_ANSWERED);
    path_of(dir, "admin", "pem", admin);
    path_of(dir, "admin", "key", key);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        unlink(admin);
        unlink(key);
        snprintf(o.cluster, sizeof o.cluster, "%s", rows[i].cluster);
        snprintf(o.job, sizeof o.job, "%s", rows[i].job);
        snprintf(host, sizeof host, "%s", rows[i].host);
        o.hosts.n = host[0] != '\0';
        assert_int_equal(cert_run(&o, words, 1), rows[i].code);
        assert_int_equal(access(admin, F_OK) == 0, rows[i].code == EXIT_ANSWERED);
    }
    remove_all(dir);
}

/* It would give a certificate another name beside its own: one that another host or cluster answers to. */
static void a_name_that_no_certificate_can_have_is_refused_before_anything_is_made(void **state)
{
    static const struct {
        const char *cluster, *job, *host;
    } rows[] = {
        { "a/b", "", "a" },
        { "", "", "a" },
        { "a,DNS:evil", "", "a" },
        { "a,URI:psd://a/admin", "", "a" },
        { "a\nDNS:evil", "", "a" },
        { "a\r", "", "a" },
        { "a b", "", "a" },
        { "\xc3\xa4", "", "a" },
        { "0123456789012345678901234567890123456789012345678901234567890123", "", "a" },
        { "c", "a job", "a" },
        { "c", "ads,DNS:evil", "a" },
        { "c", "ads/admin", "a" },
        { "c", "ads\n", "a" },
        { "c", "0123456789012345678901234567890123456789012345678901234567890123", "a" },
        { "c", "", "" },
        { "c", "", "DNS:evil" },
        { "c", "", "a,DNS:evil" },
        { "c", "", "a\nDNS:evil" },
        { "c", "", "a=b" },
        { "c", "", "a b" },
        { "c", "", "10.0.0.1:7070" },
        { "c", "", "e*l" },
        { "c", "", "*." },
    };
    char dir[] = "/tmp/psctl-cert-XXXXXX", sub[64], host[128];
    struct options o = { .days = 2 };
    const char *words[] = { sub };

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(sub, sizeof sub, "%s/tls", dir);
    o.hosts.n = 1;
    o.hosts.items[0] = host;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        snprintf(o.cluster, sizeof o.cluster, "%s", rows[i].cluster);
        snprintf(o.job, sizeof o.job, "%s", rows[i].job);
        snprintf(host, sizeof host, "%s", rows[i].host);
        if (cert_run(&o, words, 1) != EXIT_MISUSED || access(sub, F_OK) == 0)
            fail_msg("row %zu is not refused", i);
    }
    rmdir(dir);
}

/* A job may be named by its settings: "=" ends no name. */
static void a_name_with_signs_is_the_only_one_of_its_kind(void **state)
{
    struct options o = { .cluster = "c:1", .job = "ads-lr=0.1;x", .days = 2 };
    char dir[] = "/tmp/psctl-cert-XXXXXX", ca[128], cert[128], key[128],
         host[] = "*.ps.example";
    const char *words[] = { dir };
    struct tls_context *t;
    struct err err = { 0 };

    (void)state;
    assert_non_null(mkdtemp(dir));
    o.hosts.n = 1;
    o.hosts.items[0] = host;
    assert_int_equal(cert_run(&o, words, 1), EXIT_ANSWERED);
    assert_int_equal(cert_run(&o, words, 1), EXIT_ANSWERED); /* they are as asked for */
    path_of(dir, "ca", "pem", ca);
    path_of(dir, "worker", "pem", cert);
    path_of(dir, "worker", "key", key);
    assert_int_equal(tls_context_open(ca, cert, key, &t, &err), 0); /* has one name psd:// */
    tls_context_free(t);
    remove_all(dir);
    assert_int_equal(cert_run(&o, (const char *[]){ "/nowhere/tls" }, 1), EXIT_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_command_makes_all_that_a_trial_needs),
        cmocka_unit_test(what_is_there_of_another_job_cluster_or_host_is_refused),
        cmocka_unit_test(
            a_name_that_no_certificate_can_have_is_refused_before_anything_is_made),
        cmocka_unit_test(a_name_with_signs_is_the_only_one_of_its_kind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
