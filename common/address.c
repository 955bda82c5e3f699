#include "common/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The colon before the port, or NULL. An IPv6 address without brackets has none. */
static const char *find_colon(const char *text, size_t n_bytes)
{
    const char *colon = memrchr(text, ':', n_bytes);

    if (!colon)
        return NULL;
    if (text[0] == '[')
        return colon > text + 2 && colon[-1] == ']' ? colon : NULL;
    return memchr(text, ':', n_bytes) == colon ? colon : NULL;
}

/* Takes host and port apart. False: the n_bytes are not of that form. */
static bool split(const char *text, size_t n_bytes, struct address *ret, long *ret_port)
{
    const char *colon = find_colon(text, n_bytes), *host = text;
    size_t host_bytes, port_bytes;

    *ret = (struct address){ 0 };
    if (!colon)
        return false;
    host_bytes = (size_t)(colon - text);
    port_bytes = n_bytes - host_bytes - 1;
    if (text[0] == '[') {
        host++;
        host_bytes -= 2;
    }
    if (!port_bytes || port_bytes > 5 || host_bytes >= sizeof ret->host)
        return false;
    memcpy(ret->host, host, host_bytes);
    memcpy(ret->port, colon + 1, port_bytes);
    if (strlen(ret->host) != host_bytes || strpbrk(ret->host, "[] \t\"\\") ||
        strspn(ret->port, "0123456789") != port_bytes) /* no NUL, no quote, no sign */
        return false;
    *ret_port = strtol(ret->port, NULL, 10);
    return *ret_port < 65536;
}

/* ---- servers ---- */

int address_parse(const char *text, size_t n_bytes, struct address *ret, struct err *err)
{
    struct address a;
    long port;

    if (n_bytes >= sizeof a.text || !split(text, n_bytes, &a, &port) || !port || !a.host[0])
        return err_set(
            err, -EINVAL,
            "\"%.*s\" is no server address: expected HOST:PORT, as in 127.0.0.1:7070",
            n_bytes > 100 ? 100 : (int)n_bytes, text);
    memcpy(a.text, text, n_bytes);
    *ret = a;
    return 0;
}

int address_list(const char *text, uint32_t max, struct address *ret, uint32_t *ret_n,
                 struct err *err)
{
    const char *at = text;
    uint32_t n = 0;
    size_t len, left, right;
    int status;

    for (;; at += len + 1) {
        len = strcspn(at, ",");
        left = strspn(at, " \t");
        if (n == max)
            return err_set(err, -EINVAL, "more than %u server addresses", max);
        if (left > len)
            left = len;
        for (right = len; right > left && strchr(" \t", at[right - 1]);)
            right--;
        status = address_parse(at + left, right - left, &ret[n], err);
        if (status)
            return status;
        n++;
        if (!at[len])
            break;
    }
    *ret_n = n;
    return 0;
}

/* ---- where a server listens ---- */

int address_parse_listen(const char *name, const char *text, struct address *ret,
                         struct err *err)
{
    long port;

    if (!split(text, strlen(text), ret, &port))
        return err_set(err, PS_ESETTING,
                       "%s: found \"%.100s\", expected HOST:PORT, such as 127.0.0.1:7070, with "
                       "a port up to 65535",
                       name, text);
    return 0;
}

int address_resolve(const char *name, const char *text, struct sockaddr_storage *ret,
                    struct err *err)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *found;
    struct address parts;
    int status = address_parse_listen(name, text, &parts, err);

    if (status)
        return status;
    status = getaddrinfo(parts.host[0] ? parts.host : "0.0.0.0", parts.port, &hints, &found);
    if (status)
        return err_set(err, -EADDRNOTAVAIL, "%s: cannot find host \"%.100s\": %s", name,
                       parts.host, gai_strerror(status));
    memset(ret, 0, sizeof *ret);
    memcpy(ret, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

/* The family and the bytes of an address as numbers; 0: it is a name. */
static int numbers_of(const char *host, struct in6_addr *ret)
{
    memset(ret, 0, sizeof *ret);
    if (inet_pton(AF_INET, host, ret) == 1)
        return AF_INET;
    return inet_pton(AF_INET6, host, ret) == 1 ? AF_INET6 : 0;
}

bool address_is_elsewhere(const char *listen, const char *line)
{
    struct in6_addr at, wanted;
    struct address a, b;
    struct err unwanted;
    int family;
    long port;

    if (!split(listen, strlen(listen), &a, &port) || !port ||
        address_parse(line, strlen(line), &b, &unwanted))
        return false;
    if (port != strtol(b.port, NULL, 10))
        return true;
    family = numbers_of(a.host, &at);
    if (!family || IN6_IS_ADDR_UNSPECIFIED(&at))
        return false;
    return numbers_of(b.host, &wanted) == family && memcmp(&at, &wanted, sizeof at) != 0;
}

void address_text(const struct sockaddr *address, char dst[static ADDRESS_TEXT_MAX])
{
    char host[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr_in *v4 = (const void *)address;
    const struct sockaddr_in6 *v6 = (const void *)address;

    if (address->sa_family == AF_INET) {
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(dst, ADDRESS_TEXT_MAX, "%s:%u", host, ntohs(v4->sin_port));
    } else if (address->sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(dst, ADDRESS_TEXT_MAX, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        snprintf(dst, ADDRESS_TEXT_MAX, "?");
    }
}

struct sockaddr_storage address_host(const struct sockaddr_storage *address)
{
    const struct sockaddr_in *v4 = (const void *)address;
    const struct sockaddr_in6 *v6 = (const void *)address;
    struct sockaddr_storage host = { .ss_family = address->ss_family };
    struct sockaddr_in *host_v4 = (void *)&host;
    struct sockaddr_in6 *host_v6 = (void *)&host;

    if (address->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
        host.ss_family = AF_INET;
        memcpy(&host_v4->sin_addr, &v6->sin6_addr.s6_addr[12], sizeof host_v4->sin_addr);
    } else if (address->ss_family == AF_INET) {
        host_v4->sin_addr = v4->sin_addr;
    } else if (address->ss_family == AF_INET6) {
        memcpy(&host_v6->sin6_addr, &v6->sin6_addr, 64 / 8);
    }
    return host;
}

bool address_is_any(const struct sockaddr *address)
{
    const struct sockaddr_in *v4 = (const void *)address;
    const struct sockaddr_in6 *v6 = (const void *)address;

    if (address->sa_family == AF_INET)
        return v4->sin_addr.s_addr == htonl(INADDR_ANY);
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
}

bool address_is_loopback(const struct sockaddr *address)
{
    const struct sockaddr_in *v4 = (const void *)address;
    const struct sockaddr_in6 *v6 = (const void *)address;

    if (address->sa_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return address->sa_family == AF_INET6 && (IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
                                              (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) &&
                                               v6->sin6_addr.s6_addr[12] == IN_LOOPBACKNET));
}
