/*
 * Where a server listens, as people write it: "host:port" or "[v6 address]:port", and lists of
 * those with commas.
 */
#ifndef WORKER_CLIENT_ADDRESS_H
#define WORKER_CLIENT_ADDRESS_H

#include "common/status.h"

#define ADDRESS_TEXT_MAX 128u /* "host:port", with NUL; what MESSAGE_ADDRESS_MAX allows */

struct address {
    char host[ADDRESS_TEXT_MAX]; /* without brackets */
    char port[8];
    char text[ADDRESS_TEXT_MAX + 16]; /* as it was written, for sentences */
};

/* -EINVAL, and a sentence with what was found, when the n_bytes at `text` are no address. */
int address_parse(const char *text, size_t n_bytes, struct address *ret, struct err *err)
    MUST_CHECK;

/* A comma-separated list of 1 to `max` addresses; blanks around them are fine. */
int address_list(const char *text, uint32_t max, struct address *ret, uint32_t *ret_n,
                 struct err *err) MUST_CHECK;

#endif
