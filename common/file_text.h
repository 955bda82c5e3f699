/*
 * Small files that are written and read whole, over common/file.h.
 */
#ifndef COMMON_FILE_TEXT_H
#define COMMON_FILE_TEXT_H

#include "common/bytes.h"
#include "common/file.h"

/* A new file of these bytes, on the disk when this returns; its name in the directory is not. */
int file_text_write(const struct file_ops *files, const char *path, const char *text,
                    size_t n_bytes) MUST_CHECK;

/* Appends the whole file and a NUL, which is not counted, to *text: to be deinit'ed whatever is
 * returned. PS_ECORRUPT: of more than max_bytes. */
int file_text_read(const struct file_ops *files, const char *path, size_t max_bytes,
                   struct bytes *text) MUST_CHECK;

#endif
