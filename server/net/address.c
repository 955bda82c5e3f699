#include "server/net/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const char *name, const char *text, struct err *err)
{
    return err_set(err, PS_ESETTING,
                   "%s: found \"%.100s\", expected HOST:PORT, such as 127.0.0.1:7070", name,
                   text);
}

/* The colon before the port, or NULL. */
static const char *find_colon(const char *text)
{
    const char *colon = strrchr(text, ':');

    if (!colon)
        return NULL;
    if (text[0] == '[')
        return colon > text + 2 && colon[-1] == ']' ? colon : NULL;
    return strchr(text, ':') == colon ? colon : NULL; /* an IPv6 address wants brackets */
}

int address_parse(const char *name, const char *text, struct address *ret, struct err *err)
{
    const char *colon = find_colon(text), *host = text;
    size_t host_bytes;
    char *end;
    long port;

    if (!colon || colon[1] < '0' || colon[1] > '9')
        return refuse(name, text, err);
    host_bytes = (size_t)(colon - text);
    if (text[0] == '[') {
        host++;
        host_bytes -= 2;
    }
    port = strtol(colon + 1, &end, 10);
    if (*end || port > 65535 || strlen(colon + 1) > 5 || host_bytes >= sizeof ret->host)
        return refuse(name, text, err);
    memcpy(ret->host, host, host_bytes);
    ret->host[host_bytes] = '\0';
    snprintf(ret->port, sizeof ret->port, "%.5s", colon + 1);
    return 0;
}

int address_resolve(const char *name, const char *text, struct sockaddr_storage *ret,
                    struct err *err)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *found;
    struct address parts;
    int status = address_parse(name, text, &parts, err);

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

bool address_is_any(const struct sockaddr *address)
{
    const struct sockaddr_in *v4 = (const void *)address;
    const struct sockaddr_in6 *v6 = (const void *)address;

    if (address->sa_family == AF_INET)
        return v4->sin_addr.s_addr == htonl(INADDR_ANY);
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
}
