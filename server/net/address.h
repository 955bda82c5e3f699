/*
 * HOST:PORT as people type it: a name or an IPv4 address as it is, an IPv6 address in brackets,
 * nothing before the colon for every interface.
 *
 *     127.0.0.1:7070    node-3.example:7070    [::1]:7070    :7070
 */
#ifndef SERVER_NET_ADDRESS_H
#define SERVER_NET_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

#include "common/status.h"

#define ADDRESS_TEXT_MAX 320u /* host, brackets, port, NUL */

struct address {
    char host[256]; /* "" for every interface */
    char port[8];
};

/* PS_ESETTING and a sentence that opens with `name`, the setting that `text` is from. */
int address_parse(const char *name, const char *text, struct address *ret, struct err *err)
    MUST_CHECK;

/* Asks the resolver, and may wait for it. PS_ESETTING, or -EADDRNOTAVAIL for a host that is
 * unknown. */
int address_resolve(const char *name, const char *text, struct sockaddr_storage *ret,
                    struct err *err) MUST_CHECK;

/* Numbers, in the form above; "?" for another family. */
void address_text(const struct sockaddr *address, char dst[static ADDRESS_TEXT_MAX]);

/* 0.0.0.0 or [::]: nothing that another host could connect to. */
bool address_is_any(const struct sockaddr *address);

#endif
