/*
 * psctl export PATH[,PATH...] --out PATH: tables as arrays (arrays.h), of all shards and nodes together.
 *
 *     safetensors   PATH is one file; its metadata says of each table what it is
 *     npy           PATH is a directory: a file for each array, and tables.json, which says the same and names
 *                   the files. What is no letter, digit, dot, minus or underscore in a name becomes %XX.
 */
#ifndef DEPLOY_PSCTL_EXPORT_H
#define DEPLOY_PSCTL_EXPORT_H

#include "deploy/psctl/options.h"

int export_run(const struct options *o, const char *const *words, uint32_t n_words);

#endif
