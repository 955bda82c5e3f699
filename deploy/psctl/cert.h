/*
 * psctl cert DIR: certificates for TLS, of a CA of one's own. What is there already stays, so the same command makes
 * what is missing: a certificate that is to be made anew is removed before.
 *
 *     ca.pem, ca.key          the CA; ca.key signs, and belongs on no server
 *     node.pem, node.key      of psd; with the names of --host, and of this machine's loopback
 *     worker.pem ...          of clients: worker (of --job, or of all jobs), reader, operator, admin
 */
#ifndef DEPLOY_PSCTL_CERT_H
#define DEPLOY_PSCTL_CERT_H

#include "deploy/psctl/options.h"

/* words[0]: DIR, which is made. */
int cert_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
