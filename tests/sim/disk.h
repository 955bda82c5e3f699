/*
 * A disk in memory, with all that a disk does to those who trust it:
 *
 *     die_at          the process dies in operation number die_at, counted from 0: half of a write is
 *                     in the file, and every later operation of that process fails
 *     full, failing   writes and new files fail with -ENOSPC, -EIO
 *     sync_fails      so does sync(), and what was not synced before is never safe: the kernel
 *                     drops the pages, and calls them clean ("fsyncgate")
 *     power cut       of each file what was not synced is there in part: none, all, a beginning, with
 *                     zeros in it; of each directory's changes since its last sync a beginning
 *
 * Nothing is renamed into another directory: psd does not. What is written over in place counts as not synced, with all
 * behind it.
 */
#ifndef TESTS_SIM_DISK_H
#define TESTS_SIM_DISK_H

#include "common/file.h"
#include "tests/sim/dice.h"

#define DISK_PART_MAX 48u /* of a path between two slashes */
#define DISK_N_BUCKETS 128u
#define DISK_NEVER UINT64_MAX

struct disk_inode;
struct disk_name;
struct disk_change;

struct disk {
    struct file_ops ops; /* what to hand to the code under test */
    struct dice dice;
    uint64_t n_ops, die_at;
    uint64_t n_faults; /* operations that failed */
    bool full, failing, sync_fails;
    bool dead;     /* the process has died in an operation */
    bool is_gated; /* a sync has failed: until the power is cut nobody knows what is safe */

    struct disk_inode *inodes;        /* owned */
    struct disk_name *names;          /* owned */
    uint32_t buckets[DISK_N_BUCKETS]; /* of names */
    struct disk_change *changes;      /* owned: of directories, not synced */
    uint32_t *opens;                  /* owned: the inode, and where in it, of each open file */
    uint64_t *offsets;                /* owned */
    uint32_t n_inodes, n_names, n_changes, n_opens, cap_inodes, cap_names, cap_changes,
        cap_opens;
};

void disk_init(struct disk *d, struct dice dice);
void disk_deinit(struct disk *d);

/* Of an open file: its length; a part of it, as pread() has it. */
size_t disk_size(const struct disk *d, int fd);
int64_t disk_read_at(struct disk *d, int fd, uint64_t offset, void *dst, size_t n_bytes);

/* The process is gone; what it wrote stays. Faults that were its own are over. */
void disk_kill(struct disk *d);
void disk_power_cut(struct disk *d);
/* Nothing is to go wrong with it any more. */
void disk_heal(struct disk *d);

/* *ret: another disk of the same content, with no faults. */
void disk_clone(const struct disk *d, struct dice dice, struct disk *ret);

#endif
