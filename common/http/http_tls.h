/*
 * HTTPS of http_server.h: libmicrohttpd's TLS, which is GnuTLS, with the certificate, the key and the CA of a
 * tls_context, as they are at each handshake: a reload of the context counts for connections to come. TLS 1.3; no
 * session is resumed.
 *
 * A client may show a certificate. Whether it is good is asked when a request wants to know: http_tls_peer().
 */
#ifndef COMMON_HTTP_HTTP_TLS_H
#define COMMON_HTTP_HTTP_TLS_H

#include <microhttpd.h>

#include "common/tls.h"

#define HTTP_TLS_N_OPTIONS 3u

/* For MHD_start_daemon() with MHD_USE_TLS: the MHD_OPTION_ARRAY. */
void http_tls_options(struct MHD_OptionItem ret[static HTTP_TLS_N_OPTIONS]);

/* When libmicrohttpd says that the connection has started: before its handshake. t is borrowed until its end. */
void http_tls_begin(struct MHD_Connection *connection, struct tls_context *t);

/* Who the client is. -ENOENT: it has shown no certificate; else why that is refused. */
int http_tls_peer(struct MHD_Connection *connection, struct tls_context *t, struct access *ret)
    MUST_CHECK;

#endif
