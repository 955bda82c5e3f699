/*
 * NumPy's file of one array, version 1.0 (NEP 1, "A Simple File Format for NumPy Arrays"):
 *
 *     "\x93NUMPY" | 1 | 0 | u16 length | Python dictionary, blanks, newline | data
 *
 * Little-endian, C order; all before the data is a multiple of 64 bytes.
 */
#ifndef DEPLOY_PSCTL_NPY_H
#define DEPLOY_PSCTL_NPY_H

#include "deploy/psctl/tensor.h"

int npy_write(const struct file_ops *files, const char *path, const struct tensor *t,
              struct err *err) MUST_CHECK;

#endif
