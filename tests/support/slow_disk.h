/*
 * A disk whose writes stand still on demand: whoever writes waits at a gate until the test opens it,
 * and the test can wait until somebody stands there. Everything else goes to the disk behind it.
 */
#ifndef TESTS_SUPPORT_SLOW_DISK_H
#define TESTS_SUPPORT_SLOW_DISK_H

#include <stdbool.h>
#include <uv.h>

#include "common/file.h"

struct slow_disk {
    const struct file_ops *disk; /* borrowed */
    struct file_ops ops;         /* what to hand to the code under test */
    uv_mutex_t lock;
    uv_cond_t changed;
    bool is_shut;
    unsigned n_at_gate;
};

/* *d must not move. The gate is open. */
void slow_disk_init(struct slow_disk *d, const struct file_ops *disk);
void slow_disk_deinit(struct slow_disk *d);

void slow_disk_shut(struct slow_disk *d);
void slow_disk_open(struct slow_disk *d);

/* Until a write stands at the shut gate. */
void slow_disk_await(struct slow_disk *d);

#endif
