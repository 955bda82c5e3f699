/*
 * Files behind a struct of functions, so that a test can make the k-th operation fail, tear a
 * write, or keep everything in memory. file_os is the real one.
 *
 * All functions return 0 (or a count) or a negative errno.
 */
#ifndef COMMON_FILE_H
#define COMMON_FILE_H

#include "common/base.h"

struct file_ops {
    void *state; /* borrowed; handed back to every function */
    int (*open_read)(void *state, const char *path, int *ret_fd);
    int (*create)(void *state, const char *path, int *ret_fd); /* truncates */
    /* Returns the number of bytes read: 0 at the end of the file, maybe fewer than requested before it. */
    int64_t (*read)(void *state, int fd, void *dst, size_t n_bytes);
    int (*write_all)(void *state, int fd, const void *src, size_t n_bytes);
    /* Writes at this offset, also beyond the end: unwritten bytes in between read as zeros. */
    int (*write_at)(void *state, int fd, uint64_t offset, const void *src, size_t n_bytes);
    int (*sync)(void *state, int fd);
    int (*close)(void *state, int fd);
    int (*rename)(void *state, const char *from, const char *to);
    int (*unlink)(void *state, const char *path);
    int (*mkdir)(void *state, const char *path); /* 0 if it exists */
    int (*rmdir)(void *state, const char *path);
    int (*sync_dir)(void *state, const char *path);
    /* Calls `each` for every entry but . and .., in no order; stops at the first non-zero and
     * returns it. */
    int (*list)(void *state, const char *path, int (*each)(void *arg, const char *name),
                void *arg);
    /* Begins to write what was written to the file to the disk, and does not wait; a later sync reports failures.
     * NULL: the file system begins when it likes. */
    void (*write_back)(void *state, int fd);
    /* The next read begins so many bytes further on. How many it were: fewer only at the end of the file.
     * NULL: what is not needed is read all the same. */
    int64_t (*skip)(void *state, int fd, uint64_t n_bytes);
};

/* Never waits for what is no file: a FIFO or a device that has nothing to read for so long is PS_ENOTFILE, and what
 * nobody reads is not created (-ENXIO). */
extern const struct file_ops file_os;

#define FILE_PIPE_WAIT_MS 10000

#endif
