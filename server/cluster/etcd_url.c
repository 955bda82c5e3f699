#include "server/cluster/etcd_url.h"

#include <stdio.h>
#include <string.h>

bool etcd_url_is(const char *text)
{
    return strncmp(text, "etcd://", 7) == 0;
}

int etcd_url_parse(const char *url, struct etcd_url *ret, struct err *err)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
    struct address endpoints[ETCD_ENDPOINTS_MAX];
    const char *name = strrchr(url, '/');
    char list[ETCD_ENDPOINTS_MAX * ADDRESS_SERVER_MAX];
    struct err why;
    size_t n;

    *ret = (struct etcd_url){ 0 };
    if (!etcd_url_is(url) || name < url + 7)
        return err_set(err, PS_ESETTING,
                       "%.100s: expected etcd://HOST:PORT[,HOST:PORT...]/CLUSTER", url);
    n = strlen(name + 1);
    if (n == 0 || n > 64 || strspn(name + 1, allowed) != n)
        return err_set(err, PS_ESETTING,
                       "%.100s: the cluster's name has 1 to 64 letters, digits, _ - .", url);
    if ((size_t)snprintf(list, sizeof list, "%.*s", (int)(name - url - 7), url + 7) >=
            sizeof list ||
        address_list(list, ETCD_ENDPOINTS_MAX, endpoints, &ret->n_endpoints, &why))
        return err_set(err, PS_ESETTING, "%.60s: expected 1 to %u addresses of etcd: %.100s",
                       url, ETCD_ENDPOINTS_MAX, why.text);
    for (uint32_t i = 0; i < ret->n_endpoints; i++)
        snprintf(ret->endpoints[i], sizeof ret->endpoints[i], "%s", endpoints[i].text);
    snprintf(ret->prefix, sizeof ret->prefix, "/psd/%s/", name + 1);
    return 0;
}
