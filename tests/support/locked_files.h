/* A disk in memory (crash_files.h) that several threads use: one operation at a time. */
#ifndef TESTS_SUPPORT_LOCKED_FILES_H
#define TESTS_SUPPORT_LOCKED_FILES_H

#include <pthread.h>

#include "common/file.h"

struct locked_files {
    struct file_ops ops;          /* what to hand to the code under test */
    const struct file_ops *files; /* borrowed */
    pthread_mutex_t lock;
};

void locked_files_init(struct locked_files *l, const struct file_ops *files);
void locked_files_deinit(struct locked_files *l);

#endif
