#include "common/http/http_tls.h"

#include <errno.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <string.h>

#define CHAIN_MAX 8u

static gnutls_session_t session_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);

    return info ? info->tls_session : NULL;
}

static gnutls_datum_t datum_of(const struct bytes *b)
{
    return (gnutls_datum_t){ .data = b->bytes + b->start, .size = (unsigned)bytes_len(b) };
}

static int read_key(const struct bytes *pem, gnutls_privkey_t *ret)
{
    const gnutls_datum_t text = datum_of(pem);
    int code = gnutls_privkey_init(ret);

    if (code)
        return code;
    code = gnutls_privkey_import_x509_raw(*ret, &text, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (code)
        gnutls_privkey_deinit(*ret);
    return code;
}

/* Both become GnuTLS's, which frees them. */
static int read_own(const struct bytes *certs, const struct bytes *key,
                    gnutls_pcert_st **ret_certs, unsigned *ret_n, gnutls_privkey_t *ret_key)
{
    const gnutls_datum_t text = datum_of(certs);
    gnutls_pcert_st *chain = gnutls_malloc(CHAIN_MAX * sizeof *chain);
    unsigned n = CHAIN_MAX;
    int code;

    if (!chain)
        return GNUTLS_E_MEMORY_ERROR;
    code = gnutls_pcert_list_import_x509_raw(chain, &n, &text, GNUTLS_X509_FMT_PEM, 0);
    if (code < 0) {
        gnutls_free(chain);
        return code;
    }
    code = read_key(key, ret_key);
    if (code) {
        for (unsigned i = 0; i < n; i++)
            gnutls_pcert_deinit(&chain[i]);
        gnutls_free(chain);
        return code;
    }
    *ret_certs = chain;
    *ret_n = n;
    return 0;
}

/* What the server shows in the handshake of this session. Named by GnuTLS: gnutls_certificate_retrieve_function3. */
static int on_own_wanted(gnutls_session_t session, const struct gnutls_cert_retr_st *info,
                         gnutls_pcert_st **ret_certs, unsigned *ret_n,
                         gnutls_ocsp_data_st **ret_ocsp, unsigned *ret_n_ocsp,
                         gnutls_privkey_t *ret_key, unsigned *ret_flags)
{
    struct tls_context *t = gnutls_session_get_ptr(session);
    struct bytes certs = { 0 }, key = { 0 };
    int code = GNUTLS_E_MEMORY_ERROR;

    (void)info;
    *ret_ocsp = NULL;
    *ret_n_ocsp = 0;
    *ret_flags = GNUTLS_CERT_RETR_DEINIT_ALL;
    if (t && tls_context_write_pem(t, &certs, &key) == 0)
        code = read_own(&certs, &key, ret_certs, ret_n, ret_key);
    bytes_deinit(&certs);
    if (key.bytes)
        explicit_bzero(key.bytes, key.cap_bytes);
    bytes_deinit(&key);
    return code;
}

/* libmicrohttpd's array of options has pointers to objects, also where one is to a function. */
static void *pointer_of(gnutls_certificate_retrieve_function3 *function)
{
    union {
        gnutls_certificate_retrieve_function3 *function;
        void *pointer;
    } both = { function };

    return both.pointer;
}

void http_tls_options(struct MHD_OptionItem ret[static HTTP_TLS_N_OPTIONS])
{
    static const char priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3";

    ret[0] = (struct MHD_OptionItem){ MHD_OPTION_HTTPS_PRIORITIES, 0,
                                      (void *)(uintptr_t)priorities };
    ret[1] = (struct MHD_OptionItem){ MHD_OPTION_HTTPS_CERT_CALLBACK2, 0,
                                      pointer_of(on_own_wanted) };
    ret[2] = (struct MHD_OptionItem){ MHD_OPTION_END, 0, NULL };
}

/* So that a client of frames sees at once that it has the wrong port. */
static const gnutls_datum_t http_1_1 = { (unsigned char *)"http/1.1", 8 };

/* CAs are not named in the request: a client that picks by these names (Go's does) would know none of a CA that was
 * reloaded. */
void http_tls_begin(struct MHD_Connection *connection, struct tls_context *t)
{
    gnutls_session_t session = session_of(connection);

    if (!session)
        return;
    gnutls_session_set_ptr(session, t);
    (void)gnutls_alpn_set_protocols(session, &http_1_1, 1, 0); /* for want of memory alone */
    gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUEST);
}

int http_tls_peer(struct MHD_Connection *connection, struct tls_context *t, struct access *ret)
{
    gnutls_session_t session = session_of(connection);
    const gnutls_datum_t *shown;
    struct tls_der certs[CHAIN_MAX];
    unsigned n = 0;

    shown = session ? gnutls_certificate_get_peers(session, &n) : NULL;
    if (!shown || !n)
        return -ENOENT;
    n = n < CHAIN_MAX ? n : CHAIN_MAX;
    for (unsigned i = 0; i < n; i++)
        certs[i] = (struct tls_der){ shown[i].data, shown[i].size };
    return tls_context_check_peer(t, certs, n, ret);
}
