/*
 * Makes certificates for tls.h: of a CA of one's own, and of those that it signs. For a trial, for a small cluster,
 * and for tests; who has a CA gives its certificates the same names.
 *
 * A certificate has a key of P-256, and among its names psd://CLUSTER/ROLE[/JOB] (access.h); a node's also the names
 * and addresses of its hosts.
 */
#ifndef COMMON_TLS_CERT_H
#define COMMON_TLS_CERT_H

#include "common/access.h"
#include "common/status.h"

#define TLS_CERT_HOSTS_MAX 64u

/* Whether a certificate can be for it: an address, or a name of letters, digits, ".", "-" and "_", maybe behind
 * "*.". */
bool tls_cert_is_host(const char *host);

/* All is borrowed. */
struct tls_cert_plan {
    const char *cert, *key;       /* files to be made: mode 0600, and none may be there */
    const char *ca_cert, *ca_key; /* files of the CA that signs; NULL: it is one itself */
    const char *name;             /* for people (CN) */
    struct access access;         /* not of a CA */
    const char *const *hosts;     /* [n_hosts]: names, or addresses as numbers */
    uint32_t n_hosts;
    int64_t from_unix_s, until_unix_s;
};

/* -EEXIST, -errno, -ENOMEM, PS_ESETTING: what the CA's files hold. err: one sentence. What was made of a failure is
 * removed. */
int tls_cert_make(const struct tls_cert_plan *plan, struct err *err) MUST_CHECK;

/* Whether the certificate in the file plan->cert has the names that the plan asks for: psd://..., and each host, maybe
 * among others; a worker's may be of any job if the plan names none. -errno; PS_ESETTING: it differs, and err says in a
 * sentence how. */
int tls_cert_compare(const struct tls_cert_plan *plan, struct err *err) MUST_CHECK;

#endif
