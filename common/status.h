/*
 * One code space for everything that can go wrong.
 *
 *          0           it worked
 *     -1 .. -4095      a negated errno, and so every code libuv returns
 *     -10001 ..        ours, listed below
 *
 * A call into the kernel, libuv or our own code is therefore checked in the
 * same way, and its result is passed up unchanged. The same numbers travel in
 * the replies on the wire, so they are never renumbered.
 */
#ifndef COMMON_STATUS_H
#define COMMON_STATUS_H

#include "common/base.h"

/* clang-format off */
#define PS_STATUS_LIST(X)                                                              \
    X(PS_EPROTO,    -10001, "the peer broke the protocol")                             \
    X(PS_ECORRUPT,  -10002, "stored or received data is damaged, such as a wrong checksum or zstd frame") \
    X(PS_ENOTABLE,  -10003, "no such table")                                           \
    X(PS_EWIDTH,    -10004, "row width differs from the table's")                      \
    X(PS_ESHARD,    -10005, "key belongs to another shard")                            \
    X(PS_EDEVICE,   -10006, "the accelerator reported an error")                       \
    X(PS_ESPEC,     -10007, "the table exists with another specification")             \
    X(PS_EBUDGET,   -10008, "the memory budget is reached: new rows are refused")      \
    X(PS_EFENCED,   -10009, "this incarnation left, is suspected or dead, or was replaced") \
    X(PS_ESEQ,      -10010, "a push is missing before this one")                       \
    X(PS_EDEADLINE, -10011, "the deadline passed")                                     \
    X(PS_ENAN,      -10012, "the push holds NaN or infinity")                          \
    X(PS_EORDER,    -10013, "keys are not sorted and unique")                          \
    X(PS_ECODEC,    -10014, "unknown codec, or its bytes make no sense")               \
    X(PS_EVERSION,  -10015, "no common protocol version")                              \
    X(PS_EGREETING, -10016, "the greeting was refused")                                \
    X(PS_EJOB,      -10017, "the job runs with other settings")                        \
    X(PS_ETOOBIG,   -10018, "larger than the limit")                                   \
    X(PS_ECLUSTER,  -10019, "the nodes disagree about the cluster")                    \
    X(PS_ESTOPPING, -10020, "the daemon is stopping")                                  \
    X(PS_EDATA,     -10021, "the data cannot be read as specified")                    \
    X(PS_ESETTING,  -10022, "a setting is wrong")                                      \
    X(PS_ENOJOIN,   -10023, "the connection has not joined a job")                     \
    X(PS_ECOUNT,    -10024, "counts and lengths do not match")                         \
    X(PS_ENOCHECKPOINT, -10025, "no valid checkpoint")                                 \
    X(PS_EHTTP,     -10026, "it answers HTTP: is this the stats port?")                \
    X(PS_ENOTFILE,  -10027, "it is no file, and nothing came from it for 10 s") \
    X(PS_EMOVED,    -10028, "another node serves these shards now") \
    X(PS_EKEYS,     -10029, "the push names the keys of a pull that is not kept: send it with its keys") \
    X(PS_EDENIED,   -10040, "the role of this certificate or token does not allow it") \
    X(PS_ETLS,      -10041, "the TLS handshake failed") \
    X(PS_ETLSPLAIN, -10042, "one end speaks TLS and the other does not: give tls-ca at both, or at neither") \
    X(PS_ETLSVERSION, -10043, "the peer offers no TLS 1.3") \
    X(PS_ETLSEXPIRED, -10044, "the peer's certificate has expired, or its time has not begun") \
    X(PS_ETLSCA,    -10045, "the peer's certificate is of another CA than the one in tls-ca") \
    X(PS_ETLSNAME,  -10046, "the peer's certificate lacks an expected name: " \
                            "psd://CLUSTER/ROLE of this cluster, and of a node its host") \
    X(PS_ETLSNONE,  -10047, "the peer shows no certificate") \
    X(PS_ETLSOWNEXPIRED, -10048, "the peer refuses this end's certificate: it has expired (tls-cert)") \
    X(PS_ETLSOWNCA, -10049, "the peer refuses this end's certificate: it is of another CA (tls-cert)") \
    X(PS_ETLSOWNNAME, -10050, "the peer refuses this end's certificate for its names (tls-cert)") \
    X(PS_ETLSOWNNONE, -10051, "the peer asks for a certificate, and this end has none (tls-cert, tls-key)") \
    X(PS_ETLSENDED, -10052, "the peer has ended the connection in the TLS handshake: does it speak TLS?") \
    X(PS_ETLSUSE,   -10053, "the peer's certificate is not for this use: extendedKeyUsage lacks " \
                            "serverAuth (of a node) or clientAuth (of who connects)") \
    X(PS_ETLSOWNUSE, -10054, "the peer refuses the use of this end's certificate (tls-cert): extendedKeyUsage lacks " \
                             "clientAuth, or serverAuth of a node")
/* clang-format on */

enum ps_status {
    PS_OK = 0,
#define X(name, value, text) name = value,
    PS_STATUS_LIST(X)
#undef X
};

/* Those of TLS, from PS_ETLS down to this one. */
#define PS_ETLS_LAST PS_ETLSOWNUSE

/* A sentence for any status above. Never NULL; static storage. */
EXTERN_C const char *status_text(int status);

/*
 * A status plus one sentence for the operator. Functions that run at start-up,
 * on shutdown or on the checkpoint path fill one in; the hot path returns the
 * bare status.
 */
struct err {
    int status;
    char text[256];
};

/* Fills `err` (NULL is fine) and returns `status`, so that a failure is one line:
 *     return err_set(err, PS_ECORRUPT, "%s: chunk %u", path, i); */
EXTERN_C int err_set(struct err *err, int status, const char *fmt, ...) PRINTF_LIKE(3, 4);

#endif
