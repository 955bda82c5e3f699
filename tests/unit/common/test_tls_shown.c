/* What a session shows of its certificates, and leaves behind, to a client of OpenSSL's that keeps everything. */
#include <errno.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/tls.h"
#include "tests/support/tls_dir.h"

/* OpenSSL as it is, with its defaults. */
struct watcher {
    SSL_CTX *context;
    SSL *ssl;
    BIO *in, *out; /* ssl's */
    int n_shown;   /* certificates of the server */
    bool is_resumable;
};

static void watcher_open(struct watcher *w, const struct tls_dir *d, const char *name,
                         const char *ca)
{
    char path[128];

    *w = (struct watcher){ .context = SSL_CTX_new(TLS_method()) };
    snprintf(path, sizeof path, "%s/%s.pem", d->path, name);
    assert_int_equal(SSL_CTX_use_certificate_chain_file(w->context, path), 1);
    snprintf(path, sizeof path, "%s/%s.key", d->path, name);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(w->context, path, SSL_FILETYPE_PEM), 1);
    snprintf(path, sizeof path, "%s/%s.pem", d->path, ca);
    assert_int_equal(SSL_CTX_load_verify_file(w->context, path), 1);
    w->ssl = SSL_new(w->context);
    w->in = BIO_new(BIO_s_mem());
    w->out = BIO_new(BIO_s_mem());
    SSL_set_bio(w->ssl, w->in, w->out);
    SSL_set_verify(w->ssl, SSL_VERIFY_PEER, NULL);
    SSL_set_connect_state(w->ssl);
}

static void watcher_close(struct watcher *w)
{
    SSL_free(w->ssl);
    SSL_CTX_free(w->context);
}

/* Greets the server, and reads what it says unasked. */
static int watcher_handshake(struct watcher *w, struct tls_session *server)
{
    int client_result = 0, server_status = -EAGAIN;
    SSL_SESSION *session;
    char byte;

    for (int i = 0; i < 6; i++) {
        struct bytes *reply = tls_session_reply(server);
        char *text;
        long n;

        if (client_result != 1)
            client_result = SSL_do_handshake(w->ssl);
        n = BIO_get_mem_data(w->out, &text);
        tls_session_feed(server, (const uint8_t *)text, (size_t)n);
        if (server_status == -EAGAIN)
            server_status = tls_session_handshake(server);
        assert_int_equal(tls_session_left(server), 0);
        (void)BIO_reset(w->out);
        if (bytes_len(reply))
            BIO_write(w->in, bytes_front(reply), (int)bytes_len(reply));
        bytes_consume(reply, bytes_len(reply));
    }
    if (server_status || client_result != 1)
        return server_status ? server_status : PS_ETLS;
    assert_int_equal(SSL_read(w->ssl, &byte, 1), -1);
    w->n_shown = sk_X509_num(SSL_get_peer_cert_chain(w->ssl));
    session = SSL_get1_session(w->ssl);
    w->is_resumable = SSL_SESSION_is_resumable(session);
    SSL_SESSION_free(session);
    return 0;
}

/* The peer has the CA's certificate, and each handshake is a new one, with the peer's certificate verified by the CA
 * that is in force then. */
static void a_handshake_shows_no_ca_and_leaves_no_ticket(void **state)
{
    struct tls_dir dir;
    struct tls_context *t;
    struct tls_session *server;
    struct watcher w;

    (void)state;
    tls_dir_make(&dir);
    t = tls_dir_context(&dir, "node", "ca");
    watcher_open(&w, &dir, "worker", "ca");
    assert_int_equal(tls_session_accept(t, &server), 0);
    assert_int_equal(watcher_handshake(&w, server), 0);
    assert_int_equal(w.n_shown, 1);
    assert_false(w.is_resumable);
    tls_session_free(server);
    watcher_close(&w);
    tls_context_free(t);
    tls_dir_remove(&dir);
}

static EVP_PKEY *write_key(const struct tls_dir *d, const char *name)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    char path[128];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s.key", d->path, name);
    file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
    assert_int_equal(fclose(file), 0);
    return key;
}

static X509 *sign(const char *name, EVP_PKEY *key, X509 *issuer, EVP_PKEY *issuer_key)
{
    const bool is_ca = strcmp(name, "node") != 0;
    X509 *cert = X509_new();
    X509V3_CTX context;
    const struct {
        int nid;
        const char *value;
    } extensions[] = {
        { NID_basic_constraints, is_ca ? "critical,CA:TRUE" : "critical,CA:FALSE" },
        { NID_key_usage, is_ca ? "critical,keyCertSign" : "critical,digitalSignature" },
        { NID_subject_alt_name, "URI:psd://c/node,IP:127.0.0.1" },
    };

    X509_set_version(cert, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1 + name[0]);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               (const uint8_t *)name, -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(issuer ? issuer : cert));
    X509V3_set_ctx(&context, issuer ? issuer : cert, cert, NULL, NULL, 0);
    for (size_t i = 0; i < COUNT_OF(extensions); i++) {
        X509_EXTENSION *one =
            X509V3_EXT_conf_nid(NULL, &context, extensions[i].nid, extensions[i].value);

        assert_int_equal(X509_add_ext(cert, one, -1), 1);
        X509_EXTENSION_free(one);
    }
    assert_true(X509_sign(cert, issuer_key ? issuer_key : key, EVP_sha256()) > 0);
    return cert;
}

static void write_certs(const struct tls_dir *d, const char *name, X509 *const certs[2])
{
    char path[128];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s.pem", d->path, name);
    file = fopen(path, "we");
    assert_non_null(file);
    for (int i = 0; i < 2 && certs[i]; i++)
        assert_int_equal(PEM_write_X509(file, certs[i]), 1);
    assert_int_equal(fclose(file), 0);
}

/* root signs middle, middle signs node. Peers have the root alone. */
static void a_ca_in_between_is_shown_wherever_its_certificate_stands(void **state)
{
    static const char *const names[] = { "root", "middle", "node", "both" };
    struct tls_dir dir = { "/tmp/psd-tls-XXXXXX" };
    EVP_PKEY *keys[3];
    X509 *certs[3];

    (void)state;
    assert_non_null(mkdtemp(dir.path));
    for (int i = 0; i < 3; i++) {
        keys[i] = write_key(&dir, names[i]);
        certs[i] = sign(names[i], keys[i], i ? certs[i - 1] : NULL, i ? keys[i - 1] : NULL);
    }
    for (int in_ca_file = 0; in_ca_file < 2; in_ca_file++) {
        struct tls_context *t;
        struct tls_session *server;
        struct watcher w;

        write_certs(&dir, "root", (X509 *[]){ certs[0], NULL });
        write_certs(&dir, "both", (X509 *[]){ certs[0], certs[1] });
        write_certs(&dir, "node", (X509 *[]){ certs[2], in_ca_file ? NULL : certs[1] });
        t = tls_dir_context(&dir, "node", in_ca_file ? "both" : "root");
        watcher_open(&w, &dir, "node", "root");
        if (in_ca_file) /* what the client's own file lacks, too */
            SSL_CTX_set_mode(w.context, SSL_MODE_NO_AUTO_CHAIN);
        assert_int_equal(tls_session_accept(t, &server), 0);
        assert_int_equal(watcher_handshake(&w, server), 0);
        assert_int_equal(w.n_shown, 2);
        tls_session_free(server);
        watcher_close(&w);
        tls_context_free(t);
    }
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[128];

        snprintf(path, sizeof path, "%s/%s.pem", dir.path, names[i]);
        unlink(path);
        snprintf(path, sizeof path, "%s/%s.key", dir.path, names[i]);
        unlink(path);
        if (i < 3) {
            X509_free(certs[i]);
            EVP_PKEY_free(keys[i]);
        }
    }
    rmdir(dir.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handshake_shows_no_ca_and_leaves_no_ticket),
        cmocka_unit_test(a_ca_in_between_is_shown_wherever_its_certificate_stands),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
