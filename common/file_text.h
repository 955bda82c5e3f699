/*
 * Small files that are written and read whole, over common/file.h.
 */
#ifndef COMMON_FILE_TEXT_H
#define COMMON_FILE_TEXT_H

#include <stdbool.h>

#include "common/bytes.h"
#include "common/file.h"
#include "common/status.h"

#define FILE_TEXT_TAIL_BYTES 16u /* crc32c 01234567 newline */

/* A new file of these bytes, on the disk when this returns; its name in the directory is not. */
int file_text_write(const struct file_ops *files, const char *path, const char *text,
                    size_t n_bytes) MUST_CHECK;

/* Appends the whole file and a NUL, which is not counted, to *text: to be deinit'ed whatever is
 * returned. PS_ECORRUPT: of more than max_bytes. */
int file_text_read(const struct file_ops *files, const char *path, size_t max_bytes,
                   struct bytes *text) MUST_CHECK;

/* Replaces DIR/NAME in one step: NAME.tmp takes its name. It is on the disk when this returns 0;
 * else the old or the new file is there, and *err says so. */
int file_text_replace(const struct file_ops *files, const char *dir, const char *name,
                      const char *text, size_t n_bytes, struct err *err) MUST_CHECK;

/* --- texts that end with their crc, as a line of its own --- */

/* Appends that line, and a NUL: FILE_TEXT_TAIL_BYTES + 1 bytes. Returns the length with it, without the NUL. */
size_t file_text_seal(char *text, size_t n_bytes);

/* Cuts that line off. False: the last line is not the crc of the bytes before it, or there is a NUL among them. */
bool file_text_unseal(char *text, size_t n_bytes);

/* The rest of the line at *text if it begins with these words, as a string; *text is the next
 * line. NULL: it does not. */
char *file_text_line(char **text, const char *words);

#endif
