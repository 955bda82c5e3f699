/*
 * A disk in memory that fails on demand and forgets on a power cut what was not synced: a
 * file's bytes after its last sync(), and names (created, renamed, removed) since their
 * directory's last sync_dir().
 *
 *     c.fail_at = k           operation number k, counted from 0, fails with -EIO
 *     c.torn                  ... if it is a write, half of its bytes are written first
 *     c.dies                  ... and so does every operation after it: the process is dead
 */
#ifndef TESTS_SUPPORT_CRASH_FILES_H
#define TESTS_SUPPORT_CRASH_FILES_H

#include <stdbool.h>

#include "common/file.h"

#define CRASH_PATH_MAX 160u

struct crash_inode {
    uint8_t *bytes; /* owned */
    size_t n_bytes, n_synced;
};

struct crash_name {
    char path[CRASH_PATH_MAX];
    bool is_dir;
    long live, durable; /* number of the inode, -1: there is no such name */
};

struct crash_open {
    long inode; /* -1: closed */
    size_t offset;
};

struct crash_files {
    struct file_ops ops; /* what to hand to the code under test */
    long n_ops, fail_at; /* -1: never */
    bool torn, dies, dead;

    struct crash_inode *inodes; /* owned */
    struct crash_name *names;   /* owned */
    struct crash_open *opens;   /* owned; the index is the fd */
    long n_inodes, n_names, n_opens;
};

void crash_files_init(struct crash_files *c);
void crash_files_deinit(struct crash_files *c);

/* No more faults; the count of operations starts anew. */
void crash_files_heal(struct crash_files *c);

/* Only what was synced is left; all files are closed; then as after crash_files_heal(). */
void crash_files_power_cut(struct crash_files *c);

/* The file's bytes, to be looked at and damaged in place; NULL if there is no such file. */
struct crash_inode *crash_files_at(struct crash_files *c, const char *path);

bool crash_files_is_there(const struct crash_files *c, const char *path);
long crash_files_n_open(const struct crash_files *c);

#endif
