/* What the log says of a node's certificates, and when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/certificates.h"
#include "tests/support/tls_dir.h"

#define DAY_S INT64_C(86400)
#define NOW_S (20000 * DAY_S)

static void the_sentence_says_how_long_they_are_good(void **state)
{
    static const struct {
        int64_t own_days, ca_days; /* from now; 0: there is none */
        enum log_line_level level;
        const char *text;
    } cases[] = {
        { 90, 365, LOG_LINE_LEVEL_INFO, "tls: the certificate (tls-cert) expires in 90 days" },
        { 90, 90, LOG_LINE_LEVEL_INFO, "certificate (tls-cert) expires in 90 days" },
        { 365, 90, LOG_LINE_LEVEL_INFO, "CA's certificate (tls-ca) expires in 90 days" },
        { 14, 365, LOG_LINE_LEVEL_INFO, "expires in 14 days" },
        { 13, 365, LOG_LINE_LEVEL_WARN, "expires in 13 days: renew it" },
        { 365, 1, LOG_LINE_LEVEL_WARN, "CA's certificate (tls-ca) expires in 1 day: renew it" },
        { -3, 365, LOG_LINE_LEVEL_ERROR, "certificate (tls-cert) has expired 3 days ago" },
        { -3, -9, LOG_LINE_LEVEL_ERROR, "CA's certificate (tls-ca) has expired 9 days ago" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct tls_expiry expiry = { NOW_S + cases[i].own_days * DAY_S,
                                           NOW_S + cases[i].ca_days * DAY_S };
        char text[CERTIFICATES_TEXT_MAX];

        if (certificates_text(&expiry, NOW_S, text) != cases[i].level)
            fail_msg("case %zu has another level: %s", i, text);
        if (!strstr(text, cases[i].text))
            fail_msg("no \"%s\" in: %s", cases[i].text, text);
    }
}

static void the_log_has_it_at_first_once_a_day_and_after_a_reload(void **state)
{
    const uint64_t day_ms = 86400000;
    struct certificates c = { 0 };
    struct tls_dir dir;
    struct tls_context *t;
    char cert[128], key[128], ca[128];
    struct err err;

    (void)state;
    tls_dir_make(&dir);
    t = tls_dir_context(&dir, "expired", "ca");
    assert_false(certificates_tick(&c, NULL, 1000));
    assert_true(certificates_tick(&c, t, 1000));
    assert_false(certificates_tick(&c, t, 1200));
    assert_false(certificates_tick(&c, t, 1000 + day_ms - 1));
    assert_true(certificates_tick(&c, t, 1000 + day_ms));
    assert_false(certificates_tick(&c, t, 1001 + day_ms));
    snprintf(cert, sizeof cert, "%s/node.pem", dir.path);
    snprintf(key, sizeof key, "%s/node.key", dir.path);
    snprintf(ca, sizeof ca, "%s/ca.pem", dir.path);
    assert_int_equal(
        tls_context_reload(t, &(struct tls_files){ .ca = ca, .cert = cert, .key = key }, &err),
        0);
    assert_true(certificates_tick(&c, t, 1002 + day_ms));
    assert_false(certificates_tick(&c, t, 1003 + day_ms));
    tls_context_free(t);
    tls_dir_remove(&dir);
}

/* Once, with the other line, and again when a reload brings it. */
static void the_log_and_the_report_have_what_is_wrong_with_it(void **state)
{
    struct certificates c = { 0 };
    struct stats_tls report;
    struct tls_dir dir;
    struct tls_context *t;
    FILE *log = tmpfile();
    const int own = dup(STDERR_FILENO);
    char said[2048] = "", *line;

    (void)state;
    assert_non_null(log);
    tls_dir_make(&dir);
    t = tls_dir_context(&dir, "stranger", "ca");
    assert_true(dup2(fileno(log), STDERR_FILENO) >= 0);
    assert_true(certificates_tick(&c, t, 1000));
    assert_false(certificates_tick(&c, t, 1200));
    assert_true(dup2(own, STDERR_FILENO) >= 0);
    close(own);
    rewind(log);
    assert_true(fread(said, 1, sizeof said - 1, log) > 0);
    (void)fclose(log);
    line = strstr(said, "tls: the certificate (tls-cert) is not of the CA in tls-ca");
    assert_non_null(line);
    assert_null(strstr(line + strlen("tls: the certificate (tls-cert)"),
                       "(tls-cert) is not of the CA"));
    certificates_report(t, &report);
    assert_non_null(strstr(report.fault, "is not of the CA in tls-ca"));
    tls_context_free(t);
    t = tls_dir_context(&dir, "node", "ca");
    certificates_report(t, &report);
    assert_string_equal(report.fault, "");
    tls_context_free(t);
    tls_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sentence_says_how_long_they_are_good),
        cmocka_unit_test(the_log_has_it_at_first_once_a_day_and_after_a_reload),
        cmocka_unit_test(the_log_and_the_report_have_what_is_wrong_with_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
