#include "server/admin/http_host.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Of a name without a dot. */
static const char name_chars[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

bool http_host_get(const char *text, char dst[static HTTP_HOST_MAX])
{
    size_t n =
        text[0] == '[' ? strcspn(text, "]") + (strchr(text, ']') != NULL) : strcspn(text, ":");
    const char *port = text + n;

    if (n >= HTTP_HOST_MAX || (*port && *port != ':') ||
        (*port && port[1 + strspn(port + 1, "0123456789")]))
        return false;
    memcpy(dst, text, n);
    n -= n > 1 && dst[n - 1] == '.';
    dst[n] = '\0';
    return n > 0;
}

/* "%eth0]", or "%25eth0]" as in a URL: an interface of this machine, by name or number. */
static bool is_own_zone(const char *text)
{
    char zone[IF_NAMESIZE];
    const char *start = text + 1 + (strncmp(text, "%25", 3) == 0 && text[3] != ']' ? 2 : 0);
    size_t n = strcspn(start, "]");

    if (*text != '%' || !n || n >= sizeof zone || strcmp(start + n, "]") != 0)
        return false;
    snprintf(zone, sizeof zone, "%.*s", (int)n, start);
    return zone[strspn(zone, "0123456789")] == '\0' || if_nametoindex(zone) != 0;
}

/* "[::1]", "[fe80::1%eth0]" */
static bool is_ipv6(const char *host)
{
    char text[INET6_ADDRSTRLEN];
    struct in6_addr address;
    size_t n = strcspn(host, "%]");

    if (host[0] != '[' || n > sizeof text)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)n - 1, host + 1);
    return inet_pton(AF_INET6, text, &address) == 1 &&
           (strcmp(host + n, "]") == 0 ||
            (IN6_IS_ADDR_LINKLOCAL(&address) && is_own_zone(host + n)));
}

bool http_host_is_own(const char *host)
{
    uint8_t ignored[sizeof(struct in_addr)];

    return is_ipv6(host) || inet_pton(AF_INET, host, ignored) == 1 ||
           host[strspn(host, name_chars)] == '\0';
}
