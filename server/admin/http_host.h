/*
 * The host in the header Host of a request, or in an address. A browser sends the name under which it reached this
 * node, so a name that somebody else can register is another site's (DNS rebinding).
 */
#ifndef SERVER_ADMIN_HTTP_HOST_H
#define SERVER_ADMIN_HTTP_HOST_H

#include <stdbool.h>

#define HTTP_HOST_MAX 256

/* The host of "host:port" or "[::1]:port" (brackets stay) without a last dot. False: it is neither, or too long. */
bool http_host_get(const char *text, char dst[static HTTP_HOST_MAX]);

/* A number, localhost, or another name that nobody can register. A zone is an interface of this machine. */
bool http_host_is_own(const char *host);

#endif
