/* One psd to a data directory: a lock that ends with the process, however that ends. */
#ifndef SERVER_DATA_LOCK_H
#define SERVER_DATA_LOCK_H

#include "common/status.h"

/* Makes the directory when it is not there. *ret_fd holds the lock; close() gives it back. A
 * sentence when another process has it, or the directory cannot be written to. */
int data_lock_take(const char *data_dir, int *ret_fd, struct err *err) MUST_CHECK;

#endif
