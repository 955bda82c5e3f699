#include "server/certificates.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/number.h"

#define DAY_S 86400
#define DAY_MS (UINT64_C(1000) * DAY_S)

void certificates_report(struct tls_context *t, struct stats_tls *ret)
{
    struct tls_expiry expiry;

    *ret = (struct stats_tls){ .is_on = t != NULL };
    if (!t)
        return;
    tls_context_expiry(t, &expiry);
    ret->own_unix_ms = (uint64_t)expiry.unix_s * 1000;
    ret->ca_unix_ms = (uint64_t)expiry.ca_unix_s * 1000;
    ret->fault = tls_fault_text(tls_context_fault(t));
}

enum log_line_level certificates_text(const struct tls_expiry *expiry, int64_t now_unix_s,
                                      char dst[static CERTIFICATES_TEXT_MAX])
{
    const bool is_ca = expiry->ca_unix_s && expiry->ca_unix_s < expiry->unix_s;
    const int64_t left_s = (is_ca ? expiry->ca_unix_s : expiry->unix_s) - now_unix_s;
    const char *which = is_ca ? "CA's certificate (tls-ca)" : "certificate (tls-cert)";

    if (left_s <= 0) {
        snprintf(dst, CERTIFICATES_TEXT_MAX,
                 "tls: the %s has expired %" PRId64
                 " days ago: no connection comes about until there is a new one, and psd reads "
                 "it (SIGHUP)",
                 which, -left_s / DAY_S);
        return LOG_LINE_LEVEL_ERROR;
    }
    if (left_s < CERTIFICATES_SOON_DAYS * DAY_S) {
        snprintf(dst, CERTIFICATES_TEXT_MAX,
                 "tls: the %s expires in %" PRId64
                 " day%s: renew it, and let psd read it (SIGHUP)",
                 which, left_s / DAY_S, NUMBER_PLURAL(left_s / DAY_S));
        return LOG_LINE_LEVEL_WARN;
    }
    snprintf(dst, CERTIFICATES_TEXT_MAX, "tls: the %s expires in %" PRId64 " days", which,
             left_s / DAY_S);
    return LOG_LINE_LEVEL_INFO;
}

bool certificates_tick(struct certificates *c, struct tls_context *t, uint64_t now_ms)
{
    char text[CERTIFICATES_TEXT_MAX];
    struct tls_expiry expiry;
    enum log_line_level level;
    enum tls_fault fault;

    if (!t)
        return false;
    tls_context_expiry(t, &expiry);
    fault = tls_context_fault(t);
    if (c->said_ms && now_ms - c->said_ms < DAY_MS && fault == c->said_fault &&
        memcmp(&expiry, &c->said, sizeof expiry) == 0)
        return false;
    c->said_ms = now_ms;
    c->said = expiry;
    c->said_fault = fault;
    level = certificates_text(&expiry, (int64_t)(clock_unix_ms() / 1000), text);
    log_line_write(level, "%s", text);
    if (fault != TLS_FAULT_NONE)
        log_line_warn("tls: the certificate (tls-cert) %s", tls_fault_text(fault));
    return true;
}
