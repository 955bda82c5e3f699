#include "worker/worker_tls.h"

#include <inttypes.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/tls.h"

#define SOON_DAYS 14
#define DAY_S 86400

static void log_days(const char *setting, int64_t unix_s)
{
    const int64_t left_s = unix_s - (int64_t)(clock_unix_ms() / 1000);

    if (!unix_s || left_s > SOON_DAYS * DAY_S)
        return;
    if (left_s <= 0)
        log_line_error("%s: the certificate has expired: servers refuse it", setting);
    else
        log_line_warn("%s: the certificate expires in %" PRId64 " days", setting,
                      left_s / DAY_S);
}

/* Days that are left, if they are few. */
static void log_certificates(struct tls_context *t)
{
    struct tls_expiry expiry;

    tls_context_expiry(t, &expiry);
    log_days("--tls-cert", expiry.unix_s);
    log_days("--tls-ca", expiry.ca_unix_s);
}

void worker_tls_reload(void *settings)
{
    const struct settings *s = settings;
    struct err err;

    if (!s->tls) {
        log_line_info("SIGHUP: there is nothing to read again: this worker speaks no TLS");
        return;
    }
    if (tls_context_reload(
            s->tls, &(struct tls_files){ s->tls_ca, s->tls_cert, s->tls_key, false }, &err)) {
        log_line_error("SIGHUP: the certificates stay as they are: %s", err.text);
        return;
    }
    log_line_info("SIGHUP: the certificates were read again, for connections to come");
    log_certificates(s->tls);
}

int worker_tls_open(struct settings *s, struct err *err)
{
    int status;

    if (s->local || s->checkpoint[0] || s->tls)
        return 0;
    status = tls_context_open(s->tls_ca, s->tls_cert, s->tls_key, &s->tls, err);
    if (!status && s->tls)
        log_certificates(s->tls);
    return status;
}
