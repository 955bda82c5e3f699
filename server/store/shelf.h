/*
 * Where checkpoints stand: numbered directories under DATA_DIR/checkpoints, made, listed and
 * removed. What is in one is the business of manifest.h and part.h.
 */
#ifndef SERVER_STORE_SHELF_H
#define SERVER_STORE_SHELF_H

#include <stdbool.h>

#include "common/file.h"
#include "common/status.h"

#define SHELF_PATH_MAX 1024u
#define SHELF_NUMBER_MAX (UINT64_C(1) << 53) /* what the manifest's JSON can carry exactly */

/* DATA_DIR/checkpoints. -ENAMETOOLONG when a number's path would not fit. */
int shelf_path(const char *data_dir, char ret[static SHELF_PATH_MAX], struct err *err)
    MUST_CHECK;

/* DATA_DIR/checkpoints/NUMBER, 20 digits. */
int shelf_number_path(const char *data_dir, uint64_t number, char ret[static SHELF_PATH_MAX],
                      struct err *err) MUST_CHECK;

/* DATA_DIR/checkpoints/NUMBER.aside */
int shelf_aside_path(const char *data_dir, uint64_t number, char ret[static SHELF_PATH_MAX],
                     struct err *err) MUST_CHECK;

/* Beside `dir`, a checkpoint's directory of any name: that of checkpoint `number`; beside one that was set
 * aside also that was, where it is not there otherwise. dir has room for 40 bytes in SHELF_PATH_MAX. */
void shelf_beside(const struct file_ops *files, const char *dir, uint64_t number,
                  char ret[static SHELF_PATH_MAX]);

/* A checkpoint's directory as people type it, DATA_DIR/checkpoints/ and its number of any length, also with
 * .aside: cut in two. False: it is something else. */
bool shelf_split(const char *path, char ret_data_dir[static SHELF_PATH_MAX],
                 uint64_t *ret_number);

/* The directory that is meant: where the number is short, it with 20 digits, or NUMBER.aside; else `path`. */
void shelf_resolve(const struct file_ops *files, const char *path,
                   char ret[static SHELF_PATH_MAX]);

/* Whether this directory is a checkpoint that was written to its end: the manifest is renamed into it last. */
bool shelf_is_finished(const struct file_ops *files, const char *dir);

/* The numbers that are there, descending. Names that are no number of ours are left out. */
struct shelf_numbers {
    uint64_t *items; /* owned */
    size_t n;
    uint64_t greatest; /* that is there or was set aside; 0: none */
};

/* `base`: shelf_path()'s. An absent directory has no numbers. ret->items is the caller's to
 * free, also on failure. */
int shelf_list(const struct file_ops *files, const char *base, struct shelf_numbers *ret,
               struct err *err) MUST_CHECK;

/* The same of those that were set aside: NUMBER.aside. */
int shelf_list_aside(const struct file_ops *files, const char *base, struct shelf_numbers *ret,
                     struct err *err) MUST_CHECK;

/* Makes a directory and syncs the name of it in `parent` (NULL: does not). */
int shelf_make_dir(const struct file_ops *files, const char *path, const char *parent,
                   struct err *err) MUST_CHECK;

/* DATA_DIR/checkpoints/NUMBER becomes NUMBER.aside, which shelf_list() leaves out. */
int shelf_set_aside(const struct file_ops *files, const char *data_dir, uint64_t number,
                    struct err *err) MUST_CHECK;

/* Removes our files in a checkpoint's directory, then it. The manifest goes first: what a crash
 * leaves is no checkpoint. What cannot be removed stays, for the next attempt. */
void shelf_remove(const struct file_ops *files, const char *dir);

#endif
