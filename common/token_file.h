/*
 * The cluster's secret, as psd and its clients are handed it: a file whose one line it is. Blanks and line ends behind it do
 * not count.
 */
#ifndef COMMON_TOKEN_FILE_H
#define COMMON_TOKEN_FILE_H

#include "common/file.h"
#include "common/status.h"

#define TOKEN_FILE_MAX 128u /* a token, with NUL: what a handshake has space for */

/* "" of the path "", which is no file. A negative errno when it cannot be read, PS_ESETTING when it is no line of 1 to
 * TOKEN_FILE_MAX - 1 characters, or a file that every user of the machine can read or change; the sentence begins with
 * "token-file: ". */
int token_file_read(const struct file_ops *files, const char *path,
                    char ret_token[static TOKEN_FILE_MAX], struct err *err) MUST_CHECK;

#endif
