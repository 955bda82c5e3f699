/* How long this node's certificates are good, and whether peers will take its own: for reports, and for the log. */
#ifndef SERVER_CERTIFICATES_H
#define SERVER_CERTIFICATES_H

#include "common/log_line.h"
#include "common/tls.h"
#include "server/admin/stats.h"

#define CERTIFICATES_SOON_DAYS 14 /* from here on it is a warning */
#define CERTIFICATES_TEXT_MAX 256

/* Of the main thread; zeroed at first. */
struct certificates {
    uint64_t said_ms; /* when the log had the last line; 0: never */
    struct tls_expiry said;
    enum tls_fault said_fault;
};

/* t: NULL without TLS. */
void certificates_report(struct tls_context *t, struct stats_tls *ret);

/* The sentence for the log, and its level: from CERTIFICATES_SOON_DAYS on a warning, an error once one has expired. */
enum log_line_level certificates_text(const struct tls_expiry *expiry, int64_t now_unix_s,
                                      char dst[static CERTIFICATES_TEXT_MAX]);

/* Called often. True if it has written its lines: at first, once a day, and after a reload. */
bool certificates_tick(struct certificates *c, struct tls_context *t, uint64_t now_ms);

#endif
