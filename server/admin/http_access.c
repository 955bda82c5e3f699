#include "server/admin/http_access.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/memory.h"

struct http_access {
    struct tls_context *tls; /* borrowed; NULL: plain */
    pthread_mutex_t lock;    /* of the rest: a reload changes it */
    bool wants_role;
    char token[TOKEN_FILE_MAX];
    struct token_list tokens;
};

struct http_access *http_access_new(struct tls_context *tls)
{
    struct http_access *a = memory_alloc(sizeof *a);

    *a = (struct http_access){ .tls = tls };
    pthread_mutex_init(&a->lock, NULL);
    return a;
}

void http_access_set(struct http_access *a, bool wants_role, const char *token,
                     const struct token_list *tokens)
{
    pthread_mutex_lock(&a->lock);
    a->wants_role = wants_role;
    strncpy(a->token, token, sizeof a->token - 1);
    a->tokens = *tokens;
    pthread_mutex_unlock(&a->lock);
}

void http_access_free(struct http_access *a)
{
    if (!a)
        return;
    pthread_mutex_destroy(&a->lock);
    free(a);
}

static bool wants_role(struct http_access *a)
{
    bool wants;

    pthread_mutex_lock(&a->lock);
    wants = a->wants_role;
    pthread_mutex_unlock(&a->lock);
    return wants;
}

static bool has_tokens(struct http_access *a)
{
    bool has;

    pthread_mutex_lock(&a->lock);
    has = a->token[0] || a->tokens.n;
    pthread_mutex_unlock(&a->lock);
    return has;
}

static bool may_read(const struct access *peer)
{
    return access_may_greet(peer, "watcher");
}

/* "" is no token. */
static bool is_token(struct http_access *a, const char *shown)
{
    struct access peer;
    bool is_good;

    pthread_mutex_lock(&a->lock);
    is_good = (a->token[0] || a->tokens.n) &&
              token_file_find(a->token, &a->tokens, shown, &peer) && may_read(&peer);
    pthread_mutex_unlock(&a->lock);
    return is_good;
}

/* Has it shown a token that is good? *ret_has_shown: has it shown one? */
static bool shows_token(struct http_access *a, struct MHD_Connection *connection,
                        bool *ret_has_shown)
{
    static const char scheme[] = "Bearer ";
    const char *header =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    char *password = NULL, *name;
    bool is_good;

    *ret_has_shown = header != NULL;
    if (!header)
        return false;
    if (strncasecmp(header, scheme, sizeof scheme - 1) == 0)
        return is_token(a, header + sizeof scheme - 1);
    name = MHD_basic_auth_get_username_password(connection, &password);
    is_good = password && is_token(a, password);
    MHD_free(name);
    MHD_free(password);
    return is_good;
}

static bool is_for_all(const char *url)
{
    return strcmp(url, "/healthz") == 0 || strcmp(url, "/readyz") == 0;
}

/* Static storage, with a line end. */
static const char *certificate_sentence(int status)
{
    switch (status) {
    case PS_ETLSEXPIRED:
        return "your certificate has expired, or is not valid yet\n";
    case PS_ETLSNAME:
        return "your certificate has no name psd://CLUSTER/ROLE of this cluster\n";
    case PS_ETLSUSE:
        return "your certificate is not for clients: extendedKeyUsage lacks clientAuth\n";
    default:
        return "your certificate is not of the CA of this cluster (--tls-ca)\n";
    }
}

unsigned http_access_check(struct http_access *a, struct MHD_Connection *connection,
                           const char *url, const char **ret_sentence,
                           const char **ret_challenge)
{
    struct access peer;
    bool has_shown;
    int status;

    *ret_challenge = NULL;
    if (is_for_all(url) || !wants_role(a))
        return 0;
    status = a->tls ? http_tls_peer(connection, a->tls, &peer) : -ENOENT;
    if (!status && may_read(&peer))
        return 0;
    if (shows_token(a, connection, &has_shown))
        return 0;
    if (status != -ENOENT) {
        *ret_sentence = certificate_sentence(status);
        return MHD_HTTP_FORBIDDEN;
    }
    if (!has_tokens(a)) {
        *ret_sentence = "a client certificate of this cluster is wanted; /healthz and /readyz "
                        "are for all\n";
        return MHD_HTTP_FORBIDDEN;
    }
    *ret_challenge = "Basic realm=\"psd: any name, and a token\", charset=\"UTF-8\"";
    *ret_sentence = has_shown
                        ? "the token is a wrong one (--token-file)\n"
                        : "a token of --token-file is wanted (Authorization: Bearer TOKEN), or "
                          "a client certificate with TLS; /healthz and /readyz are for all\n";
    return MHD_HTTP_UNAUTHORIZED;
}
