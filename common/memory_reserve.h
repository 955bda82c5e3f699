/*
 * A reserve of memory, mapped and cleared in huge pages at the start of the process. memory_map() hands it out until
 * it is used up. The first write to a reserved page does not wait for the kernel to find and clear 2 MiB, nor, on a
 * virtual machine, for the host to find them: a fraction of a millisecond to many.
 *
 * Freed blocks return to the kernel, not to the reserve, because nothing clears them again.
 */
#ifndef COMMON_MEMORY_RESERVE_H
#define COMMON_MEMORY_RESERVE_H

#include "common/status.h"

/* Before any other thread takes, and once until memory_reserve_deinit(). Blocks: a second for some GiB,
 * many where a host has to find them. As many threads as there are cores, at most
 * MEMORY_RESERVE_THREADS_MAX. Errors: -ENOMEM when the machine, or the control group, has not so much. */
#define MEMORY_RESERVE_THREADS_MAX 8u
int memory_reserve_init(uint64_t n_bytes, struct err *err) MUST_CHECK;

/* Returns the unused part of the reserve to the kernel; blocks that were handed out stay valid. */
void memory_reserve_deinit(void);

/* Zeroed, on a page's border; NULL when there is not so much left. Any thread. */
void *memory_reserve_acquire(size_t n_bytes) MUST_CHECK;

/* Bytes that are left. Any thread. */
uint64_t memory_reserve_left(void);

#endif
