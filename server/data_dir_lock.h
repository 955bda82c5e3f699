/* One psd to a data directory: a lock that ends with the process, however that ends. */
#ifndef SERVER_DATA_DIR_LOCK_H
#define SERVER_DATA_DIR_LOCK_H

#include <stdbool.h>

#include "common/status.h"

struct data_dir_lock {
    const char *data_dir; /* borrowed */
    int fd;               /* -1: not taken */
    bool is_new;          /* the directory was made for it */
    bool is_emptied;      /* a psd has had it before, and nothing is in it any more */
};

/* Makes the directory, for its owner alone, if it does not exist, and locks it. Fails with a sentence if another
 * process has the lock, or the directory cannot be written to; *ret is not taken then. */
int data_dir_lock_acquire(const char *data_dir, struct data_dir_lock *ret, struct err *err)
    MUST_CHECK;

/* Of a directory that is new, or was emptied: what is gone as a whole leaves no trace in itself. */
void data_dir_lock_log(const struct data_dir_lock *lock);

/* Gives it back. One that is not taken is fine. */
void data_dir_lock_release(struct data_dir_lock *lock);

/* The same after a failure: a directory that was made for it is removed if it is empty. */
void data_dir_lock_abandon(struct data_dir_lock *lock);

#endif
