/*
 * A few keys on their way through a lookup (table.h, table_group_begin()), so that callers can
 * have several on their stacks. The fields are the table's own.
 */
#ifndef SERVER_CORE_TABLE_GROUP_H
#define SERVER_CORE_TABLE_GROUP_H

#include "server/core/row.h"

#define TABLE_GROUP_MAX 128u

struct table_line;

struct table_group {
    const uint64_t *keys; /* borrowed: n_keys of them */
    struct row **rows;    /* borrowed: the answers */
    uint32_t n_keys;
    uint64_t n_changes; /* of the table, when it began */
    uint64_t hashes[TABLE_GROUP_MAX];
    const struct table_line *lines[TABLE_GROUP_MAX]; /* where the search stands */
};

#endif
