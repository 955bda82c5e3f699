/*
 * HOST:PORT, as people write it: a name or an IPv4 address as it is, an IPv6 address in brackets. A server's
 * listening address may leave out the host, for every interface, and may have port 0, for any that is free.
 *
 *     127.0.0.1:7070    node-3.example:7070    [::1]:7070    :7070
 */
#ifndef COMMON_ADDRESS_H
#define COMMON_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

#include "common/status.h"

#define ADDRESS_TEXT_MAX 320u   /* host, brackets, colon, port, NUL */
#define ADDRESS_SERVER_MAX 128u /* of a server's address, with NUL: MESSAGE_ADDRESS_MAX */

struct address {
    char host[256]; /* without brackets; "": every interface */
    char port[8];
    char text[ADDRESS_SERVER_MAX]; /* of address_parse(): as it was written, for sentences */
};

/* Parses the address of a server to connect to: a host, and a port from 1 to 65535, in the n_bytes at `text`. -EINVAL:
 * *err has the fault. */
int address_parse(const char *text, size_t n_bytes, struct address *ret, struct err *err)
    MUST_CHECK;

/* A comma-separated list of 1 to `max` servers, blanks around them allowed. Sets ret[0..*ret_n). Errors: -EINVAL. */
int address_list(const char *text, uint32_t max, struct address *ret, uint32_t *ret_n,
                 struct err *err) MUST_CHECK;

/* Parses the address on which a server listens, the value `text` of the setting `name`. PS_ESETTING with a sentence
 * that begins with the setting's name. */
int address_parse_listen(const char *name, const char *text, struct address *ret,
                         struct err *err) MUST_CHECK;

/* The same, as numbers. Asks the resolver, and may block. Errors: PS_ESETTING; -EADDRNOTAVAIL for an unknown host. */
int address_resolve(const char *name, const char *text, struct sockaddr_storage *ret,
                    struct err *err) MUST_CHECK;

/* Is what listens on `listen` surely not at `line`, where others look for it? Another port, or another number for a
 * host. Names are not looked up, and port 0 may become any. */
bool address_is_elsewhere(const char *listen, const char *line);

/* Numbers, in the form above; "?" for another family. */
void address_text(const struct sockaddr *address, char dst[static ADDRESS_TEXT_MAX]);

/*
 * The host alone, its port 0: two of these are one host's if their bytes are the same. An IPv4 address in IPv6's
 * clothes is that IPv4 address; of another IPv6 address only the first 64 bits count, as one host has all of its /64.
 */
struct sockaddr_storage address_host(const struct sockaddr_storage *address);

/* 0.0.0.0 or [::]: nothing that another host could connect to. */
bool address_is_any(const struct sockaddr *address);

/* 127.0.0.0/8, [::1], or the first of them as IPv6: only this machine connects to it. */
bool address_is_loopback(const struct sockaddr *address);

#endif
