/*
 * TLS 1.3, with certificates at both ends, over OpenSSL. Nothing here reads or writes a socket: a session turns bytes
 * into bytes, and whoever owns the socket moves them.
 *
 *     tls_context     what a process is: its certificate, its key, and the CA that it believes
 *     tls_session     one connection; of the thread that owns its socket, one after the other
 *
 * A context may be used by many threads, and may be read again meanwhile: sessions that have begun keep what they began
 * with. Who a peer is, its certificate says: access.h. A server's certificate has the role node and the host's name; a
 * client's any role; both name the cluster that our own certificate names.
 */
#ifndef COMMON_TLS_H
#define COMMON_TLS_H

#include <stdbool.h>

#include "common/access.h"
#include "common/bytes.h"
#include "common/status.h"

/* ---- contexts ---- */

struct tls_context;

/* PEM files; "" for one that is not there. */
struct tls_files {
    const char *ca;         /* certificates of the CA that peers' are of; wanted */
    const char *cert, *key; /* our own; a client may have none, then it needs a token */
    bool is_node;           /* ours is to have the role node, as clients want of a server */
};

/* Of our own certificate; 0 if there is none. */
struct tls_expiry {
    int64_t unix_s;    /* when it expires */
    int64_t ca_unix_s; /* the first of the CA's to expire */
};

/* What peers will hold against our own certificate, beside its end. */
enum tls_fault {
    TLS_FAULT_NONE,
    TLS_FAULT_CA,     /* it does not verify against our own CA's, which is mostly also theirs */
    TLS_FAULT_SERVER, /* of role node: its extendedKeyUsage has no serverAuth */
    TLS_FAULT_CLIENT, /* no clientAuth */
};

/* PS_ESETTING and a sentence that begins with the setting: a file cannot be read, or cert and key do not fit. */
int tls_context_new(const struct tls_files *files, struct tls_context **ret, struct err *err)
    MUST_CHECK;

/* As tls_context_new() of a client; *ret is NULL where no file is named: it speaks no TLS. */
int tls_context_open(const char *ca, const char *cert, const char *key,
                     struct tls_context **ret, struct err *err) MUST_CHECK;

/* Reads the files again, for sessions to come. On failure everything stays as it was: also where our own certificate
 * has not expired, and that in the file has. */
int tls_context_reload(struct tls_context *t, const struct tls_files *files, struct err *err)
    MUST_CHECK;

void tls_context_expiry(struct tls_context *t, struct tls_expiry *ret);

/* Such a certificate is used all the same: peers may have another CA than we. */
enum tls_fault tls_context_fault(struct tls_context *t);

/* What stands behind "the certificate"; "" of TLS_FAULT_NONE. */
const char *tls_fault_text(enum tls_fault fault);

/* A server's, of sessions to come: are peers without a certificate refused? They are, unless this says no. */
void tls_context_set_needs_certificate(struct tls_context *t, bool needs);

/* For another library that speaks TLS with the certificate of this context, as it is now: our own certificate and those
 * that it came with, and our key, as PEM, appended. -ENOMEM. */
int tls_context_write_pem(struct tls_context *t, struct bytes *certs, struct bytes *key)
    MUST_CHECK;

/* A certificate as DER; borrowed. */
struct tls_der {
    const uint8_t *bytes;
    size_t n_bytes;
};

/* Checks what a client has shown to another library: its certificate, and those behind it of CAs between it and ours;
 * n of them, at least 1. 0 and *ret, or why it is refused. */
int tls_context_check_peer(struct tls_context *t, const struct tls_der *certs, uint32_t n,
                           struct access *ret) MUST_CHECK;

/* Its sessions may still be open. NULL is fine. */
void tls_context_free(struct tls_context *t);

/* ---- sessions ---- */

struct tls_session;

/* The end that was connected to, and the one that connects; host: the name or the numeric address that it asked for.
 * -ENOMEM. */
int tls_session_accept(struct tls_context *t, struct tls_session **ret) MUST_CHECK;
int tls_session_connect(struct tls_context *t, const char *host, struct tls_session **ret)
    MUST_CHECK;

void tls_session_free(struct tls_session *s);

/* The n_bytes that the next calls read; borrowed until tls_session_left() is 0, or the next call of this. */
void tls_session_feed(struct tls_session *s, const uint8_t *bytes, size_t n_bytes);
size_t tls_session_left(const struct tls_session *s);

/* 0 once it is done, -EAGAIN while it wants to be fed, else why it failed: PS_EHTTP where the server says that it
 * speaks HTTP. In any case tls_session_reply() is to be sent. */
int tls_session_handshake(struct tls_session *s) MUST_CHECK;

/* What is to be sent beside what tls_session_write() gives; mostly empty. Whoever sends it consumes it. */
struct bytes *tls_session_reply(struct tls_session *s);

/* *ret_bytes of what the peer has written. -EAGAIN: it wants to be fed; UV_EOF: the peer has said its end. */
int tls_session_read(struct tls_session *s, uint8_t *dst, size_t max_bytes, size_t *ret_bytes)
    MUST_CHECK;

/* Can tls_session_read() have something without being fed? */
bool tls_session_has_more(const struct tls_session *s);

/* So much space is taken by what n_bytes become. */
size_t tls_session_sealed_bytes(size_t n_bytes);

/* Appends what the peer is to get for n_bytes to *out. Where there is space for tls_session_sealed_bytes() it does not
 * move. */
int tls_session_write(struct tls_session *s, const uint8_t *bytes, size_t n_bytes,
                      struct bytes *out) MUST_CHECK;

/* Who the peer is, once the handshake is done; false: it has shown no certificate. */
bool tls_session_peer(const struct tls_session *s, struct access *ret);

/* Is this the beginning of a TLS connection, and not one of frames or of HTTP? n_bytes: 1 or more. */
bool tls_is_hello(const uint8_t *bytes, size_t n_bytes);

#endif
