/* etcd://HOST:PORT[,HOST:PORT...]/CLUSTER. */
#ifndef SERVER_CLUSTER_ETCD_URL_H
#define SERVER_CLUSTER_ETCD_URL_H

#include "common/address.h"

#define ETCD_ENDPOINTS_MAX 8u
#define ETCD_PREFIX_MAX 80u

struct etcd_url {
    char endpoints[ETCD_ENDPOINTS_MAX][ADDRESS_SERVER_MAX];
    uint32_t n_endpoints;
    char prefix[ETCD_PREFIX_MAX]; /* of the cluster's keys: "/psd/CLUSTER/" */
};

/* It begins as such a url does. */
bool etcd_url_is(const char *text);

/* CLUSTER is 1 to 64 letters, digits, "_", "-", ".". PS_ESETTING: *err has the fault. */
int etcd_url_parse(const char *url, struct etcd_url *ret, struct err *err) MUST_CHECK;

#endif
