#include "common/tls.h"

const char *tls_fault_text(enum tls_fault fault)
{
    static const char *const texts[] = {
        [TLS_FAULT_NONE] = "",
        [TLS_FAULT_CA] = "is not of the CA in tls-ca: peers with the same tls-ca refuse it",
        [TLS_FAULT_SERVER] =
            "is not for servers (extendedKeyUsage lacks serverAuth): clients refuse it",
        [TLS_FAULT_CLIENT] = ("is not for clients (extendedKeyUsage lacks clientAuth): nodes "
                              "that it connects to refuse it"),
    };

    return texts[fault];
}
