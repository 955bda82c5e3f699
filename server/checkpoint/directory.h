/*
 * Directories of checkpoints: numbered, under DATA_DIR/checkpoints; created, listed and removed here. manifest.h
 * and shard_file.h describe their content.
 */
#ifndef SERVER_CHECKPOINT_DIRECTORY_H
#define SERVER_CHECKPOINT_DIRECTORY_H

#include <stdbool.h>

#include "common/file.h"
#include "common/status.h"

#define DIRECTORY_PATH_MAX 1024u
#define DIRECTORY_NUMBER_MAX \
    (UINT64_C(1) << 53) /* what the manifest's JSON can carry exactly */

/* DATA_DIR/checkpoints. -ENAMETOOLONG when a number's path would not fit. */
int directory_path(const char *data_dir, char ret[static DIRECTORY_PATH_MAX], struct err *err)
    MUST_CHECK;

/* DATA_DIR/checkpoints/NUMBER, 20 digits. */
int directory_number_path(const char *data_dir, uint64_t number,
                          char ret[static DIRECTORY_PATH_MAX], struct err *err) MUST_CHECK;

/* DATA_DIR/checkpoints/NUMBER.aside */
int directory_archived_path(const char *data_dir, uint64_t number,
                            char ret[static DIRECTORY_PATH_MAX], struct err *err) MUST_CHECK;

/* The directory of checkpoint `number` in the parent of `dir`, a checkpoint's directory of any name. Beside an
 * archived one, also an archived one if there is no other. dir leaves 40 bytes of DIRECTORY_PATH_MAX unused. */
void directory_beside(const struct file_ops *files, const char *dir, uint64_t number,
                      char ret[static DIRECTORY_PATH_MAX]);

/* Splits a path of a checkpoint's directory: DATA_DIR/checkpoints/ and its number of any length, also with .aside.
 * False: it is no such path. */
bool directory_split(const char *path, char ret_data_dir[static DIRECTORY_PATH_MAX],
                     uint64_t *ret_number);

/* Resolves a short number to its directory of 20 digits, or to NUMBER.aside; else returns `path`. */
void directory_resolve(const struct file_ops *files, const char *path,
                       char ret[static DIRECTORY_PATH_MAX]);

/* True if the checkpoint is finished: the manifest is renamed into the directory last. */
bool directory_is_finished(const struct file_ops *files, const char *dir);

/* The existing numbers, descending. Other names are skipped. */
struct directory_numbers {
    uint64_t *items; /* owned */
    size_t n;
    uint64_t greatest; /* of existing and archived ones; 0: none */
};

/* `base`: directory_path()'s. An absent directory has no numbers. ret->items is the caller's to
 * free, also on failure. */
int directory_list(const struct file_ops *files, const char *base,
                   struct directory_numbers *ret, struct err *err) MUST_CHECK;

/* The same for archived checkpoints: NUMBER.aside. */
int directory_list_archived(const struct file_ops *files, const char *base,
                            struct directory_numbers *ret, struct err *err) MUST_CHECK;

/* Makes a directory and syncs the name of it in `parent` (NULL: does not). */
int directory_make_dir(const struct file_ops *files, const char *path, const char *parent,
                       struct err *err) MUST_CHECK;

/* Archives: renames DATA_DIR/checkpoints/NUMBER to NUMBER.aside, which directory_list() skips. */
int directory_archive(const struct file_ops *files, const char *data_dir, uint64_t number,
                      struct err *err) MUST_CHECK;

/* Removes our files in a checkpoint's directory, then the directory. The manifest goes first, so that after a crash the
 * rest is not a checkpoint. Files that cannot be removed stay until the next attempt. */
void directory_remove(const struct file_ops *files, const char *dir);

#endif
