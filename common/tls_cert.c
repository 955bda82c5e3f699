#include "common/tls_cert.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAMES_BYTES 8192u
#define HOST_MAX 100u

static bool add_extension(X509 *cert, X509V3_CTX *context, int nid, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, context, nid, value);
    bool is_added = extension && X509_add_ext(cert, extension, -1) == 1;

    X509_EXTENSION_free(extension);
    return is_added;
}

static bool is_address(const char *host)
{
    unsigned char address[16];

    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

bool tls_cert_is_host(const char *host)
{
    const size_t n = strlen(host);

    if (is_address(host))
        return true;
    if (strncmp(host, "*.", 2) == 0)
        host += 2;
    return host[0] && n <= HOST_MAX &&
           strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") ==
               strlen(host);
}

/* What the library gets is a list: a comma would begin another name. */
static bool is_one_name(const char *uri)
{
    struct access ignored;

    return !strchr(uri, ',') && access_parse_uri(uri, strlen(uri), &ignored);
}

/* "URI:psd://c/node,DNS:a,IP:10.0.0.1" */
static int write_names(const struct tls_cert_plan *plan, char ret[static NAMES_BYTES],
                       struct err *err)
{
    const struct access *a = &plan->access;
    size_t n = (size_t)snprintf(ret, NAMES_BYTES, "URI:psd://%s/%s%s%s", a->cluster,
                                access_role_name(a->role), a->job[0] ? "/" : "", a->job);

    if (!is_one_name(ret + strlen("URI:")))
        return err_set(err, PS_ESETTING, "%.150s is no name of a certificate",
                       ret + strlen("URI:"));
    for (uint32_t i = 0; i < plan->n_hosts; i++) {
        if (!tls_cert_is_host(plan->hosts[i]) || i >= TLS_CERT_HOSTS_MAX)
            return err_set(err, PS_ESETTING, "\"%.100s\" is no host's name or address",
                           plan->hosts[i]);
        n += (size_t)snprintf(ret + n, NAMES_BYTES - n, ",%s:%s",
                              is_address(plan->hosts[i]) ? "IP" : "DNS", plan->hosts[i]);
    }
    return 0;
}

static bool add_extensions(X509 *cert, X509 *issuer, const struct tls_cert_plan *plan,
                           const char *names)
{
    X509V3_CTX context;

    X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
    if (!plan->ca_cert)
        return add_extension(cert, &context, NID_basic_constraints,
                             "critical,CA:TRUE,pathlen:0") &&
               add_extension(cert, &context, NID_key_usage, "critical,keyCertSign,cRLSign") &&
               add_extension(cert, &context, NID_subject_key_identifier, "hash");
    return add_extension(cert, &context, NID_basic_constraints, "critical,CA:FALSE") &&
           add_extension(cert, &context, NID_key_usage, "critical,digitalSignature") &&
           add_extension(cert, &context, NID_ext_key_usage,
                         plan->access.role == ACCESS_NODE ? "serverAuth,clientAuth"
                                                          : "clientAuth") &&
           add_extension(cert, &context, NID_authority_key_identifier, "keyid") &&
           add_extension(cert, &context, NID_subject_alt_name, names);
}

static bool set_head(X509 *cert, EVP_PKEY *key, const struct tls_cert_plan *plan)
{
    uint64_t number;

    if (RAND_bytes((unsigned char *)&number, sizeof number) != 1)
        return false;
    return X509_set_version(cert, X509_VERSION_3) == 1 &&
           ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert), number >> 1 | 1) == 1 &&
           ASN1_TIME_set(X509_getm_notBefore(cert), (time_t)plan->from_unix_s) &&
           ASN1_TIME_set(X509_getm_notAfter(cert), (time_t)plan->until_unix_s) &&
           X509_set_pubkey(cert, key) == 1 &&
           X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                                      (const unsigned char *)plan->name, -1, -1, 0) == 1;
}

/* NULL: no memory, or no entropy. */
static X509 *make(const struct tls_cert_plan *plan, EVP_PKEY *key, X509 *ca, EVP_PKEY *ca_key,
                  const char *names)
{
    X509 *cert = X509_new(), *issuer = ca ? ca : cert;

    if (cert && set_head(cert, key, plan) &&
        X509_set_issuer_name(cert, X509_get_subject_name(issuer)) == 1 &&
        add_extensions(cert, issuer, plan, names) &&
        X509_sign(cert, ca_key ? ca_key : key, EVP_sha256()))
        return cert;
    X509_free(cert);
    return NULL;
}

/* ---- files ---- */

static FILE *create(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    return fd < 0 ? NULL : fdopen(fd, "w");
}

/* The private key first: a certificate without one is of no use. */
static int save(const struct tls_cert_plan *plan, EVP_PKEY *key, X509 *cert, struct err *err)
{
    const char *path = plan->key;
    FILE *file = create(path);
    int is_bad, status;

    if (!file)
        return err_set(err, -errno, "%.150s: %s", path, status_text(-errno));
    is_bad = PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) != 1;
    is_bad = (fclose(file) != 0) | is_bad;
    path = is_bad ? path : plan->cert;
    file = is_bad ? NULL : create(path);
    if (file) {
        is_bad = PEM_write_X509(file, cert) != 1;
        if (fclose(file) == 0 && !is_bad)
            return 0;
        (void)unlink(plan->cert);
    }
    status = errno ? -errno : -EIO;
    (void)unlink(plan->key);
    return err_set(err, status, "%.150s: %s", path, status_text(status));
}

static int load_ca(const struct tls_cert_plan *plan, X509 **ret_cert, EVP_PKEY **ret_key,
                   struct err *err)
{
    const char *path = plan->ca_cert;
    FILE *file = fopen(path, "re");

    if (file) {
        *ret_cert = PEM_read_X509(file, NULL, NULL, NULL);
        (void)fclose(file);
        path = *ret_cert ? plan->ca_key : path;
        file = *ret_cert ? fopen(path, "re") : NULL;
    }
    if (file) {
        *ret_key = PEM_read_PrivateKey(file, NULL, NULL, NULL);
        (void)fclose(file);
    }
    if (*ret_key)
        return 0;
    return err_set(err, PS_ESETTING, "%.150s is no PEM file of a CA that can be read", path);
}

int tls_cert_make(const struct tls_cert_plan *plan, struct err *err)
{
    char names[NAMES_BYTES] = "";
    EVP_PKEY *key = NULL, *ca_key = NULL;
    X509 *cert = NULL, *ca = NULL;
    int status = plan->ca_cert ? write_names(plan, names, err) : 0;

    if (!status && plan->ca_cert)
        status = load_ca(plan, &ca, &ca_key, err);
    if (!status) {
        key = EVP_EC_gen("P-256");
        cert = key ? make(plan, key, ca, ca_key, names) : NULL;
        status = cert ? save(plan, key, cert, err)
                      : err_set(err, -ENOMEM, "%.150s cannot be made: no memory", plan->cert);
    }
    X509_free(cert);
    X509_free(ca);
    EVP_PKEY_free(key);
    EVP_PKEY_free(ca_key);
    ERR_clear_error();
    return status;
}

/* ---- what is there already ---- */

/* Its text as the certificate has it: no NUL ends it. */
static bool is_uri(const GENERAL_NAME *name, struct access *ret)
{
    const ASN1_STRING *text = name->d.ia5;

    return name->type == GEN_URI && access_parse_uri((const char *)ASN1_STRING_get0_data(text),
                                                     (size_t)ASN1_STRING_length(text), ret);
}

static bool find_access(const GENERAL_NAMES *names, struct access *ret)
{
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++)
        if (is_uri(sk_GENERAL_NAME_value(names, i), ret))
            return true;
    return false;
}

static bool has_host(X509 *cert, const char *host)
{
    return is_address(host) ? X509_check_ip_asc(cert, host, 0) == 1
                            : X509_check_host(cert, host, 0, 0, NULL) == 1;
}

static int compare(const struct tls_cert_plan *plan, X509 *cert, const GENERAL_NAMES *names,
                   struct err *err)
{
    const struct access *want = &plan->access;
    struct access has = { 0 };

    if (!names || !find_access(names, &has))
        return err_set(err, PS_ESETTING, "%.150s has no name psd://CLUSTER/ROLE", plan->cert);
    if (strcmp(has.cluster, want->cluster) != 0 || has.role != want->role ||
        (want->job[0] && strcmp(has.job, want->job) != 0))
        return err_set(
            err, PS_ESETTING, "%.150s is of psd://%s/%s%s%s, and psd://%s/%s%s%s is asked for",
            plan->cert, has.cluster, access_role_name(has.role), has.job[0] ? "/" : "", has.job,
            want->cluster, access_role_name(want->role), want->job[0] ? "/" : "", want->job);
    for (uint32_t i = 0; i < plan->n_hosts; i++)
        if (!has_host(cert, plan->hosts[i]))
            return err_set(err, PS_ESETTING, "%.150s is not for the host %.100s", plan->cert,
                           plan->hosts[i]);
    return 0;
}

int tls_cert_compare(const struct tls_cert_plan *plan, struct err *err)
{
    FILE *file = fopen(plan->cert, "re");
    X509 *cert;
    GENERAL_NAMES *names;
    int status;

    if (!file)
        return err_set(err, -errno, "%.150s: %s", plan->cert, status_text(-errno));
    cert = PEM_read_X509(file, NULL, NULL, NULL);
    (void)fclose(file);
    names = cert ? X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL) : NULL;
    status = cert ? compare(plan, cert, names, err)
                  : err_set(err, PS_ESETTING, "%.150s is no certificate in PEM", plan->cert);
    GENERAL_NAMES_free(names);
    X509_free(cert);
    ERR_clear_error();
    return status;
}
