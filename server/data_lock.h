/* One psd to a data directory: a lock that ends with the process, however that ends. */
#ifndef SERVER_DATA_LOCK_H
#define SERVER_DATA_LOCK_H

#include <stdbool.h>

#include "common/status.h"

struct data_lock {
    const char *data_dir; /* borrowed */
    int fd;               /* -1: not taken */
    bool is_new;          /* the directory was made for it */
};

/* Makes the directory when it is not there. A sentence when another process has the lock, or the directory
 * cannot be written to; *ret is not taken then. */
int data_lock_take(const char *data_dir, struct data_lock *ret, struct err *err) MUST_CHECK;

/* Gives it back. One that is not taken is fine. */
void data_lock_give(struct data_lock *lock);

/* The same for who has failed: a directory that was made for it goes, as long as nothing else was put there. */
void data_lock_give_up(struct data_lock *lock);

#endif
