/*
 * A folder of files as bytes, on a disk in memory: how a target that reads files is fed, whatever
 * their format is.
 *
 *     file, ...     file: u8 n | name, n characters | u32 n | n bytes, or as many as there are
 */
#ifndef TESTS_FUZZ_DISK_H
#define TESTS_FUZZ_DISK_H

#include "tests/fuzz/harness.h"
#include "tests/support/crash_files.h"

#define DISK_FILES_MAX 12u

/* Makes the folder, and those that it stands in, and writes the files. What no file of ours has in its
 * name becomes _. */
void disk_fill(struct crash_files *disk, const char *dir, struct harness_bytes *in);

/* Appends the folder's files. */
void disk_dump(const struct crash_files *disk, const char *dir, struct bytes *out);

#endif
