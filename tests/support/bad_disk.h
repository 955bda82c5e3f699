/*
 * A disk under crash_files that is as bad as disks are: a sync that fails loses the file's pages
 * and calls them clean, and a power cut leaves any of the sectors and names that were not synced.
 */
#ifndef TESTS_SUPPORT_BAD_DISK_H
#define TESTS_SUPPORT_BAD_DISK_H

#include "tests/support/crash_files.h"

struct bad_disk {
    struct crash_files files; /* faults are set here */
    struct file_ops ops;      /* what to hand to the code under test */
    bool full;                /* no write succeeds */
};

void bad_disk_init(struct bad_disk *d);

/* seed 0: exactly what was synced is left. keeps_names: a file system that writes names back in their
 * order, whether they are synced or not. */
void bad_disk_power_cut(struct bad_disk *d, uint64_t seed, bool keeps_names);

#endif
