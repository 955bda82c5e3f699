/* The stats page, page.html beside this file, as it stands in the program. */
#ifndef SERVER_ADMIN_PAGE_H
#define SERVER_ADMIN_PAGE_H

#include "common/base.h"

/* Static storage. */
const char *page_text(size_t *ret_bytes);

#endif
