/*
 * Large, zeroed, page-aligned memory for arrays that live long and are read at random: from 2
 * MiB on it starts on a huge page's border and the kernel is advised to use huge pages, which
 * saves a TLB miss for every row. Such memory comes from the process's reserve first
 * (common/reserve.h), where it lies side by side: on a border of 4 KiB, in huge pages all the same.
 *
 * In test builds (PS_FAULTS) it comes from mem_try_alloc(), so that faults can be injected and
 * the sanitizers see its borders.
 */
#ifndef COMMON_PAGES_H
#define COMMON_PAGES_H

#include "common/base.h"

/* Zeroed memory or NULL. n_bytes > 0. */
void *pages_alloc(size_t n_bytes) MUST_CHECK;

/* From here on memory of 2 MiB and more is asked for there first; NULL: nowhere. Before other threads ask for any. So who needs pages
 * alone needs no reserve, and none of the libraries that it needs. */
typedef void *pages_source(size_t n_bytes);
void pages_from(pages_source *source);

/* n_bytes: as it was asked for. NULL is fine. */
void pages_free(void *pages, size_t n_bytes);

/* Lets the kernel find and clear this part of such memory now, from whatever thread: what is there
 * stays, and whoever writes to it first later need not wait. Only a hint. */
void pages_touch(void *pages, size_t n_bytes);

#endif
