/* Two sessions whose bytes go from one to the other, without a socket. */
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
#include <uv.h>

#include <cmocka.h>

#include "common/tls.h"
#include "common/tls_cert.h"
#include "tests/support/seed.h"
#include "tests/support/tls_dir.h"

static struct tls_dir *dir_of(void **state)
{
    return *state;
}

/* What one end has to say, to the other. */
static void carry(struct tls_session *from, struct tls_session *to, struct bytes *kept)
{
    struct bytes *reply = tls_session_reply(from);

    if (!bytes_len(reply))
        return;
    bytes_deinit(kept);
    *kept = *reply;
    *reply = (struct bytes){ 0 };
    tls_session_feed(to, bytes_front(kept), bytes_len(kept));
}

struct ends {
    struct tls_session *client, *server;
    int client_status, server_status;
    struct bytes to_server, to_client;
};

static void shake(struct ends *e)
{
    e->client_status = e->server_status = -EAGAIN;
    for (int i = 0; i < 6; i++) {
        if (e->client_status == -EAGAIN)
            e->client_status = tls_session_handshake(e->client);
        carry(e->client, e->server, &e->to_server);
        if (e->server_status == -EAGAIN)
            e->server_status = tls_session_handshake(e->server);
        carry(e->server, e->client, &e->to_client);
    }
    if (!e->client_status &&
        e->server_status) { /* in TLS 1.3 it hears of that with its first read */
        uint8_t byte;
        size_t n;

        e->client_status = tls_session_read(e->client, &byte, 1, &n);
    }
}

static void connect_ends(struct ends *e, const struct tls_dir *d, const char *client,
                         const char *server, const char *client_ca, const char *host)
{
    struct tls_context *c = tls_dir_context(d, client, client_ca),
                       *s = tls_dir_context(d, server, "ca");

    *e = (struct ends){ 0 };
    assert_int_equal(tls_session_connect(c, host, &e->client), 0);
    assert_int_equal(tls_session_accept(s, &e->server), 0);
    tls_context_free(c);
    tls_context_free(s);
    shake(e);
}

static void part(struct ends *e)
{
    tls_session_free(e->client);
    tls_session_free(e->server);
    bytes_deinit(&e->to_server);
    bytes_deinit(&e->to_client);
}

static void each_end_knows_why_a_handshake_fails(void **state)
{
    static const struct {
        const char *client, *server, *ca, *host;
        int client_status, server_status;
    } cases[] = {
        { "worker", "node", "ca", "127.0.0.1", 0, 0 },
        { "worker", "node", "ca", "localhost", 0, 0 },
        { "node", "node", "ca", "127.0.0.1", 0, 0 },
        { "worker", "expired", "ca", "127.0.0.1", PS_ETLSEXPIRED, PS_ETLSOWNEXPIRED },
        { "expired", "node", "ca", "127.0.0.1", PS_ETLSOWNEXPIRED, PS_ETLSEXPIRED },
        { "worker", "early", "ca", "127.0.0.1", PS_ETLSEXPIRED, PS_ETLSOWNNAME },
        { "worker", "node", "other", "127.0.0.1", PS_ETLSCA, PS_ETLSOWNCA },
        { "stranger", "node", "ca", "127.0.0.1", PS_ETLSOWNCA, PS_ETLSCA },
        { "worker", "away", "ca", "127.0.0.1", PS_ETLSNAME, PS_ETLSOWNNAME },
        { "worker", "node", "ca", "example.org", PS_ETLSNAME, PS_ETLSOWNNAME },
        { "worker", "foreign", "ca", "127.0.0.1", PS_ETLSNAME, PS_ETLSOWNNAME },
        { "foreign", "node", "ca", "127.0.0.1", PS_ETLSNAME, PS_ETLSOWNNAME },
        { "reader", "admin", "ca", "127.0.0.1", PS_ETLSUSE, PS_ETLSOWNUSE }, /* no node */
        { "", "node", "ca", "127.0.0.1", PS_ETLSOWNNONE, PS_ETLSNONE },
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct ends e;

        connect_ends(&e, dir_of(state), cases[i].client, cases[i].server, cases[i].ca,
                     cases[i].host);
        if (e.client_status != cases[i].client_status ||
            e.server_status != cases[i].server_status)
            fail_msg("%s to %s: the client says %s, the server %s", cases[i].client,
                     cases[i].server, status_text(e.client_status),
                     status_text(e.server_status));
        part(&e);
    }
}

static void who_the_peer_is_its_certificate_says(void **state)
{
    struct access peer = { 0 };
    struct ends e;

    connect_ends(&e, dir_of(state), "ads", "node", "ca", "127.0.0.1");
    assert_true(tls_session_peer(e.server, &peer));
    assert_int_equal(peer.role, ACCESS_WORKER);
    assert_string_equal(peer.job, "ads");
    assert_string_equal(peer.cluster, "c");
    assert_true(tls_session_peer(e.client, &peer));
    assert_int_equal(peer.role, ACCESS_NODE);
    part(&e);
}

static void a_server_may_do_without_a_certificate_of_the_peer(void **state)
{
    struct tls_context *c = tls_dir_context(dir_of(state), "", "ca"),
                       *s = tls_dir_context(dir_of(state), "node", "ca");
    struct ends e = { 0 };
    struct access peer;

    tls_context_set_needs_certificate(s, false);
    assert_int_equal(tls_session_connect(c, "127.0.0.1", &e.client), 0);
    assert_int_equal(tls_session_accept(s, &e.server), 0);
    shake(&e);
    assert_int_equal(e.client_status, 0);
    assert_int_equal(e.server_status, 0);
    assert_false(tls_session_peer(e.server, &peer));
    part(&e);
    e = (struct ends){ 0 };
    tls_context_set_needs_certificate(s, true);
    assert_int_equal(tls_session_connect(c, "127.0.0.1", &e.client), 0);
    assert_int_equal(tls_session_accept(s, &e.server), 0);
    shake(&e);
    assert_int_equal(e.server_status, PS_ETLSNONE);
    part(&e);
    tls_context_free(c);
    tls_context_free(s);
}

/* ---- names that psctl cert does not make ---- */

static X509 *read_cert(const char *path)
{
    FILE *f = fopen(path, "r");
    X509 *cert = f ? PEM_read_X509(f, NULL, NULL, NULL) : NULL;

    assert_non_null(cert);
    (void)fclose(f);
    return cert;
}

static void set_common_name(X509 *cert, const char *common)
{
    X509_NAME *subject = X509_get_subject_name(cert);

    while (X509_NAME_entry_count(subject))
        X509_NAME_ENTRY_free(X509_NAME_delete_entry(subject, 0));
    assert_int_equal(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                                (const unsigned char *)common, -1, -1, 0),
                     1);
}

/* NAME.pem anew, with another extension of this kind, and another common name but for NULL; its key stays. */
static void change_cert(const struct tls_dir *d, const char *name, const char *common, int nid,
                        const char *value)
{
    char path[128], ca_key[128];
    X509V3_CTX context;
    X509_EXTENSION *extension;
    EVP_PKEY *key;
    X509 *cert;
    FILE *f;
    int at;

    snprintf(path, sizeof path, "%s/%s.pem", d->path, name);
    snprintf(ca_key, sizeof ca_key, "%s/ca.key", d->path);
    cert = read_cert(path);
    f = fopen(ca_key, "r");
    key = PEM_read_PrivateKey(f, NULL, NULL, NULL);
    (void)fclose(f);
    if (common)
        set_common_name(cert, common);
    while ((at = X509_get_ext_by_NID(cert, nid, -1)) >= 0)
        X509_EXTENSION_free(X509_delete_ext(cert, at));
    X509V3_set_ctx_nodb(&context);
    extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    assert_non_null(extension);
    assert_int_equal(X509_add_ext(cert, extension, -1), 1);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    f = fopen(path, "w");
    assert_int_equal(PEM_write_X509(f, cert), 1);
    (void)fclose(f);
    X509_EXTENSION_free(extension);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static void rename_cert(const struct tls_dir *d, const char *name, const char *common,
                        const char *names)
{
    change_cert(d, name, common, NID_subject_alt_name, names);
}

/* Whose role depends on which name is read first, or on how one is read, has none. */
static void a_certificate_names_one_role_or_none(void **state)
{
    static const struct {
        const char *names;
        bool is_good;
    } cases[] = {
        { "URI:psd://c/reader", true },
        { "URI:https://c/admin,URI:psd://c/reader,DNS:c", true },
        { "URI:psd://c/reader,URI:psd://c/admin", false },
        { "URI:psd://c/reader,URI:psd://d/admin", false },
        { "URI:psd://c/reader,URI:psd://c/reader", false },
        { "URI:psd://c/nobody,URI:psd://c/admin", false },
        { "URI:PSD://c/node,URI:psd://c/admin", false },
        { "URI:psd:c/node,URI:psd://c/admin", false },
        { "URI:PSD://c/admin", false },
        { "URI:psd://c/Admin", false },
        { "URI:psd://*/admin", false },
        { "DNS:psd.c.admin", false },
    };
    struct tls_dir d;

    (void)state;
    tls_dir_make(&d);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char path[128];
        uint8_t *der = NULL;
        struct tls_context *s = tls_dir_context(&d, "node", "ca");
        struct access peer = { 0 };
        X509 *cert;
        int n, status;

        rename_cert(&d, "reader", "reader", cases[i].names);
        snprintf(path, sizeof path, "%s/reader.pem", d.path);
        cert = read_cert(path);
        n = i2d_X509(cert, &der);
        status = tls_context_check_peer(s, &(struct tls_der){ der, (size_t)n }, 1, &peer);
        if (status != (cases[i].is_good ? 0 : PS_ETLSNAME))
            fail_msg("%s: %s", cases[i].names, status_text(status));
        assert_true(status || peer.role == ACCESS_READER);
        OPENSSL_free(der);
        X509_free(cert);
        tls_context_free(s);
    }
    tls_dir_remove(&d);
}

static void a_node_is_known_by_its_alternative_names_alone(void **state)
{
    struct tls_dir d;
    struct ends e;

    (void)state;
    tls_dir_make(&d);
    rename_cert(&d, "node", "localhost", "URI:psd://c/node");
    connect_ends(&e, &d, "worker", "node", "ca", "localhost");
    assert_int_equal(e.client_status, PS_ETLSNAME);
    part(&e);
    rename_cert(&d, "node", "x", "URI:psd://c/node,DNS:LocalHost");
    connect_ends(&e, &d, "worker", "node", "ca", "localhost");
    assert_int_equal(e.client_status, 0);
    part(&e);
    tls_dir_remove(&d);
}

/* Each costs us more than the peer. */
/* What is wrong with it are not its names, and both ends say so. */
static void a_certificate_is_refused_for_its_use(void **state)
{
    struct tls_dir d;
    struct ends e;

    (void)state;
    tls_dir_make(&d);
    change_cert(&d, "worker", NULL, NID_ext_key_usage, "serverAuth");
    connect_ends(&e, &d, "worker", "node", "ca", "127.0.0.1");
    assert_int_equal(e.server_status, PS_ETLSUSE);
    assert_int_equal(e.client_status, PS_ETLSOWNUSE);
    part(&e);
    change_cert(&d, "node", NULL, NID_ext_key_usage, "clientAuth");
    connect_ends(&e, &d, "reader", "node", "ca", "127.0.0.1");
    assert_int_equal(e.client_status, PS_ETLSUSE);
    assert_int_equal(e.server_status, PS_ETLSOWNUSE);
    part(&e);
    tls_dir_remove(&d);
}

/* Before a peer says so. */
static void what_peers_will_hold_against_its_own_certificate_a_context_knows(void **state)
{
    static const struct {
        const char *name, *ca, *use;
        enum tls_fault fault;
    } cases[] = {
        { "node", "ca", NULL, TLS_FAULT_NONE },
        { "expired", "ca", NULL, TLS_FAULT_NONE }, /* that is another matter */
        { "", "ca", NULL, TLS_FAULT_NONE },
        { "node", "other", NULL, TLS_FAULT_CA },
        { "stranger", "ca", NULL, TLS_FAULT_CA },
        { "admin", "ca", NULL, TLS_FAULT_NONE }, /* a client's */
        { "node", "ca", "clientAuth", TLS_FAULT_SERVER },
        { "node", "ca", "serverAuth", TLS_FAULT_CLIENT },
        { "reader", "ca", "serverAuth", TLS_FAULT_CLIENT },
    };
    struct tls_dir d;

    (void)state;
    tls_dir_make(&d);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct tls_context *t;

        if (cases[i].use)
            change_cert(&d, cases[i].name, NULL, NID_ext_key_usage, cases[i].use);
        t = tls_dir_context(&d, cases[i].name, cases[i].ca);
        if (tls_context_fault(t) != cases[i].fault)
            fail_msg("case %zu: the certificate %s", i, tls_fault_text(tls_context_fault(t)));
        tls_context_free(t);
    }
    tls_dir_remove(&d);
}

static void a_peer_that_does_nothing_but_change_its_keys_is_refused(void **state)
{
    struct tls_dir *d = dir_of(state);
    char ca[128], cert[128], key[128];
    SSL_CTX *ssl = SSL_CTX_new(TLS_client_method());
    SSL *client = SSL_new(ssl);
    BIO *to_client = BIO_new(BIO_s_mem()), *to_server = BIO_new(BIO_s_mem());
    struct tls_context *t = tls_dir_context(d, "node", "ca");
    struct tls_session *server;
    struct bytes *reply;
    int status = -EAGAIN, n_updates = 0;
    uint8_t byte;
    size_t n;

    snprintf(ca, sizeof ca, "%s/ca.pem", d->path);
    snprintf(cert, sizeof cert, "%s/worker.pem", d->path);
    snprintf(key, sizeof key, "%s/worker.key", d->path);
    assert_int_equal(SSL_use_certificate_file(client, cert, SSL_FILETYPE_PEM), 1);
    assert_int_equal(SSL_use_PrivateKey_file(client, key, SSL_FILETYPE_PEM), 1);
    SSL_set_bio(client, to_client, to_server);
    SSL_set_connect_state(client);
    assert_int_equal(tls_session_accept(t, &server), 0);
    for (int i = 0; i < 4 && status == -EAGAIN; i++) {
        char *text;
        long n_bytes;

        (void)SSL_do_handshake(client);
        n_bytes = BIO_get_mem_data(to_server, &text);
        tls_session_feed(server, (uint8_t *)text, (size_t)n_bytes);
        status = tls_session_handshake(server);
        (void)BIO_reset(to_server);
        reply = tls_session_reply(server);
        (void)BIO_write(to_client, bytes_front(reply), (int)bytes_len(reply));
        bytes_consume(reply, bytes_len(reply));
    }
    assert_int_equal(status, 0);
    for (status = -EAGAIN; status == -EAGAIN && n_updates < 1000; n_updates++) {
        char *text;
        long n_bytes;

        assert_int_equal(SSL_key_update(client, SSL_KEY_UPDATE_REQUESTED), 1);
        assert_int_equal(SSL_do_handshake(client), 1);
        n_bytes = BIO_get_mem_data(to_server, &text);
        tls_session_feed(server, (uint8_t *)text, (size_t)n_bytes);
        status = tls_session_read(server, &byte, 1, &n);
        (void)BIO_reset(to_server);
    }
    assert_int_equal(status, PS_ETLS);
    assert_in_range(n_updates, 32, 40);
    tls_session_free(server);
    tls_context_free(t);
    SSL_free(client);
    SSL_CTX_free(ssl);
}

static void other_protocols_are_refused(void **state)
{
    static const char tls12[] = "\x16\x03\x01\x00\x2d\x01\x00\x00\x29\x03\x03"
                                "01234567890123456789012345678901"
                                "\x00\x00\x02\xc0\x2f\x01\x00";
    struct tls_context *t = tls_dir_context(dir_of(state), "node", "ca");
    struct tls_session *s;

    assert_false(tls_is_hello((const uint8_t *)"PS", 2));
    assert_false(tls_is_hello((const uint8_t *)"GET /", 5));
    assert_true(tls_is_hello((const uint8_t *)tls12, 1));
    assert_true(tls_is_hello((const uint8_t *)tls12, sizeof tls12 - 1));
    assert_int_equal(tls_session_accept(t, &s), 0);
    tls_session_feed(s, (const uint8_t *)tls12, sizeof tls12 - 1);
    assert_int_equal(tls_session_handshake(s), PS_ETLSVERSION);
    assert_true(bytes_len(tls_session_reply(s)) > 0); /* an alert */
    tls_session_free(s);
    assert_int_equal(tls_session_connect(t, "127.0.0.1", &s), 0);
    assert_int_equal(tls_session_handshake(s), -EAGAIN);
    tls_session_feed(s, (const uint8_t *)"PSWF a frame of a plain psd", 27);
    assert_int_equal(tls_session_handshake(s), PS_ETLSPLAIN);
    tls_session_free(s);
    tls_context_free(t);
}

/* Before it is known nobody gets much memory for a few bytes, however it sends them. */
static void a_hello_that_says_it_is_long_is_refused(void **state)
{
    static const struct {
        const char *bytes;
        int status;
    } cases[] = {
        { "\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03", -EAGAIN },
        { "\x16\x03\x01\x00\x09\x01\x01\xff\xff\x03\x03", PS_ETLS },
        { "\x16\x03\x01\x40\x00\x01\x00\x40\x01\x03\x03", PS_ETLS },
        { "\x16\x03\x01\x00\x01\x01\x16\x03\x01\x00\x01", PS_ETLS },
    };
    struct tls_context *t = tls_dir_context(dir_of(state), "node", "ca");

    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (size_t piece = 1; piece <= 11; piece++) {
            struct tls_session *s;
            int status = -EAGAIN;

            assert_int_equal(tls_session_accept(t, &s), 0);
            for (size_t at = 0; at < 11 && status == -EAGAIN; at += piece) {
                const size_t n = 11 - at < piece ? 11 - at : piece;

                tls_session_feed(s, (const uint8_t *)cases[i].bytes + at, n);
                status = tls_session_handshake(s);
            }
            if (status != cases[i].status)
                fail_msg("case %zu in pieces of %zu: %s", i, piece, status_text(status));
            tls_session_free(s);
        }
    tls_context_free(t);
}

/* All that is written comes, whatever the pieces in which it travels. */
static void what_is_written_is_read_in_any_pieces(void **state)
{
    uint64_t seed = seed_by_the_clock();
    struct ends e;

    srand((unsigned)seed);
    connect_ends(&e, dir_of(state), "worker", "node", "ca", "127.0.0.1");
    assert_int_equal(e.client_status, 0);
    for (int round = 0; round < 50; round++) {
        static uint8_t text[100000], read[sizeof text];
        size_t n = 1 + (size_t)rand() % sizeof text, at = 0, n_read = 0;
        struct bytes sealed = { 0 };

        for (size_t i = 0; i < n; i++)
            text[i] = (uint8_t)rand();
        assert_int_equal(tls_session_write(e.client, text, n, &sealed), 0);
        assert_true(bytes_len(&sealed) <= tls_session_sealed_bytes(n));
        while (at < bytes_len(&sealed)) {
            size_t piece = 1 + (size_t)rand() % 20000, n_now;
            int status = 0;

            piece = piece < bytes_len(&sealed) - at ? piece : bytes_len(&sealed) - at;
            tls_session_feed(e.server, bytes_front(&sealed) + at, piece);
            at += piece;
            while (!status) {
                status = tls_session_read(e.server, read + n_read,
                                          1 + (size_t)rand() % (sizeof read - n_read), &n_now);
                n_read += status ? 0 : n_now;
                if (n_read == sizeof read)
                    break;
            }
            assert_true(!status || status == -EAGAIN);
        }
        assert_int_equal(n_read, n);
        assert_memory_equal(read, text, n);
        bytes_deinit(&sealed);
    }
    part(&e);
}

static void a_changed_byte_ends_the_session(void **state)
{
    for (size_t i = 0; i < 60; i++) {
        struct bytes sealed = { 0 };
        struct ends e;
        uint8_t byte[8];
        size_t n;
        int status;

        connect_ends(&e, dir_of(state), "worker", "node", "ca", "127.0.0.1");
        assert_int_equal(tls_session_write(e.client, (const uint8_t *)"some text", 9, &sealed),
                         0);
        if (i < bytes_len(&sealed)) {
            sealed.bytes[i] ^= 0x10;
            tls_session_feed(e.server, sealed.bytes, bytes_len(&sealed));
            status = tls_session_read(e.server, byte, sizeof byte, &n);
            assert_true(status < 0); /* of a longer record the rest is waited for */
            assert_true(status != -EAGAIN || i == 3 || i == 4);
        }
        bytes_deinit(&sealed);
        part(&e);
    }
}

static void random_bytes_never_do_harm(void **state)
{
    uint64_t seed = seed_by_the_clock();
    struct tls_context *t = tls_dir_context(dir_of(state), "node", "ca");

    srand((unsigned)seed);
    for (int i = 0; i < 2000; i++) {
        uint8_t bytes[300] = { 0x16, 3, 1 };
        size_t n = (size_t)rand() % sizeof bytes;
        struct tls_session *s;
        int status;

        for (size_t k = i % 2 ? 3 : 0; k < n; k++)
            bytes[k] = (uint8_t)rand();
        assert_int_equal(tls_session_accept(t, &s), 0);
        tls_session_feed(s, bytes, n);
        status = tls_session_handshake(s);
        assert_true(status < 0);
        tls_session_free(s);
    }
    tls_context_free(t);
}

/* The certificates of a PEM file as DER; *ret_n of them, each of which is freed with OPENSSL_free(). */
static void read_der(const char *path, struct tls_der ret[static 4], uint32_t *ret_n)
{
    FILE *file = fopen(path, "re");
    X509 *cert;

    assert_non_null(file);
    *ret_n = 0;
    while (*ret_n < 4 && (cert = PEM_read_X509(file, NULL, NULL, NULL)) != NULL) {
        uint8_t *bytes = NULL;
        const int n = i2d_X509(cert, &bytes);

        assert_true(n > 0);
        ret[(*ret_n)++] = (struct tls_der){ bytes, (size_t)n };
        X509_free(cert);
    }
    assert_int_equal(fclose(file), 0);
}

static void another_librarys_peer_is_checked_by_the_same_rules(void **state)
{
    static const struct {
        const char *name;
        int status;
        enum access_role role;
    } cases[] = {
        { "worker", 0, ACCESS_WORKER },          { "node", 0, ACCESS_NODE },
        { "reader", 0, ACCESS_READER },          { "expired", PS_ETLSEXPIRED, ACCESS_ALL },
        { "early", PS_ETLSEXPIRED, ACCESS_ALL }, { "foreign", PS_ETLSNAME, ACCESS_ALL },
        { "stranger", PS_ETLSCA, ACCESS_ALL },   { "ca", PS_ETLSUSE, ACCESS_ALL },
    };
    struct tls_dir dir;
    struct tls_context *t;
    struct access access;

    (void)state;
    tls_dir_make(&dir);
    t = tls_dir_context(&dir, "node", "ca");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct tls_der certs[4];
        char path[128];
        uint32_t n;
        int status;

        snprintf(path, sizeof path, "%s/%s.pem", dir.path, cases[i].name);
        read_der(path, certs, &n);
        access = (struct access){ 0 };
        status = tls_context_check_peer(t, certs, n, &access);
        if (status != cases[i].status || access.role != cases[i].role)
            fail_msg("%s: %s", cases[i].name, status_text(status));
        for (size_t k = 0; k < certs[0].n_bytes; k++) { /* cut short: refused, and no more */
            struct tls_der part = { certs[0].bytes, k };

            assert_int_equal(tls_context_check_peer(t, &part, 1, &access), PS_ETLSCA);
        }
        for (uint32_t k = 0; k < n; k++)
            OPENSSL_free((void *)(uintptr_t)certs[k].bytes);
    }
    tls_context_free(t);
    tls_dir_remove(&dir);
}

static void another_library_is_given_what_the_files_hold(void **state)
{
    struct bytes certs = { 0 }, key = { 0 };
    struct tls_dir dir;
    struct tls_context *t;
    char path[128], text[4096];
    size_t n;
    FILE *file;

    (void)state;
    tls_dir_make(&dir);
    t = tls_dir_context(&dir, "node", "ca");
    assert_int_equal(tls_context_write_pem(t, &certs, &key), 0);
    snprintf(path, sizeof path, "%s/node.pem", dir.path);
    file = fopen(path, "re");
    assert_non_null(file);
    n = fread(text, 1, sizeof text, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(bytes_len(&certs), n);
    assert_memory_equal(bytes_front(&certs), text, n);
    assert_int_equal(memcmp(bytes_front(&key), "-----BEGIN PRIVATE KEY-----", 27), 0);
    bytes_deinit(&certs);
    bytes_deinit(&key);
    tls_context_free(t);
    tls_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_end_knows_why_a_handshake_fails),
        cmocka_unit_test(who_the_peer_is_its_certificate_says),
        cmocka_unit_test(a_server_may_do_without_a_certificate_of_the_peer),
        cmocka_unit_test(a_certificate_names_one_role_or_none),
        cmocka_unit_test(a_node_is_known_by_its_alternative_names_alone),
        cmocka_unit_test(a_certificate_is_refused_for_its_use),
        cmocka_unit_test(what_peers_will_hold_against_its_own_certificate_a_context_knows),
        cmocka_unit_test(a_peer_that_does_nothing_but_change_its_keys_is_refused),
        cmocka_unit_test(other_protocols_are_refused),
        cmocka_unit_test(a_hello_that_says_it_is_long_is_refused),
        cmocka_unit_test(what_is_written_is_read_in_any_pieces),
        cmocka_unit_test(a_changed_byte_ends_the_session),
        cmocka_unit_test(random_bytes_never_do_harm),
        cmocka_unit_test(another_librarys_peer_is_checked_by_the_same_rules),
        cmocka_unit_test(another_library_is_given_what_the_files_hold),
    };

    return cmocka_run_group_tests(tests, tls_dir_set_up, tls_dir_tear_down);
}
