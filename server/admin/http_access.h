/*
 * Who may read the stats pages. A page wants a role: by the client's certificate, where TLS is on, or by a token in the
 * header Authorization, as "Bearer TOKEN" or, for browsers, as a password with any name. Every role may read reports
 * (access.h), so every role may read these pages, which have the same in them. /healthz and /readyz are for all: who
 * starts and restarts psd has no role.
 *
 * Without TLS the pages of an address of this machine are for all, too.
 */
#ifndef SERVER_ADMIN_HTTP_ACCESS_H
#define SERVER_ADMIN_HTTP_ACCESS_H

#include "common/http/http_tls.h"
#include "common/token_file.h"

struct http_access;

/* Pages are for all, until http_access_set(). tls: of the server, borrowed; NULL: it is plain. Any thread may ask from
 * here on. */
struct http_access *http_access_new(struct tls_context *tls);

/* Of requests to come: whether pages want a role, and the tokens that have one; copied. "" and n 0: there are none. */
void http_access_set(struct http_access *a, bool wants_role, const char *token,
                     const struct token_list *tokens);

/* 0: the page may be sent; else the code and the sentence of a refusal. *ret_challenge: of the header WWW-Authenticate;
 * NULL: it has none. */
unsigned http_access_check(struct http_access *a, struct MHD_Connection *connection,
                           const char *url, const char **ret_sentence,
                           const char **ret_challenge) MUST_CHECK;

/* NULL is fine. */
void http_access_free(struct http_access *a);

#endif
