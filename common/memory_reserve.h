/*
 * Memory that the process has before it needs it: mapped, found and cleared at the start, in huge
 * pages, and handed out by memory_map() until it is used up. Who writes to it first does not wait
 * for the kernel to find and clear 2 MiB, nor, on a virtual machine, for the host to find them:
 * a fraction of a millisecond to many.
 *
 * What is given back goes to the kernel, not to the reserve: nobody clears it again.
 */
#ifndef COMMON_MEMORY_RESERVE_H
#define COMMON_MEMORY_RESERVE_H

#include "common/status.h"

/* Before any other thread takes, and once until memory_reserve_deinit(). Blocks: a second for some GiB,
 * many where a host has to find them. As many threads as there are cores, at most
 * MEMORY_RESERVE_THREADS_MAX. Errors: -ENOMEM when the machine, or the control group, has not so much. */
#define MEMORY_RESERVE_THREADS_MAX 8u
int memory_reserve_init(uint64_t n_bytes, struct err *err) MUST_CHECK;

/* What nobody has taken goes back to the kernel. What is taken stays its taker's. */
void memory_reserve_deinit(void);

/* Zeroed, on a page's border; NULL when there is not so much left. Any thread. */
void *memory_reserve_acquire(size_t n_bytes) MUST_CHECK;

/* Bytes that are left. Any thread. */
uint64_t memory_reserve_left(void);

#endif
