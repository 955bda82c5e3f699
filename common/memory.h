/*
 * Three ways to ask for memory.
 *
 * memory_alloc() is for bookkeeping whose size we choose: it never returns NULL, because a daemon that cannot get
 * 200 bytes has no better move than to stop. A library in another's process has one: nothing that libpsd links calls
 * it (tests/lint/check_no_exit.sh). memory_try_alloc() is for a size that a peer, a file or a setting
 * chooses: it may return NULL, and every caller has a test that makes it do so. memory_map() is for large arrays
 * that live long and are read at random.
 */
#ifndef COMMON_MEMORY_H
#define COMMON_MEMORY_H

#include "common/base.h"

/* Zeroed memory, or the process aborts. Release with free(). */
void *memory_alloc(size_t n_bytes);

/* As memory_alloc(), at the border of a cache line: for an array that a kernel writes and reads again at once. (A
 * vector store that crosses lines is not forwarded to the load behind it.) */
void *memory_alloc_lines(size_t n_bytes);

/* What was made of memory; NULL: there was none, and the process aborts likewise. */
void *memory_need(void *made);

/* Zeroed memory or NULL. Release with free(). */
void *memory_try_alloc(size_t n_bytes) MUST_CHECK;

/* Like realloc(); on NULL the old block still stands. */
void *memory_try_realloc(void *block, size_t n_bytes) MUST_CHECK;

/* For megabytes that are written and read from one end to the other, again and again: not zeroed, or
 * NULL. From 2 MiB on the kernel is advised to use huge pages, which saves a TLB miss for every 4 KiB. Release with
 * free(). */
void *memory_try_large(size_t n_bytes) MUST_CHECK;

/* The allocator maps blocks of 1 MiB and more, always: they grow without a copy, and their memory goes back to the
 * system with them. (Else it maps fewer of them the more it has seen.) Call it before other threads run. */
void memory_map_large_blocks(void);

/* Gives the memory of n_bytes in a block back to the system, but for the pages at both ends. Their contents are lost,
 * and the block is still to be freed: what is large so takes several short calls in place of a long one. */
void memory_drop(uint8_t *bytes, size_t n_bytes);

/* Marks a pooled block as not to be touched until memory_show(). Builds with AddressSanitizer report any access. */
void memory_hide(void *block, size_t n_bytes);
void memory_show(void *block, size_t n_bytes);

/*
 * Large arrays: zeroed and page-aligned, or NULL. n_bytes > 0. From 2 MiB on the memory begins at a huge page's
 * border and the kernel is advised to use huge pages, which saves a TLB miss for every row. It comes from the
 * process's reserve first (memory_reserve.h), where it lies on a border of 4 KiB, in huge pages all the same.
 *
 * Test builds (PS_FAULTS) call memory_try_alloc() instead, so that faults can be injected and the sanitizers see the
 * borders of each block.
 */
void *memory_map(size_t n_bytes) MUST_CHECK;

/* n_bytes: of the memory_map() call. NULL is fine. */
void memory_unmap(void *pages, size_t n_bytes);

/* Has the kernel find and clear this part of mapped memory now, from any thread, so that the first write does not
 * wait. Contents stay. A hint. */
void memory_populate(void *pages, size_t n_bytes);

/* Sets where memory_map() asks first for 2 MiB and more; NULL: nowhere. Call it before other threads map. (A
 * function, so that programs without a reserve need not link libuv.) */
typedef void *memory_source(size_t n_bytes);
void memory_map_from(memory_source *source);

#ifdef PS_FAULTS
/* Let `n_allocs` more memory_try_*() calls of this thread succeed, then fail each
 * one; -1 switches the fault off. Test builds only. */
void memory_fail_after(long n_allocs);

/* The same for all threads together, but for those that are exempt: then n_fail calls fail, and all succeed again.
 * n_allocs -1 switches the fault off. */
void memory_fail_anywhere(long n_allocs, long n_fail);
void memory_exempt_this_thread(void);

/* How many calls have failed since memory_fail_anywhere(). */
long memory_n_failed_anywhere(void);
#endif

#endif
