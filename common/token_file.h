/*
 * The cluster's secret: a file of one line. Blanks and line ends after the secret do not count. A node's file may have
 * a line for each role instead: ROLE[/JOB] SECRET (access.h).
 */
#ifndef COMMON_TOKEN_FILE_H
#define COMMON_TOKEN_FILE_H

#include "common/access.h"
#include "common/file.h"
#include "common/status.h"

#define TOKEN_FILE_MIN \
    8u /* fewer can be guessed at the rate that connections come: psd refuses them */
#define TOKEN_FILE_MAX 128u /* a token with NUL: the space that a handshake has for it */

/* Reads the token; "" for the path "", which names no file. A negative errno if the file cannot be read. PS_ESETTING
 * if it is not a line of 1 to TOKEN_FILE_MAX - 1 characters, or if every user of the machine can read or change it.
 * The sentence begins with "token-file: ", and asks for TOKEN_FILE_MIN, which psd checks, and clients do not. */
int token_file_read(const struct file_ops *files, const char *path,
                    char ret_token[static TOKEN_FILE_MAX], struct err *err) MUST_CHECK;

#define TOKEN_FILE_ROLES_MAX 32u

struct token_list {
    uint32_t n; /* 0: the file has one secret, which is of all roles */
    struct {
        struct access access;
        char token[TOKEN_FILE_MAX];
    } items[TOKEN_FILE_ROLES_MAX];
};

/* The same of a node: *ret_list is what its lines say. Of a file of one secret that is ret_token; of one with roles
 * ret_token is the first of role node or all, which the node itself shows to others; else "". */
int token_file_read_roles(const struct file_ops *files, const char *path,
                          char ret_token[static TOKEN_FILE_MAX], struct token_list *ret_list,
                          struct err *err) MUST_CHECK;

/* True if they are the same. Takes as long for a wrong one as for a right one. */
bool token_file_is_same(const char *ours, const char *theirs);

/* Who shows this token to a node that has these (token: where list->n is 0; "": any will do). False: nobody of ours. */
bool token_file_find(const char *token, const struct token_list *list, const char *theirs,
                     struct access *ret);

#endif
