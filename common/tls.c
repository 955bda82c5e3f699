/* The context first, then the names of a certificate, then a session. */
#include "common/tls.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <uv.h>

#include "common/memory.h"

#define RECORD_BYTES 16384u       /* of plain text, at most */
#define RECORD_OVERHEAD_BYTES 22u /* header, type, tag of AES-GCM */
#define REKEY_BYTES \
    (UINT64_C(1)    \
     << 36) /* 2^22 records of the 2^24.5 that one key of AES-GCM is good for (RFC 8446, 5.5) */

/* A peer's new keys cost us more than it, and no client of ours changes them in a hello: so many at once, and one more
 * for so many bytes that come. */
#define KEY_UPDATES_MAX 32u
#define KEY_UPDATE_BYTES (UINT64_C(1) << 20)

/* The library reserves at once what a message says that it will have, and believes 128 KiB of a peer that nobody knows
 * yet. */
#define HELLO_BYTES_MAX 16384u
#define CERTIFICATES_BYTES_MAX 32768u
#define HELLO_HEAD_BYTES 9u /* of its record and of its message */

struct tls_context {
    _Atomic uint32_t n_users;         /* its owner, and its sessions */
    pthread_mutex_t lock;             /* of what a reload changes: */
    SSL_CTX *ssl;                     /* owned */
    char cluster[ACCESS_CLUSTER_MAX]; /* of our own certificate; "": we have none */
    struct tls_expiry expiry;
    enum tls_fault fault;
    _Atomic bool needs_no_certificate;
    BIO_METHOD *bio; /* owned */
};

struct tls_session {
    struct tls_context *context; /* its user */
    SSL *ssl;                    /* owned */
    bool is_server;
    int status;        /* of a callback that has found why it fails; 0: none has */
    const uint8_t *in; /* borrowed: in_bytes that the next call may read */
    size_t in_bytes;
    struct bytes *out;    /* borrowed, while a call writes: there; else to `reply` */
    struct bytes reply;   /* owned */
    uint64_t rekey_bytes; /* written since the key was new */
    uint64_t fed_bytes;   /* since the peer's key updates were counted down */
    uint32_t n_key_updates;
    uint8_t head[HELLO_HEAD_BYTES]; /* the first bytes that came; n_head of them */
    uint32_t n_head;
    bool has_peer;
    char cluster[ACCESS_CLUSTER_MAX]; /* our own, when it began */
    struct access peer;
};

/* ---- bytes in and out ---- */

static int bio_read(BIO *bio, char *dst, size_t max_bytes, size_t *ret_bytes)
{
    struct tls_session *s = BIO_get_data(bio);
    const size_t n = s->in_bytes < max_bytes ? s->in_bytes : max_bytes;

    BIO_clear_retry_flags(bio);
    *ret_bytes = n;
    if (!n) {
        BIO_set_retry_read(bio);
        return 0;
    }
    memcpy(dst, s->in, n);
    s->in += n;
    s->in_bytes -= n;
    return 1;
}

static int bio_write(BIO *bio, const char *bytes, size_t n_bytes, size_t *ret_bytes)
{
    struct tls_session *s = BIO_get_data(bio);
    struct bytes *out = s->out ? s->out : &s->reply;
    uint8_t *space = bytes_reserve(out, n_bytes);

    BIO_clear_retry_flags(bio);
    *ret_bytes = 0;
    if (!space) {
        s->status = -ENOMEM;
        return 0;
    }
    memcpy(space, bytes, n_bytes);
    bytes_commit(out, n_bytes);
    *ret_bytes = n_bytes;
    return 1;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static int bio_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

static BIO_METHOD *make_bio_method(void)
{
    BIO_METHOD *bio = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "psd");

    if (bio) {
        BIO_meth_set_read_ex(bio, bio_read);
        BIO_meth_set_write_ex(bio, bio_write);
        BIO_meth_set_ctrl(bio, bio_control);
        BIO_meth_set_create(bio, bio_create);
    }
    return bio;
}

/* ---- names ---- */

/* Its one name psd://: with two, or one that cannot be read, the order of names would say what the peer may do. */
static bool read_names(X509 *cert, struct access *ret)
{
    GENERAL_NAMES *all = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    struct access found;
    uint32_t n = 0, n_good = 0;

    for (int i = 0; i < sk_GENERAL_NAME_num(all); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(all, i);
        const ASN1_IA5STRING *uri = name->d.uniformResourceIdentifier;
        const char *text;
        size_t n_bytes;

        if (name->type != GEN_URI)
            continue;
        text = (const char *)ASN1_STRING_get0_data(uri);
        n_bytes = (size_t)ASN1_STRING_length(uri);
        n += n_bytes >= 4 && strncasecmp(text, "psd:", 4) == 0;
        n_good += access_parse_uri(text, n_bytes, &found);
    }
    GENERAL_NAMES_free(all);
    if (n != 1 || n_good != 1)
        return false;
    *ret = found;
    return true;
}

static bool is_of_cluster(const struct access *peer, const char *cluster)
{
    return !cluster[0] || strcmp(peer->cluster, cluster) == 0;
}

/* Of the peer's own certificate, which is of the CA. */
static bool check_names(struct tls_session *s, X509 *cert)
{
    struct access peer;

    if (!read_names(cert, &peer) || !is_of_cluster(&peer, s->cluster) ||
        (!s->is_server && peer.role != ACCESS_NODE))
        return false;
    s->peer = peer;
    s->has_peer = true;
    return true;
}

static int on_verify(int is_good, X509_STORE_CTX *store)
{
    const SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct tls_session *s = SSL_get_app_data(ssl);

    if (!is_good || X509_STORE_CTX_get_error_depth(store) > 0)
        return is_good;
    if (check_names(s, X509_STORE_CTX_get_current_cert(store)))
        return 1;
    X509_STORE_CTX_set_error(store,
                             X509_V_ERR_HOSTNAME_MISMATCH); /* alert 42, "bad certificate" */
    return 0;
}

/* ---- contexts ---- */

static int64_t unix_s(const ASN1_TIME *time)
{
    struct tm tm = { 0 };

    return time && ASN1_TIME_to_tm(time, &tm) ? (int64_t)timegm(&tm) : 0;
}

static int64_t ca_expiry(SSL_CTX *ssl)
{
    STACK_OF(X509_OBJECT) *all = X509_STORE_get0_objects(SSL_CTX_get_cert_store(ssl));
    int64_t first = 0;

    for (int i = 0; i < sk_X509_OBJECT_num(all); i++) {
        X509 *cert = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(all, i));
        const int64_t s = cert ? unix_s(X509_get0_notAfter(cert)) : 0;

        if (s && (!first || s < first))
            first = s;
    }
    return first;
}

static int refuse_file(struct err *err, const char *setting, const char *path)
{
    const unsigned long code = ERR_get_error();
    const char *reason = ERR_reason_error_string(code);
    int status;

    if (ERR_SYSTEM_ERROR(code))
        reason = strerrordesc_np(ERR_GET_REASON(code));
    status = err_set(err, PS_ESETTING, "%s: cannot use %.100s: %.80s", setting, path,
                     reason ? reason : "it is no PEM file of this kind");
    ERR_clear_error();
    return status;
}

/* Without a passphrase: nobody is there who could type one. */
static int no_passphrase(char *dst, int max_bytes, int is_written, void *owner)
{
    (void)dst, (void)max_bytes, (void)is_written, (void)owner;
    return -1;
}

/* Of our own certificate, up to the CA, which the peer has: from the file, or else from the CA's. Once, here: OpenSSL
 * would build and verify it in each handshake, and show the CA's certificate, too, which the peer would decode. */
static bool build_chain(SSL_CTX *ssl)
{
    STACK_OF(X509) *chain = NULL;

    SSL_CTX_set_mode(ssl, SSL_MODE_NO_AUTO_CHAIN);
    if (SSL_CTX_get0_chain_certs(ssl, &chain) != 1)
        return false;
    return sk_X509_num(chain) > 0 ||
           SSL_CTX_build_cert_chain(ssl, SSL_BUILD_CHAIN_FLAG_NO_ROOT |
                                             SSL_BUILD_CHAIN_FLAG_IGNORE_ERROR |
                                             SSL_BUILD_CHAIN_FLAG_CLEAR_ERROR) > 0;
}

static int load_own(SSL_CTX *ssl, const struct tls_files *files, struct access *ret,
                    struct tls_expiry *expiry, struct err *err)
{
    X509 *cert;

    if (SSL_CTX_use_certificate_chain_file(ssl, files->cert) != 1)
        return refuse_file(err, "tls-cert", files->cert);
    if (SSL_CTX_use_PrivateKey_file(ssl, files->key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(ssl) != 1)
        return refuse_file(err, "tls-key", files->key);
    if (!build_chain(ssl))
        return refuse_file(err, "tls-cert", files->cert);
    cert = SSL_CTX_get0_certificate(ssl);
    if (!read_names(cert, ret))
        return err_set(err, PS_ESETTING,
                       "tls-cert: %.100s has not one name psd://CLUSTER/ROLE[/JOB] (URI in "
                       "subjectAltName); psctl cert makes one that has",
                       files->cert);
    if (files->is_node && ret->role != ACCESS_NODE)
        return err_set(err, PS_ESETTING,
                       "tls-cert: %.100s is of role %s; a psd has one of role node",
                       files->cert, access_role_name(ret->role));
    expiry->unix_s = unix_s(X509_get0_notAfter(cert));
    return 0;
}

static int check_files(const struct tls_files *files, struct err *err)
{
    if (!files->ca[0])
        return err_set(err, PS_ESETTING, "tls-ca: TLS needs the certificate of a CA");
    if (!files->cert[0] != !files->key[0])
        return err_set(err, PS_ESETTING, "tls-cert and tls-key: one is given, expected both");
    return 0;
}

/* No tickets: a resumed session would be let in without a look at its certificate, which may have expired since, or
 * whose CA may be gone. After a restart, when all clients come at once, there would be none to resume. */
static int configure(SSL_CTX *ssl)
{
    SSL_CTX_set_default_passwd_cb(ssl, no_passphrase);
    SSL_CTX_set_options(ssl,
                        SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_max_cert_list(ssl, CERTIFICATES_BYTES_MAX);
    /* AES first: most servers' CPUs do it at 3 GB/s. */
    return SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) == 1 &&
                   SSL_CTX_set_num_tickets(ssl, 0) == 1 &&
                   SSL_CTX_set_ciphersuites(ssl,
                                            "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                                            "TLS_CHACHA20_POLY1305_SHA256") == 1
               ? 0
               : -ENOMEM;
}

/* As a peer would check it; when it ends is another matter. 0, or the library's reason. */
static long check_own(SSL_CTX *ssl, X509 *cert)
{
    X509_STORE_CTX *store = X509_STORE_CTX_new();
    STACK_OF(X509) *chain = NULL;
    long why = X509_V_ERR_OUT_OF_MEM;

    if (store && SSL_CTX_get0_chain_certs(ssl, &chain) == 1 &&
        X509_STORE_CTX_init(store, SSL_CTX_get_cert_store(ssl), cert, chain) == 1) {
        X509_STORE_CTX_set_flags(store, X509_V_FLAG_NO_CHECK_TIME);
        why = X509_verify_cert(store) == 1 ? X509_V_OK : X509_STORE_CTX_get_error(store);
    }
    X509_STORE_CTX_free(store);
    ERR_clear_error();
    return why;
}

static enum tls_fault find_fault(SSL_CTX *ssl, enum access_role role)
{
    X509 *cert = SSL_CTX_get0_certificate(ssl);
    const long why = check_own(ssl, cert);

    if (why != X509_V_OK)
        return why == X509_V_ERR_OUT_OF_MEM ? TLS_FAULT_NONE : TLS_FAULT_CA;
    if (role == ACCESS_NODE && X509_check_purpose(cert, X509_PURPOSE_SSL_SERVER, 0) != 1)
        return TLS_FAULT_SERVER;
    return X509_check_purpose(cert, X509_PURPOSE_SSL_CLIENT, 0) == 1 ? TLS_FAULT_NONE
                                                                     : TLS_FAULT_CLIENT;
}

/* What tls_context_reload() changes. */
struct loaded {
    SSL_CTX *ssl; /* owned */
    char cluster[ACCESS_CLUSTER_MAX];
    struct tls_expiry expiry;
    enum tls_fault fault;
};

static int load(const struct tls_files *files, struct loaded *ret, struct err *err)
{
    struct access own = { 0 };
    int status = check_files(files, err);
    SSL_CTX *ssl = status ? NULL : SSL_CTX_new(TLS_method());

    ERR_clear_error();
    if (status)
        return status;
    if (!ssl || configure(ssl))
        status = err_set(err, -ENOMEM, "tls: no memory");
    else if (SSL_CTX_load_verify_file(ssl, files->ca) != 1)
        status = refuse_file(err, "tls-ca", files->ca);
    else if (files->cert[0])
        status = load_own(ssl, files, &own, &ret->expiry, err);
    if (status) {
        SSL_CTX_free(ssl);
        return status;
    }
    ret->expiry.ca_unix_s = ca_expiry(ssl);
    ret->fault = files->cert[0] ? find_fault(ssl, own.role) : TLS_FAULT_NONE;
    memcpy(ret->cluster, own.cluster, sizeof own.cluster);
    ret->ssl = ssl;
    return 0;
}

/* Gives back what was there before. */
static SSL_CTX *take_loaded(struct tls_context *t, const struct loaded *from)
{
    SSL_CTX *before = t->ssl;

    t->ssl = from->ssl;
    t->expiry = from->expiry;
    t->fault = from->fault;
    memcpy(t->cluster, from->cluster, sizeof t->cluster);
    return before;
}

int tls_context_new(const struct tls_files *files, struct tls_context **ret, struct err *err)
{
    struct tls_context *t = memory_try_alloc(sizeof *t);
    struct loaded loaded = { 0 };
    int status;

    if (!t)
        return err_set(err, -ENOMEM, "tls: no memory");
    status = load(files, &loaded, err);
    t->bio = status ? NULL : make_bio_method();
    if (!status && !t->bio) {
        SSL_CTX_free(loaded.ssl);
        status = err_set(err, -ENOMEM, "tls: no memory");
    }
    if (status) {
        free(t);
        return status;
    }
    (void)take_loaded(t, &loaded);
    pthread_mutex_init(&t->lock, NULL);
    atomic_init(&t->n_users, 1);
    *ret = t;
    return 0;
}

int tls_context_open(const char *ca, const char *cert, const char *key,
                     struct tls_context **ret, struct err *err)
{
    *ret = NULL;
    if (!ca[0] && !cert[0] && !key[0])
        return 0;
    return tls_context_new(&(struct tls_files){ ca, cert, key, false }, ret, err);
}

static bool has_expired(const struct tls_expiry *expiry)
{
    return expiry->unix_s && expiry->unix_s <= (int64_t)time(NULL);
}

int tls_context_reload(struct tls_context *t, const struct tls_files *files, struct err *err)
{
    struct loaded loaded = { 0 };
    SSL_CTX *before;
    int status = load(files, &loaded, err);

    if (status)
        return status;
    pthread_mutex_lock(&t->lock);
    if (has_expired(&loaded.expiry) && !has_expired(&t->expiry)) {
        pthread_mutex_unlock(&t->lock);
        SSL_CTX_free(loaded.ssl);
        return err_set(err, PS_ESETTING, "tls-cert: %.150s has expired", files->cert);
    }
    before = take_loaded(t, &loaded);
    pthread_mutex_unlock(&t->lock);
    SSL_CTX_free(before);
    return 0;
}

void tls_context_expiry(struct tls_context *t, struct tls_expiry *ret)
{
    pthread_mutex_lock(&t->lock);
    *ret = t->expiry;
    pthread_mutex_unlock(&t->lock);
}

enum tls_fault tls_context_fault(struct tls_context *t)
{
    enum tls_fault fault;

    pthread_mutex_lock(&t->lock);
    fault = t->fault;
    pthread_mutex_unlock(&t->lock);
    return fault;
}

void tls_context_set_needs_certificate(struct tls_context *t, bool needs)
{
    atomic_store(&t->needs_no_certificate, !needs);
}

void tls_context_free(struct tls_context *t)
{
    if (!t || atomic_fetch_sub(&t->n_users, 1) > 1)
        return;
    SSL_CTX_free(t->ssl);
    BIO_meth_free(t->bio);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---- what went wrong ---- */

static int verify_status(long why)
{
    switch (why) {
    case X509_V_OK:
        return 0;
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return PS_ETLSEXPIRED;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return PS_ETLSNAME;
    case X509_V_ERR_INVALID_PURPOSE:
        return PS_ETLSUSE;
    default:
        return PS_ETLSCA;
    }
}

/* Of the library's error, which is the peer's alert or what we found in its bytes. */
static int reason_status(int reason)
{
    switch (reason) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_BAD_RECORD_TYPE:
        return PS_ETLSPLAIN;
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
        return PS_ETLSVERSION;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return PS_ETLSNONE;
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
        return PS_ETLSOWNEXPIRED;
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
        return PS_ETLSOWNCA;
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
        return PS_ETLSOWNNAME;
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
        return PS_ETLSOWNUSE;
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        return PS_ETLSOWNNONE;
    case ERR_R_MALLOC_FAILURE:
        return -ENOMEM;
    default:
        return PS_ETLS;
    }
}

/* Of a call that returned `result`, which was no success. */
static int status_of(struct tls_session *s, int result)
{
    const int error = SSL_get_error(s->ssl, result);
    const unsigned long code = ERR_get_error();
    int status = s->status;

    s->status = 0;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return status ? status : -EAGAIN;
    if (error == SSL_ERROR_ZERO_RETURN)
        return UV_EOF;
    if (!status && ERR_GET_REASON(code) == SSL_R_CERTIFICATE_VERIFY_FAILED)
        status = verify_status(SSL_get_verify_result(s->ssl));
    if (!status)
        status = code ? reason_status(ERR_GET_REASON(code)) : PS_ETLS;
    ERR_clear_error();
    return status;
}

/* ---- sessions ---- */

/* The library's view of each message. What has come behind too many updates is not read any more. */
static void on_message(int is_written, int version, int type, const void *bytes, size_t n_bytes,
                       SSL *ssl, void *arg)
{
    struct tls_session *s = arg;

    (void)version, (void)ssl;
    if (is_written || type != SSL3_RT_HANDSHAKE || !n_bytes ||
        *(const uint8_t *)bytes != SSL3_MT_KEY_UPDATE || s->n_key_updates++ < KEY_UPDATES_MAX)
        return;
    s->status = PS_ETLS;
    s->in_bytes = 0;
}

void tls_session_free(struct tls_session *s)
{
    if (!s)
        return;
    SSL_free(s->ssl);
    bytes_deinit(&s->reply);
    tls_context_free(s->context);
    free(s);
}

static int session_new(struct tls_context *t, bool is_server, struct tls_session **ret)
{
    struct tls_session *s = memory_try_alloc(sizeof *s);
    BIO *bio = NULL;

    if (!s)
        return -ENOMEM;
    s->is_server = is_server;
    s->context = t;
    atomic_fetch_add(&t->n_users, 1);
    pthread_mutex_lock(&t->lock);
    s->ssl = SSL_new(t->ssl);
    memcpy(s->cluster, t->cluster, sizeof s->cluster);
    pthread_mutex_unlock(&t->lock);
    if (s->ssl)
        bio = BIO_new(t->bio);
    if (!bio || !SSL_set_app_data(s->ssl, s)) {
        BIO_free(bio);
        tls_session_free(s);
        ERR_clear_error();
        return -ENOMEM;
    }
    BIO_set_data(bio, s);
    SSL_set_bio(s->ssl, bio, bio); /* takes it */
    SSL_set_msg_callback(s->ssl, on_message);
    SSL_set_msg_callback_arg(s->ssl, s);
    *ret = s;
    return 0;
}

int tls_session_accept(struct tls_context *t, struct tls_session **ret)
{
    int status = session_new(t, true, ret);

    if (status)
        return status;
    SSL_set_verify(
        (*ret)->ssl,
        SSL_VERIFY_PEER |
            (atomic_load(&t->needs_no_certificate) ? 0 : SSL_VERIFY_FAIL_IF_NO_PEER_CERT),
        on_verify);
    SSL_set_accept_state((*ret)->ssl);
    return 0;
}

/* The name that its certificate has to have: an address, or a host's. */
static bool set_host(SSL *ssl, const char *host)
{
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);

    if (X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1)
        return true;
    ERR_clear_error();
    /* Its names are in subjectAltName alone: a common name is any text. */
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS |
                                               X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    return X509_VERIFY_PARAM_set1_host(param, host, 0) == 1 &&
           SSL_set_tlsext_host_name(ssl, host) == 1;
}

/* A server of HTTP chooses its own of the two; psd, which has one alone, chooses none. */
static const uint8_t offered[] = "\x03psd\x08http/1.1";

static bool has_chosen_http(const struct tls_session *s)
{
    const uint8_t *name;
    unsigned n_bytes;

    SSL_get0_alpn_selected(s->ssl, &name, &n_bytes);
    return n_bytes == 8 && memcmp(name, "http/1.1", 8) == 0;
}

int tls_session_connect(struct tls_context *t, const char *host, struct tls_session **ret)
{
    struct tls_session *s;
    int status = session_new(t, false, &s);

    if (status)
        return status;
    if (!set_host(s->ssl, host) || SSL_set_alpn_protos(s->ssl, offered, sizeof offered - 1)) {
        tls_session_free(s);
        ERR_clear_error();
        return -ENOMEM;
    }
    SSL_set_verify(s->ssl, SSL_VERIFY_PEER, on_verify);
    SSL_set_connect_state(s->ssl);
    *ret = s;
    return 0;
}

/* Is this the beginning of a message whose length is in one piece with it, and no more than that of a hello? */
static bool is_head_good(const uint8_t head[static HELLO_HEAD_BYTES])
{
    const uint32_t record_bytes = (uint32_t)head[3] << 8 | head[4];
    const uint32_t n_bytes = (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];

    return head[0] != SSL3_RT_HANDSHAKE || (record_bytes >= 4 && n_bytes <= HELLO_BYTES_MAX);
}

/* Of a server. What comes behind a bad one is not read. */
static void see_head(struct tls_session *s)
{
    size_t n = sizeof s->head - s->n_head;

    n = n < s->in_bytes ? n : s->in_bytes;
    if (!n)
        return;
    memcpy(s->head + s->n_head, s->in, n);
    s->n_head += (uint32_t)n;
    if (s->n_head < sizeof s->head || is_head_good(s->head))
        return;
    s->status = PS_ETLS;
    s->in_bytes = 0;
}

void tls_session_feed(struct tls_session *s, const uint8_t *bytes, size_t n_bytes)
{
    s->in = bytes;
    s->in_bytes = n_bytes;
    if (s->is_server && s->n_head < sizeof s->head)
        see_head(s);
    s->fed_bytes += n_bytes;
    if (s->fed_bytes < KEY_UPDATE_BYTES)
        return;
    s->fed_bytes = 0;
    s->n_key_updates -= s->n_key_updates > 0;
}

size_t tls_session_left(const struct tls_session *s)
{
    return s->in_bytes;
}

int tls_session_handshake(struct tls_session *s)
{
    int result;

    ERR_clear_error();
    result = SSL_do_handshake(s->ssl);
    if (result != 1)
        return status_of(s, result);
    return !s->is_server && has_chosen_http(s) ? PS_EHTTP : 0;
}

struct bytes *tls_session_reply(struct tls_session *s)
{
    return &s->reply;
}

int tls_session_read(struct tls_session *s, uint8_t *dst, size_t max_bytes, size_t *ret_bytes)
{
    int result;

    ERR_clear_error();
    result = SSL_read_ex(s->ssl, dst, max_bytes, ret_bytes);
    return result == 1 ? 0 : status_of(s, result);
}

bool tls_session_has_more(const struct tls_session *s)
{
    return s->in_bytes > 0 || SSL_pending(s->ssl) > 0;
}

size_t tls_session_sealed_bytes(size_t n_bytes)
{
    return n_bytes + (n_bytes / RECORD_BYTES + 2) * RECORD_OVERHEAD_BYTES;
}

/* One key is not good for any number of bytes. */
static void count_for_key(struct tls_session *s, size_t n_bytes)
{
    s->rekey_bytes += n_bytes;
    if (s->rekey_bytes < REKEY_BYTES)
        return;
    s->rekey_bytes = 0;
    (void)!SSL_key_update(s->ssl, SSL_KEY_UPDATE_NOT_REQUESTED); /* with the next write */
}

int tls_session_write(struct tls_session *s, const uint8_t *bytes, size_t n_bytes,
                      struct bytes *out)
{
    size_t n_written;
    int result;

    if (!n_bytes)
        return 0;
    ERR_clear_error();
    s->out = out;
    result = SSL_write_ex(s->ssl, bytes, n_bytes, &n_written);
    s->out = NULL;
    if (result != 1)
        return status_of(s, result);
    count_for_key(s, n_bytes);
    return 0;
}

bool tls_session_peer(const struct tls_session *s, struct access *ret)
{
    if (s->has_peer)
        *ret = s->peer;
    return s->has_peer;
}

bool tls_is_hello(const uint8_t *bytes, size_t n_bytes)
{
    return bytes[0] == 0x16 && (n_bytes < 2 || bytes[1] == 3);
}

/* ---- for another library ---- */

static int append(BIO *bio, struct bytes *dst)
{
    char *text;
    const long n = BIO_get_mem_data(bio, &text);
    uint8_t *space = n > 0 ? bytes_reserve(dst, (size_t)n) : NULL;

    if (!space)
        return -ENOMEM;
    memcpy(space, text, (size_t)n);
    bytes_commit(dst, (size_t)n);
    return 0;
}

static bool put_certs(BIO *bio, SSL_CTX *ssl)
{
    STACK_OF(X509) *chain = NULL;
    bool is_good = PEM_write_bio_X509(bio, SSL_CTX_get0_certificate(ssl)) == 1 &&
                   SSL_CTX_get0_chain_certs(ssl, &chain) == 1;

    for (int i = 0; is_good && i < sk_X509_num(chain); i++)
        is_good = PEM_write_bio_X509(bio, sk_X509_value(chain, i)) == 1;
    return is_good;
}

/* A reference to what is in force now: SSL_CTX_free() gives it back. */
static SSL_CTX *hold(struct tls_context *t, char cluster[static ACCESS_CLUSTER_MAX])
{
    SSL_CTX *ssl;

    pthread_mutex_lock(&t->lock);
    ssl = t->ssl;
    SSL_CTX_up_ref(ssl);
    memcpy(cluster, t->cluster, sizeof t->cluster);
    pthread_mutex_unlock(&t->lock);
    return ssl;
}

int tls_context_write_pem(struct tls_context *t, struct bytes *certs, struct bytes *key)
{
    char ignored[ACCESS_CLUSTER_MAX];
    SSL_CTX *ssl = hold(t, ignored);
    BIO *cert_text = BIO_new(BIO_s_mem()), *key_text = BIO_new(BIO_s_secmem());
    int status = -ENOMEM;

    if (cert_text && key_text && put_certs(cert_text, ssl) &&
        PEM_write_bio_PKCS8PrivateKey(key_text, SSL_CTX_get0_privatekey(ssl), NULL, NULL, 0,
                                      NULL, NULL) == 1)
        status = append(cert_text, certs);
    if (!status)
        status = append(key_text, key);
    BIO_free(cert_text);
    BIO_free(key_text);
    SSL_CTX_free(ssl);
    ERR_clear_error();
    return status;
}

/* certs[0] is not of them. */
static STACK_OF(X509) * read_chain(const struct tls_der *certs, uint32_t n)
{
    STACK_OF(X509) *chain = sk_X509_new_null();

    for (uint32_t i = 1; chain && i < n; i++) {
        const uint8_t *der = certs[i].bytes;
        X509 *cert = d2i_X509(NULL, &der, (long)certs[i].n_bytes);

        if (!cert || !sk_X509_push(chain, cert))
            X509_free(cert);
    }
    return chain;
}

static int verify_chain(SSL_CTX *ssl, X509 *cert, STACK_OF(X509) * chain)
{
    X509_STORE_CTX *store = X509_STORE_CTX_new();
    int status = -ENOMEM;

    if (store && X509_STORE_CTX_init(store, SSL_CTX_get_cert_store(ssl), cert, chain) == 1) {
        X509_STORE_CTX_set_purpose(store, X509_PURPOSE_SSL_CLIENT);
        status =
            X509_verify_cert(store) == 1 ? 0 : verify_status(X509_STORE_CTX_get_error(store));
    }
    X509_STORE_CTX_free(store);
    return status;
}

int tls_context_check_peer(struct tls_context *t, const struct tls_der *certs, uint32_t n,
                           struct access *ret)
{
    const uint8_t *der = certs[0].bytes;
    char cluster[ACCESS_CLUSTER_MAX];
    SSL_CTX *ssl = hold(t, cluster);
    X509 *cert = d2i_X509(NULL, &der, (long)certs[0].n_bytes);
    STACK_OF(X509) *chain = read_chain(certs, n);
    struct access peer;
    int status = cert ? verify_chain(ssl, cert, chain) : PS_ETLSCA;

    if (!status && (!read_names(cert, &peer) || !is_of_cluster(&peer, cluster)))
        status = PS_ETLSNAME;
    if (!status)
        *ret = peer;
    sk_X509_pop_free(chain, X509_free);
    X509_free(cert);
    SSL_CTX_free(ssl);
    ERR_clear_error();
    return status;
}
