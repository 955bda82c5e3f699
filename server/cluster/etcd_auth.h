/*
 * Who asks etcd: a user's token, which its gateway gives for a name and a password, and which each request carries.
 * etcd forgets it after a time without use, when it starts again, or when its users change: then another one is
 * asked for.
 */
#ifndef SERVER_CLUSTER_ETCD_AUTH_H
#define SERVER_CLUSTER_ETCD_AUTH_H

#include "common/status.h"
#include "server/cluster/etcd_http.h"

#define ETCD_AUTH_RETRY_MS 500u /* each try costs etcd the check of a password */

struct etcd_auth {
    const char *user, *password_file; /* borrowed; user "": requests carry nothing */
    char *token;                      /* owned; NULL: none */
    struct etcd_http_transfer transfer;
    uint64_t retry_ms; /* the next try */
    struct err err;    /* of the last try that failed */
};

/* PS_ESETTING: one of both is given alone. */
int etcd_auth_init(struct etcd_auth *a, const char *user, const char *password_file,
                   struct etcd_http *http, void (*on_done)(struct etcd_http_transfer *t),
                   struct err *err) MUST_CHECK;
void etcd_auth_deinit(struct etcd_auth *a);

/* Requests have to wait for a token. */
bool etcd_auth_is_awaited(const struct etcd_auth *a);

/* Asks for one, unless that is under way, or too early; a->err says why there is none. */
void etcd_auth_ask(struct etcd_auth *a, const char *address, uint64_t now_ms,
                   uint64_t timeout_ms);

/* of on_done: what has come. A failure, with a->err: asked again after a while. */
int etcd_auth_read(struct etcd_auth *a, uint64_t now_ms);

/* The next request waits for another token. */
void etcd_auth_drop(struct etcd_auth *a);

/* Whether an error of etcd's, its gRPC code and text, is about who asks. A token that it does not know is forgotten. */
bool etcd_auth_is_refused(struct etcd_auth *a, int code, const char *text);

/* What to do about a request that etcd refuses for who asks: the rest of a sentence, or "". */
const char *etcd_auth_hint(const struct etcd_auth *a, int code, const char *text);

#endif
