/*
 * The files of the stats page, as they stand in the program. They come from the folder page/ and need no other host;
 * none has a script or a style within its HTML, so the policy that a browser gets with them allows none.
 */
#ifndef SERVER_ADMIN_PAGE_H
#define SERVER_ADMIN_PAGE_H

#include <stdbool.h>

#include "common/base.h"

#define PAGE_BYTES_MAX 150000u /* of all files together; a test holds them to it */

struct page_file {
    const char *path, *content_type;
    const char *text; /* static storage, without a zero byte at its end */
    size_t n_bytes;
};

/* The header Content-Security-Policy of all of them. */
extern const char page_policy[];

/* 0, 1, 2 ...: true until there are no more. */
bool page_file_at(uint32_t i, struct page_file *ret);

/* False: there is none of this path. */
bool page_file_find(const char *path, struct page_file *ret);

#endif
